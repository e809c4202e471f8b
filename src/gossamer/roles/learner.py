"""The learner: adapt (learn a minibatch, and post), then combine (mix with its peers)."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.algorithms.base import AlgorithmState, with_column_weights, with_deviations
from gossamer.errors import RunFailed
from gossamer.links.stopping import Stopped
from gossamer.roles.mixer import Mixer
from gossamer.roles.optimizers import is_whole, make_optimizer, scheduled, start_state
from gossamer.roles.outer_step import OuterStep
from gossamer.system import devices
from gossamer.system.prefixes import without_prefix
from gossamer.system.signs import Sign
from gossamer.topology.base import FOREVER
from gossamer.topology.single import Single

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from gossamer.algorithms.base import Algorithm
    from gossamer.links.collective import Collective
    from gossamer.links.protocols import Peers
    from gossamer.links.stopping import StopSignal
    from gossamer.ops.micro_batches import Cuts, MicroBatches
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.replay.batches import BatchSource
    from gossamer.roles.optimizers import OptimizerConfig
    from gossamer.topology.base import Topology
    from gossamer.types import Batch

Sums = dict[str, list["Tensor | float"]]
"""Sums by metric: the sum, and how many rows are in it."""

CONTROL_VALUES = 64
"""Numbers beside gradients in a message: the divisor, then a sum and a count for each metric."""
MAX_NONFINITE = 5
"""Updates in a row whose loss or gradient is not finite before the run is given up."""


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
        self.lag_versions = 0.0
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
        self.optimizer = make_optimizer(optimizer_config, self._params)
        self.outer_step = OuterStep(
            self._params,
            optimizer_config.outer_momentum,
            optimizer_config.outer_rate,
            nesterov=optimizer_config.outer_nesterov,
        )
        factor = self.topology.lr_factor(num_learners)
        self._base_lr = [group["lr"] * factor for group in self.optimizer.param_groups]
        self._state = AlgorithmState(torch.Generator().manual_seed(seed), micro_batches)
        algorithm.init_state(policy, self._state)
        self._minibatches: Iterator[Batch] = iter(())
        self.minibatch: Batch | None = None
        """Minibatch being learnt; None between two versions, and while waiting for others to finish theirs."""
        self._batch: Batch | None = None
        self._checked = False
        self._replayed = False  # whether the batch has replayed columns
        self._num_online = 0  # columns of the batch that are not; they come first
        # One sum per thread; the first is what the optimizer sees.
        self._gradients = [
            [torch.zeros_like(p) for p in self._params] for _ in range(micro_batches.num_threads)
        ]
        for p, gradient in zip(self._params, self._gradients[0], strict=True):
            p.grad = gradient
        self._update_sums: Sums = {}
        self._row_sums: Sums = {}  # since metrics were last taken
        # Of every update of this version: sum, sum of squares and rows of its value targets.
        self._targets: list[Tensor | float] = []
        self._nonfinite_in_a_row = 0
        self._own_env_steps = 0
        self._batch_env_steps = 0  # decisions in the batch: online rows that reset no environment
        self._updates_left = 0  # of this version, posts included that hold nothing new
        self._keeps_pace = False
        self._observed = False  # whether the moments hold this version's batch
        self._learns = True  # whether this version's gradients are followed
        self._control = torch.zeros(CONTROL_VALUES, dtype=torch.float64, device=self._device)

    def mixed(self) -> list[Tensor]:
        """Return the tensors mixed with other learners, in place: parameters or gradients, and all moments."""
        moments = self.policy.moments()
        if self.topology.mixes == "gradients":
            return [*self._gradients[0], *moments, self._control]
        averages: list[Tensor] = []
        if self.topology.mix_optimizer:
            start_state(self.optimizer)
            averages = [x for p in self._params for x in self.optimizer.state[p].values()
                        if x.shape == p.shape] + self.outer_step.mixed()  # fmt: skip
        return [*self.policy.parameters(), *moments, *averages]

    def join(self, peers: Peers, *, seed: int, late: bool = False,
             collective: Collective | None = None) -> None:  # fmt: skip
        """Mix with the other learners from now on; `seed` is the run's, `late`: they are running."""
        self.mixer = Mixer(self.topology, peers, self.mixed(), seed=seed, collective=collective)
        began = self.mixer.begin(self._mixing, self._own_env_steps, late=late)
        if self.topology.every == "versions":
            self.version = began
        else:
            self.update = began
        # In lock-step one that is through early goes on posting, for those that wait for it and until
        # its moments are mixed.
        self._keeps_pace = self.topology.staleness < FOREVER

    def take_over(self, *, update: int, version: int, own_env_steps: int, env_steps: int) -> None:
        """Count on from here; the parameters are others'. Where every update is mixed, joining says which is next."""
        self.version, self._own_env_steps, self.env_steps = version, own_env_steps, env_steps
        if self.topology.every == "versions":
            self.update = update

    def align(self, *, update: int, version: int, env_steps: int) -> None:
        """Count on as all learners of a group in lock-step do, which may not have been in step before."""
        self.update, self.env_steps = update, env_steps
        if self.topology.every == "versions":
            self.version = version

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

    def adapt(self) -> None:
        """Compute the gradient of the next minibatch, take the step unless gradients are mixed, and post."""
        if self._batch is None:
            began = time.perf_counter()
            batch = self.replay.sample()
            self.seconds["wait"] += time.perf_counter() - began
            self._begin(batch)
        began = time.perf_counter()
        if self.minibatch is not None:
            self._set_gradient(self.minibatch)
            if self.topology.mixes == "parameters" or self.mixer is None:
                self._descend()
        if self.mixer is not None:
            self._updates_left -= 1
            if self._updates_left == 0:  # moments belong to the version, and to its last message
                self._observe()
            if self._mixes_now:
                self.mixer.post(self._mixing)
        self.seconds["learn"] += time.perf_counter() - began

    @torch.no_grad()
    def combine(self) -> None:
        """Mix in what the neighbours posted; close the version after its last minibatch."""
        began = time.perf_counter()
        if self.mixer is not None and self._mixes_now:
            self.mixer.mix(self._mixing)
            if self.topology.mixes == "gradients" and self.minibatch is not None:
                self._descend(self._take_control())
        self.update += 1
        self.minibatch = self._next_minibatch()
        if self.minibatch is None and self.topology.mixes == "gradients":
            self._updates_left = min(self._updates_left, 1)  # everyone's: they decide alike
        if self.minibatch is None and not (self._updates_left and self._keeps_pace):
            if self.mixer is not None and not self._mixes_now:  # it is through early
                self._observe()
                self.mixer.post(self._mixing)
                self.mixer.mix(self._mixing)
            self._close_version()
        else:
            assert self._updates_left or self.mixer is None, (
                f"{self._algorithm.name}.minibatches yields more than its updates_per_batch"
            )
        self.seconds["learn"] += time.perf_counter() - began

    def _begin(self, batch: Batch) -> None:
        self._replayed = self.replay.replays and bool(batch.replayed.any())
        self._num_online = int((~batch.replayed).sum()) if self._replayed else batch.num_columns
        self._batch_env_steps = int(batch.valid[:, : self._num_online].sum())
        if self.mixer is not None:
            self.mixer.begin_version(self._mixing, self._own_env_steps + self._batch_env_steps)
        batch = batch.to(self._device)
        if not self._checked:  # once a session: slots are written by one place only
            batch.check(self.policy.spec)
            self._checked = True
        self._batch = batch
        self._updates_left = self._algorithm.updates_per_batch
        self._observed = False
        self.lag_versions = float((self.version - batch.version[: self._num_online]).float().mean())
        _add_sums(self._row_sums, {"lag_versions_mean": (self.lag_versions, 1.0)})
        # The same in all updates of a version: those that average gradients agree on it.
        self._learns = self.env_steps >= self._config.learn_start
        self._set_learning_rate()
        self.outer_step.begin()
        self._minibatches = iter(self._algorithm.minibatches(self.policy, batch, self._state))
        self.minibatch = self._next_minibatch()

    def _next_minibatch(self) -> Batch | None:
        assert self._batch is not None
        with torch.enable_grad(), self._memory_told(self._batch):
            return next(self._minibatches, None)

    @contextmanager
    def _memory_told(self, batch: Batch) -> Generator[None]:
        """Context in which a GPU's memory that runs out ends the run with what helps."""
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            rows = self._micro_batches.rows_of(batch)
            raise RunFailed(
                f"the GPU's memory is too small to learn {rows:,} rows at a time "
                f"({' '.join(str(error).split())[:120]}); learn fewer: --micro-batch-rows {max(rows // 2, 1)}"
            ) from None

    def _observe(self) -> None:
        """Take the batch into the moments; what is derived from them waits for the version's end."""
        batch = self._batch
        assert batch is not None
        freeze = 0 < self.policy.config.normalize_steps <= self.env_steps
        # Replayed columns have been observed when they were new.
        online = batch.columns(0, self._num_online) if self._replayed else batch
        self.policy.observe(online.obs, online.valid, freeze=freeze)
        if self.policy.value_norm:
            self._observe_values()
        self._observed = True

    def _observe_values(self) -> None:
        held, self._targets = self._targets, []
        found = devices.stacked(held, self._device).view(-1, 3)
        # An update whose numbers are not finite was not made.
        found = torch.where(found[:, 1:2].isfinite(), found, 0.0)
        total = found[0]
        for row in found[1:]:
            total = total + row
        self.policy.observe_values(*total)

    def _close_version(self) -> None:
        batch = self._batch
        assert batch is not None
        if not self._observed:
            self._observe()
        if self._learns:  # what is mixed before is no step, and is not to be followed later
            self.outer_step.apply(self.optimizer.param_groups[0]["lr"])
        self.policy.refresh()
        if not self._learns:  # a policy that has not moved says nothing about the learning rate
            self._state.lr_scale = 1.0
        self._own_env_steps += self._batch_env_steps
        self.version += 1
        env_steps, self.env_steps = self.env_steps, self._own_env_steps
        if self.mixer is not None:
            # Those that have not begun yet are missing from the count.
            self.env_steps = max(env_steps, self.mixer.count(self._own_env_steps))
        self._batch = None
        self.replay.release()

    def _set_gradient(self, minibatch: Batch) -> None:
        if self._replayed:
            minibatch = with_column_weights(minibatch, self._algorithm.reduction)
        divisor = self._algorithm.divisor(minibatch)
        grouped = self.mixer is not None and self.topology.mixes == "gradients"

        def accumulate(thread: int, cuts: Cuts) -> Sums:
            return self._accumulate(
                minibatch, cuts, 1.0 if grouped else divisor, self._gradients[thread]
            )

        with self._memory_told(minibatch):
            done = self._micro_batches.share_out(minibatch, accumulate)
        for gradient in self._gradients[1 : len(done)]:
            torch._foreach_add_(self._gradients[0], gradient)
        for sums in done:
            _add_sums(self._update_sums, sums)
        if self.policy.value_norm:
            total, rows = self._update_sums["learner/target_mean"]
            square, _ = self._update_sums["learner/target_square"]
            self._targets += [total, square, rows]
        if grouped:
            self._set_control(divisor)

    def _set_control(self, divisor: Tensor | float) -> None:
        """Write beside the gradient what it is divided by, and the sums behind the metrics."""
        if self._algorithm.reduction == "sum":
            divisor = 1.0 / self.num_learners
        names = sorted(self._update_sums)
        values = [divisor, *(x for name in names for x in self._update_sums[name])]
        self._control.zero_()
        self._control[: len(values)] = devices.stacked(values, self._device)

    def _take_control(self) -> Tensor:
        """Replace the sums by the group's; return what the group's gradient is divided by."""
        divisor, *values = self._control.unbind()  # on the device, where they stay
        for i, name in enumerate(sorted(self._update_sums)):
            self._update_sums[name] = [values[2 * i], values[2 * i + 1]]
        return divisor.float()

    def _accumulate(
        self, minibatch: Batch, cuts: Cuts, divisor: Tensor | float, gradient: list[Tensor]
    ) -> Sums:
        """Set `gradient` to the sum over some micro-batches; return the sums of their metrics."""
        sums: Sums = {}
        torch._foreach_zero_(gradient)
        with self.policy.accumulating():
            for start, stop in cuts:
                self.sign.beats += 1
                if self._stop is not None and self._stop.stopped:
                    raise Stopped
                part = minibatch.columns(start, stop)
                loss, metrics = self._algorithm.loss(self.policy, part, self._state)
                # Autocast would round what forward kept exact; .backward() would share p.grad.
                with torch.autocast(self._device.type, enabled=False):
                    grads = torch.autograd.grad(
                        loss / divisor, self._params, materialize_grads=True
                    )
                    torch._foreach_add_(gradient, grads)
                _add_sums(sums, metrics)
        return sums

    def _descend(self, divisor: Tensor | None = None) -> None:
        if divisor is not None:
            torch._foreach_div_(self._gradients[0], divisor)
        limit = self._config.max_grad_norm or math.inf
        total_norm = torch.nn.utils.clip_grad_norm_(self._params, limit)
        held, self._update_sums = self._update_sums, {}
        # All at once: on a GPU this is the one moment of an update at which it is waited for.
        norm, *values = devices.read(
            [total_norm, *(x for pair in held.values() for x in pair)], self._device
        )
        if not math.isfinite(norm):
            self._skip(norm)
            return
        self._nonfinite_in_a_row = 0
        if self._learns:
            self.optimizer.step()
        sums = {name: (values[2 * i], values[2 * i + 1]) for i, name in enumerate(held)}
        sums["learner/grad_norm"] = (norm, 1.0)
        _add_sums(self._row_sums, sums)
        means = {name: x / max(n, 1e-12) for name, (x, n) in sums.items()}
        if self._learns:
            self._algorithm.after_update(self._state, means)

    def _skip(self, norm: float) -> None:
        self.nonfinite_updates += 1
        self._nonfinite_in_a_row += 1
        if self._nonfinite_in_a_row >= MAX_NONFINITE:
            hint = "try a smaller --optimizer.learning-rate, or --algorithm.reward-clip clamp"
            if self._batch is not None and not self._batch.reward.isfinite().all():
                hint = "the environment's rewards are not finite"
            raise RunFailed(f"the gradient was not finite ({norm}) in {MAX_NONFINITE} updates in a row, "
                            f"at update {self.update}; {hint}")  # fmt: skip

    def _set_learning_rate(self) -> None:
        progress = self.env_steps / self._total_env_steps
        for group, base in zip(self.optimizer.param_groups, self._base_lr, strict=True):
            group["lr"] = scheduled(self._config, base, progress) * self._state.lr_scale

    def take_metrics(self) -> dict[str, float]:
        """Return the means over the updates since the last call, and forget them."""
        sums, self._row_sums = self._row_sums, {}
        means = with_deviations(
            {name: float(x) / max(float(n), 1e-12) for name, (x, n) in sums.items()}
        )
        means["learner/learning_rate"] = self.optimizer.param_groups[0]["lr"]
        means["learner/nonfinite_updates"] = float(self.nonfinite_updates)
        means |= self.outer_step.take_metrics()
        means |= self.replay.take_metrics(updates_per_version=self.updates_per_version)
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
            for name, x in self.optimizer.state[p].items():
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
        self._state.load_state_dict(without_prefix(state, "algorithm."))
        self.replay.load_state_dict(without_prefix(state, "replay."))
        for i, p in enumerate(self._params):
            for name, x in without_prefix(state, f"optimizer.{i}.").items():
                if isinstance(x, Tensor) and x.ndim > 0 and x.shape != p.shape:
                    raise RuntimeError(f"optimizer.{i}.{name} does not fit its parameter")
                if isinstance(x, Tensor) and x.ndim > 0:
                    x = torch.empty_like(p).copy_(x)  # the parameter's device and memory format
                elif isinstance(x, Tensor):
                    x = x.to(p.device)  # fused kernels count steps where the parameter is
                self.optimizer.state[p][name] = x
        if not is_whole(self.optimizer, self._config):
            raise RuntimeError("the optimizer's state is not whole")
        self.outer_step.load_state_dict(without_prefix(state, "outer."))
        for name in ("update", "version", "env_steps", "nonfinite_updates"):
            setattr(self, name, state[name])
        self._own_env_steps = state.get("own_env_steps", self.env_steps // self.num_learners)
        self._nonfinite_in_a_row = state["nonfinite_in_a_row"]


def _add_sums(sums: Sums, more: Mapping[str, Sequence[Tensor | float]]) -> None:
    for name, (x, n) in more.items():
        held = sums.get(name)
        sums[name] = [x, n] if held is None else [held[0] + x, held[1] + n]
