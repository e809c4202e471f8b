"""Processes that write a shared replay are killed in the midst of it; whoever reads gets whole columns only."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

HELPERS = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(HELPERS))

from core_fakes import spec_of  # noqa: E402
from replay_fakes import sample  # noqa: E402

from gossamer.links.mailboxes import make_memory  # noqa: E402
from gossamer.replay.layout import Layout  # noqa: E402
from gossamer.replay.replay import Replay  # noqa: E402
from gossamer.replay.ring import Ring  # noqa: E402
from gossamer.replay.selectors.elite import EliteSettings  # noqa: E402
from gossamer.replay.selectors.uniform import UniformSettings  # noqa: E402
from gossamer.replay.shards import ReplayShards  # noqa: E402
from gossamer.types import as_batch, empty_trajectory  # noqa: E402

T, B, CAPACITY, F = 8, 4, 12, 8
SPEC = spec_of(obs_shape=(2000,))
LAYOUT = Layout(SPEC, T, 0, F)
WRITER, READER = 0, 1
FEWEST_KILLS, MOST_KILLS, OTHERS = 3, 60, 50


def shards_of(descriptors, own):
    blocks = [mmap.mmap(x, os.fstat(x).st_size) for x in descriptors]
    return ReplayShards([Ring(LAYOUT, CAPACITY, block) for block in blocks], own)


def write(shards, places):
    """Fill columns with the numbers of the entries that they become."""
    trajectory = empty_trajectory(SPEC, unroll_length=T, num_columns=B, core_units=0)
    for i, place in enumerate(places):
        times = ((int(shards.ring.sequence[place]) | 1) + 1) // 2
        entry = times * shards.num_places + shards.first + place
        for x in (trajectory.obs, trajectory.reward, trajectory.value, trajectory.behavior):
            x[:, i] = entry
        trajectory.version[i] = trajectory.task[i] = entry
        trajectory.last_reward[i] = entry
    shards.ring.write(places, trajectory, features_of(trajectory))


def features_of(trajectory):
    return (trajectory.value % 1000)[..., None].expand(-1, -1, F)


def write_for_ever(descriptors):
    shards, parent, first = shards_of(descriptors, WRITER), os.getppid(), 0
    while os.getppid() == parent:
        write(shards, [(first + i) % CAPACITY for i in range(B)])
        first += B


def nurse(descriptors):
    """Fork a writer for every line that comes, and tell its process; it is killed before the next."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            write_for_ever(descriptors)
            os._exit(1)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)


def check(replay, batch):
    """Sample a batch and return how many of its columns others have written."""
    if not sample(replay, batch, features_of):
        return 0
    entry = batch.entry
    assert len(set(entry.tolist())) == batch.num_columns
    for name in ("version", "task", "last_reward"):
        assert torch.equal(getattr(batch, name).long(), entry), name
    for name in ("obs", "reward", "value", "behavior"):
        x = getattr(batch, name).movedim(1, 0).flatten(1)
        assert (x == entry[:, None]).all(), name
    moved = replay.picked.moved
    assert moved is None or (moved == 0.0).all(), "features of another column"
    return int((entry % replay.shards.num_places < CAPACITY).sum())


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_column_of_a_killed_writer_is_torn(tmp_path: Path, on_disk: bool) -> None:
    path = str(tmp_path) if on_disk else ""
    nbytes = LAYOUT.nbytes(CAPACITY)
    descriptors = [make_memory(nbytes, path)[0] for _ in range(2)]
    shards = shards_of(descriptors, READER)
    replays = []
    for settings in (UniformSettings(), EliteSettings(strategy="least_used")):
        candidates = empty_trajectory(SPEC, unroll_length=T, num_columns=5, core_units=0)
        replays.append(Replay(shards, settings, candidates=candidates, seed=1))
    write(shards, [0, 1, 2, 3])
    batch = as_batch(empty_trajectory(SPEC, unroll_length=T, num_columns=6, core_units=0))
    chance, kills, halves, others = random.Random(1), 0, 0, 0
    words = [sys.executable, __file__, *map(str, descriptors)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
        env=environment,
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        try:
            while kills < FEWEST_KILLS or ((not halves or others <= OTHERS) and kills < MOST_KILLS):
                print(file=nursery.stdin, flush=True)
                writer = int(nursery.stdout.readline())
                until = time.monotonic() + chance.uniform(0.02, 0.2)
                while time.monotonic() < until:
                    others += sum(check(replay, batch) for replay in replays)
                os.kill(writer, signal.SIGKILL)
                assert nursery.stdout.readline() == "dead\n"
                kills += 1
                halves += int((shards.rings[WRITER].sequence % 2).any())
                for replay in replays:
                    others += check(replay, batch)
        finally:
            nursery.kill()  # a writer that has lost it ends
    for descriptor in descriptors:
        os.close(descriptor)
    assert halves > 0, "none was killed while it wrote"
    assert others > OTHERS
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    nurse([int(x) for x in sys.argv[1:]])
