"""The command as people run it: exit codes, one-line errors, quick answers without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

from gossamer import cli
from gossamer.config import from_dict, make_config, to_dict
from gossamer.config.cores import MACHINE
from gossamer.config.help import setting_groups
from gossamer.errors import ConfigError, RunFailed

HEAVY = ("torch", "gymnasium", "ale_py", "mujoco", "numpy", "rich", "tyro", "safetensors")

QUICK = [
    [],
    ["--help"],
    ["--version"],
    ["list"],
    ["list", "--json"],
    ["runs"],
    ["runs", "--json"],
    ["train", "--help"],
    ["train", "CartPole-v1", "--show-config"],
    ["train", "--config", "pong", "--show-config"],
    ["eval", "--help"],
    ["bench", "--help"],
    ["tune", "--help"],
    ["runs", "--help"],
    ["list", "--help"],
]


def test_quick_commands_import_nothing_heavy(tmp_path: Path) -> None:
    """In one fresh process, one after the other; an import stays in sys.modules."""
    program = f"""
import sys
from gossamer.cli import main
for words in {QUICK!r}:
    assert main(words) == 0, words
    held = [name for name in {HEAVY!r} if name in sys.modules]
    assert not held, (words, held)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\033" not in done.stdout, "plain when not a terminal"


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gossamer", "train", "CartPole-v1", "--num-env", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "gossamer: --num-env is not a setting; did you mean --num-envs?\n"
    assert list(tmp_path.iterdir()) == [], "nothing is created"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trian CartPole-v1", "did you mean gossamer train?"),
        ("dance", "commands: train, eval"),
        ("eval", "RUN"),
        ("eval nowhere --episods 3", "did you mean --episodes?"),
        ("eval nowhere --episodes 0", "must be >= 1"),
        ("eval nowhere --episodes x", "it is 'x'"),
        ("eval nowhere --checkpoint newest", "last, best, candidate or a number"),
        ("eval nowhere --seed -1", "must be >= 0"),
        ("bench --seconds inf", "must be a finite number"),
        ("bench --seconds 1", "must be >= 20"),
        ("tune CartPole-v1 --seconds 0", "must be > 0"),
        ("bench extra", "extra is not understood"),
        ("tune", "ENV"),
        ("tune CartPole-v1 --output tuned.json", "ends in .toml"),
        ("runs nowhere", "nowhere"),
        ("list things", "things is not understood"),
        ("tune CartPole-v1 --output no/tuned.toml", "the folder"),
        ("compare a --threshold -1e3 b", "no run 'a'"),
        ("compare a --plot x.png b", "no run 'a'"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume", "--resume needs a value: --resume last"),
        ("train CartPole-v1 algorithm=PPO", "did you mean algorithm:ppo?"),
        ("train CartPole-v1 optimizer.learning-rate=1e-3", "mean --optimizer.learning-rate 1e-3?"),
        ("train env_id=CartPole-v1", "type the environment's id alone: gossamer train ENV"),
        ("train CartPole-v1 seeds=5", "did you mean --seeds 5?"),
        ("train CartPole-v1 policy=3", "one word too many"),
        ("train CartPole-v1 --num-envs 2.5", "must be a whole number: --num-envs 8"),
        ("train --resume nowhere --run-folder x", "--run-folder cannot be given with --resume"),
        ("train", "gossamer train CartPole-v1"),
    ],
)
def test_mistakes_of_every_command(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_listed_and_has_help(name: str, capsys: Any) -> None:
    assert cli.main(["--help"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith(f"  {name} ")]
    assert len(line.split("  ")) >= 3, "a head and what it does"
    assert cli.main([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: gossamer {name}")
    flags = [word.name for word in cli.COMMANDS[name].words if word.meaning]
    assert all(flag in told for flag in flags)


class Launch(types.ModuleType):
    """Stands in for what launches, which imports torch."""

    def __init__(self, outcome: Exception | None = None):
        super().__init__("gossamer.run.train")
        self.outcome, self.calls = outcome, []

    def train_command(self, config: Any, **rest: Any) -> None:
        self.calls.append((config, rest))
        rest["beginning"].over()
        if self.outcome:
            raise self.outcome

    def evaluate_run(self, run: str, **rest: Any) -> None:
        self.calls.append((run, rest))


def stand_in(monkeypatch: pytest.MonkeyPatch, outcome: Exception | None = None) -> Launch:
    launch = Launch(outcome)
    for name in ("gossamer.run.train", "gossamer.run.evaluate"):
        monkeypatch.setitem(sys.modules, name, launch)
    return launch


def test_train_hands_over_config_layers_and_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = stand_in(monkeypatch)
    assert cli.main(["train", "CartPole-v1", "algorithm:ppo", "--seed", "3"]) == 0
    [(config, rest)] = launch.calls
    assert config == make_config("CartPole-v1", {"algorithm": "ppo", "seed": 3})
    assert rest["config_given"] == {"env_id", "algorithm.name", "seed"}
    assert rest["layers"]["num_envs"] == "suite classic"
    assert rest["argv"] == ["gossamer", "train", "CartPole-v1", "algorithm:ppo", "--seed", "3"]
    assert rest["resume"] is None


@pytest.mark.parametrize(
    ("words", "imports_ahead"),
    [
        ("--actors-per-learner 1", True),
        ("topology:allreduce --num-learners 2", True),
        ("--actors-per-learner 1 --placement inline", False),
        ("--actors-per-learner 0", False),
        ("algorithm:vtrace", True),
        ("algorithm:vtrace --total-env-steps 1000", False),
    ],
)
def test_the_fork_server_imports_while_the_command_does(
    words: str, imports_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs a second where it begins with the command, and three where the first process is asked for."""
    launch = stand_in(monkeypatch)
    monkeypatch.delenv(MACHINE)
    monkeypatch.setattr("gossamer.config.cores.main_is_ours", lambda: True)
    monkeypatch.setattr(cli, "num_cores", lambda: 2)
    monkeypatch.setattr(cli, "visible_gpus", list[str])
    began: list[int] = []
    monkeypatch.setattr(
        "gossamer.run.placements.fork_server.fork_server", lambda: began.append(len(launch.calls))
    )
    assert cli.main(["train", "CartPole-v1", *words.split()]) == 0
    assert began == [0] * imports_ahead, "before anything that imports torch"


def test_resume_starts_from_the_saved_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = stand_in(monkeypatch)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "CartPole-v1" / "ppo-single" / "20260101-000000-s7"
    run.mkdir(parents=True)
    saved = make_config("CartPole-v1", {"algorithm": "ppo", "seed": 7, "num_envs": 8})
    (run / "config.json").write_text(json.dumps(to_dict(saved)))
    (run / "meta.json").write_text("{}")
    assert cli.main(["train", "--resume", "last", "--total-env-steps", "2e6"]) == 0
    [(config, rest)] = launch.calls
    assert to_dict(config) == {**to_dict(saved), "total_env_steps": 2_000_000}
    assert rest["config_given"] == {"total_env_steps"}
    assert rest["resume"] == run.relative_to(tmp_path), "another run may begin before it is opened"
    (run / "config.json").write_text("{")
    assert cli.main(["train", "--resume", "last"]) == 2


@pytest.mark.parametrize(
    ("outcome", "code"), [(ConfigError("a\n  b"), 2), (RunFailed("lost the\nactor"), 1)]
)
def test_exit_codes(
    outcome: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    stand_in(monkeypatch, outcome)
    assert cli.main(["train", "CartPole-v1"]) == code
    assert capsys.readouterr().err == f"gossamer: {' '.join(str(outcome).split())}\n"


def test_eval_hands_over_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/one").mkdir(parents=True)
    for name in ("config.json", "meta.json"):
        (tmp_path / "runs/one" / name).touch()
    launch = stand_in(monkeypatch)
    words = "eval last --episodes 3 --checkpoint 120 --learner 2 --sample --seed 4 --device cpu --json --video a.mp4 --render --env m:f --trust"
    assert cli.main(words.split()) == 0
    assert cli.main(["eval", "last"]) == 0
    options = (
        "episodes", "checkpoint", "learner", "sample", "seed", "device", "json", "video", "render", "env_id", "trust"
    )  # fmt: skip
    values = [
        (3, 120, 2, True, 4, "cpu", True, "a.mp4", True, "m:f", True),
        (30, "last", None, False, 1, "auto", False, None, False, "", False),
    ]
    expected = [("last", dict(zip(options, row, strict=True))) for row in values]
    assert launch.calls == expected


def test_show_config_refuses_an_id_that_nobody_knows(capsys: Any) -> None:
    """Its settings would be another suite's."""
    assert cli.main(["train", "Cartpole-v1", "--show-config"]) == 2
    assert "did you mean CartPole-v1?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "here"),
    [
        (["CartPole-v1", "algorithm:vtrace"], "default, 1 here"),
        (["CartPole-v1", "algorithm:vtrace", "--num-learners", "2"], "default"),
        (["CartPole-v1", "algorithm:vtrace", "--seeds", "2"], "default"),
        (["CartPole-v1", "algorithm:vtrace", "--actors-per-learner", "0"], "command line"),
    ],
)
def test_show_config_tells_of_an_actor_process_that_nobody_asked_for(
    words: list[str], here: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delenv(MACHINE, raising=False)
    monkeypatch.setattr(cli, "num_cores", lambda: 2)
    monkeypatch.setattr(cli, "visible_gpus", list)
    monkeypatch.setattr("gossamer.config.cores.main_is_ours", lambda: True)
    assert cli.main(["train", *words, "--show-config"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("actors_per_l")]
    assert line.endswith(f"# {here}")


def test_show_config_prints_a_file_that_gives_the_same_config(capsys: Any) -> None:
    assert cli.main(["train", "--config", "pong", "debug", "--show-config", "--seed", "4"]) == 0
    text = capsys.readouterr().out
    config = make_config("PongNoFrameskip-v4", {"seed": 4}, presets=["pong", "debug"])
    assert from_dict(tomllib.loads(text)) == config
    lines = {line.split(" = ")[0]: line for line in text.splitlines()}
    assert lines["seed"].endswith("# command line")
    assert lines["num_envs"].endswith("# --config debug")
    assert lines["optimizer.epsilon"].endswith("# default")


def test_list_json_names_everything(capsys: Any) -> None:
    assert cli.main(["list", "--json"]) == 0
    catalog = json.loads(capsys.readouterr().out)
    assert list(catalog) == ["algorithms", "topologies", "replays", "environments", "presets"]
    assert set(catalog["algorithms"]) == {"a2c", "vtrace", "laser", "ppo", "impact"}
    assert set(catalog["replays"]) == {"queue", "uniform", "circular", "elite", "attentive"}
    assert {"pong", "debug", "bench"} <= set(catalog["presets"])
    assert all(text for entries in catalog.values() for text in entries.values())


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m gossamer train --help | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_every_setting_has_a_docstring_and_is_in_help_and_table(capsys: Any) -> None:
    assert cli.main(["train", "--help-all"]) == 0
    text = capsys.readouterr().out
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = [row for group in setting_groups() for row in group.rows]
    assert len(rows) > 80
    for row in rows:
        assert row.meaning, row.name
        shown = "--" + row.name.replace("_", "-") if row.name != "env_id" else "ENV"
        assert shown in text
        assert f"| `{shown}` |" in page
    assert max(len(line) for line in text.splitlines()) <= 110


def test_settings_in_python_may_be_dotted() -> None:
    nested = make_config("x:y", {"algorithm": {"name": "ppo", "passes": 3}, "num_envs": 8})
    for settings in (
        {"algorithm.name": "ppo", "algorithm.passes": 3, "num-envs": 8},
        {"algorithm": "ppo", "algorithm.passes": 3, "num_envs": 8},
        {"algorithm.passes": 3, "algorithm": {"name": "ppo"}, "num_envs": 8},
        {"algorithm": {"name": "ppo"}, "algorithm.ppo.passes": 3, "num_envs": 8},
    ):
        assert make_config("x:y", settings) == nested
    replays = [{"name": "queue", "capacity": 2}]
    changed = make_config("x:y", {"replays": replays, "replays.0.capacity": 5})
    assert changed.replays[0].capacity == 5
    assert replays == [{"name": "queue", "capacity": 2}], "what was given is left alone"
    assert from_dict({"algorithm.name": "a2c"}).algorithm.name == "a2c"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_env": 3}, "^settings: num_env is not a setting; did you mean num_envs?"),
        ({"algorithm.pases": 3}, "algorithm.pases is not a setting; did you mean algorithm.passes"),
        ({"algorithm.passes": "3"}, '^settings: algorithm.passes is "3"; it must be a whole'),
        ({"seed": 1, "seed.x": 2}, "seed.x goes into seed, which holds a plain value"),
    ],
)
def test_mistakes_in_python_speak_of_names_not_flags(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        make_config("CartPole-v1", settings)
    assert "--" not in str(caught.value)


def test_public_names_resolve_lazily() -> None:
    import gossamer

    assert gossamer.TrainConfig is type(make_config("CartPole-v1"))
    assert gossamer.ConfigError is ConfigError
    assert set(dir(gossamer)) == set(gossamer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = gossamer.trian  # type: ignore[attr-defined]


def test_what_may_not_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/root/x")

    monkeypatch.setattr("gossamer.record.runs.list_runs", denied)
    assert cli.main(["runs", "/root/x"]) == 2
    err = capsys.readouterr().err
    assert err == "gossamer: /root/x cannot be read or written: Permission denied\n"
