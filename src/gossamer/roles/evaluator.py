"""The role that evaluates during training: when, whose parameters, by how many episodes, and contests for the best policy."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from gossamer.envs.atari import EPISODES_PER_SEED
from gossamer.envs.seeding import CHOOSING_RANK, episode_seed
from gossamer.links.stopping import LOOK_SECONDS
from gossamer.roles.evaluation import Interrupted, Steps, play_trials
from gossamer.system.devices import memory_told
from gossamer.system.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gossamer.links.stopping import StopSignal
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.roles.evaluation import Evaluation, EvaluationEpisodes
    from gossamer.types import VecEnv

FEW_EPISODES = 3
"""Episodes of an evaluation that comes late: the fewest that tell how far their mean may be off."""
LATE_TIMES, LATE_TIME_FRACTION = 10 / 3, 0.1
"""Evaluations that come late may take so many times the share of the run's time that is asked for, up to this one."""
EVALUATIONS_A_RUN = 20
"""With fewer in a whole run they come late."""
MAX_NUMBER = 1 << 40
"""Numbers of evaluations begin again here, so that numbers of their episodes fit into 63 bits."""


class Source(NamedTuple):
    """Origin of parameters that are evaluated: version and learner, and how far they had come."""

    version: int
    learner: int | None = 0
    """None: the average of all learners."""
    at: tuple[int, int] | None = None
    """Updates and env steps behind them; None: to be found by the version."""

    def number(self, *, confirms: bool) -> int:
        """Return the number by which an evaluation chooses its episodes; no two of a run have the same.

        Numbers repeat after four million versions.
        """
        learner = 0 if self.learner is None else self.learner + 1  # up to 65536
        return (self.version << 18 | learner << 1 | confirms) % MAX_NUMBER


class Contest(NamedTuple):
    """Two policies that are going to play the same episodes: one that may be the best, and the best."""

    source: Source
    """Origin of the candidate's parameters."""
    candidate: list[Tensor]
    best: list[Tensor] | None
    """None: it cannot be read any more."""
    played: int = 0
    """Episodes that each of them has played before."""


class Keeper(Protocol):
    """Who keeps what evaluations have told, and the best policy."""

    @property
    def run_seconds(self) -> float:
        """Seconds that the whole run is expected to take; infinite: that is not known yet."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether a candidate waits for being confirmed."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether a contest has been begun, and is still too short to be decided."""
        ...

    def on_evaluation(self, result: Evaluation, source: Source, params: list[Tensor]) -> None:
        """Take the result of an evaluation and the tensors evaluated, which are only lent."""
        ...

    def contest(self) -> Contest | None:
        """Return the candidate and the best; None if nothing waits."""
        ...

    def decide(self, candidate: Evaluation, best: Evaluation | None) -> None:
        """Take what the two of the last contest have earned in the same episodes."""
        ...

    def film(self, policy: ActorCritic, stop: Callable[[], bool]) -> None:
        """Record an episode of the best policy, if wanted and it is a new one; the policy lent may be changed."""
        ...


class Evaluator:
    """The role that evaluates the newest parameters now and then, beside training.

    Every evaluation plays episodes of its own, which depend on whose version it is and on nothing else. A
    policy that its keeper takes for a candidate plays some more, and so does the best: once there is time.

    Args:
        policy: a copy of its own, set up for inference.
        trials: what is played; the second, if there is one, on held-out tasks.
        like: tensors like those on the board; the policy's own may be rounded.
        read: copies the parameters to evaluate next into tensors and says whose they are.
        stop: ends the role.
        greedy: take the likeliest action instead of sampling.
        seed: of the streams that sample actions.
        every_seconds: at most one evaluation in this time.
        max_time_fraction: at most this share of processor time, so long episodes are evaluated less often; where that would
            be less than 20 times in the run, with fewer episodes each, for at most a tenth of the time.
        confirm_episodes: by which a candidate is confirmed, of a family shared out among its tasks.
        clock: seconds that evaluations have cost, read before and after; by default processor time of the
            evaluator's thread.
    """

    def __init__(
        self,
        policy: ActorCritic,
        like: list[Tensor],
        trials: Sequence[EvaluationEpisodes],
        read: Callable[[list[Tensor]], Source],
        stop: StopSignal,
        *,
        greedy: bool,
        seed: int,
        every_seconds: float,
        max_time_fraction: float,
        confirm_episodes: int,
        clock: Callable[[], float] | None = None,
    ):
        self.policy, self._clock = policy, clock or time.thread_time
        self._params = [torch.empty_like(x, requires_grad=False) for x in like]
        self.seconds = self.longest_seconds = 0.0
        self.pause = every_seconds  # from the end of the last evaluation to the next
        self._trials, self._read, self._stop = trials, read, stop
        self._greedy, self._seed = greedy, seed
        self._every_seconds, self._max_time_fraction = every_seconds, max_time_fraction
        self._steps: Steps | None = None
        self._few = [trial.of(min(trial.episodes, FEW_EPISODES)) for trial in trials]
        self._late = False  # evaluations take longer than the time that is left for them
        self._confirms_next = False
        self._envs: dict[int, list[VecEnv]] = {}  # kept open: making a simulator can cost a second
        self._confirming = trials[0].of(max(confirm_episodes, trials[0].episodes))
        self.budget = max_time_fraction * every_seconds
        """Seconds, by the clock of costs, that were granted and not spent yet; checkpoints keep them."""
        self._episode_cost = 0.0
        self.asked = False
        """Whether an evaluation is wanted at once."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.policy.device

    def report_to(self, keeper: Keeper) -> None:
        """Let a keeper have all results; to be called before the first evaluation."""
        self._keeper = keeper

    @property
    def confirming_cost(self) -> float:
        """Processor time, in seconds, that two policies will need for a contest, by the last evaluation."""
        return 2 * self._confirming.episodes * self._episode_cost

    @property
    def few_cost(self) -> float:
        """Processor time, in seconds, that an evaluation of few episodes will need, by the last evaluation; 0: there was none."""
        return self._cost_of(self._few)

    @property
    def confirming_episodes(self) -> int:
        """Episodes that each of two policies plays in a contest."""
        return self._confirming.episodes

    def run(self) -> None:
        """Evaluate until stopped."""
        while self._wait():
            try:
                self.work()
            except Interrupted:
                return

    def _wait(self) -> bool:
        """Wait until the next evaluation is due or asked for; return False when stopped."""
        until = time.monotonic() + self.pause
        while not self.asked and (left := until - time.monotonic()) > 0:
            if self._stop.wait(min(left, LOOK_SECONDS)):
                return False
        return not self._stop.stopped

    def work(self, stop: Callable[[], bool] | None = None) -> None:
        """Evaluate the newest parameters, and confirm a candidate if there is time.

        Raises:
            Interrupted: `stop` has said so.
        """
        began, asked, self.asked = time.monotonic(), self.asked, False
        if self._late and self._confirms_next and self._keeper.waiting and not asked:
            cost = self.confirm(stop, few=True)
            self._confirms_next = self._keeper.has_begun  # or a new candidate would begin another
        else:
            cost, self._confirms_next = self.evaluate_newest(stop, few=self._late), True
            if self._keeper.waiting and self.budget >= self.confirming_cost:
                self.budget -= self.confirm(stop)
        cost += self.film(stop)
        took = time.monotonic() - began
        self.longest_seconds = max(self.longest_seconds, took)
        period = self._period(cost, took)
        self.pause = period - took

    def _period(self, cost: float, took: float) -> float:
        """Return the seconds between the beginnings of what has been done and of what is next; keep account of the cost."""
        fraction = self._max_time_fraction
        # While a candidate waits, evaluations leave it half of their time.
        share = fraction * (0.5 if self._keeper.waiting else 1.0)
        whole = self._cost_of(self._trials) if self._late else cost
        usual = max(self._every_seconds, (whole - min(self.budget, 0.0)) / share, took)
        due = max(self._every_seconds, self._keeper.run_seconds / EVALUATIONS_A_RUN)
        self._late = usual > due
        if not self._late:
            self.budget += fraction * usual - cost
            return usual
        self.budget = 0.0
        cost = max(cost, self._cost_of(self._few))
        late = max(fraction, min(LATE_TIMES * fraction, LATE_TIME_FRACTION))
        return max(due, cost / late, took)

    def _cost_of(self, trials: Sequence[EvaluationEpisodes]) -> float:
        return self._episode_cost * sum(trial.episodes for trial in trials)

    def evaluate_newest(
        self, stop: Callable[[], bool] | None = None, *, few: bool = False
    ) -> float:
        """Evaluate the newest parameters once; return what that cost, as `work` counts it.

        Args:
            stop: asked every step; True raises Interrupted.
            few: play as few episodes as tell something.
        """
        began = self._clocks()
        source = self._read(self._params)
        trials = self._few if few else self._trials
        result = self._play(self._params, trials, source.number(confirms=False), stop)
        cost = self._spent_since(began)
        held_out = 0 if result.held_out is None else len(result.held_out.returns)
        self._episode_cost = cost / (len(result.returns) + held_out)
        self._keeper.on_evaluation(result, source, self._params)
        return cost

    def confirm(self, stop: Callable[[], bool] | None = None, *, few: bool = False) -> float:
        """Let the candidate that waits and the best play the same new episodes; return what that cost.

        Args:
            stop: asked every step; True raises Interrupted.
            few: play a part of the contest's episodes.
        """
        began = self._clocks()
        contest = self._keeper.contest()
        if contest is not None:
            number, trials = contest.source.number(confirms=True), [self._confirming]
            if few:
                trials = self._few[:1]
            candidate = self._play(contest.candidate, trials, number, stop, contest.played)
            best = None
            if contest.best is not None:
                best = self._play(contest.best, trials, number, stop, contest.played)
            self._keeper.decide(candidate, best)
        return self._spent_since(began)

    def film(self, stop: Callable[[], bool] | None = None) -> float:
        """Let the best policy be recorded, if it is a new one; return what that cost."""
        began = self._clocks()
        self._keeper.film(self.policy, stop or (lambda: self._stop.stopped))
        return self._spent_since(began)

    def _clocks(self) -> tuple[float, float]:
        return time.monotonic(), self._clock()

    def _spent_since(self, began: tuple[float, float]) -> float:
        self.seconds += time.monotonic() - began[0]
        # By default processor time: not how long a thread of low priority had to wait for it.
        # Simulators' threads double it, two cores or more make up for that.
        return self._clock() - began[1]

    @memory_told("to evaluate beside training", "--evaluation.every-seconds 0 trains without")
    def _play(
        self,
        params: Sequence[Tensor],
        trials: Sequence[EvaluationEpisodes],
        number: int,
        stop: Callable[[], bool] | None,
        played: int = 0,
    ) -> Evaluation:
        """Play trials with these parameters, in the episodes of a number behind those `played`."""
        with torch.no_grad():
            for target, x in zip(self.policy.shared_tensors(), params, strict=True):
                target.copy_(x)
        self.policy.refresh()
        self._steps = self._steps or Steps(Graphs(self.device))
        # A contest has the environments of an evaluation.
        kept = self._few if trials[0] is self._few[0] else self._trials
        count = kept[0].num_envs
        if count not in self._envs:
            # Those of a trial are closed if the next one's cannot be made.
            with ExitStack() as opened:
                envs = [opened.enter_context(closing(trial.open())) for trial in kept]
                opened.pop_all()
            self._envs[count] = envs
        return play_trials(
            self.policy,
            trials,
            self._envs[count][: len(trials)],
            greedy=self._greedy,
            seed=episode_seed(self._seed, CHOOSING_RANK, number, 0),
            first_episodes=[
                number * self._episodes_apart(i) + self._episodes_of(i, played)
                for i in range(len(trials))
            ],
            stop=stop or (lambda: self._stop.stopped),
            steps=self._steps,
        )

    def _episodes_of(self, index: int, played: int) -> int:
        """Return how many episodes each environment has behind it in a contest that has played so many, late.

        It has played them part by part in the fewest environments; of a family each part begins where a round through the
        tasks does.
        """
        few, count = self._few[index], self._few[index].num_tasks
        sizes = (few.num_envs, self._trials[index].num_envs)
        rounds = math.lcm(*(count // math.gcd(count, size) for size in sizes))
        each = -(-math.ceil(few.episodes / few.num_envs) // rounds) * rounds
        return math.ceil(played / few.episodes) * each

    def _episodes_apart(self, index: int) -> int:
        """Return how many episodes of an environment lie between the first ones of two evaluations by a trial.

        Of a family whole rounds through its tasks: they begin with the same one each time. At seeds of Atari
        games, which are not to be looked for from the seed before.
        """
        trial = self._trials[index]
        # A contest that was begun late may be played whole in the end.
        longest = max(trial.episodes, 2 * self._confirming.episodes)
        unit = math.lcm(trial.num_tasks, EPISODES_PER_SEED)
        fewest = min(trial.num_envs, self._few[index].num_envs)
        return -(-longest // (fewest * unit)) * unit

    def close(self) -> None:
        """Free the environments."""
        for opened in self._envs.values():
            for envs in opened:
                envs.close()
