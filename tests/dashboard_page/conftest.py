"""What tests of the page share: a browser, the made-up server, and a page of which every complaint is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # tests are not packages; the made-up server lies beside them

from fake_watch import FakeServer, FakeWatch, usual_runs
from pages import Pages, served
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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    # Other tests, and other programs, may have the cores.
    playwright.expect.set_options(timeout=1000 * PATIENCE_SECONDS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(browser: Browser) -> Pages:
    return Pages(browser)


@pytest.fixture
def watch() -> FakeWatch:
    return FakeWatch(usual_runs())


@pytest.fixture(scope="session")
def one_server() -> Iterator[FakeServer]:
    """The made-up server at one address, which answers for one test after the other."""
    server = FakeServer(FakeWatch([]))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(one_server: FakeServer, watch: FakeWatch) -> FakeServer:
    one_server.show(watch)
    return one_server


@pytest.fixture
def page(pages: Pages, server: FakeServer, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that complains of nothing and asks nobody but its server; where it does, the test fails."""

    def allowed(said: ConsoleMessage) -> bool:
        # A server that went away makes the browser itself write a line.
        gone = ("ERR_CONNECTION_REFUSED", "503", "ERR_INCOMPLETE_CHUNKED_ENCODING")
        return server.watch.was_down and any(word in said.text for word in gone)

    with pages.opened(
        server.address,
        own=request.node.get_closest_marker("own_page") is not None,
        allowed=allowed,
        asks_others=lambda url: not url.startswith((server.address, "data:", "blob:", "about:")),
    ) as page:
        yield page


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """Of the real server, which watches the folder that a test file's own `root` returns."""
    with served(root) as address:
        yield address


@pytest.fixture
def live(pages: Pages, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that complains of nothing and asks nobody but the server.

    That the server refuses an act, or that a run is gone that was there a moment ago, the browser itself says.
    """

    def allowed(said: ConsoleMessage) -> bool:
        refused = "status of 409" in said.text
        return refused or ("status of 404" in said.text and "run=" in said.location["url"])

    with pages.opened(
        address,
        own=request.node.get_closest_marker("own_page") is not None,
        allowed=allowed,
        asks_others=lambda url: not url.startswith((address, "data:", "blob:", "about:")),
    ) as page:
        yield page
