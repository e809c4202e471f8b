"""What a chart of one run shows: which metrics there are, and a metric over env steps, updates, seconds or the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from gossamer.dashboard.columns import AVERAGE, LEARNER
from gossamer.dashboard.listing import TAIL_BYTES
from gossamer.dashboard.values import word
from gossamer.record.metrics import METRICS, name_in_table, parse_row
from gossamer.record.objectives import ships_average
from gossamer.record.readers import sessions_in, table_in, tail
from gossamer.system.reading import listed, mapping, number, whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gossamer.dashboard.columns import Columns
    from gossamer.dashboard.root import Root, RunFiles

    Numbers = NDArray[np.float64]

Axis = Literal["env_steps", "updates", "seconds", "time"]
AXES: tuple[Axis, ...] = get_args(Axis)
EVALUATION, EPISODE = "evaluation/mean", "episode/return"
OTHERS = {
    EVALUATION: ("evaluation.jsonl", "mean", "return", "mean return of an evaluation"),
    EPISODE: ("episodes.jsonl", "return", "return", "return of a finished training episode"),
}
"""Series that are not in metrics.jsonl: their file, column, unit and meaning."""
HEAD_BYTES = 64 << 10
TELLS = "episodes"
"""Column of rows that tell of the run beside their own learner."""
NOT_SHOWN = {LEARNER, "time_s"}
"""Columns that are axes of every chart and metrics of none."""


class Raw(NamedTuple):
    """A metric of a run before it is thinned."""

    x: Numbers
    y: Numbers
    exact: bool
    """Whether these are all rows, and not a sample."""


def metrics_of(files: RunFiles) -> list[dict[str, Any]]:
    """Return the metrics of a run with their meanings, and the learners that tell each."""
    with_head = tail(files, "metrics.jsonl", TAIL_BYTES).splitlines(keepends=True)
    try:
        with files.open("metrics.jsonl") as file:
            with_head += file.read(HEAD_BYTES).splitlines(keepends=True)
    except (OSError, ValueError):
        pass
    learners: dict[str, set[int]] = {}
    for line in with_head:
        row = parse_row(line) or {}
        rank = whole(row.get("learner", 0)) or 0
        for name, value in row.items():
            if number(value) is not None and name not in NOT_SHOWN:
                learners.setdefault(name, set()).add(rank)
    found: list[dict[str, Any]] = []
    for name in sorted(learners):
        known = METRICS.get(name_in_table(name))
        meaning, unit = (known.meaning, known.unit) if known else ("a metric of the user's own", "")
        found.append(
            {
                "name": word(name),
                "meaning": meaning,
                "unit": unit,
                "learners": sorted(learners[name]),
            }
        )
    for name, (file, _, unit, meaning) in OTHERS.items():
        if (status := files.stat(file)) is not None and status.st_size:
            found.append({"name": name, "meaning": meaning, "unit": unit, "learners": []})
    return found


def read_series(
    root: Root,
    columns: Columns,
    run: str,
    metric: str,
    axis: Axis,
    learner: int | None = None,
    *,
    wait: bool = False,
) -> Raw:
    """Return a metric of a run.

    Args:
        root: of the runs.
        columns: reads them.
        run: id.
        metric: name.
        axis: what is x.
        learner: rank; None: the first that tells the metric, and for evaluations the run's own policy.
        wait: for every row, however long the file is.
    """
    file, column, *_ = OTHERS.get(metric, ("metrics.jsonl", metric))
    key = "time_s" if axis in ("seconds", "time") else axis
    names = [column, key] + (["confirmation"] if metric == EVALUATION else [])
    table = columns.read(run, file, names, wait=wait)
    ranks, y, x = (table.columns[name] for name in (LEARNER, column, key))
    keep = np.isfinite(y)
    if metric == EVALUATION:
        keep &= ~(table.columns["confirmation"] == 1.0)
    if learner is not None:
        keep &= ranks == learner
    elif metric == EVALUATION:
        alone = keep.copy()  # learners on their own: the mean of each one's last
        if np.any(averages := keep & (ranks == AVERAGE)):
            # Behind the last average if they do not mix any more since a resume.
            mixing = _ships_average(root, run)
            alone[: len(alone) if mixing else int(np.flatnonzero(averages)[-1]) + 1] = False
            keep = averages | alone
        y = y.copy()
        y[alone] = _means_of_last(ranks[alone], y[alone])
    elif metric not in OTHERS and np.any(keep) and np.ptp(ranks[keep]) > 0:
        # The first learner that had a place then; on a cluster another one when the first has left.
        table = columns.read(run, file, [*names, TELLS], wait=wait)
        ranks, y, x = (table.columns[name] for name in (LEARNER, column, key))
        keep, tells = np.isfinite(y), np.isfinite(table.columns[TELLS])
        keep &= tells if np.any(keep & tells) else ranks == ranks[keep].min(initial=np.inf)
    x, y = x[keep], y[keep]
    if axis == "time":
        try:
            with root.run(run) as files:
                x = unix_seconds(sessions_of(files), x)
        except OSError:  # it went meanwhile
            return Raw(np.empty(0), np.empty(0), exact=True)
    return Raw(x, y, table.exact)


def _ships_average(root: Root, run: str) -> bool:
    try:
        with root.run(run) as files:
            return ships_average(table_in(files, "config.json"))
    except OSError:  # it went meanwhile
        return True


def _means_of_last(ranks: Numbers, y: Numbers) -> Numbers:
    """Return for every row the mean of the newest values of all learners up to it."""
    last: dict[float, float] = {}
    found = np.empty_like(y)
    for i, (rank, value) in enumerate(zip(ranks.tolist(), y.tolist(), strict=True)):
        last[rank] = value
        found[i] = sum(last.values()) / len(last)
    return found


class Session(NamedTuple):
    """One command of a run: when it was started, and seconds of the run before."""

    began: float
    seconds_before: float
    utc_offset: float | None = None
    """Seconds by which its clock, that of log.txt, is ahead of UTC; None: not known."""
    goes_on: bool = False
    """It is the one before, whose clock was set, or whose machine has slept."""


def sessions_of(files: RunFiles) -> list[Session]:
    """Return a run's sessions, at least one, ascending."""
    found: list[Session] = []
    for entry in map(mapping, sessions_in(table_in(files, "meta.json"))):
        began = number(entry.get("time_unix"))
        before = number(entry.get("seconds_before"))
        if began is None:
            continue
        if before is None:  # an older run: as if each session had lasted until the next began
            before = found[-1].seconds_before + began - found[-1].began if found else 0.0
        # One that went back behind the beginning of others has taken their place.
        while found and found[-1].seconds_before > before:
            found.pop()
        offset = number(entry.get("utc_offset_s"))
        found.append(Session(began, before, offset))
        # Where the clock was set, or the machine has slept, as if another session had begun.
        for pair in map(listed, listed(entry.get("clock"))):
            unix, seconds = map(number, pair) if len(pair) == 2 else (None, None)
            if unix is not None and seconds is not None and seconds >= found[-1].seconds_before:
                found.append(Session(unix, seconds, offset, goes_on=True))
    return found or [Session(0.0, 0.0)]


def unix_seconds(sessions: list[Session], seconds: Numbers) -> Numbers:
    """Return the Unix times of a run's seconds, which stand still between two sessions."""
    before = np.array([x.seconds_before for x in sessions])
    began = np.array([x.began for x in sessions])
    # Where one session has ended and the next begins stands the last row of the first.
    which = np.maximum(np.searchsorted(before, seconds, side="left") - 1, 0)
    return began[which] + seconds - before[which]


def run_seconds(sessions: list[Session], unix: float) -> float:
    """Return the seconds of a run at a Unix time."""
    found = sessions[0]
    for session in sessions:
        if session.began <= unix:
            found = session
    return max(found.seconds_before + unix - found.began, 0.0)
