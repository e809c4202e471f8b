"""What an environment tells of its episodes comes back in metrics and in evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import config, rows_of

from gossamer import cli
from gossamer.run.train import train


def test_means_of_what_is_told_are_metrics_and_are_printed_by_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config(
        "task_envs:Windy", Path("run"), 64, placement="inline", env={"episode_info": True}
    )
    train(settings, quiet=True)
    row = rows_of(Path("run"))[-1]
    assert (row["info/wind"], row["info/steps"]) == (0.0, 5.0)
    assert cli.main(["eval", "run", "--episodes", "2"]) == 0
    assert capsys.readouterr().out.endswith("\nmeans: wind 0, steps 5\n")
