"""Steps/s of a run with a mask of actions, divided by those of the same run with the mask turned off, in turns.

    python benchmarks/masked_speed.py
    python benchmarks/masked_speed.py --seconds 120 --logits 32 -- algorithm:vtrace
    python benchmarks/masked_speed.py --busy 50

The environment costs what CartPole does and reports in infos which of its actions are allowed: half of them, other ones at every
step. With --env.mask off the same infos are made and nobody reads them. --busy makes a step longer, as it is in other simulators:
CartPole takes about 8 microseconds, MiniGrid 60 to 150, Box2D 100 and more. Nothing else should run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from alternate import SRC, Alternate, print_ratio
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

LOGITS, BUSY = "GOSSAMER_MASKED_LOGITS", "GOSSAMER_MASKED_BUSY"
LENGTH = 100


class Choices(gymnasium.Env[Any, Any]):
    """CartPole, held upright whatever is chosen; pays for the first allowed action."""

    def __init__(self) -> None:
        n = int(os.environ.get(LOGITS, "32"))
        self._cart = CartPoleEnv()
        self.observation_space = self._cart.observation_space
        self.action_space = spaces.Discrete(n)
        rng = np.random.default_rng(0)
        self._masks = (rng.random((64, n)) < 0.5).astype(np.int8)
        self._masks[:, -1] = 1
        self._busy_seconds = float(os.environ.get(BUSY, "0")) * 1e-6

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        self._obs, _ = self._cart.reset(seed=seed)
        return self._obs, {"action_mask": self._masks[0]}

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + self._busy_seconds
        reward = float(action == self._masks[self._steps % 64].argmax())
        self._steps += 1
        _, _, lean, falls = self._obs
        self._obs = self._cart.step(int(lean + falls > 0))[0]
        info = {"action_mask": self._masks[self._steps % 64]}
        while time.perf_counter() < until:
            pass
        return self._obs, reward, self._steps >= LENGTH, False, info


def make() -> Choices:
    return Choices()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    told = "times that both are started"
    parser.add_argument(
        "--pairs", type=int, default=4, choices=range(1, 1000), metavar="N", help=told
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run, in all pairs")
    parser.add_argument("--turn", type=float, default=4.0, help="seconds at a time")
    parser.add_argument("--logits", type=int, default=32)
    parser.add_argument("--busy", type=float, default=0.0, help="microseconds of a step, at least")
    parser.add_argument("words", nargs="*", help="further settings of both runs, after --")
    asked = parser.parse_args()
    os.environ |= {LOGITS: str(asked.logits), BUSY: str(asked.busy)}
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [here, os.environ.get("PYTHONPATH", "")])
    )
    words = ["masked_speed:make", *asked.words, "--total-env-steps", "10_000_000_000"]
    words += ["--evaluation.every-seconds", "0", "--env.mask"]

    def make(folder: Path) -> tuple[Alternate, Alternate]:
        off, info = (
            Alternate([*words, x], folder / x, SRC, sys.executable) for x in ("off", "info")
        )
        return off, info

    print_ratio(make, pairs=asked.pairs, seconds=asked.seconds, turn=asked.turn)


if __name__ == "__main__":
    main()
