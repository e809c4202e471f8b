"""Learners in this process: a host that learns a version whenever the supervisor looks."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gossamer.build.roles import build_evaluator
from gossamer.run import snapshot
from gossamer.run.checkpoint_contents import RunState
from gossamer.run.host_protocol import Ready
from gossamer.run.host_state import HostState
from gossamer.run.placements.host_learners import build_learners
from gossamer.run.placements.host_loop import HostLoop
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.loop_overlapped import learn_overlapped
from gossamer.run.placements.orders import SharedOrders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.checkpoint_contents import InitialState
    from gossamer.run.host_protocol import Event, Host, LoadInitialState
    from gossamer.run.placements.shared_memory import PolicyBoards
    from gossamer.spec import EnvSpec


class ThisProcess:
    """The placement of learners in this process, which is its one host.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        initial: state that the learners begin with; its tensors are given up.
        torso: the user's own feature layers.
    """

    ends_alone = True
    """Learners know the run's last step by themselves."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        plan: Plan,
        initial: InitialState | None,
        torso: torch.nn.Module | None = None,
    ):
        self.config, self.spec, self.plan = config, spec, plan
        self.evaluates: Literal["in turn", "beside"] = (
            "in turn" if config.placement == "inline" else "beside"
        )
        self.hosts: Sequence[Host] = [self]
        self.ranks, self.pid = range(config.num_learners), os.getpid()
        self.machine, self.here, self.state = "", True, HostState()
        self.restore_seconds: float | None = 0.0
        self.before_snapshot: Callable[[], None] = lambda: None
        self.asked_to_stop: Callable[[], bool] = lambda: False
        self._early: list[str] = []  # lines of actors that die while they are brought back
        self.say: Callable[[str], None] = self._early.append
        self._learners = learners = build_learners(
            config,
            spec,
            plan,
            torso=torso,
            # At once, from an actor's thread: the learner may wait for that actor for long.
            say=lambda text: self.say(text),
            start=not snapshot.is_repeatable(initial, spec),
        )
        self.names, self.stop = learners.first.policy.shared_names(), learners.stop
        try:
            if initial is not None:
                began = time.monotonic()
                if differs := snapshot.restore(learners, initial):
                    self.spec = replace(spec, differs=differs)
                if isinstance(initial, RunState):
                    self.restore_seconds = time.monotonic() - began
            learners.join()
        except BaseException:
            with contextlib.suppress(Exception):  # what has failed may not close either
                learners.close()
            raise
        self._orders = SharedOrders(mmap.mmap(-1, SharedOrders.nbytes(1)))
        versions = learn_inline if self.evaluates == "in turn" else learn_overlapped
        self._loop = HostLoop(
            learners,
            versions(learners),
            self._orders,
            here=True,
            before_snapshot=lambda: self.before_snapshot(),
        )

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners."""
        return self._learners.env_steps

    def env_steps_of(self, rank: int) -> int:
        """Decisions that a learner has learnt from."""
        return self._learners.parts[rank].learner.own_env_steps

    @property
    def version(self) -> int:
        """Version of the first learner."""
        return self._learners.first.learner.version

    @property
    def updates(self) -> int:
        """Updates of the first learner."""
        return self._learners.first.learner.update

    @property
    def boards(self) -> PolicyBoards | None:
        """The newest policies of all learners; None for one learner."""
        memory = self._learners.memory
        return None if memory is None else memory.versions

    @property
    def stuck(self) -> bool:
        """Whether a role is still at something."""
        return self._learners.stuck

    def absent(self) -> dict[int, int]:
        """Every learner has its place."""
        return {}

    def make_evaluator(self) -> Evaluator | None:
        """Return an evaluator of the newest policies; None where none is wanted."""
        learners = self._learners
        return build_evaluator(
            self.config, self.plan, learners.first.policy, learners.read_policy, learners.stop
        )

    def start(self, load: LoadInitialState) -> None:
        """Be ready; everything was made and restored with the placement."""
        del load
        self.state.move("starting")
        for text in self._early:
            self.say(text)

    def replace(self, index: int) -> None:
        """This process does not outlive its own death."""
        raise AssertionError

    def poll(self) -> list[tuple[int, Event]]:
        """Learn a version, or carry out an order; return what there is to tell."""
        events = [Ready(None)] if self.state.phase == "starting" else self._loop.step()
        return [(0, event) for event in events]

    def order(self, *, ends: bool) -> int:
        """Ask the learners to save after the present version; return the order's number."""
        return self._orders.announce(ends=ends, together=False)

    def show_life(self) -> None:
        """Let actors know that the learner waits for a disk, which gets on."""
        for parts in self._learners.parts:
            parts.learner.sign.beats += 1

    def end(self) -> None:
        """End the roles."""
        self.stop.stop()
        with contextlib.suppress(ValueError):  # amid a step, from which an error comes
            self._loop.close()

    def close(self) -> None:
        """Free what outlives threads."""
        self._learners.close()
