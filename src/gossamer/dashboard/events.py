"""What has changed, pushed to every open page as server-sent events; nobody looks at the disk while no page is open."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gossamer.dashboard.listing import Changes, Listing

LOOK_SECONDS = 0.4
"""Shortest time between two looks."""
MAX_LOOK_SECONDS = 10.0
SHARE_OF_TIME = 0.03
"""Of a core that looking may take: with thousands of runs it comes less often."""
ALIVE_SECONDS = 15.0
"""Another event is sent after so long without one: no proxy hangs up, and a page knows that it is still heard."""
MAX_WAITING = 1000
"""Events that a page may be behind; one that does not read any more is dropped."""


class Events:
    """Tells pages what happens to runs.

    Args:
        listing: all runs.
    """

    def __init__(self, listing: Listing):
        self._listing = listing
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left_at = time.monotonic()
        self._closing = False
        self.was_watched = False
        """Whether a page was ever open."""
        listing.on_change = self._on_change

    @property
    def unwatched_seconds(self) -> float:
        """Seconds since the last page was closed, or since the start; 0 while one is open."""
        return 0.0 if self._pages else time.monotonic() - self._left_at

    def close(self) -> None:
        """Let all pages go, for the server ends."""
        self._closing = True
        for queue in self._pages:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    def rows_read(self, run: str) -> None:
        """Tell that there is more of a run to be had than before; from any thread."""
        self._in_loop(self._send, "rows", {"run": run, "rows": {}})

    def _on_change(self, changes: Changes) -> None:
        self._in_loop(self._tell, changes)

    def _in_loop(self, do: Callable[..., object], *told: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(do, *told)

    async def stream(self, gone: Callable[[], Any]) -> AsyncGenerator[bytes]:
        """Yield the events of one page until it goes.

        Args:
            gone: awaited now and then; returns whether the page has gone.
        """
        self._loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._pages.add(queue)
        self.was_watched = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        quiet = 0.0
        try:
            yield f"retry: 1000\nevent: version\ndata: {self._listing.version}\n\n".encode()
            while not self._closing and not await gone():
                try:
                    event = await asyncio.wait_for(queue.get(), 1.0)
                except TimeoutError:
                    quiet += 1.0
                    if quiet >= ALIVE_SECONDS:
                        quiet = 0.0
                        yield b"event: alive\ndata: 1\n\n"
                    continue
                if event is None:
                    return
                quiet = 0.0
                yield event
        finally:
            self._pages.discard(queue)
            self._left_at = time.monotonic()

    async def _look(self) -> None:
        """Look at the disk as long as there is a page."""
        while self._pages:
            began = time.monotonic()
            spent = await asyncio.to_thread(self._look_once)
            pause = min(max(spent / SHARE_OF_TIME, LOOK_SECONDS), MAX_LOOK_SECONDS)
            await asyncio.sleep(max(began + pause - time.monotonic(), 0.05))

    def _look_once(self) -> float:
        began = time.thread_time()
        self._listing.look()
        return time.thread_time() - began

    def _tell(self, changes: Changes) -> None:
        if changes.runs or changes.gone:
            told = {"version": changes.version, "runs": changes.runs, "gone": changes.gone}
            self._send("runs", told)
        for run, sizes in changes.rows.items():
            self._send("rows", {"run": run, "rows": sizes})

    def _send(self, name: str, told: dict[str, Any]) -> None:
        event = f"event: {name}\ndata: ".encode() + msgspec.json.encode(told) + b"\n\n"
        for queue in self._pages:
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:  # it comes back and asks for everything
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
