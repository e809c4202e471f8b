"""What evaluations say of a run: learners' scores, the best of independent learners, and the best policy."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from gossamer.config import to_dict
from gossamer.run.best_policy import BestPolicy
from gossamer.run.checkpoint_contents import RunPolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import CheckpointStore, Scored
    from gossamer.roles.evaluation import Evaluation
    from gossamer.roles.evaluator import Contest, Evaluator, Source
    from gossamer.run.best_videos import BestVideos
    from gossamer.run.host_protocol import Placement
    from gossamer.run.recorder import Recorder


def best_of(scores: Mapping[int, float]) -> int | None:
    """Return which learner is the best evaluated; None without evaluations of single learners."""
    # A learner whose environment pays what is not a number is not the best.
    known = {rank: x for rank, x in scores.items() if not math.isnan(x)}
    return max(sorted(known), key=known.__getitem__, default=None)


class Scoring:
    """Takes what an evaluator finds.

    Args:
        config: of the run.
        recorder: told of every evaluation.
        store: where the best policy is kept.
        placement: where the learners run.
        videos: records new best policies; None: nobody does.
        max_episode_steps: the plan's.
        outdated: policies on disk whose scores do not compare with those to come.
    """

    def __init__(
        self,
        config: TrainConfig,
        recorder: Recorder,
        store: CheckpointStore,
        placement: Placement,
        videos: BestVideos | None = None,
        *,
        max_episode_steps: int = 0,
        outdated: Collection[Scored] = (),
    ):
        self.evaluated_at = time.monotonic()
        """When the last evaluation ended."""
        self.scores_saved: dict[int, float] = {}
        """Those of the last checkpoint."""
        self.best_saved: int | None = None
        """Which of independent learners was best then; its policy is the run's."""
        self._of_run = 0  # by that, or where none is known to be the best
        self._config, self._recorder = config, recorder
        self._placement, self._videos = placement, videos
        episodes = max(config.evaluation.confirm_episodes, config.evaluation.episodes)
        self._best_policy = BestPolicy(
            store,
            recorder,
            episodes,
            settings=to_dict(config),
            max_episode_steps=max_episode_steps,
            outdated=outdated,
        )
        self._scores: dict[int, float] = {}  # by learner that is scored on its own; the latest last
        # Of learners that mix their parameters the average is the run's policy.
        self._run_policy = config.topology.run_policy if config.num_learners > 1 else ""

    def load_state(self, state: RunPolicies) -> None:
        """Continue from the `state` of a checkpoint."""
        # A learner that begins with the policy of another has not earned this.
        copies = {rank for rank, whose in state.absent if rank != whose}
        self._scores = {rank: x for rank, x in state.scores or [] if rank not in copies}
        self.scores_saved, self.best_saved = dict(self._scores), state.best_learner

    def state(self, absent: Mapping[int, int]) -> RunPolicies:
        """Return learners' scores, and whose policy is the run's by them.

        Args:
            absent: learners without a place, and whose policies are saved in place of theirs.
        """
        there = [rank for rank in range(self._config.num_learners) if rank not in absent]
        self.scores_saved, self.best_saved = dict(self._scores), self._best(there)
        self._of_run = there[0] if self.best_saved is None else self.best_saved
        return RunPolicies(
            policy_of=None if self._run_policy == "average" else self._of_run,
            best_learner=self.best_saved,
            scores=list(self.scores_saved.items()),
            absent=sorted(absent.items()),
        )

    def _best(self, there: Sequence[int]) -> int | None:
        known = dict(self._scores)  # an evaluator adds to them
        scores = {rank: known[rank] for rank in there if rank in known}
        if self._run_policy == "best" and len(scores) < len(there):
            # Until all have been evaluated, by what they earn in training.
            earned = {rank: self._recorder.window.mean_of(rank) for rank in there}
            scores = {rank: mean for rank, mean in earned.items() if mean is not None}
        return best_of(scores)

    @property
    def next_learner(self) -> int:
        """Which of independent learners has waited longest for an evaluation."""
        never = set(range(self._config.num_learners)) - set(self._scores)
        return min(never) if never else next(iter(self._scores))

    @property
    def others(self) -> list[int]:
        """Independent learners that have a place, and whose policy is not the run's."""
        ranks = range(self._config.num_learners) if self._run_policy == "best" else ()
        absent = self._placement.absent()
        return [x for x in ranks if x != self._of_run and x not in absent]

    def on_evaluation(self, result: Evaluation, source: Source, params: list[Tensor]) -> None:
        """Record an evaluation; the run's policy may become the best."""
        placement, learner = self._placement, source.learner
        at = source.at or (placement.updates, placement.env_steps)
        self.evaluated_at = time.monotonic()
        ships = learner is None or self._run_policy != "average"
        self._recorder.on_evaluation(result, source, at, ships=ships)
        if learner is not None and self._run_policy == "best":
            # At once, for whoever saves them meanwhile; the latest is the last.
            others = {rank: mean for rank, mean in self._scores.items() if rank != learner}
            self._scores = {**others, learner: result.mean}
        if ships:
            self._best_policy.consider(result, source, params, placement.names, at=at)

    @property
    def run_seconds(self) -> float:
        """Seconds that the whole run is expected to take, by how far it has come; infinite: it has only begun."""
        seconds, env_steps = self._recorder.seconds(), self._placement.env_steps
        total = seconds * self._config.total_env_steps / env_steps if env_steps else math.inf
        return min(total, self._config.stop_after_seconds or math.inf)

    @property
    def waiting(self) -> bool:
        """Whether a candidate for the best policy waits for being confirmed."""
        return self._best_policy.waiting

    @property
    def has_begun(self) -> bool:
        """Whether a contest has been begun, and is still too short to be decided."""
        return self._best_policy.has_begun

    def contest(self) -> Contest | None:
        """Return the candidate and the best policy; None if nothing waits."""
        return self._best_policy.contest(self._placement.names)

    def decide(self, candidate: Evaluation, best: Evaluation | None) -> None:
        """Keep the better one of a contest."""
        self._best_policy.decide(candidate, best)
        self.evaluated_at = time.monotonic()

    def film(self, policy: ActorCritic, stop: Callable[[], bool]) -> None:
        """Record an episode of the best policy, if that is wanted and not done yet."""
        if self._videos is not None:
            self._videos.record(policy, stop)

    def settle(self) -> None:
        """Decide by what is known whether the candidate of a run that is stopped is the best."""
        self._best_policy.settle()

    def finish(self, evaluator: Evaluator, stop: Callable[[], bool]) -> None:
        """Confirm what has not been confirmed yet when a run is done, and record the best policy."""
        self._best_policy.finish(evaluator, stop)
        evaluator.film(stop)
