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


class Measured(NamedTuple):
    """How often intervals held the truth."""

    what: str
    distribution: str
    seeds: int
    share: float
    percentile: float | None = None
    """Of intervals of the percentile bootstrap."""

    @property
    def within(self) -> bool:
        """Whether that is as it has to be."""
        return BAR[0] <= self.share <= BAR[1]


def measure_one_task(name: str, n: int, samples: int, seed: int = 1) -> Iterator[Measured]:
    """Measure each statistic of one environment, and its difference between groups of which one varies three times as much."""
    draw, rng = DISTRIBUTIONS[name], np.random.default_rng(seed)
    large = draw(np.random.default_rng(0), (TRUTH,))
    truth = dict(zip(STATISTICS, _populations(large), strict=True))
    one, other = draw(rng, (n, samples)), draw(rng, (n, samples))
    for statistic in STATISTICS:
        true = truth[statistic]
        share = _share(estimate([one], statistic), true)
        yield Measured(statistic, name, n, share, _percentile(one, statistic, true, rng))
        share = _share(difference([one], [3 * other], statistic), -2 * true)
        yield Measured(f"difference of {statistic}", name, n, share)


def measure_tasks(name: str, n: int, tasks: int, samples: int, seed: int = 1) -> Iterator[Measured]:
    """Measure each statistic of several environments, which differ in level and spread."""
    draw, rng = DISTRIBUTIONS[name], np.random.default_rng(seed)
    levels, scales = rng.normal(size=tasks), np.exp(rng.normal(size=tasks) / 2)
    large = [
        level + scale * draw(np.random.default_rng(i), (TRUTH // tasks,))
        for i, (level, scale) in enumerate(zip(levels, scales, strict=True))
    ]
    scores = [a + b * draw(rng, (n, samples)) for a, b in zip(levels, scales, strict=True)]
    for statistic in STATISTICS:
        # The tasks are given, the seeds are not: of the population too, medians are of tasks' means.
        true = float(statistic_of(large, statistic))
        share = _share(estimate(scores, statistic), true)
        yield Measured(f"{statistic} of {tasks} environments", name, n, share)


def measure_improvement(name: str, n: int, shift: float, samples: int, seed: int = 1) -> Measured:
    """Measure the probability of improvement between a group and one that is so many deviations higher."""
    draw, rng = DISTRIBUTIONS[name], np.random.default_rng(seed)
    large = draw(np.random.default_rng(0), (2, TRUTH))
    shift *= float(large.std())
    above = large[0] + shift
    true = float(np.mean(above > large[1]) + 0.5 * np.mean(above == large[1]))
    found = probability_of_improvement([draw(rng, (n, samples)) + shift], [draw(rng, (n, samples))])
    return Measured(f"probability of improvement {true:.2f}", name, n, _share(found, true))


def _populations(large: Array) -> Iterator[float]:
    for statistic in STATISTICS:
        yield float(statistic_of([large], statistic))


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
    """Measure all of it and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000, help="experiments of each kind")
    samples = parser.parse_args().samples
    rows: list[Measured] = []
    for name in DISTRIBUTIONS:
        for n in SEEDS:
            rows += measure_one_task(name, n, samples)
            rows += measure_tasks(name, n, 5, max(500, samples // 20))
            rows += (measure_improvement(name, n, x, samples) for x in (0.0, 0.5, 1.0))
    kinds = list(dict.fromkeys(_kind(row) for row in rows))
    for kind in kinds:
        print(f"\n{kind}\n| distribution | {' | '.join(f'n = {n}' for n in SEEDS)} |")
        print(f"|---|{'---|' * len(SEEDS)}")
        of_kind = [row for row in rows if _kind(row) == kind]
        for name in DISTRIBUTIONS:
            cells = [
                ", ".join(_cell(x) for x in of_kind if (x.distribution, x.seeds) == (name, n))
                for n in SEEDS
            ]
            print(f"| {name} | {' | '.join(cells)} |")
    outside = [row for row in rows if not row.within]
    print(f"\n{len(rows) - len(outside)} of {len(rows)} within {BAR[0]} to {BAR[1]}; * outside")


def _kind(row: Measured) -> str:
    improvement = "probability of improvement"
    return improvement if row.what.startswith(improvement) else row.what


def _cell(row: Measured) -> str:
    mark = "" if row.within else "*"
    beside = "" if row.percentile is None else f" (percentile: {row.percentile:.3f})"
    return f"{row.share:.3f}{mark}{beside}"


if __name__ == "__main__":
    main()
