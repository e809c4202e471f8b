"""The learner: adapt (learn a minibatch, and post), then combine (mix with its peers)."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.algorithms.base import AlgorithmState, with_deviations
from gossamer.errors import RunFailed
from gossamer.links.stopping import Stopped
from gossamer.roles.mixer import Mixer
from gossamer.roles.optimizers import first_average, make_optimizer, scheduled, start_state
from gossamer.roles.outer_step import OuterStep
from gossamer.roles.updates import Updates
from gossamer.system import devices
from gossamer.system.graphs import Graphs
from gossamer.system.prefixes import without_prefix
from gossamer.system.signs_of_life import Sign
from gossamer.topology.base import FOREVER
from gossamer.topology.single import Single

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from gossamer.algorithms.base import Algorithm
    from gossamer.links.collective import Collective
    from gossamer.links.protocols import Peers
    from gossamer.links.stopping import StopSignal
    from gossamer.ops.micro_batches import MicroBatches
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.replay.batches import BatchSource
    from gossamer.roles.optimizers import OptimizerConfig
    from gossamer.roles.updates import Update
    from gossamer.topology.base import Topology
    from gossamer.types import Batch

MAX_NONFINITE = 5
"""Batches in a row of which no update has a finite loss and gradient before the run is given up: one reward may spoil all of a batch."""
ELSEWHERE = (
    "keep replays in the host's memory, as --replays.1.device cpu does, or use fewer environments"
)
"""What helps where replays have used up a GPU's memory."""
MOST_NATS = 1e9
"""KL that is kept in place of a larger one, which a checkpoint could not hold."""


class Learner:
    """Turns trajectories into better parameters; one of L equals.

    Where learners take turns, `adapt` is called on every one, then `combine` on every one; elsewhere each learner
    alternates the two (`learn_version`). A synchronous topology waits in between for the messages of this update.

    Args:
        policy: the parameters being learnt.
        algorithm: the loss.
        optimizer_config: how gradients become steps, and the schedule.
        replay: where batches come from.
        micro_batches: how much is learnt in one forward and backward pass, and how many at a time.
        total_env_steps: end of the schedule, counted over all learners.
        seed: of the stream that deals minibatches.
        topology: whom to hear, with which weight, once `join` has given it peers.
        rank: index among the learners.
        num_learners: L.
        sign: counts micro-batches.
        stop: ends learning between two of them; None: nothing does.
        graphs: makes captured functions; None: those of the policy's device.
    """

    def __init__(
        self,
        policy: ActorCritic,
        algorithm: Algorithm,
        optimizer_config: OptimizerConfig,
        replay: BatchSource,
        *,
        micro_batches: MicroBatches,
        total_env_steps: int,
        seed: int,
        topology: Topology | None = None,
        rank: int = 0,
        num_learners: int = 1,
        sign: Sign | None = None,
        stop: StopSignal | None = None,
        graphs: Graphs | None = None,
    ):
        self.sign = sign or Sign("the learner")
        self._stop = stop
        self.policy = policy
        self.update = 0  # minibatches learnt, and rounds in which others learnt one more
        self.version = 0  # batches learnt
        self.env_steps = 0  # decisions learnt from, over all learners
        self.nonfinite_updates = 0
        self.seconds = {
            "learn": 0.0,
            "wait": 0.0,
        }  # "learn" includes mixing and waiting for peers, "wait" is for batches
        self.lag_versions_max = 0.0  # of the last batch's online columns
        self._algorithm = algorithm
        self._config = optimizer_config
        self.replay = replay
        self.topology = topology or Single()
        self.rank, self.num_learners = rank, num_learners
        self.mixer: Mixer | None = None
        self._micro_batches = micro_batches
        self._total_env_steps = total_env_steps
        self._params = [p for p in policy.parameters() if p.requires_grad]
        self._device = self._params[0].device
        graphs = graphs or Graphs(self._device)
        self.optimizer = make_optimizer(
            optimizer_config, self._params, captured=devices.is_gpu(self._device)
        )
        self.outer_step = OuterStep(
            self._params,
            optimizer_config.outer_momentum,
            optimizer_config.outer_rate,
            nesterov=optimizer_config.outer_nesterov,
        )
        factor = self.topology.lr_factor(num_learners)
        self._base_lr = [float(group["lr"]) * factor for group in self.optimizer.param_groups]
        self._learning_rate = self._base_lr[0]
        self._state = AlgorithmState(torch.Generator().manual_seed(seed), micro_batches)
        algorithm.init_state(policy, self._state)
        self._updates = Updates(
            policy, algorithm, self.optimizer, self._state, graphs=graphs, beat=self._beat,
            max_grad_norm=optimizer_config.max_grad_norm, num_learners=num_learners,
        )  # fmt: skip
        self.dealt: deque[Tensor | None] = deque()
        """Columns of the updates of this version that are still to be made, that being made the first; None: all."""
        self._batch: Batch | None = None
        self._checked = False
        self._row_sums: dict[str, tuple[float, float]] = {}  # since metrics were last taken
        self._nonfinite_in_a_row = 0
        self._own_env_steps = 0
        self._batch_env_steps = 0  # decisions in the batch: online rows that reset no environment
        self._updates_left = 0  # of this version, posts included that hold nothing new
        self._keeps_pace = False
        self._observed = False  # whether the moments hold this version's batch
        self._follows = True  # whether this version's gradients are followed

    def mixed(self) -> list[Tensor]:
        """Return the tensors mixed with other learners, in place: parameters or gradients, and all moments."""
        moments = self.policy.moments()
        if self.topology.mixes == "gradients":
            return [*self._updates.gradient, *moments, self._updates.control]
        averages: list[Tensor] = []
        if self.topology.mix_optimizer:
            start_state(self.optimizer)
            averages = [x for p in self._params for x in self.optimizer.state[p].values()
                        if x.shape == p.shape] + self.outer_step.mixed()  # fmt: skip
        return [*self.policy.parameters(), *moments, *averages]

    def join(self, peers: Peers, *, seed: int, late: bool = False, in_turn: bool = False,
             collective: Collective | None = None) -> None:  # fmt: skip
        """Mix with the other learners from now on; `seed` is the run's, `late`: they are running, `in_turn`: in this thread."""
        self.mixer = Mixer(self.topology, peers, self.mixed(), seed=seed, collective=collective)
        self._updates.grouped = self.topology.mixes == "gradients"
        began = self.mixer.begin(self._mixing, self._own_env_steps, late=late)
        if self.topology.every == "versions":
            self.version = began
        else:
            self.update = began
        # In lock-step one that is through early goes on posting, for those that wait for it and until
        # its moments are mixed.
        self._keeps_pace = self.topology.staleness < FOREVER
        # Nobody is quicker than others there. What one had not heard of a version would be in no checkpoint.
        self._keeps_pace |= in_turn and self.topology.every == "versions"

    def take_over(self, *, update: int, version: int, own_env_steps: int, env_steps: int) -> None:
        """Count on from here; the parameters are others'. Where every update is mixed, joining says which is next."""
        self.version, self._own_env_steps, self.env_steps = version, own_env_steps, env_steps
        if self.topology.every == "versions":
            self.update = update

    def align(self, *, update: int, version: int, env_steps: int) -> None:
        """Count on as all learners of a group in lock-step do, which may not have been in step before."""
        # Versions too, whatever is mixed: a moment of all of them, as of a checkpoint, is named by their version.
        self.update, self.version, self.env_steps = update, version, env_steps

    @property
    def _mixing(self) -> int:
        """Number of the next mixing, by which messages are known."""
        return self.version if self.topology.every == "versions" else self.update

    @property
    def _mixes_now(self) -> bool:
        """Whether learners mix after the present update."""
        return self.topology.every == "updates" or self._updates_left == 0

    @property
    def updates_per_version(self) -> int:
        """Updates of a version, of learners that keep pace."""
        return self._algorithm.updates_per_batch

    def learn_version(self) -> None:
        """Learn one whole batch, alone: adapt and combine until the version is complete."""
        version = self.version
        while self.version == version:
            self.adapt()
            self.combine()

    @devices.memory_told("to mix and to observe what is learnt", devices.ROOM)
    def adapt(self) -> None:
        """Compute the gradient of the next minibatch, take the step unless gradients are mixed, and post."""
        began = time.perf_counter()
        if self._batch is None:
            with devices.memory_told("for what is replayed", ELSEWHERE):
                batch = self.replay.sample()
            sampled = time.perf_counter()
            self.seconds["wait"] += sampled - began
            began = sampled
            self._begin(batch)
        if self.dealt:
            assert self._batch is not None
            self._algorithm.before_update(self.policy, self._state)
            with torch.enable_grad(), self._memory_told(self._batch):
                self._updates.update(self.dealt[0], follows=self._follows)
            if self._follows:
                self._algorithm.count_update(self._state)
        if self.mixer is not None:
            self._updates_left -= 1
            if self._updates_left == 0:  # moments belong to the version, and to its last message
                self._observe()
            if self._mixes_now:
                self.mixer.post(self._mixing)
        self.seconds["learn"] += time.perf_counter() - began

    @devices.memory_told("to mix and to observe what is learnt", devices.ROOM)
    @torch.no_grad()
    def combine(self) -> None:
        """Mix in what the neighbours posted; close the version after its last minibatch."""
        began = time.perf_counter()
        if self.mixer is not None and self._mixes_now:
            self.mixer.mix(self._mixing)
            if self.topology.mixes == "gradients" and self.dealt:
                self._updates.step(follows=self._follows)
        self.update += 1
        if self.dealt:
            self.dealt.popleft()
        if self._updates.ended:
            self.dealt.clear()
        if not self.dealt and self.topology.mixes == "gradients":
            self._updates_left = min(self._updates_left, 1)  # everyone's: they decide alike
        if not self.dealt and not (self._updates_left and self._keeps_pace):
            if self.mixer is not None and not self._mixes_now:  # it is through early
                self._observe()
                self.mixer.post(self._mixing)
                self.mixer.mix(self._mixing)
            self._close_version()
        self.seconds["learn"] += time.perf_counter() - began

    def _begin(self, batch: Batch) -> None:
        num_online = batch.num_columns
        if self.replay.replays:
            num_online -= int(batch.replayed.sum())
        self._batch_env_steps = batch.env_steps
        if batch.env_steps < 0:
            self._batch_env_steps = int(batch.valid[:, :num_online].sum())
        if self.mixer is not None:
            self.mixer.begin_version(self._mixing, self._own_env_steps + self._batch_env_steps)
        if not self._checked:  # once a session: slots are written by one place only
            batch.check(self.policy.spec)
            self._checked = True
        self._batch = batch
        self._updates_left = self._algorithm.updates_per_batch
        self._observed = False
        lag = (self.version - batch.version[:num_online]).float()
        largest = lag.max() if num_online else lag.new_zeros(())
        mean, self.lag_versions_max = torch.stack([lag.mean(), largest]).tolist()  # one wait
        self._add_to_row({"lag_versions_mean": (mean, 1.0)})
        # The same in all updates of a version: those that average gradients agree on it.
        self._follows = self.env_steps >= self._config.learn_start
        self._set_learning_rate()
        self.outer_step.begin()
        with torch.enable_grad(), self._memory_told(batch):
            self.dealt = deque(self._updates.begin(batch, num_online))
        assert len(self.dealt) <= self._updates_left, (
            f"{self._algorithm.name}.dealt yields more than its updates_per_batch"
        )

    @contextmanager
    def _memory_told(self, batch: Batch) -> Generator[None]:
        """Context in which a GPU's memory that runs out ends the run with what helps."""
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            part = math.ceil(batch.num_columns / self._algorithm.num_minibatches) * len(
                batch.starts
            )
            rows = min(self._micro_batches.rows_of(batch), part)
            raise RunFailed(
                f"the GPU's memory is too small to learn {rows:,} rows at a time "
                f"({' '.join(str(error).split())[:120]}); learn fewer: --micro-batch-rows {max(rows // 2, 1)}"
            ) from None

    def _observe(self) -> None:
        """Take the batch into the moments; what is derived from them waits for the version's end."""
        freeze = 0 < self.policy.config.normalize_steps <= self.env_steps
        self._updates.observe(freeze=freeze or not self.policy.config.normalize_obs)
        self._observed = True

    def _close_version(self) -> None:
        if not self._observed:
            self._observe()
        if self._follows:  # what is mixed before is no step, and is not to be followed later
            self.outer_step.apply(self._learning_rate)
        self._updates.refresh(follows=self._follows)
        self._count(self._updates.finish())
        if not self._follows:  # a policy that has not moved says nothing about the learning rate
            self._state.lr_scale = 1.0
        self._own_env_steps += self._batch_env_steps
        self.version += 1
        env_steps, self.env_steps = self.env_steps, self._own_env_steps
        if self.mixer is not None:
            # Those that have not begun yet are missing from the count.
            self.env_steps = max(env_steps, self.mixer.count(self._own_env_steps))
        self._batch = None
        self.replay.release()

    def _beat(self) -> None:
        self.sign.beats += 1
        if self._stop is not None and self._stop.stopped:
            raise Stopped

    def _count(self, updates: list[Update]) -> None:
        """Take the numbers of a version's updates; end the run where none was finite in too many batches in a row."""
        last: dict[str, tuple[float, float]] = {}
        for norm, sums in updates:
            if not math.isfinite(norm):
                self.nonfinite_updates += 1
                continue
            self._add_to_row(sums | {"learner/grad_norm": (norm, 1.0)})
            last = sums
        if last:
            self._nonfinite_in_a_row = 0
        elif updates:
            self._count_nonfinite(updates[-1].norm)
        if last and self._follows:
            # A minibatch may hold no row that is learnt from, which says nothing of the policy either.
            means = {name: x / n for name, (x, n) in last.items() if n > 0}
            kl = means.get("learner/mean_kl_nats", self._state.kl_nats)
            self._state.kl_nats = kl if kl < MOST_NATS else MOST_NATS  # NaN is not less
            self._algorithm.after_version(self._state, means)

    def _add_to_row(self, sums: Mapping[str, tuple[float, float]]) -> None:
        for name, (x, n) in sums.items():
            total, count = self._row_sums.get(name, (0.0, 0.0))
            self._row_sums[name] = total + x, count + n

    def _count_nonfinite(self, norm: float) -> None:
        self._nonfinite_in_a_row += 1
        if self._nonfinite_in_a_row >= MAX_NONFINITE:
            hint = "try a smaller --optimizer.learning-rate, or --algorithm.reward-clip clamp"
            if self._batch is not None and not self._batch.reward.isfinite().all():
                hint = "the environment's rewards are not finite numbers of float32"
            elif self.nonfinite_updates == self.update:
                hint = ("no update of the run was finite: rewards are far too large, or a loss or layers of your own "
                        "compute what is no finite number")  # fmt: skip
            raise RunFailed(f"the gradient was not finite ({norm}) in all updates of {MAX_NONFINITE} batches in a row, "
                            f"until update {self.update}; {hint}")  # fmt: skip

    def _set_learning_rate(self) -> None:
        progress = self.env_steps / self._total_env_steps
        rates = [scheduled(self._config, x, progress) * self._state.lr_scale for x in self._base_lr]
        self._updates.set_learning_rates(rates)
        self._learning_rate = rates[0]

    @property
    def own_env_steps(self) -> int:
        """Env steps behind the newest version that this learner's own actors have taken."""
        return self._own_env_steps

    def take_metrics(self) -> dict[str, float]:
        """Return the means over the updates since the last call, and forget them."""
        sums, self._row_sums = self._row_sums, {}
        means = with_deviations({name: x / max(n, 1e-12) for name, (x, n) in sums.items()})
        means["learner/learning_rate"] = self._learning_rate
        means["learner/nonfinite_updates"] = float(self.nonfinite_updates)
        means |= self.outer_step.take_metrics()
        means |= self.replay.take_metrics()
        return means | (self.mixer.take_metrics() if self.mixer is not None else {})

    def close(self) -> None:
        """End the threads."""
        self._micro_batches.close()
        self.replay.close()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers: parameters, moments, optimizer, counters, streams, replays."""
        assert self._batch is None, "a version is being learnt"
        state: dict[str, Any] = {f"policy.{k}": x for k, x in self.policy.state_dict().items()}
        state |= {f"algorithm.{k}": x for k, x in self._state.state_dict().items()}
        for i, p in enumerate(self._params):
            for name, x in self.optimizer.state.get(p, {}).items():
                state[f"optimizer.{i}.{name}"] = x
        state |= {f"outer.{k}": x for k, x in self.outer_step.state_dict().items()}
        for name in ("update", "version", "env_steps", "nonfinite_updates"):
            state[name] = getattr(self, name)
        state["own_env_steps"] = self._own_env_steps
        state["nonfinite_in_a_row"] = self._nonfinite_in_a_row
        return state | {f"replay.{k}": x for k, x in self.replay.state_dict().items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.policy.load_state_dict(without_prefix(state, "policy."))
        self.policy.refresh()
        place = None if type(self._algorithm).__module__.startswith("gossamer.") else self._device
        self._state.load_state_dict(without_prefix(state, "algorithm."), place)
        self.replay.load_state_dict(without_prefix(state, "replay."))
        if place is None and not getattr(self._algorithm, "target_kl_nats", 0.0):
            self._state.lr_scale = 1.0  # nobody would take back what was adapted before
        self._load_optimizer(state)
        self.outer_step.load_state_dict(without_prefix(state, "outer."))
        for name in ("update", "version", "env_steps", "nonfinite_updates"):
            setattr(self, name, state[name])
        self._own_env_steps = state.get("own_env_steps", self.env_steps // self.num_learners)
        self._nonfinite_in_a_row = state["nonfinite_in_a_row"]

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """Put back running averages, in the memory they are in; a state without any is one before the first step."""
        saved = [without_prefix(state, f"optimizer.{i}.") for i in range(len(self._params))]
        if not any(saved) and not any(self.optimizer.state.values()):
            return
        start_state(self.optimizer)
        for i, (p, known) in enumerate(zip(self._params, saved, strict=True)):
            for name, x in self.optimizer.state[p].items():
                if not any(saved):
                    x.fill_(first_average(self.optimizer, name))
                elif name not in known:
                    raise RuntimeError("the optimizer's state is not whole")
                elif known[name].shape != x.shape:
                    raise RuntimeError(f"optimizer.{i}.{name} does not fit its parameter")
                else:
                    x.copy_(known[name])
