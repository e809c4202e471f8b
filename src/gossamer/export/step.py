"""One step of a policy as a module with named inputs and outputs, which torch and ONNX can follow.

Shapes: B batch, S numbers of recurrent state, P action-distribution parameters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gossamer.ops.distributions import split_action
from gossamer.spec import leaf_field, leaves_of, obs_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.spec import ActionSpec, Leaf, Obs

CARRY = {"state": "next_state", "last_action": "next_last_action"}
"""Inputs, and the outputs of the step before that they are given."""


def input_of(leaf: Leaf) -> str:
    """Return the name of the input that is a leaf: `obs`, `obs/NAME` of several, or `mask`."""
    return "mask" if leaf.kind == "mask" else leaf_field("obs", leaf.name)


def outputs_of(spec: ActionSpec) -> list[tuple[str, ActionSpec]]:
    """Return the outputs that are actions, and what each is: `action`, or `action/NAME` for each part of a joint one."""
    return [(f"action/{name}", part) for name, part in spec.parts] or [("action", spec)]


class TakenAction(nn.Module):
    """What an environment takes for an action of a distribution, or for a part of a joint one: clipped, shifted, in its type.

    Args:
        spec: of the action or part.
        taken: its shape, type, bounds and first numbers, as `Interface.action` has them.
        joint: a choice is of a combination of the numbers that the environment takes.
    """

    offset: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, spec: ActionSpec, taken: Mapping[str, Any], *, joint: bool = False):
        super().__init__()
        self._shape = [int(n) for n in taken["shape"]]
        self._dtype: torch.dtype = getattr(torch, str(taken["dtype"]), torch.int64)
        self._clips, self._shifts = spec.kind == "gaussian", any(taken.get("start", ()))
        self._combined: list[int] = [int(n) for n in taken["sizes"]] if joint else []
        # Bounds of float64 are no numbers of float32.
        exact = torch.float64 if self._dtype == torch.float64 else torch.float32
        low, high = (
            [sign * math.inf if x is None else x for x in taken.get(name, ())]
            for sign, name in ((-1.0, "low"), (1.0, "high"))
        )
        self.register_buffer("low", torch.tensor(low, dtype=exact))
        self.register_buffer("high", torch.tensor(high, dtype=exact))
        offset = torch.tensor(taken.get("start", ()), dtype=torch.int64)
        shaped = self._shifts and not joint
        self.register_buffer("offset", offset.view(spec.shape) if shaped else offset)

    def forward(self, action: Tensor) -> Tensor:
        """[B, *action_shape] of the distribution -> [B, ...]."""
        if self._combined:
            action = _unravelled(action, self._combined)
        if self._clips:
            action = torch.minimum(torch.maximum(action.to(self.low.dtype), self.low), self.high)
        if self._shifts:
            action = action + self.offset
        return action.to(self._dtype).reshape([-1, *self._shape])


class OneStep(nn.Module):
    """Greedy step of a policy: an observation in, an action as the environment takes it out.

    Args:
        policy: in float32 on the CPU.
        action: what the environment takes, as `Interface.action` has it.
    """

    def __init__(self, policy: ActorCritic, action: Mapping[str, Any]):
        super().__init__()
        self.policy = policy
        spec, joint = policy.spec.action, policy.spec.mask_form == "joint"
        self._outputs = [output for output, _ in outputs_of(spec)]
        told = action["parts"] if spec.parts else [action]
        parts = zip(spec.each, told, strict=True)
        self.parts = nn.ModuleList([TakenAction(one, x, joint=joint) for one, x in parts])

    def forward(
        self,
        obs: Obs[Tensor],
        mask: Tensor | None = None,
        start: Tensor | None = None,
        state: Tensor | None = None,
        last_action: Tensor | None = None,
        last_reward: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Take a step in every column of a batch.

        Args:
            obs: [B, *shape] of each leaf, raw: uint8 for pixels, int64 for whole numbers, else float32.
            mask: [B, M] bool, True where an action is allowed.
            start: [B] bool, where an episode begins: everything of before is forgotten.
            state: [B, S] recurrent state; `next_state` of the step before.
            last_action: `next_last_action` of the step before.
            last_reward: [B] float32, of the step before.
        """
        one = next(iter(leaves_of(obs).values()))
        b = one.shape[0]
        starts = torch.zeros(b, dtype=torch.bool, device=one.device) if start is None else start
        core_state = one.new_zeros((0, b), dtype=torch.float32) if state is None else state.T
        if self.policy.spec.mask is not None:
            assert mask is not None
            obs = {**leaves_of(obs), self.policy.spec.mask.name: mask}
        out = self.policy(
            obs_at(obs, None),
            starts[None],
            core_state,
            None if last_action is None else last_action[None],
            None if last_reward is None else last_reward[None],
        )
        params = out.action_params[0]
        own = self.policy.distribution(params).mode()
        outputs = {**self._taken(own), "value": out.value[0], "action_params": params}
        if state is not None:
            outputs["next_state"] = out.core_state.T.contiguous()
        if last_action is not None:
            outputs["next_last_action"] = own
        return outputs

    def _taken(self, own: Tensor) -> dict[str, Tensor]:
        """Actions of the distribution as the environment takes them [B, ...], by output."""
        action, spec = self.policy.env_action(own), self.policy.spec.action
        pieces = split_action(spec, action) if spec.parts else [action]
        each = zip(self._outputs, self.parts, pieces, strict=True)
        return {output: part(x) for output, part, x in each}

    def inputs(self, batch_size: int) -> dict[str, Tensor]:
        """Return what a first step is given, by input; `nested_obs` makes arguments of it.

        Zeros, starts that are set, and masks that allow everything; only what this policy needs.
        """
        spec, config = self.policy.spec, self.policy.config
        found: dict[str, Tensor] = {}
        for leaf in spec.leaves:
            filled = torch.ones if leaf.kind == "mask" else torch.zeros
            shape, kind = (batch_size, *leaf.shape), getattr(torch, leaf.dtype)
            found[input_of(leaf)] = filled(shape, dtype=kind)
        if self.policy.core_units or config.last_action or config.last_reward:
            found["start"] = torch.ones(batch_size, dtype=torch.bool)
        if self.policy.core_units:
            found["state"] = torch.zeros((batch_size, self.policy.core_units), dtype=torch.float32)
        if config.last_action:
            kind = getattr(torch, spec.action.dtype)
            found["last_action"] = torch.zeros((batch_size, *spec.action.shape), dtype=kind)
        if config.last_reward:
            found["last_reward"] = torch.zeros(batch_size, dtype=torch.float32)
        return found


def _unravelled(combination: Tensor, sizes: list[int]) -> Tensor:
    """Return the choices [B, k] that combinations [B] are of, the last one changing quickest."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    choices = [combination // stride % n for stride, n in zip(strides, sizes, strict=True)]
    return torch.stack(choices, dim=-1)
