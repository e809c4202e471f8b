"""Learners of a random graph have as many links as was asked for, on average."""

from __future__ import annotations

import pytest

from gossamer.topology import graphs


@pytest.mark.parametrize("degree", [8, 20])
def test_an_erdos_renyi_graph_has_its_degree_on_average(degree):
    drawn = [graphs.undirected("erdos-renyi", 200, degree, seed) for seed in range(5)]
    mean = sum(len(peers) for graph in drawn for peers in graph) / (5 * 200)
    assert mean == pytest.approx(degree, rel=0.08)
