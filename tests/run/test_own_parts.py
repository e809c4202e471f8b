"""Algorithms and topologies of the user's own: docs/your-own-parts.md as printed, everywhere that ours work."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import gossamer
from runs import rows_of
from waiting import PATIENCE_SECONDS

from gossamer import cli, load_policy, make_config, train
from gossamer.config import own_parts
from gossamer.errors import ConfigError
from gossamer.record.checkpoint import CheckpointStore
from gossamer.sweep.file import read_sweep
from gossamer.sweep.space import Range

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-parts.md").read_text()
PARTS = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
WORDS = (
    "CartPole-v1 --num-envs 4 --unroll-length 16 --evaluation.every-seconds 0 --checkpoint-every-seconds 0 "
    "--optimizer.schedule constant --algorithm.passes 2 --algorithm.num-minibatches 2"
)
SMALL = WORDS.split()
SHORT = ["--run-folder", "one", "--total-env-steps", "64", "--placement", "inline"]
LOSS = "algorithm:my_parts:AdvantageWeighted"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that a command is started in, with the page's module in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own_parts, "IN_USE", {})
    (tmp_path / "my_parts.py").write_text(PARTS)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    yield tmp_path
    sys.modules.pop("my_parts", None)


def policy_of(run: str) -> list[torch.Tensor]:
    return list(load_policy(run).state_dict().values())


def ran(*words: str) -> None:
    """Run a command to its end, which must be a good one."""
    done = gossamer(*words)
    assert done.returncode == 0, done.stderr


def assert_resumes(*words: str, first: int, whole: int) -> None:
    """Check that a run that stops and goes on learns what one learns that does not stop."""
    for run, steps in (("one", whole), ("two", first)):
        ran("train", *SMALL, *words, "--run-folder", run, "--total-env-steps", str(steps))
    ran("train", "--resume", "two", "--total-env-steps", str(whole))
    assert all(map(torch.equal, policy_of("one"), policy_of("two")))


def test_the_test_of_an_algorithm_runs_as_printed(folder: Path) -> None:
    root = Path(__file__).parents[2]
    (block,) = re.findall(
        r"^```text\n(import torch\n.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL
    )
    (folder / "test_my_parts.py").write_text(block)
    verb, words = "make test ARGS=", "test_my_parts.py -n 0"
    assert f'PYTHONPATH=tests/support {verb}"{words}"' in PAGE
    recipe = (root / "Makefile").read_text().partition("\ntest:")[2].splitlines()[1]
    assert "-m pytest" in recipe, "which puts the folder on the path"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(root / "pyproject.toml"), *words.split()],
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}:{root / 'tests' / 'support'}"},
        capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_an_algorithm_in_passes_learns_and_resumes_exactly(folder: Path) -> None:
    words = ["algorithm:my_parts:InPasses", "--optimizer.learning-rate", "3e-3"]
    assert_resumes(*words, "--placement", "inline", first=3_000, whole=6_000)
    rows = rows_of(folder / "one")
    assert rows[-1]["return_mean_100"] > 1.5 * rows[0]["return_mean_100"]


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_an_algorithm_trains_resumes_exactly_and_is_evaluated(folder: Path, placement: str) -> None:
    words = [LOSS, "--algorithm.temperature", "0.5", "--placement", placement, "--lag", "1"]
    assert_resumes(*words, first=480, whole=960)
    config = json.loads((folder / "one" / "config.json").read_text())["algorithm"]
    assert (config["name"], config["temperature"]) == ("my_parts:AdvantageWeighted", 0.5)
    ran("eval", "one", "--episodes", "1")


def test_an_algorithm_from_nothing_trains_at_lag_0_alone(folder: Path) -> None:
    words = [*SMALL[:7], "algorithm:my_parts:Reinforce", "--algorithm.entropy-cost", "0.01"]
    ran("train", *words, "--run-folder", "one", "--total-env-steps", "960")
    rows = rows_of(folder / "one")
    assert rows[-1]["learner/entropy_nats"] < rows[0]["learner/entropy_nats"] + 1e-3
    assert rows[-1]["learner/value_loss"] > 0
    done = gossamer("train", *words, "--lag", "1", "--run-folder", "two")
    assert done.returncode == 2
    assert "lag" in done.stderr
    done = gossamer("train", *words, "--algorithm.value-norm", "--run-folder", "three")
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith(
            "the loss of Reinforce reports no learner/target_mean and no learner/target_square; report them, or use "
            "--algorithm.value-norm false"
        )
    )


def test_an_algorithm_from_nothing_has_normalised_values_once_it_reports_targets(
    folder: Path,
) -> None:
    (folder / "told.py").write_text(
        "from my_parts import Reinforce\n"
        "class Told(Reinforce):\n"
        "    def loss(self, policy, batch, state):\n"
        "        loss, metrics = super().loss(policy, batch, state)\n"
        "        count = batch.valid.sum()\n"
        "        for name, x in (('mean', batch.reward), ('square', batch.reward**2)):\n"
        "            metrics[f'learner/target_{name}'] = (x * batch.valid).sum().detach(), count\n"
        "        return loss, metrics\n"
    )
    words = [
        *SMALL[:7],
        "algorithm:told:Told",
        "--algorithm.value-norm",
        "--total-env-steps",
        "640",
    ]
    ran("train", *words, "--run-folder", "one", "--placement", "inline")
    assert rows_of(folder / "one")[-1]["learner/target_mean"] > 0
    assert "learner/explained_variance" not in rows_of(folder / "one")[-1]


def test_an_update_to_which_nothing_is_dealt_is_refused(folder: Path) -> None:
    (folder / "dealer.py").write_text(
        "import torch\n"
        "from gossamer.algorithms.a2c import A2C\n"
        "class Dealer(A2C):\n"
        "    def dealt(self, num_columns, num_online, state):\n"
        "        yield torch.arange(num_columns)\n"
        "        yield torch.arange(0)\n"
    )
    done = gossamer("train", *SMALL[:7], "algorithm:dealer:Dealer", *SHORT)
    assert done.returncode == 1
    assert "dealt of Dealer has dealt no columns to an update" in done.stderr


def test_a_topology_mixes_learners_in_processes_as_in_one(folder: Path) -> None:
    words = [*SMALL, "topology:my_parts:Star", "--topology.share", "0.25", "--num-learners", "3"]
    words += ["--total-env-steps", "1152"]
    for run, placement in (("one", "inline"), ("two", "local")):
        ran("train", *words, "--run-folder", run, "--placement", placement)
    for rank in range(3):
        one, two = (load_policy(run, learner=rank).state_dict() for run in ("one", "two"))
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_a_replay_picks_resumes_exactly_and_has_settings(folder: Path, placement: str) -> None:
    words = ["algorithm:vtrace", "--replay-ratio", "1", "--replays.1.name", "my_parts:MostReward",
             "--replays.1.power", "2", "--checkpoint-replay", "--placement", placement, "--lag", "1"]  # fmt: skip
    assert_resumes(*words, first=480, whole=960)
    rows = rows_of(folder / "one")
    assert max(row.get("replay/ratio", 0.0) for row in rows) == 1.0


def test_a_replay_that_picks_too_few_is_told(folder: Path) -> None:
    (folder / "few.py").write_text(
        "from gossamer.replay.settings import Selector\n"
        "class Few(Selector):\n    def pick(self, candidates, wanted): return candidates.draw(wanted - 1)"
    )
    words = [*SMALL[:7], "algorithm:vtrace", "--replay-ratio", "1", "--replays.1.name", "few:Few"]
    done = gossamer("train", *words, "--run-folder", "one", "--total-env-steps", "2000")
    assert done.returncode == 1
    assert "the replay few picked 3 different columns" in done.stderr


def test_a_torso_of_ones_own_in_processes(folder: Path) -> None:
    words = [*SMALL, "--policy.torso", "my_parts:Wide", "topology:allreduce", "--num-learners", "2"]
    ran("train", *words, "--run-folder", "one", "--total-env-steps", "512")
    assert load_policy("one").torso.feature_size == 256
    done = gossamer("train", *SMALL, "--policy.torso", "my_parts:Wode", "--run-folder", "two")
    assert done.returncode == 2
    assert "my_parts has neither a class nor a function Wode" in done.stderr
    assert not (folder / "two").exists()


WITH_WEIGHTS = """
import torch
from torch import nn

class Frozen(nn.Module):
    def __init__(self, obs_shape):
        super().__init__()
        self.encoder, self.top = nn.Linear(*obs_shape, 8), nn.Linear(8, 16)
        for name in ("encoder", "top"):  # assign: shapes are also compared without memory, on torch's meta device
            getattr(self, name).load_state_dict(torch.load(name + ".pt"), assign=True)
        self.encoder.requires_grad_(False)
        self.feature_size = 16

    def forward(self, x):
        return self.top(self.encoder(x).tanh()).tanh()
"""


def test_frozen_parameters_of_a_torso_stay_and_the_others_learn(folder: Path) -> None:
    (folder / "frozen.py").write_text(WITH_WEIGHTS)
    loaded = {"encoder": torch.nn.Linear(4, 8), "top": torch.nn.Linear(8, 16)}
    for name, layer in loaded.items():
        torch.save(layer.state_dict(), folder / f"{name}.pt")
    words = [*SMALL, "--policy.torso", "frozen:Frozen", "--placement", "inline"]
    ran("train", *words, "--run-folder", "one", "--total-env-steps", "256")
    learnt = load_policy("one").torso
    for name in ("weight", "bias"):
        kept, moved = getattr(learnt.encoder, name), getattr(learnt.top, name)
        assert torch.equal(kept, getattr(loaded["encoder"], name)), name
        assert not torch.equal(moved, getattr(loaded["top"], name)), name
    ran("train", "--resume", "one", "--total-env-steps", "512")
    assert torch.equal(load_policy("one").torso.encoder.weight, loaded["encoder"].weight)


def test_from_python_a_class_or_an_instance_will_do(folder: Path) -> None:
    cli.main(["train", LOSS, "--help"])  # imports it
    parts = sys.modules["my_parts"]
    settings: dict[str, Any] = {
        "num_envs": 4, "unroll_length": 16, "total_env_steps": 128, "placement": "inline",
        "evaluation.every_seconds": 0.0,
    }  # fmt: skip
    kind = parts.AdvantageWeighted
    config = make_config("CartPole-v1", {**settings, "algorithm": kind, "algorithm.temperature": 2})
    assert config.algorithm == kind(**{**vars(config.algorithm), "temperature": 2.0})
    suite = make_config("CartPole-v1", {"algorithm": "ppo"})
    assert config.algorithm.passes == suite.algorithm.passes, "PPO's of the suite"
    config = make_config("CartPole-v1", {**settings, "algorithm": kind(temperature=0.3)})
    assert config.algorithm.temperature == 0.3
    result = train(config, quiet=True)
    saved = json.loads((result.folder / "config.json").read_text())
    assert saved["algorithm"]["name"] == "my_parts:AdvantageWeighted"
    assert "advantage_weighted-single" in str(result.folder)


def test_help_and_files_know_its_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", LOSS, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--algorithm.temperature X" in told
    assert "Deviations of the advantage" in told
    (folder / "mine.toml").write_text(
        'env_id = "CartPole-v1"\n[algorithm]\nname = "my_parts:AdvantageWeighted"\ntemperature = 3\n'
    )
    assert (
        cli.main(["train", "--algorithm.max-weight", "7", "--config", "mine.toml", "--show-config"])
        == 0
    )
    told = capsys.readouterr().out
    assert re.search(r"algorithm.temperature = 3.0 +# --config mine.toml", told)
    assert re.search(r"algorithm.max_weight = 7.0 +# command line", told)


def test_a_run_from_elsewhere_imports_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("train", *SMALL, LOSS, *SHORT)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "another"))
    done = gossamer("train", "--resume", "one", "--total-env-steps", "128")
    assert done.returncode == 2
    assert "would import and call my_parts:AdvantageWeighted" in done.stderr
    ran("train", LOSS, "--resume", "one", "--total-env-steps", "128")


BROKEN = {
    "import missing_thing": r"cannot be imported: No module named 'missing_thing' \(.*broken.py, line 1\)",
    "1 / 0": r"ZeroDivisionError: division by zero \(.*broken.py, line 1\)",
    "class Part: ...": r"is not a subclass of Algorithm: from gossamer.algorithms.base import Algorithm",
    "Other = 1": r"broken has no class Part",
    "from gossamer.algorithms.base import Algorithm\nclass Part(Algorithm): ...": "has neither a method returns",
    "from gossamer.algorithms.ppo import PPO\nclass Part(PPO):\n    def minibatches(self, policy, batch, state): ...": (
        "has a method minibatches, which is no longer called: override prepare, dealt and part"
    ),
    "from gossamer.algorithms.ppo import PPO\nclass Part(PPO):\n    beta: float = 1.0": (
        r"has a setting beta, but Part is no dataclass: write @dataclass\(frozen=True\)"
    ),
    "from dataclasses import dataclass\nfrom gossamer.algorithms.ppo import PPO\n"
    "@dataclass(frozen=True)\nclass Part(PPO):\n    beta: dict = None": "has a setting beta of type",
    "from dataclasses import dataclass\nfrom gossamer.algorithms.ppo import PPO\n"
    "@dataclass(frozen=True)\nclass Part(PPO):\n    name: str = 'x'": "has a setting name",
    "from gossamer.algorithms.ppo import PPO\nclass Part(PPO):\n    def validate(self): 1 / 0": (
        r"fails in validate: ZeroDivisionError: division by zero \(.*broken.py, line 3\)"
    ),
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_algorithm_is_refused_in_one_line(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken.py").write_text(text)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    before = set(folder.iterdir())
    assert cli.main(["train", "CartPole-v1", "algorithm:broken:Part"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(BROKEN[text], told), told
    assert {x for x in folder.iterdir() if x.name != "__pycache__"} == before
    sys.modules.pop("broken", None)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("({0: 1.0},)", "a row {rank: weight} for each of 2 learners"),
        ("({0: 1.0}, {1: 0.5})", "row 1 sums to 0.5"),
        ("({0: 1.5, 1: -0.5}, {1: 1.0})", "row 0 sums to 1; weights must be >= 0"),
        ("({0: 1.0}, {2: 1.0})", "row 1 names learner 2"),
        ("({0: float('nan'), 1: 0.5}, {1: 1.0})", "row 0 sums to nan"),
        ("{0: 1.0}, {1: 1.0}", "a row {rank: weight} for each of 2 learners"),
        ("[[0.5, 0.5], [0.5, 0.5]]", "a row {rank: weight} for each of 2 learners"),
        ("({0: 1.0}, {0: 1 / 0})", "fails in turns: ZeroDivisionError"),
    ],
)
def test_what_is_no_average_is_refused(folder: Path, rows: str, says: str) -> None:
    text = f"from gossamer.topology.averaging import Averaging\nclass Odd(Averaging):\n    def turns(self, n, seed): return ({rows},)"
    scope: dict[str, Any] = {"__name__": "odd"}
    exec(text, scope)
    with pytest.raises(ConfigError, match=re.escape(says)):
        make_config("CartPole-v1", {"topology": scope["Odd"], "num_learners": 2})


def test_gradients_are_averaged_in_lock_step_alone(folder: Path) -> None:
    """Of two updates' gradients everyone would make another step."""
    text = (
        "from gossamer.topology.averaging import Averaging\n"
        "class Mine(Averaging):\n"
        "    mixes, on_death = 'gradients', 'restart_group'\n"
        "    def turns(self, n, seed): return (({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}),)"
    )
    scope: dict[str, Any] = {"__name__": "mine"}
    exec(text, scope)
    given = {"topology": scope["Mine"], "num_learners": 2}
    make_config("CartPole-v1", given)
    with pytest.raises(ConfigError, match="max_staleness must be 0 if gradients are mixed"):
        make_config("CartPole-v1", {**given, "topology.max_staleness": 1})
    with pytest.raises(ConfigError, match="every must be updates if gradients are mixed"):
        make_config("CartPole-v1", {**given, "topology.every": "versions"})
    scope["Mine"].on_death = "replace"
    with pytest.raises(ConfigError, match="on_death must be restart_group if gradients are mixed"):
        make_config("CartPole-v1", given)
    scope["Mine"].on_death = "restart"
    with pytest.raises(ConfigError, match="on_death is 'restart'; it must be one of replace, rest"):
        make_config("CartPole-v1", given)


MARKED = """
from dataclasses import dataclass
import torch
from torch import nn
from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.base import unroll


class Pictures(nn.Module):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__()
        self.fc, self.head = nn.Linear(40 * 44 * 3, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.fc(x.flatten(1))


@dataclass(frozen=True)
class Marked(A2C):
    horizon: int = 3
    label: str = ""

    def prepare(self, policy, batch, state):
        seen = state.tensors.setdefault("seen", torch.zeros(()))
        seen += 1
        return super().prepare(policy, batch, state)

    def loss(self, policy, batch, state):
        loss, metrics = super().loss(policy, batch, state)
        metrics["own/mark"] = (MARK, 1.0)
        if isinstance(policy.torso, Pictures):
            out = unroll(policy, batch, slice(0, batch.unroll_length))
            predicted = policy.torso.head(out.features)
            metrics["own/bits"] = (torch.finfo(predicted.dtype).bits, 1.0)
            loss = loss + 0.0 * predicted.sum()
        return loss, metrics
"""
TINY: dict[str, Any] = {
    "num_envs": 2, "unroll_length": 8, "total_env_steps": 64, "placement": "inline", "device": "cpu",
    "evaluation.every_seconds": 0.0, "checkpoint_every_seconds": 0.0, "algorithm": "marked:Marked",
    "optimizer.schedule": "constant",
}  # fmt: skip


@pytest.fixture
def marked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with an algorithm that is still being written."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (folder / "marked.py").write_text(MARKED.replace("MARK", "1.0"))
    yield folder / "marked.py"
    sys.modules.pop("marked", None)


def test_a_module_that_is_loaded_anew_is_the_one_that_trains(marked: Path) -> None:
    train("CartPole-v1", quiet=True, run_folder="one", **TINY)
    marked.write_text(MARKED.replace("MARK", "2.0 + 0.0"))
    importlib.reload(sys.modules["marked"])
    train("CartPole-v1", quiet=True, run_folder="two", **TINY)
    assert [rows_of(Path(x))[-1]["own/mark"] for x in ("one", "two")] == [1.0, 2.0]


def test_tensors_that_are_kept_later_than_at_the_beginning_are_resumed(marked: Path) -> None:
    def held(run: str) -> dict[str, torch.Tensor]:
        found = CheckpointStore(Path(run, "checkpoints"), 0).load().tensors
        return {name: x for name, x in found.items() if name.endswith("algorithm.tensors.seen")}

    train("CartPole-v1", quiet=True, run_folder="whole", **{**TINY, "total_env_steps": 128})
    train("CartPole-v1", quiet=True, run_folder="part", **TINY)
    train(resume="part", total_env_steps=128, quiet=True)
    (seen,) = held("whole").values()
    assert seen > 5
    assert [*held("part").values()] == [seen]
    marked.write_text(
        MARKED.replace("MARK", "1.0") + "class Derived(Marked):\n    name = 'derived'\n"
    )
    importlib.reload(sys.modules["marked"])
    train(resume="part", total_env_steps=160, algorithm="marked:Derived", quiet=True)
    (more,) = held("part").values()
    assert more > seen
    train(resume="part", total_env_steps=192, algorithm="ppo", quiet=True)
    assert not held("part"), "an algorithm of ours has none of it"


def test_a_loss_is_computed_in_float32(marked: Path) -> None:
    """Its matrix products were rounded to bfloat16, as those of the network's features are."""
    layers = {"policy.torso": "marked:Pictures", "precision": "bf16"}
    train("cases_envs:Picture", quiet=True, run_folder="run", **TINY, **layers)
    assert rows_of(Path("run"))[-1]["own/bits"] == 32


def test_a_range_over_a_setting_of_a_class_takes_its_numbers(marked: Path) -> None:
    text = """
method = "random"
trials = 3
[settings]
env_id = "CartPole-v1"
algorithm = "marked:Marked"
[search]
"algorithm.horizon" = { min = 1, max = 9 }
"""
    Path("own.toml").write_text(text)
    assert read_sweep("own.toml").space == {"algorithm.horizon": Range(1, 9, whole=True)}
    named = text + '"algorithm.label" = ["shapes:one", "shapes:two"]\n'
    Path("own.toml").write_text(named)
    assert "algorithm.label" in read_sweep("own.toml").space, "it names no part"
    Path("own.toml").write_text(text.replace("min = 1", "min = 1.5"))
    with pytest.raises(ConfigError, match=r"takes whole numbers alone, and the range has 1\.5"):
        read_sweep("own.toml")


def test_a_plugin_that_is_gone_is_told(folder: Path) -> None:
    ran("train", *SMALL, LOSS, *SHORT)
    (folder / "my_parts.py").unlink()
    done = gossamer("train", "--resume", "one", "--total-env-steps", "128")
    assert done.returncode == 2
    assert "start gossamer in the folder that holds my_parts, or install it" in done.stderr
    assert done.stderr.count("\n") == 1
