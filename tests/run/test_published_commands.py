"""The commands that docs/coming-from/papers.md gives for those of earlier systems train, each for a few steps."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from script_runs import run_script
from sessions import slow

from gossamer import cli
from gossamer.sweep.file import read_sweep

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "papers.md"
LEFT_OUT = {"--placement", "--cluster.cpus-per-learner", "--seed"}

SMALL = ["--num-envs=2", "--unroll-length=10"]


def commands() -> list[list[str]]:
    """Return the words of every `gossamer train` on the page, each command once whatever its seed; of a cluster's what it does on one machine."""
    found: list[list[str]] = []
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            assert words[:2] == ["gossamer", "train"], line
            kept: list[str] = []
            for word in words[2:]:
                if kept and kept[-1] in LEFT_OUT:
                    kept.pop()
                else:
                    kept.append(word)
            if kept not in found:
                found.append(kept)
    return found


def test_what_the_page_translates_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of its ```sh blocks, with the file that it shows and one of a single experiment; nothing is trained."""
    (experiments,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("multi_train.json").write_text(experiments)
    Path("options_flags.json").write_text(json.dumps(json.loads(experiments)[0]))
    done: list[str] = []
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            program, *words = shlex.split(line)
            if program == "python":
                folder, script = words.pop(0).split("/")
                assert (folder, run_script(script, *words).returncode) == ("scripts", 0), line
            elif words[0] == "train":
                assert cli.main([*words, "--show-config"]) == 0, capsys.readouterr().err
            else:
                (file,) = words[1:]
                assert read_sweep(file).trials == 2
            done.append(" ".join([program, words[0]]))
    assert done[1::2] == ["gossamer sweep", "gossamer train"]
    assert len(done) == 4


def test_the_page_has_commands_of_every_system() -> None:
    text = PAGE.read_text()
    assert len(commands()) >= 14
    for published in ("monobeast.py", "run_experiment_mm_raw.py", "--op_mode=train", "--sync-freq"):
        assert published in text


def plays_atari(words: list[str]) -> bool:
    return any("NoFrameskip" in x or "pong" in x for x in words)


def cases() -> list[Any]:
    """Return every command; of several with one large network the first is for the fast tests."""
    large = [words for words in commands() if "BreakoutNoFrameskip-v4" in words]
    return [slow(words) if words in large[1:] else words for words in commands()]


@pytest.mark.parametrize("words", cases(), ids=lambda x: " ".join(x)[:60])
def test_a_command_trains(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With small batches; with their own, in the slow tests, all commands of all pages train."""
    small = plays_atari(words)
    if small:
        pytest.importorskip("ale_py")
    short = ["--total-env-steps", "40" if small else "300", "--evaluation.every-seconds", "0"]
    short += ["--placement", "inline", *(SMALL if small else [])]
    if "laser_pong" in words:  # it learns from sixteen parts of a batch
        short[-2] = "--num-envs=16"
    code = cli.main(["train", *words, *short, "--run-folder", str(tmp_path / "run")])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "done: total_env_steps reached" in told.out + told.err
