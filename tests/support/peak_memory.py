"""How much memory something takes at its peak: of the process, and yet not of what it did before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLEAR = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


def _status_kib(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found, f"no {name}"
    return int(found[1])


@contextmanager
def grows_by_less_than(kib: int) -> Iterator[None]:
    """Fail if the process has held so much more, at some moment, than before."""
    if not CLEAR.exists():  # where it is not Linux
        yield
        return
    # The peak that `ru_maxrss` tells is a life's: after one large test it shows nothing of all that follow.
    CLEAR.write_text("5")
    before = _status_kib("VmRSS")
    yield
    grown = _status_kib("VmHWM") - before
    if grown >= kib:
        pytest.fail(f"it took {grown:,} KiB at its peak, and may take {kib:,}")
