"""Snapshots are copies, of any layout, outside the heap."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import torch

from gossamer.run import snapshot

if TYPE_CHECKING:
    import pytest


def test_copies_keep_values_kinds_and_layouts_and_share_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapped: list[int] = []

    def spy(handle: int, size: int, flags: int) -> Any:
        mapped.append(size)
        return mmap_of(handle, size, flags)

    mmap_of = mmap.mmap
    monkeypatch.setattr(snapshot.mmap, "mmap", spy)
    frames = torch.randint(0, 255, (3, 5, 6, 7, 4), dtype=torch.uint8)
    tensors = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "none": torch.zeros(0, 4),
        "pixels": frames.permute(0, 1, 4, 2, 3),
        "weights": torch.randn(8, 4, 3, 3).contiguous(memory_format=torch.channels_last),
        "column": torch.randn(4, 9)[:, 2],
        "wide": torch.randn(4, 1).expand(4, 3),
        "flags": torch.tensor([True, False, True]),
        "rounded": torch.randn(5).bfloat16(),
    }
    before = {name: x.clone() for name, x in tensors.items()}
    copies = snapshot.copy_outside_heap(tensors)
    assert mapped == [-(-mapped[0] // 64) * 64], "one block"
    assert mapped[0] < 64 * len(tensors) + sum(x.nbytes for x in tensors.values())
    for name, x in tensors.items():
        if x.numel() and name != "wide":
            x.zero_()
        assert copies[name].dtype == x.dtype
        assert torch.equal(copies[name], before[name]), name
        assert copies[name].stride() == before[name].stride()
    assert len({x.data_ptr() for x in copies.values() if x.numel()}) == len(tensors) - 1
    assert snapshot.copy_outside_heap({}) == {}
