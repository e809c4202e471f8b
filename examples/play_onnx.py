"""Play an environment with a policy that `gossamer export --format onnx` has written, without gossamer or torch.

    pip install numpy onnxruntime gymnasium ale-py
    python examples/play_onnx.py CartPole-v1-ppo.onnx --episodes 10

How the environment is made, how its observations become the policy's, and what the policy is given of the step
before stands in the file's metadata under `gossamer`. This program needs nothing else: it plays Gymnasium's
environments and Atari, with any network, also where an observation holds several arrays or some actions are forbidden.
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Played(NamedTuple):
    """A step: what the policy saw, what it did, and what came of it."""

    obs: Any
    action: Any
    reward: float
    value: float


class Policy:
    """A policy in a file, and what the file says about itself."""

    def __init__(self, path: str):
        self._session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.about = json.loads(self._session.get_modelmeta().custom_metadata_map["gossamer"])
        self._names = [x.name for x in self._session.get_outputs()]
        self._before: dict[str, Any] = {}

    def reset(self) -> None:
        """Forget everything: an episode begins."""
        carried = ("start", "state", "last_action", "last_reward")
        self._before = {
            name: np.zeros([1, *x["shape"][1:]], x["dtype"])
            for name, x in self.about["inputs"].items()
            if name in carried
        }
        if "start" in self._before:
            self._before["start"][:] = True

    def __call__(self, obs: Any, info: Any) -> dict[str, Any]:
        """Return the outputs for an observation of the environment and the info beside it."""
        inputs = self._before | self._seen(obs)
        if "mask" in self.about:
            inputs["mask"] = self.allowed(obs, info)[None]
        outputs = dict(zip(self._names, self._session.run(None, inputs), strict=True))
        # What a step is given of the one before; the reward comes from the environment.
        self._before |= {name: outputs[to] for name, to in self.about["carry"].items()}
        if "start" in self._before:
            self._before["start"] = np.zeros(1, bool)
        return outputs

    def hear(self, reward: float) -> None:
        """Take the reward of the step."""
        if "last_reward" in self._before:
            self._before["last_reward"] = np.full(1, reward, np.float32)

    def _seen(self, obs: Any) -> dict[str, Any]:
        """Turn an observation of the environment, or each array in it, into an input."""
        about = self.about["observation"]
        arrays: dict[str, Any] = {}
        for one in about.get("leaves", [about]):
            array = obs
            try:
                for key in one.get("keys", []):
                    array = array[key]
            except (KeyError, IndexError, TypeError):
                path = "/".join(map(str, one["keys"]))
                raise ValueError(f"the observation has no {path}; it is {obs!r:.100}") from None
            name = one.get("input", "obs")
            dtype = self.about["inputs"][name]["dtype"]
            arrays[name] = self._lay_out(np.asarray(array), one, dtype)[None]
        return arrays

    def allowed(self, obs: Any, info: Any) -> Any:
        """Return which actions are allowed, as one row: an environment may say it of each part of an action."""
        about = self.about["mask"]
        held = obs if about["from"] == "observation" else info
        if about["key"] not in held:
            raise ValueError(f"there is no mask of actions: {about['from']}[{about['key']!r}]")
        said = held[about["key"]]
        if "parts" not in about:
            joint = about["form"] == "joint"
            return _row_of(said, [int(np.prod(about["sizes"]))] if joint else about["sizes"])
        _refuse_strays(said, [part["keys"] for part in about["parts"]])
        rows: list[Any] = []
        for part in about["parts"]:
            one: Any = said
            try:
                for key in part["keys"]:
                    one = one[key]
            except (KeyError, IndexError, TypeError):
                one = None  # of a part without a mask all is allowed
            rows.append(
                np.ones(sum(part["sizes"]), bool) if one is None else _row_of(one, part["sizes"])
            )
        return np.concatenate(rows)

    def action_of(self, outputs: dict[str, Any]) -> Any:
        """Return what the environment takes: one array [1, ...], or a Dict or Tuple of some."""
        about = self.about["action"]
        if "parts" not in about:
            return outputs["action"][0]
        whole: dict[Any, Any] = {}
        for part in about["parts"]:
            held, (*above, last) = whole, part["keys"]
            for key in above:
                held = held.setdefault(key, {})
            held[last] = outputs[part["output"]][0]
        return _with_tuples(whole)

    def sample(self, outputs: dict[str, Any], rng: np.random.Generator) -> Any:
        """Draw an action in place of the greedy one that `action_of` returns; of Discrete and MultiDiscrete actions alone."""
        about = self.about["action"]
        joint = self.about.get("mask", {}).get("form") == "joint"
        if about["kind"] not in ("categorical", "multi_categorical") or joint:
            raise ValueError("only Discrete and MultiDiscrete actions are sampled; leave that out")
        logits = np.split(outputs["action_params"][0], np.cumsum(about["sizes"])[:-1])
        # The largest of logits with Gumbel noise is a sample of their distribution.
        drawn = np.array([np.argmax(x + rng.gumbel(size=x.shape)) for x in logits])
        if "last_action" in self._before:
            self._before["last_action"] = drawn.reshape(self._before["last_action"].shape)
        taken = outputs["action"][0]
        return (drawn + about["start"]).reshape(taken.shape).astype(taken.dtype)

    @staticmethod
    def _lay_out(obs: Any, about: dict[str, Any], dtype: str) -> Any:
        """Turn an array that the environment returns into the policy's."""
        if about["layout"] in ("one_hot", "from_zero"):
            obs = obs.ravel() - about["start"]
        if about["layout"] == "one_hot":
            return np.concatenate(
                [np.eye(n, dtype=dtype)[x] for n, x in zip(about["sizes"], obs, strict=True)]
            )
        if about["layout"] in ("channels_first", "frames_channels_first"):
            obs = np.moveaxis(obs, -1, -3)
        return obs.astype(dtype).reshape(about["policy_shape"])


def _refuse_strays(said: Any, parts: list[list[Any]], keys: Sequence[Any] = ()) -> None:
    """Refuse the mask of a Dict or Tuple action if it says something of what is none of these parts."""
    keys = list(keys)
    if said is None or keys in parts:
        return
    leads_to_parts = any(part[: len(keys)] == keys for part in parts)
    if isinstance(said, dict):
        below = list(said.items())
    elif isinstance(said, (tuple, list)) and leads_to_parts:  # lists where it comes as JSON
        below = list(enumerate(said))
    else:
        names = ", ".join("/".join(map(str, part)) for part in parts)
        raise ValueError(f"the mask is of no part of an action; the parts are {names}")
    for key, one in below:
        _refuse_strays(one, parts, [*keys, key])


def _row_of(said: Any, sizes: list[int]) -> Any:
    """Return a mask of one array, or of one for each choice, as a row; of each choice something has to be allowed."""
    row = np.concatenate([np.ravel(one) for one in said]).astype(bool)
    if len(row) != sum(sizes):
        raise ValueError(f"the mask has {len(row)} numbers, it must have {sum(sizes)}")
    for choice in np.split(row, np.cumsum(sizes)[:-1]):
        if not choice.any():
            raise ValueError(f"the mask allows none of {len(choice)} choices")
    return row


def _with_tuples(held: Any) -> Any:
    """Turn dicts whose keys are numbers into tuples."""
    if not isinstance(held, dict):
        return held
    found = {key: _with_tuples(one) for key, one in held.items()}
    return tuple(found.values()) if all(isinstance(key, int) for key in found) else found


def play(policy: Policy, seed: int | None = None) -> Iterator[Played]:
    """Play one episode greedily."""
    about = policy.about["environment"]
    module, _, name = about["make"].rpartition(".")
    needed = about.get("import", about["make"])
    if module not in ("gymnasium", "ale_py.vector_env") or needed.startswith("gossamer"):
        raise SystemExit(
            f"this program does not make environments of {needed}; play yours in a loop as that of `play` here"
        )
    if "import" in about:  # which registers the id
        importlib.import_module(needed)
    make = getattr(importlib.import_module(module), name)
    atari = module == "ale_py.vector_env"
    # Atari comes as a vector of games, here of one, whose arrays have one row.
    env = make(**about["arguments"], num_envs=1) if atari else make(**about["arguments"])
    try:
        if "task_seed" in about:  # a family: the first task of training
            env.get_wrapper_attr("set_task")(about["task_seed"])
        obs, info = env.reset(seed=seed)
        policy.reset()
        ended, quiet_steps = False, 0
        while not ended:
            seen = obs[0].copy() if atari else obs
            outputs = policy(seen, info)
            action = policy.action_of(outputs)
            obs, reward, terminated, truncated, info = env.step(action[None] if atari else action)
            ended = bool(np.any(terminated) or np.any(truncated))
            reward = float(np.sum(reward))
            quiet_steps = 0 if reward else quiet_steps + 1
            ended = ended or quiet_steps == about.get("stuck_steps")
            policy.hear(reward)
            yield Played(seen, action, reward, float(outputs["value"][0]))
    finally:
        env.close()


def main() -> None:
    """Play some episodes and print what they earned."""
    parser = argparse.ArgumentParser(description="Play an environment with an exported policy.")
    parser.add_argument("file", help="written by gossamer export --format onnx")
    parser.add_argument("--episodes", type=int, default=10, help="[10]")
    parser.add_argument("--seed", type=int, default=1, help="of the first episode [1]")
    parser.add_argument("--max-steps", type=int, default=0, help="of an episode; 0: all [0]")
    asked = parser.parse_args()
    policy = Policy(asked.file)
    print(policy.about["protocol"])
    scores: list[float] = []
    for episode in range(asked.episodes):
        steps, score = 0, 0.0
        for played in play(policy, asked.seed + episode):
            steps, score = steps + 1, score + played.reward
            if steps == asked.max_steps:
                break
        scores.append(score)
        print(f"episode {episode + 1}: {steps:,} steps, return {score:g}", flush=True)
    print(f"mean return {np.mean(scores):.4g} over {len(scores)} episodes")


if __name__ == "__main__":
    main()
