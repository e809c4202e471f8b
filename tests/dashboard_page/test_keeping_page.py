"""What people keep about runs, in a real browser with the real server: columns, names, tags and notes, archived and deleted
runs, saved views."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from made_runs import made_runs
from pages import served, visit

from gossamer.dashboard.views import VIEWS
from gossamer.record.about import ABOUT
from gossamer.record.folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Locator, Page, Route

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytest.importorskip("starlette", reason="needs the extra dashboard")
from playwright.sync_api import Error, expect

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that one server watches for all tests."""
    return tmp_path_factory.mktemp("watched") / "runs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    made_runs(folder, 6, 20)
    return folder


@pytest.fixture(autouse=True)
def root(watched: Path, runs: Path) -> Path:
    """The watched folder with six runs of which nothing was said yet."""
    for path in watched.iterdir() if watched.exists() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Path(shutil.copytree(runs, watched, dirs_exist_ok=True))


@pytest.fixture(scope="module")
def address(watched: Path) -> Iterator[str]:
    watched.mkdir()
    with served(watched) as address:
        yield address


def ids(root: Path) -> list[str]:
    return sorted(str(x.parent.relative_to(root)) for x in root.rglob("config.json"))


def about(root: Path, run: str, **told: Any) -> None:
    (root / run / ABOUT).write_text(json.dumps(told))


def row(page: Page, run: str) -> Locator:
    return page.locator(f'tr[data-run="{run}"]')


def rows(page: Page) -> Locator:
    return page.locator("tr[data-run]")


def tick(page: Page, *runs: str) -> None:
    for run in runs:
        row(page, run).get_by_role("checkbox").check()


def test_columns_are_hidden_and_shown_again(live: Page, root: Path) -> None:
    visit(live)
    heads = live.locator("thead th[data-column]")
    expect(heads).to_have_count(12)
    menu = live.locator("summary", has_text="Columns")
    menu.click()
    panel = live.locator(".popover[open] .popover-panel")
    expect(panel.get_by_label("Run", exact=True)).to_have_count(0)
    panel.get_by_label("Where").uncheck()
    panel.get_by_label("Seed").uncheck()
    panel.get_by_label("algorithm.name").check()
    expect(heads).to_have_count(11)
    expect(live.locator("th[data-column=where], td.c-where")).to_have_count(0)
    expect(live.locator("td.c-setting")).to_have_text(["ppo"] * 5 + ["vtrace"])
    expect(panel).to_be_visible()
    live.keyboard.press("Escape")
    expect(menu).to_be_focused()
    live.reload()
    expect(heads).to_have_count(11)
    assert "columns=algorithm.name" in live.url
    assert set(live.url.partition("hidden=")[2].split(",")) == {"seed", "where"}
    # Another address of the same view brings its own columns; the runs' names always stay.
    live.goto("/#/runs?hidden=name,started")
    expect(live.locator("th[data-column=name]")).to_have_count(1)
    expect(live.locator("th[data-column=started]")).to_have_count(0)
    expect(heads).to_have_count(11)
    live.go_back()
    expect(live.locator("th[data-column=started]")).to_have_count(1)
    expect(live.locator("th[data-column=where]")).to_have_count(0)
    menu.click()
    panel.get_by_label("Where").check()
    expect(live.locator("th[data-column=where]")).to_have_count(1)


def test_the_search_has_room(live: Page) -> None:
    visit(live)
    for width, least in ((1440, 360), (1024, 360), (390, 358)):
        live.set_viewport_size({"width": width, "height": 844})
        box = live.get_by_label("Search runs").bounding_box()
        assert box
        assert box["width"] >= least


def test_a_run_gets_a_name_tags_and_a_note_on_its_page(live: Page, root: Path) -> None:
    run = ids(root)[0]
    about(root, ids(root)[1], tags=["common"])
    visit(live, f"#/run?run={quote(run)}")
    live.get_by_role("button", name="Name and tags").click()
    dialog = live.get_by_role("dialog", name="Name, tags and note")
    expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    dialog.get_by_label("Name", exact=True).fill(f"best {EVIL}")
    dialog.get_by_label("Tags, with commas between them").fill("baseline, long run")
    dialog.get_by_role("button", name="common").click()
    dialog.get_by_label("Note").fill(f"first line\n{EVIL}")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(live.get_by_role("button", name="Name and tags")).to_be_focused()
    expect(live.locator("h1")).to_have_text(f"best {EVIL}")
    expect(live.locator(".run-head .tag")).to_have_text(["baseline", "long run", "common"])
    expect(live.locator(".run-note")).to_have_text(f"first line\n{EVIL}")
    expect(live.locator(".run-facts")).to_contain_text(run)
    assert json.loads((root / run / ABOUT).read_text()) == {
        "name": f"best {EVIL}", "tags": ["baseline", "long run", "common"],
        "note": f"first line\n{EVIL}", "archived": False,
    }  # fmt: skip
    live.goto("/#/runs")
    expect(row(live, run).locator(".run-name")).to_have_text(f"best {EVIL}")
    expect(row(live, run).locator(".tag")).to_have_text(["baseline", "long run", "common"])
    expect(row(live, run).locator(".note")).to_have_text("first line")
    expect(row(live, run).locator(".note")).to_have_attribute("title", f"first line\n{EVIL}")
    assert live.locator("img[src=x]").count() == 0


def test_a_run_is_named_in_the_table_with_the_keyboard(live: Page, root: Path) -> None:
    visit(live)
    run = ids(root)[0]
    row(live, run).locator(".run-name").focus()
    live.keyboard.press("e")
    dialog = live.get_by_role("dialog")
    live.keyboard.type("typed")
    live.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert not (root / run / ABOUT).exists()
    expect(row(live, run).locator(".run-name")).to_be_focused()
    live.keyboard.press("e")
    live.keyboard.type("typed")
    live.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(row(live, run).locator(".run-name")).to_have_text("typed")
    row(live, run).hover()
    row(live, run).get_by_role("button", name="Name, tags and note of typed").click()
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("typed")
    assert "/run?" not in live.url


def test_what_is_not_changed_in_the_dialog_stays_as_others_have_written_it(
    live: Page, root: Path
) -> None:
    """In another tab, or by a program; of a note too long for the dialog the end is not seen there."""
    run = ids(root)[0]
    about(root, run, tags=["old"], note="short")
    visit(live, f"#/run?run={quote(run)}")
    live.get_by_role("button", name="Name and tags").click()
    expect(live.locator("dialog textarea")).to_have_value("short")
    written = "a long afternoon " * 400
    about(root, run, name="named elsewhere", tags=["old"], note=written)
    live.get_by_label("Tags, with commas between them").fill("new")
    live.get_by_role("button", name="Save", exact=True).click()
    expect(live.get_by_role("dialog")).to_have_count(0)
    held = json.loads((root / run / ABOUT).read_text())
    assert held == {"name": "named elsewhere", "tags": ["new"], "note": written, "archived": False}


def test_what_cannot_be_kept_is_told_where_it_was_typed(live: Page, root: Path) -> None:
    run = ids(root)[0]
    visit(live, f"#/run?run={quote(run)}")
    live.get_by_role("button", name="Name and tags").click()
    tags = live.get_by_label("Tags, with commas between them")
    tags.fill(", ".join(f"t{i}" for i in range(21)))
    with live.expect_response(lambda answer: answer.status == 409):
        live.get_by_role("button", name="Save", exact=True).click()
    expect(live.get_by_role("alert").filter(has_text="at most 20 tags")).to_be_visible()
    tags.fill("one")
    live.get_by_role("button", name="Save", exact=True).click()
    expect(live.locator(".run-head .tag")).to_have_text(["one"])


def test_tags_and_notes_are_searched(live: Page, root: Path) -> None:
    one, two, three = ids(root)[:3]
    about(root, one, tags=["baseline"], note="the entropy falls too fast")
    about(root, two, tags=["Baseline-2", "long run"], name="the wide one")
    about(root, three, archived=False)
    visit(live)
    expect(rows(live)).to_have_count(6)
    search = live.get_by_label("Search runs")
    for typed, want in (
        ("tag=baseline", [one]), ("tag=BASELINE-2", [two]), ('tag="long run"', [two]), ("baseline", [two, one]),
        ("tag!=baseline seed=1 algorithm=ppo", []), ("entropy fast", [one]), ('"too fast"', [one]), ("name=wide", [two]),
        ("note=falls", [one]),
    ):  # fmt: skip
        search.fill(typed)
        expect(rows(live)).to_have_count(len(want))
        assert {x.get_attribute("data-run") for x in rows(live).all()} == set(want), typed
    search.fill("tag=nobody")
    expect(live.locator(".none")).not_to_contain_text("No column is called")


def test_ticked_runs_are_archived_and_taken_back(live: Page, root: Path) -> None:
    visit(live)
    one, two, three = ids(root)[:3]
    tick(live, one, two)
    live.locator(".selection [data-act=archive]").click()
    dialog = live.get_by_role("dialog", name="Archive 2 runs?")
    expect(dialog).to_contain_text(one)
    expect(dialog).to_contain_text(two)
    dialog.get_by_role("button", name="Cancel").click()
    assert not (root / one / ABOUT).exists()
    live.locator(".selection [data-act=archive]").click()
    live.get_by_role("button", name="Archive 2 runs").click()
    expect(rows(live)).to_have_count(4)
    expect(live.locator(".toast")).to_have_text("2 runs are archived")
    expect(live.locator(".selection")).to_be_hidden()
    expect(live.locator(".chip", has_text="All")).to_have_text("All 4")
    live.locator(".chip", has_text="archived").click()
    expect(rows(live)).to_have_count(2)
    live.reload()
    expect(rows(live)).to_have_count(2)
    expect(row(live, one)).to_contain_text("archived")
    tick(live, one)
    live.locator(".selection [data-act=restore]").click()
    live.get_by_role("button", name="Restore this run").click()
    expect(rows(live)).to_have_count(1)
    live.goto(f"/#/run?run={quote(two)}")
    expect(live.locator(".run-facts")).to_contain_text("archived")
    live.locator(".acts [data-act=restore]").click()
    live.locator("[data-confirm]").click()
    expect(live.locator(".acts [data-act=archive]")).to_be_visible()
    live.goto(f"/#/run?run={quote(three)}")
    live.locator(".acts [data-act=archive]").click()
    live.locator("[data-confirm]").click()
    expect(live.locator(".run-facts")).to_contain_text("archived")
    live.goto("/#/runs")
    expect(rows(live)).to_have_count(5)


def test_ticked_runs_are_deleted_after_a_question(live: Page, root: Path) -> None:
    damaged, one, two, running = ids(root)[:4]
    (root / damaged / "config.json").unlink()
    folder = RunFolder(root / running)
    folder.lock()
    visit(live)
    tick(live, damaged, one, two, running)
    live.locator(".selection [data-act=delete]").click()
    dialog = live.get_by_role("dialog", name="Delete 3 runs?")
    for run in (damaged, one, two):
        expect(dialog).to_contain_text(run)
    expect(dialog).not_to_contain_text(running)
    expect(dialog).to_contain_text("1 of the 4 runs is running and stays")
    # What cannot be undone is not what Enter does.
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    live.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    assert (root / one).exists()
    live.locator(".selection [data-act=delete]").click()
    red = dialog.get_by_role("button", name="Delete 3 runs")
    expect(red).to_have_class(re.compile("deletes"))
    red.click()
    expect(rows(live)).to_have_count(3)
    expect(live.locator(".toast")).to_have_text("3 runs are deleted")
    assert [run for run in (damaged, one, two, running) if (root / run).exists()] == [running]
    live.locator(".selection [data-act=delete]").click()
    expect(live.locator(".toast").last).to_contain_text("This run is running; stop it first.")
    folder.unlock()


def test_a_run_is_deleted_on_its_page(live: Page, root: Path) -> None:
    run = ids(root)[0]
    about(root, run, name="the failed one")
    visit(live, f"#/run?run={quote(run)}")
    live.locator(".acts [data-act=delete]").click()
    dialog = live.get_by_role("dialog", name="Delete this run?")
    expect(dialog).to_contain_text(f"the failed one ({run})")
    dialog.get_by_role("button", name="Delete this run").click()
    expect(rows(live)).to_have_count(5)
    assert live.url.endswith("#/runs")
    assert not (root / run).exists()


def test_views_are_saved_opened_and_deleted(live: Page, root: Path) -> None:
    live.reload()  # the menu holds the views of an earlier test
    visit(live)
    live.get_by_label("Search runs").fill("vtrace")
    live.get_by_label("Group by").select_option("algorithm")
    expect(rows(live)).to_have_count(1)
    live.locator("summary", has_text="Views").focus()
    live.keyboard.press("v")
    name = live.get_by_label("Name of the view")
    expect(name).to_be_focused()
    expect(live.locator(".saved-list")).to_contain_text("None yet")
    name.fill(f"V-trace {EVIL}")
    live.keyboard.press("Enter")
    expect(live.locator(".saved-list a")).to_have_text([f"V-trace {EVIL}"])
    expect(live.locator(".saved-list a")).to_have_attribute("aria-current", "true")
    live.keyboard.press("Escape")
    expect(live.locator("summary", has_text="Views")).to_be_focused()
    seeds = ",".join(quote(run, safe="") for run in ids(root)[:2])
    live.goto(f"/#/curves?runs={seeds}&metrics=learner/loss&stat=median")
    live.locator('[data-chart="learner/loss"][data-drawn]').wait_for()
    live.locator("summary", has_text="Views").click()
    name.fill("Losses")
    live.get_by_role("button", name="Save", exact=True).click()
    expect(live.locator(".saved-list a")).to_have_text(["Losses", f"V-trace {EVIL}"])
    live.locator(".saved-list a").last.click()
    expect(rows(live)).to_have_count(1)
    expect(live.get_by_label("Search runs")).to_have_value("vtrace")
    expect(live.locator(".group-row")).to_have_count(1)
    expect(live.locator(".saved-list")).to_be_hidden()
    live.locator("summary", has_text="Views").click()
    live.locator(".saved-list a", has_text="Losses").click()
    live.locator('[data-chart="learner/loss"][data-drawn]').wait_for()
    assert "stat=median" in live.url
    live.locator("summary", has_text="Views").click()
    expect(live.locator(".saved-list a")).to_have_count(2)
    expect(name).to_be_focused()
    live.keyboard.type("Losses")
    expect(live.get_by_role("button", name="Replace")).to_be_visible()
    delete = live.get_by_label("Delete the view Losses")
    delete.click()
    expect(delete).to_have_text("Delete")
    expect(live.locator(".saved-list a")).to_have_count(2)
    delete.click()
    expect(live.locator(".saved-list a")).to_have_text([f"V-trace {EVIL}"])
    expect(live.locator(".saved-list a")).to_be_focused()
    views = json.loads((root / "views.json").read_text())["views"]
    assert [view["name"] for view in views] == [f"V-trace {EVIL}"]
    assert live.locator("img[src=x]").count() == 0


def test_views_that_were_read_before_a_change_do_not_come_back(live: Page, root: Path) -> None:
    late: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        if route.request.method == "POST":
            route.continue_()
        else:
            late.append((route, route.fetch()))

    (root / VIEWS).write_text(json.dumps({"views": [{"name": "Old", "address": "#/runs?q=old"}]}))
    live.reload()
    visit(live)
    menu = live.locator("summary", has_text="Views")
    menu.click()
    listed = live.locator(".saved-list a")
    expect(listed).to_have_text(["Old"])
    live.keyboard.press("Escape")
    live.route("**/api/views*", hold)
    try:
        menu.click()
        delete = live.get_by_label("Delete the view Old")
        delete.click()
        delete.click()
        expect(listed).to_have_count(0)
        while not late:
            live.wait_for_timeout(20)
        [(route, answer)] = late
        with suppress(Error):  # the page may have given it up
            route.fulfill(response=answer)
        live.evaluate("() => new Promise((done) => setTimeout(done, 300))")
        expect(listed).to_have_count(0)
    finally:
        live.unroute_all(behavior="ignoreErrors")


def test_a_name_that_is_typed_while_a_view_is_saved_stays(live: Page, root: Path) -> None:
    held: list[Route] = []
    live.reload()
    visit(live)
    menu = live.locator("summary", has_text="Views")
    menu.click()
    name = live.get_by_label("Name of the view")
    live.route("**/api/views?act=save", lambda route: held.append(route))
    try:
        name.fill("First")
        live.keyboard.press("Enter")
        name.fill("Second")
        while not held:  # ended by the test's own limit of time
            live.wait_for_timeout(20)
        held.pop().continue_()
        expect(live.locator(".saved-list a")).to_have_text(["First"])
        expect(name).to_have_value("Second")
    finally:
        live.unroute_all(behavior="ignoreErrors")


def test_what_is_typed_at_once_in_a_menu_that_opens_stays(live: Page) -> None:
    visit(live)
    typed = live.evaluate(
        """() => {
            document.querySelector("#saved summary").click();
            document.activeElement.value = "At once";
            return new Promise((done) => setTimeout(() => done(document.querySelector(".saved-form input").value), 200));
        }"""
    )
    assert typed == "At once"


def test_a_saved_view_that_is_being_pressed_stays_until_it_is_let_go(
    live: Page, root: Path
) -> None:
    """The answer with all views may come between: of another link in its place no click comes."""
    views = [{"name": "few", "address": "#/runs?search=vtrace"}]
    (root / "views.json").write_text(json.dumps({"views": views}))
    live.reload()  # the menu holds the views of an earlier test
    visit(live)
    menu = live.locator("summary", has_text="Views")
    menu.click()
    link = live.locator(".saved-list a")
    expect(link).to_have_count(1)
    menu.click()
    expect(link).to_be_hidden()
    held: list[Route] = []
    live.route("**/api/views", lambda route: held.append(route))
    with live.expect_request("**/api/views"):
        menu.click()
    link.hover()
    live.mouse.down()
    with live.expect_response("**/api/views"):
        held[0].continue_()
    live.evaluate("new Promise(requestAnimationFrame)")
    live.mouse.up()
    expect(live.get_by_label("Search runs")).to_have_value("vtrace")


def test_a_view_that_is_about_to_be_deleted_is_not_asked_for_again(live: Page, root: Path) -> None:
    """The answer with all views may come between the two presses."""
    views = [{"name": "few", "address": "#/runs?search=vtrace"}]
    (root / "views.json").write_text(json.dumps({"views": views}))
    live.reload()  # the menu holds the views of an earlier test
    visit(live)
    menu = live.locator("summary", has_text="Views")
    menu.click()
    expect(live.locator(".saved-list a")).to_have_count(1)
    menu.click()
    expect(live.locator(".saved-list a")).to_be_hidden()
    held: list[Route] = []
    live.route("**/api/views", lambda route: held.append(route))
    with live.expect_request("**/api/views"):
        menu.click()
    delete = live.get_by_label("Delete the view few")
    delete.click()
    with live.expect_response("**/api/views"):
        held[0].continue_()
    live.unroute("**/api/views")
    live.evaluate("new Promise(requestAnimationFrame)")
    delete.click()
    expect(live.locator(".saved-list")).to_contain_text("None yet")


def test_a_view_of_other_columns_is_opened_whole(live: Page, root: Path) -> None:
    views = [{"name": "few", "address": "#/runs?hidden=where,started&columns=algorithm.name"}]
    (root / "views.json").write_text(json.dumps({"views": views}))
    live.reload()  # the menu holds the views of an earlier test
    visit(live)
    expect(live.locator("thead th[data-column]")).to_have_count(12)
    live.locator("summary", has_text="Views").click()
    live.locator(".saved-list a").click()
    expect(live.locator("thead th[data-column]")).to_have_count(11)
    expect(live.locator("td.c-setting")).to_have_count(6)


def test_too_long_a_view_is_told_in_the_menu(live: Page, root: Path) -> None:
    visit(live, f"#/runs?search={'x' * 5000}")
    live.locator("summary", has_text="Views").click()
    live.get_by_label("Name of the view").fill("long")
    with live.expect_response(lambda answer: answer.status == 409):
        live.keyboard.press("Enter")
    expect(live.locator(".saved [role=alert]")).to_contain_text("at most 5000 are kept")


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_long_names_and_many_tags_push_nothing_out_of_the_page(
    live: Page, root: Path, width: int
) -> None:
    one, two = ids(root)[:2]
    tags = [f"tag-{i}-{'x' * 40}" for i in range(20)]
    about(root, one, name="N" * 200, tags=tags, note="w" * 5000)
    about(root, two, name="a long name " * 15, tags=["short"], note="words " * 800)
    live.set_viewport_size({"width": width, "height": 844})
    for view in ("#/runs", f"#/run?run={quote(one)}", f"#/run?run={quote(two)}"):
        visit(live, view)
        live.locator("tr[data-run], .run-note").first.wait_for()
        assert live.evaluate("document.documentElement.scrollWidth") <= width, view
    if width == 1440:
        visit(live)
        frame = "(() => { const x = document.querySelector('.table-frame'); return x.scrollWidth - x.clientWidth; })()"
        expect(rows(live)).to_have_count(6)
        assert live.evaluate(frame) == 0


def test_a_folder_that_goes_is_told(live: Page, root: Path) -> None:
    visit(live)
    one, two = ids(root)[:2]
    tick(live, one, two)
    live.locator(".selection [data-act=delete]").click()
    shutil.rmtree(root / one)
    with live.expect_response(lambda answer: "api/act" in answer.url):
        live.get_by_role("button", name="Delete 2 runs").click()
    expect(live.locator(".toast.wrong")).to_contain_text("1 of 2 runs is deleted")
    expect(rows(live)).to_have_count(4)
