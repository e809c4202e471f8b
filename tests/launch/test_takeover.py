"""What a learner that takes over from a dead one begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gossamer.build import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.group import build_group
from gossamer.launch.inline import _Collector, _learn_version

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def group(request):
    config = make_config(
        "CartPole-v1",
        {
            "num_learners": 4,
            "num_envs": 2,
            "algorithm": {"name": "vtrace", "num_minibatches": 2},
            "topology": {"name": "diffusion"},
            "placement": "inline",
            "same_start": False,
            "device": request.param,
            "evaluation.every_seconds": 0,
        },
    )
    spec = read_spec(config.env_id, config.env, 0)
    made = build_group(
        config,
        spec,
        make_plan(config, spec),
        on_episode=lambda *_: None,
        on_evaluation=lambda *_: None,
    )
    made.join()
    yield made
    made.close()


def test_it_begins_with_the_average_of_its_heirs_and_counts_on(group):
    boxes = group.memory.boxes
    for rank, parts in enumerate(group.parts):
        parts.learner.version = 10 + rank
        parts.learner.mixer.mailbox.report(1000 * (rank + 1))
        group.publish(parts)
    theirs = [group.parts[rank].policy.shared_tensors() for rank in (0, 2)]
    expected = [(a.double() + b.double()) / 2 for a, b in zip(*theirs, strict=True)]
    new = group.parts[3]
    group.inherit(new, [0, 2])
    for x, y in zip(new.policy.shared_tensors(), expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-6, atol=1e-7)
    # its own last version was 13, the newest of the heirs' 12
    assert new.learner.version == 14
    assert new.actor.env_steps == 4000
    assert new.learner.env_steps == 1000 + 2000 + 3000 + 4000
    group.publish(new)
    assert group.memory.versions.newest(3) == 14
    assert boxes.env_steps(3) == 4000


def test_in_lock_step_it_has_the_version_that_others_will_have(group):
    collectors = [_Collector(parts) for parts in group.parts]
    for parts in group.parts:
        group.publish(parts)
    for _ in range(5):
        for collector in collectors:
            collector.collect()
        _learn_version(group)
        for parts in group.parts:
            group.publish(parts)
    first, new = group.first.learner, group.parts[3]
    assert first.updates_per_version == 2
    assert (first.version, first.update) == (5, 10)
    group.memory.boxes.mark_left(3)
    group.inherit(new, [0, 2])
    replace(group, parts=[new]).join(late=True)
    # nobody has mixed update 13 yet, which is in the midst of version 6, the seventh
    assert new.learner.update == 13
    assert new.learner.version == 7
