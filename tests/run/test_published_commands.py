"""The commands that docs/coming-from.md gives for those of earlier systems train, each for 300 steps."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gossamer import cli

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
OF_CLUSTERS = {"--placement", "--cluster.cpus-per-learner"}


def commands() -> list[list[str]]:
    """Return the words of every `gossamer train` on the page, each command once; of a cluster's what it does on one machine."""
    found: list[list[str]] = []
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            assert words[:2] == ["gossamer", "train"], line
            kept: list[str] = []
            for word in words[2:]:
                if kept and kept[-1] in OF_CLUSTERS:
                    kept.pop()
                else:
                    kept.append(word)
            if kept not in found:
                found.append(kept)
    return found


def test_the_page_has_commands_of_every_system() -> None:
    text = PAGE.read_text()
    assert len(commands()) >= 15
    for published in ("monobeast.py", "run_experiment_mm_raw.py", "--op_mode=train", "--sync-freq"):
        assert published in text


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words)[:60])
def test_a_command_trains(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if any("NoFrameskip" in x or "pong" in x for x in words):
        pytest.importorskip("ale_py")
    short = ["--total-env-steps", "300", "--evaluation.every-seconds", "0", "--placement", "inline"]
    code = cli.main(["train", *words, *short, "--run-folder", str(tmp_path / "run")])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "done: total_env_steps reached" in told.out + told.err
