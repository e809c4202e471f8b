"""What tests of runs share: supervisors with hosts that a test has written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_placement import FakePlacement, Supervised


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def supervise(placement: FakePlacement, **settings: Any) -> Supervised:
        made.append(Supervised(tmp_path, placement, **settings))
        return made[-1]

    yield supervise
    for run in made:
        run.close()
