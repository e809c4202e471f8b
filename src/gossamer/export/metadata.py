"""What an exported file says about itself: all that a program needs to act with it, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gossamer
from gossamer.export.step import CARRY
from gossamer.record.metrics import plain
from gossamer.run.checkpoint_contents import env_steps_of
from gossamer.run.load_policy import whose

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.envs.interface import Interface
    from gossamer.export.step import OneStep
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.record.folder import RunFolder

FORMAT = 1
"""Version of this description."""
KEY = "gossamer"
"""Name of the description in an ONNX file; with .json, in a torch program's archive."""
_INPUTS = {
    "obs": "observation, laid out as `observation` says",
    "start": "true on the first step of an episode: state, last action and last reward are forgotten",
    "state": "recurrent state; next_state of the step before, zeros at first",
    "last_action": "next_last_action of the step before, zeros at first",
    "last_reward": "reward of the step before, unclipped, 0 at first",
}
_OUTPUTS = {
    "action": "greedy action as the environment takes it: squashed, scaled and clipped to its bounds",
    "value": "estimate of the discounted return of rewards as the run learnt from them; see discount and reward_clip",
    "action_params": "parameters of the action distribution: {params}",
    "next_state": "recurrent state after this step",
    "next_last_action": "the action before it was squashed, scaled and clipped",
}
_PARAMS = {
    "categorical": "logits",
    "multi_categorical": "logits of each component, one component after the other",
    "bernoulli": "logits of 1",
    "gaussian": "means, then logarithms of standard deviations, before squashing, scaling and clipping",
}


def describe_run(
    folder: RunFolder,
    config: TrainConfig,
    checkpoint: Checkpoint,
    which: str | int,
    learner: int | None,
) -> dict[str, Any]:
    """Return where a policy comes from; no path of this machine is in it."""
    return {
        "name": folder.path.absolute().name,
        "algorithm": config.algorithm.name,
        "topology": config.topology.name,
        "seed": config.seed,
        "num_learners": config.num_learners,
        "checkpoint": which,
        "learner": whose(checkpoint, learner, config.num_learners),
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
    outputs = step(**inputs)
    return plain(
        {
            "format": FORMAT,
            "gossamer": gossamer.__version__,
            "env_id": spec.env_id,
            "protocol": spec.protocol,
            "max_episode_steps": spec.max_episode_steps,
            "environment": interface.environment,
            "observation": {**interface.observation, "policy_shape": list(spec.obs_shape)},
            "action": {"kind": spec.action.kind, **interface.action, "chosen": "greedy"},
            "inputs": {name: _tensor(x, _INPUTS[name]) for name, x in inputs.items()},
            "outputs": {
                name: _tensor(x, _OUTPUTS[name].format(params=_PARAMS[spec.action.kind]))
                for name, x in outputs.items()
            },
            "carry": {name: to for name, to in CARRY.items() if name in inputs},
            "run": run,
        }
    )


def _tensor(x: Any, meaning: str) -> dict[str, Any]:
    dtype = str(x.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": ["batch", *x.shape[1:]], "meaning": meaning}
