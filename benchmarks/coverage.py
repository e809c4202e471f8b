"""What share of the intervals of `gossamer compare` hold the truth, on scores drawn from known distributions.

    python benchmarks/coverage.py                       all of it, two minutes on one core
    python benchmarks/coverage.py --samples 4000        faster, and less exact

Nominal are 95 %. The percentile bootstrap, which most programs use, is measured beside them. Marked are shares outside 92 to
97 %. The distributions are those of returns as they occur: normal, flat, heavy at the ends, leaning to either side, and with seeds
that fail.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.compare.statistics import (
    STATISTICS,
    Scores,
    Statistic,
    difference,
    estimate,
    probability_of_improvement,
    spread_of,
    statistic_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gossamer.compare.statistics import Estimate

Array = NDArray[np.float64]
SEEDS = (3, 5, 10)
BAR = (0.92, 0.97)
"""Shares between which coverage has to be."""
TRUTH = 2_000_000
"""Scores that the truth is measured on."""
PERCENTILE_RESAMPLES = 300


def _failing(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> Array:
    fails = rng.uniform(size=shape) < share
    return np.where(fails, rng.normal(0, 1, shape), rng.normal(4, 1, shape))


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "flat (uniform)": lambda rng, shape: rng.uniform(size=shape),
    "heavy ends (t, 5)": lambda rng, shape: rng.standard_t(5, size=shape),
    "leaning low (beta 5, 2)": lambda rng, shape: rng.beta(5, 2, size=shape),
    "leaning high (gamma 4)": lambda rng, shape: rng.gamma(4, size=shape),
    "lognormal 0.5": lambda rng, shape: rng.lognormal(0, 0.5, size=shape),
    "lognormal 1": lambda rng, shape: rng.lognormal(0, 1, size=shape),
    "1 of 10 seeds fails": lambda rng, shape: _failing(rng, shape, 0.1),
    "3 of 10 seeds fail": lambda rng, shape: _failing(rng, shape, 0.3),
}


ONE, PERCENTILE = "one environment", "one environment, percentile bootstrap"
DIFFERENCE = "difference of two groups, one of which varies three times as much"
TASKS = 5
SEVERAL = f"{TASKS} environments that differ in level and spread"
IMPROVEMENT = "probability of improvement, one environment"
SHIFTS = {"equal": 0.0, "half a deviation": 0.5, "a deviation": 1.0}
"""How far one group is above the other, in standard deviations."""


class Measured(NamedTuple):
    """How often intervals held the truth."""

    table: str
    what: str
    distribution: str
    seeds: int
    share: float

    @property
    def within(self) -> bool:
        """Whether that is as it has to be."""
        return BAR[0] <= self.share <= BAR[1]


def measure_one_task(name: str, n: int, samples: int, seed: int = 1) -> Iterator[Measured]:
    """Measure each statistic of one environment, its difference between groups, and the percentile bootstrap."""
    draw, rng = DISTRIBUTIONS[name], np.random.default_rng(seed)
    large = draw(np.random.default_rng(0), (TRUTH,))
    one, other = draw(rng, (n, samples)), draw(rng, (n, samples))
    for statistic in STATISTICS:
        true = float(statistic_of([large], statistic))
        yield Measured(ONE, statistic, name, n, _share(estimate([one], statistic), true))
        found = difference(spread_of([one], statistic), spread_of([3 * other], statistic))
        yield Measured(DIFFERENCE, statistic, name, n, _share(found, -2 * true))
        yield Measured(PERCENTILE, statistic, name, n, _percentile(one, statistic, true, rng))


def measure_tasks(name: str, n: int, samples: int, seed: int = 1) -> Iterator[Measured]:
    """Measure each statistic of several environments. They are given; their seeds are drawn."""
    draw, rng = DISTRIBUTIONS[name], np.random.default_rng(seed)
    levels, scales = rng.normal(size=TASKS), np.exp(rng.normal(size=TASKS) / 2)
    tasks = list(zip(levels, scales, strict=True))
    large = [
        a + b * draw(np.random.default_rng(i), (TRUTH // TASKS,)) for i, (a, b) in enumerate(tasks)
    ]
    scores = [a + b * draw(rng, (n, samples)) for a, b in tasks]
    for statistic in STATISTICS:
        true = float(statistic_of(large, statistic))
        yield Measured(SEVERAL, statistic, name, n, _share(estimate(scores, statistic), true))


def measure_improvement(name: str, n: int, samples: int, seed: int = 1) -> Iterator[Measured]:
    """Measure the probability of improvement between a group and others below it."""
    draw, rng = DISTRIBUTIONS[name], np.random.default_rng(seed)
    large = draw(np.random.default_rng(0), (2, TRUTH))
    for what, shift in SHIFTS.items():
        away = shift * float(large.std())
        true = float(np.mean(large[0] + away > large[1]))
        sides = [draw(rng, (n, samples)) + away], [draw(rng, (n, samples))]
        share = _share(probability_of_improvement(*sides), true)
        yield Measured(IMPROVEMENT, what, name, n, share)


def _share(found: Estimate, true: float) -> float:
    return float(np.mean((found.low <= true) & (true <= found.high)))


def _percentile(
    scores: Array, statistic: Statistic, true: float, rng: np.random.Generator
) -> float:
    """Return the coverage of the interval between the 2.5th and 97.5th percentile of resamples."""
    n = len(scores)
    again: list[Array] = []
    for _ in range(PERCENTILE_RESAMPLES):
        resample: Scores = [scores[rng.integers(n, size=n)]]
        again.append(statistic_of(resample, statistic))
    low, high = np.quantile(again, (0.025, 0.975), axis=0)
    return float(np.mean((low <= true) & (true <= high)))


def main() -> None:
    """Measure all of it and print tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000, help="experiments of each kind")
    samples = parser.parse_args().samples
    rows: list[Measured] = []
    for name in DISTRIBUTIONS:
        for n in SEEDS:
            rows += measure_one_task(name, n, samples)
            rows += measure_tasks(name, n, max(500, samples // 10))
            rows += measure_improvement(name, n, samples)
    for table in (ONE, DIFFERENCE, SEVERAL, IMPROVEMENT, PERCENTILE):
        print("\n".join(_table([row for row in rows if row.table == table])))
    ours = [row for row in rows if row.table != PERCENTILE]
    inside = sum(row.within for row in ours)
    print(
        f"\n{inside} of {len(ours)} intervals that are used within {BAR[0]} to {BAR[1]}; * outside"
    )


def _table(rows: list[Measured]) -> Iterator[str]:
    columns = list(dict.fromkeys((row.what, row.seeds) for row in sorted(rows, key=_column)))
    yield f"\n{rows[0].table}\n"
    yield f"| distribution | {' | '.join(f'{what}, n = {n}' for what, n in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    found = {(row.distribution, row.what, row.seeds): row for row in rows}
    for name in DISTRIBUTIONS:
        cells = [found[name, what, n] for what, n in columns]
        shown = (f"{x.share:.3f}" + "*" * (not x.within) for x in cells)
        yield f"| {name} | {' | '.join(shown)} |"


def _column(row: Measured) -> tuple[int, int]:
    return [*STATISTICS, *SHIFTS].index(row.what), row.seeds


if __name__ == "__main__":
    main()
