"""When a run logs, saves and ends: asked by every launcher after each version."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from gossamer.launch import snapshot

if TYPE_CHECKING:
    from types import FrameType

    from torch import Tensor

    from gossamer.build import Parts
    from gossamer.config import TrainConfig
    from gossamer.evaluator import Evaluation
    from gossamer.launch.recorder import Recorder
    from gossamer.record.checkpoint import CheckpointStore


class Control:
    """Decides between two versions; the launcher's loop runs until `finished`."""

    def __init__(self, config: TrainConfig, recorder: Recorder, store: CheckpointStore):
        self.exit_reason = ""
        self._config, self._recorder, self._store = config, recorder, store
        self._saver = snapshot.BackgroundSaver(store)
        self._saved_at = time.monotonic()
        self._saved_updates = -1
        self._evaluated_at = time.monotonic()
        self._signals = 0
        self._parts: Parts | None = None

    def begin(self, parts: Parts) -> None:
        """Take charge of parts that are ready to run."""
        self._parts = parts
        self._saved_at = self._evaluated_at = time.monotonic()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: end after this update, saving. Second: end now."""
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self.exit_reason = f"stopped by {signal.Signals(number).name}"

    def interrupted(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._signals > 0

    def finished(self) -> bool:
        """Whether the run has reached an end; `exit_reason` then says which."""
        assert self._parts is not None
        if self.exit_reason:
            return True
        config = self._config
        mean = self._recorder.mean_return()
        if self._parts.learner.env_steps >= config.total_env_steps:
            self.exit_reason = "done: total_env_steps reached"
        elif config.stop_after_seconds and self._recorder.seconds() >= config.stop_after_seconds:
            self.exit_reason = "done: stop_after_seconds reached"
        elif config.stop_at_return is not None and mean is not None and self._full_window():
            if mean >= config.stop_at_return:
                self.exit_reason = "done: stop_at_return reached"
        return bool(self.exit_reason)

    def _full_window(self) -> bool:
        return self._recorder.episodes.count >= 100

    def after_version(self, metrics: dict[str, float]) -> None:
        """Log, and save when it is time."""
        assert self._parts is not None
        last = self.finished()
        self._recorder.on_version(self._parts, metrics, last=last)
        every = self._config.checkpoint_every_seconds
        due = every and time.monotonic() - self._saved_at >= every and not self._saver.busy
        if last or due:
            self.save()

    def save(self) -> None:
        """Take a checkpoint and write it while training goes on."""
        parts = self._parts
        assert parts is not None
        began = time.monotonic()
        updates = parts.learner.update
        if updates == self._saved_updates:
            return
        more = {"recorder": self._recorder.state_dict(parts.learner.env_steps)}
        tensors, state = snapshot.take(parts, more)
        # Episodes of a trajectory that waited to finish were recorded meanwhile.
        state["recorder"] = self._recorder.state_dict(parts.learner.env_steps)
        self._saver.save(updates, tensors, state)
        self._saved_at, self._saved_updates = time.monotonic(), updates
        parts.checkpoint_seconds += time.monotonic() - began

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; raise OSError if it could not be written."""
        self._saver.finish()

    def evaluation_due(self) -> bool:
        """Whether a launcher without an evaluator thread should evaluate now."""
        due = time.monotonic() - self._evaluated_at >= self._config.evaluation.every_seconds
        if due:
            self._evaluated_at = time.monotonic()
        return due

    def on_evaluation(self, result: Evaluation, version: int, params: list[Tensor]) -> None:
        """Record an evaluation and keep the parameters if they are the best so far."""
        parts = self._parts
        assert parts is not None
        learner = parts.learner
        per_version = learner.update / max(learner.version, 1)
        updates = round(version * per_version)
        env_steps = version * parts.steps_per_version
        self._recorder.on_evaluation(result, version=version, updates=updates, env_steps=env_steps)
        names = parts.policy.shared_names()
        tensors = {f"learner.policy.{k}": x for k, x in zip(names, params, strict=True)}
        state: dict[str, Any] = {"version": version, "env_steps": env_steps, "mean": result.mean}
        self._store.save_best(updates, tensors, state, result.mean)
