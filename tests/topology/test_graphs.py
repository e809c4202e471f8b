"""Graphs and weights: known contractions, kept averages, and what is refused."""

from __future__ import annotations

import cmath
import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.errors import ConfigError
from gossamer.topology import graphs
from gossamer.topology.allreduce import AllReduce
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip
from gossamer.topology.single import Single


def matrix_of(weights):
    matrix = np.zeros((len(weights), len(weights)))
    for i, row in enumerate(weights):
        for j, weight in row.items():
            matrix[i, j] = weight
    return matrix


def circulant_contraction(size, distances):
    """Second-largest |eigenvalue| of equal weights on a circulant graph, from its Fourier transform."""
    share = 1.0 / (len(distances) + 1)
    moduli = [
        abs(sum(share * cmath.exp(2j * math.pi * k * d / size) for d in (0, *distances)))
        for k in range(1, size)
    ]
    return max(moduli, default=0.0)


@pytest.mark.parametrize(
    ("topology", "size", "published"),
    [
        (Gossip(), 4, 0.707),
        (Gossip(), 8, 0.924),
        (Gossip(), 16, 0.981),
        (Gossip(graph="exponential"), 4, 0.333),
        (Gossip(graph="exponential"), 8, 0.5),
        (Gossip(graph="exponential"), 16, 0.6),
        (Gossip(graph="complete"), 8, 0.0),
        (AllReduce(), 8, 0.0),
        (Gossip(num_peers=2), 8, 0.805),
        (Gossip(num_peers=3), 16, 0.906),
        # one peer at a time, after log2(L) rounds everyone has everything
        (Gossip(graph="rotating"), 8, 0.0),
        (Single(), 4, 1.0),
    ],
)
def test_contraction_is_the_published_one(topology, size, published):
    assert graphs.contraction(topology.turns(size, 0)) == pytest.approx(published, abs=6e-4)


def test_contraction_of_matrices_in_turn_is_that_of_a_round():
    """Of six learners each hears the one 1, 2 and 4 places before it in turn."""
    turns = Gossip(graph="rotating").turns(6, 0)
    assert len(turns) == 3
    left = max(
        math.prod(abs(1.0 + cmath.exp(2j * math.pi * k * d / 6)) / 2.0 for d in (1, 2, 4))
        for k in range(1, 6)
    )
    assert graphs.contraction(turns) == pytest.approx(left ** (1 / 3))


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
def test_contraction_of_links_that_drop_is_that_of_the_mean_matrix(weights):
    topology = Diffusion(adjacency="star", link_drop=0.3, weights=weights)
    mean = np.zeros((5, 5))
    for update in range(4000):
        for rank in range(5):
            for peer, weight in topology.row(update, rank, 5, 0).items():
                mean[rank, peer] += weight / 4000
    moduli = np.sort(np.abs(np.linalg.eigvals(mean)))
    (every,) = topology.turns(5, 0)
    found = graphs.contraction((graphs.expected(every, 0.3),))
    assert found == pytest.approx(moduli[-2], abs=0.01)
    assert graphs.expected(every, 0.0) == every


@given(size=st.integers(2, 40), peers=st.integers(1, 39))
def test_circulant_graphs_contract_as_their_fourier_transform_says(size, peers):
    peers = min(peers, size - 1)
    weights = Gossip(num_peers=peers).turns(size, 0)
    expected = circulant_contraction(size, range(1, peers + 1))
    assert graphs.contraction(weights) == pytest.approx(expected, abs=1e-6)


def test_learners_hear_those_before_them():
    (ring,) = graphs.directed("ring", 5, 0)
    assert ring == ((4,), (0,), (1,), (2,), (3,))
    (exponential,) = graphs.directed("exponential", 6, 0)
    assert exponential[0] == (2, 4, 5)
    assert graphs.directed("exponential", 6, 2)[0][0] == (4, 5)
    rotating = graphs.directed("rotating", 8, 0)
    assert [graph[0] for graph in rotating] == [(7,), (6,), (4,)]
    assert [graph[0] for graph in graphs.directed("rotating", 8, 2)] == [(6, 7), (4, 7), (4, 6)]
    assert graphs.directed("complete", 3, 2) == (((1, 2), (0, 2), (0, 1)),)
    assert graphs.directed("ring", 1, 0) == (((),),)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(graphs.UNDIRECTED), size=st.integers(1, 30), degree=st.integers(2, 6),
    seed=st.integers(0, 5),
)  # fmt: skip
def test_named_graphs_are_symmetric_connected_and_keep_the_average(name, size, degree, seed):
    if name == "random-regular" and size > 1:
        exists = degree < size and size * degree % 2 == 0 and (degree > 1 or size == 2)
        assume(exists)
    if name == "erdos-renyi":
        try:
            graphs.undirected(name, size, degree, seed)
        except ConfigError:
            assume(False)  # too few links to be connected; see below
    graph = graphs.undirected(name, size, degree, seed)
    assert len(graph) == size
    assert all(i in graph[j] and i != j for i, peers in enumerate(graph) for j in peers)
    assert graphs.connected(graph)
    if name == "random-regular" and size > 1:
        assert {len(peers) for peers in graph} == {degree}
    for weights in (graphs.metropolis(graph), graphs.uniform(graph)):
        matrix = matrix_of(weights)
        assert (matrix >= -1e-12).all()
        np.testing.assert_allclose(matrix.sum(1), 1.0, atol=1e-12)
    matrix = matrix_of(graphs.metropolis(graph))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
    theta = np.random.default_rng(seed).normal(size=(size, 7))
    np.testing.assert_allclose((matrix @ theta).mean(0), theta.mean(0), atol=1e-6)


def test_large_random_graphs_are_drawn_in_no_time():
    graph = graphs.undirected("random-regular", 1024, 3, 0)
    assert {len(peers) for peers in graph} == {3}
    assert graphs.connected(graph)
    # of the links that it was swapped from hardly one is left
    assert sum(abs(r - x) in (1, 512, 1023) for r in range(1024) for x in graph[r]) < 100


def test_random_graphs_differ_by_seed_and_only_by_it():
    drawn = [graphs.undirected("random-regular", 12, 3, seed) for seed in range(5)]
    assert len(set(drawn)) > 1
    graphs.undirected.cache_clear()
    assert drawn == [graphs.undirected("random-regular", 12, 3, seed) for seed in range(5)]


def test_shapes_of_the_named_ones():
    assert graphs.undirected("ring", 2, 0, 0) == ((1,), (0,))
    assert graphs.undirected("star", 4, 0, 0) == ((1, 2, 3), (0,), (0,), (0,))
    grid = graphs.undirected("grid", 6, 0, 0)  # 2 wide, 3 high
    assert grid == ((1, 2), (0, 3), (0, 3, 4), (1, 2, 5), (2, 5), (3, 4))
    assert graphs.undirected("grid", 5, 0, 0) == ((1,), (0, 2), (1, 3), (2, 4), (3,))


RING = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


@pytest.mark.parametrize("form", ["literal", "json", "text"])
def test_an_adjacency_may_be_written_out_or_in_a_file(form, tmp_path):
    path = tmp_path / "ring"
    if form == "literal":
        given = json.dumps(RING)
    elif form == "json":
        path.write_text(json.dumps(RING))
        given = str(path)
    else:
        path.write_text("\n".join(" ".join(map(str, row)) for row in RING))
        given = str(path)
    assert graphs.undirected(given, 4, 0, 0) == graphs.undirected("ring", 4, 0, 0)
    # what a run keeps: a matrix, whatever becomes of the file
    for topology in (Diffusion(adjacency=given, weights="uniform"), Gossip(graph=given)):
        kept = topology.written_out()
        path.write_text("gone")
        graphs.undirected.cache_clear()
        graphs.given_weights.cache_clear()
        assert kept.turns(4, 0) == Diffusion(weights="uniform").turns(4, 0)
        assert kept.written_out() == kept
        path.write_text(json.dumps(RING))


@pytest.mark.parametrize(
    ("adjacency", "size", "says"),
    [
        ("[[0,1],[1,0,1]]", 2, "row 1 has 3 entries, but there are 2 rows; it must be square"),
        ("[[0,1],[1,0]]", 3, "--num-learners 2, or a matrix of 3 rows"),
        ("[[0,1,0],[0,0,1],[0,1,0]]", 3, "row 0 says 1 for learner 1, row 1 says 0"),
        ("[[1,1],[1,0]]", 2, "row 0 links learner 0 to itself"),
        ("[[0,2],[2,0]]", 2, "row 0 holds 2; links are 0 or 1"),
        ("[[0,1,0,0],[1,0,0,0],[0,0,0,1],[0,0,1,0]]", 4, "no path joins learners 0 and 2"),
        ("rung", 4, "is 'rung'; it must be one of ring, grid"),
        (
            "rings",
            4,
            "as JSON or as rows of numbers with blanks or commas between; did you mean ring?",
        ),
        ("[[0,1],[1,0]", 2, "is not a matrix"),
        ("[[0,true],[true,0]]", 2, "is not a matrix"),
        ("[0,1]", 2, "is not a matrix"),
        ("[[0,NaN],[1,0]]", 2, "row 0, entry 1 (both counted from 0) is nan; it must be 0 or 1"),
        ("[[0,1],[1,-Infinity]]", 2, "row 1, entry 1 (both counted from 0) is -inf"),
        (f"[[0,1{'0' * 400}],[1,0]]", 2, "is not a matrix"),
        ("[]", 2, "has no rows"),
    ],
)
def test_an_adjacency_that_is_no_graph_of_the_learners_is_refused(adjacency, size, says):
    with pytest.raises(ConfigError) as caught:
        Diffusion(adjacency=adjacency).turns(size, 0)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("topology", "size", "says"),
    [
        (Gossip(num_peers=4), 4, "has at most 3 peers: --topology.num-peers 3"),
        (Gossip(graph="exponential", num_peers=3), 4, "at most 2"),
        (Gossip(graph="[[0,1],[1,0],[0,0]]"), 2, "row 0 has 2 entries, but there are 3 rows"),
        (Gossip(graph="[[0,1,0],[1,0,0],[1,0,0]]"), 3, "a path must lead from every learner"),
        (Gossip(graph="[[0,1,1],[0,0,1],[0,1,0]]"), 3, "a path must lead from every learner"),
        (Gossip(graph="[[0.5,0.4],[0.5,0.5]]"), 2, "row 0 sums to 0.9"),
        (Gossip(graph="[[1.5,-0.5],[0,1]]"), 2, "is -0.5; it must be 0 or 1, or a weight >= 0"),
        (Gossip(graph="chain"), 2, "must be one of ring, exponential"),
        (Diffusion(adjacency="random-regular", degree=3), 5, "2 <= degree < learners"),
        (Diffusion(adjacency="random-regular", degree=3), 2, "--topology.degree 1"),
        (Diffusion(adjacency="random-regular", degree=1), 4, "--topology.degree 2"),
        (Diffusion(adjacency="erdos-renyi", degree=1), 25, "were all disconnected"),
        (Diffusion(link_drop=0.5, max_staleness="never"), 4, "max-staleness 0, or any number"),
        (Gossip(graph="complete", num_peers=2), 4, "hears all 3 others"),
        (Gossip(graph="[[0,1],[1,0]]", num_peers=1), 2, "leave num_peers out"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(topology, size, says):
    with pytest.raises(ConfigError) as caught:
        topology.turns(size, 0)
    assert says in str(caught.value)


def test_a_given_matrix_may_hold_links_or_weights():
    (links,) = Gossip(graph="[[0,1,0],[0,0,1],[1,0,0]]").turns(3, 0)
    np.testing.assert_allclose(matrix_of(links), [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    (weights,) = Gossip(graph="[[0.9,0.1],[0.2,0.8]]").turns(2, 0)
    np.testing.assert_allclose(matrix_of(weights), [[0.9, 0.1], [0.2, 0.8]])
