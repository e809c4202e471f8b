"""How often the page asks for what is costly to answer, in a real browser with the real server: Compare and Sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from made_sweeps import add_trial, make_sweep, working
from scored_runs import make_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytest.importorskip("starlette", reason="needs the extra dashboard")
from playwright.sync_api import expect

pytestmark = pytest.mark.own_page
RUNS = [f"CartPole-v1/s{seed}" for seed in (1, 2, 3)]
ANSWER_MS = 2_000
# Every answer that is counted takes a while; a tab is hidden by setting `away`.
WATCHED = f"""
    window.asked = [];
    window.away = false;
    Object.defineProperty(document, "hidden", {{ get: () => window.away }});
    const ask = window.fetch;
    window.fetch = async (address, options) => {{
        const path = String(address).split("?")[0];
        window.asked.push(path);
        const answer = await ask(address, options);
        if (["api/compare", "api/sweep"].includes(path)) await new Promise((done) => setTimeout(done, {ANSWER_MS}));
        return answer;
    }};
"""
NEW_ROWS = """async () => {
    const { store } = await import("/static/store.js");
    store.dispatchEvent(new CustomEvent("rows", { detail: { run: null } }));
}"""
HIDE = """(away) => {
    window.away = away;
    document.dispatchEvent(new Event("visibilitychange"));
}"""
VIEWS = {
    "compare": (f"#/compare?runs={','.join(map(quote, RUNS))}", ".comparison"),
    "sweep": ("#/sweep", "tr[data-trial]"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, run in enumerate(RUNS, start=1):
        make_run(tmp_path, run, seed=seed, evaluation=10.0 * seed)
    add_trial(make_sweep(tmp_path), 0, [20.0])
    return tmp_path


def visit(page: Page, view: str) -> None:
    """Open a view in a page whose clock a test moves on, and wait until it is drawn."""
    address, drawn = VIEWS[view]
    page.clock.install()
    page.add_init_script(WATCHED)
    page.goto(f"/{address}")
    page.locator(drawn).first.wait_for()
    page.locator("#connection[data-state=live]").wait_for()


def asked(page: Page, path: str) -> int:
    return page.evaluate("(path) => window.asked.filter((each) => each === path).length", path)


def until_asked(page: Page, path: str, times: int) -> None:
    for _ in range(400):
        if asked(page, path) >= times:
            break
        page.wait_for_timeout(50)
    assert asked(page, path) == times


@pytest.mark.parametrize("view", VIEWS)
def test_what_takes_long_to_answer_is_asked_seldom(live: Page, root: Path, view: str) -> None:
    visit(live, view)
    assert asked(live, f"api/{view}") == 1
    live.evaluate(NEW_ROWS)
    # At 3 % of a core two seconds of work are followed by more than a minute without.
    live.clock.fast_forward(40_000)
    live.evaluate(NEW_ROWS)
    assert asked(live, f"api/{view}") == 1
    live.clock.fast_forward(3_600_000)
    until_asked(live, f"api/{view}", 2)
    if view == "sweep":
        assert asked(live, "api/sweeps") == 1
        make_sweep(root, "sweeps/widths")
        live.locator('[data-menu="sweep"] summary').click()
        expect(live.locator('[data-menu="sweep"] .check')).to_have_count(2)
        assert asked(live, "api/sweeps") == 2, "at first and when the menu opens"
        live.locator('[data-menu="sweep"]').get_by_label("widths").click()
        expect(live.locator("h1 summary")).to_have_text("widths")


@pytest.mark.parametrize("view", VIEWS)
def test_a_hidden_tab_asks_nothing(live: Page, root: Path, view: str) -> None:
    with working(root / "sweeps/rates"):  # the page looks at a live sweep now and then
        visit(live, view)
        live.evaluate(HIDE, True)
        live.evaluate(NEW_ROWS)
        live.clock.fast_forward(3_600_000)
        live.evaluate(NEW_ROWS)
        live.clock.fast_forward(3_600_000)
        assert asked(live, f"api/{view}") == 1
        live.evaluate(HIDE, False)
        live.clock.fast_forward(1_000)
        until_asked(live, f"api/{view}", 2)


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        ("new TypeError('the connection was lost')", 2),
        ('new Response(\'{"error": "no"}\', { status: 409 })', 1),
    ],
)
def test_what_was_not_answered_is_asked_for_again_soon(page: Page, answer: str, times: int) -> None:
    """As after a tunnel that has hung for minutes before it broke; a server that refuses has worked meanwhile."""
    page.goto("/#/runs")
    asked = page.evaluate(
        f"""async () => {{
            const answer = {answer};"""
        """
            const { Asking } = await import("/static/asking.js");
            let [at, asked] = [0, 0];
            performance.now = () => at;
            window.fetch = async () => {
                asked += 1;
                at += 120_000;
                if (answer instanceof Error) throw answer;
                return answer;
            };
            const asking = new Asking(1, (ask) => ask("api/compare").catch(() => {}));
            await asking.now();
            asking.soon();
            await new Promise((done) => setTimeout(done, 200));
            asking.stop();
            return asked;
        }"""
    )
    assert asked == times
