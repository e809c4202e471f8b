"""The objectives by which trials of a sweep are judged, computed from the files of their runs."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from operator import le
from typing import TYPE_CHECKING, Any, Literal

from gossamer.record.exits import exit_of
from gossamer.record.readers import rows_in, table_in
from gossamer.record.window import WINDOW
from gossamer.system.reading import mapping, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gossamer.record.readers import Reader

Objective = Literal["return", "evaluation", "area", "seconds_to_score", "steps_to_score"]
GREATER_IS_BETTER = {
    "return": True,
    "evaluation": True,
    "area": True,
    "seconds_to_score": False,
    "steps_to_score": False,
}
NEVER = 1e15
"""Seconds or steps of a run that never reached the score: more than any other takes, and a number as optimisers want."""
MAX_SEEDS = 1000
"""Most seeds of a trial, so that the mean of its runs tells whether one of them never reached the score."""
NO_AVERAGE = ("single", "allreduce")
"""Topologies of which no average of learners is the run's policy."""
RETURN_OF = "learner/return_of_"
"""Beginning of the names under which metrics.jsonl tells what each learner's share of these has earned."""


@dataclass(frozen=True)
class Point:
    """A run's mean return when an episode has ended."""

    env_steps: float
    seconds: float
    mean: float
    """Of the last 100 training episodes, or of all if there are fewer; of several learners as many of each that is there."""
    full: bool
    """Whether there are 100."""


def curve(files: Reader, num_learners: int = 1) -> list[Point]:
    """Return the mean return over a run, a point for each training episode.

    Args:
        files: of the run; episodes.jsonl may be missing or damaged. On a cluster, metrics.jsonl tells
            which learners are there.
        num_learners: as the mean has as many episodes of each.
    """
    own: dict[int, deque[float]] = {}
    sums: dict[int, float] = {}
    points: list[Point] = []
    size, each, gone = num_learners, -(-WINDOW // num_learners), set[int]()
    changes = deque(_learners_there(files) if num_learners > 1 else ())
    for row in rows_in(files, "episodes.jsonl"):
        learner, score = row.get("learner", 0), number(row.get("return"))
        steps, seconds = number(row.get("env_steps")), number(row.get("time_s"))
        if score is None or steps is None or seconds is None or not isinstance(learner, int):
            continue
        while changes and changes[0][0] <= seconds:
            _, size, told = changes.popleft()
            each, gone = -(-WINDOW // size), {x for x in own if f"{RETURN_OF}{x}" not in told}
            sums = {rank: sum(list(x)[-each:]) for rank, x in own.items()}
        gone.discard(learner)
        last = own.setdefault(learner, deque(maxlen=WINDOW + 1))
        last.append(score)
        sums[learner] = sums.get(learner, 0.0) + score
        if len(last) > each:
            sums[learner] -= last[-each - 1]
        there = own.keys() - gone
        mean = sum(sums[x] / min(len(own[x]), each) for x in there) / len(there)
        full = len(there) == size and all(len(own[x]) >= each for x in there)
        points.append(Point(steps, seconds, mean, full))
    return points


def _learners_there(files: Reader) -> list[tuple[float, int, set[str]]]:
    """Return moments of a cluster's run: seconds, how many learners have a place, and the names of what their shares have earned."""
    found: list[tuple[float, int, set[str]]] = []
    for row in rows_in(files, "metrics.jsonl"):
        seconds, size = number(row.get("time_s")), whole(row.get("cluster/learners"))
        if seconds is not None and size is not None and size > 0:
            there = {name for name in row if name.startswith(RETURN_OF)}
            if not found or (size, there) != found[-1][1:]:
                found.append((seconds, size, there))
    return found


def area(points: list[Point], until: float = 0.0) -> float:
    """Return the mean height of a curve over env steps, by trapezoids.

    The first mean holds from the start on, the last one to `until`, env steps at which a run that reached its
    target early would have ended.
    """
    assert points
    points = sorted(
        points, key=lambda x: x.env_steps
    )  # of learners that do not wait they go back and forth
    steps = [0.0, *(x.env_steps for x in points)]
    heights = [points[0].mean, *(x.mean for x in points)]
    if until > steps[-1]:
        steps.append(until)
        heights.append(heights[-1])
    total = sum(
        (right - left) * (low + high) / 2
        for left, right, low, high in zip(steps, steps[1:], heights, heights[1:], strict=False)
    )
    return total / steps[-1] if steps[-1] > 0 else heights[-1]


def last_evaluation(files: Reader) -> float | None:
    """Return the mean of the last evaluation of a run's policy; None if there was none."""
    mark = table_in(files, "meta.json").get("scored_by")
    rows = [*rows_in(files, "evaluation.jsonl")]
    return last_score(reversed(rows), mark, table_in(files, "config.json"))


def last_score(
    newest_first: Iterable[Mapping[str, Any]], mark: Any, settings: Mapping[str, Any]
) -> float | None:
    """Return the mean of the last evaluation of a run's policy, of learners on their own the mean of theirs; None if there was none.

    Args:
        newest_first: evaluations, of which no more are read than it takes.
        mark: `scored_by` of those that compare with the newest; None: that of the newest.
        settings: of the run.
    """
    alone = settings.get("num_learners") == 1
    found: dict[str, float] = {}
    for row in newest_first:
        mean = number(row.get("mean"))
        if mean is None or row.get("confirmation"):
            continue
        if mark is None:
            mark = row.get("scored_by")
        if row.get("scored_by", mark) != mark:
            continue  # scores do not compare any more
        average = row.get("learner") == "average"
        if average and not (alone or ships_average(settings)):
            break  # they mixed before the run was resumed
        if average or alone:
            return mean
        found.setdefault(str(row.get("learner")), mean)
    return sum(found.values()) / len(found) if found else None


def evaluations_of_policy(files: Reader) -> list[dict[str, Any]]:
    """Return the evaluations of a run's policy: where learners mix, it is their average, and every second one is of a learner.

    Of a run that was resumed with learners that do not mix any more, or with settings by which scores do not compare, these
    are the ones since then.
    """
    rows = [row for row in rows_in(files, "evaluation.jsonl") if not row.get("confirmation")]
    mark = table_in(files, "meta.json").get("scored_by")
    if mark is None and rows:  # it is damaged
        mark = rows[-1].get("scored_by")
    rows = [row for row in rows if row.get("scored_by", mark) == mark]
    averages = [i for i, row in enumerate(rows) if row.get("learner") == "average"]
    if not averages:
        return rows
    if ships_average(table_in(files, "config.json")):
        return [rows[i] for i in averages]
    return rows[averages[-1] + 1 :]


def ships_average(settings: Mapping[str, Any]) -> bool:
    """Whether the policy of a run with these settings is the average of its learners, if there are several."""
    return mapping(settings.get("topology")).get("name") not in NO_AVERAGE


def measure(
    files: Reader,
    objective: Objective,
    *,
    score: float = math.inf,
    total_env_steps: int = 0,
    stop_after_seconds: float = 0.0,
    num_learners: int = 1,
) -> float | None:
    """Return an objective of a finished run; None if nothing in its files says.

    Args:
        files: of the run.
        objective: which.
        score: that `seconds_to_score` and `steps_to_score` wait for.
        total_env_steps: where the run would have ended without its target.
        stop_after_seconds: where it would have ended if that is sooner; 0: no limit.
        num_learners: of the run.
    """
    summary = table_in(files, "summary.json")
    if objective == "return":
        return number(summary.get("mean_return_last_100"))
    if objective == "evaluation":
        return last_evaluation(files)
    points = curve(files, num_learners)
    ended = exit_of(summary)
    early = ended is not None and ended.cause == "stop_at_return"
    if objective == "area":
        until = float(total_env_steps)
        if points and stop_after_seconds and points[-1].seconds > 0:
            at_this_pace = points[-1].env_steps * stop_after_seconds / points[-1].seconds
            until = min(until, at_this_pace)
        return area(points, until if early else 0.0) if points else None
    reached = next((x for x in points if x.full and x.mean >= score), None)
    if reached is None:
        return NEVER
    return reached.seconds if objective == "seconds_to_score" else reached.env_steps


def is_never(objective: str, value: float) -> bool:
    """Whether an objective's mean over seeds holds a run that never reached the score."""
    return not GREATER_IS_BETTER[objective] and value >= NEVER / MAX_SEEDS


def shown_value(objective: str, value: float | None) -> str:
    """Return an objective's mean over seeds in words."""
    if value is None:
        return "-"
    if is_never(objective, value):
        return "never"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


MARKS = 20
"""Moments of a run at which a pruner may compare it with others."""


def evaluations(
    files: Reader, *, total_env_steps: int, stop_after_seconds: float = 0.0
) -> dict[int, float]:
    """Return by mark, in 1 to 20, the mean of the first evaluation in each twentieth of a run.

    Args:
        files: of the run; it may be running.
        total_env_steps: where it ends.
        stop_after_seconds: where it ends if that is sooner; 0: no limit.
    """
    found: dict[int, float] = {}
    for row in evaluations_of_policy(files):
        mean, steps, seconds = (number(row.get(x)) for x in ("mean", "env_steps", "time_s"))
        if mean is None or steps is None:
            continue
        share = steps / max(total_env_steps, 1)
        if stop_after_seconds and seconds is not None:
            share = max(share, seconds / stop_after_seconds)
        mark = min(max(math.ceil(share * MARKS), 1), MARKS)
        found.setdefault(mark, mean)
    return found


@dataclass(frozen=True)
class Judge:
    """Says what the runs of a sweep are worth."""

    objectives: tuple[Objective, ...]
    score: float = math.inf

    def of_run(
        self,
        files: Reader,
        *,
        total_env_steps: int,
        num_learners: int,
        stop_after_seconds: float = 0.0,
    ) -> list[float | None]:
        """Return every objective of a finished run; arguments as of `measure`."""
        return [
            measure(
                files,
                objective,
                score=self.score,
                total_env_steps=total_env_steps,
                stop_after_seconds=stop_after_seconds,
                num_learners=num_learners,
            )
            for objective in self.objectives
        ]

    def _costs(self, values: tuple[float, ...]) -> list[float]:
        """Return the values of every objective so that less of each is better."""
        pairs = zip(self.objectives, values, strict=True)
        return [-value if GREATER_IS_BETTER[name] else value for name, value in pairs]

    def key(self, values: tuple[float, ...]) -> float:
        """Return what sorts trials by their first objective, the best first."""
        return self._costs(values)[0]

    def means(self, worth: Sequence[Sequence[float | None]]) -> tuple[tuple[float, ...], str]:
        """Return the mean of every objective over runs; none, and an objective's name, if some run has not recorded it."""
        means: list[float] = []
        for name, column in zip(self.objectives, zip(*worth, strict=True), strict=True):
            known = [x for x in column if x is not None]
            if len(known) < len(column):
                return (), name
            means.append(sum(known) / len(known))
        return tuple(means), ""

    def best(self, values: list[tuple[float, ...]]) -> list[int]:
        """Return the first of the best trials; with two objectives those that no other one beats, the best by the first in front."""
        ranked = sorted(range(len(values)), key=lambda i: self.key(values[i]))
        if len(self.objectives) == 1:
            return ranked[:1]
        front = self.front(values)
        return [i for i in ranked if i in front]

    def front(self, values: list[tuple[float, ...]]) -> list[int]:
        """Return which of some trials no other one beats in one objective without losing in another."""
        costs = [self._costs(x) for x in values]

        def is_beaten(own: list[float]) -> bool:
            return any(x != own and all(map(le, x, own)) for x in costs)

        return [i for i, own in enumerate(costs) if not is_beaten(own)]
