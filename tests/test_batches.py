"""Columns of a batch: views, copies, and how they are shared out among threads."""

from __future__ import annotations

import threading

import pytest
import torch
from core_fakes import random_batch, spec_of
from hypothesis import given
from hypothesis import strategies as st

from gossamer.ops.micro_batches import MicroBatches
from gossamer.types import Batch, empty_trajectory, kinds_of

KINDS = kinds_of(Batch)


def tensors(batch):
    return [(name, x) for name, x, _ in batch.each()]


@pytest.mark.parametrize("shape", [(4, 12, 10), (1, 12, 10), (3,)])
def test_taken_columns_are_those_that_indexing_gives_in_the_same_memory_order(shape):
    spec = spec_of(obs_shape=shape)
    slot = empty_trajectory(spec, unroll_length=3, num_columns=5, core_units=0)
    for i, (_, x) in enumerate(tensors(slot)):
        x.copy_((torch.arange(x.numel()).view(x.shape) * 7 + i) % 251)
    chosen = torch.tensor([4, 0, 2])
    taken = slot.take(chosen)
    for name, x in tensors(slot):
        expected = x[:, chosen] if KINDS[name].rows else x[chosen]
        assert torch.equal(getattr(taken, name), expected), name
    order = sorted(range(slot.obs.ndim), key=lambda i: -slot.obs.stride(i))
    assert taken.obs.permute(order).is_contiguous(), "images stay channels last"
    taken.reward.zero_()
    assert slot.reward.any(), "a copy"


def test_columns_are_views():
    batch = random_batch(spec_of(), 3, 5)
    part = batch.columns(1, 3)
    for name, x in tensors(batch):
        assert torch.equal(getattr(part, name), x[:, 1:3] if KINDS[name].rows else x[1:3]), name
    part.reward.fill_(9.0)
    assert (batch.reward[:, 1:3] == 9.0).all()


@given(
    columns=st.integers(1, 40),
    rows=st.integers(1, 200),
    num_threads=st.integers(1, 6),
)
def test_every_column_is_worked_on_once_in_even_parts(columns, rows, num_threads):
    batch = random_batch(spec_of(), 4, columns)
    micro_batches = MicroBatches(rows, num_threads)
    cuts = micro_batches.cut(batch)
    assert [i for start, stop in cuts for i in range(start, stop)] == list(range(columns))
    sizes = {stop - start for start, stop in cuts}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) * 5 <= max(rows, 5), "T + 1 rows a column"
    shares = micro_batches.share_out(batch, lambda thread, cuts: (thread, cuts))
    assert [thread for thread, _ in shares] == list(range(min(num_threads, len(cuts))))
    assert sorted(cut for _, share in shares for cut in share) == cuts
    micro_batches.close()


def test_threads_work_at_the_same_time():
    batch = random_batch(spec_of(), 4, 6)
    together = threading.Barrier(3, timeout=20)
    micro_batches = MicroBatches(5, num_threads=3)
    assert micro_batches.share_out(batch, lambda thread, cuts: together.wait() >= 0) == [True] * 3
    micro_batches.close()
