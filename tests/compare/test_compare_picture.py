"""What `gossamer compare --plot` draws: every seed, no number twice, and no band that would say nothing."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scored_runs import make_run

pytest.importorskip("matplotlib", reason="needs the extra compare")

from matplotlib.figure import Figure

from gossamer.compare.plot import FEWEST_FOR_BANDS, KINDS, draw, picture_of
from gossamer.compare.reading import read_run
from gossamer.compare.report import Comparison, compare_runs
from gossamer.errors import RunFailed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATES = ("0.001", "0.01")


def compared(root: Path, *scores: list[float], env_ids: tuple[str, ...] = ("CartPole-v1",)) -> Any:
    runs: list[Path] = []
    for env_id in env_ids:
        for rate, group in zip(RATES, scores, strict=False):
            runs += [
                make_run(
                    root,
                    f"{env_id}/{rate}-s{seed}",
                    ["--optimizer.learning-rate", rate],
                    env_id=env_id,
                    seed=seed,
                    evaluation=score,
                )
                for seed, score in enumerate(group, start=1)
            ]
    return compare_runs([read_run(run) for run in runs])


def panel(comparison: Comparison, title: str) -> Axes:
    (found,) = [x for x in picture_of(comparison).axes if x.get_title().startswith(title)]
    return found


def rows(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def dots(axis: Axes) -> list[list[float]]:
    """Where the seeds of each group are, from left to right."""
    found = [x for x in axis.get_lines() if x.get_gid() == "seeds"]
    return [sorted(np.asarray(x.get_xdata(), float).tolist()) for x in found]


def heights(axis: Axes, *, seeds: bool) -> list[set[float]]:
    """Where lines are, from top to bottom: those of seeds, or the others."""
    found = [x for x in axis.get_lines() if (x.get_gid() == "seeds") == seeds]
    return [set(np.asarray(x.get_ydata(), float).tolist()) for x in found]


def bands(axis: Axes) -> int:
    return len(axis.collections)


def test_every_seed_is_a_dot(tmp_path: Path) -> None:
    scores = [[10.0, 20, 30], [100.0, 110, 120, 130]]
    axis = panel(compared(tmp_path, *scores), "scores")
    assert dots(axis) == scores
    # Each group's dots stand in its own lane, beside its interval and not on it.
    lanes, intervals = heights(axis, seeds=True), heights(axis, seeds=False)
    assert len(lanes) == 2
    assert all(len(lane) == 1 and lane not in intervals for lane in lanes)
    assert lanes[0] != lanes[1]


def test_seeds_of_games_are_on_the_scale_of_the_panel(tmp_path: Path) -> None:
    games = ("BreakoutNoFrameskip-v4", "PongNoFrameskip-v4")
    axis = panel(compared(tmp_path, [1.0, 2, 3], env_ids=games), "scores")
    (found,) = dots(axis)
    # Wang et al. 2016, table 2: random play has 1.7 and -20.7, people have 30.5 and 14.6.
    want = [(x - 1.7) / 28.8 for x in (1, 2, 3)] + [(x + 20.7) / 35.3 for x in (1, 2, 3)]
    assert found == pytest.approx(sorted(want))


def test_seeds_of_environments_without_a_scale_stand_in_their_own_row(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [1.0, 2, 3], [4.0, 5, 5], env_ids=("Acrobot-v1", "CartPole-v1"))
    axis = panel(comparison, "scores")
    assert rows(axis) == ["Acrobot-v1", "CartPole-v1"]
    assert dots(axis) == [[0, 0.25, 0.5]] * 2 + [[0.75, 1, 1]] * 2


def test_a_mean_that_is_the_iqm_is_drawn_once(tmp_path: Path) -> None:
    """Up to three seeds nothing is trimmed; equal scores have one mean however they are trimmed."""
    axis = panel(compared(tmp_path / "few", [10.0, 20, 30], [1.0, 2]), "scores")
    assert rows(axis) == ["IQM = mean", "median"]
    axis = panel(compared(tmp_path / "equal", [500.0] * 5, [1.0, 2, 3]), "scores")
    assert rows(axis) == ["IQM = mean", "median"]
    axis = panel(compared(tmp_path / "many", [10.0, 20, 30, 90], [1.0, 2, 3]), "scores")
    assert rows(axis) == ["IQM", "mean", "median"]


def test_profiles_of_few_seeds_have_no_bands(tmp_path: Path) -> None:
    few, enough = FEWEST_FOR_BANDS - 1, FEWEST_FOR_BANDS
    scores = [[float(i) for i in range(n)] for n in (few, enough)]
    axis = panel(compared(tmp_path, *scores), "performance profile")
    assert bands(axis) == 1
    assert len(axis.get_lines()) == 2, "the profiles themselves are drawn"


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that becomes full while it is written."""
    comparison, target = compared(tmp_path, [10.0, 20, 30]), tmp_path / f"a{kind}"
    draw(comparison, target)
    before = target.read_bytes()
    assert before.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[kind])

    def fill(_: Figure, place: Any, **__: Any) -> None:
        with (
            Path(place).open("wb") if isinstance(place, str | Path) else nullcontext(place) as file
        ):
            file.write(before[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fill)
    with pytest.raises(RunFailed, match="cannot be written: No space left on device"):
        draw(comparison, target)
    assert target.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir() if x.is_file()] == [target.name]
