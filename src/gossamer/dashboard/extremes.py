"""Extremes of what a run's learners have told, over the whole run: the ends of scales that time does not move."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from gossamer.dashboard.root import last_bytes
from gossamer.record.metrics import parse_row
from gossamer.record.objectives import RETURN_OF
from gossamer.system.reading import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gossamer.dashboard.root import RunFiles

LINK = "topology/staleness_updates_of_"
APART = "topology/disagreement_of_"
OWN = "learner/return_mean_100"
OF_THE_RUN = "return_mean_100"
WHOLE_BYTES = 4 << 20
"""So much that is new is read whole, some thirty milliseconds; of more, parts."""
PARTS = 64
"""Parts of a long file, evenly spaced; each is long enough for a row of learner 0, which tells of all."""
MAX_REMEMBERED_RUNS = 256
"""Runs whose ranges are remembered."""


@dataclass
class _Range:
    """Lowest and highest of some numbers, which come one by one."""

    low: float = float("inf")
    high: float = float("-inf")

    def take(self, value: float | None) -> None:
        if value is not None:
            self.low, self.high = min(self.low, value), max(self.high, value)

    def told(self) -> tuple[float, float] | None:
        return (self.low, self.high) if self.low <= self.high else None


@dataclass
class _Seen:
    """What was read of a file."""

    inode: int
    end: int = 0
    last: bytes = b""
    """Read just before `end`."""
    of_all: _Range = field(default_factory=_Range)
    own: _Range = field(default_factory=_Range)
    run: _Range = field(default_factory=_Range)
    stale: _Range = field(default_factory=_Range)
    apart: _Range = field(default_factory=_Range)


@dataclass(frozen=True)
class Extremes:
    """Of a run's learners and links, at any moment; None: no row tells it."""

    returns: tuple[float, float] | None
    """The lowest and the highest return that a learner has had: of the numbers that the graph shows, which are each
    learner's as learner 0 tells them, in older runs as each tells its own, with one learner the run's."""
    most_staleness_updates: float | None
    """Of a link."""
    most_disagreement: float | None
    """Of a learner with the mean of all."""


class RememberedExtremes:
    """Remembers the extremes of each run, and reads of a run that trains only what is new."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def of(self, files: RunFiles, run: str, num_learners: int) -> Extremes:
        """Return the extremes of a run.

        Args:
            files: of the run.
            run: its id.
            num_learners: of the run.
        """
        with self._lock:
            seen = self._read(files, run)
        if seen is None:
            return Extremes(None, None, None)
        returns = (
            seen.of_all.told()
            or seen.own.told()
            or (seen.run.told() if num_learners == 1 else None)
        )
        stale, apart = seen.stale.told(), seen.apart.told()
        return Extremes(returns, stale and stale[1], apart and apart[1])

    def _read(self, files: RunFiles, run: str) -> _Seen | None:
        try:
            file = files.open("metrics.jsonl")
        except (OSError, ValueError):
            return None
        with file:
            status = os.fstat(file.fileno())
            seen = self._seen.get(run)
            if (
                seen is None
                or seen.inode != status.st_ino
                or seen.last != last_bytes(file, seen.end)
            ):
                seen = self._seen[run] = _Seen(status.st_ino)
            self._seen.move_to_end(run)
            if len(self._seen) > MAX_REMEMBERED_RUNS:
                self._seen.popitem(last=False)
            for row in _rows(file, seen.end, status.st_size):
                for name, value in row.items():
                    for prefix, extremes in (
                        (RETURN_OF, seen.of_all),
                        (LINK, seen.stale),
                        (APART, seen.apart),
                    ):
                        if name.startswith(prefix):
                            extremes.take(number(value))
                seen.own.take(number(row.get(OWN)))
                seen.run.take(number(row.get(OF_THE_RUN)))
            seen.end = _whole_lines(file, seen.end, status.st_size)
            seen.last = last_bytes(file, seen.end)
            return seen


def _rows(file: BinaryIO, begin: int, end: int) -> Iterator[dict[str, Any]]:
    """Yield the rows in a part of a file that tell of learners; of a long part some."""
    each = WHOLE_BYTES // PARTS
    if end - begin <= WHOLE_BYTES:
        places = [(begin, end)]
    else:
        step = (end - begin - each) / (PARTS - 1)
        places = [(begin + int(i * step), begin + int(i * step) + each) for i in range(PARTS)]
    for first, last in places:
        file.seek(first)
        for line in file.read(last - first).splitlines(keepends=True):
            # The first and the last line of a part may be cut, and then they are no rows.
            if (b"return_" in line or b"topology/" in line) and (
                row := parse_row(line)
            ) is not None:
                yield row


def _whole_lines(file: BinaryIO, begin: int, end: int) -> int:
    """Return where the last whole line of a part of a file ends."""
    first = max(begin, end - WHOLE_BYTES // PARTS)
    file.seek(first)
    cut = file.read(end - first).rfind(b"\n")
    return first + cut + 1 if cut >= 0 else begin
