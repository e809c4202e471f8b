"""What docs/coming-from says to those who know another trainer: its commands train, and the settings that it names are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import gossamer
from gossamer import cli
from gossamer.config import TrainConfig, parse_train, resolve
from gossamer.config.tree import names_of
from gossamer.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"
TRAINERS = ("stable-baselines3", "cleanrl", "rllib", "sample-factory")
SHORT = (
    *("--total-env-steps", "300", "--evaluation.every-seconds", "0", "--placement", "inline"),
    *("--no-wandb", "--no-evaluation.video"),
)
OF_COMMANDS = {
    *(
        "checkpoint",
        "format",
        "logdir",
        "render",
        "resume",
        "sample",
        "seeds",
        "show-config",
        "video",
    ),
}
"""Flags of `gossamer train` and of other commands that are no settings."""
THEIR_WORDS = {
    *("constant", "kl_adaptive_epoch", "gpu", "global_norm"),
    *("torchrun", "nproc_per_node", "ppo_atari_lstm", "ppo_atari_envpool", "ppo_atari_multigpu"),
}
"""Words in the columns of other trainers that are values and programs, and no names of settings."""


def page(trainer: str) -> str:
    return (FOLDER / f"{trainer}.md").read_text()


def commands(trainer: str) -> list[list[str]]:
    """Return the words after `gossamer` of the commands of a page."""
    found: list[list[str]] = []
    for block in re.findall(r"```bash\n(.*?)```", page(trainer), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            assert program == "gossamer", line
            found.append(words)
    return found


def rows(trainer: str) -> list[tuple[str, str]]:
    """Return the rows of the first table of a page: their arguments and our settings."""
    table = re.search(r"\n## (?:Arguments|Flags)\n(.*?)\n## Habits", page(trainer), re.DOTALL)
    assert table
    lines = [x for x in table[1].splitlines() if x.startswith("| ")][1:]
    cells = [re.split(r" \| ", x.strip("| ")) for x in lines]
    assert all(len(pair) == 2 for pair in cells)
    return [(theirs, ours) for theirs, ours in cells]


@pytest.mark.parametrize(
    "words", [x for one in TRAINERS for x in commands(one) if x[0] == "train"], ids=" ".join
)
def test_a_command_trains(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "PongNoFrameskip-v4" in words:
        pytest.importorskip("ale_py")
    passes = "--algorithm.passes"
    # Thirty passes over four thousand steps show no more than two, and take as long as everything else here.
    words = ["2" if before == passes else x for before, x in zip(["", *words], words, strict=False)]
    if "PongNoFrameskip-v4" in words:
        words += ["--num-envs=4", "--unroll-length=8"]  # with their own, in the slow tests
    assert cli.main([*words, *SHORT, "--run-folder", str(tmp_path / "run")]) == 0
    assert "done: total_env_steps reached" in "".join(capsys.readouterr())


def test_the_program_and_the_command_do_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = re.findall(r"```python\n(.*?)```", page("stable-baselines3"), re.DOTALL)
    (ours,) = [x for x in programs if "import gossamer" in x]
    asked = parse_train(commands("stable-baselines3")[0][1:])
    monkeypatch.chdir(tmp_path)
    exec(compile(ours.replace("200_000", "300"), "page", "exec"), {"__name__": "example"})
    ran = gossamer.make_config(resume="runs/cartpole")
    typed = resolve({**asked.settings, "total_env_steps": 300})[0]
    for name in ("num_envs", "unroll_length", "algorithm", "optimizer", "policy", "seed"):
        assert getattr(ran, name) == getattr(typed, name), name


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_settings_that_a_page_names_exist(trainer: str) -> None:
    known = {name.replace("_", "-") for name in names_of(TrainConfig)}
    known |= OF_COMMANDS
    for cell in (line.rpartition(" | ")[2] for line in page(trainer).splitlines()):
        section = ""
        for code in re.findall(r"`(.*?)`", cell):
            for name in re.findall(r"--([a-z][\w.-]*)", code):
                assert name in known, (cell, name)
                section = name.rpartition(".")[0]
            # A name that begins with a dot is of the section of the one before it.
            if short := re.match(r"\.([a-z-]+)", code):
                assert f"{section}.{short[1]}" in known, (cell, code)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_argument_that_a_page_names_is_answered_by_a_hint_that_helps(trainer: str) -> None:
    unknown: list[str] = []
    for theirs, _ in rows(trainer):
        for code in re.findall(r"`(.*?)`", theirs):
            for name in re.findall(r"(?<![\w./])(?:--)?([a-z][a-z_0-9-]+_?)(?![\w(])", code):
                try:
                    resolve(parse_train(["CartPole-v1", f"--{name}", "1"]).settings)
                except ConfigError as error:
                    if "lists all settings" in str(error):
                        unknown.append(name.replace("-", "_"))
    assert set(unknown) <= THEIR_WORDS
