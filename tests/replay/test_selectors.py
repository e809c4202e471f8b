"""What is picked: property tests of the four strategies, the distances, and the annealed multiplier."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.replay.distances import choose, distances, draw
from gossamer.replay.selectors.elite import EliteSettings

STRATEGIES = ["nearest", "stratified", "least_used", "stratified_least_used"]
candidates = st.integers(1, 40).flatmap(
    lambda m: st.tuples(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0]), min_size=m, max_size=m),
        st.lists(st.integers(0, 3), min_size=m, max_size=m),
    )
)


def slow_choice(distance, uses, wanted, strategy):
    """Written from the words of the definition, one at a time."""
    left = sorted(range(len(distance)), key=lambda i: (distance[i], i))
    wanted = min(wanted, len(left))
    if strategy == "nearest":
        return left[:wanted]
    if strategy == "least_used":
        chosen = []
        count = 0
        while len(chosen) < wanted:
            chosen += [i for i in left if uses[i] == count]
            count += 1
        return chosen[:wanted]
    # As numpy.array_split: the first few segments are one longer.
    short, longer = divmod(len(left), wanted)
    chosen = []
    for segment in range(wanted):
        part, left = left[: short + (segment < longer)], left[short + (segment < longer) :]
        if strategy == "stratified_least_used":
            fewest = min(uses[i] for i in part)
            part = [i for i in part if uses[i] == fewest]
        chosen.append(part[0])
    return chosen


@given(candidates, st.integers(1, 50), st.sampled_from(STRATEGIES))
def test_choices_are_those_of_the_definition(found, wanted, strategy):
    distance, uses = np.array(found[0]), np.array(found[1])
    chosen = choose(distance, uses, wanted, strategy)
    assert len(set(chosen.tolist())) == len(chosen) == min(wanted, len(distance))
    assert chosen.tolist() == slow_choice(*found, wanted, strategy)


@given(
    held=st.integers(1, 60),
    wanted=st.integers(1, 80),
    multiplier=st.floats(1.0, 8.0),
    seed=st.integers(0, 99),
)
def test_candidates_are_different_and_never_run_out(held, wanted, multiplier, seed):
    rng = np.random.default_rng(seed)
    places = draw(rng, held, wanted, multiplier)
    assert len(set(places.tolist())) == len(places)
    assert len(places) == min(held, math.ceil(multiplier * wanted - 1e-9))
    assert ((places >= 0) & (places < held)).all()


def test_a_product_that_is_whole_but_for_rounding_is_whole():
    assert len(draw(np.random.default_rng(0), 100, 30, 1.1)) == 33


def test_the_multiplier_falls_linearly_to_one():
    falls = EliteSettings(candidate_multiplier=5.0, anneal_updates=8)
    at = [falls.multiplier(i) for i in range(12)]
    assert at[:9] == pytest.approx([5.0, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0])
    assert at[8:] == [1.0] * 4
    assert EliteSettings(candidate_multiplier=5.0, anneal_updates=0).multiplier(0) == 1.0


def slow_distance(now, then, kind, order):
    """One candidate [T, F] at a time, number by number."""
    if kind == "lp":
        return sum(
            abs(a - b) ** order for a, b in zip(now.flatten(), then.flatten(), strict=True)
        ) ** (1 / order)
    if kind == "cosine":
        dot = sum(a * b for a, b in zip(now.flatten(), then.flatten(), strict=True))
        return 1 - dot / math.sqrt(
            sum(a * a for a in now.flatten()) * sum(b * b for b in then.flatten())
        )
    total = 0.0
    for a, b in zip(now, then, strict=True):
        p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
        total += sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return total


@pytest.mark.parametrize(
    ("kind", "order"), [("lp", 2.0), ("lp", 1.0), ("lp", 3.5), ("cosine", 2.0), ("kl", 2.0)]
)
def test_distances(kind, order):
    generator = torch.Generator().manual_seed(3)
    now, then = torch.randn(2, 6, 5, 4, generator=generator).half()
    found = distances(now.float(), then, kind, order)
    expected = [
        slow_distance(now[:, i].double().numpy(), then[:, i].double().numpy(), kind, order)
        for i in range(5)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("largest", [0.05, 3.0])
def test_a_high_order_measures_the_largest_difference(largest):
    """Its powers alone would be 0 below 1 and infinite above."""
    then = torch.zeros(6, 2, 4)
    now = then.clone()
    now[:, 0] = largest * torch.linspace(-1.0, 0.5, 24).view(6, 4)
    np.testing.assert_allclose(distances(now, then, "lp", 1000.0).numpy(), [largest, 0.0])


@pytest.mark.parametrize("kind", ["lp", "cosine", "kl"])
@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_the_same_features_have_distance_zero(kind, seed, scale):
    now = scale * torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(seed))
    assert (distances(now, now.half(), kind) == 0.0).all()
    assert (distances(now, now.flip(2).half(), kind) > 0.0).all()


@pytest.mark.parametrize("kind", ["lp", "cosine", "kl"])
def test_features_that_are_all_zero_have_no_distance_from_themselves(kind):
    """As those of a layer of ReLUs may be, whose angle nobody knows."""
    now = torch.zeros(7, 3, 16)
    assert distances(now, now.half(), kind).tolist() == [0.0] * 3


def test_one_state_against_every_row():
    """As attentive sampling compares: the newest state with all of a candidate's."""
    now = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1)).half()
    newest = now[-1:, :1]
    found = distances(now.float(), newest, "lp")
    expected = (now.double() - newest.double()).square().sum((0, 2)).sqrt()
    torch.testing.assert_close(found, expected)
