"""Pages of a browser and servers for them, kept from test to test or begun quickly, as each test takes a second of a core else."""

from __future__ import annotations

import functools
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from programs import Program
from waiting import PATIENCE_SECONDS, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

SIZE = {"width": 1440, "height": 900}
PARKED = "#/replay?run=none"
"""The view of a page that no test has: of a run that is not there, it asks for nothing and moves nothing."""
PARK = f"""async () => {{
    localStorage.clear();
    document.documentElement.dataset.theme = "light";
    for (const open of document.querySelectorAll("dialog")) open.close();
    for (const open of document.querySelectorAll("details[open]")) open.open = false;
    document.querySelector("#said").replaceChildren();
    document.activeElement.blur();
    const {{ store }} = await import("/static/store.js");
    store.select([...store.selected], false);
    location.hash = "{PARKED}";
}}"""
SERVED = Counter[str]()
"""How many servers have had an address, one after the other."""
READ_ANEW = """async () => {
    const [{ store }, { forgetMetrics }] = await Promise.all([import("/static/store.js"), import("/static/api.js")]);
    forgetMetrics(null);
    await store.load();
}"""


class Pages:
    """Pages that tests have one after the other.

    A renderer that has read Plotly's four megabytes from an address once begins with them the next time.

    Args:
        browser: of this process.
    """

    def __init__(self, browser: Browser):
        self._browser = browser
        self._kept: dict[tuple[str, str], tuple[Page, int]] = {}

    @contextmanager
    def opened(
        self,
        address: str,
        *,
        script: str = "",
        own: bool = False,
        allowed: Callable[[ConsoleMessage], bool] = lambda _: False,
        asks_others: Callable[[str], bool] = lambda _: False,
    ) -> Generator[Page]:
        """Context with an empty page that complains of nothing but what is allowed.

        Args:
            address: of its server.
            script: that it runs ahead of every document.
            own: it is not kept: a test changes what stays with a page, as its clock or its scripts.
            allowed: whether a line of its console is.
            asks_others: whether an address that it asks is none that it may ask.
        """
        page, of_server = (None, 0) if own else self._kept.pop((address, script), (None, 0))
        if page is None:
            context = self._browser.new_context(
                viewport=SIZE, color_scheme="light", reduced_motion="reduce", base_url=address
            )
            page = context.new_page()
            page.set_default_timeout(1000 * PATIENCE_SECONDS)
            if script:
                page.add_init_script(script)
        elif page.url.endswith(PARKED) and of_server != SERVED[address]:
            page.reload()
        complaints: list[str] = []

        def hear(said: ConsoleMessage) -> None:
            if said.type in ("error", "warning") and not allowed(said):
                complaints.append(said.text)

        listeners = {
            "console": hear,
            "pageerror": lambda error: complaints.append(str(error)),
            "request": lambda x: complaints.append(x.url) if asks_others(x.url) else None,
        }
        for event, listener in listeners.items():
            page.on(event, listener)  # pyright: ignore
        try:
            yield page
        except BaseException:
            page.context.close()
            raise
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        if own:
            page.context.close()
        else:
            self._empty(page)
            self._kept[address, script] = page, SERVED[address]
        assert complaints == [], complaints

    def _empty(self, page: Page) -> None:
        """Bring a page back to what a new one is, but for the modules that it has loaded."""
        page.unroute_all()
        try:
            page.evaluate(PARK)
            page.locator("main[data-view=replay]").wait_for()
        except Exception:  # it shows no document of the server
            page.goto("about:blank")
        page.set_viewport_size(SIZE)
        page.emulate_media(color_scheme="light")
        page.mouse.move(0, 0)


def visit(page: Page, view: str = "") -> None:
    """Show a view of the server's page, and wait until its document listens to the server.

    Only the first view of a test is a new document, and only where none was kept; `page.goto("about:blank")` ahead of
    it makes sure that it is.
    """
    if page.url.endswith(PARKED):
        page.evaluate(READ_ANEW)
    # Not until all is loaded: a test may hold a script back.
    page.goto(f"/{view or '#/runs'}", wait_until="domcontentloaded")
    shown = view.partition("?")[0].removeprefix("#/") or "runs"
    page.locator(f"main[data-view={shown}]").wait_for()
    page.locator("#connection[data-state=live]").wait_for()


@functools.cache
def port() -> int:
    """Return the port of this process's servers, so that one after the other has the same address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def served(root: Path) -> Generator[str]:
    """Context with the address of the real server of a folder: at the port of this process, or the next one that is free."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch()
        err.touch()
        words = ["watch", str(root.absolute()), "--no-browser", "--port", str(port())]
        child = Program(words, root, dict(os.environ), out, err)
        try:
            wait_for(lambda: re.search(r"http://\S+", out.read_text()), "the server's address")
            address = re.findall(r"http://\S+", out.read_text())[0].rstrip("/")
            SERVED[address] += 1
            yield address
        finally:
            child.kill()
            child.wait()
