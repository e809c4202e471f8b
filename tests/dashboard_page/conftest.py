"""What tests of the page share: a browser, the made-up server, and a page of which every complaint is kept."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # tests are not packages; the made-up server lies beside them

from fake_watch import FakeServer, FakeWatch, usual_runs
from waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


PATIENCE_MS = 1000 * PATIENCE_SECONDS
"""Other tests, and other programs, may have the cores."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def watch() -> FakeWatch:
    return FakeWatch(usual_runs())


@pytest.fixture
def server(watch: FakeWatch) -> Iterator[FakeServer]:
    server = FakeServer(watch)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Browser, server: FakeServer) -> Iterator[Page]:
    """A page that complains of nothing and asks nobody but its server; where it does, the test fails."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="light", base_url=server.address
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    page.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            None
            if asked.url.startswith((server.address, "data:", "blob:"))
            else complaints.append(f"leaves the machine: {asked.url}")
        ),
    )
    yield page
    context.close()
    # A server that went away makes the browser itself write a line.
    allowed = (
        ("ERR_CONNECTION_REFUSED", "503", "ERR_INCOMPLETE_CHUNKED_ENCODING")
        if watch_was_down(server)
        else ()
    )
    assert [said for said in complaints if not any(word in said for word in allowed)] == []


def watch_was_down(server: FakeServer) -> bool:
    return server.watch.was_down


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """Of the real server, which watches the folder that a test file's own `root` returns."""
    command = [sys.executable, "-m", "gossamer", "watch", str(root), "--no-browser", "--port", "0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout
    found = re.search(r"http://\S+", child.stdout.readline())
    assert found
    yield found[0].rstrip("/")
    child.kill()
    child.wait()
    child.stdout.close()


@pytest.fixture
def live(browser: Browser, address: str) -> Iterator[Page]:
    """A page that complains of nothing and asks nobody but the server.

    That the server refuses an act, or that a run is gone that was there a moment ago, the browser itself says.
    """
    context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=address)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []

    def hear(said: ConsoleMessage) -> None:
        refused = "status of 409" in said.text
        gone = "status of 404" in said.text and "run=" in said.location["url"]
        if said.type in ("error", "warning") and not (refused or gone):
            complaints.append(said.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda x: None if x.url.startswith((address, "data:", "blob:")) else complaints.append(x.url))  # fmt: skip
    yield page
    context.close()
    assert complaints == []
