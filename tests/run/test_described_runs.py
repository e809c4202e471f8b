"""A run that people have named and archived is resumed, evaluated, compared and exported as any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import assert_same, config

from gossamer import cli
from gossamer.record.about import ABOUT, About, about_bytes, read_about
from gossamer.record.readers import FolderReader
from gossamer.run.train import train


def test_what_is_said_about_a_run_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = tmp_path / "runs/one", tmp_path / "runs/two"
    train(config("CartPole-v1", one, 320, placement="inline"), quiet=True)
    train(config("CartPole-v1", two, 128, placement="inline"), quiet=True)
    about = About("the second", ("a tag",), "a note\nof two lines", archived=True)
    (two / ABOUT).write_bytes(about_bytes(about))
    (tmp_path / "runs/views.json").write_text('{"views": []}')
    train(config("CartPole-v1", two, 320, placement="inline"), resume=str(two), quiet=True)
    assert_same(one, two)
    assert read_about(FolderReader(two)) == about
    assert cli.main(["eval", str(two), "--episodes", "2"]) == 0
    assert cli.main(["compare", "runs", "--score", "training"]) == 0
    assert "runs/two is the same experiment as runs/one" in capsys.readouterr().out
    assert cli.main(["export", str(two), "--format", "pt2"]) == 0
    assert read_about(FolderReader(two)) == about
