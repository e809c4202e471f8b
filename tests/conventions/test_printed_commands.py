"""Commands that README, docs and notes print run as printed, on small runs and with fewer episodes; scripts take the words that are printed for them."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from runs import SMALL
from sessions import slow

from gossamer import cli
from gossamer.config import make_config
from gossamer.run.train import train

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks" / "notes").glob("*.md")),
]
BASH = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
LATER = {
    "bench": "it measures for half a minute; tests/test_bench.py",
    "cluster": "tests/run/test_cluster.py",
    "sweep": "tests/sweep",
    "train": "test_training_commands_train",
    "tune": "tests/test_tune.py",
    "watch": "a server; tests/dashboard",
}
"""Commands that other tests run."""


def lines() -> Iterator[str]:
    """Yield the commands of all bash blocks, continuation lines joined."""
    for page in PAGES:
        for block in BASH.findall(page.read_text()):
            yield from block.replace("\\\n", " ").splitlines()


def commands() -> list[list[str]]:
    """Return the words after `gossamer` of every such command, each once."""
    found: list[list[str]] = []
    for line in lines():
        words = shlex.split(line, comments=True)
        if words and words[0] in ("gossamer", ".venv/bin/gossamer") and words[1:] not in found:
            found.append(words[1:])
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that commands name: three seeds of two algorithms, `pong`, and `one` and `two`."""
    root = tmp_path_factory.mktemp("made")
    names = [
        *(f"CartPole-v1/{x}-single/{seed}" for x in ("a2c", "ppo") for seed in (1, 2, 3)),
        *("pong", "one", "two", "cartpole"),
    ]
    for name in names:
        chosen = "a2c" if "a2c" in name or name == "two" else "ppo"
        small = SMALL | {"algorithm": {**SMALL["algorithm"], "name": chosen}}
        rate = 1e-3 if name.endswith("2") else 3e-4
        more = {"optimizer.learning_rate": rate, "seed": int(name[-1]) if name[-1].isdigit() else 1}
        given = {**small, **more, "total_env_steps": 256, "run_folder": str(root / "runs" / name)}
        given["evaluation"] = {"every_seconds": 60.0, "episodes": 3, "confirm_episodes": 3}
        train(make_config("CartPole-v1", given), quiet=True)
    return root


def shortened(words: list[str]) -> list[str]:
    """Return an evaluation, or an export with a model card, with fewer episodes and without a window."""
    words = [x for x in words if x != "--render"]
    if words[0] != "eval" and "hub" not in words:
        return words
    words = list(words)
    if "--episodes" in words:
        words[words.index("--episodes") + 1] = "1"
    else:
        words += ["--episodes", "1"]
    return words


OTHERS = [
    slow(words) if words[0] == "export" else words for words in commands() if words[0] not in LATER
]


def test_every_verb_is_printed() -> None:
    told = {words[0] for words in commands()}
    assert told >= {"train", "eval", "export", "runs", "compare", "sweep", "watch", "bench", "tune"}
    assert set(LATER) <= told, "a verb that is not printed needs no exception"


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_a_command_runs(
    words: list[str],
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = {"onnx": "onnx", "mp4": "imageio", "png": "matplotlib"}
    for word, package in wanted.items():
        if any(word in x for x in words):
            pytest.importorskip(package, reason=f"needs {package}")
    shutil.copytree(made / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert cli.main(shortened(words)) == 0, capsys.readouterr().err


class Parsed(Exception):
    """A script's words were taken; it need not begin."""


def script_lines() -> list[str]:
    """Return the printed commands that run a script of this repository."""
    begins = ("python benchmarks/", "python scripts/", "python3 benchmarks/", "python3 scripts/")
    return sorted({x.partition(" > ")[0] for x in lines() if x.startswith(begins)})


@pytest.mark.parametrize("line", script_lines())
def test_a_script_takes_its_words(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, script, *words = shlex.split(line, comments=True)
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *given: Any, **more: Any) -> None:
        parse(self, *given, **more)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    monkeypatch.setattr(sys, "argv", [script, *words])
    main = runpy.run_path(str(ROOT / script), run_name="imported")["main"]
    with pytest.raises(Parsed):
        main()


TRAINED = [words for words in commands() if words[0] == "train" and "--resume" not in words]


@pytest.mark.parametrize("words", [slow(words) for words in TRAINED], ids=" ".join)
def test_training_commands_train(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each for 300 steps, on one machine."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if "--wandb" in words:
        pytest.importorskip("wandb", reason="needs the extra wandb")
    words = [x for x in words if x != "--watch"]  # a server; tests/dashboard
    small = "--total-env-steps 300 --optimizer.learn-start 0 --evaluation.episodes 1"
    # A video is of the best policy, which evaluations choose.
    small += f" --evaluation.every-seconds {60 if '--evaluation.video' in words else 0}"
    # Acting and learning that take turns have no lag that is free.
    small += " --placement local" if {"impact_pong", "free"} & {*words} else " --placement inline"
    if "--seeds" in words:
        words = [*words, "--seeds", "1"]
    if "--num-learners" in words and int(words[words.index("--num-learners") + 1]) > 4:
        small += " --num-learners 4"
    given = [*words, *shlex.split(small), "--run-folder", "run"]
    try:
        assert cli.main(given) == 0, capsys.readouterr().err
    finally:
        torch.set_num_threads(1)


def test_the_arithmetic_of_a_batch_is_that_of_the_settings() -> None:
    """The table of docs/concepts.md."""
    from gossamer.config import parse_train, resolve

    page = (ROOT / "docs" / "concepts.md").read_text()
    rows = re.findall(
        r"^\| `([^`]+)` \| (\d+) \| (\d+) \| ([\d,]+) \| (\d+) x (\d+) \| (\d+) \| (\d+) \|$",
        page,
        re.MULTILINE,
    )
    assert len(rows) >= 4
    for command, *numbers in rows:
        envs, steps, whole, parts, passes, each, updates = (
            int(x.replace(",", "")) for x in numbers
        )
        asked = parse_train(shlex.split(command))
        config = resolve(asked.settings, configs=asked.config)[0]
        algorithm: Any = config.algorithm
        found = (config.num_envs, config.unroll_length, algorithm.num_minibatches, algorithm.passes)
        assert found == (envs, steps, parts, passes), command
        assert whole == envs * steps / config.replays[0].fraction, command
        assert each == whole / parts, command
        assert updates == round(1000 * parts * passes / (envs * steps)), command


def test_exported_policies_answer_as_the_page_prints(
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The programs of docs/export.md, one for each format."""
    page = (ROOT / "docs" / "export.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    programs = [x for x in programs if "urllib" not in x]  # tests/examples/test_examples.py
    assert len(programs) == 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    for program in programs:
        kind = next(x for x in ("onnx", "pt2", "hub") if x in program)
        if kind == "onnx":
            pytest.importorskip("onnxruntime", reason="needs onnxruntime")
        output = "policy" if kind == "hub" else f"policy.{kind}"
        words = ["export", str(made / "runs" / "one"), "--format", kind, "--output", output]
        more = ["--episodes", "1"] if kind == "hub" else []
        assert cli.main([*words, *more]) == 0, capsys.readouterr().err
        found: dict[str, Any] = {"env": gymnasium.make("CartPole-v1")}  # of the reader's own
        exec(compile(program, "docs/export.md", "exec"), found)
        Path(output).unlink() if kind != "hub" else None
        action = found["outputs"]["action"] if kind == "pt2" else found["action"]
        assert set(torch.as_tensor(action).flatten().tolist()) <= {0, 1}
