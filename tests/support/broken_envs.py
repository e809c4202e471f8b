"""Environments that go wrong in one way each."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import inspect
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces

from gossamer.record import files

if TYPE_CHECKING:
    from gossamer.run.placements.host_learners import HostLearners

RELEASED = threading.Event()
"""Set by a test that has seen enough of `Stuck`."""


def mark_stuck() -> None:
    """Write a letter into the file that a test waits for."""
    if mark := os.environ.get("STUCK_FILE"):
        with Path(mark).open("a") as file:
            file.write(".")


def hang() -> None:
    """Return only when released; a test that waits for it finds a file."""
    mark_stuck()
    RELEASED.wait(600)


class Plain(gymnasium.Env[Any, Any]):
    """Twenty steps of random numbers, paid 1 each."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), self.reward(), self.steps == 20, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reward(self) -> float:
        return 1.0


class Raises(Plain):
    """Fails in the middle of its first episode."""

    def reward(self) -> float:
        if self.steps == 15:
            _ignite_motor()
        return 1.0


def _ignite_motor() -> None:
    raise ValueError("the motor is on fire")


class Kills(Plain):
    """Takes its process with it when it is stepped for the tenth time."""

    def reward(self) -> float:
        if self.steps == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0


class KillsChildren(Plain):
    """Does so in processes that a run has started, at the second step."""

    def reward(self) -> float:
        if self.steps == 2 and "placements" in sys.argv[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0


class Leaves(Plain):
    """Ends its process, as if all were well, when it is stepped for the fifteenth time."""

    def reward(self) -> float:
        if self.steps == 15:
            os._exit(0)
        return 1.0


class LeavesAtOnce(Plain):
    """Ends its process in the first step."""

    def reward(self) -> float:
        os._exit(3)


class Crashes(Plain):
    """Ends its process in the first step as native code that reads where nothing is."""

    def reward(self) -> float:
        os.kill(os.getpid(), signal.SIGSEGV)
        return 1.0


class LeavesLater(Plain):
    """Does so after a thousand steps of all its kind."""

    taken = 0

    def reward(self) -> float:
        LeavesLater.taken += 1
        if LeavesLater.taken == 1000:
            os._exit(0)
        return 1.0


class ForksHelpers(Plain):
    """Begins a process of its own at every reset, and ends the one before."""

    helper: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.close()
        self.helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        self.helper.start()
        return super().reset(seed=seed)

    def close(self) -> None:
        if self.helper is not None:
            self.helper.terminate()
            self.helper.join()


class StartsPrograms(Plain):
    """Starts a program at every reset, and asks the one before to end."""

    program: subprocess.Popen[bytes] | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.close()
        self.program = subprocess.Popen(["sleep", "600"])
        return super().reset(seed=seed)

    def close(self) -> None:
        if self.program is not None:
            self.program.terminate()
            self.program.wait(20.0)


class ClosesFiles(Plain):
    """Closes the files of others in the middle of its first episode."""

    def reward(self) -> float:
        if self.steps == 15:
            os.closerange(3, 300)
        return 1.0


class OddText(Plain):
    """Fails with a text that no encoding has."""

    def reward(self) -> float:
        if self.steps == 15:
            raise ValueError("no letter: \ud800\udcff")
        return 1.0


class ManyStates(Plain):
    observation_space = spaces.Discrete(3_000_000_000)


class ManyActions(Plain):
    action_space = spaces.Discrete(3_000_000_000)


class Uncountable(Plain):
    observation_space = spaces.Discrete(2**62)


class Poster(Plain):
    @property
    def observation_space(self) -> Any:  # made when asked for: its bounds take much memory
        return spaces.Box(0, 255, (2_000, 2_000, 3), np.uint8)


class ManyChoices(Plain):
    action_space = spaces.MultiDiscrete([10_000] * 20_000)


class NanReward(Plain):
    def reward(self) -> float:
        return float("nan") if self.steps > 1 else 1.0


class NanOnce(Plain):
    """One reward of the whole process is not a number, and none before a run has begun."""

    steps_of_all = 0
    spoilt = False

    def reward(self) -> float:
        NanOnce.steps_of_all += 1
        if not NanOnce.spoilt and NanOnce.steps_of_all == 300:
            NanOnce.spoilt = True
            return float("nan")
        return 1.0


class NanObs(Plain):
    def observe(self) -> Any:
        return np.full(3, np.nan if self.steps > 1 else 0.0, np.float32)


class Stuck(Plain):
    """Never returns from a step."""

    def reward(self) -> float:
        if self.steps == 15:
            hang()
        return 1.0


class StuckOnce(Plain):
    """In the process of learner 0 alone the first of its learners never returns from a step."""

    stuck = False

    def reward(self) -> float:
        if not StuckOnce.stuck and self.steps == 15 and _first_to_get_here():
            StuckOnce.stuck = True
            hang()
        return 1.0


def _first_to_get_here() -> bool:
    """Whether this is learner 0's process, the lowest of its kin, and no trial before the run."""
    if threading.current_thread().name == "trial":
        return False
    parent = psutil.Process().parent()
    assert parent is not None
    kin = [x.pid for x in parent.children() if "gossamer.run" in " ".join(x.cmdline())]
    return min(kin, default=0) == os.getpid()


class Spins(Plain):
    """Never returns from a step, and keeps its core busy."""

    def reward(self) -> float:
        if self.steps == 15:
            mark_stuck()
        while self.steps == 15:
            pass
        return 1.0


class Slow(Plain):
    """Takes its time over every step."""

    def reward(self) -> float:
        time.sleep(0.05)
        return 1.0


class SlowToMake(Plain):
    """Takes its time to come into being."""

    def __init__(self) -> None:
        time.sleep(1.1)


class StuckAtStart(Plain):
    """Only the first three of a process come into being: they are tried."""

    made = 0

    def __init__(self) -> None:
        StuckAtStart.made += 1
        if self.made > 3:
            hang()


class StuckInWorkers(Plain):
    """Comes into being in the supervisor only."""

    def __init__(self) -> None:
        if multiprocessing.parent_process() is not None:
            hang()


class StuckInEvaluation(Plain):
    """Never returns from a step when it is played by an evaluation."""

    def __init__(self) -> None:
        self.evaluated = any(x.function == "_evaluation_envs" for x in inspect.stack(0))

    def reward(self) -> float:
        if self.evaluated:
            hang()
        return 1.0


class SlowInEvaluation(StuckInEvaluation):
    """Takes its time over every step when it is played by an evaluation."""

    def reward(self) -> float:
        if self.evaluated:
            time.sleep(0.5)
        return 1.0


class Dawdles(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that pauses now and then, when and for how long no seed tells."""

    chance = random.SystemRandom()

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        if self.chance.random() < 0.1:
            time.sleep(self.chance.uniform(0.0, 0.003))
        return super().step(action)


class Unseeded(Plain):
    """Registered as one that cannot be brought back."""

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode


gymnasium.register("Unseeded-v0", entry_point=Unseeded, nondeterministic=True)


class DictObs(Plain):
    observation_space = spaces.Dict({"a": spaces.Discrete(2)})


class TupleObs(Plain):
    observation_space = spaces.Tuple([spaces.Discrete(2)])


class TextObs(Plain):
    observation_space = spaces.Text(4)


class TextAction(Plain):
    action_space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Text(4)})


def nothing() -> None:
    """Returns no environment."""


def several() -> gymnasium.vector.VectorEnv:
    """Returns environments that are stepped at once."""
    return gymnasium.vector.VectorEnv()


class not_derived:  # noqa: N801
    """An environment that does not derive from Gymnasium's, as those of Gym."""

    def step(self, action: int) -> tuple[int, float, bool, dict]:
        return 0, 0.0, True, {}


NOT_CALLABLE = 3


class HangsInNativeCode(Plain):
    """Its tenth step is a call that no signal interrupts."""

    def reward(self) -> float:
        if self.steps == 10:
            mark_stuck()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        return 1.0


class Interrupts(Plain):
    """Is interrupted while it is made, and its library complains as the interpreter ends."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(os.write, 2, b"leaked 1 instances!\n")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60.0)


class HoldsTheLock(Plain):
    """After some steps of this process one is a call that holds the interpreter's lock and never returns."""

    taken = 0

    def reward(self) -> float:
        HoldsTheLock.taken += 1
        if HoldsTheLock.taken == 2000:
            mark_stuck()
            ctypes.PyDLL(None).sleep(600)
        return 1.0


class LocksAtOnce(Plain):
    """Its first step is such a call."""

    def reward(self) -> float:
        mark_stuck()
        ctypes.PyDLL(None).sleep(600)
        return 1.0


class SlowDisk(Plain):
    """After some steps this process writes to disk a little at a time."""

    seconds = 0.08
    taken = 0

    def reward(self) -> float:
        SlowDisk.taken += 1
        if SlowDisk.taken == 1000:
            files.SLICE_BYTES = 1000
            os.fdatasync = lambda _: time.sleep(self.seconds)
            mark_stuck()
        return 1.0


class DeadDisk(SlowDisk):
    """After some steps what this process writes to disk never gets there."""

    seconds = 600.0


class HangsInClose(Plain):
    """Does not close once this process has trained."""

    taken = 0

    def reward(self) -> float:
        HangsInClose.taken += 1
        return 1.0

    def close(self) -> None:
        if HangsInClose.taken > 150:  # more than the trial before a run takes
            mark_stuck()
            self.fail()

    def fail(self) -> None:
        RELEASED.wait(600)


class HangsInNativeClose(HangsInClose):
    """Hangs where no signal interrupts it."""

    def fail(self) -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


class GivesUpInClose(HangsInClose):
    """Is given up as it closes, in the process that is done first; what the other learns comes later."""

    is_first: bool | None = None

    def reward(self) -> float:
        if HangsInClose.taken > 100 and GivesUpInClose.is_first is None:
            first = Path(os.environ["STUCK_FILE"]).with_suffix(".first")
            GivesUpInClose.is_first = False
            with suppress(FileExistsError), first.open("x"):
                GivesUpInClose.is_first = True
        if GivesUpInClose.is_first is False and HangsInClose.taken < 200:
            HangsInClose.taken = 200
            until = time.monotonic() + 60.0
            while not Path(os.environ["STUCK_FILE"]).exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(1.0)
        return super().reward()

    def fail(self) -> None:
        if GivesUpInClose.is_first:
            raise BaseExceptionGroup("", [KeyboardInterrupt()])


class CrashesInClose(HangsInClose):
    """Takes its process with it."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class DiesAtItsEnd(Plain):
    """Kills one process when it takes the snapshot with which it would end."""

    taken = 0

    def reward(self) -> float:
        DiesAtItsEnd.taken += 1
        if DiesAtItsEnd.taken == 100:
            from gossamer.run import snapshot  # not where torch is not needed

            take = snapshot.take

            def take_or_die(learners: HostLearners, **how: Any) -> Any:
                if learners.has_learnt(512):
                    with suppress(FileExistsError), Path(os.environ["STUCK_FILE"]).open("x"):
                        os.kill(os.getpid(), signal.SIGKILL)
                return take(learners, **how)

            snapshot.take = take_or_die
        return 1.0
