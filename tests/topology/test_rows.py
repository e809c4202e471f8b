"""Rows of mixing weights: averages always, links dropped at both ends, what may be how late."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.topology.allreduce import AllReduce
from gossamer.topology.base import FOREVER, blend
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip
from gossamer.topology.single import Single


def matrix_at(topology, update, size, seed):
    matrix = np.zeros((size, size))
    for rank in range(size):
        for peer, weight in topology.row(update, rank, size, seed).items():
            matrix[rank, peer] = weight
    return matrix


TOPOLOGIES = [
    Single(), AllReduce(), Gossip(), Gossip(graph="rotating", num_peers=2),
    Gossip(graph="exponential"), Diffusion(), Diffusion(adjacency="star", weights="uniform"),
    Diffusion(adjacency="grid", link_drop=0.4),
]  # fmt: skip


@given(
    topology=st.sampled_from(TOPOLOGIES), size=st.integers(3, 20), update=st.integers(0, 1000),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_rows_sum_to_one_and_readers_are_those_who_hear(topology, size, update, seed):
    matrix = matrix_at(topology, update, size, seed)
    np.testing.assert_allclose(matrix.sum(1), 1.0, atol=1e-12)
    assert (matrix >= 0).all()
    for rank in range(size):
        hear = {int(i) for i in np.flatnonzero(matrix[:, rank]) if i != rank}
        readers = topology.readers(update, rank, size, seed)
        # a dropped link is still one that is waited for
        assert hear == set(readers) or (getattr(topology, "link_drop", 0) and hear < set(readers))


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
@pytest.mark.parametrize("staleness", [0, 4])
def test_links_drop_at_both_ends_as_often_as_asked(weights, staleness):
    topology = Diffusion(
        adjacency="complete", link_drop=0.3, weights=weights, max_staleness=staleness
    )
    size, updates = 6, 400
    whole = matrix_at(Diffusion(adjacency="complete", weights=weights), 0, size, 0)
    up = np.zeros((updates, size, size))
    for update in range(updates):
        matrix = matrix_at(topology, update, size, seed=7)
        up[update] = matrix != 0
        assert (up[update] == up[update].T).all()
        off = ~np.eye(size, dtype=bool)
        np.testing.assert_allclose(matrix[off], (whole * up[update])[off])
        np.testing.assert_allclose(matrix.sum(1), 1.0, atol=1e-12)
        if weights == "metropolis":
            np.testing.assert_allclose(matrix.sum(0), 1.0, atol=1e-12)
    rate = 1.0 - up[:, ~np.eye(size, dtype=bool)].mean()
    assert rate == pytest.approx(0.3, abs=0.05)
    changes = (np.diff(up, axis=0) != 0).any((1, 2))
    if staleness == 4:
        assert not changes[[i for i in range(updates - 1) if (i + 1) % 4]].any()
    else:
        assert changes.mean() > 0.9
    other = np.stack([matrix_at(topology, update, size, seed=8) != 0 for update in range(50)])
    assert (other != up[:50]).any()


def test_what_may_be_mixed_how_late():
    assert Gossip(max_staleness=0).acceptable(5) == range(5, 6)
    assert Gossip(max_staleness=3).acceptable(5) == range(2, FOREVER)
    assert Gossip(max_staleness=3).acceptable(1) == range(FOREVER)
    assert Gossip().acceptable(5) == range(-1, FOREVER)
    assert AllReduce().acceptable(2) == range(2, 3)
    assert Single().acceptable(0).start == -1


def vectors(*numbers):
    return [torch.tensor([x]) for x in numbers]


def test_blend_gives_the_weight_of_a_missing_message_back():
    heard = {0: vectors(1.0), 1: None, 2: vectors(7.0)}
    mixed = vectors(99.0)
    blend({2: 0.25, 0: 0.5, 1: 0.25}, 0, heard.__getitem__, mixed)
    assert mixed[0].item() == 0.75 + 0.25 * 7.0
    blend({0: 0.5, 1: 0.5}, 0, heard.__getitem__, mixed)
    assert mixed[0].item() == 1.0


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=9))
def test_equal_weights_give_everyone_equal_bits(numbers):
    size = len(numbers)
    messages = [vectors(x) for x in numbers]
    row = AllReduce().row(0, 0, size, 0)
    seen = []
    for rank in range(size):
        mixed = vectors(0.0)
        blend(AllReduce().row(0, rank, size, 0), rank, messages.__getitem__, mixed)
        seen.append(mixed[0].item())
    assert len(set(seen)) == 1
    assert seen[0] == pytest.approx(sum(x * row[0] for x in numbers), abs=1e-3)
