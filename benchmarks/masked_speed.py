"""Steps/s of a run with a mask of actions, divided by those of the same run with the mask turned off, in pairs.

    python benchmarks/masked_speed.py
    python benchmarks/masked_speed.py --pairs 6 --steps 200_000 --logits 32 -- algorithm:vtrace

The environment is as cheap as CartPole and reports in infos which of its actions are allowed: half of them, other ones at every
step. With --env.mask off the same infos are made and nobody reads them. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LOGITS = "GOSSAMER_MASKED_LOGITS"
LENGTH = 100


class Choices(gymnasium.Env[Any, Any]):
    """Pays for the first allowed action."""

    def __init__(self) -> None:
        n = int(os.environ.get(LOGITS, "32"))
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(n)
        rng = np.random.default_rng(0)
        self._masks = rng.random((64, n)) < 0.5
        self._masks[:, -1] = True
        self._seen = rng.uniform(-1.0, 1.0, (64, 4)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen[0], {"action_mask": self._masks[0]}

    def step(self, action: Any) -> Any:
        reward = float(action == self._masks[self._steps % 64].argmax())
        self._steps += 1
        at = self._steps % 64
        info = {"action_mask": self._masks[at]}
        return self._seen[at], reward, self._steps >= LENGTH, False, info


def make() -> Choices:
    return Choices()


def steps_per_second(mask: str, steps: int, words: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "gossamer",
            "train",
            "masked_speed:make",
            "--run-folder",
            str(run),
        ]
        command += [
            "--total-env-steps",
            str(steps),
            "--env.mask",
            mask,
            "--evaluation.every-seconds",
            "0",
        ]
        subprocess.run([*command, *words], check=True, capture_output=True, timeout=1_000)
        rows = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
        # The first third is the start: imports, caches, the first updates.
        late = [x for x in rows if x["env_steps"] >= steps / 3]
        first, last = late[0], late[-1]
        return (last["env_steps"] - first["env_steps"]) / (last["time_s"] - first["time_s"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--logits", type=int, default=32)
    parser.add_argument("words", nargs="*", help="further settings of both runs, after --")
    asked = parser.parse_args()
    os.environ[LOGITS] = str(asked.logits)
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [here, os.environ.get("PYTHONPATH", "")])
    )
    ratios: list[float] = []
    for i in range(asked.pairs):
        order = ("info", "off") if i % 2 else ("off", "info")
        found = {mask: steps_per_second(mask, asked.steps, asked.words) for mask in order}
        ratios.append(found["info"] / found["off"])
        print(
            f"masked {found['info']:,.0f}, not {found['off']:,.0f} steps/s: {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
