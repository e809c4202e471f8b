"""Environments that show what their process has begun with."""

from __future__ import annotations

import atexit
import json
import os
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class TakenApart:
    """Tells in WHERE that Python has taken its modules apart before the process ended."""

    def __del__(self) -> None:
        if "WHERE" in os.environ:
            Path(os.environ["WHERE"], f"{os.getpid()}.apart").touch()


taken_apart = TakenApart()


class Tells(gymnasium.Env[Any, Any]):
    """Writes into the folder of WHERE, for its process, what it finds there."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = {
            "value": os.environ.get("TOLD"),
            "folder": str(Path.cwd()),
            "draws": [random.random(), float(np.random.rand())],  # noqa: NPY002 - what others use
            "session": os.getsid(0),
        }
        path = Path(os.environ["WHERE"], f"{os.getpid()}.json")
        if not path.exists():
            path.write_text(json.dumps(found))
            atexit.register(path.with_suffix(".ended").touch)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, True, False, {}
