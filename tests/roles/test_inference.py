"""A policy that is asked by several threads at once says what it says to one."""

from __future__ import annotations

import threading

import pytest
import torch
from core_fakes import CONTINUOUS, DISCRETE, small_policy, spec_of

from gossamer.roles.inference import Inference


def question(policy, columns):
    draw = torch.Generator().manual_seed(columns)
    spec = policy.spec
    last_action = torch.zeros((1, columns, *spec.action.shape), dtype=torch.int64)
    if spec.action.kind == "gaussian":
        last_action = torch.randn(last_action.shape, generator=draw)
    obs = torch.randint(0, 200, (1, columns, *spec.obs_shape), generator=draw)
    return (
        obs.to(torch.uint8 if spec.leaf.kind == "pixels" else torch.float32),
        torch.rand(1, columns, generator=draw) < 0.5,
        torch.randn(policy.core_units, columns, generator=draw),
        last_action,
        torch.randn(1, columns, generator=draw),
    )


@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("columns", [1, 2, 5, 8])
@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_columns_are_put_together_again(core, action, columns, num_threads):
    policy = small_policy(
        spec_of(action), core=core, core_size=3, last_action=True, last_reward=True
    )
    asked = question(policy, columns)
    whole = policy(*asked)
    infer = Inference(policy, num_threads)
    parts, again = infer(*asked), infer(*asked)
    infer.close()
    for name in whole._fields:
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
        assert torch.equal(getattr(parts, name), getattr(again, name))
        assert not getattr(parts, name).requires_grad


def test_operations_do_not_share_threads_among_themselves(monkeypatch):
    """Those would spin for each other where one of them has lost its core."""
    policy = small_policy()
    seen: list[tuple[int, str, int]] = []
    forward = policy.forward

    def watched(obs, *rest):
        seen.append((torch.get_num_threads(), threading.current_thread().name, obs.shape[1]))
        return forward(obs, *rest)

    monkeypatch.setattr(policy, "forward", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    infer = Inference(policy, 2)
    try:
        infer(*question(policy, 5))
    finally:
        infer.close()
        torch.set_num_threads(before)
    assert {count for count, _, _ in seen} == {1}
    assert len({name for _, name, _ in seen}) == 2
    assert sum(columns for _, _, columns in seen) == 5


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_of_any_part_is_raised(monkeypatch, broken):
    policy = small_policy()
    asked = question(policy, 4)
    asked[0][0, :, ...] = torch.arange(4).view(4, *[1] * (asked[0].ndim - 2)) // 2
    forward = policy.forward

    def fails(obs, *rest):
        if int(obs.flatten()[0]) == broken:
            raise RuntimeError(f"part {broken}")
        return forward(obs, *rest)

    monkeypatch.setattr(policy, "forward", fails)
    infer = Inference(policy, 2)
    with pytest.raises(RuntimeError, match=f"part {broken}"):
        infer(*asked)
    infer.close()
