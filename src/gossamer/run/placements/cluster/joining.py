"""Whether a Ray cluster answers, and whether it asks for a token, before Ray itself tries to join it for minutes; and whether it still does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, cast

from ray._private import services
from ray._private.authentication import authentication_token_setup

CONNECT_SECONDS = 5.0
"""Longest time for a machine to take a connection."""
ANSWER_SECONDS = 20.0
"""Longest time for a cluster to answer, and for the process that asks it to start."""
LOOK_SECONDS = 3.0
"""Pause between two looks at whether a cluster's head is still there."""
_ASK = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).check_alive([], timeout=5)
except AuthenticationError:
    sys.exit(3)
"""
_ASKS_FOR_TOKEN = 3


class HeadWatch:
    """Looks, in a thread, whether the head of a cluster takes connections: a minute after it does not, Ray ends this process.

    Args:
        address: of the head, host:port.
    """

    def __init__(self, address: str):
        self.address = address
        self.silent_seconds = 0.0
        """How long it has taken none."""
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(LOOK_SECONDS):
            try:
                _connect(self.address)
                silent = 0.0
            except ConnectionError:
                # While this process was suspended, nobody looked.
                passed = min(time.monotonic() - before, LOOK_SECONDS + CONNECT_SECONDS)
                silent = self.silent_seconds + passed
            self.silent_seconds, before = silent, time.monotonic()


def cluster_of_this_machine() -> str:
    """Return the address of the Ray cluster that this machine belongs to by `ray start`; empty: it is in none."""
    with suppress(ConnectionError, ValueError):
        # Not "auto", by which Ray finds those as well that another program has started, and will end, for itself.
        address = services.canonicalize_bootstrap_address(cast("Any", None)) or ""
        _connect(address)  # Ray remembers clusters that were killed
        return address
    return ""


def show_token_if_asked(address: str) -> None:
    """Show this user's token to a cluster that asks for one: `ray.init` never does unasked, and others do not take one.

    Raises:
        ConnectionError: no Ray cluster answers at this address.
        ValueError: it is no address of a cluster.
    """
    _connect(address)
    if not _asks_for_token(address):
        return
    if os.environ.get(authentication_token_setup.AUTH_MODE_ENV_VAR):
        raise ConnectionError("it asks for a token, and takes none that this machine has")
    logger = authentication_token_setup.logger
    before, logger.disabled = logger.disabled, True
    shown = authentication_token_setup.maybe_enable_token_auth_if_token_available(
        warn_if_disabled=False
    )
    logger.disabled = before
    where = "in ~/.ray/auth_token or RAY_AUTH_TOKEN"
    if not shown:
        raise ConnectionError(f"it asks for a token, and there is none {where}")
    if _asks_for_token(address):  # Ray itself would try for twenty seconds, with a warning for each
        raise ConnectionError(
            f"it asks for a token, and the one {where} is not its own: copy ~/.ray/auth_token from its head"
        )


def _asks_for_token(address: str) -> bool:
    """Return whether a cluster does not answer without another token than this process shows."""
    # In a process of its own: Ray's client has no limit of time, and remembers what it was told of tokens.
    try:
        asks = subprocess.run(
            [sys.executable, "-c", _ASK, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConnectionError("what listens there does not answer as a Ray cluster does") from None
    if asks.returncode not in (0, _ASKS_FOR_TOKEN):
        last = [x for x in asks.stderr.splitlines() if x.strip()][-1:]
        raise ConnectionError(*last)
    return asks.returncode == _ASKS_FOR_TOKEN


def _connect(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        raise ValueError("it must be the host:port of the cluster's head")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{host} takes no connection at port {port}: {error}") from None
