"""Steps of real episodes, with what the policy answered where it acted: an exported file has to answer the same.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gossamer.errors import RunFailed
from gossamer.export.step import input_of, outputs_of
from gossamer.policies.actor_critic import MASKED
from gossamer.roles.evaluation import Interrupted
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
        if (
            output == "next_last_action"
        ):  # which is no environment's, and of real numbers if a part is
            return np.where(found == np.floor(found), found, -1).astype(np.int64)
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


class Chosen(NamedTuple):
    """Discrete actions, or a discrete part of joint ones."""

    margin: NDArray[np.float32]
    """[T, B, A] by how much the parameters of a choice's two likeliest allowed values differ."""
    choices: Choices
    """How to read them."""
    columns: slice
    """Where they are among the numbers of an action of the distribution."""
    logits: slice | None
    """Where their logits are in a mask; None: they have none."""


class Recording(NamedTuple):
    """Steps of B environments, one behind the other, and the policy's greedy answers to them."""

    inputs: Arrays
    """[T, B, ...] each; no recurrent state, which whoever replays carries along."""
    outputs: Arrays
    """[T, B, ...] each."""
    chosen: dict[str, Chosen]
    """By output, the discrete actions, or parts of joint ones."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.outputs["value"])

    def only(self, columns: int, steps: int) -> Recording:
        """Return the first columns' first steps."""
        inputs, outputs = (
            {name: x[:steps, :columns] for name, x in held.items()}
            for held in (self.inputs, self.outputs)
        )
        chosen = {
            name: part._replace(margin=part.margin[:steps, :columns])
            for name, part in self.chosen.items()
        }
        return Recording(inputs, outputs, chosen)


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
                **_taken(policy, given),
                "value": out.value[0].numpy(),
                "action_params": out.action_params[0].numpy(),
                "next_state": out.core_state.T.numpy().copy(),
                "next_last_action": carried.action[0].numpy().copy(),
            }
            rows.append((seen, said))
            envs.send(given)
            result = envs.recv()
            was_over, over, obs = over, result.ended.copy(), result.obs
            last_reward = result.reward.astype(np.float32)
    seen, said = (
        {name: np.stack([row[i][name] for row in rows]) for name in rows[0][i]} for i in (0, 1)
    )
    return Recording(seen, said, _chosen(policy, said["action_params"], seen.get("mask")))


def _taken(policy: Policy, given: NDArray[Any]) -> Arrays:
    """Return actions of the policy as the environment takes them, by output."""
    form, outputs = policy.interface.action_format, outputs_of(policy.spec.action)
    if form.batch is None:
        return {"action": np.array(form.decode(given))}
    whole = form.batch(given)
    found: Arrays = {}
    for (output, _), part in zip(outputs, policy.interface.action["parts"], strict=True):
        one = whole
        for key in part["keys"]:
            one = one[key]
        found[output] = np.array(one)
    return found


def _chosen(
    policy: Policy, params: NDArray[np.float32], mask: NDArray[np.bool_] | None
) -> dict[str, Chosen]:
    """Return what there is to know of discrete actions, given parameters [T, B, P] and masks [T, B, M]."""
    told, joint = policy.interface.action, policy.spec.mask_form == "joint"
    found: dict[str, Chosen] = {}
    param = column = logit = 0
    parts = told.get("parts", [told])
    for (output, spec), part in zip(outputs_of(policy.spec.action), parts, strict=True):
        own = params[..., param : param + spec.num_params]
        logits = None
        if mask is not None and spec.choices:
            logits = slice(logit, logit + spec.num_params)
            own = np.where(mask[..., logits], own, -np.inf)
            logit = logits.stop
        columns = slice(column, column + spec.length)
        if spec.kind != "gaussian":
            combined = tuple(part["sizes"]) if joint else ()
            choices = Choices(spec.sizes, tuple(part.get("start", ())), combined)
            found[output] = Chosen(_margin(spec, own), choices, columns, logits)
        param, column = param + spec.num_params, columns.stop
    return found


def _margin(action: ActionSpec, params: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what `Chosen.margin` is; parameters of forbidden actions are -inf."""
    if action.kind == "bernoulli":
        return np.abs(params)
    ends = np.cumsum(action.sizes)[:-1].tolist()
    found: list[NDArray[np.float32]] = []
    for part in np.split(params, ends, axis=-1):
        two = np.sort(np.insert(part, 0, -np.inf, axis=-1), axis=-1)[..., -2:]
        found.append(two[..., 1] - two[..., 0])
    return np.stack(found, axis=-1)


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
    # Beside the parameter of a forbidden action no difference would count.
    params = sized["action_params"]
    sized["action_params"] = np.where(params == MASKED, 0.0, params)
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
            allowed = None if mask is None else mask[t]
            parts = recording.chosen if name == "next_last_action" else {}
            if name in recording.chosen:
                parts = {name: recording.chosen[name]}
            for part in parts.values():
                if wrong := _wrong(part, t, name, found, wanted, allowed, scale["action_params"]):
                    raise _differs(f"{name} at step {t + 1} is {wrong}")
            if name in recording.chosen:
                continue
            if name == "next_last_action":
                rest = np.ones(wanted[0].size, bool)
                for part in parts.values():
                    rest[part.columns] = False
                found, wanted = (x.reshape(len(x), -1)[:, rest] for x in (found, wanted))
            apart = _size(found.astype(np.float64) - wanted.astype(np.float64)) / scale[name]
            largest[name] = max(largest.get(name, 0.0), apart)
            if not apart <= TOLERANCE:  # nor if it is no number
                raise _differs(
                    f"{name} at step {t + 1} is off by {apart * scale[name]:.3g}, more than {TOLERANCE * scale[name]:.3g}"
                )
    return Agreement(recording.outputs["value"].size, largest)


def _wrong(
    part: Chosen,
    t: int,
    name: str,
    found: NDArray[Any],
    wanted: NDArray[Any],
    mask: NDArray[np.bool_] | None,
    scale: float,
) -> str:
    """Say what is wrong with choices [B, ...] of a step; empty: nothing is."""
    if name == "next_last_action":
        found, wanted = (x.reshape(len(x), -1)[:, part.columns] for x in (found, wanted))
    chosen = part.choices.of(name, found)
    other = chosen != part.choices.of(name, wanted)
    # As likely but for rounding is as good.
    if (part.margin[t][other] > 2.0 * TOLERANCE * scale).any():
        return "another one"
    if mask is not None and part.logits is not None:
        allowed = mask[:, part.logits]
        return "" if part.choices.are_allowed(chosen, allowed) else "forbidden"
    return ""


def check(
    step: Callable[[Arrays], Arrays], first: Mapping[str, Any], recording: Recording
) -> Agreement:
    """Replay a recording in a batch, and some of it in a batch of one; arguments and errors as of `replay`."""
    together = replay(step, first, recording)
    alone = replay(step, first, recording.only(1, ALONE))
    largest = {name: max(x, alone.largest[name]) for name, x in together.largest.items()}
    return Agreement(together.steps + alone.steps, largest)
