"""The state of a host's learners between two versions: how it is taken, joined with that of others, and restored."""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from torch import AcceleratorError, Tensor

from gossamer.errors import ConfigError, RunFailed
from gossamer.run.checkpoint_contents import POLICY, TARGET, LearnerState, RunState
from gossamer.system.blocks import copy_into, lay_out_like
from gossamer.system.devices import ROOM, memory_told
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from gossamer.build.roles import LearnerBundle
    from gossamer.run.checkpoint_contents import InitialState
    from gossamer.run.placements.host_learners import HostLearners
    from gossamer.spec import EnvSpec

NOT_BACK = "environments did not come back to where they were"
"""Why a resumed run has begun new episodes, and will again."""
LOST = "an actor died while its environments were brought back"
"""Why a resumed run has begun new episodes, this once."""
MISFITS = (RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)
"""Errors that are raised where a checkpoint's content is not of the kind that is expected."""


def take(learners: HostLearners, *, begun: bool, copies: bool = True) -> dict[int, LearnerState]:
    """Return everything needed to continue exactly, by rank.

    Args:
        learners: whose state.
        begun: a version has been learnt in this session: before that nobody acts.
        copies: not the tensors themselves.

    Called between two versions. Where roles overlap the newest is published afterwards: at lag 0 and 1 the
    actor then has finished the trajectory in flight and waits for that version; at lag free it is held at
    the next boundary, and trajectories that wait are not saved. Inline the newest is out already, and
    nobody acts meanwhile.
    """
    found: dict[int, LearnerState] = {}
    for parts in learners.parts:
        state = _take(parts, exact=learners.exact, begun=begun)
        if copies:
            state = msgspec.structs.replace(state, tensors=copy_outside_heap(state.tensors))
        found[parts.learner.rank] = state
        learners.exact &= parts.actor.exact
    return found


def _take(parts: LearnerBundle, *, exact: bool, begun: bool) -> LearnerState:
    held: dict[str, Any] = {f"learner.{k}": x for k, x in parts.learner.state_dict().items()}
    if exact:
        waiting = min(parts.plan.lag or 0, parts.learner.version) if begun else 0
        for i, trajectory in enumerate(parts.queue.wait_full(waiting)):
            held |= {f"queue.{i}.{name}": x for name, x, _ in trajectory.each()}
    with parts.gate.held():
        held |= {f"actor.{k}": x for k, x in parts.actor.state_dict().items()}
    return LearnerState.of(held)


def copy_outside_heap(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors into one block on the CPU that goes back to the system with the last of them.

    On the heap, tens of megabytes that come and go among the learner's blocks leave holes of all
    sizes, and the process grows for minutes.
    """
    places, nbytes = lay_out_like(tensors)
    block = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return copy_into(block, places, tensors)


def fill_absent_learners(
    learners: dict[int, LearnerState],
    absent: Mapping[int, int],
    updates: Mapping[int, int],
    own_policy: Callable[[int], Mapping[str, Tensor] | None],
) -> list[tuple[int, int]]:
    """Add learners that have no place to the state of the others: a copy of one of these, with their own counts.

    Args:
        learners: state of those that are there.
        absent: env steps that each of the others has learnt from, by rank.
        updates: of all learners, at the snapshot before; checkpoints are numbered by them, and numbers never fall.
        own_policy: returns the parameters and moments that such a learner goes on with, by their names in the network;
            None: those of the copy.

    Returns:
        Each learner that was added, and the learner whose policy it has.
    """
    giver = min(learners)
    donor, whose = learners[giver], list[tuple[int, int]]()
    # Two learners must not draw the same actions.
    tensors = {
        name: x
        for name, x in donor.tensors.items()
        if not (name.startswith("actor.") and name.endswith("generator"))
    }
    for rank, env_steps in absent.items():
        if rank not in learners:
            policy = own_policy(rank)
            learners[rank] = msgspec.structs.replace(
                donor,
                update=max(donor.update, updates.get(rank, 0)),
                own_env_steps=env_steps,
                tensors=tensors,
            )
            if policy is not None:
                learners[rank] = _with_policy(learners[rank], policy)
            whose.append((rank, giver if policy is None else rank))
    return whose


def _with_policy(state: LearnerState, policy: Mapping[str, Tensor]) -> LearnerState:
    """Return a learner's state with another policy, which begins as that of a learner that takes over does."""
    # What the optimizer and the outer step know is of other parameters; so is how far a target policy lies behind.
    others = ("learner.optimizer.", "learner.outer.")
    held = {name: x for name, x in state.tensors.items() if not name.startswith(others)}
    for prefix in (POLICY, TARGET):
        held |= {prefix + name: x for name, x in policy.items() if prefix + name in held}
    numbers = {name: x for name, x in state.numbers.items() if not name.startswith(others)}
    fresh = {"learner.algorithm.lr_scale": 1.0, "learner.algorithm.kl_nats": 0.0}
    numbers |= {name: x for name, x in fresh.items() if name in numbers}
    return msgspec.structs.replace(state, numbers=numbers, tensors=held)


def is_repeatable(initial: InitialState | None, spec: EnvSpec) -> bool:
    """Return whether environments are to be brought back to where they were; not without a run's state."""
    if not isinstance(initial, RunState):
        return False
    return initial.exact and not initial.begins_anew and spec.exact_resume


def part_of(initial: InitialState | None, ranks: range) -> InitialState | None:
    """Return the state that some learners begin with: of their run their part, which it loses, and counts of the others."""
    if not isinstance(initial, RunState):
        return initial
    learners: list[LearnerState] = []
    for rank, learner in enumerate(initial.learners):
        mine: dict[str, Tensor] = {}
        if rank in ranks:
            mine = {name: x for name, x in learner.tensors.items() if not x.is_meta}
            learner.tensors.clear()
        numbers = learner.numbers if rank in ranks else {}
        learners.append(msgspec.structs.replace(learner, numbers=numbers, tensors=mine))
    recorder = msgspec.structs.replace(initial.recorder, window=[])
    return msgspec.structs.replace(initial, learners=learners, recorder=recorder)


def restore(learners: HostLearners, initial: InitialState) -> str:
    """Continue from the state of the same environment, network and number of learners, or begin with a policy.

    Its tensors are given up: what replays hold would be in memory twice, for the whole run.

    Returns:
        Why environments that were to be brought back are not; empty: they are. All of a learner's have begun new
        episodes then, or those of an actor that has died, and snapshots of the learners are not exact from now on.
    """
    if not isinstance(initial, RunState):
        for parts in learners.parts:
            parts.policy.load_state_dict(initial.tensors)
            parts.policy.refresh()
            parts.learner.replay.fill_first()
        return ""
    updates = [learner.update for learner in initial.learners]
    versions = [learner.version for learner in initial.learners]
    whys: set[str] = set()
    for parts in learners.parts:
        if not _restore(parts, initial):
            whys.add(NOT_BACK if parts.actor.exact else LOST)
        topology, learner = parts.learner.topology, parts.learner
        if topology.talks:  # one that was on its own has counted its own steps for all learners
            learner.env_steps = min(learner.env_steps, initial.env_steps)
        elif learner.num_learners > 1:  # one that was absent has had another's
            learner.env_steps = learner.own_env_steps * learner.num_learners
        mixings = versions if topology.every == "versions" else updates
        if len(set(mixings)) > 1 and topology.staleness < FOREVER:
            # They are going to wait for each other's messages, and have not been in step before.
            learner.align(update=max(updates), version=max(versions), env_steps=initial.env_steps)
    learners.exact &= not whys
    return max(whys, key=(LOST, NOT_BACK).index, default="")


def _restore(parts: LearnerBundle, initial: RunState) -> bool:
    exact, state = is_repeatable(initial, parts.policy.spec), initial.learners[parts.learner.rank]
    misfit = "does not fit these settings ({}); resume with the network and optimizer it was trained with"
    with _refusing(initial.folder, misfit):
        parts.learner.load_state_dict(state.part("learner."))
    with _refusing(initial.folder, "is damaged: {}"):
        back = _restore_acting(parts, state, exact=exact)
    state.tensors.clear()
    return back or not exact


@contextmanager
def _refusing(folder: str, misfit: str) -> Generator[None]:
    """Context in which a checkpoint is refused in one line if its content is not of the kind that is expected."""
    try:
        with memory_told("to go on with a checkpoint", ROOM):
            yield
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    except (RunFailed, AcceleratorError):  # of an environment, or a GPU
        raise
    except MISFITS as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{folder} {misfit.format(reason)}") from None


def _restore_acting(parts: LearnerBundle, state: LearnerState, *, exact: bool) -> bool:
    """Restore the actor and, if the run goes on exactly, the trajectories that wait; return what the actor does."""
    held = state.tensors
    fresh = parts.actor.state_dict() if exact else {}
    for name, like in fresh.items():
        begun_without = name.endswith((".noise", ".generator")) and f"actor.{name}" not in held
        if isinstance(like, Tensor) and not begun_without:
            _refuse_other_form(f"actor.{name}", held, like)
    back = parts.actor.load_state_dict(state.part("actor."), exact=exact)
    # What waited and is dropped here has not been learnt from, and its steps are taken anew.
    parts.actor.env_steps = state.own_env_steps
    for i in range(parts.plan.lag or 0) if exact else ():
        if not any(name.startswith(f"queue.{i}.") for name in held):
            break
        slot = parts.queue.slot()
        for field, target, _ in slot.each():
            name = f"queue.{i}.{field}"
            _refuse_other_form(name, held, target)
            target.copy_(held[name])
        slot.env_steps = int(slot.valid.sum())
        parts.actor.env_steps += slot.env_steps
        parts.queue.put(slot)
    return back


def _refuse_other_form(name: str, held: Mapping[str, Tensor], like: Tensor) -> None:
    """Refuse a tensor that is missing, or of another shape than what it is to take the place of."""
    # As long as episodes are; as the streams of a device are, which may have been another.
    found, first = held.get(name), int(name.endswith((".logs", ".generator")))
    if found is None or found.shape[first:] != like.shape[first:]:
        shape = "missing" if found is None else list(found.shape)
        raise ConfigError(f"{name} is {shape}, but these settings need {list(like.shape)}")
