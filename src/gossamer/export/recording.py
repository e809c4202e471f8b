"""Steps of real episodes, with what the policy answered where it acted: an exported file has to answer the same.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gossamer.errors import RunFailed
from gossamer.export.step import input_of
from gossamer.roles.evaluator import Interrupted
from gossamer.roles.inference import Inference, nothing_carried, take_step
from gossamer.spec import leaves_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gossamer.roles.policy import Policy
    from gossamer.spec import ActionSpec
    from gossamer.types import VecEnv

Arrays = dict[str, "NDArray[Any]"]
"""Inputs or outputs of a step by their names, [B, ...] each."""
ENVS, STEPS = 4, 80
"""Environments that are recorded, and steps of each."""
ALONE = 40
"""Steps that are replayed in a batch of one as well."""
TOLERANCE = 1e-5
"""Largest difference, in units of an output's largest number, or of 1 where that is smaller."""


class Choices(NamedTuple):
    """How discrete actions are choices of values that have logits."""

    sizes: tuple[int, ...]
    """Numbers of values."""
    start: tuple[int, ...] = ()
    """What the environment calls the first values; empty: 0."""
    combined: tuple[int, ...] = ()
    """Numbers of values of each part of an action of which every combination is a value; empty: none is."""

    def of(self, output: str, action: NDArray[Any]) -> NDArray[Any]:
        """Return the values [B, A] that an output tells of, actions [B, ...]; -1 is none."""
        found = action.reshape(len(action), -1)
        if output == "next_last_action":  # which is no environment's
            return found
        found = found - np.asarray(self.start or 0)
        if self.combined:
            inside = ((found >= 0) & (found < self.combined)).all(axis=1, keepdims=True)
            kept = tuple(np.where(inside, found, 0).T)
            index = np.asarray(np.ravel_multi_index(kept, self.combined))
            return np.where(inside, index[:, None], -1)
        return found

    def are_allowed(self, values: NDArray[Any], mask: NDArray[np.bool_]) -> bool:
        """Return whether a mask [B, M] allows all values [B, A]."""
        sizes = np.asarray(self.sizes)
        inside = (values >= 0) & (values < sizes)
        index = (np.cumsum(sizes) - sizes) + np.where(inside, values, 0)
        return bool((inside & np.take_along_axis(mask, index, axis=1)).all())


class Recording(NamedTuple):
    """Steps of B environments, one behind the other, and the policy's greedy answers to them."""

    inputs: Arrays
    """[T, B, ...] each; no recurrent state, which whoever replays carries along."""
    outputs: Arrays
    """[T, B, ...] each."""
    margin: NDArray[np.float32]
    """[T, B, A] by how much the parameters of a discrete action's two likeliest allowed values differ; A = 0 for others."""
    choices: Choices
    """How to read discrete actions."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.margin)

    def only(self, columns: int, steps: int) -> Recording:
        """Return the first columns' first steps."""
        inputs, outputs = (
            {name: x[:steps, :columns] for name, x in held.items()}
            for held in (self.inputs, self.outputs)
        )
        return Recording(inputs, outputs, self.margin[:steps, :columns], self.choices)


class Agreement(NamedTuple):
    """How closely a file has answered as the policy did."""

    steps: int
    """Compared, over all environments."""
    largest: dict[str, float]
    """Largest difference of each output, in the units of TOLERANCE."""


@torch.no_grad()
def record(
    policy: Policy,
    envs: VecEnv,
    *,
    steps: int = STEPS,
    stop: Callable[[], bool] = lambda: False,
) -> Recording:
    """Play greedily, as an evaluation does, and write down every step.

    Args:
        policy: set up for acting, on the CPU.
        envs: B environments with the evaluation protocol.
        steps: T.
        stop: asked every step; True raises Interrupted.
    """
    n = envs.num_envs
    rows: list[tuple[Arrays, Arrays]] = []
    spec = policy.spec
    obs: Any = envs.start(np.zeros(n, dtype=np.int64))
    carried = nothing_carried(policy, n)
    was_over, over = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    last_reward = np.zeros(n, dtype=np.float32)
    with closing(Inference(policy)) as infer:
        for _ in range(steps):
            if stop():
                raise Interrupted
            leaves = leaves_of(obs)
            seen = {input_of(leaf): np.array(leaves[leaf.name]) for leaf in spec.leaves}
            seen |= {"start": was_over.copy(), "last_reward": last_reward}
            seen["last_action"] = carried.action[0].numpy().copy()
            out, carried = take_step(
                policy,
                infer,
                spec.obs_of({x.name: torch.from_numpy(seen[input_of(x)]) for x in spec.leaves}),
                torch.from_numpy(seen["start"]),
                torch.from_numpy(last_reward),
                carried,
                greedy=True,
            )
            given = policy.env_action(carried.action[0]).numpy()
            said = {
                "action": np.array(policy.interface.action_format.decode(given)),
                "value": out.value[0].numpy(),
                "action_params": out.action_params[0].numpy(),
                "next_state": out.core_state.T.numpy().copy(),
                "next_last_action": carried.action[0].numpy().copy(),
            }
            rows.append((seen, said))
            envs.send(given)
            result = envs.recv()
            was_over, over, obs = over, result.ended.copy(), result.obs
            last_reward = result.reward.copy()
    seen, said = (
        {name: np.stack([row[i][name] for row in rows]) for name in rows[0][i]} for i in (0, 1)
    )
    params = said["action_params"]
    if "mask" in seen:
        params = np.where(seen["mask"], params, -np.inf)
    return Recording(seen, said, _margin(spec.action, params), _choices(policy))


def _margin(action: ActionSpec, params: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what `Recording.margin` is; parameters of forbidden actions are -inf."""
    if action.kind == "gaussian":
        return params[..., :0]
    if action.kind == "bernoulli":
        return np.abs(params)
    ends = np.cumsum(action.sizes)[:-1].tolist()
    found: list[NDArray[np.float32]] = []
    for part in np.split(params, ends, axis=-1):
        two = np.sort(np.insert(part, 0, -np.inf, axis=-1), axis=-1)[..., -2:]
        found.append(two[..., 1] - two[..., 0])
    return np.stack(found, axis=-1)


def _choices(policy: Policy) -> Choices:
    told, joint = policy.interface.action, policy.spec.mask_form == "joint"
    combined = tuple(told["sizes"]) if joint else ()
    return Choices(policy.spec.action.sizes, tuple(told.get("start", ())), combined)


def _size(x: NDArray[Any]) -> float:
    return float(np.abs(x).max()) if x.size else 0.0


def _differs(what: str) -> RunFailed:
    return RunFailed(
        f"the exported policy does not answer as the run's policy does, so nothing was written: {what}"
    )


def replay(
    step: Callable[[Arrays], Arrays], first: Mapping[str, Any], recording: Recording
) -> Agreement:
    """Take recorded steps through a file and return how closely it agrees.

    Args:
        step: takes the inputs that the file has, and returns its outputs.
        first: names of the inputs that the file has.
        recording: what it has to answer.

    Raises:
        RunFailed: it answers something else.
    """
    sized, mask = dict(recording.outputs), recording.inputs.get("mask")
    if mask is not None:  # beside the parameter of a forbidden action no difference would count
        sized["action_params"] = np.where(mask, sized["action_params"], 0.0)
    scale = {name: max(1.0, _size(x)) for name, x in sized.items()}
    largest: dict[str, float] = {}
    # Where an episode starts, a state has to be forgotten, whatever it was.
    state = np.ones_like(recording.outputs["next_state"][0])
    for t in range(recording.steps):
        held: Arrays = {name: x[t] for name, x in recording.inputs.items()}
        held["state"] = state
        said = step({name: held[name] for name in first})
        if "next_state" in said:
            state = said["next_state"]
        for name, found in said.items():
            wanted = recording.outputs[name][t]
            if found.shape != wanted.shape or found.dtype != wanted.dtype:
                raise _differs(
                    f"{name} is {found.dtype} {list(found.shape)}, the policy's {wanted.dtype} {list(wanted.shape)}"
                )
            if name in ("action", "next_last_action") and wanted.dtype.kind != "f":
                # As likely but for rounding is as good.
                chosen = recording.choices.of(name, found)
                other = chosen != recording.choices.of(name, wanted)
                if (recording.margin[t][other] > 2.0 * TOLERANCE * scale["action_params"]).any():
                    raise _differs(f"{name} at step {t + 1} is another one")
                if mask is not None and not recording.choices.are_allowed(chosen, mask[t]):
                    raise _differs(f"{name} at step {t + 1} is forbidden")
                continue
            apart = _size(found.astype(np.float64) - wanted.astype(np.float64)) / scale[name]
            largest[name] = max(largest.get(name, 0.0), apart)
            if not apart <= TOLERANCE:  # nor if it is no number
                raise _differs(
                    f"{name} at step {t + 1} is off by {apart * scale[name]:.3g}, more than {TOLERANCE * scale[name]:.3g}"
                )
    return Agreement(recording.steps * recording.margin.shape[1], largest)


def check(
    step: Callable[[Arrays], Arrays], first: Mapping[str, Any], recording: Recording
) -> Agreement:
    """Replay a recording in a batch, and some of it in a batch of one; arguments and errors as of `replay`."""
    together = replay(step, first, recording)
    alone = replay(step, first, recording.only(1, ALONE))
    largest = {name: max(x, alone.largest[name]) for name, x in together.largest.items()}
    return Agreement(together.steps + alone.steps, largest)
