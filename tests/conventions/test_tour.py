"""docs/tour.md names ten files in reading order; they exist, and reading them takes an hour."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = [
    "types.py",
    "ops/returns.py",
    "algorithms/base.py",
    "algorithms/vtrace.py",
    "topology/base.py",
    "replay/batches.py",
    "roles/actor.py",
    "roles/learner.py",
    "run/placements/loop_inline.py",
    "build/roles.py",
]
MAX_LINES = 3_200


def test_tour_names_the_ten_files_in_order() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    assert re.findall(r"^## \d+\. `([^`]+)`$", text, flags=re.MULTILINE) == TOUR


def test_each_stop_says_something_of_its_own() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    stops = re.split(r"^## \d+\. ", text, flags=re.MULTILINE)[1:]
    assert all(len(stop.split()) > 40 for stop in stops)


def test_names_in_the_tour_exist() -> None:
    """Every `name` in a stop that looks like code of ours appears in that file."""
    text = (ROOT / "docs" / "tour.md").read_text()
    for stop in re.split(r"^## \d+\. ", text, flags=re.MULTILINE)[1:]:
        path, *names = re.findall(r"`([^`]+)`", stop)
        source = (ROOT / "src" / "gossamer" / path).read_text()
        for name in names:
            if re.fullmatch(r"[A-Za-z_]\w+(\(\))?", name):
                assert re.search(rf"\b{name.removesuffix('()')}\b", source), f"{path} has no {name}"


def test_the_core_path_is_short() -> None:
    lengths = {
        path: len((ROOT / "src" / "gossamer" / path).read_text().splitlines()) for path in TOUR
    }
    assert sum(lengths.values()) <= MAX_LINES, lengths
