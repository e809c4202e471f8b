"""When a run logs, saves and ends: asked by every launcher after each version."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gossamer.launch import snapshot

if TYPE_CHECKING:
    from types import FrameType

    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.evaluator import Evaluation
    from gossamer.group import Group
    from gossamer.launch.recorder import Recorder
    from gossamer.record.checkpoint import CheckpointStore


SHOW_CURSOR = "\033[?25h"
STOPPING = "saving, then stopping; once more ends it at once"
ENDED_AT_ONCE = "ended at once; what was saved before can be resumed"


def end_of(
    config: TrainConfig, *, env_steps: int, seconds: float, mean_return: float | None
) -> str:
    """Say which end a run has reached; empty: none.

    Args:
        config: where the run ends.
        env_steps: learnt from so far.
        seconds: of all sittings.
        mean_return: of the last 100 training episodes; None before there are 100.
    """
    if env_steps >= config.total_env_steps:
        return "done: total_env_steps reached"
    if config.stop_after_seconds and seconds >= config.stop_after_seconds:
        return "done: stop_after_seconds reached"
    goal = config.stop_at_return
    if goal is not None and mean_return is not None and mean_return >= goal:
        return "done: stop_at_return reached"
    return ""


OWN_POLICY = ("single", "allreduce")
"""Topologies in which the policy of a run is that of one learner."""
VERSIONS_REMEMBERED = 100_000
"""An evaluation may end this many versions after its own."""


class Control:
    """Decides between two versions whether to log, save or end."""

    def __init__(self, config: TrainConfig, recorder: Recorder, store: CheckpointStore):
        self.exit_reason = ""
        self._config, self._recorder, self._store = config, recorder, store
        self._saver = snapshot.BackgroundSaver(store)
        self._saved_at = time.monotonic()
        self._saved_updates = -1
        self._evaluated_at = time.monotonic()
        self._signals = 0
        self._stopped_by = ""  # written by the handler alone, so that no signal is lost
        self._group: Group | None = None
        self._scores: dict[int, float] = {}  # by learner that is scored on its own
        self._updates_of: dict[int, int] = {}  # version -> updates behind it, for evaluations
        self._beginning: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def begin(self, group: Group) -> None:
        """Take charge of a group that is ready to run."""
        self._group = group
        self._evaluated_at = self._saved_at = time.monotonic()
        learner = group.first.learner
        self._updates_of[learner.version] = learner.update
        if learner.version == 0:
            self._beginning = snapshot.take(group, self._records())

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: end after this version, saving. Second: end now."""
        self._signals += 1
        if self._signals > 1:
            for worker in multiprocessing.active_children():
                worker.kill()  # one that is stuck in a step would outlive us
            _tell(f"gossamer: {ENDED_AT_ONCE}")
            os._exit(128 + number)
        self._stopped_by = f"stopped by {signal.Signals(number).name}"
        if not self._recorder.notice(STOPPING):
            _tell(f"gossamer: {STOPPING}")

    def interrupted(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._signals > 0

    def after_version(self, metrics: list[dict[str, float]]) -> bool:
        """Log every learner's metrics, and save when it is time; return whether the run has ended.

        Asked once: a signal or a deadline that comes later counts for the next version, so what a
        run ends with is what was saved.
        """
        group = self._group
        assert group is not None
        recorder = self._recorder
        if not self.exit_reason:
            self.exit_reason = end_of(
                self._config,
                env_steps=group.env_steps,
                seconds=recorder.seconds(),
                mean_return=recorder.mean_return() if recorder.full_window() else None,
            )
        self.exit_reason = self.exit_reason or self._stopped_by
        last = bool(self.exit_reason)
        learner = group.first.learner
        self._updates_of[learner.version] = learner.update
        self._updates_of.pop(learner.version - VERSIONS_REMEMBERED, None)
        if self._beginning is not None:
            # What the run began with, so that it can be resumed from any moment on; written only
            # now, as it would hold up the first update.
            self._saver.save(0, *self._beginning)
            self._beginning = None
        recorder.on_version(group, metrics, last=last)
        every = self._config.checkpoint_every_seconds
        due = every and time.monotonic() - self._saved_at >= every and not self._saver.busy
        if last or due:
            self.save()
        return last

    def save(self) -> None:
        """Take a checkpoint and write it while training goes on."""
        group = self._group
        assert group is not None
        began = time.monotonic()
        updates = group.first.learner.update
        if updates == self._saved_updates:
            return
        tensors, state = snapshot.take(group, {})
        # Only now: episodes of a trajectory that was waited for were recorded meanwhile.
        state |= self._records()
        self._saver.save(updates, tensors, state)
        self._saved_at, self._saved_updates = time.monotonic(), updates
        group.first.checkpoint_seconds += time.monotonic() - began

    def _records(self) -> dict[str, Any]:
        assert self._group is not None
        best = max(self._scores, key=self._scores.__getitem__, default=0)
        own = len(self._group.parts) == 1 or self._config.topology.name in OWN_POLICY
        return {
            "recorder": self._recorder.state_dict(self._group.env_steps),
            "num_learners": len(self._group.parts),
            "policy_of": best if own else None,  # None: the average of all
        }

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; raise OSError if it could not be written."""
        self._saver.finish()

    def evaluation_due(self) -> bool:
        """Whether a launcher without an evaluator thread should evaluate now."""
        evaluator = self._group.evaluator if self._group is not None else None
        return evaluator is not None and time.monotonic() - self._evaluated_at >= evaluator.pause

    def on_evaluation(
        self, result: Evaluation, version: int, params: list[Tensor], learner: int | None
    ) -> None:
        """Record an evaluation and keep the parameters if they are the best so far.

        Args:
            result: what was earned.
            version: of the parameters.
            params: parameters and moments.
            learner: whose they are; None: the average of all.
        """
        group = self._group
        assert group is not None
        first, config = group.first, self._config
        self._evaluated_at = time.monotonic()
        updates = self._updates_of.get(version, first.learner.update)
        env_steps = version * group.steps_per_version
        # Of learners that mix their parameters the average is the run's policy.
        ships = learner is None or config.num_learners == 1 or config.topology.name in OWN_POLICY
        self._recorder.on_evaluation(
            result,
            version=version,
            updates=updates,
            env_steps=env_steps,
            learner=learner,
            ships=ships,
        )
        if learner is not None and config.topology.name == "single":
            self._scores[learner] = result.mean
        if not ships:
            return
        names = first.policy.shared_names()
        tensors = {f"learner.policy.{k}": x for k, x in zip(names, params, strict=True)}
        state: dict[str, Any] = {"version": version, "env_steps": env_steps, "mean": result.mean}
        self._store.save_best(updates, tensors, state, result.mean)


def _tell(line: str) -> None:
    """Write from a signal handler: whatever writing it has interrupted, and if nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        error = sys.stderr.fileno()
        # in a terminal: not beside the ^C, and the live panel hides the cursor
        text = f"\n{line}\n{SHOW_CURSOR}" if os.isatty(error) else f"{line}\n"
        if select.select([], [error], [], 0)[1]:  # a full pipe would hold us for ever
            os.write(error, text.encode())


class signals:  # noqa: N801 - reads as a statement
    """Context in which the first SIGINT or SIGTERM ends the run cleanly, the second at once."""

    def __init__(self, control: Control):
        self._control = control
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        """Take the signals over; they can only be taken by the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._control.on_signal)

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
