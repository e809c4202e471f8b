"""`gossamer watch`: finds a port, serves the dashboard there, says where, and opens a browser where there is one."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

from gossamer.dashboard.addresses import is_loopback
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import MissingExtra, lower_priority
from gossamer.record.runs import find_runs
from gossamer.system.reading import expand, visible

if TYPE_CHECKING:
    import uvicorn

    from gossamer.dashboard.events import Events

PORT = 8765
PORTS_TRIED = 100
"""After the one asked for."""
MAX_REQUEST_BYTES = 256 << 10
"""Of a request's line and headers: a chart names every run that it shows."""
ALONE_SECONDS = 60.0
"""After the end of the run that it was started with, the server stays for so long if a page was open: it may come back."""
LOOK_SECONDS = 0.2
NEEDED = ("starlette", "uvicorn", "plotly")


def refuse_missing() -> None:
    """Refuse to watch without the packages of the extra."""
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise MissingExtra("gossamer watch needs starlette, uvicorn and plotly", "dashboard")


def watch(
    folder: str = "runs",
    *,
    port: int = PORT,
    host: str = "127.0.0.1",
    browser: bool = True,
    beside: int | None = None,
) -> None:
    """Serve the dashboard of a folder of runs until Ctrl-C.

    Args:
        folder: of runs, or one run's. The default need not be there yet.
        port: to listen on, or the next free one; 0: any.
        host: address to listen on.
        browser: open one, where there is one.
        beside: process of a run that this was started with; it ends with that, once nobody looks.

    Raises:
        ConfigError: the folder does not exist, the address is none of this machine, or no port is free.
    """
    refuse_missing()
    path = expand(folder)
    if not path.is_dir() and folder != "runs" and beside is None:
        raise ConfigError(f"folder {folder} does not exist; name one that holds runs")
    listening = _listen(host, port)
    from gossamer.dashboard.app import Dashboard

    dashboard = Dashboard(path, host)
    found = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{found}/"
    if port and found != port:
        _say(f"port {port} is taken; {found} is free")
    if not is_loopback(host):
        _say(
            f"whoever can reach {host} can see these runs, stop and delete them; 127.0.0.1 is this machine alone"
        )
    if beside is None and not find_runs(path):
        _say(
            f"no runs in {path.absolute()} yet; they show up once there are some: gossamer train CartPole-v1"
        )
    print(
        f"watching {visible(str(path))} at {address}" + " (Ctrl-C ends this)" * (beside is None),
        flush=True,
    )
    if browser and beside is None and has_browser():
        # It may wait for the server, or for the browser to end.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    _serve(dashboard.app, dashboard.events, listening, beside)


def has_browser() -> bool:
    """Whether a browser would open on a screen of whoever types here."""
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    with suppress(webbrowser.Error):
        webbrowser.get()
        return True
    return False


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port, or on the next free one."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
    except (OSError, UnicodeError):
        raise ConfigError(
            f"--host {host} is no address; use 127.0.0.1, or one of this machine"
        ) from None
    for tried in range(port, min(port + PORTS_TRIED, 65535) + 1) if port else (0,):
        made = socket.socket(family, kind, protocol)
        try:
            # Else a port is taken for a minute after its last server. Two cannot listen on one all the same.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((place[0], tried, *place[2:]))
            made.listen(100)
        except OSError as error:
            made.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ConfigError(
                    f"--host {host} cannot be listened on: {error.strerror}; use 127.0.0.1, or an address of this machine"
                ) from None
        else:
            return made
    raise ConfigError(
        f"no port from {port} to {min(port + PORTS_TRIED, 65535)} is free; name another: --port 0 takes any"
    )


def _serve(app: object, events: Events, listening: socket.socket, beside: int | None) -> None:
    import uvicorn

    lower_priority()  # training goes first
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        http="h11",
        h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
        ws="none",
        loop="asyncio",
    )
    try:
        asyncio.run(_run(uvicorn.Server(config), events, listening, beside))
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise RunFailed(f"the server ended: {error}") from error


async def _run(
    server: uvicorn.Server, events: Events, listening: socket.socket, beside: int | None
) -> None:
    minding = asyncio.create_task(_mind(server, events, beside))
    try:
        await server.serve(sockets=[listening])
    finally:
        minding.cancel()


async def _mind(server: uvicorn.Server, events: Events, beside: int | None) -> None:
    """End the server once nobody needs it, and let pages go as soon as it ends: they would hold it up."""
    while not server.should_exit:
        await asyncio.sleep(LOOK_SECONDS)
        # Whoever has lost its parent is another's child from then on.
        alone = beside is not None and os.getppid() != beside
        if alone and events.unwatched_seconds >= ALONE_SECONDS * events.was_watched:
            server.should_exit = True
    events.close()


def _say(text: str) -> None:
    print(f"gossamer: {text}", file=sys.stderr, flush=True)
