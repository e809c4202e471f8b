"""Who is answered: pages of this server, under its own names, and acts only of a page that it has served itself."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from gossamer.dashboard.addresses import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "x-gossamer-token"  # noqa: S105 - the name of a header
HEADERS = {
    # Plotly writes styles into the page.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Middleware that refuses what does not come from a page of this server.

    A page of another site can send requests here, and by a name that it lets point here (DNS rebinding) even read the
    answers. So the name in Host must be this machine's, and acts need a token that only this server's page knows and an
    Origin that is this server.

    Args:
        app: what is guarded.
        host: address that the server listens on.
        token: that this server's page knows.
    """

    def __init__(self, app: ASGIApp, host: str, token: str):
        self._app, self._token = app, token.encode()
        self._names = {"localhost", host.lower()}
        self._any_address = not is_loopback(host)
        if self._any_address:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with one line."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        mistake = self._mistake(scope, headers)
        answer: ASGIApp = self._app
        if mistake:
            answer = JSONResponse({"error": mistake}, 403)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await answer(scope, receive, send_guarded)

    def _mistake(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        name = _name_of(host)
        if name not in self._names and not self._is_address(name):
            return "this server does not go by that name; use the address that it has printed"
        if scope["method"] in ("GET", "HEAD"):
            return ""
        if headers.get("origin") != f"{scope['scheme']}://{host}":
            return "only a page of this server may act"
        # How long the comparison takes tells nothing.
        if not hmac.compare_digest(headers.get(TOKEN, "").encode(), self._token):
            return "The server restarted. Reload to act"
        return ""

    def _is_address(self, name: str) -> bool:
        """Whether a name is an address, which no site can let point elsewhere, and this server may have it."""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
