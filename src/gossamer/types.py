"""The data that crosses between roles: trajectories, batches, what a policy returns, what an env does.

Shapes: T unroll length, B columns (environments), P action-distribution parameters, F features.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, cast

from gossamer.spec import leaf_field, leaves_of, nested_obs
from gossamer.system import devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.spec import EnvSpec, Leaf, Obs
    from gossamer.system.blocks import Place
    from gossamer.system.signs_of_life import Sign

Metrics = dict[str, tuple["Tensor | float", "Tensor | float"]]
"""Metric name -> (sum, count); sums and counts add over micro-batches and learners."""


class Named:
    """Something that settings choose by its name; a class that does not name itself, such as MyLoss, is my_loss."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Name the class."""
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


class StepResult(NamedTuple):
    """Result of one step of N environments."""

    obs: Obs[NDArray[Any]]
    """[N, *shape] of each leaf; after an end, the true final observation; on a reset row, the first. They may lie where
    the next step writes: copy what is to be kept."""
    reward: NDArray[np.float64]
    """[N] unclipped; 0 on a reset row. Returns are sums of what was paid, which float32 may not hold."""
    terminated: NDArray[np.bool_]
    """[N] the value of obs is 0 (a lost life counts where the env says so)."""
    truncated: NDArray[np.bool_]
    """[N] a time limit; obs still has a value."""
    ended: NDArray[np.bool_]
    """[N] the episode is over: the next step ignores its action and returns a first observation."""


class VecEnv(Protocol):
    """N environments stepped together. Episode e of env i is a function of seeds and actions.

    After `ended[i]`, the next step ignores action i, begins episode episodes[i] + 1 and returns its
    first observation with reward 0 (Gymnasium's NEXT_STEP).
    """

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def spec(self) -> EnvSpec:
        """Shapes, action space and protocol."""
        ...

    @property
    def sign(self) -> Sign:
        """Counts steps and resets, and says which env is at one."""
        ...

    def start(self, episodes: NDArray[np.int64]) -> Obs[NDArray[Any]]:
        """Begin episode `episodes[i]` in every env i; return first observations [N, *shape] of each leaf."""
        ...

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step with actions [N, *action_shape]; `recv` finishes it."""
        ...

    def recv(self) -> StepResult:
        """Wait for the step that `send` began."""
        ...

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> Obs[NDArray[Any]]:
        """Begin episodes `episodes`, replay each env's action log since, return the observations."""
        ...

    def tasks(self) -> NDArray[np.int64]:
        """Return the number [N] of the task that each env plays; 0 where there is one task."""
        ...

    def episode_info(self, env: int) -> dict[str, float]:
        """Return what env tells of its present episode, the one just ended included."""
        ...

    def close(self) -> None:
        """Free processes and memory."""
        ...


class SharedEnvs(VecEnv, Protocol):
    """Environments in worker processes, which write into memory that this process sees."""

    @property
    def pages(self) -> NDArray[np.uint8]:
        """Whole pages of memory, in which results lie."""
        ...

    @property
    def results(self) -> StepResult:
        """Newest results, always in the same memory; rows of parts that are at a step are not good yet."""
        ...

    @property
    def paced(self) -> bool:
        """Whether every worker may go on by itself: what is asked about episodes needs no worker."""
        ...

    @property
    def parts(self) -> Sequence[slice]:
        """Environments of each worker."""
        ...

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors that can be read once `arrived` has something to tell."""
        ...

    @property
    def in_flight(self) -> bool:
        """Whether a worker is at a step."""
        ...

    def send_parts(self, workers: Sequence[int], action: NDArray[Any]) -> None:
        """Begin a step in some workers, with their rows of actions [N, *action_shape]."""
        ...

    def arrived(self) -> list[int]:
        """Return the workers that have done their steps since the last call, without waiting for any."""
        ...


class PolicyOutput(NamedTuple):
    """Output of a policy for rows of observations [R, B]."""

    action_params: Tensor
    """[R, B, P] float32"""
    value: Tensor
    """[R, B] float32, in units of return (denormalised)"""
    features: Tensor
    """[R, B, F] last hidden layer"""
    core_state: Tensor
    """[S, B] recurrent state after the last row; S = 0 without a recurrent core"""


class FieldKind(NamedTuple):
    """Kind of a trajectory's field. Whatever allocates, cuts, moves, checks or stores trajectories follows from it."""

    dtype: Literal["float32", "int64", "bool", "obs", "action"]
    """obs: that of its leaf. action: int64, float32 for continuous actions."""
    rows: Literal["T", "T + 1", "S", ""] = "T"
    """Leading dimension, before that of the columns; empty: one entry per column."""
    entry: Literal["number", "obs", "action", "action_params"] = "number"
    """Content of one row and column."""
    on_host: bool = False
    """Stays on the host, which decides by it and which a GPU never needs."""
    leaf: Leaf | None = None
    """Of observations: which of their arrays."""

    @property
    def column_dim(self) -> int:
        """The dimension of the columns."""
        return 1 if self.rows else 0

    def rows_of(self, unroll_length: int, core_units: int) -> tuple[int, ...]:
        """Return the number of rows, as what a shape begins with."""
        t = unroll_length
        return {"T": (t,), "T + 1": (t + 1,), "S": (core_units,), "": ()}[self.rows]

    def entry_shape(self, spec: EnvSpec) -> tuple[int, ...]:
        """Return the shape of an entry."""
        if self.entry == "obs":
            assert self.leaf is not None, "of no environment's table"
            return self.leaf.shape
        action = spec.action
        shapes = {"number": (), "action": action.shape, "action_params": (action.num_params,)}
        return shapes[self.entry]

    def shape(
        self, spec: EnvSpec, *, unroll_length: int, num_columns: int, core_units: int
    ) -> tuple[int, ...]:
        """Return the shape of the field."""
        return (*self.rows_of(unroll_length, core_units), num_columns, *self.entry_shape(spec))

    def dtype_in(self, spec: EnvSpec) -> str:
        """Return the name of the dtype."""
        if self.dtype == "obs":
            assert self.leaf is not None, "of no environment's table"
            return self.leaf.dtype
        if self.dtype == "action":
            return spec.action.dtype
        return self.dtype


def _kind(*args: Any, **settings: Any) -> dict[str, FieldKind]:
    return {"kind": FieldKind(*args, **settings)}


@dataclass(slots=True)
class Trajectory:
    """A fixed-length slice of experience from B environments.

    Row t is one decision: seeing obs[t] the actor took action[t]; the environment paid reward[t]
    and moved to obs[t + 1]. Only `obs` and `starts` have T + 1 rows, so nothing needs shifting.
    """

    obs: Obs[Tensor] = field(metadata=_kind("obs", "T + 1", "obs"))
    """[T + 1, B, *shape] of each leaf, raw"""
    action: Tensor = field(metadata=_kind("action", "T", "action"))
    """[T, B, *action_shape]"""
    reward: Tensor = field(metadata=_kind("float32"))
    """[T, B] unclipped"""
    terminated: Tensor = field(metadata=_kind("bool"))
    """[T, B] obs[t + 1] is final, its value is 0"""
    truncated: Tensor = field(metadata=_kind("bool"))
    """[T, B] a time limit; obs[t + 1] still has a value"""
    valid: Tensor = field(metadata=_kind("bool"))
    """[T, B] False on the reset row that follows an episode's end"""
    starts: Tensor = field(metadata=_kind("bool", "T + 1"))
    """[T + 1, B] an episode begins here; the recurrent state is cleared"""
    behavior: Tensor = field(metadata=_kind("float32", "T", "action_params"))
    """[T, B, P] parameters of the distribution that chose `action`"""
    value: Tensor = field(metadata=_kind("float32"))
    """[T, B] what the actor's value head said"""
    core_state: Tensor = field(metadata=_kind("float32", "S"))
    """[S, B] recurrent state before row 0; S = 0 without a core"""
    last_action: Tensor = field(metadata=_kind("action", "", "action"))
    """[B, *action_shape] the action before row 0"""
    last_reward: Tensor = field(metadata=_kind("float32", ""))
    """[B] the reward before row 0, unclipped"""
    task: Tensor = field(metadata=_kind("int64", "", on_host=True))
    """[B] index of the task a column belongs to"""
    version: Tensor = field(metadata=_kind("int64", "", on_host=True))
    """[B] version of the parameters that acted"""
    env_steps: int = field(default=-1, kw_only=True)
    """Rows that are decisions, known without asking a GPU; -1: not counted"""

    @property
    def continues(self) -> Tensor:
        """[T, B] bool: row t + 1 belongs to the same episode as row t and may be learnt from."""
        return self.valid & ~(self.terminated | self.truncated)

    @property
    def unroll_length(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def num_columns(self) -> int:
        """B."""
        return self.reward.shape[1]

    def columns(self, start: int, stop: int) -> Self:
        """View of columns [start, stop); nothing is copied."""
        if (start, stop) == (0, self.num_columns):
            return replace(self, env_steps=-1)
        cut = {name: x.narrow(dim, start, stop - start) for name, x, dim in self.each()}
        return self.with_fields(cut, env_steps=-1)

    def take(self, columns: Tensor) -> Self:
        """Copy of the given columns [K] int64, in that order; waits for a GPU if the index is on another device."""
        taken = {name: _select(x, dim, columns.to(x.device)) for name, x, dim in self.each()}
        return self.with_fields(taken, env_steps=-1)

    def finite(self) -> Tensor:
        """[B] bool: every number of the column is finite."""
        finite = self.reward.isfinite().all(0)
        for name, x, dim in self.each():
            if x.is_floating_point() and name != "reward":
                finite &= x.isfinite().movedim(dim, 0).reshape(len(finite), -1).all(1)
        return finite

    def each(self) -> list[tuple[str, Tensor, int]]:
        """Name, tensor and dimension of the columns; of observations each leaf's, as "obs/image"."""
        found: list[tuple[str, Tensor, int]] = []
        for name, kind in kinds_of(type(self)).items():
            x = getattr(self, name)
            if isinstance(x, dict):
                leaves = cast("dict[str, Tensor]", x)
                found += [
                    (leaf_field(name, leaf), y, kind.column_dim) for leaf, y in leaves.items()
                ]
            elif x is not None:
                found.append((name, x, kind.column_dim))
        return found

    def tensor(self, name: str) -> Tensor:
        """Return a field by its name in `fields_of`."""
        whole, _, leaf = name.partition("/")
        return leaves_of(getattr(self, whole))[leaf]

    def with_fields(self, fields: Mapping[str, Tensor], **more: Any) -> Self:
        """Return this with other tensors in place of some, by their names in `fields_of`."""
        made = nested_obs(fields)
        if "obs" in made and isinstance(self.obs, dict):
            made["obs"] = {**self.obs, **leaves_of(made["obs"])}
        return replace(self, **made, **more)

    def to(self, device: torch.device) -> Self:
        """Copy what is computed with to a device, without waiting for it; what is asked about stays.

        Fields that lie side by side in one block travel in one copy.
        """
        import torch

        from gossamer.system.blocks import ALIGNMENT

        if self.reward.device == device:
            return self
        kinds = kinds_of(type(self))
        held = {name: x for name, x, _ in self.each() if not kinds[name.partition("/")[0]].on_host}
        first = next(iter(leaves_of(self.obs).values()))
        block = first.untyped_storage()
        beside = {k for k, x in held.items() if x.untyped_storage().data_ptr() == block.data_ptr()}
        moved: dict[str, Tensor] = {}
        if 2 * sum(held[name].nbytes + ALIGNMENT for name in beside) > block.nbytes():
            flat = first.new_empty(0, dtype=torch.uint8).set_(block)  # pyright: ignore[reportArgumentType]
            there = flat.to(device, non_blocking=True)
            for name in beside:
                x = held.pop(name)
                moved[name] = there.view(x.dtype).as_strided(
                    x.shape, x.stride(), x.storage_offset()
                )
        moved |= {name: x.to(device, non_blocking=True) for name, x in held.items()}
        return self.with_fields(moved)

    def check(self, spec: EnvSpec) -> None:
        """Verify every shape and dtype once, where a trajectory crosses a link; raise ValueError."""
        t, b = self.reward.shape
        units = len(self.core_state)
        table = fields_of(spec, type(self))
        held = {name: x for name, x, _ in self.each()}
        if gone := [name for name in held if name not in table]:
            raise ValueError(f"trajectory.{gone[0]} is no leaf that {spec.env_id} observes")
        for name, kind in table.items():
            if (x := held.get(name)) is None:
                if kind.leaf is not None:
                    raise ValueError(f"trajectory.{name} is missing")
                continue
            shape = kind.shape(spec, unroll_length=t, num_columns=b, core_units=units)
            if tuple(x.shape) != shape:
                raise ValueError(f"trajectory.{name} has shape {tuple(x.shape)}, expected {shape}")
            got, dtype = str(x.dtype).removeprefix("torch."), kind.dtype_in(spec)
            if got != dtype:
                raise ValueError(f"trajectory.{name} is {got}, expected {dtype}")


@cache
def kinds_of(what: type[Trajectory]) -> Mapping[str, FieldKind]:
    """Return what every field of a trajectory or batch holds, by name."""
    return {x.name: x.metadata["kind"] for x in fields(what) if x.metadata}


@cache
def fields_of(spec: EnvSpec, what: type[Trajectory] = Trajectory) -> Mapping[str, FieldKind]:
    """Return what every tensor of a trajectory or batch holds, by name: of observations one for each leaf."""
    found: dict[str, FieldKind] = {}
    for name, kind in kinds_of(what).items():
        if kind.entry == "obs":
            found |= {leaf_field(name, x.name): kind._replace(leaf=x) for x in spec.leaves}
        else:
            found[name] = kind
    return found


STORED = kinds_of(Trajectory)
"""Attributes of a trajectory that hold tensors, all of which a replay keeps; `fields_of` tells observations apart."""
ON_HOST = frozenset(name for name, kind in STORED.items() if kind.on_host)
"""Fields of a trajectory that stay on the host."""


def empty_trajectory(
    spec: EnvSpec,
    *,
    unroll_length: int,
    num_columns: int,
    core_units: int,
    pinned: bool = False,
    device: torch.device | None = None,
) -> Trajectory:
    """Allocate a trajectory slot, zeroed.

    Args:
        spec: of the environment.
        unroll_length: T.
        num_columns: B.
        core_units: S.
        pinned: in one block of the host's memory that a GPU reaches by itself.
        device: where fields are computed with; those that the host asks about stay with it. None: all are on the host.
    """
    import torch

    places, nbytes = lay_out_trajectory(
        spec, unroll_length=unroll_length, num_columns=num_columns, core_units=core_units
    )
    if pinned:  # side by side, for one copy
        return trajectory_in(devices.pinned(torch.zeros(nbytes, dtype=torch.uint8)), places)
    made = {
        x.name: torch.zeros(
            x.shape,
            dtype=getattr(torch, x.dtype),
            device=None if x.name in ON_HOST else device,
        )
        for x in places
    }
    return _with_channels_second(made)


def lay_out_trajectory(
    spec: EnvSpec, *, unroll_length: int, num_columns: int, core_units: int
) -> tuple[list[Place], int]:
    """Return where the fields of a trajectory slot lie in one block, and the bytes of the block."""
    import torch

    from gossamer.system.blocks import lay_out

    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, kind in fields_of(spec).items():
        shape = kind.shape(
            spec, unroll_length=unroll_length, num_columns=num_columns, core_units=core_units
        )
        if len(shape) == 5:
            # Pixels lie channels last, the layout convolutions want: written once so by the actor,
            # then read as views by inference and learning.
            *lead, channels, height, width = shape
            shape = (*lead, height, width, channels)
        wanted[name] = getattr(torch, kind.dtype_in(spec)), shape
    return lay_out((name, dtype, shape) for name, (dtype, shape) in wanted.items())


def trajectory_in(block: Any, places: Sequence[Place]) -> Trajectory:
    """Return the trajectory slot that lies in a block, which other processes may map as well."""
    from gossamer.system.blocks import views

    return _with_channels_second(views(block, places))


def _with_channels_second(made: Mapping[str, Tensor]) -> Trajectory:
    held = {k: x.movedim(-1, 2) if x.ndim == 5 else x for k, x in made.items()}
    return Trajectory(**nested_obs(held))


@dataclass(slots=True)
class Batch(Trajectory):
    """Columns to learn from, online and replayed, and what `Algorithm.prepare` and `Algorithm.part` add."""

    replayed: Tensor = field(metadata=_kind("bool", ""))
    """[B] the column came from a replay that keeps entries"""
    entry: Tensor = field(metadata=_kind("int64", "", on_host=True))
    """[B] the replay's entry id, -1 for online columns"""
    burn_in: int = 0
    """Rows at the start of replayed columns that only warm up their recurrent state"""
    target: Tensor | None = field(default=None, metadata=_kind("float32"))
    """[T, B] learning target of the value, where computed beforehand"""
    advantage: Tensor | None = field(default=None, metadata=_kind("float32"))
    """[T, B] likewise"""
    advantage_weight: Tensor | None = field(default=None, metadata=_kind("float32"))
    """[T, B] importance weight in it; None: all are 1"""
    target_log_prob: Tensor | None = field(default=None, metadata=_kind("float32"))
    """[T, B] log pi(a|x) of a target policy"""
    keep: Tensor | None = field(default=None, metadata=_kind("bool"))
    """[T, B] rows to learn from, where they are fewer than the valid ones"""
    online_weight: Tensor | None = field(default=None, metadata=_kind("float32", ""))
    """[B] what rows of a column weigh in terms of the loss that are means over online columns alone; None: there
    are no replayed columns"""
    replayed_weight: Tensor | None = field(default=None, metadata=_kind("float32", ""))
    """[B] likewise for replayed columns"""

    @property
    def kept(self) -> Tensor:
        """[T, B] bool: rows to learn from."""
        return self.valid if self.keep is None else self.keep


def as_batch(trajectory: Trajectory, *, burn_in: int = 0) -> Batch:
    """Present a trajectory as a batch of online columns, until others are written there, sharing its memory."""
    import torch

    b = trajectory.num_columns
    held = {name: getattr(trajectory, name) for name in STORED}
    return Batch(
        **held,
        env_steps=trajectory.env_steps,
        replayed=torch.zeros(b, dtype=torch.bool),
        entry=torch.full((b,), -1, dtype=torch.int64),
        burn_in=burn_in,
    )


def _select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Copy slices of a dimension; in memory order, where they are long runs of bytes.

    Indexing copies bytes one by one, which takes 15 times as long.
    """
    if x.is_contiguous():
        return x.index_select(dim, index)
    order = sorted(range(x.ndim), key=lambda i: -x.stride(i))  # images keep channels last
    selected = x.permute(order).index_select(order.index(dim), index)
    return selected.permute([order.index(i) for i in range(x.ndim)])
