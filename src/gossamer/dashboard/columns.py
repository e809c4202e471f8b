"""Columns of numbers out of files with a JSON object a line: only those asked for, only what is new, and not too many at once.

A file of many megabytes is not read while somebody waits: rows evenly spaced in it are read for a first answer, and the
whole file on a thread of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from gossamer.dashboard.root import last_bytes
from gossamer.record.metrics import MAX_ROW_BYTES, parse_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gossamer.dashboard.root import Root

    Numbers = NDArray[np.float64]

CHUNK_BYTES = 1 << 20
"""Read and decoded at a time, a millisecond or two in which no other thread works."""
AT_ONCE_BYTES = 4 << 20
"""A file with this much that is new is read whole while somebody waits: some twenty milliseconds."""
SAMPLED_ROWS = 1000
"""Rows of a first answer."""
SAMPLE_BYTES = (2 << 10, 64 << 10)
"""Fewest and most that are read for each of them, to find one."""
HEAD_BYTES = 256 << 10
QUIET_SECONDS = 0.3
"""Since the last first answer: until then files are not read whole, or the other answers of a chart would wait."""
LONGEST_QUIET_SECONDS = 2.0
"""However often is asked."""
MAX_CACHE_BYTES = 96 << 20
"""Of columns that are kept."""
CHART_COLUMNS = 3
"""Fewest columns that make a chart: ranks, x and y."""
WANTED_SECONDS = 60.0
"""A column that was asked for within this time makes room for no other: the two would push each other out for ever."""
AVERAGE = -1.0
"""Stands for the average of all learners in a column of learners."""
LEARNER = "learner"


class Table(NamedTuple):
    """Columns of a file, all of the same length; NaN where a row does not tell."""

    columns: dict[str, Numbers]
    exact: bool
    """Whether they hold every row of the file."""


@dataclass
class _Held:
    """What has been read of a file."""

    inode: int
    end: int = 0
    last: bytes = b""
    """Read just before `end`."""
    columns: dict[str, list[Numbers]] = field(default_factory=dict[str, Any])
    num_bytes: int = 0


class Columns:
    """Reads columns of runs' files and keeps those used last.

    When all that is kept is still wanted and there is no room for more, answers from further long files stay samples.

    Args:
        root: of the runs.
        on_read: called with a run's id, from another thread, when there is an exact answer after an inexact one.
        max_bytes: of columns that are kept.
    """

    def __init__(
        self,
        root: Root,
        on_read: Callable[[str], object] = lambda _: None,
        max_bytes: int = MAX_CACHE_BYTES,
    ):
        self._root, self._on_read, self._max_bytes = root, on_read, max_bytes
        self._held: OrderedDict[tuple[str, str], _Held] = OrderedDict()
        self._asked: dict[tuple[str, str, str], float] = {}  # when, by run, file and column
        self._too_many: dict[tuple[str, str], float] = {}  # rows a byte of files without room
        self._lock = threading.Lock()
        self._reading: set[tuple[str, str, str]] = set()
        self._answered_at = -QUIET_SECONDS
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(1, "columns")

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns that are kept."""
        with self._lock:
            return self._total()

    def read(self, run: str, file: str, names: Sequence[str], *, wait: bool = False) -> Table:
        """Return columns of a file in a run's folder; empty ones without the file.

        Args:
            run: its id.
            file: name of the file.
            names: of the columns; LEARNER is among them for nothing.
            wait: until every row is read, however many there are.
        """
        wanted = list(dict.fromkeys([LEARNER, *names]))
        try:
            with self._root.run(run) as files, files.open(file) as handle:
                status = os.fstat(handle.fileno())
                with self._lock:
                    if not wait:
                        self._want(run, file, wanted)
                    held = self._current(run, file, handle)
                    old = [name for name in wanted if name in held.columns]
                    left = status.st_size - (held.end if len(old) == len(wanted) else 0)
                    fits = self._fits(run, file, wanted, status.st_size)
                if not wait and left > AT_ONCE_BYTES:
                    self._answered_at = time.monotonic()
                    sampled = _sampled(handle, status.st_size, wanted)
                    if fits:
                        self._read_later(run, file, wanted)
                    return Table(sampled, exact=False)
                return Table(self._all(handle, run, file, wanted, status), exact=True)
        except (OSError, ValueError):
            return Table({name: np.empty(0) for name in wanted}, exact=True)

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _current(self, run: str, file: str, handle: BinaryIO) -> _Held:
        """Return what is held of a file; nothing of one that was replaced, or cut."""
        held, inode = self._held.get((run, file)), os.fstat(handle.fileno()).st_ino
        if held is None or held.inode != inode or held.last != last_bytes(handle, held.end):
            held = self._held[run, file] = _Held(inode)
        self._held.move_to_end((run, file))
        return held

    def _all(
        self, handle: BinaryIO, run: str, file: str, names: list[str], status: os.stat_result
    ) -> dict[str, Numbers]:
        with self._lock:
            held = self._current(run, file, handle)
            end, old = held.end, list(held.columns)
        new = [name for name in names if name not in old]
        # What others read meanwhile is read twice, and kept once.
        first, _ = _decoded(handle, 0, end, new) if new and end else ({}, 0)
        more, reached = _decoded(handle, end, status.st_size, [*old, *new])
        with self._lock:
            held = self._current(run, file, handle)
            if held.end == end and set(held.columns) == set(old):
                for name in new:
                    held.columns[name] = [first[name]] if name in first else []
                for name, column in more.items():
                    if len(column):
                        held.columns[name].append(column)
                held.end, held.last = reached, last_bytes(handle, reached)
                held.num_bytes = sum(x.nbytes for xs in held.columns.values() for x in xs)
                found = {name: _joined(held, name) for name in names}
                self._make_room(run, file, new)
                return found
            parts = {name: [*held.columns.get(name, ())] for name in names}
            current = held.end == reached and all(name in held.columns for name in names)
        if current:
            return {name: np.concatenate([np.empty(0), *parts[name]]) for name in names}
        columns, _ = _decoded(handle, 0, status.st_size, names)
        return columns

    def _total(self) -> int:
        return sum(held.num_bytes for held in self._held.values())

    def _want(self, run: str, file: str, names: list[str]) -> None:
        now = time.monotonic()
        self._asked.update(((run, file, name), now) for name in names)

    def _unwanted(self) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield the columns that may go, those of the file used longest ago first."""
        now = time.monotonic()
        self._asked = {key: x for key, x in self._asked.items() if now - x < WANTED_SECONDS}
        for key, held in list(self._held.items()):
            yield from (
                (key, name) for name in list(held.columns) if (*key, name) not in self._asked
            )

    def _drop(self, key: tuple[str, str], name: str) -> int:
        """Drop a column and return its bytes, none if it has gone before."""
        held = self._held.get(key)
        if held is None or name not in held.columns:
            return 0
        num_bytes = sum(x.nbytes for x in held.columns.pop(name))
        held.num_bytes -= num_bytes
        if not held.columns:
            del self._held[key]
        return num_bytes

    def _make_room(self, run: str, file: str, new: list[str]) -> None:
        """Drop what nobody wants any more; if that is not enough, the new columns of a file one by one, then the others."""
        key = (run, file)
        held, total = self._held[key], self._total()
        rows = max((sum(map(len, parts)) for parts in held.columns.values()), default=0)
        if new:
            self._too_many.pop(key, None)
        for where, name in self._unwanted():
            if total <= self._max_bytes:
                return
            total -= self._drop(where, name)
        # Who reads a column reads ranks with it: they go last.
        columns = [x for x in held.columns if x not in (*new, LEARNER)]
        last_first = [*reversed([x for x in new if x != LEARNER]), *reversed(columns), LEARNER]
        for name in last_first:
            if total <= self._max_bytes:
                return
            total -= self._drop(key, name)
            self._too_many[key] = rows / max(held.end, 1)
            if len(held.columns) < CHART_COLUMNS:  # of no use
                for left in list(held.columns):
                    total -= self._drop(key, left)

    def _fits(self, run: str, file: str, names: list[str], size: int) -> bool:
        """Whether there may be room for columns of a file; one is read in vain at most once to know."""
        key = (run, file)
        if key not in self._too_many:
            return True
        gone = sum(
            x.nbytes for where, name in self._unwanted() for x in self._held[where].columns[name]
        )
        # What other charts ask for of this file is read with it.
        asked = {name for r, f, name in self._asked if (r, f) == key}
        needed = len({*names, *asked} - self._held[key].columns.keys())
        needed *= self._too_many[key] * size * 8
        return self._total() - gone + needed <= self._max_bytes

    def _read_later(self, run: str, file: str, wanted: list[str]) -> None:
        with self._lock:
            new = {(run, file, name) for name in wanted} - self._reading
            self._reading |= new
            jobs = self._reading

        def work() -> None:
            latest = time.monotonic() + LONGEST_QUIET_SECONDS
            while not self._closed.is_set():
                left = min(self._answered_at + QUIET_SECONDS, latest) - time.monotonic()
                if left <= 0:
                    break
                self._closed.wait(left)
            with self._lock:  # all that is waiting for the same file, in one go
                names = [x for r, f, x in jobs if (r, f) == (run, file)]
                self._want(run, file, names)  # it has waited for its turn
                # As they were asked for: the axis of all charts comes before what there is no room for.
                names = [x for r, f, x in self._asked if (r, f) == (run, file) and x in names]
            if not names or self._closed.is_set():
                return
            try:
                self.read(run, file, names, wait=True)
            finally:
                with self._lock:
                    jobs.difference_update((run, file, x) for x in names)
                    held = self._held.get((run, file))
                    kept = held is not None and all(name in held.columns for name in names)
                    kept = kept or (run, file) not in self._too_many
            if kept:  # else the next answer would be a sample again
                self._on_read(run)

        if new:
            self._pool.submit(work)


def _joined(held: _Held, name: str) -> Numbers:
    parts = held.columns[name]
    if len(parts) != 1:
        parts[:] = [np.concatenate([np.empty(0), *parts])]
    return parts[0]


def _decoded(
    handle: BinaryIO, begin: int, end: int, names: Sequence[str]
) -> tuple[dict[str, Numbers], int]:
    """Return columns of the whole rows in a part of a file, and where the last of them ends."""
    decode = _decoder(names)
    parts: list[list[Numbers]] = []
    at, rest = begin, b""
    handle.seek(begin)
    while at + len(rest) < end:
        block = handle.read(min(CHUNK_BYTES, end - at - len(rest)))
        if not block:
            break
        block = rest + block
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) > MAX_ROW_BYTES:  # a line that long is broken
            at, rest = at + len(block), b""
            continue
        if cut:
            parts.append(decode(block[:cut]))
        at, rest = at + cut, block[cut:]
    columns = {
        name: np.concatenate([np.empty(0), *(part[i] for part in parts)])
        for i, name in enumerate(names)
    }
    return columns, at


def _sampled(handle: BinaryIO, size: int, names: Sequence[str]) -> dict[str, Numbers]:
    """Return columns of rows evenly spaced in a file, the first and the last among them."""
    lines: list[bytes] = []
    descriptor, last = handle.fileno(), -1
    longest = max(map(len, os.pread(descriptor, HEAD_BYTES, 0).splitlines()), default=0)
    room = min(max(5 * longest // 2, SAMPLE_BYTES[0]), SAMPLE_BYTES[1])
    end_of_file = max(size - room, 0)
    for offset in np.linspace(0, end_of_file, SAMPLED_ROWS).astype(int).tolist():
        block = os.pread(descriptor, room, offset)
        begin = block.find(b"\n") + 1 if offset else 0
        end = block.find(b"\n", begin) + 1
        if end and offset + begin > last:
            lines.append(block[begin:end])
            last = offset + begin
    *_, tail = [b"", *os.pread(descriptor, room, end_of_file).splitlines(keepends=True)[1:]]
    if tail.endswith(b"\n") and size - len(tail) > last:
        lines.append(tail)
    columns = _decoder(names)(b"".join(lines))
    return dict(zip(names, columns, strict=True))


def _decoder(names: Sequence[str]) -> Callable[[bytes], list[Numbers]]:
    """Return what reads some numbers out of lines: a gigabyte in a second or two, as all else is skipped."""
    fields = [
        (f"f{i}", float | str | None if name == LEARNER else float | None, None)
        for i, name in enumerate(names)
    ]
    rename = {f"f{i}": name for i, name in enumerate(names)}
    row = msgspec.defstruct("Row", fields, rename=rename, gc=False)
    decoder = msgspec.json.Decoder(row)
    keys = [f"f{i}" for i in range(len(names))]

    def decode(lines: bytes) -> list[Numbers]:
        try:
            rows = decoder.decode_lines(lines)
        except (msgspec.DecodeError, RecursionError):
            return _by_line(lines, names)
        return [
            _column(name, [getattr(x, key) for x in rows])
            for name, key in zip(names, keys, strict=True)
        ]

    return decode


def _by_line(lines: bytes, names: Sequence[str]) -> list[Numbers]:
    """Do the same for lines of which some are broken; these tell nothing, but are rows for other columns."""
    rows = [parse_row(x) or {} for x in lines.splitlines(keepends=True) if x.strip()]
    return [_column(name, (row.get(name) for row in rows)) for name in names]


def _column(name: str, values: Iterable[Any]) -> Numbers:
    if name == LEARNER:
        numbers = [
            0.0 if x is None else x if isinstance(x, float | int) else AVERAGE for x in values
        ]
        return _floats(numbers)
    return _floats([x if isinstance(x, float | int | None) else None for x in values])


def _floats(values: list[Any]) -> Numbers:
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:  # a whole number of hundreds of digits
        return np.array([x if isinstance(x, float) else None for x in values], dtype=np.float64)
