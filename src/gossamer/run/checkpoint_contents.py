"""Contents of a checkpoint: typed structs in memory, tensors and JSON by name on disk; what contradicts itself is refused.

On disk the names of a learner's entries begin with its rank, "3/learner.update"; those of learner 0 are bare. They are put
together and taken apart here, and nowhere else. Each role lists its own entries, in its `state_dict`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from torch import Tensor

from gossamer.build.plan import Plan
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import STATE
from gossamer.record.window import OfLearner, WindowState
from gossamer.system.messages import Message
from gossamer.system.prefixes import without_prefix
from gossamer.system.ranges import Amount, Number, Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gossamer.record.checkpoint import Checkpoint

T = TypeVar("T")
MAX_LEARNERS = 65536
_MOST = 1 << 62
_COUNTS = {f"learner.{x}": x for x in ("update", "version", "env_steps", "own_env_steps")}
POLICY = "learner.policy."
"""Beginning of the names of a policy's tensors."""
TARGET = "learner.algorithm.tensors.target."
"""The same of a target policy's."""
_REPLAY = "learner.replay."
_Number = (
    bool | Annotated[int, Meta(ge=-_MOST, le=_MOST)] | Annotated[float, Meta(ge=-_MOST, le=_MOST)]
)


def _kind_of(name: str) -> Any:
    """Return what JSON may hold under a learner's name: the state of a random generator, or a number."""
    return dict[str, Any] if name.endswith(".rng") else _Number


class LearnerState(msgspec.Struct, frozen=True):
    """State of a learner, its queue and its actors between two versions."""

    update: Whole
    version: Whole
    env_steps: Whole
    """Of all learners, as far as this one has heard."""
    own_env_steps: Whole
    """Of its own actors."""
    numbers: dict[str, bool | int | float | dict[str, Any]]
    """Counters and random generators, by name: "learner.replay.0.draws", "actor.env_steps"."""
    tensors: dict[str, Tensor]
    """Tensors, by name: "learner.policy.obs_mean", "queue.0.obs", "actor.0.obs"."""

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> LearnerState:
        """Return the state of tensors and numbers by name, the learner's counts among them.

        Raises:
            RunFailed: something is among them that would be refused when it is read, as a class of the user's may keep.
        """
        tensors = {name: x.detach() for name, x in entries.items() if isinstance(x, Tensor)}
        rest = {name: x for name, x in entries.items() if name not in tensors}
        plain = {name: x.item() if isinstance(x, np.generic) else x for name, x in rest.items()}
        for name, x in plain.items():
            try:
                msgspec.convert(x, _kind_of(name))
            except msgspec.ValidationError:
                what = x if isinstance(x, int | float) else type(x).__name__
                raise RunFailed(
                    f"a checkpoint cannot hold {name}, which is {what}: tensors and finite numbers alone"
                ) from None
        return cls(**_by_field(plain), tensors=tensors)

    def entries(self) -> dict[str, Any]:
        """Return numbers and tensors by name, the counts among them."""
        counts = {name: getattr(self, field) for name, field in _COUNTS.items()}
        return {**counts, **self.numbers, **self.tensors}

    def part(self, prefix: str) -> dict[str, Any]:
        """Return the entries whose names begin with a prefix, without it."""
        return without_prefix(self.entries(), prefix)


class RecorderState(msgspec.Struct, frozen=True):
    """State of a run's records."""

    window: WindowState
    episode_rows: Whole
    seconds: Amount
    """Wall time of the run, over all sessions."""
    paced: tuple[Number, Number]
    """Env steps and seconds behind the first update of every session."""


class RunPolicies(msgspec.Struct, frozen=True):
    """Scores of a run's learners, and whose policy is the run's by them."""

    policy_of: Whole | None = 0
    """Learner whose policy is the run's; None: the average of all."""
    best_learner: Whole | None = None
    """Which of independent learners is the best; None: it is not known, or they mix."""
    scores: list[tuple[Whole, float]] | None = None
    """Mean return of each learner that was evaluated on its own, the latest last; None: an older run has not said."""
    absent: list[tuple[Whole, Whole]] = []
    """Learners that had no place, each with the learner whose policy is saved as its own: itself, or one that was there."""


class RunState(Message, frozen=True):
    """State of a run between two versions."""

    learners: list[LearnerState]
    """By rank."""
    plan: Plan
    exact: bool
    """Whether a run can go on from it as if it had never stopped."""
    recorder: RecorderState
    evaluation_budget: Number | None = None
    """Seconds that evaluations may take; None: there was no evaluator."""
    policies: RunPolicies = RunPolicies()
    settings: dict[str, Any] = {}
    """Under which it was learnt; empty: an older run has not said."""
    begins_anew: list[str] = []
    """Changed settings because of which the run goes on with new episodes, in words; they are not on disk."""
    folder: str = ""
    """Of the checkpoint that it was read from, for messages."""

    @property
    def updates(self) -> dict[int, int]:
        """Updates of each learner, by rank."""
        return {rank: learner.update for rank, learner in enumerate(self.learners)}

    @property
    def env_steps(self) -> int:
        """Env steps of all learners."""
        return sum(learner.own_env_steps for learner in self.learners)


class SavedPolicy(Message, frozen=True):
    """Policy that learners begin with, of another run."""

    tensors: dict[str, Tensor]
    """Parameters and moments, by their names in the network."""
    folder: str
    """That they were read from, for messages."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, rank: int = 0) -> SavedPolicy:
        """Return the policy of a learner; empty: it is not there."""
        return cls(policy_of(checkpoint.tensors, rank), str(checkpoint.path))


InitialState = RunState | SavedPolicy
"""State that learners begin with: that of their run, or the policy of another."""


class PolicyOrigin(RunPolicies, frozen=True):
    """Facts of any checkpoint that say whose policies it holds: those of a run's learners, or one policy alone."""

    num_learners: Annotated[int, Meta(ge=1, le=MAX_LEARNERS)] | None = None
    """None: it holds one policy."""
    learner: Whole | Literal["average"] | None = None
    """Whose the one policy is; None: an older run has not said."""

    def __post_init__(self) -> None:
        """Refuse learners that the run has not."""
        named = (self.policy_of, self.best_learner, self.learner, *dict(self.scores or []))
        size = self.num_learners or 1
        if size > 1 and any(isinstance(rank, int) and rank >= size for rank in named):
            raise ValueError("policy_of")
        away, givers = dict(self.absent), {whose for rank, whose in self.absent if rank != whose}
        if (
            len(away) >= size > 1
            or max([*away, *givers], default=0) >= size
            or givers & away.keys()
        ):
            raise ValueError("absent")


Identity = tuple[int, int | Literal["average"]]
"""Version of a policy, and the learner that has learnt it."""


class ScoredPolicy(msgspec.Struct, frozen=True):
    """Facts of the best policy of a run, and of the candidate for its place."""

    version: int
    learner: Whole | Literal["average"]
    env_steps: Whole | None = None
    """Of the run; None: it is not known."""
    settings: dict[str, Any] = {}
    """Of the run when it was scored; empty: an older version has not saved them."""
    max_episode_steps: Whole = 0
    """The plan's then."""

    @property
    def identity(self) -> Identity:
        """Its version and its learner, which no other policy of the run has."""
        return self.version, self.learner


def name_on_disk(rank: int, name: str) -> str:
    """Return the name under which a checkpoint holds an entry of a learner."""
    return f"{rank}/{name}" if rank else name


def _rank_and_name(on_disk: str) -> tuple[int, str]:
    """Return whose entry a name on disk is, and what it is called there.

    Raises:
        ValueError: it is nobody's.
    """
    rank, slash, name = on_disk.partition("/")
    # Names of leaves of observations have slashes too, behind a role's: "actor.0.obs/state/speed".
    bare = not slash or "." in rank
    found = (0, on_disk) if bare else (int(rank), name)
    if found[0] < 0 or name_on_disk(*found) != on_disk:
        raise ValueError(on_disk)
    return found


def tensors_of(ranks: range, *, replays: bool = True) -> Callable[[str], bool]:
    """Return a function that says whether a tensor on disk is one of these learners'.

    Args:
        ranks: of the learners.
        replays: the contents of their replays are among them.
    """

    def wanted(on_disk: str) -> bool:
        try:
            rank, name = _rank_and_name(on_disk)
        except ValueError:
            return False
        return rank in ranks and (replays or not name.startswith(_REPLAY))

    return wanted


def policy_of(tensors: Mapping[str, Tensor], rank: int = 0) -> dict[str, Tensor]:
    """Return the parameters and moments of a learner, by their names in the network; empty: not there."""
    return without_prefix(tensors, name_on_disk(rank, POLICY))


def to_disk(state: RunState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON of a checkpoint."""
    entries = {
        name_on_disk(rank, name): x
        for rank, learner in enumerate(state.learners)
        for name, x in learner.entries().items()
    }
    tensors = {name: x for name, x in entries.items() if isinstance(x, Tensor)}
    held = {name: x for name, x in entries.items() if name not in tensors}
    facts = {
        "held": held,
        "plan": asdict(state.plan),
        "exact": state.exact,
        "recorder": msgspec.structs.asdict(state.recorder),
        "num_learners": len(state.learners),
        "evaluation_budget": state.evaluation_budget,
        "settings": state.settings,
        **msgspec.structs.asdict(state.policies),
    }
    return tensors, facts


def from_disk(checkpoint: Checkpoint, num_learners: int) -> RunState:
    """Return the state that a checkpoint holds of a run with so many learners; its tensors are the checkpoint's.

    Raises:
        ConfigError: one line that names what is damaged: hashes may fit, and the content be anything.
    """
    path, facts = checkpoint.path, checkpoint.state
    if facts_of(checkpoint, PolicyOrigin).num_learners not in (None, num_learners):
        raise _damaged(path, "num_learners")
    facts = _with_older_facts(
        {**facts, "learners": [], "begins_anew": [], "folder": str(path)}, path
    )
    state = _typed({**facts, "policies": facts}, RunState, path)
    state.learners.extend(_learners_from_disk(checkpoint, num_learners))
    if state.updates.get(0) != checkpoint.updates:
        raise _damaged(path, "learner.update")
    _refuse_contradictions(state, path)
    return state


def _learners_from_disk(checkpoint: Checkpoint, num_learners: int) -> list[LearnerState]:
    path, held = checkpoint.path, checkpoint.state.get("held")
    entries: list[dict[str, Any]] = [{} for _ in range(num_learners)]
    tensors: list[dict[str, Tensor]] = [{} for _ in range(num_learners)]
    numbers = _typed(held, dict[str, Any], path, "held")
    for on_disk, x in chain(numbers.items(), checkpoint.tensors.items()):
        try:
            rank, name = _rank_and_name(on_disk)
            if not isinstance(x, Tensor):
                entries[rank][name] = _typed(x, _kind_of(name), path, on_disk)
            elif name in entries[rank] or name in _COUNTS:
                raise ValueError(on_disk)
            else:
                tensors[rank][name] = x
        except (ValueError, IndexError):
            raise _damaged(path, on_disk) from None
    learners: list[LearnerState] = []
    for rank, own in enumerate(entries):
        # An older run of one learner has not written its own.
        own.setdefault("learner.own_env_steps", own.get("learner.env_steps"))
        known = {**_by_field(own), "tensors": {}}
        learner: LearnerState = _typed(known, LearnerState, path, name_on_disk(rank, "learner"))
        learner.tensors.update(tensors[rank])
        learners.append(learner)
    return learners


def _by_field(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a learner's counts by field, as far as they are there, and its other numbers by name."""
    counts = {field: plain[name] for name, field in _COUNTS.items() if name in plain}
    return {**counts, "numbers": {k: x for k, x in plain.items() if k not in _COUNTS}}


class _OlderRecord(msgspec.Struct, frozen=True):
    """The last episodes of a run, as they were written before those of each learner were kept apart."""

    lengths: list[int]
    returns: list[float] = []
    returns_of: list[tuple[int, list[float]]] = []
    """By learner."""

    def window(self) -> WindowState:
        """Return them as they are written now; of several learners it is not known whose each length was."""
        if self.returns_of:
            return [
                OfLearner(rank, x, self.lengths[-1:] * len(x)) for rank, x in self.returns_of if x
            ]
        return [OfLearner(0, self.returns, self.lengths)] if self.lengths else []


def _with_older_facts(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the facts of a run's state with those that older runs have not written, or have in another way."""
    record = facts.get("recorder")
    if isinstance(record, dict) and "window" not in record:
        window = _typed(record, _OlderRecord, path, "recorder").window()
        record = {**record, "window": window}
    best = facts.get("policy_of") if facts.get("scores") else None
    return {"best_learner": best, **facts, "recorder": record}


def facts_of(checkpoint: Checkpoint, kind: type[T]) -> T:
    """Return what a checkpoint says of its policies, as a `PolicyOrigin` or a `ScoredPolicy`.

    Raises:
        ConfigError: it does not say so.
    """
    return _typed(checkpoint.state, kind, checkpoint.path)


def env_steps_of(checkpoint: Checkpoint) -> int | None:
    """Return the env steps behind any checkpoint; None: it does not say, or is damaged there."""
    with suppress(ConfigError):
        if "held" not in checkpoint.state:
            return facts_of(checkpoint, ScoredPolicy).env_steps
        size = facts_of(checkpoint, PolicyOrigin).num_learners or 1
        return sum(x.own_env_steps for x in _learners_from_disk(checkpoint, size))
    return None


def _refuse_contradictions(state: RunState, path: Path) -> None:
    """Refuse a state whose parts do not fit each other."""
    plan = state.plan
    for name in ("hardware", "torch"):
        if not getattr(plan, name).isprintable():
            raise _damaged(path, f"plan.{name}")
    for x in state.recorder.window:
        if not len(x.returns) == len(x.lengths) == len(x.infos or x.returns):
            raise _damaged(path, "recorder.window")
    # As many episodes are under way as there are environments, before any of those is made.
    names = [f"actor.{group}.episodes" for group in range(min(plan.env_groups, plan.num_envs))]
    for learner in state.learners:
        if missing := set(names) - set(learner.tensors):
            raise _damaged(path, min(missing))
        if sum(learner.tensors[name].numel() for name in names) != plan.num_envs:
            raise _damaged(path, "plan.num_envs")


def _typed(facts: Any, kind: Any, path: Path, name: str = "") -> Any:
    """Return facts as a type; what they are called names them where they are of no such type."""
    try:
        return msgspec.convert(facts, kind)
    except msgspec.ValidationError as error:
        found = re.search(r"`\$\.?([^`]*)`$", str(error))
        missing = re.search(r"required field `(\w+)`", str(error))
        names = (name, found and found[1], missing and missing[1])
        raise _damaged(path, ".".join(filter(None, names)) or str(error)) from None


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path / STATE} is damaged: {what} has an impossible value")
