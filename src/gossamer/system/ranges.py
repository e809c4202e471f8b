"""Numbers that settings may take, written at their fields: `discount: Fraction = 0.99`.

msgspec checks the bounds wherever a value comes from. Every number has an upper bound: none that somebody means is beyond
it, and some step would fail there.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MOST = 10**15

Whole = Annotated[int, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=1, le=MOST)]
Number = Annotated[float, Meta(ge=-MOST, le=MOST)]
Amount = Annotated[float, Meta(ge=0, le=MOST)]
Positive = Annotated[float, Meta(gt=0, le=MOST)]

Fraction = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
Share = Annotated[float, Meta(gt=0, le=1)]

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=10**9)]
Threads = Annotated[int, Meta(ge=0, le=1024)]
"""Threads or processes; 0 is auto, or none."""
Units = Annotated[int, Meta(ge=1, le=65536)]
"""Width of a layer."""
UpToMillion = Annotated[int, Meta(ge=0, le=10**6)]
CountToMillion = Annotated[int, Meta(ge=1, le=10**6)]
UpToBillion = Annotated[int, Meta(ge=0, le=10**9)]

Imported = Annotated[str, Meta(pattern=r"^[\w.]+:[\w.]+\Z")]
"""Names code of the user's, as module:NAME."""
