"""Tensors in a block of memory: apart, aligned, and of the memory order that they had."""

from __future__ import annotations

import mmap

import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.system.blocks import ALIGNMENT, Place, copy_into, lay_out, lay_out_like, view, views

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
wanted = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4)), max_size=6
)


@given(wanted)
def test_tensors_lie_apart_and_aligned(kinds):
    places, nbytes = lay_out((str(i), dtype, shape) for i, (dtype, shape) in enumerate(kinds))
    block = mmap.mmap(-1, max(nbytes, 1))
    made = views(block, places)
    assert [(x.dtype, list(x.shape)) for x in made.values()] == [(d, list(s)) for d, s in kinds]
    for i, x in enumerate(made.values()):
        x.fill_(i + 1)
    for i, (place, x) in enumerate(zip(places, made.values(), strict=True)):
        assert place.offset % ALIGNMENT == 0
        assert (x == torch.full((), i + 1).to(x.dtype)).all(), "nobody else wrote there"


def test_copies_keep_the_memory_order_of_images():
    image = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = {"image": image, "part": torch.arange(12).view(3, 4)[:, 1:3], "none": torch.empty(0)}
    places, nbytes = lay_out_like(tensors)
    for block in (mmap.mmap(-1, nbytes), torch.zeros(nbytes, dtype=torch.uint8)):
        copies = copy_into(block, places, tensors)
        for name, x in tensors.items():
            assert torch.equal(copies[name], x)
            assert copies[name].stride() == x.clone().stride()
        image.add_(1)
        assert not torch.equal(copies["image"], image), "a copy"
        again = view(block, Place(*list(places[0])))  # as another process is told of it
        assert torch.equal(again, copies["image"])
