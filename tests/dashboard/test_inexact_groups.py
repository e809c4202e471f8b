"""A curve of several runs is exact when every one of them was read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.dashboard.columns import AT_ONCE_BYTES, Columns
from gossamer.dashboard.curves import curves
from gossamer.dashboard.root import Root

LINE = '{"env_steps":%d,"learner":0,"loss":1.5,"pad":"' + "p" * 900 + '"}\n'
MANY = AT_ONCE_BYTES // len(LINE) + 100


@pytest.mark.parametrize("order", [("long", "short"), ("short", "long")])
def test_a_group_with_one_run_of_samples_is_told_as_such(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """The page asks again until it is exact, and counts no rows before."""
    for run, count in (("long", MANY), ("short", 5)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "metrics.jsonl").write_text("".join(LINE % i for i in range(count)))
    columns = Columns(Root(tmp_path))
    settings = {run: {"env_id": "CartPole-v1", "seed": i} for i, run in enumerate(order)}
    for wait in (False, True):
        (group,) = curves(
            Root(tmp_path), columns, settings, "loss", "env_steps",
            points=10, statistic="mean", wait=wait,
        )  # fmt: skip
        assert group["exact"] is wait
        assert group["not_positive_rows"] == (0 if wait else None)
    columns.close()
