"""Letters between agents, each over a TCP connection of its own.

Ray carries orders and news. Letters are most of what travels: on their way through Ray's object store they would be copied
four times more.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from gossamer.links.mirror import Letter
from gossamer.links.wire import LIFE_SECONDS as SILENCE_SECONDS
from gossamer.links.wire import Address, Listener, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.links.mirror import Outgoing

PACED_SECONDS = 2e-2
"""Pause between two looks at what learners have written; where others may wait for it, they say that there is something."""
LIFE_SECONDS = 0.5
"""Pause between two letters that say no more than that a learner lives."""
MAIL_SHARE = 0.02
"""Share of a thread's time that letters to one machine may take, where nobody waits for them: twelve updates in a
burst are one letter, the newest."""
MAX_PAUSE_SECONDS = 2.0
"""Longest pause for that share: nothing is said meanwhile, and a link that stalls must not make a learner seem dead."""
LOST_SECONDS = 0.5
"""Pause between two attempts to reach a machine."""
TOLD_SECONDS = 30.0
"""Time without reaching a machine after which it is told: of one that is dead the supervisor knows before."""


class Letterbox:
    """Takes the letters of other agents, each in a thread of its own.

    Args:
        host: address of this machine.
        deliver: takes a letter, whose arrays are the next one's afterwards.
    """

    def __init__(self, host: str, deliver: Callable[[Letter], None]):
        listener = Listener(host)
        self.address = listener.address
        self._deliver = deliver
        self._closed = threading.Event()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        """Take no more callers."""
        self._closed.set()

    def _accept(self, listener: Listener) -> None:
        for wire in listener.callers(lambda: not self._closed.is_set()):
            threading.Thread(target=self._take, args=(wire,), daemon=True).start()

    def _take(self, wire: Wire) -> None:
        bad = (OSError, ValueError, KeyError, TypeError, IndexError)
        with closing(wire), suppress(*bad):  # whoever has written calls again
            while not self._closed.is_set():
                self._deliver(wire.receive(Letter))


class Correspondent:
    """Another agent, to which a thread writes what is new until it is closed.

    Args:
        address: of its letterbox.
        mail: what it is to know.
        paced: letters may take `MAIL_SHARE` of the time only, in pauses of at most `MAX_PAUSE_SECONDS`.
        say: told once of every time that it cannot be reached for long, and when it can be again.
    """

    def __init__(
        self,
        address: Address,
        mail: Outgoing,
        *,
        paced: bool,
        say: Callable[[str], None] = lambda _: None,
    ):
        self._address, self._mail, self._paced, self._say = address, mail, paced, say
        self._closed, self._looks = threading.Event(), threading.Event()
        self._wire: Wire | None = None
        self.sent_bytes = 0
        """Bytes of the messages sent so far; headers, which are small, do not count."""
        threading.Thread(target=self._write, daemon=True).start()

    def look(self) -> None:
        """Write at once, if there is something."""
        self._looks.set()

    def close(self) -> None:
        """Write no more."""
        self._closed.set()
        self._looks.set()
        if (wire := self._wire) is not None:
            wire.close()

    def _write(self) -> None:
        wrote, told = time.monotonic(), False
        while not self._closed.is_set():
            self._looks.wait(PACED_SECONDS)
            self._looks.clear()
            try:
                if self._wire is None:
                    self._wire = Wire.call(self._address)
                began = time.monotonic()
                letter = self._mail.letter(life=began - wrote >= LIFE_SECONDS)
                if letter is None and began - wrote >= SILENCE_SECONDS:
                    letter = Letter(0)  # shows whether the connection is still there
                if letter is None:
                    continue
                self._wire.send(letter)
            except OSError as error:
                # Whether it is dead the supervisor finds out; if not, it may have missed anything.
                if self._wire is not None:
                    self._wire.close()
                self._wire = None
                self._mail.forget()
                silent = time.monotonic() - wrote
                if silent >= TOLD_SECONDS and not told and not self._closed.is_set():
                    told = True
                    self._say(
                        f"letters to {self._address.host} do not arrive at port {self._address.port} for {silent:.0f} s "
                        f"({error}): learners there wait, or mix with what they have; all machines must reach each other "
                        "on every port, which gossamer cluster check tries"
                    )
                self._closed.wait(LOST_SECONDS)
                continue
            self.sent_bytes += letter.nbytes
            wrote = time.monotonic()
            if told:
                told = False
                self._say(f"letters to {self._address.host} arrive again")
            if self._paced and letter.posts:
                self._closed.wait(min((wrote - began) / MAIL_SHARE, MAX_PAUSE_SECONDS))
        if self._wire is not None:
            self._wire.close()
