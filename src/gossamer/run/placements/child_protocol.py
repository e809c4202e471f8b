"""Messages to and from child processes: their tasks, and requests and replies between learners' processes and actors.

Learners' processes tell the supervisor the events of `host_protocol`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gossamer.build.plan import Plan
from gossamer.links.wire import Address
from gossamer.roles.acting_group import Episode
from gossamer.run.checkpoint_contents import InitialState
from gossamer.run.host_protocol import Event, Failed, Notice
from gossamer.run.placements.shared_memory import Sizes
from gossamer.spec import EnvSpec
from gossamer.system.blocks import Place
from gossamer.system.messages import Message


class LearnerTask(Message, frozen=True):
    """The task of a process with learners."""

    config: dict[str, Any]
    plan: Plan
    ranks: tuple[int, int]
    """Its first learner, and the one behind its last."""
    sizes: Sizes
    overlaps: bool
    """Acting and learning side by side, which needs a second core."""
    transport: str
    """How gradients travel: "memory", or the backend of a collective."""
    meeting: str
    """File, or HOST:PORT, at which the members of a collective find each other."""
    process: int = 0
    """Index among the processes of this machine that share its memory."""
    blocks: tuple[int, ...] = ()
    """File descriptors: of the lock on the run folder, which is kept open; of the memory of mailboxes, versions and
    orders; then of every learner's part of each shared replay."""
    cores: tuple[int, ...] = ()
    """Where it runs; empty: anywhere."""
    incarnation: int = 0
    """How often its learners have died before."""
    donors: dict[int, list[int]] = {}
    """Ranks whose average a learner begins with, by its own, where it takes over or joins the others; empty: it does not."""
    differs: str | None = None
    """Why environments do not come back, as in their spec; None: it is not known yet."""
    machine: str = ""
    """Address of this machine in a cluster, which actors and learners on others call; empty: it is in none."""
    initial: InitialState | None = None
    """None: it begins anew, or with others' average."""


class EndLearners(Message, frozen=True):
    """A process of learners is asked to leave what it is at, to close its environments and to end."""


class ActorTask(Message, frozen=True):
    """The task of a process with an actor."""

    config: dict[str, Any]
    plan: Plan
    spec: EnvSpec
    rank: int
    """Rank of the learner."""
    actor: int
    """Index among the learner's actors."""
    groups: tuple[int, int]
    """Its first group of environments among the learner's, and the one behind its last."""
    blocks: tuple[int, ...]
    """File descriptors: of the parameters' memory, of the actors' signs of life, and of every slot that it writes."""
    places: list[Place]
    """Where the fields of a slot lie."""
    columns: tuple[int, int]
    """Its first column of a slot, and the one behind its last: a slot has those of all actors, or its own alone."""
    sizes: tuple[int, int]
    """float32 and float64 numbers of the parameters and moments."""
    restarts: int
    """How often this actor, or its learner, has been replaced; its streams and episodes are new ones then."""
    start: bool
    """Begin episodes; otherwise a state follows."""
    address: Address | None = None
    """Where its learner's process waits for it on another machine; None: they share memory."""
    machine: str = ""
    """Address of its own machine then."""


class PlaceActor(Message, frozen=True):
    """A learner's process asks for an actor on another machine."""

    task: ActorTask


class MessagesWritten(Message, frozen=True):
    """A learner has written to its mailbox something that others wait for."""


class Collect(Message, frozen=True):
    """An actor is asked to collect a trajectory."""

    slot: int
    version: int
    """Version of the parameters to act with; -1: the newest."""
    params: list[Tensor] | None = None
    """Their float32 and float64 numbers, for an actor on another machine; None: it has them, or reads them in memory."""


class TellState(Message, frozen=True):
    """An actor is asked for everything that is needed to continue exactly."""


class LoadState(Message, frozen=True):
    """An actor is asked to continue from a state."""

    tensors: dict[str, Tensor]
    exact: bool
    """Bring its environments back to where they were."""


class EndActor(Message, frozen=True):
    """An actor is asked to close its environments and end."""


class StillHere(Message, frozen=True):
    """A learner's process asks for nothing, and its connection to an actor is there."""


class ActorReady(Message, frozen=True):
    """An actor has made its environments."""


class Collected(Message, frozen=True):
    """An actor has filled a slot."""

    slot: int
    episodes: list[Episode]
    """Finished meanwhile; the row that each ended in stands for its env steps."""
    seconds: dict[str, float]
    """Spent on environments and on inference."""
    packet: Tensor | None = None
    """Bytes of the trajectory, from an actor on another machine; None: it is in the slot."""


class ActorState(Message, frozen=True):
    """An actor answers `TellState`."""

    tensors: dict[str, Tensor]


class StateLoaded(Message, frozen=True):
    """An actor answers `LoadState`."""

    back: bool
    """Whether its environments are where they were."""


class ActorLocated(Message, frozen=True):
    """An actor on another machine tells where it is."""

    pid: int
    machine: str


class ActorAlive(Message, frozen=True):
    """An actor on another machine gives signs of life."""

    beats: int


class ActorSettled(Message, frozen=True):
    """An actor on another machine has called its team, which sees to it from now on."""


class ActorLost(Message, frozen=True):
    """An actor on another machine does not reach its team: the network fails, or the team is gone or has another actor."""

    why: str


ActorRequest = Collect | TellState | LoadState | EndActor | StillHere
ActorReply = ActorReady | Collected | ActorState | StateLoaded | Notice | Failed
RemoteReply = ActorReply | ActorLocated | ActorAlive
LearnerTold = Event | PlaceActor | MessagesWritten
ChildHears = LearnerTask | EndLearners | ActorTask | ActorRequest
