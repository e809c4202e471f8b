"""The state of a host's learners between two versions: how it is taken and put back."""

from __future__ import annotations

import mmap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gossamer.errors import ConfigError, RunFailed
from gossamer.system.blocks import copy_into, lay_out_like
from gossamer.system.prefixes import without_prefix
from gossamer.topology.base import FOREVER
from gossamer.types import STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gossamer.build.roles import Parts
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.run.placements.host_learners import HostLearners
    from gossamer.types import EnvSpec

EXACT = "exact"
NOT_BACK = "environments did not come back to where they were"
"""Why a resumed run has begun new episodes, and will again."""
MISFITS = (RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)
"""Errors that are raised where a checkpoint's content is not of the kind that is expected."""


def take(
    learners: HostLearners, *, copies: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return everything needed to continue exactly, as (tensors, plain state); without `copies` the tensors themselves.

    Called between two versions. Where roles overlap the newest is published afterwards: at lag 0 and 1 the
    actor then has finished the trajectory in flight and waits for that version; at lag free it is held at
    the next boundary, and trajectories that wait are not saved. Inline the newest is out already, and
    nobody acts meanwhile.
    """
    held: dict[str, Any] = {}
    for parts in learners.parts:
        prefix = _prefix(parts.learner.rank)
        held |= {prefix + k: x for k, x in _of_learner(parts, exact=learners.exact).items()}
        learners.exact &= parts.actor.exact
    tensors = {k: x.detach() for k, x in held.items() if isinstance(x, Tensor)}
    if copies:
        tensors = copy_outside_heap(tensors)
    state = {k: x for k, x in held.items() if not isinstance(x, Tensor)}
    return tensors, {"held": state, "plan": asdict(learners.first.plan), EXACT: learners.exact}


def _prefix(rank: int) -> str:
    """Return what names of a learner begin with; those of learner 0 are bare."""
    return f"{rank}/" if rank else ""


def policy_of(tensors: Mapping[str, Tensor], rank: int = 0) -> dict[str, Tensor]:
    """Return the parameters and moments of a learner, by their names in the network; empty: not there."""
    prefix = f"{_prefix(rank)}learner.policy."
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


def _of_learner(parts: Parts, *, exact: bool) -> dict[str, Any]:
    held: dict[str, Any] = {f"learner.{k}": x for k, x in parts.learner.state_dict().items()}
    if exact:
        # Before the first version nobody has acted yet.
        waiting = min(parts.plan.lag or 0, parts.learner.version)
        for i, trajectory in enumerate(parts.queue.wait_full(waiting)):
            held |= {f"queue.{i}.{name}": getattr(trajectory, name) for name in STORED}
    with parts.gate.held():
        held |= {f"actor.{k}": x for k, x in parts.actor.state_dict().items()}
    return held


def copy_outside_heap(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors into one block on the CPU that goes back to the system with the last of them.

    On the heap, tens of megabytes that come and go among the learner's blocks leave holes of all
    sizes, and the process grows for minutes.
    """
    places, nbytes = lay_out_like(tensors)
    block = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return copy_into(block, places, tensors)


def progress_of(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return updates and env steps behind a checkpoint."""
    return checkpoint.updates, env_steps_of(checkpoint.state)


def env_steps_of(state: Mapping[str, Any]) -> int:
    """Return the env steps behind a checkpoint of this state."""
    held = state["held"]
    own = [x for name, x in held.items() if name.endswith("learner.own_env_steps")]
    known = [x for name, x in held.items() if name.endswith("learner.env_steps")]
    return sum(own) if own else max(known)


def updates_of(checkpoint: Checkpoint) -> dict[int, int]:
    """Return the updates of each learner behind a checkpoint, by rank."""
    return updates_in(checkpoint.state)


def updates_in(state: Mapping[str, Any]) -> dict[int, int]:
    """Return the updates of each learner behind a checkpoint of this state, by rank."""
    return _counts(state, "update")


def _counts(state: Mapping[str, Any], what: str) -> dict[int, int]:
    held = state["held"]
    mine = {name: x for name, x in held.items() if name.endswith(f"learner.{what}")}
    return {int(name.partition("/")[0]) if "/" in name else 0: x for name, x in mine.items()}


def names_of(ranks: range, *, replays: bool = True) -> Callable[[str], bool]:
    """Return a function that says whether a tensor's name is one of these learners'.

    Args:
        ranks: of the learners.
        replays: the contents of their replays are among them.
    """

    def wanted(name: str) -> bool:
        rank, slash, rest = name.rpartition("/")
        held = rest.startswith("learner.replay.")
        return (int(rank) if slash else 0) in ranks and (replays or not held)

    return wanted


def held_of(checkpoint: Checkpoint, rank: int) -> dict[str, Any]:
    """Return what a checkpoint holds of a learner, by names without whose it is."""
    held: dict[str, Any] = {**checkpoint.tensors, **checkpoint.state["held"]}
    mine = names_of(range(rank, rank + 1))
    return {k.removeprefix(_prefix(rank)): x for k, x in held.items() if mine(k)}


def stand_in(
    tensors: dict[str, Tensor],
    held: dict[str, Any],
    absent: Mapping[int, int],
    updates: Mapping[int, int],
) -> None:
    """Add parts of learners that have no place to a snapshot of the others: the state of one of these, with their own counts.

    Args:
        tensors: of the snapshot.
        held: its plain state.
        absent: env steps that each of them has learnt from, by rank.
        updates: of all learners, at the snapshot before; checkpoints are numbered by them, and numbers never fall.
    """
    donor = min(updates_in({"held": held}))
    mine, prefix = names_of(range(donor, donor + 1)), _prefix(donor)
    for rank, env_steps in absent.items():
        own = _prefix(rank)
        for known in (tensors, held):
            part = {k.removeprefix(prefix): x for k, x in known.items() if mine(k)}
            # Two learners must not draw the same actions.
            drawn = {k for k in part if k.startswith("actor.") and k.endswith("generator")}
            known |= {own + k: x for k, x in part.items() if k not in drawn}
        held[f"{own}learner.own_env_steps"] = env_steps
        held[f"{own}learner.update"] = max(held[f"{own}learner.update"], updates.get(rank, 0))


def comes_back(checkpoint: Checkpoint | None, spec: EnvSpec) -> bool:
    """Return whether environments are to be brought back to where they were; not without a checkpoint's state."""
    return bool(checkpoint and checkpoint.state.get(EXACT)) and spec.exact_resume


def begin_with(learners: HostLearners, checkpoint: Checkpoint) -> bool:
    """Let learners begin with a checkpoint, or with a policy alone; return what `put_back` does."""
    if checkpoint.state:
        return put_back(learners, checkpoint)
    policy = policy_of(checkpoint.tensors)
    for parts in learners.parts:
        parts.policy.load_state_dict(policy)
        parts.policy.refresh()
        parts.learner.replay.fill_first()
    return True


def put_back(learners: HostLearners, checkpoint: Checkpoint) -> bool:
    """Continue from a checkpoint of the same environment, network and number of learners.

    Its tensors are given up: what replays hold would be in memory twice, for the whole run.

    Returns:
        Whether environments that were to be brought back are; otherwise all of a learner's have begun new
        episodes, and snapshots of the learners are not exact from now on.
    """
    updates = updates_of(checkpoint).values()
    versions = _counts(checkpoint.state, "version").values()
    back = True
    for parts in learners.parts:
        back &= _put_back(parts, checkpoint, held_of(checkpoint, parts.learner.rank))
        topology = parts.learner.topology
        mixings = versions if topology.every == "versions" else updates
        if len(set(mixings)) > 1 and topology.staleness < FOREVER:
            # They are going to wait for each other's messages, and have not been in step before.
            env_steps = progress_of(checkpoint)[1]
            parts.learner.align(update=max(updates), version=max(versions), env_steps=env_steps)
    checkpoint.tensors.clear()
    learners.exact &= back
    return back


def _put_back(parts: Parts, checkpoint: Checkpoint, held: dict[str, Any]) -> bool:
    exact = comes_back(checkpoint, parts.spec)
    try:
        parts.learner.load_state_dict(without_prefix(held, "learner."))
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path}: {error}") from None
    except MISFITS as error:
        raise ConfigError(
            f"{checkpoint.path} does not fit these settings ({' '.join(str(error).split())[:200]}); "
            "resume with the network and optimizer it was trained with"
        ) from None
    try:
        return _put_back_acting(parts, held, exact=exact) or not exact
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path}: {error}") from None
    except RunFailed:  # of an environment
        raise
    except MISFITS as error:
        raise ConfigError(
            f"{checkpoint.path} is damaged: {' '.join(str(error).split())[:200]}"
        ) from None


def _put_back_acting(parts: Parts, held: dict[str, Any], *, exact: bool) -> bool:
    """Put back the actor and, if the run goes on exactly, the trajectories that wait; return what the actor does."""
    fresh = parts.actor.state_dict() if exact else {}
    for name, like in fresh.items():
        begun_without = name.endswith((".noise", ".generator")) and f"actor.{name}" not in held
        if isinstance(like, Tensor) and not begun_without:
            _refuse_other_form(f"actor.{name}", held, like)
    back = parts.actor.load_state_dict(without_prefix(held, "actor."), exact=exact)
    i = 0
    while exact and i < (parts.plan.lag or 0) and f"queue.{i}.obs" in held:
        slot = parts.queue.slot()
        for field in STORED:
            name, target = f"queue.{i}.{field}", getattr(slot, field)
            _refuse_other_form(name, held, target)
            target.copy_(held[name])
        parts.queue.put(slot)
        i += 1
    return back


def _refuse_other_form(name: str, held: Mapping[str, Any], like: Tensor) -> None:
    """Refuse a tensor that is missing, or of another shape than what it is to take the place of."""
    # As long as episodes are; as the streams of a device are, which may have been another.
    found, first = held.get(name), int(name.endswith((".logs", ".generator")))
    if not isinstance(found, Tensor) or found.shape[first:] != like.shape[first:]:
        shape = list(found.shape) if isinstance(found, Tensor) else "missing"
        raise ConfigError(f"{name} is {shape}, but these settings need {list(like.shape)}")
