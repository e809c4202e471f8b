"""When a run's policies are evaluated: beside training or between versions, when asked, and once more at the end."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from gossamer.machine import threads
from gossamer.record.exits import ON_ROW
from gossamer.roles.evaluation import Interrupted
from gossamer.run.placements.loop_overlapped import JOIN_SECONDS, start_thread
from gossamer.run.stopping import Overdue
from gossamer.system.devices import on_own_stream

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from gossamer.config import TrainConfig
    from gossamer.record.exits import Exit
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.checkpoint_contents import RunPolicies, RunState
    from gossamer.run.host_protocol import Placement
    from gossamer.run.recorder import Recorder
    from gossamer.run.scoring import Scoring
    from gossamer.run.stopping import Stop

EXPLAINED_AFTER_SECONDS = 1.5
"""A last evaluation that takes longer is explained."""
KNOWN_SECONDS = 5.0
"""For so long an evaluation tells what a policy has become."""
STOPPED_EVALUATION_SECONDS = 10.0
"""Longest time for evaluating what a stopped run has come to."""


class Evaluations:
    """The evaluator of a run, over all groups of learners that it begins.

    Args:
        config: of the run.
        placement: where the learners run.
        recorder: tells the user.
        scoring: keeps what evaluations say.
        stop: asked to.
    """

    def __init__(
        self,
        config: TrainConfig,
        placement: Placement,
        recorder: Recorder,
        scoring: Scoring,
        stop: Stop,
    ):
        self._config, self._placement, self._recorder = config, placement, recorder
        self._scoring, self._stop = scoring, stop
        self._evaluator: Evaluator | None = None
        self._thread: threading.Thread | None = None
        self._kept_budget: float | None = None  # by a checkpoint
        self._spent_until = (0.0, time.monotonic())  # seconds spent on it, at a moment

    @property
    def budget(self) -> float | None:
        """Seconds that evaluations may take by now, which a checkpoint keeps; None: there are none."""
        return None if self._evaluator is None else self._evaluator.budget

    def state(self, absent: Mapping[int, int]) -> RunPolicies:
        """Return the scores of the learners so far, which a checkpoint keeps from now on; arguments as of `Scoring`."""
        return self._scoring.state(absent)

    def load_state(self, state: RunState) -> None:
        """Continue from a checkpoint's state."""
        self._scoring.load_state(state.policies)
        self._kept_budget = state.evaluation_budget

    def begin(self) -> None:
        """Make the evaluator, at first and when a group starts again."""
        # What was spent in this session, before the group began again, stays spent.
        kept = self._kept_budget if self._evaluator is None else self._evaluator.budget
        self.close()
        if self._placement.boards is not None:
            self._placement.boards.evaluate_learner_next(self._scoring.next_learner)
        self._evaluator, self._thread = self._placement.make_evaluator(), None
        if self._evaluator is not None:
            self._evaluator.report_to(self._scoring)
            if kept is not None:
                self._evaluator.budget = kept
        self._scoring.evaluated_at = time.monotonic()
        self._spent_until = (0.0, time.monotonic())

    def begin_beside(self) -> None:
        """Evaluate from now on, where that has a thread of its own."""
        if self._evaluator is not None and self._placement.evaluates == "beside":
            work = on_own_stream(self._evaluator.device, self._evaluator.run)
            self._thread = start_thread(self._placement.stop, "evaluator", work, low=True)

    def evaluate_in_turn(self) -> bool:
        """Evaluate between two versions, where that has no thread of its own and it is time; return whether a limit ended it."""
        evaluator = self._evaluator
        if evaluator is None or self._placement.evaluates != "in turn":
            return False
        passed = time.monotonic() - self._scoring.evaluated_at
        if passed < evaluator.pause and not evaluator.asked:
            return False
        try:
            with threads(1):  # as it has where it runs beside the others
                evaluator.work(stop=lambda: self._stop.is_requested)
        except Interrupted:
            pass  # a signal: the next version is the last
        except Overdue:
            return True
        return False

    def request(self) -> None:
        """Let the newest policy be evaluated as soon as possible, as somebody beside the run asks."""
        if self._evaluator is None:
            self._recorder.say("no evaluation, as evaluation.every_seconds is 0")
            return
        self._recorder.say("evaluating the newest policy, as was asked")
        self._evaluate_run_policy_next()
        self._evaluator.asked = True

    def _evaluate_run_policy_next(self) -> None:
        if self._placement.boards is not None:
            self._placement.boards.evaluate_run_policy_next(self._scoring.best_saved)

    def take_share(self) -> float | None:
        """Return the share of the time since the last call that was spent on evaluations; None: there are none."""
        if self._evaluator is None:
            return None
        (spent, at), now = self._spent_until, time.monotonic()
        self._spent_until = (self._evaluator.seconds, now)
        return (self._evaluator.seconds - spent) / max(now - at, 1e-9)

    def join(self) -> None:
        """Wait for the evaluation that is under way, for a while."""
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    @property
    def stuck(self) -> bool:
        """Whether an evaluation, or a role of the placement, does not come back."""
        evaluating = self._thread is not None and self._thread.is_alive()
        return evaluating or self._placement.stuck

    def close(self) -> None:
        """Free what the evaluator holds, unless it or a role of the placement is still at something."""
        if self._evaluator is not None and not self.stuck:
            self._evaluator.close()
        self._evaluator = None

    def finish(self, ended: Exit | None, finish_saving: Callable[[], None]) -> None:
        """Evaluate once more what is shipped; of a run that was to stop soon only as long as evaluations take.

        Args:
            ended: how the run has ended.
            finish_saving: waits until the last checkpoint is on disk.
        """
        stop, evaluator = self._stop, self._evaluator
        over = ended if ended and (ended.kind == "done" or ended.cause == ON_ROW) else None
        if over is not None:  # what is left, as the caller's function, has no deadline
            stop.settle()
            stop.exit = over  # no other end is asked for, but by a signal
        if evaluator is None:
            return
        if over is None:
            if not self.stuck:
                self._evaluate_run_policy_next()
                self._finish_stopped(evaluator, finish_saving)
                self._scoring.settle()
            return
        if self.stuck:
            self._recorder.say(
                "The final evaluation was skipped: an environment is still in a step or an evaluation"
            )
            return
        seconds, began = math.inf, self._scoring.evaluated_at
        others = len(self._scoring.others)
        before = evaluator.longest_seconds + evaluator.confirming_cost
        what = f"the last policies of {1 + others} learners" if others else "the last policy"
        if over.cause != "total_env_steps":
            seconds = max(self._config.stop_within_seconds, 2 * before)
            seconds += 2 * evaluator.longest_seconds * others
            what += f", for at most {seconds:.0f} s"
        if (others or seconds < math.inf) and before > EXPLAINED_AFTER_SECONDS:
            self._recorder.say(f"evaluating {what} (Ctrl-C skips this)")
        with stop.within(seconds), threads(1):  # as in every evaluation before
            try:
                self._finish_done(evaluator)
            except (Interrupted, Overdue):
                if not stop.is_requested:
                    skipped = "The final evaluation was skipped: it takes"
                    if self._scoring.evaluated_at != began:
                        skipped = "Some of the final evaluations were skipped: they take"
                    self._recorder.say(f"{skipped} longer than {seconds:.0f} s")
                self._scoring.settle()

    def _finish_done(self, evaluator: Evaluator) -> None:
        """Evaluate the run's policy, and then every other independent learner: alone it would be scored where its score chose it."""
        stop, boards = self._stop, self._placement.boards

        def interrupted() -> bool:
            return stop.is_requested or stop.over

        self._evaluate_run_policy_next()
        evaluator.evaluate_newest(interrupted)
        if boards is not None:
            for learner in self._scoring.others:
                boards.evaluate_learner_next(learner)
                evaluator.evaluate_newest(interrupted)
        self._scoring.finish(evaluator, interrupted)

    def _finish_stopped(self, evaluator: Evaluator, finish_saving: Callable[[], None]) -> None:
        """Evaluate what a stopped run has come to, if there is time: the best policy so far may be far behind."""
        stop, now = self._stop, time.monotonic()
        passed = now - self._scoring.evaluated_at
        seconds = min(STOPPED_EVALUATION_SECONDS, stop.asked_at + stop.within_seconds - now)
        is_due = self._recorder.seconds() >= self._config.evaluation.every_seconds
        if passed < KNOWN_SECONDS or not is_due or seconds < 1.0:
            return  # it is known, or would not have been by now, or cannot be
        if evaluator.few_cost > seconds:
            self._recorder.say(
                f"The last policy was not evaluated: that takes about {evaluator.few_cost:.0f} s"
            )
            return
        finish_saving()
        stop.is_saved = True
        text = f"Saved. Evaluating the last policy, for at most {seconds:.0f} s (Ctrl-C skips this)"
        self._recorder.say(text)
        self._recorder.notice(text)  # in place of what Ctrl-C would have lost until now
        with stop.within(seconds), threads(1):
            try:
                evaluator.evaluate_newest(lambda: stop.skips or stop.over, few=True)
            except (Interrupted, Overdue):
                if not stop.skips:
                    self._recorder.say(
                        f"The last policy was not evaluated: that takes longer than {seconds:.0f} s"
                    )
