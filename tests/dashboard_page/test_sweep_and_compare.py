"""The views Compare and Sweep in a real browser with the real server, over folders that are prepared."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from made_sweeps import add_trial, chosen_of, make_sweep, working
from pages import Pages, served, visit
from scored_runs import evaluation_row, make_run

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytest.importorskip("starlette", reason="needs the extra dashboard")
from playwright.sync_api import expect

RATES = ("0.001", "0.01")
SCORES = ([10.0, 20, 30], [100.0, 110, 120])
SIZES = ((1440, 900), (1024, 768), (390, 844))


@contextmanager
def opened(pages: Pages, address: str, allowed: str = "no complaint") -> Generator[Page]:
    """Context with a page that complains of nothing but what is allowed."""
    # By the page's clock no answer takes any time: none is followed by a long pause, however busy the machine.
    script = "performance.now = () => 0"
    with pages.opened(address, script=script, allowed=lambda x: allowed in x.text) as page:
        yield page


def make_groups(root: Path) -> list[Path]:
    return [
        make_run(
            root,
            f"CartPole-v1/{rate}-s{seed}",
            ["--optimizer.learning-rate", rate],
            seed=seed,
            returns=(score / 2, score),
            evaluation=score,
        )
        for rate, scores in zip(RATES, SCORES, strict=True)
        for seed, score in enumerate(scores, start=1)
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs of two learning rates, and a sweep of eight trials of two seeds."""
    root = tmp_path_factory.mktemp("prepared")
    make_groups(root)
    sweep = make_sweep(root, trials=8, seeds=2)
    for i in range(8):
        add_trial(sweep, i, [10.0 * i, 10.0 * i + 4], chosen=chosen_of(i))
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with served(root) as address:
        yield address


@pytest.fixture
def page(pages: Pages, address: str) -> Iterator[Page]:
    with opened(pages, address) as page:
        yield page


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder in which each test makes its own, and the address of its server."""
    root = tmp_path_factory.mktemp("changing")
    with served(root) as address:
        yield root, address


@pytest.fixture
def folder(changing: tuple[Path, str], request: pytest.FixtureRequest) -> Path:
    made = changing[0] / request.node.name
    made.mkdir()
    return made


@pytest.fixture
def other(pages: Pages, changing: tuple[Path, str]) -> Iterator[Page]:
    """A page of the server of `folder`."""
    with opened(pages, changing[1]) as page:
        yield page


def compare(root: Path, more: str = "", view: str = "compare") -> str:
    """Return the address of the runs in a folder, which the server watches or that lies in the one it does."""
    above = root.parent if root.name.startswith("test") else root
    runs = sorted(str(x.parent.relative_to(above)) for x in root.rglob("CartPole-v1/*/config.json"))
    return f"#/{view}?runs={','.join(quote(x) for x in runs)}{more}"


def sweep_in(folder: Path, name: str = "rates") -> str:
    return f"#/sweep?sweep={folder.name}/sweeps/{name}"


def fits(page: Page) -> bool:
    """Whether nothing is wider than the page."""
    return page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


def cut(page: Page, what: str) -> list[Any]:
    """The parts of pictures that stand outside of them."""
    return page.evaluate(
        """(what) => [...document.querySelectorAll(what)].filter((part) => {
            const [a, b] = [part.getBoundingClientRect(), part.closest("svg").getBoundingClientRect()];
            return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
        }).map((part) => part.textContent)""",
        what,
    )


def scrolled(page: Page) -> list[Any]:
    """The tables of which a part is out of sight."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".table-frame")]
            .filter((frame) => frame.scrollWidth > frame.clientWidth).map((frame) => frame.textContent)"""
    )


def rows(page: Page) -> Locator:
    return page.locator("tr[data-trial]")


def numbers(page: Page) -> list[str]:
    return rows(page).evaluate_all("rows => rows.map(row => row.dataset.trial)")


def test_ticked_runs_are_compared_in_the_words_of_the_command(page: Page, root: Path) -> None:
    visit(page, "#/runs?search=cartpole+0.0")
    page.locator('tr[data-run^="CartPole-v1"]').first.wait_for()
    for box in page.locator('tr[data-run^="CartPole-v1"] input').all():
        box.check()
    page.locator(".selection").get_by_role("link", name="Compare").click()
    verdict = page.locator(".verdicts li").first
    expect(verdict.locator("b")).to_have_text("B is better than A")
    expect(verdict).to_contain_text("A - B: IQM -90 [")
    scores = page.get_by_role("region", name="CartPole-v1: scores")
    expect(scores.locator("tbody tr")).to_have_count(2)
    expect(scores.locator("tbody tr").first).to_contain_text("optimizer.learning_rate=0.001")
    expect(scores.locator("tbody tr").first).to_contain_text(re.compile(r"20 \[-?\d"))
    expect(scores.locator(".strip circle")).to_have_count(6)
    expect(scores.get_by_role("img").first).to_have_attribute("aria-label", "scores of seeds: 10.00, 20.00, 30.00")  # fmt: skip
    expect(page.locator(".comparison-head")).to_contain_text("6 runs in 2 groups")
    page.keyboard.press("1")
    page.locator(".selection").wait_for()
    page.keyboard.press("b")
    expect(page.locator(".verdicts b").first).to_have_text("B is better than A")
    scores.get_by_role("link", name="optimizer.learning_rate=0.01").click()
    expect(page).to_have_url(re.compile("#/curves.*0.01-s3"))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".comparison-head")).to_contain_text("3 runs in 1 group")


def test_how_runs_are_compared_is_chosen_and_stands_in_the_address(page: Page, root: Path) -> None:
    visit(page, compare(root))
    expect(page.locator(".comparison-head")).to_contain_text("last evaluation")
    page.get_by_role("combobox", name="Score").select_option("training")
    expect(page.locator(".comparison-head")).to_contain_text("last 100 training episodes")
    page.get_by_label("When is a return reached?").fill("50")
    expect(page.get_by_role("region", name=re.compile("to a mean return of 50"))).to_contain_text("3 of 3")  # fmt: skip
    page.get_by_role("button", name="Seconds").click()
    expect(page.get_by_role("region", name=re.compile("at seconds"))).to_be_visible()
    page.reload()
    expect(page.get_by_role("combobox", name="Score")).to_have_value("training")
    expect(page.get_by_label("When is a return reached?")).to_have_value("50")
    expect(page.get_by_role("region", name=re.compile("at seconds"))).to_be_visible()
    page.locator('[data-menu="by"] summary').click()
    page.locator('[data-menu="by"]').get_by_label("optimizer.learning_rate").check()
    expect(page).to_have_url(re.compile("by=optimizer.learning_rate"))
    expect(page.locator(".comparison-head")).to_contain_text("6 runs in 2 groups")


def test_what_cannot_be_compared_is_one_line(pages: Pages, address: str, root: Path) -> None:
    with opened(pages, address, allowed="409") as page:
        visit(page, compare(root, "&by=no_such"))
        expect(page.locator(".nothing")).to_contain_text("--by no_such: no run has a setting of that name")  # fmt: skip
    with opened(pages, address) as page:
        visit(page, "#/compare")
        expect(page.locator(".nothing")).to_contain_text(
            "Tick runs in the table of runs and press b"
        )
        page.get_by_role("button", name=re.compile("all of CartPole-v1")).click()
        expect(page.locator(".comparison")).to_have_count(1)


def test_a_verdict_changes_while_runs_train(other: Page, folder: Path) -> None:
    runs = make_groups(folder)
    visit(other, compare(folder))
    expect(other.locator(".verdicts b").first).to_have_text("B is better than A")
    for run in runs[3:]:
        with (run / "evaluation.jsonl").open("a") as file:
            file.write(json.dumps(evaluation_row(-200.0 - int(run.name[-1]), 2_000)) + "\n")
    expect(other.locator(".verdicts b").first).to_have_text("A is better than B")


def test_a_sweep_is_a_table_and_pictures_that_lead_to_its_runs(page: Page) -> None:
    visit(page, "#/sweep")
    expect(rows(page)).to_have_count(8)
    assert numbers(page) == [str(x) for x in range(7, -1, -1)], "the best is at the top"
    expect(rows(page).first).to_contain_text(re.compile(r"best.*7.*72.*done.*relu"))
    expect(page.locator(".trial-told")).to_contain_text(
        "The best is trial 7: return 72; learning_rate"
    )
    expect(page.locator(".run-facts")).to_contain_text("8 of 8 trials done")
    expect(page.locator("[data-setting]")).to_have_count(4)
    expect(page.locator('[data-setting="policy.activation"] .trial-point')).to_have_count(8)
    expect(page.locator('[data-picture="parallel"] .trial-line')).to_have_count(8)
    expect(page.locator('[data-setting="optimizer.learning_rate"]')).to_contain_text("logarithmic")
    # Seven trials are half a decade apart, and so are their places.
    places = page.locator('[data-setting="optimizer.learning_rate"] .trial-point').evaluate_all(
        "points => points.map(point => Number(point.getAttribute('cx'))).sort((a, b) => a - b)"
    )
    steps = [b - a for a, b in itertools.pairwise(places)]
    assert max(steps) - min(steps) < 1
    page.locator('[data-setting="policy.activation"] [data-trial="3"] .trial-point').hover()
    expect(page.locator(".trial-told")).to_contain_text("Trial 3, done: return 32")
    expect(page.locator('tr[data-trial="3"]')).to_have_class("on")
    page.locator('[data-setting="policy.activation"] [data-trial="3"] .trial-point').click()
    expect(page).to_have_url(re.compile("#/run.*003/s1"))
    page.go_back()
    page.get_by_role("button", name="passes").click()
    expect(rows(page).first).to_have_attribute("data-trial", "7")
    page.get_by_role("button", name="passes").click()
    expect(rows(page).first).to_have_attribute("data-trial", "0")
    expect(page.locator('th[data-column="algorithm.passes"]')).to_have_attribute("aria-sort", "ascending")  # fmt: skip
    rows(page).first.get_by_role("link", name="2", exact=True).click()
    expect(page).to_have_url(re.compile("#/run.*000/s2"))


def test_another_address_of_the_same_sweep_is_shown(page: Page) -> None:
    visit(page, "#/sweep?sweep=sweeps/rates")
    expect(rows(page).first).to_have_attribute("data-trial", "7")
    page.evaluate("location.hash = '#/sweep?sweep=sweeps/rates&sort=trial'")
    expect(rows(page).first).to_have_attribute("data-trial", "0")
    page.go_back()
    expect(rows(page).first).to_have_attribute("data-trial", "7")


def test_trials_are_reached_by_keys(page: Page) -> None:
    visit(page, "#/runs")
    page.locator("tr[data-run]").first.wait_for()
    page.keyboard.press("4")
    expect(rows(page)).to_have_count(8)
    page.keyboard.press("j")
    expect(page.locator(".trial-told")).to_contain_text("Trial 7, done")
    page.keyboard.press("j")
    expect(page.locator(".trial-told")).to_contain_text("Trial 6, done")
    picture = page.locator('[data-picture="parallel"]')
    expect(picture).to_have_attribute(
        "aria-label", re.compile("Parallel coordinates of 8 trials over")
    )
    picture.focus()
    page.keyboard.press("ArrowRight")  # from the one that stands out to the next best
    expect(page.locator(".trial-told")).to_contain_text("Trial 5, done")
    expect(picture.locator('[data-trial="5"]')).to_have_class("trial on")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/run.*005/s1"))


def test_a_sweep_is_followed_while_it_runs(pages: Pages, tmp_path: Path) -> None:
    with served(tmp_path) as address, opened(pages, address) as page:
        visit(page, "#/sweep")
        expect(page.locator(".nothing")).to_contain_text("No sweep yet")
        expect(page.locator(".nothing pre")).to_have_text(
            "gossamer sweep examples/cartpole_sweep.toml"
        )
        sweep = make_sweep(tmp_path, trials=3)
        with working(sweep):
            (run,) = add_trial(sweep, 0, [20.0], done=False)
            with working(run):
                expect(rows(page)).to_contain_text(["running"])
                expect(page.locator(".trial-told")).to_contain_text("No trial is done yet")
            summary = {"exit_reason": "done: total_env_steps reached", "mean_return_last_100": 20.0}
            (run / "summary.json").write_text(json.dumps(summary))
            expect(rows(page)).to_contain_text(["done"])
            add_trial(sweep, 1, [30.0])
            expect(rows(page)).to_have_count(2)
            expect(page.locator(".trial-told")).to_contain_text("Best so far is trial 1")
            expect(page.locator(".run-facts")).to_contain_text("2 of 3 trials done")
        expect(page.locator(".run-facts")).to_contain_text("stopped")
        expect(page.locator(".trial-told")).to_contain_text("To go on with the sweep, type: gossamer sweep rates.toml")  # fmt: skip


def test_a_walk_through_trials_goes_on_when_a_live_sweep_is_drawn_anew(other: Page, folder: Path) -> None:  # fmt: skip
    sweep = make_sweep(folder, trials=5)
    make_sweep(folder, "sweeps/widths")
    for i in range(3):
        add_trial(sweep, i, [10.0 * i])
    with working(sweep):
        visit(other, sweep_in(folder))
        picture = other.locator('[data-picture="parallel"]')
        picture.focus()
        other.keyboard.press("ArrowRight")
        other.keyboard.press("ArrowRight")
        expect(other.locator(".trial-told")).to_contain_text("Trial 1, done")
        add_trial(sweep, 3, [5.0])
        expect(rows(other)).to_contain_text(["done"] * 4)
        expect(picture).to_be_focused()
        expect(other.locator(".trial-told")).to_contain_text("Trial 1, done")
        other.keyboard.press("ArrowRight")
        expect(other.locator(".trial-told")).to_contain_text("Trial 3, done")
        other.evaluate(f"location.hash = '{sweep_in(folder, 'widths')}'")
        expect(other.locator("h1 summary")).to_have_text("widths")


def test_a_sweep_that_is_deleted_while_one_looks_is_told(pages: Pages, changing: tuple[Path, str], folder: Path) -> None:  # fmt: skip
    sweep = make_sweep(folder)
    add_trial(sweep, 0, [20.0])
    make_sweep(folder, "sweeps/widths")
    with opened(pages, changing[1], allowed="404") as other:
        visit(other, sweep_in(folder))
        expect(rows(other)).to_have_count(1)
        shutil.rmtree(sweep)
        expect(other.locator(".nothing")).to_contain_text("There is no such sweep")
        other.get_by_role("link", name="Show").click()
        expect(other).not_to_have_url(re.compile("rates"))
        expect(other.locator("h1 summary")).to_be_visible()


def test_a_sweep_at_its_end_tells_how_to_try_failed_trials_again(other: Page, folder: Path) -> None:  # fmt: skip
    summary = {"exit_reason": "failed: the loss was not finite 100 times", "exit": {"kind": "failed", "cause": "the loss was not finite 100 times"}}  # fmt: skip
    for name, trials in (("ended", 3), ("left", 4)):
        sweep = make_sweep(folder, f"sweeps/{name}", trials=trials)
        *_, (run,) = [add_trial(sweep, i, [10.0 * i]) for i in range(3)]
        (run / "summary.json").write_text(json.dumps(summary))
    visit(other, sweep_in(folder, "ended"))
    expect(other.locator(".run-facts .state")).to_have_text("ended")
    expect(other.locator(".run-facts")).to_contain_text("1 failed")
    expect(other.locator(".trial-told")).to_contain_text("1 of 3 trials failed; to try it again, type: gossamer sweep ended.toml")  # fmt: skip
    visit(other, sweep_in(folder, "left"))
    expect(other.locator(".run-facts .state")).to_have_text("stopped")
    expect(other.locator(".trial-told")).to_contain_text("Best so far is trial 1")
    expect(other.locator(".trial-told")).to_contain_text("To go on with the sweep, type: gossamer sweep left.toml")  # fmt: skip


def test_runs_that_are_gone_are_told_and_the_others_shown(pages: Pages, changing: tuple[Path, str], folder: Path) -> None:  # fmt: skip
    runs = make_groups(folder)
    gone = [f"{folder.name}/CartPole-v1/{run.name}" for run in runs]
    views = {
        "compare": (compare(folder), ".comparison-head"),
        "curves": (compare(folder, "&metrics=return_mean_100", "curves"), ".groups"),
    }
    shutil.rmtree(runs[0])
    with opened(pages, changing[1], allowed="404") as other:
        for view, drawn in views.values():
            visit(other, view)
            expect(other.locator(".gone")).to_have_text(f"1 of these 6 runs is no longer there: {gone[0]}")  # fmt: skip
            expect(other.locator(drawn)).to_be_visible()
            expect(other.locator('[data-menu="runs"] summary')).to_have_text("Runs (5)")
        other.locator('[data-chart="return_mean_100"][data-drawn]').wait_for()
        expect(other.locator(".group-n")).to_have_text(["n\u00a0=\u00a02", "n\u00a0=\u00a03"])
        shutil.rmtree(runs[1])
        expect(other.locator(".gone")).to_have_text(f"2 of these 6 runs are no longer there: {gone[0]}, {gone[1]}")  # fmt: skip
        visit(other, views["compare"][0])
        expect(other.locator(".comparison-head")).to_contain_text("4 runs in 2 groups")
        assert quote(gone[0]) in other.url, "the address is kept as it was given"
        for view in ("compare", "curves"):
            visit(other, f"#/{view}?runs=CartPole-v1/nowhere,CartPole-v1/never")
            expect(other.locator(".gone")).to_have_text("2 of these 2 runs are no longer there: CartPole-v1/nowhere, CartPole-v1/never")  # fmt: skip
            expect(other.locator(".nothing")).to_contain_text("Which runs?")


def test_what_is_typed_last_does_not_bring_a_view_back_that_was_left(page: Page, root: Path) -> None:  # fmt: skip
    visit(page, compare(root))
    page.get_by_label("When is a return reached?").fill("77")
    page.locator("nav a[data-view=runs]").click()
    page.locator("tr[data-run]").first.wait_for()
    page.wait_for_timeout(700)
    assert "#/runs" in page.url


def test_names_from_files_are_text(other: Page, folder: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    sweep = make_sweep(folder, search={evil: ["<b>bold</b>", evil]})
    add_trial(sweep, 0, [1.0], chosen={evil: "<b>bold</b>"})
    add_trial(sweep, 1, [2.0], chosen={evil: evil})
    visit(other, sweep_in(folder))
    expect(rows(other)).to_have_count(2)
    expect(other.locator("main")).to_contain_text("<b>bold</b>")
    assert other.locator("main img, main table b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_nothing_is_cut_on_any_screen(page: Page, root: Path, size: tuple[int, int], scheme: Any) -> None:  # fmt: skip
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme)
    visit(page, compare(root))
    page.locator(".verdicts b").first.wait_for()
    assert fits(page)
    assert scrolled(page) == []
    visit(page, "#/sweep")
    page.locator('[data-picture="parallel"]').wait_for()
    assert fits(page)
    assert scrolled(page) == []
    assert cut(page, ".picture text, .picture circle") == []
    current = page.locator("nav a[aria-current]").bounding_box()
    assert current
    assert 0 <= current["x"] <= size[0] - current["width"]


def test_the_best_of_two_objectives_is_that_by_which_trials_are_judged(other: Page, folder: Path) -> None:  # fmt: skip
    sweep = make_sweep(folder, trials=2, objective=("return", "evaluation"))
    add_trial(sweep, 0, [30.0], evaluation=10.0)
    add_trial(sweep, 1, [20.0], evaluation=40.0)
    visit(other, sweep_in(folder))
    best = other.get_by_role("link", name="Run of the best")
    expect(best).to_have_attribute("href", re.compile("000"))
    other.get_by_role("button", name="evaluation", exact=True).first.click()
    expect(best).to_have_attribute("href", re.compile("001"))


def test_an_answer_that_says_the_same_is_not_drawn_anew(other: Page, folder: Path) -> None:
    (run, *_) = make_groups(folder)
    visit(other, compare(folder))
    drawn = other.locator(".comparison").element_handle()
    for _ in range(2):
        with other.expect_response(re.compile("api/compare")), (run / "metrics.jsonl").open("a") as file:  # fmt: skip
            file.write("{}\n")
    assert drawn.evaluate("node => node.isConnected")


def test_strips_have_a_scale_and_say_where_an_interval_is_cut(other: Page, folder: Path) -> None:
    for group, scores in (("0.001", (200.0, 200, 238)), ("0.01", (219.0, 220, 221))):
        for seed, score in enumerate(scores, start=1):
            make_run(folder, f"CartPole-v1/{group}-s{seed}", ["--optimizer.learning-rate", group], seed=seed, returns=(score,))  # fmt: skip
    visit(other, compare(folder))
    first, second = other.locator(".strip").nth(0), other.locator(".strip").nth(1)
    expect(other.locator(".strip-ends span")).to_have_count(2)
    expect(first.locator(".cut title").first).to_have_text(
        re.compile("the interval (begins|ends) at")
    )
    expect(second.locator(".cut")).to_have_count(0)
    drawn = "lines => Number.parseFloat(lines[0].getAttribute('x2')) - Number.parseFloat(lines[0].getAttribute('x1'))"
    wide, narrow = (x.locator(".interval").evaluate_all(drawn) for x in (first, second))
    assert wide > 3 * narrow
    places = first.locator("circle").evaluate_all("dots => dots.map(x => x.getAttribute('cx') + x.getAttribute('cy'))")  # fmt: skip
    assert len(set(places)) == 3, "two seeds of one score are seen as two"


def test_an_environment_s_name_keeps_its_small_letter(other: Page, folder: Path) -> None:
    config = make_run(folder, "a", env_id="CartPole-v1", returns=(1.0, 2.0)) / "config.json"
    config.write_text(config.read_text().replace("CartPole-v1", "my_envs:make"))
    visit(other, f"#/compare?runs={folder.name}/a")
    title = other.locator(".comparison .card h2").first
    expect(title).to_have_text("my_envs:make: scores")
    assert title.evaluate("node => getComputedStyle(node, '::first-letter').textTransform") == "none"  # fmt: skip
