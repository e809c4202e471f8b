"""`gossamer tune`: what beats the defaults becomes a preset; nothing does, and none is written."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from gossamer.config import resolve
from gossamer.tools import tune

if TYPE_CHECKING:
    from pathlib import Path


def tuned(
    monkeypatch: pytest.MonkeyPatch, target: Path, rates: dict[str, float], capsys: Any
) -> str:
    def rate(_: Any, changes: dict[str, Any]) -> float:
        return 1000.0 * max((rates.get(name, 1.0) for name in changes), default=1.0)

    monkeypatch.setattr(tune, "measured_rate", rate)
    tune.main("CartPole-v1", seconds=100.0, output=str(target))
    return capsys.readouterr().out


def test_what_is_faster_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    target = tmp_path / "tuned.toml"
    text = tuned(monkeypatch, target, {"num_envs": 2.0}, capsys)
    assert tomllib.loads(target.read_text()) == {"num_envs": 16}
    assert f"wrote {target}; use it: gossamer train CartPole-v1 --config {target}" in text
    assert resolve({"env_id": "CartPole-v1"}, configs=[str(target)])[0].num_envs == 16


def test_where_nothing_is_faster_no_preset_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    target = tmp_path / "tuned.toml"
    text = tuned(monkeypatch, target, {"num_envs": 1.02}, capsys)
    assert text.endswith("nothing that was tried is faster than the defaults; no preset written\n")
    assert not target.exists()
