"""Proposals follow the sampler's own seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.sweep.file import Sweep, read_sweep

pytest.importorskip("optuna", reason="Optuna is an optional extra")

from gossamer.sweep.search import Study


def make_sweep(folder: Path, head: str = "") -> Sweep:
    (folder / "x.toml").write_text(
        f'method = "tpe"\ntrials = 40\n{head}\n[settings]\nenv_id = "CartPole-v1"\n[search]\n'
        '"optimizer.learning_rate" = {min = 1e-4, max = 1e-1, log = true}\n'
    )
    return read_sweep(str(folder / "x.toml"))


def test_another_seed_proposes_other_settings(tmp_path: Path) -> None:
    """Or a sweep that is repeated to see how lucky it was would be the same one again."""
    one, again, other = (
        Study(make_sweep(tmp_path, f"sampler_seed = {seed}")).propose(0) for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
