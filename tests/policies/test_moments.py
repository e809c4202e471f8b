"""Running moments equal numpy over all the data, whoever saw which part of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.policies.moments import Moments


def chunks_of(sizes, seed, *, pixels=False):
    rng = np.random.default_rng(seed)
    if pixels:
        return [rng.integers(0, 256, (n, 2, 3), dtype=np.uint8) for n in sizes]
    return [rng.normal(100.0, 3.0, (n, 2, 3)).astype(np.float32) for n in sizes]


def moments_of(chunks, shift):
    moments = Moments((2, 3), shift=shift)
    for chunk in chunks:
        moments.update(torch.from_numpy(chunk.copy()))
    return moments


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda x: sum(x) > 0),
    seed=st.integers(0, 10**6),
    pixels=st.booleans(),
    shift=st.sampled_from([0.0, 128.0]),
)
def test_moments_of_parts_are_numpys_over_the_whole(sizes, seed, pixels, shift):
    chunks = chunks_of(sizes, seed, pixels=pixels)
    moments = moments_of(chunks, shift)
    everything = np.concatenate(chunks).astype(np.float64)
    mean, std = moments.mean_std(0.5)
    assert moments.count == len(everything)
    np.testing.assert_allclose(mean.numpy(), everything.mean(0), rtol=1e-10)
    np.testing.assert_allclose(std.numpy(), np.maximum(everything.std(0), 0.5), rtol=1e-6)


@pytest.mark.parametrize("n", [1000, 1001])
def test_bytes_are_summed_exactly(n):
    (chunk,) = chunks_of([n], 0, pixels=True)
    chunk[:, 0] = 255
    moments = moments_of([chunk], 128.0)
    exact = (chunk.astype(np.int64) - 128) ** 2
    np.testing.assert_allclose(moments.squares.numpy(), exact.sum(0), rtol=1e-15)


@pytest.mark.parametrize("sizes", [(40, 40), (40, 7), (40, 0)])
def test_averaging_two_learners_gives_their_joint_moments(sizes):
    one, two = chunks_of(sizes, 1)
    two += 50.0
    left, right, joint = (moments_of(x, 0.0) for x in ([one], [two], [one, two]))
    for a, b in zip(left.tensors(), right.tensors(), strict=True):
        a.mul_(0.5).add_(b, alpha=0.5)
    for ours, theirs in zip(left.mean_std(1e-6), joint.mean_std(1e-6), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_input_is_left_as_it_was():
    x = torch.randn(5, 2, 3)
    kept = x.clone()
    Moments((2, 3), shift=1.0).update(x)
    assert torch.equal(x, kept)


def test_nothing_seen_is_mean_0_and_deviation_1():
    moments = Moments((2,), shift=128.0)
    moments.update(torch.zeros(0, 2))
    mean, std = moments.mean_std(5.0)
    assert mean.tolist() == [0.0, 0.0]
    assert std.tolist() == [1.0, 1.0]


def test_old_rows_fade_behind_a_maximal_count():
    moments = Moments((), max_count=100.0)
    for _ in range(50):
        moments.update_sums(10.0, 10.0, 10.0)
    for _ in range(200):
        moments.update_sums(50.0, 250.0, 10.0)
    assert moments.mean_std(1.0)[0].item() == pytest.approx(5.0, abs=1e-6)
    assert moments.count.item() <= 110.0


def test_numbers_that_never_change_have_the_smallest_deviation():
    """Their variance may round to less than 0."""
    constants = torch.linspace(0.1, 9.7, 50)
    moments = Moments((50,))
    for _ in range(3):
        moments.update(constants.expand(333, 50))
    mean, std = moments.mean_std(1e-4)
    torch.testing.assert_close(mean, constants.double())
    assert std.tolist() == [1e-4] * 50
