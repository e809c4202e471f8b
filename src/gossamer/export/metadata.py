"""What an exported file says about itself: all that a program needs to act with it, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gossamer
from gossamer.export.step import CARRY, input_of, outputs_of
from gossamer.policies.actor_critic import MASKED
from gossamer.record.metrics import plain
from gossamer.run.checkpoint_contents import PolicyOrigin, env_steps_of, facts_of
from gossamer.run.load_policy import as_learnt, whose
from gossamer.spec import nested_obs

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.envs.interface import Interface
    from gossamer.export.step import OneStep
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.record.folder import RunFolder
    from gossamer.spec import EnvSpec

FORMAT, FORMAT_OF_SEVERAL = 1, 2
"""Versions of this description: where an observation is one array, and where there are several, or a mask of actions."""
KEY = "gossamer"
"""Name of the description in an ONNX file; with .json, in a torch program's archive."""
_INPUTS = {
    "obs": "observation, laid out as `observation` says",
    "mask": "true where an action is allowed, one or more of each choice, laid out as `mask` says",
    "start": "true on the first step of an episode: state, last action and last reward are forgotten",
    "state": "recurrent state; next_state of the step before, zeros at first",
    "last_action": "next_last_action of the step before, zeros at first",
    "last_reward": "reward of the step before, unclipped, 0 at first",
}
_OUTPUTS = {
    "action": "greedy action as the environment takes it; real numbers are squashed, scaled and clipped to its bounds as in training",
    "value": "estimate of the discounted return of rewards as the run learnt from them; see discount and reward_clip",
    "action_params": "parameters of the action distribution: {params}",
    "next_state": "recurrent state after this step",
    "next_last_action": "the action before its real numbers were squashed, scaled and clipped",
}
_PARAMS = {
    "categorical": "logits",
    "multi_categorical": "logits of each component, one component after the other",
    "bernoulli": "logits of 1",
    "gaussian": "means, then logarithms of standard deviations, before squashing, scaling and clipping",
}
_COMBINED = "logits of each combination of choices, the last choice changing quickest"


def describe_run(
    folder: RunFolder,
    config: TrainConfig,
    checkpoint: Checkpoint,
    which: str | int,
    learner: int | None,
) -> dict[str, Any]:
    """Return where a policy comes from; no path of this machine is in it."""
    config = as_learnt(config, checkpoint)
    return {
        "name": folder.path.absolute().name,
        "algorithm": config.algorithm.name,
        "topology": config.topology.name,
        "seed": config.seed,
        "num_learners": config.num_learners,
        "checkpoint": which,
        "learner": whose(checkpoint, learner, config.num_learners),
        "absent_learners": [rank for rank, _ in facts_of(checkpoint, PolicyOrigin).absent],
        "updates": checkpoint.updates,
        "env_steps": env_steps_of(checkpoint),
        "discount": config.algorithm.discount,
        "reward_clip": config.algorithm.reward_clip,
        "best_evaluation": checkpoint.score,
    }


def describe(step: OneStep, interface: Interface, run: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a policy's step.

    Args:
        step: what is exported.
        interface: of the run's environment.
        run: from `describe_run`.
    """
    spec = step.policy.spec
    inputs = step.inputs(2)
    outputs = step(**nested_obs(inputs))
    params, policy = _params(spec), step.policy.config
    action = {"kind": spec.action.kind, **_action(spec, interface), "chosen": "greedy"}
    if spec.action.num_gaussian:  # before they are clipped, which all are
        scaled = "scaled" if policy.scale_actions else "clipped"
        action["real_numbers"] = "squashed" if policy.squash else scaled
    if spec.mask is not None:
        params += f", {MASKED:g} where an action is forbidden"
    return plain(
        {
            "format": FORMAT_OF_SEVERAL if spec.action.parts or not spec.is_bare else FORMAT,
            "gossamer": gossamer.__version__,
            "env_id": spec.env_id,
            "protocol": spec.protocol,
            "max_episode_steps": spec.max_episode_steps,
            "environment": interface.environment,
            "observation": _observation(spec, interface),
            **_mask(spec, interface),
            "action": action,
            "inputs": {name: _tensor(x, _input_meaning(name)) for name, x in inputs.items()},
            "outputs": {
                name: _tensor(x, output_meaning(name, params)) for name, x in outputs.items()
            },
            "carry": {name: to for name, to in CARRY.items() if name in inputs},
            "run": run,
        }
    )


def _params(spec: EnvSpec) -> str:
    """Say what the parameters of a policy's distribution are."""
    if spec.mask_form == "joint":
        return _COMBINED
    if not spec.action.parts:
        return _PARAMS[spec.action.kind]
    parts = (f"{name}: {_PARAMS[part.kind]}" for name, part in spec.action.parts)
    return f"of each part, one part after the other ({'; '.join(parts)})"


def _action(spec: EnvSpec, interface: Interface) -> dict[str, Any]:
    """Return what the environment takes; of a joint action, each part under `parts`, with the output that it is."""
    told = interface.action
    if not spec.action.parts:
        return told
    named = zip(outputs_of(spec.action), told["parts"], strict=True)
    return {**told, "parts": [{"output": output, **part} for (output, _), part in named]}


def output_meaning(name: str, params: str) -> str:
    """Say what an output is, with `params` for what the parameters of the distribution are."""
    whole, _, part = name.partition("/")
    meaning = _OUTPUTS[whole].format(params=params)
    return f"{part}: {meaning}" if part else meaning


def _observation(spec: EnvSpec, interface: Interface) -> dict[str, Any]:
    """Return what an environment's observation is and how it is laid out; of several arrays, each under `leaves`."""
    told = interface.observation
    if spec.sees_one:
        return {**told, "policy_shape": list(spec.obs_shape)}
    leaves = [
        {"input": input_of(leaf), **x, "policy_shape": list(leaf.shape)}
        for leaf, x in zip(spec.observed, told["leaves"], strict=True)
    ]
    return {**told, "leaves": leaves}


def _mask(spec: EnvSpec, interface: Interface) -> dict[str, Any]:
    """Return where an environment says what it allows, and how that is laid out; nothing where it does not."""
    form = interface.mask
    if spec.mask is None or form is None:
        return {}
    layout = (
        "combinations of the choices, an array of shape `sizes`, flattened with the last choice changing quickest"
        if form.joint
        else "the choices of each part of an action, one part after the other"
    )
    told: dict[str, Any] = {"input": input_of(spec.mask), "from": form.source, "key": form.key}
    told |= {"form": spec.mask_form, "sizes": list(form.sizes), "layout": layout}
    if form.parts is not None:
        told["parts"] = [
            {"keys": list(keys), "sizes": list(part.sizes)} for keys, part in form.parts.items()
        ]
    return {"mask": told}


def _input_meaning(name: str) -> str:
    whole, _, leaf = name.partition("/")
    return f"{leaf} of the observation, laid out as `observation` says" if leaf else _INPUTS[whole]


def _tensor(x: Any, meaning: str) -> dict[str, Any]:
    dtype = str(x.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": ["batch", *x.shape[1:]], "meaning": meaning}
