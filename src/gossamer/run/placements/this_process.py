"""Learners in this process: a host that learns a version whenever the supervisor looks."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gossamer.build.roles import build_evaluator
from gossamer.run import snapshot
from gossamer.run.host_protocol import Order, Ready
from gossamer.run.host_state import HostState
from gossamer.run.placements.host_learners import build_local_learners
from gossamer.run.placements.host_loop import HostLoop
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.loop_overlapped import learn_overlapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from gossamer.build.auto import Plan
    from gossamer.config import TrainConfig
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.host_protocol import Event, Host, LoadInitialState
    from gossamer.types import EnvSpec


class LocalOrders:
    """The supervisor's orders to learners of its own process: there is no version that others could be at."""

    has_replacement = False

    def __init__(self) -> None:
        self._number = 0
        self._waiting: Order | None = None

    def ask(self, *, ends: bool) -> int:
        """Ask for a snapshot after the present version; return the order's number."""
        self._number += 1
        self._waiting = Order(self._number, ends)
        return self._number

    def reach(self, host: int, version: int) -> Order | None:
        """Return the order to carry out now."""
        del host, version
        order, self._waiting = self._waiting, None
        return order


class ThisProcess:
    """The placement of learners in this process, which is its one host.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        checkpoint: what the learners begin with, as `LoadInitialState` returns it; its tensors are given up.
        torso: the user's own feature layers.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        plan: Plan,
        checkpoint: Checkpoint | None,
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
        resumes = checkpoint is not None and bool(checkpoint.state)
        self._loop: HostLoop
        self._learners = learners = build_local_learners(
            config,
            spec,
            plan,
            on_episode=lambda episode, learner: self._loop.on_episode(episode, learner),
            torso=torso,
            say=lambda text: self._loop.say(text),
            start=not snapshot.comes_back(checkpoint, spec),
        )
        self.names, self.stop = learners.first.policy.shared_names(), learners.stop
        try:
            if checkpoint is not None:
                began = time.monotonic()
                if not snapshot.begin_with(learners, checkpoint):
                    self.spec = replace(spec, differs=snapshot.NOT_BACK)
                self.restore_seconds = time.monotonic() - began if resumes else 0.0
            learners.join()
        except BaseException:
            learners.close()
            raise
        self._orders = LocalOrders()
        versions = learn_inline if self.evaluates == "in turn" else learn_overlapped
        self._loop = HostLoop(
            config,
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

    @property
    def version(self) -> int:
        """Version of the first learner."""
        return self._learners.version

    @property
    def updates(self) -> int:
        """Updates of the first learner."""
        return self._learners.updates

    @property
    def disagreement(self) -> Callable[[], dict[int, float]] | None:
        """Tells how far each learner is from their average; None for one learner."""
        memory = self._learners.memory
        return None if memory is None else memory.versions.disagreement

    @property
    def stuck(self) -> bool:
        """Whether a role is still at something."""
        return self._learners.stuck

    @property
    def ends_alone(self) -> bool:
        """Learners know the run's last step by themselves."""
        return True

    def absent(self) -> dict[int, int]:
        """Every learner has its place."""
        return {}

    def make_evaluator(self) -> Evaluator | None:
        """Return an evaluator of the newest policies; None where none is wanted."""
        learners = self._learners
        return build_evaluator(
            self.config, self.plan, learners.first.policy, learners.read_policy, learners.stop
        )

    def evaluate_learner_next(self, learner: int) -> None:
        """Let the next policy to be evaluated be one of independent learners."""
        if self._learners.memory is not None:
            self._learners.memory.versions.evaluate_learner_next(learner)

    def evaluate_run_policy_next(self, best: int | None) -> None:
        """Let the next policy to be evaluated be the run's."""
        if self._learners.memory is not None:
            self._learners.memory.versions.evaluate_run_policy_next(best)

    def start(self, load: LoadInitialState) -> None:
        """Be ready; everything was made and put back with the placement."""
        del load
        self.state.move("starting")

    def replace(self, index: int) -> None:
        """This process does not outlive its own death."""
        raise AssertionError

    def poll(self) -> list[tuple[int, Event]]:
        """Learn a version, or carry out an order; return what there is to tell."""
        if self.state.phase == "starting":
            return [(0, Ready(None))]
        return [(0, event) for event in self._loop.step()]

    def order(self, *, ends: bool) -> int:
        """Ask the learners to save after the present version; return the order's number."""
        return self._orders.ask(ends=ends)

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
