"""The limit that `gossamer bench` compares training with: what perfect overlap would come to."""

from __future__ import annotations

import pytest

from gossamer.tools.bench import limit_of


def test_on_a_cpu_all_three_share_the_cores() -> None:
    """A step takes 1/4000 + 1/4000 + 1/2000 s of all cores together."""
    rates = {"stepping": 4000.0, "inference": 4000.0, "learning": 2000.0}
    assert limit_of(rates, on_gpu=False) == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("stepping", "wanted"), [(500.0, 500.0), (5_000.0, 1_500.0)], ids=["cores", "GPU"]
)
def test_beside_a_gpu_the_slower_of_the_two_is_the_limit(stepping: float, wanted: float) -> None:
    """The GPU does inference and learning in turn, 1/6000 + 1/2000 s a step, while the cores step."""
    rates = {"stepping": stepping, "inference": 6000.0, "learning": 2000.0}
    assert limit_of(rates, on_gpu=True) == pytest.approx(wanted)
