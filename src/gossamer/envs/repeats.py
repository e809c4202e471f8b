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
from gossamer.system.importing import RAISED
from gossamer.system.signs_of_life import made_until, unwatched

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
BESIDE_SECONDS = 2.0
"""An environment that takes longer to make is not made twice at once."""
STEP_SECONDS = 3.0
"""A step that takes longer ends it."""
LEAVING_SECONDS = 5.0
"""Longest wait for it to close what it has made when it is interrupted."""
Row = tuple[bytes, float, bool]
"""Result of a step: the observation, the reward, whether the episode is over."""


def what_differs(
    make: Callable[..., VecEnv], *, clock: Callable[[], float] = time.monotonic
) -> str:
    """Play two episodes, both again in the same instance, the second in a fresh one; say what differs.

    They are played again in the other order: what is left of another episode shows, where the same one
    before it would have left the same. Beside the fresh instance another one is stepped: what every reset sets for
    all instances would come back each time if there were never two of them.

    Args:
        make: makes environments, for the argument num_envs.
        clock: returns the seconds by which the trial's limits are kept.

    Returns:
        Words about the first difference; empty: there was none, or the environment failed or took too
        long, which a run tells better.
    """
    found: list[str] = []
    pulse = _Pulse(clock)

    def play() -> None:
        with (
            suppress(Exception),
            unwatched(),
            made_until(lambda: pulse.over),
        ):  # the run reports a failing environment better
            found.append(_compare(make, pulse))

    thread = threading.Thread(target=play, name="trial", daemon=True)
    until = clock() + TRIAL_SECONDS
    thread.start()
    try:
        while thread.is_alive() and clock() < min(until, pulse.step_ends_before):
            thread.join(0.05)
    except BaseException:  # Ctrl-C: a simulator may be a process, which would outlive this one
        pulse.over = True
        thread.join(LEAVING_SECONDS)
        raise
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


def _compare(make: Callable[..., VecEnv], pulse: _Pulse) -> str:
    began = pulse.clock()
    with closing(make(num_envs=1)) as envs:
        is_slow = pulse.clock() - began > BESIDE_SECONDS
        first = [_play(envs, 0, pulse, EPISODE_STEPS, EPISODE_SECONDS)]
        # Slow environments play all as far as the first one came in its time.
        most = EPISODE_STEPS if first[0][-1][2] else len(first[0]) - 1
        first.append(_play(envs, 1, pulse, most))
        again = [_play(envs, episode, pulse, most) for episode in (1, 0)]
    if differs := _difference(first[1], again[0]) or _difference(first[0], again[1]):
        return differs
    pulse.step_ends_before = math.inf
    pulse.check()
    with closing(make(num_envs=1) if is_slow else _make_two(make, pulse)) as envs:
        where = ", in a new instance" + " beside another" * (envs.num_envs > 1) + ","
        return _difference(first[1], _play(envs, 1, pulse, most), where)


def _make_two(make: Callable[..., VecEnv], pulse: _Pulse) -> VecEnv:
    """Make two environments, or one that bears no other beside it."""
    try:
        return make(num_envs=2)
    except RAISED:
        pulse.check()
        return make(num_envs=1)


def _play(
    envs: VecEnv, episode: int, pulse: _Pulse, most: int, seconds: float = math.inf
) -> list[Row]:
    """Play an episode of the first environment by actions that depend on its number alone; the first row has no reward.

    Others are stepped with it, by actions of their own.
    """
    n = envs.num_envs
    rngs = [np.random.default_rng((episode, i)) for i in range(n)]
    pulse.check()
    pulse.step_ends_before = pulse.clock() + STEP_SECONDS
    obs = envs.start(np.full(n, episode))
    rows = [(_bytes_of(obs), 0.0, False)]
    until = pulse.clock() + seconds
    while not rows[-1][2] and len(rows) <= most:
        pulse.check()
        pulse.step_ends_before = pulse.clock() + STEP_SECONDS
        mask = leaves_of(obs)[envs.spec.mask.name] if envs.spec.mask else None
        actions = [
            draw_actions(envs.spec.action, 1, rng, None if mask is None else mask[i : i + 1])
            for i, rng in enumerate(rngs)
        ]
        envs.send(np.concatenate(actions))
        result = envs.recv()
        obs = result.obs
        rows.append((_bytes_of(result.obs), float(result.reward[0]), bool(result.ended[0])))
        if pulse.clock() > until:
            break
    return rows


def _bytes_of(obs: Obs[NDArray[Any]]) -> bytes:
    return b"".join(x[0].tobytes() for x in leaves_of(obs).values())


def _difference(one: list[Row], other: list[Row], where: str = "") -> str:
    for steps, (a, b) in enumerate(zip(one, other, strict=False)):
        for name, x, y in zip(("observation", "reward", "end"), a, b, strict=True):
            if x != y and not (x != x and y != y):
                return f"an episode played again from its seed{where} has another {name} after {steps} step{'s' * (steps != 1)}"
    return ""
