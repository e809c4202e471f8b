"""The area that is told of seeds is the one by which a sweep judges the same runs; and seeds that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.sweep.pool import PlannedRun
from gossamer.sweep.seeds import summary, train_seeds


def seed_of(root: Path, seed: int, cause: str, returns: list[float]) -> PlannedRun:
    """Return a run that has ended for that cause, after an episode of 100 env steps each tenth of a second."""
    run = PlannedRun(f"seed {seed}", root / f"s{seed}", seed)
    run.folder.mkdir()
    rows = [
        {"env_steps": 100 * i, "time_s": i / 10, "return": x, "length": 100, "learner": 0}
        for i, x in enumerate(returns, 1)
    ]
    (run.folder / "episodes.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in rows))
    told = {"exit": {"kind": "done", "cause": cause}, "mean_return_last_100": 50.0}
    (run.folder / "summary.json").write_text(json.dumps(told))
    return run


@pytest.mark.parametrize(("seconds", "until"), [(4.0, 4_000), (0.0, 10_000)])
def test_a_seed_that_reached_its_target_is_held_to_the_time_limit(
    tmp_path: Path, seconds: float, until: int
) -> None:
    """It would have made 4,000 env steps in 4 s, not the 10,000 at which runs without a limit end."""
    given = {"total_env_steps": 10_000, "stop_after_seconds": seconds, "stop_at_return": 60.0}
    returns = [40.0] * 10 + [80.0] * 10
    means = np.cumsum(returns) / np.arange(1, 21)
    rising = 100 * (means[0] + np.sum((means[1:] + means[:-1]) / 2))
    height = (rising + means[-1] * (until - 2_000)) / until
    runs = [
        seed_of(tmp_path, 1, "stop_at_return", returns),
        seed_of(tmp_path, 2, "stop_after_seconds", [10.0] * 40),
    ]
    (line,) = (x for x in summary(runs, tmp_path, make_config("CartPole-v1", given)) if "area" in x)
    assert line.endswith(f"10 to {height:.4g}")


def test_seeds_of_which_the_last_is_none_are_refused_before_the_first(tmp_path: Path) -> None:
    given = {"seed": 2**63 - 2, "run_folder": str(tmp_path / "new")}
    with pytest.raises(ConfigError, match=r"^seed is 9223372036854775808; it must be at most"):
        train_seeds(make_config("CartPole-v1", given), {}, 3, words=[])
    assert not (tmp_path / "new").exists()
