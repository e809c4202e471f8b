"""What comparing needs of a run folder: settings, curve, last evaluation, protocol. Damaged runs are told of, not guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from gossamer.compare.curves import WINDOW, Curve
from gossamer.compare.protocols import protocol_facts
from gossamer.config.layers import explicit
from gossamer.config.saved_settings import completed
from gossamer.config.tree import flatten
from gossamer.errors import ConfigError
from gossamer.record.exits import state_of
from gossamer.record.metrics import MAX_ROW_BYTES
from gossamer.record.objectives import curve, evaluations_of_policy
from gossamer.record.readers import FolderReader, last_session, rows_in, settings_in, table_in
from gossamer.system.reading import LARGEST, clipped, mapping, visible, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gossamer.record.exits import State
    from gossamer.record.readers import Reader

ScoreSource = Literal["evaluation", "training"]
LAST_TENTH = 0.9
"""Share of a run's env steps after which an evaluation is one of its last policy, whatever its version."""


class Evaluation(msgspec.Struct, frozen=True):
    """What a run's last policy scored in episodes on seeds that training never saw."""

    mean: float
    episodes: int


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """A run as far as comparing is concerned."""

    path: Path
    name: str
    """Its path, as shown."""
    env_id: str
    seed: str
    """As shown; runs of older versions may not tell."""
    settings: Mapping[str, Any]
    """Values by dotted name."""
    chosen: frozenset[str]
    """Settings that the user set."""
    protocol: Mapping[str, str]
    """What scores were made under, in words, by fact."""
    described: str
    """The same in one text, as the run says it; empty: it does not."""
    state: State
    machine: str
    """Machine that the run was trained on last, as far as seconds depend on it; empty: not known."""
    curve: Curve
    """Mean return of 100 training episodes as it went, by rows of metrics."""
    climbs: Curve | None
    """The same mean whenever it was higher than ever before, by episodes; None: they were not read, or there are none."""
    evaluation: Evaluation | None
    """Scores of the last policy; None: the run ended without one."""
    env_steps: float
    """Env steps that the run was trained for, as far as it has said."""
    seconds: float
    """Likewise, over all sessions."""
    ends_scored: bool
    """Whether its last training episodes have a mean return, as they have unless an environment pays NaN."""

    def score(self, source: ScoreSource) -> float | None:
        """Return the run's score; None if it has none of this kind."""
        if source == "evaluation":
            return None if self.evaluation is None else self.evaluation.mean
        there = len(self.curve.value) and self.ends_scored
        return float(self.curve.value[-1]) if there else None


def read_run(path: Path, files: Reader | None = None, *, climbs: bool = False) -> ComparedRun:
    """Read a run folder; ConfigError, in one line, if it is damaged where it matters.

    Args:
        path: of the folder, as it is shown.
        files: reads it; None: whatever is at the path.
        climbs: whether to read the run's episodes too.
    """
    files = FolderReader(path) if files is None else files
    saved = settings_in(files, path)
    env_id = saved.get("env_id")
    if not isinstance(env_id, str) or not env_id:
        raise ConfigError(f"{path / 'config.json'} is damaged: it names no environment")
    meta = table_in(files, "meta.json")
    described = _text(meta.get("protocol"))
    try:
        protocol = protocol_facts(saved, described)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    layers = table_in(files, "layers.json")
    told = _read_rows(files)
    settings = dict(flatten(completed(saved)))  # runs of two versions may be seeds of one thing
    independent = settings.get("topology.name") == "single"
    size = whole(settings.get("num_learners")) or 1
    num_learners = size if independent else 1
    if independent and settings.get("placement") == "cluster":  # some may have no place at the end
        num_learners = _learners_at_the_end(files) or num_learners
    seed = saved.get("seed")
    return ComparedRun(
        path=path,
        name=visible(str(path)),
        env_id=visible(clipped(env_id)),
        seed=str(seed) if isinstance(seed, int) else "-",
        settings=settings,
        chosen=frozenset(explicit({x: y for x, y in layers.items() if isinstance(y, str)})),
        protocol=protocol,
        described=described,
        state=state_of(table_in(files, "summary.json"), running=files.running),
        machine=_machine(meta),
        curve=told.curve,
        climbs=_read_climbs(files, size) if climbs else None,
        evaluation=_last_evaluation(files, told.env_steps, told.versions, num_learners),
        env_steps=told.env_steps,
        seconds=told.seconds,
        ends_scored=told.ends_scored,
    )


def read_runs(
    paths: Iterable[Path], warn: Callable[[str], object], *, climbs: bool = False
) -> list[ComparedRun]:
    """Read run folders, as `read_run` does; those that are damaged are left out, and a line about each is handed to `warn`."""
    found: list[ComparedRun] = []
    for path in paths:
        try:
            found.append(read_run(path, climbs=climbs))
        except ConfigError as error:
            warn(f"left out: {error}")
    return found


class _Row(msgspec.Struct):
    """What of a row of metrics is read; the rest is passed over, which is ten times as fast as to parse it."""

    learner: int = 0
    version: int | None = None
    env_steps: float | None = None
    time_s: float | None = None
    return_mean_100: float | None = None
    episodes: float | None = None


class _Rows(NamedTuple):
    """What rows of metrics tell of a run."""

    curve: Curve
    versions: dict[int, int]
    """Last version of each learner."""
    env_steps: float
    seconds: float
    ends_scored: bool


def _read_rows(files: Reader) -> _Rows:
    """Read the metrics of a run; broken rows, and rows that go back, are passed over."""
    decode = msgspec.json.Decoder(_Row).decode
    versions: dict[int, int] = {}
    rows: list[tuple[float, float, float, float]] = []
    steps, seconds, ends_scored = 0.0, 0.0, True
    try:
        file = files.open("metrics.jsonl")
    except (OSError, ValueError):
        return _Rows(_curve([]), {}, steps, seconds, ends_scored)
    with file:
        while line := file.readline(MAX_ROW_BYTES):
            try:
                row = decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            if row.version is not None:
                versions[row.learner] = row.version
            if row.env_steps is None or row.time_s is None:
                continue
            if (
                row.return_mean_100 is None and not row.episodes
            ):  # no episode has ended, or others tell
                continue
            # Without a count, as in no run of ours, the window is taken to be full.
            episodes = WINDOW if row.episodes is None else row.episodes
            mean = 0.0 if row.return_mean_100 is None else row.return_mean_100
            found = (row.env_steps, row.time_s, mean, episodes)
            if not all(-LARGEST < x < LARGEST for x in found):
                continue
            if row.env_steps >= steps and row.time_s >= seconds:
                steps, seconds = row.env_steps, row.time_s
                ends_scored = row.return_mean_100 is not None
                if ends_scored:
                    rows.append(found)
    return _Rows(_curve(rows), versions, steps, seconds, ends_scored)


def _read_climbs(files: Reader, num_learners: int) -> Curve | None:
    """Return where the mean return was higher than ever before, as sweeps reckon it; None without episodes."""
    points = curve(files, max(num_learners, 1))
    rows: list[tuple[float, float, float, float]] = []
    highest = -math.inf
    for point in points:
        if point.full and point.mean > highest:
            highest = point.mean
            rows.append((point.env_steps, point.seconds, point.mean, WINDOW))
    return _curve(rows) if points else None


def _curve(rows: list[tuple[float, float, float, float]]) -> Curve:
    table = np.array(rows, float).reshape(-1, 4)
    steps, seconds, value, episodes = np.ascontiguousarray(table.T)
    return Curve(steps, seconds, value, episodes)


def _last_evaluation(
    files: Reader, env_steps: float, versions: Mapping[int, int], num_learners: int
) -> Evaluation | None:
    """Return the last evaluation of a run's policy: of learners that never mix, the mean of theirs, if all have one.

    Some of these would be the best, chosen by its score, and whoever's turn it was. The episodes that confirm a best policy are not among them: a policy that was lucky gets more of these.
    """
    last = {str(rank): version for rank, version in versions.items()}
    last["average"] = max(
        versions.values(), default=0
    )  # one that has left would be behind for ever
    by_learner: dict[str, Evaluation] = {}
    for row in evaluations_of_policy(files):
        try:
            found = msgspec.convert(
                {"mean": row["mean"], "episodes": len(row["returns"])}, Evaluation
            )
            at, whose = float(row["env_steps"]), str(row.get("learner", 0))
            version = whole(row.get("version"))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if not abs(found.mean) < LARGEST or not found.episodes:
            continue
        by_learner.pop(whose, None)
        is_last = version is not None and whose in last and version >= last[whose] > 0
        if is_last or at >= LAST_TENTH * env_steps:
            by_learner[whose] = found
    told = by_learner.values()
    if len(told) < num_learners:
        return None
    mean = sum(x.mean for x in told) / len(told)
    return Evaluation(mean, sum(x.episodes for x in told))


def _learners_at_the_end(files: Reader) -> int | None:
    told = (whole(row.get("cluster/learners")) for row in rows_in(files, "metrics.jsonl"))
    return next(reversed([x for x in told if x]), None)


def _machine(meta: dict[str, Any]) -> str:
    """Return the processor of the last session, and how many cores it could use."""
    machine = mapping(last_session(meta).get("machine"))
    if not {"processor", "cores"} <= machine.keys():
        return ""
    cores = machine["cores"]
    return _text(f"{machine['processor']}, {cores} core{'s' * (cores != 1)}")


def _text(value: Any) -> str:
    return visible(clipped(value, 400)) if isinstance(value, str) else ""
