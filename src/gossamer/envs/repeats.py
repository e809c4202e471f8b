"""The trial before a run: does an episode that is played again, from its seed, stay the same?

Resuming brings environments back by playing their episodes again. Some keep something of earlier episodes,
or of other instances, or draw from a stream that no seed sets.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.envs.spaces import draw_actions
from gossamer.spec import leaves_of
from gossamer.system.signs_of_life import unwatched

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gossamer.spec import Obs
    from gossamer.types import VecEnv

EPISODE_STEPS = 100
"""Longest episode of the trial."""
EPISODE_SECONDS = 0.25
"""Its first episode is cut after so long; the others are played as far."""
TRIAL_SECONDS = 10.0
"""Longest time for all of it, instances that are slow to make included."""
STEP_SECONDS = 3.0
"""A step that takes longer ends it."""
Row = tuple[bytes, float, bool]
"""Result of a step: the observation, the reward, whether the episode is over."""


def what_differs(make: Callable[[], VecEnv], *, clock: Callable[[], float] = time.monotonic) -> str:
    """Play two episodes, both again in the same instance, the second in a fresh one; say what differs.

    They are played again in the other order: what is left of another episode shows, where the same one
    before it would have left the same.

    Args:
        make: makes one environment.
        clock: returns the seconds by which the trial's limits are kept.

    Returns:
        Words about the first difference; empty: there was none, or the environment failed or took too
        long, which a run tells better.
    """
    found: list[str] = []
    pulse = _Pulse(clock)

    def play() -> None:
        with suppress(Exception), unwatched():  # the run reports a failing environment better
            found.append(_compare(make, pulse))

    thread = threading.Thread(target=play, name="trial", daemon=True)
    until = clock() + TRIAL_SECONDS
    thread.start()
    while thread.is_alive() and clock() < min(until, pulse.step_ends_before):
        thread.join(0.05)
    pulse.over = True
    return found[0] if found else ""


class _Abandoned(Exception):
    """Nobody waits for the trial any more."""


class _Pulse:
    """Signals between a trial and whoever waits for it.

    Args:
        clock: of both.
    """

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.over = False
        """Nobody waits any more."""
        self.step_ends_before = math.inf
        """Time after which a step takes too long."""

    def check(self) -> None:
        """End the trial if nobody waits: the run's own environments are being made."""
        if self.over:
            raise _Abandoned


def _compare(make: Callable[[], VecEnv], pulse: _Pulse) -> str:
    with closing(make()) as envs:
        first = [_play(envs, 0, pulse, EPISODE_STEPS, EPISODE_SECONDS)]
        # Slow environments play all as far as the first one came in its time.
        most = EPISODE_STEPS if first[0][-1][2] else len(first[0]) - 1
        first.append(_play(envs, 1, pulse, most))
        again = [_play(envs, episode, pulse, most) for episode in (1, 0)]
    pulse.step_ends_before = math.inf
    pulse.check()
    with closing(make()) as envs:
        again.append(_play(envs, 1, pulse, most))
    pairs = zip((first[1], first[0], first[1]), again, strict=True)
    return next(filter(None, (_difference(one, other) for one, other in pairs)), "")


def _play(
    envs: VecEnv, episode: int, pulse: _Pulse, most: int, seconds: float = math.inf
) -> list[Row]:
    """Play an episode by actions that depend on its number alone; the first row has no reward."""
    rng = np.random.default_rng(episode)
    pulse.check()
    pulse.step_ends_before = pulse.clock() + STEP_SECONDS
    obs = envs.start(np.array([episode]))
    rows = [(_bytes_of(obs), 0.0, False)]
    until = pulse.clock() + seconds
    while not rows[-1][2] and len(rows) <= most:
        pulse.check()
        pulse.step_ends_before = pulse.clock() + STEP_SECONDS
        mask = leaves_of(obs)[envs.spec.mask.name] if envs.spec.mask else None
        envs.send(draw_actions(envs.spec.action, 1, rng, mask))
        result = envs.recv()
        obs = result.obs
        rows.append((_bytes_of(result.obs), float(result.reward[0]), bool(result.ended[0])))
        if pulse.clock() > until:
            break
    return rows


def _bytes_of(obs: Obs[NDArray[Any]]) -> bytes:
    return b"".join(x.tobytes() for x in leaves_of(obs).values())


def _difference(one: list[Row], other: list[Row]) -> str:
    for steps, (a, b) in enumerate(zip(one, other, strict=False)):
        for name, x, y in zip(("observation", "reward", "end"), a, b, strict=True):
            if x != y and not (x != x and y != y):
                return f"an episode played again from its seed has another {name} after {steps} step{'s' * (steps != 1)}"
    return ""
