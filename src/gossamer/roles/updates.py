"""What a learner computes of a batch, as functions that a GPU captures: prepare, update (or gradient and step), observe.

Between them the host decides: which columns an update learns, the learning rate, whom to mix with. What an update was is
told in a row of numbers on the device, which the host reads once a version.

Shapes: T unroll length, B columns, M metrics, U updates of a version.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from gossamer.algorithms.base import with_column_weights
from gossamer.errors import RunFailed
from gossamer.ops.returns import is_finite
from gossamer.roles.optimizers import set_learning_rate, start_state
from gossamer.system import devices
from gossamer.types import Batch, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gossamer.algorithms.base import Algorithm, AlgorithmState
    from gossamer.ops.micro_batches import Cuts
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.system.graphs import Graph, Graphs

Sums = dict[str, list["Tensor | float"]]
"""Sums by metric: the sum, and how many rows are in it."""

CONTROL_VALUES = 64
"""Numbers beside gradients in a message: the divisor, then a sum and a count for each metric; more for an action of
parts, each of which has a metric."""


SAME_IN_A_LAYOUT = {"replayed", *(k for k, kind in kinds_of(Batch).items() if kind.on_host)}
"""Fields that are the same in all batches of a layout, or that updates do not use."""


def gradients() -> contextlib.AbstractContextManager[None]:
    """Return a context with gradients: a simulator may have turned them off in this thread."""
    return contextlib.nullcontext() if torch.is_grad_enabled() else torch.enable_grad()


class Update(NamedTuple):
    """What an update was, on the host."""

    norm: float
    """Of the gradient; not finite: the update was left out."""
    sums: dict[str, tuple[float, float]]
    """Sum and count by metric."""


@dataclass
class _Layout:
    """Batches of one form, as they are until replays have enough and from then on: their memory, their functions."""

    num_online: int
    """Columns that are not replayed; they come first."""
    replayed: bool
    batch: Batch
    """Where the batch is: on a GPU in memory of its own, which stays."""
    prepare: Graph
    observe: Graph
    prepared: Batch | None = None
    columns: dict[int, Tensor] = field(default_factory=dict)
    """Columns dealt to the present update, by their number."""
    updates: dict[tuple[int, bool], Graph] = field(default_factory=dict)
    """By the number of columns, and whether the policy follows."""


class Updates:
    """Computes updates of a policy.

    Args:
        policy: being learnt.
        algorithm: the loss.
        optimizer: takes the steps; its parameters' gradients are `gradient`.
        state: the algorithm's.
        max_grad_norm: gradients are scaled down to it; 0: they are not.
        num_learners: L, among which gradients may be averaged.
        graphs: makes captured functions.
        beat: called before every micro-batch, where one is computed after the other; may raise.
    """

    def __init__(
        self,
        policy: ActorCritic,
        algorithm: Algorithm,
        optimizer: torch.optim.Optimizer,
        state: AlgorithmState,
        *,
        max_grad_norm: float,
        num_learners: int,
        graphs: Graphs,
        beat: Callable[[], None],
    ):
        self._policy, self._algorithm, self._state = policy, algorithm, state
        self._optimizer, self._limit = optimizer, max_grad_norm or math.inf
        self._num_learners, self._graphs, self._beat = num_learners, graphs, beat
        self._params: list[Tensor] = [
            p for group in optimizer.param_groups for p in group["params"]
        ]
        self._device = self._params[0].device
        self._micro_batches = state.micro_batches
        # One sum per thread; the first is what the optimizer sees.
        threads = range(self._micro_batches.num_threads)
        self._gradients = [[torch.zeros_like(p) for p in self._params] for _ in threads]
        for p, gradient in zip(self._params, self._gradients[0], strict=True):
            p.grad = gradient
        self._on_gpu = devices.is_gpu(self._device)
        if self._on_gpu:  # what a captured step reads has to be there
            start_state(optimizer)
        self.grouped = False
        """Whether gradients are averaged with other learners' between gradient and step."""
        self.control = self._zeros(CONTROL_VALUES + 2 * len(policy.spec.action.parts))
        """Beside the gradients in a message: what they are divided by, and the sums behind the metrics."""
        self._layouts: dict[tuple[int, int], _Layout] = {}
        self._layout: _Layout | None = None
        self._steps = {
            follows: self._graph("a step", self._step_of(follows)) for follows in (True, False)
        }
        self._refreshes = {
            keeps: self._graph("the moments", partial(policy.refresh, keep_values=keeps))
            for keeps in (True, False)
        }
        self._names: list[str] = []
        self._rows = self._zeros(0, 0)  # [U, 2 + 2 M] of a version's updates
        self._number = torch.zeros(1, dtype=torch.int64, device=self._device)  # of the next row
        self._made = 0
        self._make_row()
        self._may_end = False
        # Sum, sum of squares and rows of the value targets of this version's updates.
        self._targets = self._zeros(3)
        self._of_targets = (
            self._number
        )  # where these three are among the sums; known with the metrics' names

    def _make_row(self) -> None:
        """Make room for the numbers of an update, side by side as they go to the rows."""
        self._row = self._zeros(1, 2 + 2 * len(self._names))
        self._norm, self._sums = self._row[0, :1], self._row[0, 2:]
        self._ended = self._row[0, 1:2]  # not 0: updates do nothing until the version's end

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self._device)

    @property
    def gradient(self) -> list[Tensor]:
        """The gradient of the present update, by parameter."""
        return self._gradients[0]

    @property
    def ended(self) -> bool:
        """Whether the rest of the version can be left out; on a GPU always False, as asking it would wait."""
        return self._may_end and not self._on_gpu and bool(self._ended)

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rate of each group of parameters."""
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            set_learning_rate(group, rate)

    def begin(self, batch: Batch, num_online: int) -> list[Tensor | None]:
        """Begin to learn a batch; return which of its columns each update learns, for `update` in this order.

        Args:
            batch: wherever it is; on a GPU it is copied, and free when the version ends.
            num_online: columns that are not replayed; they come first.
        """
        key = batch.num_columns, num_online
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._new_layout(batch, num_online)
        elif self._on_gpu:
            for name, x, _ in batch.each():
                if name not in SAME_IN_A_LAYOUT:
                    layout.batch.tensor(name).copy_(x, non_blocking=True)
        else:
            layout.batch = batch
        self._layout = layout
        self._made = 0
        for x in (self._number, self._ended, self._targets):
            x.zero_()
        layout.prepare()
        assert layout.prepared is not None
        columns = layout.prepared.num_columns
        dealt = self._algorithm.dealt(
            columns, num_online if layout.replayed else columns, self._state
        )
        return [
            x if x is None else devices.send(self._of_batch(x, columns), self._device)
            for x in dealt
        ]

    def _of_batch(self, dealt: Any, columns: int) -> Tensor:
        """Return what was dealt to an update, unless these are no columns: a GPU would end the process."""
        fits = isinstance(dealt, Tensor) and dealt.dtype is torch.int64 and dealt.dim() == 1
        if fits and not len(dealt):
            raise RunFailed(
                f"dealt of {type(self._algorithm).__name__} has dealt no columns to an update; leave such an update out"
            )
        if not fits or not 0 <= int(dealt.min()) <= int(dealt.max()) < columns:
            raise RunFailed(
                f"dealt of {type(self._algorithm).__name__} yields {_in_words(dealt)}; it must yield a tensor of "
                f"int64 numbers from 0 to {columns - 1}, the columns of an update, or None for all"
            )
        return dealt

    def _new_layout(self, batch: Batch, num_online: int) -> _Layout:
        if self._on_gpu:
            own = {
                name: x.to(self._device, non_blocking=True, copy=True)
                for name, x, _ in batch.each()
            }
            batch = batch.with_fields(own)
        layout = _Layout(
            num_online=num_online,
            replayed=num_online < batch.num_columns,
            batch=batch,
            prepare=self._graph("preparing a batch", lambda: self._prepare(layout)),
            observe=self._graph("observing a batch", lambda: self._observe(layout)),
        )
        return layout

    def update(self, columns: Tensor | None, *, follows: bool) -> None:
        """Compute the gradient of the columns dealt to an update, and step unless gradients are averaged.

        Args:
            columns: from `begin`.
            follows: whether the policy steps; otherwise the gradient is only looked at.
        """
        layout = self._layout
        assert layout is not None
        count = 0 if columns is None else len(columns)
        if columns is not None:
            if not self._on_gpu:
                layout.columns[count] = columns
            elif count in layout.columns:
                layout.columns[count].copy_(columns)
            else:
                layout.columns[count] = columns.clone()
        key = count, follows
        if key not in layout.updates:
            layout.updates[key] = self._graph(
                "an update", lambda: self._update(layout, count, follows)
            )
        if self._on_gpu:
            self._beat()
        layout.updates[key]()
        if not self.grouped:
            self._made += 1

    def step(self, *, follows: bool) -> None:
        """Step by the gradient and the sums that have been averaged with other learners'."""
        self._steps[follows]()
        self._made += 1

    def observe(self, *, freeze: bool) -> None:
        """Take the batch's observations, unless they are frozen, and its value targets into the moments."""
        layout = self._layout
        assert layout is not None
        if not freeze:
            layout.observe()
        elif self._policy.value_norm:
            self._policy.observe_values(*self._targets)

    def refresh(self, *, follows: bool) -> None:
        """Let the policy go by the moments as they are now; one that does not follow keeps its parameters."""
        self._refreshes[follows and self._algorithm.popart]()

    def finish(self) -> list[Update]:
        """End the version; return its updates, which waits for a GPU."""
        if self._layout is not None and not self._on_gpu:
            self._layout.prepared = None
        self._layout = None
        found: list[Update] = []
        for norm, ended, *numbers in self._rows[: self._made].tolist():
            if not ended:
                pairs = zip(numbers[::2], numbers[1::2], strict=True)
                found.append(Update(norm, dict(zip(self._names, pairs, strict=True))))
        return found

    # What follows is captured.

    def _prepare(self, layout: _Layout) -> None:
        found = self._batch_of(
            "prepare", self._algorithm.prepare(self._policy, layout.batch, self._state)
        )
        if not self._on_gpu:
            layout.prepared = found
            return
        held = {x.untyped_storage().data_ptr() for _, x, _ in layout.batch.each()}
        new = {k: x for k, x, _ in found.each() if x.untyped_storage().data_ptr() not in held}
        if layout.prepared is None:  # in memory that stays
            layout.prepared = found.with_fields({k: x.clone() for k, x in new.items()})
            return
        for name, x in new.items():
            layout.prepared.tensor(name).copy_(x)

    def _update(self, layout: _Layout, count: int, follows: bool) -> None:
        assert layout.prepared is not None
        columns = layout.columns[count] if count else None
        part = self._batch_of(
            "part", self._algorithm.part(self._policy, layout.prepared, columns, self._state)
        )
        if layout.replayed:
            part = with_column_weights(part, self._algorithm.reduction)
        divisor = self._algorithm.divisor(part)
        over = 1.0 if self.grouped else divisor

        def accumulate(thread: int, cuts: Cuts) -> Sums:
            return self._accumulate(part, cuts, over, self._gradients[thread])

        sums: Sums = {}
        done = self._micro_batches.share_out(part, accumulate)
        for gradient in self._gradients[1 : len(done)]:
            torch._foreach_add_(self._gradients[0], gradient)
        for more in done:
            add_sums(sums, more)
        if not self._names:
            self._name(sums)
        elif len(sums) != len(self._names) or not all(name in sums for name in self._names):
            raise RunFailed(
                f"algorithm {self._algorithm.name} reports other metrics than in its first update: "
                f"{', '.join(sorted(set(sums) ^ set(self._names)))}; report the same ones in every update"
            )
        numbers = [x for name in self._names for x in sums[name]]
        if self.grouped:
            if self._algorithm.reduction == "sum":
                divisor = 1.0 / self._num_learners
            told = devices.stacked([divisor, *numbers], self._device)
            self.control.zero_()
            self.control[: len(told)].copy_(told)
            self._sums.copy_(told[1:])
        else:
            self._sums.copy_(devices.stacked(numbers, self._device))
        if self._policy.value_norm:
            self._add_targets()
        if not self.grouped:
            self._step(follows)

    def _name(self, sums: Sums) -> None:
        """Fix the metrics' order, and make room for them."""
        self._names = sorted(sums)
        if self.grouped and 1 + 2 * len(sums) > len(self.control):
            raise RunFailed(
                f"the loss of {type(self._algorithm).__name__} reports {len(sums)} metrics; where gradients are averaged "
                f"there is room for {(len(self.control) - 1) // 2}: report fewer, or use another topology"
            )
        self._make_row()
        self._rows = self._zeros(self._algorithm.updates_per_batch, 2 + 2 * len(sums))
        if self._policy.value_norm:
            needed = [f"learner/target_{x}" for x in ("mean", "square")]
            if missing := [name for name in needed if name not in sums]:
                raise RunFailed(
                    f"algorithm.value_norm is on, but the loss of {type(self._algorithm).__name__} reports no "
                    f"{' and no '.join(missing)}; report them, or use --algorithm.value-norm false"
                )
            mean, square = (2 * self._names.index(name) for name in needed)
            self._of_targets = torch.tensor([mean, square, mean + 1], device=self._device)

    def _add_targets(self) -> None:
        found = self._sums.index_select(0, self._of_targets)
        known = is_finite(found[1].float())  # an update that is not finite in float32 is not made
        if self._may_end:
            known = known & (self._ended == 0.0)
        self._targets.add_(torch.where(known, found, 0.0))

    def _accumulate(
        self, part: Batch, cuts: Cuts, divisor: Tensor | float, gradient: list[Tensor]
    ) -> Sums:
        """Set `gradient` to the sum over some micro-batches; return the sums of their metrics."""
        sums: Sums = {}
        with gradients(), self._policy.accumulating():
            for i, (start, stop) in enumerate(cuts):
                if not self._on_gpu:
                    self._beat()
                piece = part.columns(start, stop)
                # Autocast would round what forward kept exact; .backward() would share p.grad.
                with self._without_autocast():
                    found = self._algorithm.loss(self._policy, piece, self._state)
                    if not self._names:  # the first update; later ones return what it returned
                        self._refuse_loss(found)
                    loss, metrics = found
                    grads = torch.autograd.grad(
                        loss / divisor, self._params, materialize_grads=True
                    )
                    (torch._foreach_add_ if i else torch._foreach_copy_)(gradient, grads)
                add_sums(sums, metrics)
        return sums

    def _batch_of(self, method: str, found: Any) -> Batch:
        if not isinstance(found, Batch):
            raise RunFailed(
                f"{method} of {type(self._algorithm).__name__} returns {_in_words(found)}; it must return a batch"
            )
        return found

    def _refuse_loss(self, found: Any) -> None:
        """Refuse what is no loss, of which torch would tell neither the class nor the mistake."""
        of = f"loss of {type(self._algorithm).__name__}"
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
            raise RunFailed(
                f"{of} returns {_in_words(found)}; it must return the loss and its metrics"
            )
        loss, metrics = found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise RunFailed(
                f"{of} returns as loss {_in_words(loss)}; it must be a tensor of one number, the sum over rows"
            )
        if not loss.requires_grad:
            raise RunFailed(
                f"{of} returns a loss without gradients; compute it from the outputs of unroll, without detach and no_grad"
            )
        for name, pair in metrics.items():
            if (
                not isinstance(pair, tuple | list)
                or len(pair) != 2
                or not all(
                    (torch.is_tensor(x) and x.numel() == 1) or isinstance(x, int | float)
                    for x in pair
                )
            ):
                raise RunFailed(
                    f"{of} reports {name} as {_in_words(pair)}; it must be (sum, count), two numbers"
                )

    def _without_autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self._on_gpu and not torch.is_autocast_enabled("cpu"):
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, enabled=False)

    def _step_of(self, follows: bool) -> Callable[[], None]:
        return lambda: self._step(follows)

    @torch.no_grad()
    def _step(self, follows: bool) -> None:
        if self.grouped:
            torch._foreach_div_(self._gradients[0], self.control[0].float())
            self._sums.copy_(self.control[1 : 1 + len(self._sums)])
        norm = self._clip()
        left_out = norm - norm != 0.0  # infinite or no number
        # What is only looked at moves no policy, and ends nothing.
        ends = self._algorithm.ends(_Means(self._names, self._sums)) if follows else None
        self._may_end = ends is not None
        self._norm.copy_(norm)
        self._rows.index_copy_(0, self._number, self._row)
        self._number.add_(1)
        if ends is not None:
            before = self._ended != 0.0
            self._ended.copy_(before | (ends & ~left_out))
            left_out = left_out | before[0]
        if not follows:
            return
        if self._on_gpu:
            self._optimizer.found_inf = left_out.float()  # type: ignore[attr-defined]
        if self._on_gpu or not left_out:
            self._optimizer.step()

    def _clip(self) -> Tensor:
        """Scale the gradient down to the limit; return its norm before."""
        if self._on_gpu:
            return torch.nn.utils.clip_grad_norm_(self._params, self._limit)
        # The same numbers: here it costs nothing to ask whether they have to be scaled.
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(self.gradient)))
        scale = (self._limit / (norm + 1e-6)).clamp(max=1.0)
        if float(scale) != 1.0:  # or is none
            torch._foreach_mul_(self.gradient, scale)
        return norm

    def _observe(self, layout: _Layout) -> None:
        batch = layout.batch
        # Replayed columns have been observed when they were new.
        online = batch.columns(0, layout.num_online) if layout.replayed else batch
        self._policy.observe(online.obs, online.valid)
        if self._policy.value_norm:
            self._policy.observe_values(*self._targets)

    def _graph(self, name: str, work: Callable[[], None]) -> Graph:
        return self._graphs.graph(name, work, self._static)

    def _static(self) -> list[Tensor]:
        """Tensors whose addresses stay."""
        target, layout = self._state.target_policy, self._layout
        batches = [] if layout is None else [layout.batch, layout.prepared]
        held = [
            *self._policy.parameters(),
            *self._policy.buffers(),
            *self._gradients[0],
            *(x for state in self._optimizer.state.values() for x in state.values()),
            *(group["lr"] for group in self._optimizer.param_groups),
            *(self._state.tensors.values() if target is not None else ()),
            *(target.buffers() if isinstance(target, torch.nn.Module) else ()),
            *(x for batch in batches if batch is not None for _, x, _ in batch.each()),
            *(() if layout is None else layout.columns.values()),
            *(self._row, self._rows, self._number, self._targets, self._of_targets),
            self.control,
        ]
        return [x for x in held if isinstance(x, Tensor)]


class _Means(Mapping[str, Tensor]):
    """Means of an update's metrics, each computed when it is asked for."""

    def __init__(self, names: Sequence[str], sums: Tensor):
        self._names, self._sums = names, sums

    def __getitem__(self, name: str) -> Tensor:
        i = 2 * self._names.index(name)
        return self._sums[i] / self._sums[i + 1].clamp(min=1e-12)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def add_sums(sums: Sums, more: Mapping[str, Sequence[Tensor | float]]) -> None:
    """Add sums and counts of metrics to those that are there."""
    for name, (x, n) in more.items():
        held = sums.get(name)
        sums[name] = [x, n] if held is None else [held[0] + x, held[1] + n]


def _in_words(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a tensor of shape {list(x.shape)} and {str(x.dtype).removeprefix('torch.')}"
    if isinstance(x, tuple | list):
        return f"({', '.join(map(_in_words, cast('Sequence[Any]', x)))})"
    return type(x).__name__
