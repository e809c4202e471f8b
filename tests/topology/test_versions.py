"""Everyone's newest version: averaged, told apart, and begun with by those that have died."""

from __future__ import annotations

import itertools
import mmap
import types
from functools import partial

import pytest
import torch

from gossamer.links.mailboxes import Mailboxes
from gossamer.roles.mixer import message_sizes
from gossamer.run.placements.shared_memory import PolicyBoards


class Interleaved(Mailboxes):
    """Mailboxes whose next read is followed at once by what another thread might do just then."""

    def __init__(self, *args):
        super().__init__(*args)
        self.meanwhile = None

    def read(self, rank, updates, into):
        update = super().read(rank, updates, into)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return update


def make(num_learners, like, run_policy="average"):
    sizes = message_sizes(like)
    memory = mmap.mmap(-1, Mailboxes.nbytes(num_learners, sizes))
    boxes = Interleaved(memory, num_learners, sizes)
    return PolicyBoards(boxes, like, run_policy), boxes


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_the_average_of_some_or_all(device):
    like = [torch.zeros(2, 3), torch.zeros(4)]
    versions, _ = make(3, like)
    for rank in range(3):
        values = [torch.full_like(x, float(rank), device=device) for x in like]
        versions.post(rank, values, 10 + rank, updates=5, env_steps=7)
    into = [torch.empty_like(x, device=device) for x in like]
    assert versions.average(into).version == 10
    assert all(torch.equal(x, torch.full_like(x, 1.0)) for x in into)
    assert versions.average(into, [1, 2]).version == 11
    assert all(torch.equal(x, torch.full_like(x, 1.5)) for x in into)
    assert versions.average(into, [2]).version == 12
    assert all(torch.equal(x, torch.full_like(x, 2.0)) for x in into)
    apart = versions.disagreement()
    assert sum(apart.values()) / len(apart) == pytest.approx(2.0 / 3.0)


def test_an_average_is_as_old_as_its_oldest_version_and_behind_all_env_steps():
    """Each learner counts those of all as far as it has heard of them, the first one to publish the fewest."""
    versions, _ = make(3, [torch.zeros(3)])
    for rank, (updates, env_steps) in enumerate(((20, 700), (10, 900), (10, 800))):
        versions.post(rank, [torch.zeros(3)], 5, updates=updates, env_steps=env_steps)
    assert versions.average([torch.zeros(3)]) == (5, (10, 900))


def test_readers_in_different_threads_do_not_get_in_each_others_way():
    """The evaluator reads a policy while the supervisor asks how far all of them are apart, or reads one."""
    like = [torch.zeros(3), torch.zeros(2, dtype=torch.float64)]  # parameters and moments
    versions, boxes = make(3, like)
    for rank in range(3):
        values = [torch.full_like(x, float(rank)) for x in like]
        versions.post(rank, values, 10, updates=5, env_steps=7)
    into, others = ([torch.empty_like(x) for x in like] for _ in range(2))
    for meanwhile in (versions.disagreement, partial(versions.average, others, [2])):
        boxes.meanwhile = meanwhile
        versions.average(into, [1])
        assert boxes.meanwhile is None
        assert all(torch.equal(x, torch.full_like(x, 1.0)) for x in into)
        boxes.meanwhile = meanwhile
        versions.average(into, [0, 1])
        assert all(torch.equal(x, torch.full_like(x, 0.5)) for x in into)
    boxes.meanwhile = partial(versions.average, others, [0])
    apart = versions.disagreement()
    assert sum(apart.values()) / len(apart) == pytest.approx(2.0 / 3.0)


@pytest.mark.parametrize("run_policy", ["average", "first", "best"])
def test_what_is_behind_a_version_is_told_of_that_version(run_policy):
    like = [torch.zeros(3), torch.zeros(2, dtype=torch.float64)]
    versions, boxes = make(2, like, run_policy)
    posted = itertools.count()

    def post():
        number = next(posted)
        for rank in range(2):
            version = number + (rank == 1)  # learner 0 is the last
            values = [torch.full_like(x, float(version)) for x in like]
            versions.post(rank, values, version, updates=10 * version, env_steps=100 * version)

    post()
    into = [torch.empty_like(x) for x in like]
    for _ in range(6):
        boxes.meanwhile = post
        source = versions.read_next(into)
        newest = 2 * into[0][0] - source.version  # of the average, or the only one
        assert source.at == (10 * source.version, 100 * newest)
    each = versions.newest(1)
    learner = types.SimpleNamespace(updates_per_version=10, update=10 * each - 20)
    assert versions.version_at(learner, [0, 1]) == each - 2
