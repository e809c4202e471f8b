"""Seam between a run's supervisor and the places where its learners run: hosts, events and orders.

A host runs one or more learners with their actors: this process, a process of its own, or a process on another machine.
A placement is all hosts of a run and the memory that they share. The supervisor knows no more of either than stands here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from gossamer.build.plan import Plan
from gossamer.errors import ConfigError, OthersLeft, RunFailed
from gossamer.roles.acting_group import Episode
from gossamer.run.checkpoint_contents import LearnerState
from gossamer.system.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.links.stopping import StopSignal
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.checkpoint_contents import InitialState
    from gossamer.run.host_state import HostState
    from gossamer.run.placements.shared_memory import PolicyBoards
    from gossamer.spec import EnvSpec

LoadInitialState = Callable[[range], "InitialState | None"]
"""Reads the state that learners begin with; of their run's with the tensors of these ranks. None: they begin anew."""
FINAL = 0
"""Number of the snapshot that a host takes when its learners have ended, in place of an order's."""


class Order(NamedTuple):
    """An order of the supervisor to all learners: to save, or to save and end."""

    number: int
    """Number of the order, from 1 on; the snapshot of a host carries it."""
    ends: bool


class Ready(Message, frozen=True):
    """A host's learners have been made, and learn from now on."""

    differs: str | None
    """Why its environments do not come back after a resume, as in `EnvSpec`; empty: they do; None: nothing new was found."""


class ProgressReport(Message, frozen=True):
    """Progress of a host's learners since the host last told of it."""

    rows: list[dict[str, Any]]
    """Rows of metrics, one for each learner whose row is due."""
    episodes: list[tuple[int, Episode]]
    """Finished training episodes, and the rank of the learner that each belongs to."""
    last: bool = False
    """The learners have ended, and every one has a row."""


class Snapshot(Message, frozen=True):
    """A host's part of a checkpoint, between two versions."""

    number: int
    """Number of the order that it answers; FINAL: its learners have ended."""
    learners: dict[int, LearnerState]
    """State of its learners, by rank."""
    plan: Plan
    exact: bool
    """Whether the learners can go on from it as if they had never stopped."""
    seconds: float = 0.0
    """Seconds that learning has paused for taking it."""


class SnapshotSent(Message, frozen=True):
    """A host elsewhere has handed its snapshot over."""

    seconds: float
    """Seconds that learning has paused for that."""


class Notice(Message, frozen=True):
    """A line for the user."""

    text: str
    saves: bool = False
    """A checkpoint is saved as well: soon there may be nobody left to do so."""


class ActorProcesses(Message, frozen=True):
    """A host's learners have actors in processes of their own, now these."""

    rows: list[dict[str, Any]]
    """Rows of processes.json: role, rank of the learner, index of the actor, pid, restarts, and the machine if it is
    another than the learner's."""


class Failed(Message, frozen=True):
    """Learners, or an actor, have raised an error, which ends the run."""

    kind: Literal["ConfigError", "RunFailed"]
    text: str
    follows: bool = False
    """They fail because another learner has left them: that one is at fault, if it tells so or has died."""

    @classmethod
    def of(cls, error: BaseException, role: str) -> Failed:
        """Return the message that reports an error.

        Args:
            error: that was raised.
            role: "a learner", in which it was; begins the text of what is neither ConfigError nor RunFailed.
        """
        if isinstance(error, ConfigError | RunFailed):
            kind = "ConfigError" if isinstance(error, ConfigError) else "RunFailed"
            return cls(kind, str(error), isinstance(error, OthersLeft))
        lines = "".join(traceback.format_exception(error))
        headline = " ".join(traceback.format_exception_only(error)[-1].split())
        return cls("RunFailed", f"{role} failed: {headline}\n{lines}")

    @property
    def error(self) -> ConfigError | RunFailed:
        """The error that ends the run."""
        return {"ConfigError": ConfigError, "RunFailed": RunFailed}[self.kind](self.text)


class Done(Message, frozen=True):
    """A host has told everything; what remains is closing its environments."""


class Died(Message, frozen=True):
    """A host has ended without being done."""

    how: str
    """Cause in words: "signal 9"."""


Event = (
    Ready
    | ProgressReport
    | Snapshot
    | SnapshotSent
    | Notice
    | ActorProcesses
    | Failed
    | Done
    | Died
)


class Host(Protocol):
    """One place that runs learners, as the supervisor sees it."""

    ranks: range
    """Ranks of its learners."""
    machine: str
    """Address of the machine that it is on; empty: this one, of no cluster."""
    here: bool
    """Whether that is the supervisor's machine."""
    state: HostState
    """Its phase and incarnation, and what the supervisor has heard of it."""

    @property
    def pid(self) -> int:
        """Process that they run in."""
        ...

    @property
    def version(self) -> int:
        """Newest version of its first learner; -1 before the first."""
        ...


class Placement(Protocol):
    """The hosts of a run, from before the run folder is made to the end of the run."""

    spec: EnvSpec
    """Spec of the environment; whether it comes back may be known only once hosts are ready."""
    names: list[str]
    """Names of the tensors of a policy."""
    stop: StopSignal
    """Ends whatever of this placement runs in this process."""
    evaluates: Literal["in turn", "beside"]
    """Whether the evaluator plays between two versions, or while learners learn."""
    restore_seconds: float | None
    """Time that bringing learners back to a checkpoint took before the run began; None: hosts do so once they start."""
    before_snapshot: Callable[[], None]
    """Called before a snapshot is taken in this process; the supervisor's."""
    asked_to_stop: Callable[[], bool]
    """Whether the run is asked to stop while hosts wait for a place; the supervisor's."""
    say: Callable[[str], None]
    """Shows a line of a role of this process, at once, from any thread; the supervisor's."""

    @property
    def hosts(self) -> Sequence[Host]:
        """Where learners run; the state of one that is replaced is another object."""
        ...

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners."""
        ...

    def env_steps_of(self, rank: int) -> int:
        """Decisions that a learner has learnt from."""
        ...

    @property
    def updates(self) -> int:
        """Updates of learner 0."""
        ...

    @property
    def boards(self) -> PolicyBoards | None:
        """The newest policies of all learners, and whose is to be evaluated next; None for one learner of this process."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether a role of this process does not come back."""
        ...

    def absent(self) -> dict[int, int]:
        """Return the learners without a place, and how many env steps each has learnt from."""
        ...

    def make_evaluator(self) -> Evaluator | None:
        """Return an evaluator of the newest policies; None where none is wanted."""
        ...

    def start(self, load: LoadInitialState) -> None:
        """Start all hosts; again, after the death of one without which the others cannot go on."""
        ...

    def replace(self, index: int) -> None:
        """Start a new host where one is dead, which takes over if that had learnt."""
        ...

    def poll(self) -> list[tuple[int, Event]]:
        """Return what hosts have told, by index; wait for the first of it a tenth of a second, or learn one version here.

        Raises:
            Stopped: `stop` was set.
            RunFailed: a host shows no sign of life.
        """
        ...

    def order(self, *, ends: bool) -> int:
        """Ask all learners to save, those in lock-step after the same version; return the order's number."""
        ...

    @property
    def ends_alone(self) -> bool:
        """Whether learners know the run's last step by themselves."""
        ...

    def show_life(self) -> None:
        """Let those who wait for a learner know that what it waits for gets on."""
        ...

    def end(self) -> None:
        """End the hosts: those that are done may close what they hold, the others are killed."""
        ...

    def close(self) -> None:
        """Free what the placement holds."""
        ...
