"""Standard streams that are closed, full, or cannot hold the text: a clean exit code, no traceback."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sessions import slow

GOSSAMER = [sys.executable, "-m", "gossamer"]
TINY = ["--total-env-steps", "64", "--num-envs", "4", "--unroll-length", "8",
        "--algorithm.num-minibatches", "1", "--evaluation.every-seconds", "0"]  # fmt: skip
STRICT = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0",
          "PYTHONCOERCECLOCALE": "0"}  # fmt: skip


def shell(words: str, redirection: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = f"{' '.join(GOSSAMER)} {words} {redirection} </dev/null"
    return subprocess.run(command, shell=True, cwd=cwd, capture_output=True, text=True, check=False)


REDIRECTIONS = (
    ">/dev/full",
    ">&- 2>&-",
    ">&-",
    "2>&-",
    "<&- >&- 2>&-",
    "2>/dev/full",
    ">/dev/full 2>/dev/full",
)
COMMANDS = {
    "list": 0, "nonsense": 2, "": 0, "--version": 0, "list --json": 0, "runs": 0, "train --help": 0, "eval --help": 0,
    "train CartPole-v1 --show-config": 0, "train": 2, "eval nope": 2,
}  # fmt: skip
QUICKLY = [*itertools.product(("list", "nonsense"), REDIRECTIONS), *((x, ">/dev/full") for x in COMMANDS if x != "eval nope")]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "redirection"),
    [
        (words, redirection) if (words, redirection) in QUICKLY else slow(words, redirection)
        for words, redirection in itertools.product(COMMANDS, REDIRECTIONS)
    ],
)
def test_streams_that_cannot_be_written(tmp_path: Path, words: str, redirection: str) -> None:
    code = COMMANDS[words]
    done = shell(words, redirection, tmp_path)
    lost = ">/dev/full" in f" {redirection}".replace("2>/dev/full", "")
    assert done.returncode == (1 if lost and code == 0 else code)
    assert "Traceback" not in done.stderr + done.stdout
    if "2>" in redirection:
        assert done.stderr == ""
    elif lost and code == 0:
        assert done.stderr == (
            "gossamer: standard output could not be written: No space left on device\n"
        )
    else:
        assert len(done.stderr.splitlines()) == (1 if code else 0)


@pytest.mark.parametrize(
    "redirection", [">/dev/full 2>/dev/full", slow(">&- 2>&-"), slow(">/dev/full")]
)
def test_training_and_evaluating_without_streams(tmp_path: Path, redirection: str) -> None:
    done = shell(f"train CartPole-v1 --run-folder run {' '.join(TINY)}", redirection, tmp_path)
    assert done.returncode == 0, "what it has learnt is in its folder"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit_reason"].startswith("done")
    assert "Traceback" not in done.stderr
    done = shell("eval run --episodes 2", redirection, tmp_path)
    assert done.returncode == (0 if "-" in redirection else 1)
    assert "Traceback" not in done.stderr


def test_learners_in_processes_without_streams(tmp_path: Path) -> None:
    words = f"train CartPole-v1 --run-folder run --num-learners 2 topology:gossip {' '.join(TINY)}"
    done = shell(words, "<&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= 64


ONE_BY_ONE = """
import os, sys
from gossamer.cli import main

words, number = sys.argv[1:], 0
while words:
    end = words.index(",")
    sys.argv[1:], words = words[:end], words[end + 1 :]
    os.dup2(os.open(str(number), os.O_CREAT | os.O_WRONLY), 2)
    code = main()
    sys.stderr.flush()
    with open(f"{number}.code", "w") as file:
        file.write(str(code))
    number += 1
"""
"""Commands that end with a comma each, in one process: of each its standard error and its exit code, in files."""


@pytest.mark.parametrize(
    "env", [STRICT, pytest.param({}, marks=pytest.mark.slow)], ids=["ascii", "utf-8"]
)
def test_names_that_an_encoding_does_not_have(tmp_path: Path, env: dict[str, str]) -> None:
    """Bytes that are no text in a folder's name, and another alphabet where streams want ASCII alone."""
    name = "Übung ".encode() + b"caf\xe9"
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    folder.mkdir()
    commands = (
        (["train", "CartPole-v1", "--run-folder", f"{folder}/run", *TINY], 0),
        (["train", "--resume", f"{folder}/run", "--total-env-steps", "128"], 0),
        (["eval", f"{folder}/run", "--episodes", "1"], 0),
        (["runs", str(folder)], 0),
        (["eval", f"{folder}/none"], 2),
    )
    words = itertools.chain(*([*words, ","] for words, _ in commands))
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *words],
        cwd=tmp_path, capture_output=True, check=False, env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for number, (words, code) in enumerate(commands):
        told = (tmp_path / f"{number}").read_bytes()
        assert (tmp_path / f"{number}.code").read_text() == str(code), (words, told)
        assert b"Traceback" not in told
        if "--run-folder" in words:
            assert b"run folder " + os.fsencode(folder) in told, "as it is on the disk"
        if code:
            assert re.fullmatch(rb"gossamer: .*\n", told)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_wait_is_waited_for(unbuffered: str) -> None:
    """A program above us has made its pipe non-blocking, and reads slowly."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    words, env = [*GOSSAMER, "train", "CartPole-v1", "--help-all"], {**os.environ, "COLUMNS": "80"}
    with subprocess.Popen(
        words,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**env, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        os.close(theirs)
        heard = b""
        while data := os.read(ours, 1000):
            heard += data
            time.sleep(0.001)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(ours)
    assert process.returncode == 0
    assert len(heard) > 20_000
    assert heard == subprocess.run(words, capture_output=True, check=True, env=env).stdout
