"""Mailboxes on several machines: each holds a copy of all, and sends the others what its own learners write.

Every word of a mailbox has one writer. So a copy that is written in the order in which its writer wrote is as good as the
original, only later: whoever waits for a message, or for somebody to have mixed one, waits a little longer. Nothing
here knows how letters travel.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray  # noqa: TC002 - letters are read by their annotations

from gossamer.links.mailboxes import (
    ANNOUNCED,
    AWAITS,
    BEATS,
    FAR,
    HEADER_WORDS,
    JOINED,
    KNOWS,
    LEFT,
    POSTS,
    SLOTS,
    Mailboxes,
    fence,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_LOOKS = 100
"""At a header that its writer is changing; then what is there is taken, and the next letter has the rest."""
_UPDATES = [ANNOUNCED + 2 * i for i in range(SLOTS)]
"""Words that tell that the words behind them are whole."""
_PLAIN = [x for x in range(HEADER_WORDS) if x not in (LEFT, POSTS, KNOWS, *_UPDATES)]
"""Words that may be written in any order."""


class Post(NamedTuple):
    """A message of a learner."""

    rank: int
    update: int
    notes: tuple[int, int]
    singles: NDArray[np.float32]
    doubles: NDArray[np.float64]


class Letter(NamedTuple):
    """Messages and headers that some learners have written since the letter before; plain arrays."""

    incarnation: int
    """How often these learners have died before."""
    posts: tuple[Post, ...] = ()
    """The oldest first."""
    ranks: tuple[int, ...] = ()
    """Learners whose headers have changed."""
    headers: NDArray[np.int64] = np.empty((0, 0), np.int64)
    """Their headers [ranks, words], which were read before the messages."""
    sender: int = 0
    """Which `Outgoing` has written it, a random number."""
    number: int = 0
    """How many letters that one had written by then."""

    @property
    def nbytes(self) -> int:
        """Bytes of its messages."""
        return sum(x.singles.nbytes + x.doubles.nbytes for x in self.posts)


class Outgoing:
    """Letters to one other machine, with what is new in the mailboxes that are written here.

    Args:
        boxes: of this machine.
        ranks: whose mailboxes are written here.
        heard: those of them whose messages the other machine needs; headers it gets of all.
        every: both of the last messages are needed, as learners in lock-step do; else the newest. They are sent from where
            they lie: in lock-step nobody writes over one before those that it is for have mixed it.
        incarnation: of the learners.
        bare: messages only tell that they were posted; their numbers travel another way.
        readers: learners of the other machine, which are told from when on they are expected here.
    """

    def __init__(
        self,
        boxes: Mailboxes,
        ranks: Iterable[int],
        heard: Collection[int] = (),
        *,
        every: bool = False,
        incarnation: int = 0,
        bare: bool = False,
        readers: Iterable[int] = (),
    ):
        self._readers = tuple(readers)
        self._boxes, self._ranks, self._heard = boxes, tuple(ranks), heard
        self._every, self._incarnation, self._bare = every, incarnation, bare
        self._headers: dict[int, NDArray[np.int64]] = {}
        self._sent: dict[int, int] = {}  # update of the last message, by rank
        self._sender, self._number = secrets.randbits(62), 0

    def letter(self, *, life: bool) -> Letter | None:
        """Return what there is to tell; None: nothing.

        Args:
            life: signs of life alone are worth a letter.
        """
        headers: dict[int, NDArray[np.int64]] = {}
        theirs = (self._boxes.headers[rank] for rank in self._readers)
        expected = max((x[JOINED] for x in theirs if not x[LEFT]), default=0)
        fence()  # a header tells no less of what was mixed than when it was known who joins
        for rank in self._ranks:
            words, before = _stable(self._boxes.headers[rank]), self._headers.get(rank)
            words[KNOWS] = expected
            if before is None or _differ(words, before, life=life):
                headers[rank] = words
        self._headers |= headers
        fence()  # what a header tells of is in the messages that are read now
        posts = [post for rank in self._ranks if rank in self._heard for post in self._posts(rank)]
        if not posts and not headers:
            return None
        self._number += 1
        found = np.stack([*headers.values()]) if headers else Letter(0).headers
        return Letter(
            self._incarnation, tuple(posts), tuple(headers), found, self._sender, self._number
        )

    def forget(self) -> None:
        """Forget what was told, as letters were lost: the next one tells everything."""
        self._headers, self._sent = {}, {}

    def _posts(self, rank: int) -> Iterable[Post]:
        new = [x for x in self._boxes.posted(rank) if x.update > self._sent.get(rank, -1)]
        for slot, _, update, notes in new if self._every else new[-1:]:
            singles, doubles = self._boxes.messages[rank][slot]
            if not self._every:
                singles, doubles = torch.empty_like(singles), torch.empty_like(doubles)
                if self._boxes.read(rank, range(update, update + 1), (singles, doubles)) is None:
                    continue  # it was overwritten meanwhile: there is a newer one
            self._sent[rank] = update
            size = 0 if self._bare else None
            yield Post(rank, update, notes, singles.numpy()[:size], doubles.numpy()[:size])


class Incoming:
    """Writes letters into the mailboxes of a machine; any thread may.

    Args:
        boxes: of this machine.
    """

    def __init__(self, boxes: Mailboxes):
        self._boxes = boxes
        self._incarnations = [0] * boxes.num_learners
        # Who has told last of each learner, and in which letter.
        self._last = [(0, 0)] * boxes.num_learners
        self._lock = threading.Lock()

    def deliver(self, letter: Letter | None) -> None:
        """Write what a letter tells, None: nothing; what it tells of learners that have been started again since is void.

        So are the headers of a letter that one of the same sender has overtaken, as happens if a connection breaks while
        its last letter is being taken: the words of a header may go back, and the sender would not tell them again.
        """
        if letter is None:
            return
        boxes = self._boxes
        if letter.ranks and letter.headers.shape[1:] != boxes.headers[0].shape:
            raise ValueError(f"headers {letter.headers.shape} fit no mailbox")
        with self._lock:
            for post in letter.posts:
                newest = boxes.newest(post.rank, range(FAR))
                known = newest is not None and newest >= post.update
                if known or letter.incarnation < self._incarnations[post.rank]:
                    continue
                if any(
                    x.size not in (0, target.numel())  # 0: it travels another way
                    for target, x in zip(boxes.messages[post.rank][0], post[3:], strict=True)
                ):
                    raise ValueError(f"a message of learner {post.rank} fits no mailbox")
                with boxes.posting(post.rank, post.update, notes=post.notes) as slot:
                    for target, x in zip(boxes.messages[post.rank][slot], post[3:], strict=True):
                        target.numpy()[: x.size] = x
            fence()
            for rank, words in zip(letter.ranks, letter.headers, strict=True):
                sender, number = self._last[rank]
                overtaken = letter.sender == sender and letter.number < number
                if letter.incarnation >= self._incarnations[rank] and not overtaken:
                    self._last[rank] = letter.sender, letter.number
                    _write(boxes.headers[rank], words)

    def leave(self, ranks: Iterable[int], incarnation: int) -> None:
        """Record that learners are gone; only letters of an incarnation from this on can bring them back."""
        with self._lock:
            for rank in ranks:
                self._incarnations[rank] = max(self._incarnations[rank], incarnation)
                self._boxes.headers[rank][AWAITS] = 0
                self._boxes.mark_left(rank)


def _stable(header: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copy a header as it was at one moment, but for signs of life."""
    words = header.copy()
    for _ in range(_LOOKS):
        fence()
        again = header.copy()
        if not _differ(words, again, life=False):
            break
        words = again
    words[POSTS] = 0
    return words


def _differ(one: NDArray[np.int64], other: NDArray[np.int64], *, life: bool) -> bool:
    changed = one != other
    # How many messages there are is every copy's own.
    changed[POSTS] = False
    changed[BEATS] &= life
    return bool(changed.any())


def _write(header: NDArray[np.int64], words: NDArray[np.int64]) -> None:
    """Write the words of a header in the order in which their writers do."""
    header[_UPDATES] = np.where(header[_UPDATES] == words[_UPDATES], words[_UPDATES], 0)
    fence()
    header[_PLAIN] = words[_PLAIN]
    fence()
    header[_UPDATES] = words[_UPDATES]
    header[KNOWS] = words[KNOWS]
    fence()
    header[LEFT] = words[LEFT]
