"""Peers over memory that all learners map: every learner has a mailbox, whose messages it alone writes.

No locks: a sequence number beside each message is odd while it is written, and a reader that finds it
odd, or changed after copying, has read nothing. Whoever is killed leaves at most one odd number behind.
In a header the supervisor writes too: that a learner has left, waits for nobody any more, or is still starting.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from gossamer.links.stopping import LOOK_SECONDS, Stopped
from gossamer.system import devices
from gossamer.system.blocks import lay_out, view
from gossamer.system.reading import expand
from gossamer.system.signs_of_life import Patience, Sign

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gossamer.links.protocols import Message
    from gossamer.links.stopping import StopSignal
    from gossamer.system.blocks import Place

T = TypeVar("T")
SLOTS = 2
"""Messages kept of each learner: what a synchronous reader may still want, and the next."""
LEFT, COMBINED, ENV_STEPS, POSTS, JOINED, ANNOUNCED = range(6)
"""Words of a mailbox's header, int64: whether its learner has left; updates whose mixing it finished;
env steps it has learnt from; messages posted; the update it takes part from; of its last two versions in
turn, the first update, counted from 1, and the env steps behind the version's end."""
BEATS, AWAITS, LEADER, PRESENT, KNOWS = range(16, 21)
"""Further words, on a line of their own: the signs of life of a process and for which learner it waits, plus 1,
both in the mailbox of the first of its learners; which that is, plus 1, in everyone's; whether a learner has been
made and is about to join; in copies on other machines, the update from which a learner there is expected, as far as is
known where this one is."""
HEADER_WORDS = 24
"""Words of a mailbox's header: three lines."""
SEQUENCE, UPDATE, NOTE = range(3)
"""Words of a slot's header, int64: odd while it is written; the message's update; two notes about it."""
SLOT_WORDS = 4
"""How many these are; every header has a line of its own."""
FAR = 1 << 62
"""An update that nobody reaches."""
JOIN_AHEAD, JOIN_AHEAD_BY_MAIL = 4, 32
"""Updates between what a running group has mixed and the one that a late learner tries to begin with first; the second, where
the group learns of it from letters, which take their time."""
_FIRST_PAUSE, _LAST_PAUSE = 2e-5, 1e-3
"""Seconds between two looks of a waiting learner."""


def make_memory(nbytes: int, path: str = "") -> tuple[int, mmap.mmap]:
    """Make zeroed memory that child processes can map by its file descriptor; it has no name on disk.

    Args:
        nbytes: how much.
        path: folder of the file that it is; empty: memory.
    """
    descriptor = -1
    if not path and hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # the kernel, as that of WSL 1, or a sandbox has none
            descriptor = os.memfd_create("gossamer", 0)
    if descriptor < 0:
        folder = expand(path) if path else None
        with tempfile.TemporaryFile(prefix="gossamer-", dir=folder) as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, nbytes)
        if path and hasattr(os, "posix_fallocate"):
            # A disk that fills up later would kill the process.
            os.posix_fallocate(descriptor, 0, nbytes)
        return descriptor, mmap.mmap(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


class Found(NamedTuple):
    """A whole message, as its header told of it at one moment."""

    slot: int
    sequence: int
    update: int
    notes: tuple[int, int]
    """What its writer says about it."""


class Mailboxes:
    """The memory of L mailboxes, cut into headers and messages.

    Args:
        memory: zeroed when new; at least `nbytes` of it.
        num_learners: L.
        sizes: float32 and float64 numbers of one message.
    """

    def __init__(self, memory: mmap.mmap, num_learners: int, sizes: tuple[int, int]):
        self.memory, self.num_learners, self.sizes = memory, num_learners, sizes
        self.by_mail = False
        """Whether learners of other machines see what is written here only later."""
        self.headers: list[NDArray[np.int64]] = []
        self.slot_headers: list[list[NDArray[np.int64]]] = []
        self.messages: list[list[Message]] = []
        places, nbytes = _mailbox(sizes)
        for rank in range(num_learners):
            begin = rank * nbytes
            header, *slots = (view(memory, x._replace(offset=begin + x.offset)) for x in places)
            self.headers.append(header.numpy())
            self.slot_headers.append([x.numpy() for x in slots[::3]])
            self.messages.append([*zip(slots[1::3], slots[2::3], strict=True)])

    @staticmethod
    def nbytes(num_learners: int, sizes: tuple[int, int]) -> int:
        """Return how much memory L mailboxes take."""
        return num_learners * _mailbox(sizes)[1]

    def env_steps(self, rank: int) -> int:
        """Return how many steps a learner has learnt from."""
        return int(self.headers[rank][ENV_STEPS])

    def mark_left(self, rank: int) -> None:
        """Tell everyone that a learner is gone; by itself, or by the supervisor once it is dead."""
        fence()  # who sees that it has left sees all that it posted and mixed before
        self.headers[rank][LEFT] = 1

    def mark_back(self, rank: int) -> None:
        """Tell everyone that a learner is there again."""
        self.headers[rank][LEFT] = 0

    def has_left(self, rank: int) -> bool:
        """Whether a learner is gone."""
        return bool(self.headers[rank][LEFT])

    def set_process_leader(self, rank: int, leader: int) -> None:
        """Tell with whom a learner shares a process, by the first learner of it."""
        self.headers[rank][LEADER] = leader + 1

    def process_leader(self, rank: int) -> int:
        """Return the first learner of the process that a learner is in."""
        return int(self.headers[rank][LEADER] or rank + 1) - 1

    def life_of(self, rank: int) -> tuple[int, int]:
        """Return the signs of life of whoever holds up a learner, and the last of them.

        One that waits for another shows none itself; the other's count, and so on.
        """
        beats, seen = 0, set[int]()
        while (leader := self.process_leader(rank)) not in seen:
            seen.add(leader)
            beats += int(self.headers[leader][BEATS])
            awaited = int(self.headers[leader][AWAITS]) - 1
            if awaited < 0:
                break
            rank = awaited
        return beats, rank

    @contextlib.contextmanager
    def posting(self, rank: int, update: int, notes: tuple[int, int] = (0, 0)) -> Generator[int]:
        """Context in which `rank` writes its message of `update` over its oldest; gives the slot."""
        slot = int(self.headers[rank][POSTS]) % SLOTS
        header = self.slot_headers[rank][slot]
        # A learner that was killed while writing has left it odd already.
        header[SEQUENCE] |= 1
        fence()
        yield slot
        header[UPDATE], header[NOTE], header[NOTE + 1] = update, *notes
        fence()
        header[SEQUENCE] += 1
        self.headers[rank][POSTS] += 1

    def read(self, rank: int, updates: range, into: Sequence[Tensor]) -> int | None:
        """Copy the newest message of `rank` among `updates`; return its update, None if there is none.

        Never waits; a message that is overwritten meanwhile is looked for anew.
        """
        for _ in range(100):
            place = self.find(rank, updates)
            if place is None:
                return None
            for target, x in zip(into, self.messages[rank][place.slot], strict=True):
                target.copy_(x, non_blocking=True)
            if devices.is_gpu(into[0].device):
                devices.wait(into[0].device)
            fence()
            if self.slot_headers[rank][place.slot][SEQUENCE] == place.sequence:
                return place.update
        return None

    def newest(self, rank: int, updates: range) -> int | None:
        """Return the update of the newest message of `rank` among `updates`, None without one."""
        place = self.find(rank, updates)
        return None if place is None else place.update

    def posted(self, rank: int) -> list[Found]:
        """Return where a learner's whole messages are, the oldest first."""
        newest = self.find(rank, range(FAR))
        older = None if newest is None else self.find(rank, range(newest.update))
        return [place for place in (older, newest) if place is not None]

    def find(self, rank: int, updates: range) -> Found | None:
        """Return where the newest whole message of `rank` among `updates` is, None without one."""
        found: Found | None = None
        for slot, header in enumerate(self.slot_headers[rank]):
            sequence = int(header[SEQUENCE])
            fence()
            update = int(header[UPDATE])
            notes = int(header[NOTE]), int(header[NOTE + 1])
            fence()
            whole = sequence and sequence % 2 == 0 and int(header[SEQUENCE]) == sequence
            if whole and update in updates and (found is None or update > found.update):
                found = Found(slot, sequence, update, notes)
        return found


class Mailbox:
    """`Peers` of one learner in shared memory.

    Args:
        boxes: everyone's.
        rank: whose this is.
        stop: ends every wait.
        patience_seconds: longest silence of another learner, as `Patience` takes it.
        sign: of the learner, which lives as long as those it waits for do.
        on_write: called when there is something for the other learners to see; nothing where they look by themselves.
    """

    def __init__(
        self,
        boxes: Mailboxes,
        rank: int,
        stop: StopSignal,
        *,
        patience_seconds: float,
        sign: Sign | None = None,
        on_write: Callable[[], None] = lambda: None,
    ):
        self.boxes, self.rank, self._on_write = boxes, rank, on_write
        self.num_learners, self.sizes = boxes.num_learners, boxes.sizes
        self.waited_seconds = 0.0
        self._turn = 0  # which of two announcements is next
        self._stop, self._sign = stop, sign
        self.patience = Patience(patience_seconds, "", self._life, self._last_words)
        self._peer = rank  # who is waited for
        self._header = boxes.headers[rank]

    def messages_of(self, peer: int) -> list[Message]:
        """Return where the two messages of a learner lie."""
        return self.boxes.messages[peer]

    @contextlib.contextmanager
    def posting(self, update: int) -> Generator[int]:
        """Context in which this learner writes its message of `update`; gives which of the two to write."""
        with self.boxes.posting(self.rank, update) as slot:
            yield slot
        self._on_write()

    def posted(self) -> list[int]:
        """Return the updates of this learner's whole messages, the oldest first."""
        return [place.update for place in self.boxes.posted(self.rank)]

    def newest(self, peer: int, updates: range) -> int | None:
        """Return the update of the newest message of `peer` among `updates`, None without one."""
        return self.boxes.newest(peer, updates)

    def read(self, peer: int, updates: range, into: Sequence[Tensor]) -> int | None:
        """Copy that message; return its update, None without one."""
        return self.boxes.read(peer, updates, into)

    def place_of(self, peer: int, update: int) -> int:
        """Return which of two the message of `update` is; it must be there, and nobody about to overwrite it."""
        place = self.boxes.find(peer, range(update, update + 1))
        assert place is not None, (peer, update)
        return place.slot

    def wait_posted(self, peer: int, updates: range) -> int | None:
        """Wait for a message of `peer` among `updates`, return its update; None if it left without."""
        start, what = updates.start, f"the message of update {updates.start}"
        return self._wait(peer, lambda: self.boxes.newest(peer, updates), start, what)

    def meet(self) -> None:
        """Wait until every learner has been made."""
        self._header[PRESENT] = 1
        for peer in range(self.num_learners):
            header = self.boxes.headers[peer]
            self._wait(
                peer, lambda h=header: True if h[PRESENT] else None, FAR - 1, "its beginning"
            )

    def _life(self) -> int:
        return self.boxes.life_of(self._peer)[0]

    def _last_words(self) -> str:
        last = self.boxes.life_of(self._peer)[1]
        return "" if last == self._peer else f"it waits for learner {last}"

    def wait_combined(self, peer: int, update: int) -> None:
        """Wait until `peer` has finished mixing `update`, or has left."""
        header, what = self.boxes.headers[peer], f"the mixing of update {update}"
        self._wait(peer, lambda: True if header[COMBINED] > update else None, update, what)

    def has_left(self, peer: int, update: int) -> bool:
        """Whether a learner is gone, or back only from a later update on."""
        header = self.boxes.headers[peer]
        left = bool(header[LEFT])
        fence()  # as `begin` writes them the other way round
        return left or update < header[JOINED]

    def set_combined(self, update: int) -> None:
        """Tell that the mixing of `update` is finished; writers may overwrite what was read for it."""
        # Messages are read where they lie: a writer that sees this must not write before they have been read.
        # On its side waiting for this decides whether it writes at all, and `posting` has a fence before it does.
        fence()
        self._header[COMBINED] = update + 1
        self._on_write()

    def begin(self, update: int, joined: int = 0) -> None:
        """Take part from `update` on: at the start, after a resume, or again after having left.

        Others do without until they are at `joined`. A group in lock-step that starts again needs new memory: what its members had combined and
        posted would be taken for what they are about to.
        """
        self.set_combined(update - 1)
        self._header[JOINED] = joined
        fence()
        self._header[LEFT] = 0
        self._on_write()

    def join_running_group(self, heard: Iterable[int]) -> int:
        """Join a group that runs in lock-step, at an update that nobody has mixed yet; return it.

        Args:
            heard: learners whose messages this one waits for: they must keep them for it from then on.
        """
        ahead = JOIN_AHEAD_BY_MAIL if self.boxes.by_mail else JOIN_AHEAD
        while True:
            update = self.newest_combined() + ahead
            self.begin(update, joined=update)
            fence()
            if self.newest_combined() < update and self._is_expected_by(heard, update):
                return update
            self._header[LEFT] = 1  # some were quicker; those that wait for me go on
            ahead *= 2

    def _is_expected_by(self, peers: Iterable[int], update: int) -> bool:
        """Wait until learners of other machines know from when on this one takes part; return whether they do so in time."""
        if not self.boxes.by_mail:
            return True
        what = f"its word that it expects learner {self.rank} at update {update}"
        for peer in peers:
            header = self.boxes.headers[peer]

            def look(header: NDArray[np.int64] = header) -> int | None:
                if header[KNOWS] < update:
                    return None
                fence()  # it had mixed no more than this when it got to know
                return int(header[COMBINED])

            combined = self._wait(peer, look, update, what)
            if combined is not None and combined > update:
                return False
        return True

    def newest_combined(self) -> int:
        """Return the last update that any other learner has finished mixing; -1 without one."""
        return max(int(self.boxes.headers[r][COMBINED]) for r in range(self.num_learners)
                   if r != self.rank) - 1  # fmt: skip

    def newest_known(self, *, others: bool = True) -> int:
        """Return the last update that one who died mixed or posted here, or `others` have mixed; -1 without one."""
        own = int(self._header[COMBINED]) - 1
        return max(self.newest_combined() if others else -1, own, *self.posted())

    def report(self, env_steps: int) -> None:
        """Tell how much this learner has learnt from."""
        self._header[ENV_STEPS] = env_steps

    def announce(self, update: int, env_steps: int) -> None:
        """Tell how many env steps will be behind the end of the version that begins with `update`."""
        word = ANNOUNCED + 2 * self._turn
        self._turn = 1 - self._turn
        self._header[word] = 0
        fence()
        self._header[word + 1] = env_steps
        fence()
        self._header[word] = update + 1
        self._on_write()

    def wait_announced(self, peer: int, update: int) -> int:
        """Wait for what `peer` announces of the version that begins with `update`; return the env steps.

        Nobody is two versions ahead of one that waits for all. Of a learner that has left without, or has
        come late and begins versions at other updates, return what it has learnt from so far.
        """
        header = self.boxes.headers[peer]

        def look() -> int | None:
            if header[JOINED]:
                return self.boxes.env_steps(peer)
            for word in (ANNOUNCED, ANNOUNCED + 2):
                if header[word] == update + 1:
                    fence()
                    return int(header[word + 1])
            return None

        found = self._wait(peer, look, update, f"its count of the version from update {update} on")
        return self.boxes.env_steps(peer) if found is None else found

    def total_env_steps(self) -> int:
        """Return the sum of what all learners have reported."""
        return sum(map(self.boxes.env_steps, range(self.num_learners)))

    def _wait(self, peer: int, look: Callable[[], T | None], update: int, what: str) -> T | None:
        found = look()
        if found is not None:
            return found
        began = looked = time.monotonic()
        pause = _FIRST_PAUSE
        self._peer, self.patience.whom = peer, f"learner {peer}"
        wait = self.patience.wait(what)
        header = self.boxes.headers[self.boxes.process_leader(self.rank)]
        header[AWAITS] = peer + 1
        try:
            while True:
                # In this order: what a learner did before it left counts. The fence in `mark_left` keeps what it
                # did before its leaving; this one keeps looking for it after having seen that.
                gone = self.has_left(peer, update)
                fence()
                found = look()
                if found is not None or gone:
                    return found
                if self._stop.stopped:
                    raise Stopped
                if time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    if wait.look() and self._sign is not None:
                        self._sign.echoes += 1
                time.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
        finally:
            header[AWAITS] = 0
            self.waited_seconds += time.monotonic() - began


def _mailbox(sizes: tuple[int, int]) -> tuple[list[Place], int]:
    """Return where a mailbox's header lies, and the header and numbers of each slot; and its bytes."""
    slot = [
        ("slot", torch.int64, (SLOT_WORDS,)),
        ("singles", torch.float32, sizes[:1]),
        ("doubles", torch.float64, sizes[1:]),
    ]
    return lay_out([("header", torch.int64, (HEADER_WORDS,)), *SLOTS * slot])


_LOCK = threading.Lock()


def fence() -> None:
    """Keep memory accesses before this apart from those after it, on processors that reorder them."""
    # Others may slip into a locked section, past each other; not past an unlocking and the next locking.
    with _LOCK:
        pass
    with _LOCK:
        pass
