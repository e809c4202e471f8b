"""Micro-batches: columns that fit the cache, several worked on at a time, sums in a fixed order."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from gossamer.machine import l2_cache_bytes, use_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.types import Batch

R = TypeVar("R")
Cuts = list[tuple[int, int]]
"""Column ranges [start, stop)."""
ROWS = {"a3c": 288}
"""Rows of images that a CPU learns at once, by torso: more spill out of the cache that acting shares,
fewer waste time between operations. 16 columns of 16 steps, or 8 of 32; 136 for larger torsos."""
NATURE_ROWS_LARGE_CACHE = 544
"""The same for nature where a core has 2 MiB of second-level cache."""


def rows_that_fit(torso: str) -> int:
    """Return how many rows of images a CPU's caches hold at once while they are learnt."""
    if torso == "nature" and l2_cache_bytes() >= 2 << 20:
        return NATURE_ROWS_LARGE_CACHE
    return ROWS.get(torso, 136)


class MicroBatches:
    """Cuts batches into micro-batches and shares them out among threads.

    Which thread works on which micro-batch, and the order of the results, depend on sizes alone, so
    what is computed is the same every time. Small convolutions gain more from this than from
    threads inside each operation.

    Args:
        rows: of one micro-batch; whole columns, at least one.
        num_threads: micro-batches in work at a time, the caller's thread among them.
    """

    def __init__(self, rows: int, num_threads: int = 1):
        self.num_threads = num_threads
        self._rows = rows
        # Threads start when they are first needed.
        self._pool = ThreadPoolExecutor(max(num_threads - 1, 1), "micro-batch", use_threads, (1,))

    def cut(self, batch: Batch) -> Cuts:
        """Column ranges of a batch's micro-batches, as many for each thread where there are enough."""
        columns = max(self._rows // len(batch.starts), 1)
        total, n = batch.num_columns, self.num_threads
        # Even parts: a small rest would cost nearly as much as a full part.
        parts = min(math.ceil(total / columns / n) * n, total)
        bounds = [round(i * total / parts) for i in range(parts + 1)]
        return list(itertools.pairwise(bounds))

    def rows_of(self, batch: Batch) -> int:
        """Return how many rows the largest micro-batch of a batch has."""
        return max(stop - start for start, stop in self.cut(batch)) * len(batch.starts)

    def share_out(self, batch: Batch, work: Callable[[int, Cuts], R]) -> list[R]:
        """Call `work(thread, cuts)` once in each thread that has any; return results by thread.

        An error of one thread is raised when all have ended.
        """
        cuts = self.cut(batch)
        shares = [cuts[i :: self.num_threads] for i in range(min(self.num_threads, len(cuts)))]
        if len(shares) == 1:
            return [work(0, shares[0])]
        rest = [self._pool.submit(work, i, share) for i, share in enumerate(shares[1:], 1)]
        try:
            first = work(0, shares[0])
        finally:
            wait(rest)
        return [first, *(future.result() for future in rest)]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
