"""The best policy of a run: which one it is, and what another one has to do to take its place."""

from __future__ import annotations

import math
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gossamer.errors import ConfigError
from gossamer.record.checkpoint import BEST, CANDIDATE, Score, UnreadableError
from gossamer.roles.evaluator import Contest, Source
from gossamer.run.checkpoint_contents import POLICY, ScoredPolicy, facts_of, policy_of
from gossamer.run.recorder import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

    from gossamer.record.checkpoint import CheckpointStore, Scored
    from gossamer.roles.evaluation import Evaluation
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.checkpoint_contents import Identity
    from gossamer.run.recorder import Recorder

EXPLAINED_AFTER_SECONDS = 2.0
"""A confirmation at the end of a run that takes longer is told of."""
FEWEST_EPISODES = 6
"""Of a contest that ends before all are played: a policy far ahead in fewer was often lucky, and its mean would be its score."""


class BestPolicy:
    """Keeps the best policy, and the candidate for its place.

    A policy whose interval lies above that of the best's score is the best at once. Of close calls the highest of many
    short evaluations was lucky. So a policy that is evaluated higher, but not clearly, is a candidate only, the highest of
    them. It is confirmed in episodes that it was not chosen by, and that the best plays anew, whose score was the higher
    of two as well: neither is ahead by luck. The better one's mean over these episodes is its score. The first policy to be
    evaluated has not been chosen from any, and is the best at once.

    Args:
        store: of the run's checkpoints, where both are, so that a resumed run goes on with them.
        recorder: holds the scores, and is told of every contest.
        confirm_episodes: that each of two policies plays in a contest, unless fewer tell them apart.
        settings: of the run, by which policies are scored.
        max_episode_steps: the plan's.
        outdated: which of the two on disk have scores that do not compare with those to come.
    """

    def __init__(
        self,
        store: CheckpointStore,
        recorder: Recorder,
        confirm_episodes: int = 1,
        *,
        settings: Mapping[str, Any] = MappingProxyType({}),
        max_episode_steps: int = 0,
        outdated: Collection[Scored] = (),
    ):
        self._store, self._recorder = store, recorder
        self._confirm_episodes = confirm_episodes
        self._scored_by = dict(settings), max_episode_steps
        # Nobody else writes them, and a disk that does not answer for a while must not look like an empty one.
        self._scores = recorder.scores
        for name in (BEST, CANDIDATE):
            self._scores[name] = None if name in outdated else store.score(name)
        self._loaded: tuple[_Kept, _Kept | None] | None = None
        self._pair: tuple[Identity, Identity | None] | None = None
        self._earned: tuple[Evaluation, Evaluation] | None = None  # by this pair so far
        self._decided: Identity | None = None  # the candidate that was confirmed or not last

    @property
    def waiting(self) -> bool:
        """Whether there is a candidate."""
        return self._scores[CANDIDATE] is not None

    @property
    def has_begun(self) -> bool:
        """Whether a contest has been begun, and is still too short to be decided."""
        return self._earned is not None and len(self._earned[0].returns) < FEWEST_EPISODES

    def consider(
        self,
        result: Evaluation,
        source: Source,
        tensors: Sequence[Tensor],
        names: Sequence[str],
        *,
        at: tuple[int, int],
    ) -> None:
        """Take the policy of a run that has been evaluated for a candidate, if it may be the best.

        Args:
            result: what it has earned.
            source: whose it is.
            tensors: its parameters and moments.
            names: theirs.
            at: updates and env steps behind it.
        """
        score, best = _score_of(result), self._scores[BEST]
        origin = ScoredPolicy(source.version, name_of(source.learner), at[1], *self._scored_by)
        if math.isnan(score.mean) or origin.identity == self._decided:
            return
        if best is not None:
            waiting = self._scores[CANDIDATE]
            if score.mean <= max(best.mean, -math.inf if waiting is None else waiting.mean):
                return
        wins = best is None or _lies_above(score, best)
        saved = self._save(
            BEST if wins else CANDIDATE,
            at[0],
            {POLICY + name: x for name, x in zip(names, tensors, strict=True)},
            origin,
            score,
        )
        if saved and wins and self.waiting:  # it was evaluated lower
            self._discard_candidate()

    def contest(self, names: Sequence[str]) -> Contest | None:
        """Return the candidate and the best, tensors in the order of these names.

        None without a candidate, or if one of them cannot be read for now.
        """
        try:
            candidate, best = self._load(CANDIDATE), self._load(BEST)
        except UnreadableError:
            return None
        if candidate is None or (
            best is not None and candidate.origin.identity == best.origin.identity
        ):
            self._discard_candidate()  # damaged, or the best already: a kill came between
            return None
        self._loaded = candidate, best
        pair = candidate.origin.identity, None if best is None else best.origin.identity
        if self._pair != pair:
            self._pair, self._earned = pair, None
        version, learner = candidate.origin.identity
        return Contest(
            Source(version, None if learner == "average" else learner),
            candidate.parameters(names),
            None if best is None else best.parameters(names),
            0 if self._earned is None else len(self._earned[0].returns),
        )

    def decide(self, candidate: Evaluation, best: Evaluation | None) -> None:
        """Keep the better one of a contest, once enough has been played.

        Args:
            candidate: what the candidate has earned.
            best: what the best has earned in the same episodes; None: it could not be read.
        """
        assert self._loaded is not None
        challenger, holder = self._loaded
        if best is not None:
            if self._earned is not None:
                candidate, best = self._earned[0].plus(candidate), self._earned[1].plus(best)
            if len(candidate.returns) < self._confirm_episodes:
                ahead = candidate.minus(best)
                is_clear = abs(ahead.mean) > ahead.half_width  # either may be NaN
                if len(candidate.returns) < FEWEST_EPISODES or not is_clear:
                    self._earned = candidate, best
                    return
        self._earned = None
        wins = not math.isnan(candidate.mean) and (
            best is None or not candidate.mean <= best.mean  # which may be NaN
        )
        self._recorder.on_confirmation(
            candidate, challenger.row(), best, None if holder is None else holder.row(), wins=wins
        )
        kept, result = (challenger, candidate) if wins else (holder, best)
        saved = True
        if kept is not None and result is not None and not math.isnan(result.mean):
            saved = self._save(BEST, *kept, _score_of(result))
        if saved or not wins:  # else it is still there to be confirmed
            self._discard_candidate()
        self._loaded, self._decided = None, challenger.origin.identity

    def finish(self, evaluator: Evaluator, stop: Callable[[], bool]) -> None:
        """Confirm what has not been confirmed yet when a run is done.

        Raises:
            Interrupted: `stop` has said so; what was not confirmed stays a candidate.
        """
        if not self.waiting:
            return
        if evaluator.confirming_cost > EXPLAINED_AFTER_SECONDS:
            self._recorder.say(
                f"playing {evaluator.confirming_episodes} episodes each with the candidate and the best policy "
                "(Ctrl-C skips this)"
            )
        evaluator.confirm(stop)

    def settle(self) -> None:
        """Let the candidate be the best if its score is ahead by more than half their errors, where a run is stopped.

        Nobody will confirm it, perhaps for good, and a best policy that training has left far behind is of no use.
        """
        score, best = self._scores[CANDIDATE], self._scores[BEST]
        if score is None or (best is not None and not _ahead_by(score, best, errors=0.5)):
            return
        with suppress(UnreadableError):
            if (candidate := self._load(CANDIDATE)) is not None and self._save(
                BEST, *candidate, score
            ):
                self._discard_candidate()

    def _save(
        self,
        name: Scored,
        updates: int,
        tensors: Mapping[str, Tensor],
        origin: ScoredPolicy,
        score: Score,
    ) -> bool:
        """Write a policy; where the disk refuses it, say so, keep what is there and return False: a later one may fit."""
        facts = {**msgspec.structs.asdict(origin), "mean": score.mean}
        try:
            self._store.save_scored(name, updates, tensors, facts, score)
        except OSError as error:
            what = "the best policy" if name == BEST else "a candidate for the best policy"
            self._recorder.say(f"{what} could not be written ({error.strerror or error})")
            return False
        self._scores[name] = score
        return True

    def _discard_candidate(self) -> None:
        self._scores[CANDIDATE] = None
        self._store.discard(CANDIDATE)

    def _load(self, name: Scored) -> _Kept | None:
        try:
            found = self._store.load(name)
            return _Kept(found.updates, found.tensors, facts_of(found, ScoredPolicy))
        except UnreadableError:
            raise
        except ConfigError:  # none, or damaged
            return None


class _Kept(NamedTuple):
    """The best policy, or the candidate, as it is on disk."""

    updates: int
    tensors: dict[str, Tensor]
    origin: ScoredPolicy

    def parameters(self, names: Sequence[str]) -> list[Tensor]:
        """Return its parameters and moments in the order of these names."""
        tensors = policy_of(self.tensors)
        return [tensors[name] for name in names]

    def row(self) -> dict[str, Any]:
        """Return what evaluation.jsonl tells of it."""
        version, learner = self.origin.identity
        return {
            "env_steps": self.origin.env_steps,
            "updates": self.updates,
            "version": version,
            "learner": learner,
        }


def _score_of(result: Evaluation) -> Score:
    width = result.half_width
    return Score(result.mean, len(result.returns), width if math.isfinite(width) else None)


def _lies_above(score: Score, best: Score) -> bool:
    """Whether the interval of a score lies above that of the best's."""
    if score.half_width is None or best.half_width is None:
        return False
    return score.mean - score.half_width > best.mean + best.half_width


def _ahead_by(score: Score, best: Score, *, errors: float) -> bool:
    """Whether a score is higher by so many half widths of the interval of the difference; those not known count as 0."""
    width = math.hypot(score.half_width or 0.0, best.half_width or 0.0)
    return score.mean - best.mean > errors * width
