"""What simulators do to the process that they run in, which the run does not notice."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import gossamer as gossamer_command
from runs import rows_of

import gossamer
from gossamer.envs.registry import read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError

SUPPORT = Path(__file__).parents[1] / "support"
TINY = {
    "algorithm": "a2c",
    "placement": "inline",
    "evaluation.every_seconds": 0,
    "num_envs": 2,
    "unroll_length": 8,
    "total_env_steps": 96,
    "policy.hidden_sizes": [8],
}
PPO = {"name": "ppo", "passes": 2, "num_minibatches": 2}
TYPED = [f"--{name}={value}" for name, value in TINY.items() if name != "policy.hidden_sizes"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a command in a process of its own, where `cases_envs:Habits` does what a mode says."""

    def run(*words: str, cwd: Path, mode: str = "") -> Any:
        monkeypatch.setenv("MODE", mode)
        done = gossamer_command(*words, cwd=cwd)
        monkeypatch.delenv("MODE")  # this process keeps its own habits
        return done

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), *sys.path]))
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of a simulator without habits, in this process."""
    run = str(tmp_path_factory.mktemp("plain") / "run")
    settings = {**TINY, "policy.hidden_sizes": [64, 64], "run_folder": run}
    gossamer.train("cases_envs:Habits", quiet=True, **settings)
    return run


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("chdir", ["--run-folder", "run"]),
        ("float64", []),
        ("nograd", []),
        ("device", []),
        ("chdir", ["--placement", "local"]),
        ("float64", ["--placement", "local", "--num-learners", "2", "topology:gossip"]),
    ],
)
def test_a_run_does_not_notice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Any,
    plain: str,
    mode: str,
    words: list[str],
) -> None:
    done = command("train", "cases_envs:Habits", *TYPED, *words, cwd=tmp_path, mode=mode)
    assert done.returncode == 0, done.stderr
    (summary,) = [*tmp_path.glob("**/summary.json")]
    told = str(summary.parent.relative_to(tmp_path))
    assert f"run folder {told}\n" in done.stderr
    assert told == "run" or told.startswith("runs/cases_envs-Habits/")
    assert json.loads(summary.read_text())["env_steps"] >= 96
    if mode == "chdir":
        again = command("eval", "last" if told != "run" else told, "--json", "--trust",
                        "--episodes", "2", cwd=tmp_path, mode=mode)  # fmt: skip
        assert json.loads(again.stdout)["run"] == told
        monkeypatch.chdir(tmp_path)
        gossamer.load_policy(told, trust=True)
        assert Path.cwd() == tmp_path
    if not words:  # what is learnt is the same, to the bit
        monkeypatch.chdir(tmp_path)
        one, other = (gossamer.load_policy(x, trust=True) for x in (plain, told))
        assert all(map(torch.equal, one.shared_tensors(), other.shared_tensors()))


def test_standard_output_is_for_json_alone(tmp_path: Path, command: Any, plain: str) -> None:
    told = command("eval", plain, "--episodes", "2", "--json", cwd=tmp_path, mode="print")
    assert json.loads(told.stdout)["episodes"] == 2
    assert "simulator 4.2 started" in told.stderr
    assert "and its library" in told.stderr
    words = ("export", plain, "--format", "hub", "--episodes", "0", "--output", "card", "--json")
    told = command(*words, cwd=tmp_path, mode="print")
    assert json.loads(told.stdout)["path"] == "card"
    shown = command("eval", plain, "--episodes", "2", cwd=tmp_path, mode="print")
    assert "simulator 4.2 started" in shown.stdout, "without --json it may print where it likes"


@pytest.fixture
def float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": PPO, "policy.core": "lstm"},
        {"algorithm": "laser", "replay_ratio": 1.0, "policy.core": "gru"},
        {"algorithm": "vtrace", "env_id": "Pendulum-v1", "policy.squash": True},
        {"algorithm": "impact", "optimizer.outer_momentum": 0.5},
        {"algorithm": "a2c", "num_learners": 2, "topology": "gossip"},
        {
            "algorithm": PPO,
            "policy.torso": "impala",
            "env_id": "cases_envs:Picture",
            "total_env_steps": 32,
        },
        {"algorithm": PPO, "env_id": "nested_envs:Everything"},
        {"algorithm": PPO, "env_id": "joint_envs:Pair"},
    ],
)
def test_torch_may_make_other_numbers_by_default(
    tmp_path: Path, float64: None, settings: dict[str, Any]
) -> None:
    given = {"env_id": "CartPole-v1", **TINY, "policy.hidden_sizes": [8], **settings}
    gossamer.train({**given, "run_folder": str(tmp_path / "double")}, quiet=True)
    torch.set_default_dtype(torch.float32)
    gossamer.train({**given, "run_folder": str(tmp_path / "single")}, quiet=True)
    policies = [gossamer.load_policy(str(tmp_path / x)) for x in ("double", "single")]
    for one, other in zip(*(policy.shared_tensors() for policy in policies), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.fixture
def meta() -> Any:
    torch.set_default_device("meta")  # stands for a GPU
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize(
    "settings", [{"algorithm": PPO, "policy.core": "lstm"}, {"algorithm": "laser", "lag": 1}]
)
def test_a_script_may_have_another_default_device(
    tmp_path: Path, meta: None, settings: dict[str, Any]
) -> None:
    given = {"env_id": "CartPole-v1", **TINY, **settings}
    runs = [str(tmp_path / x) for x in ("elsewhere", "plain")]
    scores: list[float] = []
    policies: list[gossamer.Policy] = []
    for run, device in zip(runs, ("meta", None), strict=True):
        torch.set_default_device(device)
        gossamer.train({**given, "run_folder": run}, quiet=True)
        scores.append(gossamer.evaluate(run, episodes=3).mean)
        policies.append(gossamer.load_policy(run))
        action, _ = policies[-1].act([0.1, 0.0, 0.0, 0.1])
        assert action in (0, 1)
        assert torch.empty(1).device.type == (device or "cpu"), "it holds again"
    assert scores[0] == scores[1]
    assert all(map(torch.equal, *(policy.shared_tensors() for policy in policies)))


def test_a_program_may_compute_otherwise_around_a_run(tmp_path: Path) -> None:
    around = {
        "plain": nullcontext(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
        "inference": torch.inference_mode(),
    }
    scores: list[tuple[float, ...]] = []
    policies: list[gossamer.Policy] = []
    for name, context in around.items():
        run = str(tmp_path / name)
        with context:
            gossamer.train({"env_id": "CartPole-v1", **TINY, "run_folder": run}, quiet=True)
        policies.append(gossamer.load_policy(run))
        with context:
            scores.append(gossamer.evaluate(tmp_path / "plain", episodes=3, sample=True).returns)
    assert scores[0] == scores[1] == scores[2]
    for policy in policies[1:]:
        assert all(map(torch.equal, policies[0].shared_tensors(), policy.shared_tensors()))


def test_two_runs_in_two_threads_are_what_each_alone_is(tmp_path: Path) -> None:
    def run(name: str, seed: int) -> None:
        gossamer.train(
            "CartPole-v1", run_folder=str(tmp_path / name), seed=seed, quiet=True, **TINY
        )

    for seed in (1, 2):
        run(f"alone{seed}", seed)
    threads = [threading.Thread(target=run, args=(f"beside{seed}", seed)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for seed in (1, 2):
        pair = [gossamer.load_policy(str(tmp_path / f"{x}{seed}")) for x in ("alone", "beside")]
        for one, other in zip(*(policy.shared_tensors() for policy in pair), strict=True):
            assert torch.equal(one, other)


def test_what_a_user_has_chosen_stays_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = read_spec("cases_envs:level_two", EnvConfig(), tries=True)
    assert not spec.family
    assert "--env.family true" in spec.remarks[0]
    run = str(tmp_path / "run")
    steps = {**TINY, "total_env_steps": 2_000, "optimizer.learning_rate": 1e-2}
    result = gossamer.train("cases_envs:level_two", run_folder=run, **steps)
    assert result.summary["mean_return_last_100"] > 5.0, "level 2 alone pays"
    told = capsys.readouterr()
    assert "has a method set_task, which is not called" in told.out + told.err
    assert all("info" not in row for row in rows_of(tmp_path / "run", "episodes"))


def test_a_robot_may_have_a_spec_of_its_own() -> None:
    spec = read_spec("cases_envs:OwnSpec", EnvConfig(), tries=True)
    assert (spec.exact_resume, spec.max_episode_steps) == (True, 1000)


@pytest.mark.parametrize(
    ("settings", "family"),
    [
        (EnvConfig(family=True), True),
        (EnvConfig(task_seed=3), True),
        (EnvConfig(tasks_per_learner=2), True),
        (EnvConfig(family=False), False),
        (EnvConfig(), False),
    ],
)
def test_a_family_is_one_where_the_user_says_so(settings: EnvConfig, family: bool) -> None:
    assert read_spec("cases_envs:Levels", settings).family is family
    assert read_spec("RandomExtremeAcrobot-v1", EnvConfig()).family, "ours need not be told"
    with pytest.raises(ConfigError, match="family is true, but cases_envs:Start has no method"):
        read_spec("cases_envs:Start", EnvConfig(family=True))


def test_statistics_of_wrappers_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    gossamer.train("cases_envs:normalized", run_folder=run, **TINY)
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "keep statistics" in x]
    assert "NormalizeObservation and NormalizeReward keep statistics" in line
    assert "--policy.normalize-obs true and --algorithm.value-norm true" in line
