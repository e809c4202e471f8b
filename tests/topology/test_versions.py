"""Everyone's newest version: averaged, and begun with by those that have died."""

from __future__ import annotations

import mmap

import pytest
import torch

from gossamer.group import Versions
from gossamer.mailboxes import Mailboxes


def make(num_learners, like, mixes="parameters"):
    sizes = (sum(x.numel() for x in like), 0)
    boxes = Mailboxes(mmap.mmap(-1, Mailboxes.nbytes(num_learners, sizes)), num_learners, sizes)
    return Versions(boxes, like, mixes)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_the_average_of_some_or_all(device):
    like = [torch.zeros(2, 3), torch.zeros(4)]
    versions = make(3, like)
    for rank in range(3):
        values = [torch.full_like(x, float(rank), device=device) for x in like]
        versions.post(rank, values, 10 + rank, updates=5, env_steps=7)
    into = [torch.empty_like(x, device=device) for x in like]
    assert versions.average(into) == 10
    assert all(torch.equal(x, torch.full_like(x, 1.0)) for x in into)
    assert versions.average(into, [1, 2]) == 11
    assert all(torch.equal(x, torch.full_like(x, 1.5)) for x in into)
    assert versions.copy(2, into) == 12
    assert all(torch.equal(x, torch.full_like(x, 2.0)) for x in into)
    assert versions.disagreement() == pytest.approx(2.0 / 3.0)
