"""Entries of trajectories that hold several arrays of observations: stored, packed and read back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core_fakes import spec_of
from random_envs import RandomEnvs

from gossamer.replay.layout import Layout
from gossamer.replay.ring import DeviceRing, Ring, make_block
from gossamer.spec import Leaf, leaves_of
from gossamer.types import Trajectory, empty_trajectory, fields_of

LEAVES = (
    Leaf("front", "pixels", (6, 12, 10), frame_stack=2, stack_padding="zero"),
    Leaf("back/left", "pixels", (3, 9, 7)),
    Leaf("few", "discrete", (2,), (4, 256)),
    Leaf("many", "discrete", (1,), (257,)),
    Leaf("speed", "vector", (5,)),
)
SPEC = replace(spec_of(), leaves=LEAVES)
T, B = 4, 3


def played(seed: int) -> Trajectory:
    """A trajectory whose stacks move by a frame a row, and begin with zeros."""
    slot = empty_trajectory(SPEC, unroll_length=T, num_columns=B, core_units=2)
    envs = RandomEnvs(SPEC, B, seed=seed)
    slot.starts.bernoulli_(0.3)
    for row in range(T + 1):
        for name, x in leaves_of(envs.obs()).items():
            slot.tensor(f"obs/{name}")[row] = torch.from_numpy(x)
        if row:
            front, begins = slot.tensor("obs/front"), slot.starts[row]
            front[row, :, :3] = torch.where(begins[:, None, None, None], 0, front[row - 1, :, 3:])
    slot.action.random_(0, 2)
    slot.reward.normal_()
    return slot


@pytest.mark.parametrize("on_device", [False, True])
def test_what_is_read_is_what_was_written(on_device: bool) -> None:
    layout = Layout(SPEC, T, core_units=2)
    ring = (
        DeviceRing(layout, 8, torch.device("cpu"))
        if on_device
        else Ring(layout, 8, make_block(layout.nbytes(8)))
    )
    first, second = played(1), played(2)
    ring.write([5, 0, 2], first)
    ring.write([1, 7, 3], second)
    for places, source in (([5, 0, 2], first), ([1, 7, 3], second)):
        into = empty_trajectory(SPEC, unroll_length=T, num_columns=B, core_units=2)
        ring.read(places, into)
        assert [x[0] for x in into.each()] == list(fields_of(SPEC))
        for name, x, _ in source.each():
            assert torch.equal(into.tensor(name), x), name


def test_few_values_take_a_byte_and_images_a_frame_a_row() -> None:
    fields = Layout(SPEC, T).fields
    assert fields["obs/few"] == ((T + 1, 2), torch.uint8)
    assert fields["obs/many"] == ((T + 1, 1), torch.int64)
    assert fields["obs/front"] == ((T + 2, 12, 10, 3), torch.uint8)
    assert fields["obs/back/left"] == ((T + 1, 9, 7, 3), torch.uint8)
    assert fields["obs/speed"] == ((T + 1, 5), torch.float32)


def test_columns_taken_and_moved_keep_every_leaf() -> None:
    slot = played(3)
    slot.check(SPEC)
    part = slot.columns(1, 3)
    taken = slot.take(torch.tensor([1, 2]))
    for name, x, dim in slot.each():
        assert part.tensor(name).data_ptr() == x.narrow(dim, 1, 2).data_ptr(), "a view"
        assert torch.equal(taken.tensor(name), part.tensor(name)), name
    other = slot.with_fields({"obs/speed": slot.tensor("obs/speed") + 1.0})
    assert other.tensor("obs/front") is slot.tensor("obs/front")
    assert not torch.equal(other.tensor("obs/speed"), slot.tensor("obs/speed"))
    with pytest.raises(ValueError, match="obs/few is missing"):
        replace(slot, obs={k: x for k, x in leaves_of(slot.obs).items() if k != "few"}).check(SPEC)
    with pytest.raises(ValueError, match="obs/more is no leaf"):
        replace(slot, obs={**leaves_of(slot.obs), "more": slot.reward}).check(SPEC)
    slot.tensor("obs/speed")[0, 1, 2] = torch.inf
    assert slot.finite().tolist() == [True, False, True]
