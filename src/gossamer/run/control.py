"""When a run logs, saves and ends: asked by every launcher after each version."""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from gossamer.run import snapshot
from gossamer.run.best_policy import BestPolicy
from gossamer.run.rows import Rows
from gossamer.run.stopping import at_work, end_at_once, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.record.checkpoint import CheckpointStore
    from gossamer.roles.evaluator import Contest, Evaluation, Evaluator, Source
    from gossamer.run.placements.group import Group
    from gossamer.run.recorder import Recorder
    from gossamer.run.stopping import Watch


REPEAT_SECONDS = 0.5
"""A signal that comes so soon after another was sent together with it, as `timeout` does."""
STOPPING = (
    "Saving a checkpoint, then stopping, within {} s. Press Ctrl-C again to quit without saving."
)
ENDED_AT_ONCE = "Ended without saving. The run can be resumed from its last checkpoint."
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that end a run cleanly; SIGHUP comes when a terminal is closed."""


def end_of(
    config: TrainConfig, *, env_steps: int, seconds: float, mean_return: float | None
) -> str:
    """Say which end a run has reached; empty: none.

    Args:
        config: where the run ends.
        env_steps: learnt from so far.
        seconds: of all sessions.
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


def best_of(scores: Mapping[int, float]) -> int | None:
    """Return which learner is the best evaluated; None without evaluations of single learners."""
    # A learner whose environment pays what is not a number is not the best.
    known = {rank: x for rank, x in scores.items() if not math.isnan(x)}
    return max(sorted(known), key=known.__getitem__, default=None)


def best_saved_in(state: Mapping[str, Any]) -> int | None:
    """Return which learner was the best in a checkpoint's records; older ones tell scores alone."""
    if "best_learner" in state:
        return state["best_learner"]
    return best_of({int(learner): score for learner, score in state.get("scores", [])})


VERSIONS_REMEMBERED = 100_000
"""An evaluation may end this many versions after its own."""


class Run(Protocol):
    """What a run is to its control, wherever its learners are."""

    evaluator: Evaluator | None

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners."""
        ...

    @property
    def restarts(self) -> int:
        """How often a process was started again."""
        ...

    @property
    def version(self) -> int:
        """Of learner 0."""
        ...

    @property
    def updates(self) -> int:
        """Of learner 0."""
        ...

    @property
    def names(self) -> list[str]:
        """Names of the tensors of a policy."""
        ...


class Overseer(Protocol):
    """Whom a launcher asks."""

    def after_version(self) -> bool:
        """Take notice that every learner has learnt a batch; return whether to end."""
        ...

    def evaluation_due(self) -> bool:
        """Whether a launcher without an evaluator thread should evaluate now."""
        ...

    def interrupted(self) -> bool:
        """Whether a signal has asked to stop."""
        ...

    def end_now(self) -> bool:
        """Save between two versions, out of turn, and return True: the run is over."""
        ...


class Control:
    """Decides when a run ends and saves, answers signals, and keeps the best."""

    def __init__(
        self, config: TrainConfig, recorder: Recorder, store: CheckpointStore, watch: Watch
    ):
        self.exit_reason = ""
        self.whole = False
        """Whether the last that was learnt is saved."""
        self.watch = watch
        watch.save_seconds = lambda: self._snapshot_seconds + self._saver.longest_seconds
        self._snapshot_seconds = 0.0  # the longest
        self._saved_env_steps: int | None = None
        self._saved_before: int | None = None  # by the checkpoint before that one
        self.config, self.recorder = config, recorder
        self._best_policy = BestPolicy(store, recorder)
        self._saver = snapshot.BackgroundSaver(store)
        watch.written_bytes = lambda: self._saver.written_bytes
        self._saved_at = time.monotonic()
        self._saved_updates = -1
        self._evaluated_at = time.monotonic()
        self._evaluation_budget: float | None = None  # that a checkpoint has kept
        self._signals = 0
        self._signalled_at = 0.0
        self._run: Run | None = None
        self._scores: dict[int, float] = {}  # by learner that is scored on its own; the latest last
        self.scores_saved: dict[int, float] = {}
        """Those of the last checkpoint."""
        self.best_saved: int | None = None
        """Which of independent learners was best then; its policy is the run's."""
        # Version -> updates and env steps behind it, for evaluations.
        self._behind: dict[int, tuple[int, int]] = {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the `records` of a checkpoint."""
        self._scores = {int(learner): score for learner, score in state.get("scores", [])}
        self.scores_saved, self.best_saved = dict(self._scores), best_saved_in(state)
        self._evaluation_budget = state.get("evaluation_budget")
        self._saved_env_steps = self._saved_before = snapshot.env_steps_of(state)

    def begin(self, run: Run) -> None:
        """Take charge of a run that is ready."""
        self._run = run
        if run.evaluator is not None:
            run.evaluator.report_to(self)
            if self._evaluation_budget is not None:
                run.evaluator.budget = self._evaluation_budget
        self._evaluated_at = self._saved_at = time.monotonic()
        self._behind[run.version] = (run.updates, run.env_steps)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: end after this version, saving. Second: end now."""
        if not self.watch.heard(number):
            self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        # A terminal that is closed says so more than once: the kernel, its shell, and whoever else waits for it.
        hangs_up = number == signal.SIGHUP
        if self._signals and (hangs_up or now - self._signalled_at < REPEAT_SECONDS):
            return
        self._signalled_at = now
        self._signals += 1
        if self._signals > 1:
            tell(f"gossamer: {ENDED_AT_ONCE}")
            end_at_once(128 + number)
        self.watch.ask(f"stopped by {signal.Signals(number).name}")
        stopping = STOPPING.format(self.watch.bound)
        if not self.recorder.notice(stopping):
            tell(f"gossamer: {stopping}")

    def listen(self) -> None:
        """Hear signals also where the main thread does not come to its handlers."""
        self.watch.listen(SIGNALS, self._on_signal)

    def interrupted(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._signals > 0

    def reached_end(self) -> bool:
        """Return whether the run has reached an end; `exit_reason` then says which."""
        run, recorder = self._run, self.recorder
        assert run is not None
        if not self.exit_reason:
            self.exit_reason = end_of(
                self.config,
                env_steps=run.env_steps,
                seconds=recorder.seconds(),
                mean_return=self._mean_return(),
            )
        self.exit_reason = self.exit_reason or self.watch.reason
        return bool(self.exit_reason)

    def _mean_return(self) -> float | None:
        # Of many learners it takes milliseconds.
        asked = self.config.stop_at_return is not None and self.recorder.full_window()
        return self.recorder.mean_return() if asked else None

    def leave(self) -> None:
        """Take notice that the run ends here, and of a batch that is left unlearnt nothing is saved."""
        self._tell_lost(self._saved_env_steps)

    def leave_at_once(self) -> None:
        """Take notice of the same where a checkpoint that is being written will not be."""
        self._tell_lost(self._saved_before if self._saver.busy else self._saved_env_steps)

    def _tell_lost(self, saved: int | None) -> None:
        self.exit_reason = self.exit_reason or self.watch.reason
        at = "at all" if saved is None else f"after env step {saved:,}"
        words = at_work()
        self.recorder.say(
            f"The present batch was abandoned: nothing {at} is saved" + f" ({words})" * bool(words)
        )

    def note_version(self) -> None:
        """Remember how many updates and env steps are behind the present version."""
        run = self._run
        assert run is not None
        self._behind[run.version] = (run.updates, run.env_steps)
        self._behind.pop(run.version - VERSIONS_REMEMBERED, None)

    def save_due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        every = self.config.checkpoint_every_seconds
        return bool(every) and time.monotonic() - self._saved_at >= every and not self._saver.busy

    def save(
        self,
        updates: int,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        *,
        again: bool = False,
    ) -> None:
        """Write a checkpoint while training goes on; the records behind it are added.

        One of as many updates is not written twice unless `again`: other learners may be further.
        """
        if again or updates != self._saved_updates:
            self._write(updates, tensors, state | self.records())
        self._saved_at, self._saved_updates = time.monotonic(), updates

    def _write(self, updates: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        with self.watch.saving():  # the one before it may still be written
            self._saver.save(updates, tensors, state)
        self._saved_before = self._saved_env_steps
        self._saved_env_steps = snapshot.env_steps_of(state)

    @property
    def saved(self) -> bool:
        """Whether the last that was learnt is on disk."""
        return self.whole and not self._saver.busy

    def records(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learners."""
        assert self._run is not None
        self.scores_saved, self.best_saved = dict(self._scores), self._best()
        own = self.config.num_learners == 1 or self.config.topology.run_policy != "average"
        return {
            "recorder": self.recorder.state_dict(self._run.env_steps),
            "num_learners": self.config.num_learners,
            "policy_of": self.best_saved or 0 if own else None,  # None: the average of all
            "best_learner": self.best_saved,
            "evaluation_budget": None
            if self._run.evaluator is None
            else self._run.evaluator.budget,
            "scores": list(self._scores.items()),
        }

    def _best(self) -> int | None:
        size, scores = self.config.num_learners, dict(self._scores)  # an evaluator adds to them
        if size > 1 and self.config.topology.run_policy == "best" and len(scores) < size:
            # Until all have been evaluated, by what they earn in training.
            earned = {rank: self.recorder.mean_return_of(rank) for rank in range(size)}
            scores = {rank: mean for rank, mean in earned.items() if mean is not None}
        return best_of(scores)

    @property
    def next_to_score(self) -> int:
        """Which of independent learners has waited longest for an evaluation."""
        never = set(range(self.config.num_learners)) - set(self._scores)
        return min(never) if never else next(iter(self._scores))

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; raise OSError if it could not be written."""
        with self.watch.saving():
            self._saver.finish(self._show_life)

    def _show_life(self) -> None:
        """Let those who wait for learners know that what they wait for gets on."""

    def evaluation_due(self) -> bool:
        """Whether a launcher without an evaluator thread should evaluate now."""
        evaluator = self._run.evaluator if self._run is not None else None
        return evaluator is not None and time.monotonic() - self._evaluated_at >= evaluator.pause

    def on_evaluation(self, result: Evaluation, source: Source, params: list[Tensor]) -> None:
        """Record an evaluation; the run's policy may become the best."""
        run, config, learner = self._run, self.config, source.learner
        assert run is not None
        self._evaluated_at = time.monotonic()
        at = source.at
        if at is None:
            at = self._behind.get(source.version, (run.updates, run.env_steps))
        # Of learners that mix their parameters the average is the run's policy.
        ships = (
            learner is None or config.num_learners == 1 or config.topology.run_policy != "average"
        )
        self.recorder.on_evaluation(
            result,
            version=source.version,
            updates=at[0],
            env_steps=at[1],
            learner=learner,
            ships=ships,
        )
        if learner is not None and config.num_learners > 1 and config.topology.run_policy == "best":
            self._scores.pop(learner, None)
            self._scores[learner] = result.mean
        if ships:
            self._best_policy.consider(result, source, params, run.names, at=at)

    @property
    def waiting(self) -> bool:
        """Whether a candidate for the best policy waits for being confirmed."""
        return self._best_policy.waiting

    def contest(self) -> Contest | None:
        """Return the candidate and the best policy; None if nothing waits."""
        assert self._run is not None
        return self._best_policy.contest(self._run.names)

    def decide(self, candidate: Evaluation, best: Evaluation | None) -> None:
        """Keep the better one of a contest."""
        self._best_policy.decide(candidate, best)
        self._evaluated_at = time.monotonic()

    def finish_evaluating(self, evaluator: Evaluator, stop: Callable[[], bool]) -> None:
        """Evaluate the policy of a run that is done, and confirm what has not been confirmed yet."""
        self._best_policy.finish(evaluator, stop)


class GroupControl(Control):
    """The control of learners in this process, asked by their launcher after each version."""

    def __init__(
        self, config: TrainConfig, recorder: Recorder, store: CheckpointStore, watch: Watch
    ):
        super().__init__(config, recorder, store, watch)
        self._beginning: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def take_charge(self, group: Group) -> None:
        """Begin with a group."""
        self.begin(group)
        self._group, self._rows = group, Rows(group)
        if group.memory is not None:
            group.memory.versions.score_next(self.next_to_score)
        if group.version == 0:
            tensors, state = snapshot.take(group)
            self._beginning = (tensors, state | self.records())

    def after_version(self) -> bool:
        """Log every learner's metrics, and save when it is time; return whether the run has ended.

        Asked once: a signal or a deadline that comes later counts for the next version, so what a
        run ends with is what was saved.
        """
        group = self._group
        last = self.reached_end()
        self.note_version()
        self._save_beginning()
        self._rows.note()
        if self.recorder.on_version(group.env_steps, last=last):
            apart = None if group.memory is None else group.memory.versions.disagreement
            rows = [{**row, "env_steps": group.env_steps} for row in self._rows.make(last=last)]
            self.recorder.on_rows(rows, group.env_steps, disagreement=apart)
        if last or self.save_due():
            self.save_group()
        self.whole = last
        return last

    def end_now(self) -> bool:
        """End between two versions, out of turn; return True."""
        self.reached_end()
        self.save_group()
        self.whole = True
        return True

    def save_group(self) -> None:
        """Save everything between two versions."""
        group, began = self._group, time.monotonic()
        if group.updates != self._saved_updates:
            # Two copies of what replays hold may be more than there is memory for.
            self.finish_saving()
            with self.watch.saving():
                taken = snapshot.take(group)
            # Records are added only then: episodes of a trajectory that is waited for count.
            self.save(group.updates, *taken)
        took = time.monotonic() - began
        self._snapshot_seconds = max(self._snapshot_seconds, took)
        group.first.checkpoint_seconds += took

    def _show_life(self) -> None:
        for parts in self._group.parts:
            parts.learner.sign.beats += 1

    def leave(self) -> None:
        """Save at least what the run began with, if that was not yet done."""
        self._save_beginning()
        super().leave()

    def _save_beginning(self) -> None:
        if self._beginning is not None:
            # What the run began with, so that it can be resumed from any moment on; written only
            # after the first update, which it would hold up.
            self._write(0, *self._beginning)
            self._beginning = None


class signals:  # noqa: N801 - reads as a statement
    """Context in which the first of SIGNALS ends the run cleanly, the second at once."""

    def __init__(self, control: Control):
        self._control = control
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        """Take the signals over; they can only be taken by the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._control.on_signal)
            self._control.listen()
            if self._before[signal.SIGHUP] == signal.SIG_IGN:  # by nohup
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        if self._before:
            self._control.watch.stop_listening()
        for number, handler in self._before.items():
            signal.signal(number, handler)
