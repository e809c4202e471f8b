"""The page of `gossamer watch` in a real browser, against a server of made-up runs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

import numpy as np
import pytest
from fake_watch import TOKEN, FakeServer, FakeWatch, acts_of, make_run, many_runs
from pages import PARKED, visit

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
from playwright.sync_api import expect

SEEDS = [
    f"CartPole-v1/ppo-single/2026010{day}-12000{seed}-s{seed}"
    for day in (1, 2)
    for seed in (1, 2, 3)
]
PONG = "PongNoFrameskip-v4/laser-single/20260103-090000-s1"
GOSSIP = "Acrobot-v1/a2c-gossip/20260103-093000-s1"
DIFFUSION = "Acrobot-v1/ppo-diffusion/20260102-200000-s4"
DAMAGED = "CartPole-v1/ppo-single/20251224-180000-s7"
VIEWS = [
    "#/runs",
    "#/runs?group=env_id",
    f"#/curves?runs={','.join(SEEDS)}&metrics=return_mean_100,learner/loss",
    f"#/run?run={PONG}",
    f"#/run?run={PONG}&section=settings",
    f"#/run?run={SEEDS[0]}&section=difference&with={SEEDS[3]}",
    f"#/run?run={PONG}&section=log",
    f"#/run?run={PONG}&section=checkpoints",
    f"#/run?run={SEEDS[0]}&section=videos",
    f"#/learners?run={GOSSIP}",
    f"#/learners?run={DIFFUSION}",
    f"#/replay?run={PONG}",
    f"#/run?run={DAMAGED}",
]


def row(page: Page, run: str) -> Any:
    return page.locator(f'tr[data-run="{run}"]')


def drawn(page: Page, *metrics: str) -> None:
    for metric in metrics:
        page.locator(f'[data-chart="{metric}"][data-drawn] .main-svg').first.wait_for()


def until(page: Page, condition: str, seconds: float = 10.0) -> None:
    """Wait for a condition in JavaScript; Playwright's own way needs eval, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def x_ranges(page: Page) -> list[list[float]]:
    return page.evaluate(
        "[...document.querySelectorAll('.plot')].map((plot) => plot.layout.xaxis.range.map(Number))"
    )


def drag(page: Page, metric: str, begin: float, end: float) -> None:
    box = page.locator(f'[data-chart="{metric}"] .nsewdrag').bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], middle, steps=6)
    page.mouse.up()


def curves(*metrics: str, runs: list[str] = SEEDS, more: str = "") -> str:
    return f"#/curves?runs={','.join(map(quote, runs))}&metrics={','.join(metrics)}{more}"


def test_all_runs_are_listed_and_unreadable_folders_explained(page: Page) -> None:
    visit(page, "")
    expect(page.locator("tr[data-run]")).to_have_count(12)
    expect(row(page, PONG)).to_contain_text("running")
    expect(row(page, PONG)).to_contain_text("\u22123.25")
    expect(row(page, DAMAGED)).to_contain_text("config.json ends in the midst of a line")
    expect(page.get_by_text("the folder holds no config.json")).to_be_visible()


def test_rows_change_while_a_run_trains(page: Page, watch: FakeWatch) -> None:
    visit(page, "")
    row(page, PONG).wait_for()
    watch.grow(PONG, mean_return=7.25)
    expect(row(page, PONG)).to_contain_text("7.25")
    watch.add(make_run("CartPole-v1/ppo-single/20260104-000000-s9", state="running"))
    expect(page.locator("tr[data-run]")).to_have_count(13)
    del watch.runs[SEEDS[0]]
    watch.version += 1
    watch.tell("runs", {"version": watch.version, "runs": [], "gone": [SEEDS[0]]})
    expect(row(page, SEEDS[0])).to_have_count(0)


def test_runs_are_searched_filtered_sorted_and_grouped(page: Page) -> None:
    visit(page, "")
    rows = page.locator("tr[data-run]")
    search = page.get_by_label("Search runs")
    search.fill("cartpole seed=2")
    expect(rows).to_have_count(2)
    search.fill("learning_rate>0.002 return>=440")
    expect(rows).to_have_count(2)
    page.reload()
    expect(rows).to_have_count(2)
    expect(search).to_have_value("learning_rate>0.002 return>=440")
    search.fill("no such run")
    page.get_by_role("button", name="Show all runs").click()
    page.locator(".chip", has_text="running").click()
    expect(rows).to_have_count(2)
    page.locator(".chip", has_text="All").click()
    page.get_by_role("button", name="Return", exact=True).click()
    expect(rows.first).to_have_attribute("data-run", SEEDS[5])
    page.get_by_role("button", name="Return", exact=True).click()
    expect(rows.first).to_have_attribute("data-run", re.compile("LunarLander"))
    page.get_by_label("Group by").select_option("optimizer.learning_rate")
    expect(page.locator(".group-row")).to_contain_text(["0.0006", "0.001", "0.003", "not known"])
    page.locator(".group-toggle", has_text="0.001").click()
    expect(rows).to_have_count(7)


def test_what_is_pressed_while_runs_train_is_clicked(page: Page, watch: FakeWatch) -> None:
    visit(page, "#/runs?group=env_id")
    places = (
        (page.locator(".chip", has_text="running"), page.locator(".chip[aria-pressed=true]", has_text="running")),
        (page.locator(".group-toggle", has_text="Pong"), page.locator(".group-toggle[aria-expanded=false]", has_text="Pong")),
        (page.locator(".group-toggle", has_text="Pong"), page.locator(".group-toggle[aria-expanded=true]", has_text="Pong")),
        (row(page, PONG).locator("input"), row(page, PONG).locator("input:checked")),
    )  # fmt: skip
    for i, (pressed, done) in enumerate(places):
        pressed.hover()
        page.mouse.down()
        watch.grow(PONG, mean_return=20.0 + i)
        page.wait_for_timeout(300)
        page.mouse.up()
        expect(done).to_have_count(1)
    expect(row(page, PONG)).to_contain_text("23")  # what was held back has come


def test_the_focus_stays_where_it_is_while_runs_train(page: Page, watch: FakeWatch) -> None:
    visit(page, "#/runs?group=env_id")
    where = "[document.activeElement.tagName, document.activeElement.getAttribute('aria-label')]"
    for i, place in enumerate(
        (
            row(page, PONG).locator("input"),
            row(page, PONG).locator("button.edit"),
            row(page, PONG).locator(".run-name"),
            page.locator(".group-toggle", has_text="Pong"),
            page.locator(".group-row", has_text="Pong").locator("input"),
            row(page, SEEDS[0]).locator("input"),
        )
    ):
        place.focus()
        before = page.evaluate(where)
        watch.grow(PONG, mean_return=30.0 + i)
        expect(row(page, PONG)).to_contain_text(f"{30 + i}")
        assert page.evaluate(where) == before


def test_a_search_finds_what_the_table_shows(page: Page, watch: FakeWatch) -> None:
    for i, run in enumerate(SEEDS):
        watch.runs[run]["settings"] |= {"value_norm": i < 2, "stop_at_return": None if i else 9.0}
    visit(page, "#/runs?search=value_norm=on")
    rows, search = page.locator("tr[data-run]"), page.get_by_label("Search runs")
    expect(rows).to_have_count(2)
    for typed, count in (
        ("value_norm=off", 4),
        ("stop_at_return=none", 5),
        ("stop_at_return=0", 0),
        ("stop_at_return=on", 0),
        ("stop_at_return!=none", 1),
    ):
        search.fill(typed)
        expect(rows).to_have_count(count)


@pytest.mark.own_page
def test_what_happens_before_the_page_listens_is_read(page: Page, watch: FakeWatch) -> None:
    def late(route: Route) -> None:
        if not watch.runs[PONG].get("seen_late"):
            watch.runs[PONG] |= {"state": "done", "mean_return": 12.25, "seen_late": True}
            watch.version += 1
        route.continue_()

    page.route("**/events", late)
    visit(page, "#/runs")
    expect(row(page, PONG)).to_contain_text("12.25")
    expect(row(page, PONG)).to_contain_text("done")


def test_ticked_runs_become_curves_with_seeds_grouped(page: Page) -> None:
    visit(page, "#/runs?search=cartpole+state=done")
    page.get_by_label("Select all runs that are shown").check()
    expect(page.locator(".selection")).to_contain_text("6 selected")
    page.keyboard.press("c")
    drawn(page, "return_mean_100", "evaluation/mean")
    expect(page.locator(".chart h3")).to_have_text(
        [re.compile("^Returnreturn_mean_100"), re.compile("^Evaluation returnevaluation/mean")]
    )
    groups = ["learning_rate 0.001", "learning_rate 0.003"]
    expect(page.locator(".group-label")).to_have_text(groups)
    expect(page.locator(".group-n").first).to_have_text("n\u00a0=\u00a03")
    expect(page.locator(".groups")).to_contain_text("95 % studentized bootstrap interval")
    page.get_by_role("button", name="Each run").click()
    expect(page.locator(".groups")).to_contain_text("Each line is one run")
    expect(page.locator(".group-label")).to_have_text(groups)
    page.get_by_role("button", name="Median").click()
    expect(page.locator(".group")).to_have_count(2)
    assert "stat=median" in page.url


def test_seeds_of_a_group_have_one_colour_and_stand_out_together(page: Page) -> None:
    visit(page, curves("return_mean_100", more="&stat=runs"))
    drawn(page, "return_mean_100")
    lines = """document.querySelector('.plot').data.filter((trace) => trace.fill !== 'toself')
        .map((trace) => trace.line.color)"""
    until(page, "document.querySelector('.plot').data.length >= 6")
    colors = page.evaluate(lines)
    assert len(colors) == 6
    assert len(set(colors[:3])) == len(set(colors[3:])) == 1
    assert colors[0] != colors[3]
    second = page.locator(".group").nth(1)
    second.focus()
    faint = "[...document.querySelectorAll('.scatterlayer .trace')].filter((x) => x.classList.contains('faint')).length"
    assert page.evaluate(faint) == 3
    second.blur()
    assert page.evaluate(faint) == 0
    second.click()
    until(page, "document.querySelector('.plot').data.length === 3")
    assert page.evaluate(lines) == colors[:3]
    expect(page).to_have_url(re.compile("hide=learning_rate"))


def test_over_the_wall_clock_each_run_is_drawn(page: Page, watch: FakeWatch) -> None:
    """Seeds that trained one after another have no mean at a moment."""
    visit(page, curves("return_mean_100"))
    drawn(page, "return_mean_100")
    lines = "document.querySelector('.plot').data.filter((x) => x.fill !== 'toself').length"
    until(page, f"{lines} === 2")
    page.locator(".toolbar select").select_option("time")
    until(page, f"{lines} === 6")
    expect(page.locator(".groups")).to_contain_text("have no mean over the wall clock")
    assert not any(x.startswith("/api/curves") and "x=time" in x for x in watch.asked)
    assert "statistic" not in saved_table(page, watch, "return_mean_100")
    page.locator(".toolbar select").select_option("seconds")
    until(page, f"{lines} === 2")


def test_the_count_of_a_group_is_not_that_of_an_empty_chart(page: Page, watch: FakeWatch) -> None:
    """Evaluations are asked for beside returns, and may be answered first with none."""

    def slow(route: Route) -> None:
        if "metric=return_mean_100" in route.request.url:
            page.wait_for_timeout(500)
        route.continue_()

    def without_evaluations(route: Route) -> None:
        answer = route.fetch()
        groups = [{**x, "n": 0, "interval": "none: one run"} for x in answer.json()["groups"]]
        route.fulfill(json={"groups": groups})

    page.route("**/api/curves?*return_mean_100*", slow)
    page.route("**/api/curves?*evaluation*", without_evaluations)
    visit(page, curves("return_mean_100", "evaluation/mean"))
    drawn(page, "return_mean_100")
    expect(page.locator(".group-n")).to_have_text(["n\u00a0=\u00a03"] * 2)
    expect(page.locator(".groups")).to_contain_text("95 % studentized bootstrap interval")


def test_hidden_groups_are_not_missing_rows(page: Page) -> None:
    visit(page, curves("return_mean_100"))
    drawn(page, "return_mean_100")
    note = page.locator(".plot-note")
    for group in (0, 1):
        page.locator(".group").nth(group).click()
    expect(note).to_have_text("All groups are hidden.")
    page.locator(".group").first.click()
    expect(note).to_be_hidden()


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def seen_by(colors: list[str], vision: np.ndarray) -> np.ndarray:
    """Return colours [N] in Oklab [N, 3] as somebody with a vision [3, 3] of linear RGB sees them."""
    parts = np.array([[int(x[i : i + 2], 16) / 255 for i in (1, 3, 5)] for x in colors])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ vision.T, 0, 1)
    cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.cbrt(linear @ np.array(cones).T) @ np.array(lab).T


# Machado, Oliveira and Fernandes 2009, severity 1: without the cones for red, green or blue.
VISIONS = {
    "all": np.eye(3),
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_eight_lines_are_told_apart_by_colour(page: Page, theme: str) -> None:
    visit(page, "")
    looks, card = page.evaluate(
        """async (theme) => {
          document.documentElement.dataset.theme = theme;
          const { line, themed } = await import("/static/palette.js");
          return [[...Array(10).keys()].map(line), themed("card")];
        }""",
        theme,
    )
    colors = [look["color"] for look in looks[:8]]
    assert [look["dash"] for look in looks] == ["solid"] * 8 + ["dash"] * 2
    assert looks[8]["color"] == colors[0]
    for color in colors:
        light, dark = sorted([luminance(color), luminance(card)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, color
    for name, vision in VISIONS.items():
        lab = seen_by(colors, np.array(vision))
        apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1)[np.triu_indices(8, 1)]
        assert apart.min() > (0.12 if name == "all" else 0.08), name


def y_range(page: Page, metric: str) -> list[float]:
    return page.evaluate(
        "(metric) => document.querySelector(`[data-chart='${metric}'] .plot`).layout.yaxis.range",
        metric,
    )


def test_spikes_do_not_flatten_a_chart_and_are_told(page: Page, watch: FakeWatch) -> None:
    watch.spikes["learner/loss"] = [100, 333]
    visit(page, curves("learner/loss", runs=SEEDS[:1]))
    drawn(page, "learner/loss")
    chart = page.locator('[data-chart="learner/loss"]')
    expect(chart.locator(".outliers")).to_contain_text("2 values outside")
    _, loss = watch.curve(SEEDS[0], "learner/loss", "env_steps")
    usual = np.delete(loss, [100, 333])
    low, high = y_range(page, "learner/loss")
    assert low < usual.min()
    assert usual.max() < high < 2 * usual.max()
    chart.get_by_role("button", name="show all").click()
    expect(page).to_have_url(re.compile("whole=learner/loss"))
    expect(chart.locator(".outliers")).to_contain_text("2 values far from the rest")
    assert y_range(page, "learner/loss")[1] > loss.max()
    page.reload()
    drawn(page, "learner/loss")
    assert y_range(page, "learner/loss")[1] > loss.max()
    chart.get_by_role("button", name="leave out").click()
    expect(page).not_to_have_url(re.compile("whole="))
    assert y_range(page, "learner/loss")[1] < 2 * usual.max()
    # A logarithmic axis has room for more, and for these too few of them.
    page.get_by_role("group", name="y scale").get_by_role("button", name="Log").click()
    expect(chart.locator(".outliers")).to_contain_text("2 values outside")


def test_among_few_points_none_is_an_outlier(page: Page, watch: FakeWatch) -> None:
    watch.spikes["learner/loss"] = [7]
    few = make_run("CartPole-v1/ppo-single/few", env_steps=40 * 200)
    watch.add(few)
    visit(page, curves("learner/loss", runs=[few["id"]]))
    drawn(page, "learner/loss")
    _, loss = watch.curve(few["id"], "learner/loss", "updates")
    assert y_range(page, "learner/loss")[1] > loss[7]
    expect(page.locator(".outliers")).to_be_hidden()


def test_returns_have_no_outliers(page: Page, watch: FakeWatch) -> None:
    watch.spikes = {"return_mean_100": [100], "evaluation/mean": [119]}
    metrics = ("return_mean_100", "evaluation/mean")
    visit(page, curves(*metrics, runs=SEEDS[:1]))
    drawn(page, *metrics)
    for metric in metrics:
        _, values = watch.curve(SEEDS[0], metric, "updates")
        assert y_range(page, metric)[1] > values.max()
    expect(page.locator(".outliers:visible")).to_have_count(0)


@pytest.mark.parametrize(
    ("width", "height", "metrics"),
    [
        (1440, 900, ["return_mean_100"]),
        (1440, 900, ["return_mean_100", "evaluation/mean"]),
        (1440, 900, ["return_mean_100", "evaluation/mean", "learner/loss"]),
        (1024, 768, ["return_mean_100"]),
        (390, 844, ["return_mean_100"]),
    ],
)
def test_charts_fill_the_window(page: Page, width: int, height: int, metrics: list[str]) -> None:
    page.set_viewport_size({"width": width, "height": height})
    visit(page, curves(*metrics))
    drawn(page, *metrics)
    boxes = [page.locator(f'[data-chart="{x}"]').bounding_box() for x in metrics]
    found = [box for box in boxes if box]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    right = width - 16 if width < 1100 else width - 24 - 280
    assert max(x["x"] + x["width"] for x in found) >= right - 24
    assert height - 40 <= max(x["y"] + x["height"] for x in found) <= height
    for metric, box in zip(metrics, found, strict=True):
        plot = page.locator(f'[data-chart="{metric}"] .main-svg').first.bounding_box()
        assert plot
        assert plot["height"] > box["height"] - 70, "the picture fills its card"
        assert plot["x"] + plot["width"] <= box["x"] + box["width"]


def test_a_window_that_shrinks_before_the_first_picture_cuts_nothing(page: Page) -> None:
    held: list[Route] = []
    page.goto("about:blank")  # a document that was kept has it
    page.route("**/plotly.js", lambda route: held.append(route))
    visit(page, curves("return_mean_100"))
    page.locator(".group").first.wait_for()
    while not held:
        page.wait_for_timeout(20)
    page.set_viewport_size({"width": 900, "height": 600})
    page.wait_for_timeout(200)
    held[0].continue_()
    drawn(page, "return_mean_100")
    picture = "document.querySelector('.main-svg').getBoundingClientRect()"
    frame = "document.querySelector('.plot').getBoundingClientRect()"
    until(page, f"{picture}.height <= {frame}.height && {picture}.width <= {frame}.width")


def test_a_line_that_is_too_short_to_be_seen_is_drawn_as_a_point(
    page: Page, watch: FakeWatch
) -> None:
    short = make_run("CartPole-v1/ppo-single/short", env_steps=2 * 200)
    watch.add(short)
    visit(page, curves("return_mean_100", runs=[SEEDS[0], short["id"]], more="&stat=runs"))
    until(page, "document.querySelector('.plot')?.data?.length >= 2")
    modes = (
        "document.querySelector('.plot').data.filter((x) => x.fill !== 'toself').map((x) => x.mode)"
    )
    assert sorted(page.evaluate(modes)) == ["lines", "lines+markers"]


def test_seeds_with_one_evaluation_each_have_a_point_with_its_interval(
    page: Page, watch: FakeWatch
) -> None:
    """A band over one point is nothing that could be seen, and would stretch the axis all the same."""
    point = {"x": [40_734], "y": [407.0], "low": [73.0], "high": [741.0], "counts": [3]}
    group = {"label": "ppo", "settings": {}, "n": 3, "runs": SEEDS[:3], "exact": True, **point}
    told = {"groups": [{**group, "interval": "95 %", "not_positive_rows": 0}], "said": []}
    watch.curves = lambda asked: told  # type: ignore[method-assign]
    visit(page, curves("evaluation/mean", runs=SEEDS[:3]))
    drawn(page, "evaluation/mean")
    trace = "document.querySelector('.plot').data.at(-1)"
    until(page, f"{trace}?.error_y?.visible")
    assert page.evaluate(f"[{trace}.error_y.array, {trace}.error_y.arrayminus]") == [[334], [334]]
    page.locator(".plot .errorbar").wait_for(state="attached")


def test_groups_are_named_by_the_fewest_settings_that_tell_them_apart(page: Page) -> None:
    visit(page, "")
    groups = [
        {
            "settings": {
                "algorithm.name": name,
                "algorithm.passes": passes,
                "optimizer.learning_rate": [rate],
            }
        }
        for name, passes in (("ppo", 4), ("vtrace", 1))
        for rate in (0.001, 0.003)
    ]
    found = page.evaluate(
        "async (groups) => (await import('/static/labels.js')).groupLabels(groups)", groups
    )
    assert found == [
        f"{name} \u00b7 learning_rate {rate}"
        for name in ("ppo", "vtrace")
        for rate in (0.001, 0.003)
    ]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([[0.000014802568333490409]], ["0.0000148"]),
        ([[0.00034313488579691605], [0.001, 0.25]], ["0.0003431", "[0.001,0.25]"]),
        ([1234567, 1234567.891, None, "relu"], ["1234567", "1234568", "none", "relu"]),
        # Too much alike for four digits.
        ([[0.00012341178901], [0.00012341298765]], ["0.000123412", "0.000123413"]),
        ([0.5, [0.5]], ["0.5", "[0.5]"]),
    ],
)
def test_settings_are_written_in_four_digits_where_that_tells_them_apart(
    page: Page, values: list[Any], want: list[str]
) -> None:
    visit(page, "")
    written = "async (values) => (await import('/static/format.js')).shortSettings(values)"
    assert page.evaluate(written, values) == want


def test_long_numbers_are_told_in_full_where_one_points(page: Page, watch: FakeWatch) -> None:
    rate = 0.00034313488579691605
    watch.runs[SEEDS[0]]["settings"]["optimizer.learning_rate"] = [rate]
    visit(page, "#/runs?group=optimizer.learning_rate")
    group = page.locator(".group-toggle", has_text="0.0003431")
    expect(group).to_have_attribute("title", f"[{rate}]")


def test_a_setting_that_no_run_has_is_told_with_the_one_that_was_meant(page: Page, watch: FakeWatch) -> None:  # fmt: skip
    visit(page, "#/runs?search=lr>0.0003")
    expect(page.locator(".none")).to_contain_text(
        "No column is called lr, nor a setting that differs among these runs; try learning_rate."
    )
    search = page.get_by_label("Search runs")
    search.fill("retrun>3")
    expect(page.locator(".none")).to_contain_text("try return")
    search.fill("zzzzzzzz=3 seed=77")
    expect(page.locator(".none")).to_contain_text("No column is called zzzzzzzz")
    expect(page.locator(".none p")).to_have_count(1)
    search.fill("pong")
    expect(page.locator("main > .sr[aria-live]")).to_have_text("1 run")
    # Headings of columns are names too.
    for fits in ("environment=pong", "environment=pong age<9999d", "environment=pong age>1s"):
        search.fill(fits)
        expect(page.locator("main > .sr[aria-live]")).to_have_text("1 run")
    for run in watch.runs.values():  # before the first episode has ended
        run["mean_return"] = None
    page.reload()
    for known in ("run=nothing", "steps/s>1e12", "age<0", "return>5"):
        search.fill(known)
        expect(page.locator(".none")).to_be_visible()
        expect(page.locator(".none")).not_to_contain_text("No column is called")


@pytest.mark.own_page
def test_a_chart_says_in_the_end_that_it_stays_a_sample(page: Page, watch: FakeWatch) -> None:
    watch.exact = False
    page.clock.install()
    visit(page, curves("return_mean_100", more="&stat=runs"))
    drawn(page, "return_mean_100")
    note = page.locator('[data-chart="return_mean_100"] .sample')
    expect(note).to_have_text("reading all rows\u2026")
    page.clock.fast_forward(31_000)
    expect(note).to_have_text("a sample of the rows")
    watch.exact = True
    watch.tell("rows", {"run": SEEDS[0], "rows": {}})
    expect(note).to_be_hidden()


def test_the_last_run_is_not_behind_the_bar_of_the_selection(page: Page) -> None:
    page.set_viewport_size({"width": 1000, "height": 420})
    visit(page, "")
    page.get_by_label("Select all runs that are shown").check()
    page.locator("tr[data-run]").last.locator(".run-name").focus()
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    table, bar = (page.locator(x).bounding_box() for x in (".table-frame", ".selection"))
    assert table
    assert bar
    assert table["y"] + table["height"] <= bar["y"] - 16


def test_zoom_is_linked_and_stays_in_the_address(page: Page) -> None:
    visit(page, curves("return_mean_100", "learner/loss"))
    drawn(page, "return_mean_100", "learner/loss")
    before = x_ranges(page)
    drag(page, "return_mean_100", 0.25, 0.5)
    expect(page).to_have_url(re.compile(r"zoom=[\d.]+,[\d.]+"))
    zoomed = x_ranges(page)
    assert zoomed[0] == zoomed[1]
    width = before[0][1] - before[0][0]
    assert np.allclose(
        zoomed[0], [before[0][0] + width / 4, before[0][0] + width / 2], atol=width / 50
    )
    page.reload()
    drawn(page, "return_mean_100", "learner/loss")
    assert np.allclose(x_ranges(page), zoomed, rtol=1e-6)
    page.locator('[data-chart="learner/loss"]').hover()
    page.locator('[data-chart="learner/loss"]').get_by_role("button", name="Reset zoom").click()
    expect(page).not_to_have_url(re.compile("zoom="))
    assert np.allclose(x_ranges(page), before)


@pytest.mark.parametrize("more", ["", "&xlog=1", "&x=seconds", "&x=time"])
def test_charts_begin_and_end_at_one_x(page: Page, more: str) -> None:
    """Evaluations begin later than returns, and what is above one another is at the same step all the same."""
    visit(page, curves("return_mean_100", "evaluation/mean", more=more))
    drawn(page, "return_mean_100", "evaluation/mean")
    same = "JSON.stringify(plots[0].layout.xaxis.range) === JSON.stringify(plots[1].layout.xaxis.range)"
    until(
        page,
        f"(() => {{ const plots = [...document.querySelectorAll('.plot')]; return plots.every((x) => x.layout.xaxis.range) && {same}; }})()",
    )
    box = page.locator('[data-chart="return_mean_100"] .nsewdrag').bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    places = "[...document.querySelectorAll('.cursor:not([hidden])')].map((x) => x.style.transform)"
    first, second = page.evaluate(places)
    assert first == second


def test_charts_of_a_run_share_x(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/run?run={PONG}")
    drawn(page, "return", "episodes")
    ranges = "document.querySelector('[data-chart=return] .plot').layout.xaxis.range.join()"
    until(page, f"{ranges} === '200,40000'")
    watch.grow(PONG, rows=50)
    until(page, f"{ranges} === '200,50000'")
    other = ranges.replace("=return", "=episodes")
    until(page, f"{other} === '200,50000'")


def tick_texts(page: Page, metric: str, axis: str) -> list[str]:
    return page.locator(f'[data-chart="{metric}"] .{axis}tick text').all_text_contents()


def test_ticks_of_logarithmic_axes_are_powers_in_one_line(page: Page, watch: FakeWatch) -> None:
    visit(page, curves("learner/loss", more="&xlog=1&ylog=1"))
    drawn(page, "learner/loss")
    assert tick_texts(page, "learner/loss", "x") == ["1k", "10k", "100k"]
    heights = page.evaluate(
        "[...document.querySelectorAll('.xtick text')].map((x) => x.getBoundingClientRect().y)"
    )
    assert max(heights) - min(heights) < 1
    small = page.evaluate(
        """async () => {
          const { figure } = await import("/static/figure.js");
          const line = { x: [0, 1, 2], y: [1e-4, 0.002, 20000], color: "#000000", label: "", key: "" };
          const { yaxis } = figure([line], { xKind: "env_steps", yLog: true }).layout;
          return yaxis.ticktext;
        }"""
    )
    assert small == ["1e\u22124", "0.001", "0.01", "0.1", "1", "10", "100", "1k", "10k"][::2]


def test_a_zoom_from_0_on_begins_a_logarithmic_axis_with_the_first_row(page: Page) -> None:
    """There is nothing to be seen below, and 300 powers of ten of it."""
    visit(page, curves("return_mean_100", runs=SEEDS[:1], more="&stat=runs&zoom=0,20000&xlog=1"))
    drawn(page, "return_mean_100")
    assert 10 ** np.array(x_ranges(page)[0]) == pytest.approx([200, 20_000])
    assert tick_texts(page, "return_mean_100", "x") == ["1k", "10k"]
    assert page.evaluate("document.querySelector('.plot').data.at(-1).mode") == "lines"


def test_one_point_has_one_tick(page: Page, watch: FakeWatch) -> None:
    run = make_run("CartPole-v1/ppo-single/one", env_steps=200)
    watch.add(run)
    visit(page, curves("return_mean_100", runs=[run["id"]]))
    drawn(page, "return_mean_100")
    assert tick_texts(page, "return_mean_100", "x") == ["200"]


def test_a_logarithmic_axis_tells_rows_and_breaks_lines(page: Page, watch: FakeWatch) -> None:
    watch.negative["learner/loss"] = [100, 101, 103, 400]
    visit(page, curves("learner/loss", runs=SEEDS[:1], more="&ylog=1&stat=runs"))
    drawn(page, "learner/loss")
    head = page.locator('[data-chart="learner/loss"] h3')
    expect(head).to_contain_text("4 values of 0 or less are not on a logarithmic axis")
    trace = "document.querySelector('.plot').data.at(-1)"
    assert page.evaluate(f"[100, 101, 103, 400].map((i) => {trace}.y[i])") == [None] * 4
    assert page.evaluate(f"{trace}.y.every((y) => y === null || y > 0)")
    alone = page.evaluate(f"{trace}.marker.size.map((size, i) => size && i).filter(Boolean)")
    assert alone == [102], "between two that are not drawn it would not be seen"
    watch.exact = False
    page.reload()
    drawn(page, "learner/loss")
    expect(head).to_contain_text("Some values of 0 or less are not on a logarithmic axis")


def test_a_box_zooms_both_axes_and_the_keyboard_zooms_too(page: Page) -> None:
    visit(page, curves("return_mean_100", "learner/loss"))
    drawn(page, "return_mean_100", "learner/loss")
    box = page.locator('[data-chart="learner/loss"] .nsewdrag').bounding_box()
    assert box
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 160, steps=6)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"zoom=[\d.]+,[\d.]+&yzoom=[\d.]+~[\d.]+~learner/loss"))
    y_ranges = "[...document.querySelectorAll('.plot')].map((plot) => plot.layout.yaxis.range)"
    zoomed = page.evaluate(y_ranges)
    page.reload()
    drawn(page, "return_mean_100", "learner/loss")
    assert np.allclose(page.evaluate(y_ranges)[1], zoomed[1], rtol=1e-6)
    before = x_ranges(page)[0]
    plot = page.locator('[data-chart="learner/loss"] .plot')
    plot.focus()
    page.keyboard.press("+")
    width = before[1] - before[0]
    until(
        page,
        f"Math.abs(document.querySelector('.plot').layout.xaxis.range[0] - {before[0] + width / 4}) < {width / 1000}",
    )
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("zoom="))


def test_what_one_chart_points_at_all_charts_show(page: Page) -> None:
    visit(page, curves("return_mean_100", "learner/loss"))
    drawn(page, "return_mean_100", "learner/loss")
    page.locator('[data-chart="return_mean_100"] .nsewdrag').hover()
    expect(page.locator(".readout-row")).to_have_count(4)
    texts = page.locator(".readout-x").all_text_contents()
    assert texts[0] == texts[1]
    assert re.fullmatch(r"\d+(\.\d+)?k env steps", texts[0])


@pytest.mark.parametrize("x", ["env_steps", "updates", "seconds", "time"])
def test_every_horizontal_axis_zooms_to_what_the_address_says(
    page: Page, server: FakeServer, watch: FakeWatch, x: str
) -> None:
    at, _ = watch.curve(SEEDS[0], "learner/loss", x)
    low, high = float(at[100]), float(at[300])
    visit(page, curves("learner/loss", runs=SEEDS[:1], more=f"&x={x}&stat=runs&zoom={low},{high}"))
    drawn(page, "learner/loss")
    asked = [path for path in watch.asked if path.startswith("/api/series")]
    assert f"x={x}" in asked[-1]
    # The first and last points that are seen are where the zoom says.
    seen = page.evaluate(
        """() => { const plot = document.querySelector(".plot"), x = plot.data.at(-1).x, axis = plot._fullLayout.xaxis;
        return [x.filter((each) => axis.c2p(each) >= -0.5 && axis.c2p(each) <= axis._length + 0.5).length, x.length]; }"""
    )
    assert seen[0] == 201
    assert 201 < seen[1] <= 243


def test_smoothing_keeps_the_raw_line(page: Page) -> None:
    visit(page, curves("return_mean_100"))
    drawn(page, "return_mean_100")
    traces = "document.querySelector('.plot').data.filter((trace) => trace.fill !== 'toself').map((trace) => [trace.opacity ?? 1, trace.y])"
    plain = page.evaluate(traces)
    page.get_by_label("Smoothing").fill("40")
    until(page, "document.querySelector('.plot').data.length === 6")
    smoothed = page.evaluate(traces)
    assert [opacity for opacity, _ in smoothed] == [0.28, 0.28, 1, 1]
    assert [y for _, y in smoothed[:2]] == [y for _, y in plain]
    assert np.std(np.diff(smoothed[2][1])) < np.std(np.diff(plain[0][1])) / 3
    assert "smooth=40" in page.url


def test_smoothing_is_the_weighted_mean_that_it_says(page: Page) -> None:
    visit(page, "")
    rng = np.random.default_rng(0)
    for width in (0.05, 1.0, 30.0):
        x = np.cumsum(rng.random(60) + 0.01)
        y = [None if rng.random() < 0.1 else float(value) for value in rng.normal(size=60)]
        found = page.evaluate(
            "async ([x, y, width]) => (await import('/static/smooth.js')).smooth(x, y, width)",
            [x.tolist(), y, width],
        )
        for i, value in enumerate(y):
            if value is None:
                assert found[i] is None
                continue
            weights = [np.exp(-abs(x[i] - x[j]) / width) for j in range(60) if y[j] is not None]
            expected = np.average([each for each in y if each is not None], weights=weights)
            assert found[i] == pytest.approx(expected)


def test_charts_are_saved(page: Page) -> None:
    visit(page, curves("return_mean_100"))
    drawn(page, "return_mean_100")
    chart = page.locator('[data-chart="return_mean_100"]')
    for ending, begins in (("png", b"\x89PNG"), ("svg", b"<svg"), ("csv", b"metric,")):
        chart.hover()
        with page.expect_download() as saved:
            chart.get_by_role("button", name=f"as {ending.upper()}").click()
        assert saved.value.suggested_filename == f"return_mean_100.{ending}"
        assert saved.value.path().read_bytes().startswith(begins)


def saved_table(page: Page, watch: FakeWatch, chart: str) -> dict[str, str]:
    """Save a chart as CSV and return what the page asked for."""
    card = page.locator(f'[data-chart="{chart}"]')
    card.hover()
    with page.expect_download():
        card.get_by_role("button", name="as CSV").click()
    asked = next(x for x in reversed(watch.asked) if x.startswith("/api/export.csv?"))
    return dict(parse_qsl(asked.partition("?")[2]))


def test_a_grouped_chart_is_saved_as_it_is_drawn(page: Page, watch: FakeWatch) -> None:
    visit(page, curves("learner/loss", more="&stat=iqm&by=env_id,optimizer.learning_rate"))
    drawn(page, "learner/loss")
    asked = saved_table(page, watch, "learner/loss")
    assert asked["runs"].split(",") == SEEDS
    assert asked["statistic"] == "iqm"
    assert asked["by"] == "env_id,optimizer.learning_rate"
    drawn_with = next(x for x in reversed(watch.asked) if x.startswith("/api/curves?"))
    assert asked["points"] == dict(parse_qsl(drawn_with.partition("?")[2]))["points"]
    page.get_by_role("button", name="Each run").click()
    assert saved_table(page, watch, "learner/loss").keys() == {"runs", "metric", "x"}


def test_a_chart_of_one_learner_is_saved_with_its_rows(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/run?run={quote(GOSSIP)}&learner=3")
    page.locator('[data-chart="loss"]').scroll_into_view_if_needed()
    drawn(page, "loss")
    assert saved_table(page, watch, "loss")["learner"] == "3"
    page.get_by_label("Rows of").select_option("5")
    until(page, "location.hash.includes('learner=5')")
    assert saved_table(page, watch, "loss")["learner"] == "5"
    assert "learner" not in saved_table(page, watch, "speed"), "learner 0 alone tells the speed"


def test_a_swipe_that_scrolls_the_page_does_not_hold_a_chart(page: Page, watch: FakeWatch) -> None:
    visit(page, curves("return_mean_100", runs=[PONG]))
    drawn(page, "return_mean_100")
    for event in ("pointerdown", "pointercancel"):
        page.locator(".plot").dispatch_event(event, {"pointerType": "touch"})
    watch.grow(PONG, rows=50)
    until(page, "document.querySelector('.plot').data.at(-1).x.at(-1) === 50000")


def test_a_chart_follows_its_run(page: Page, watch: FakeWatch) -> None:
    visit(page, curves("return_mean_100", runs=[PONG]))
    drawn(page, "return_mean_100")
    watch.grow(PONG, rows=50)
    until(page, "document.querySelector('.plot').data.at(-1).x.at(-1) === 50000")


def test_a_run_tells_what_limits_it_and_who_set_what(page: Page) -> None:
    visit(page, f"#/run?run={PONG}")
    expect(page.locator(".sentence")).to_contain_text("Learner-bound")
    expect(page.locator(".limit-bar").first).to_have_attribute(
        "aria-label",
        "actor: env step 33\u00a0%, inference 22\u00a0%, wait for the learner 45\u00a0%",
    )
    lead = page.locator('[data-chart="return"]').bounding_box()
    limits = page.locator(".limits").bounding_box()
    assert lead
    assert limits
    assert lead["y"] + lead["height"] < min(limits["y"], 900), "the first screen shows the return"
    for chart in ("return", "entropy", "kl", "lag", "cpu"):
        page.locator(f'[data-chart="{chart}"]').scroll_into_view_if_needed()
        drawn(page, chart)
    page.get_by_role("tab", name="Settings").click()
    page.get_by_label("Search settings").fill("learning_rate")
    expect(page.locator("tbody tr td:first-child code")).to_have_text(["optimizer.learning_rate"])
    expect(page.locator("tbody tr td:not(:first-child)")).to_have_text(["0.001", "suite classic"])
    page.get_by_role("tab", name="Log").click()
    expect(page.locator("pre.log")).to_contain_text("<b>not markup</b>")
    page.goto(f"/#/run?run={SEEDS[0]}&section=difference&with={SEEDS[3]}")
    expect(page.locator("tbody tr td:not(:first-child)")).to_have_text(
        ["0.001 suite classic", "0.003 command line"]
    )


def test_an_option_in_a_sentence_is_not_broken_over_two_lines(page: Page) -> None:
    visit(page, f"#/run?run={PONG}")
    option = page.locator(".sentence span", has_text="--precision")
    expect(option).to_have_text("--precision")
    for width in range(360, 480, 20):
        page.set_viewport_size({"width": width, "height": 844})
        assert option.evaluate("(node) => node.getClientRects().length") == 1


def test_a_setting_tells_its_meaning_to_pointer_keyboard_and_reader(page: Page) -> None:
    visit(page, f"#/run?run={PONG}&section=settings")
    name = page.get_by_role("button", name="optimizer.learning_rate")
    expect(name).to_have_accessible_description("Learning rate: one for all learners, or one each.")
    tip = page.get_by_role("tooltip")
    expect(tip).to_have_count(0)
    name.hover()
    expect(tip).to_have_text("Learning rate: one for all learners, or one each.")
    page.mouse.move(5, 5)
    expect(tip).to_have_count(0)
    name.focus()
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_have_count(0)
    expect(page.locator("tbody tr", has_text="env_id").get_by_role("button")).to_have_count(0)
    table = page.locator("main table").bounding_box()
    assert table
    assert table["width"] < 700, "names and values stand close together"


def test_checkpoints_are_downloaded(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/run?run={quote(PONG)}&section=checkpoints")
    expect(page.get_by_role("link", name="Download")).to_have_count(5)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download the best checkpoint").click()
    assert saved.value.path().read_bytes() == b"an archive"
    asked = next(x for x in watch.asked if x.startswith("/checkpoint?"))
    assert dict(parse_qsl(asked.partition("?")[2])) == {"run": PONG, "name": "best"}


@pytest.mark.parametrize(("width", "columns"), [(1440, 2), (390, 1)])
def test_videos_are_large(page: Page, watch: FakeWatch, width: int, columns: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    visit(page, f"#/run?run={SEEDS[0]}&section=videos")
    video = page.locator("video").first
    video.wait_for()
    box = video.bounding_box()
    assert box
    assert (width - 140) / columns < box["width"] <= width / columns


def test_the_last_evaluation_may_still_have_to_be_confirmed(page: Page, watch: FakeWatch) -> None:
    watch.runs[PONG] |= {"last_evaluation": 12.2, "candidate_evaluation": 12.2}
    visit(page, f"#/run?run={PONG}")
    tile = page.locator(".tile", has_text="Best evaluation")
    expect(tile).to_contain_text("last 12.20, to be confirmed")
    watch.grow(PONG, last_evaluation=3.0)
    expect(tile).to_contain_text("last 3.00, 12.20 to be confirmed")
    watch.grow(PONG, candidate_evaluation=None)
    expect(tile).not_to_contain_text("confirmed")


@pytest.mark.parametrize(("machine", "columns"), [("", 4), ("node-a", 5)])
def test_machines_of_processes_are_told_where_there_are_several(
    page: Page, watch: FakeWatch, machine: str, columns: int
) -> None:
    watch.machine = machine
    visit(page, f"#/run?run={PONG}")
    processes = page.get_by_role("table", name="Processes")
    expect(processes.locator("th")).to_have_count(columns)
    expect(processes.locator("tbody tr").first.locator("td")).to_have_count(columns)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_percents_on_bars_can_be_read(page: Page, theme: str) -> None:
    visit(page, "")
    pairs = page.evaluate(
        """async (theme) => {
          document.documentElement.dataset.theme = theme;
          const { inkOn, line } = await import("/static/palette.js");
          return [...Array(8).keys()].map((n) => [line(n).color, inkOn(line(n).color)]);
        }""",
        theme,
    )
    for pair in pairs:
        light, dark = sorted(map(luminance, pair), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, pair
    visit(page, f"#/run?run={PONG}")
    label = page.locator(".segment:not(.idle) > span").first
    inks = {f"rgb({', '.join(str(int(x[i : i + 2], 16)) for i in (1, 3, 5))})" for _, x in pairs}
    assert label.evaluate("(x) => getComputedStyle(x).color") in inks


def test_segments_without_room_have_no_label(page: Page) -> None:
    visit(page, f"#/run?run={PONG}")
    labels = page.locator(".segment > span")
    labels.first.wait_for()
    assert page.evaluate(
        """[...document.querySelectorAll(".segment > span")].every((label) =>
          (label.getClientRects().length > 0) === (label.parentNode.clientWidth > 43) && label.scrollWidth <= label.clientWidth)"""
    )
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".limit-bar").last.locator("span > span")).to_be_hidden()  # 12 %
    expect(labels.first).to_be_visible()


def test_the_processor_s_unit_is_one_core(page: Page) -> None:
    visit(page, f"#/run?run={PONG}")
    expect(page.locator('[data-chart="cpu"] h3')).to_contain_text("percent of one core")


def test_the_chosen_part_of_a_run_is_seen_on_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, f"#/run?run={SEEDS[0]}&section=videos")
    for _ in range(2):
        expect(page.locator(".tab[aria-selected=true]")).to_be_in_viewport(ratio=0.9)
        page.goto(f"/#/run?run={SEEDS[0]}&section=checkpoints")


def test_a_video_plays(page: Page) -> None:
    visit(page, f"#/run?run={SEEDS[0]}&section=videos")
    expect(page.locator("figcaption")).to_contain_text("return 481.0")
    until(page, "document.querySelector('video').readyState >= 1")
    page.evaluate("document.querySelector('video').play()")
    until(page, "document.querySelector('video').currentTime > 0.1")


def test_learners_are_a_ring_with_one_dead(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/learners?run={GOSSIP}")
    graph = page.locator("svg.graph")
    expect(graph.locator(".node")).to_have_count(8)
    expect(graph.locator(".edge")).to_have_count(8)
    expect(graph.locator(".arrow")).to_have_count(8)
    expect(graph.locator(".node.dead")).to_have_attribute("data-rank", "5")
    states = page.get_by_role("table", name="Learners").locator("tbody td:nth-child(6)")
    expect(states).to_have_text(["running"] * 5 + ["ended"] + ["running"] * 2)
    expect(graph.locator('[data-rank="5"]')).to_have_attribute("aria-label", re.compile("ended"))
    expect(graph.locator(".badge")).to_have_count(1)
    expect(graph).to_have_attribute("data-layout", "ring")
    graph.locator('[data-rank="3"]').focus()
    expect(page.locator(".graph-details")).to_contain_text("Restarts1")
    page.get_by_label("Time in the run").fill("7")
    expect(page).to_have_url(re.compile("at=7"))
    expect(page.locator(".events li")).to_have_count(1)
    assert any("at=7" in path for path in watch.asked)
    watch.grow(GOSSIP, rows=10)
    page.get_by_role("button", name="Live").click()
    expect(page.locator(".timeline output")).to_have_text("now, 21\u00a0s")


def test_the_scale_of_returns_stays_while_one_looks_back(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/learners?run={GOSSIP}")
    scale = page.locator(".scale").first
    links = page.locator(".graph-legend")
    for _ in range(2):
        expect(scale).to_have_text("Return\u2212450.0\u221250.00")
        expect(links).to_contain_text("Staleness of a link09 mixings")
        expect(links).to_contain_text("disagreement, full at 0.05")
        page.get_by_label("Time in the run").fill("7")
        expect(page).to_have_url(re.compile("at=7"))
        until(page, "document.querySelector('.timeline output').textContent.startsWith('7')")


def test_learners_that_come_later_have_not_begun(page: Page) -> None:
    visit(page, f"#/learners?run={GOSSIP}&at=1")
    states = page.get_by_role("table", name="Learners").locator("tbody td:nth-child(6)")
    expect(states).to_have_text(["running"] * 5 + ["ended", "running", "not begun yet"])
    label = page.locator('.graph [data-rank="7"]')
    expect(label).to_have_attribute("aria-label", re.compile("not begun yet"))
    page.get_by_role("button", name="Live").click()
    expect(states.last).to_have_text("running")


def test_links_are_reached_by_keys(page: Page) -> None:
    """Two links of each learner in a ring: the arrows go through them, and Tab goes on to the next learner."""
    visit(page, f"#/learners?run={GOSSIP}")
    graph, title = page.locator("svg.graph"), page.locator(".graph-details h3")
    graph.locator('[data-rank="3"]').focus()
    expect(title).to_have_text("Learner 3, running")
    for key, wanted in (
        ("ArrowRight", "From learner 2 to 3"),
        ("ArrowRight", "From learner 3 to 4"),
        ("ArrowDown", "From learner 2 to 3"),
        ("ArrowLeft", "From learner 3 to 4"),
    ):
        page.keyboard.press(key)
        expect(title).to_have_text(wanted)
    link = graph.locator(".edge:focus")
    weight = page.locator(".graph-details dd").first.inner_text()
    expect(link).to_have_attribute(
        "aria-label", re.compile(f"^From learner 3 to 4, weight {weight}, stale")
    )
    page.keyboard.press("Escape")
    expect(title).to_have_text("Learner 3, running")
    page.keyboard.press("ArrowUp")
    expect(title).to_have_text("From learner 3 to 4")
    page.keyboard.press("Tab")
    expect(title).to_have_text("Learner 4, running")


def test_a_link_keeps_the_focus_while_the_run_trains(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/learners?run={GOSSIP}")
    page.locator('.graph [data-rank="3"]').focus()
    page.keyboard.press("ArrowRight")
    watch.grow(GOSSIP, rows=10)
    expect(page.locator(".timeline output")).to_have_text("now, 21\u00a0s")
    expect(page.locator(".edge:focus")).to_have_attribute("data-from", "2")


def test_returns_that_nobody_has_earned_yet_are_not_told_as_0(page: Page) -> None:
    def before_any(route: Route) -> None:
        told = route.fetch().json()
        nodes = [{**node, "return": None} for node in told["nodes"]]
        route.fulfill(json={**told, "returns": None, "nodes": nodes})

    page.route("**/api/graph?*", before_any)
    visit(page, f"#/learners?run={GOSSIP}")
    expect(page.locator(".graph-legend > :first-child")).to_have_text("Return\u2013\u2013")
    page.unroute_all()


def test_a_printed_page_shows_what_is_read_and_nothing_to_press(page: Page) -> None:
    visit(page, f"#/learners?run={GOSSIP}")
    shown, pressed = page.locator("h1 summary"), page.locator("nav, .acts .button, .timeline")
    expect(shown).to_be_visible()
    expect(pressed.first).to_be_visible()
    page.emulate_media(media="print")
    expect(shown).to_be_visible()
    assert not any(x.is_visible() for x in pressed.all())
    page.emulate_media(media="screen")


@pytest.mark.parametrize("width", [1440, 390])
def test_type_on_learners_can_be_read(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for run in (GOSSIP, DIFFUSION):
        visit(page, f"#/learners?run={run}")
        page.locator(".graph .rank").first.wait_for()
        sizes = page.evaluate(
            """[...document.querySelectorAll(".graph text")].map((text) =>
              parseFloat(text.getAttribute("font-size")) * text.getCTM().a)"""
        )
        assert min(sizes) > 10.9


def test_a_run_that_is_loading_says_so_and_has_no_bare_headings(page: Page) -> None:
    held: list[Route] = []
    for path in ("metrics", "run"):
        page.route(f"**/api/{path}?*", lambda route: held.append(route))
    visit(page, f"#/run?run={PONG}")
    expect(page.locator(".run-content .loading")).to_have_text(["Loading\u2026"] * 2)
    expect(page.locator(".run-content h2:visible")).to_have_count(0)
    for route in held:
        route.continue_()
    page.unroute_all()
    expect(page.locator(".run-content h2", has_text="Learning")).to_be_visible()
    expect(page.locator(".run-content .loading")).to_have_count(0)


def test_what_is_loading_says_so(page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/graph?*", lambda route: held.append(route))
    visit(page, f"#/learners?run={GOSSIP}")
    expect(page.locator(".graph-frame")).to_have_text("Loading\u2026")
    expect(page.get_by_role("table", name="Learners").locator("tbody")).to_have_text(
        "Loading\u2026"
    )
    held[0].continue_()
    expect(page.locator(".graph-frame .node")).to_have_count(8)


def test_learners_of_a_run_that_is_over_have_ended(page: Page, watch: FakeWatch) -> None:
    watch.first_row_seconds = 1.099
    visit(page, f"#/learners?run={DIFFUSION}")
    states = page.get_by_role("table", name="Learners").locator("tbody td:nth-child(6)")
    expect(states).to_have_text(["ended"] * 30)
    page.get_by_label("Time in the run").fill("7")
    expect(states).to_have_text(["running then"] * 5 + ["ended"] + ["running then"] * 24)
    visit(page, f"#/learners?run={DIFFUSION}&at=0.1")
    expect(page.locator(".timeline output")).to_have_text(re.compile("^1\u00a0s of "))


def test_what_a_learner_has_told_before_the_others_says_so(page: Page) -> None:
    visit(page, f"#/learners?run={GOSSIP}")
    rows = page.get_by_role("table", name="Learners").locator("tbody tr")
    for cell in (7, 8):
        expect(rows.nth(6).locator(f"td:nth-child({cell})")).to_have_text(re.compile("8\u00a0s before$"))  # fmt: skip
        expect(rows.nth(1).locator(f"td:nth-child({cell})")).not_to_contain_text("before")


@pytest.mark.parametrize(("width", "beside"), [(1440, True), (1024, False), (390, False)])
def test_the_table_of_learners_stands_beside_the_graph_where_there_is_room(
    page: Page, width: int, beside: bool
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    visit(page, f"#/learners?run={GOSSIP}")
    page.locator(".node").first.wait_for()
    graph = page.locator(".graph-card").bounding_box()
    table = page.locator(".learners-card").bounding_box()
    assert graph
    assert table
    assert (table["x"] >= graph["x"] + graph["width"]) == beside
    assert (table["y"] >= graph["y"] + graph["height"]) != beside
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_slider_of_the_learners_reaches_both_ends(page: Page, watch: FakeWatch) -> None:
    watch.first_row_seconds = 1.099
    visit(page, f"#/learners?run={GOSSIP}")
    slider = page.get_by_label("Time in the run")
    expect(slider).to_have_attribute("max", "19")
    expect(slider).to_have_value("19")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"at=19\.005"))
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile(r"at=1\.099"))
    page.keyboard.press("End")
    expect(page).not_to_have_url(re.compile("at="))
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "true")


def test_other_graphs_are_laid_out_without_nodes_on_one_another(page: Page) -> None:
    visit(page, f"#/learners?run={DIFFUSION}")
    graph = page.locator("svg.graph")
    expect(graph.locator(".node")).to_have_count(30)
    expect(graph).to_have_attribute("data-layout", "forces")
    places = page.evaluate(
        "[...document.querySelectorAll('.node .disc')].map((each) => ['cx', 'cy', 'r'].map((name) => Number(each.getAttribute(name))))"
    )
    for n, (x, y, r) in enumerate(places):
        assert r < x < 1000 - r
        assert r < y < 720 - r
        for other in places[:n]:
            assert np.hypot(x - other[0], y - other[1]) > 2 * r


def test_a_replay_is_drawn_and_its_absence_explained(page: Page) -> None:
    visit(page, f"#/replay?run={PONG}")
    drawn(page, "ratio", "age", "rejected")
    page.locator('[data-chart="elite/distances"]').scroll_into_view_if_needed()
    drawn(page, "elite/distances")
    expect(page.locator('[data-chart="elite/distances"] .legend li')).to_have_count(4)
    page.goto(f"/#/replay?run={GOSSIP}")
    expect(page.get_by_text("gossamer train --config laser_pong")).to_be_visible()


def test_stopping_is_asked_about_and_posts_the_token(
    page: Page, server: FakeServer, watch: FakeWatch
) -> None:
    visit(page, f"#/run?run={PONG}")
    stop = page.locator("[data-act=stop]")
    stop.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert watch.acted == []
    stop.click()
    page.locator("[data-confirm]").click()
    expect(page.locator(".toast")).to_have_text(f"asked to stop: {PONG}")
    assert watch.acted == [(PONG, "stop", TOKEN, server.address)]
    watch.grow(PONG, rows=0, state="stopped", acts=acts_of("stopped"))
    expect(page.locator("[data-act=resume]")).to_be_visible()
    expect(stop).to_have_count(0)


def test_a_damaged_run_explains_itself(page: Page) -> None:
    visit(page, f"#/run?run={DAMAGED}")
    expect(page.locator("main .banner")).to_contain_text("config.json ends in the midst of a line")
    page.goto("/#/run?run=no/such/run")
    expect(page.get_by_text("There is no such run")).to_be_visible()


def test_no_runs_at_all_says_how_to_make_one(page: Page, watch: FakeWatch) -> None:
    watch.runs.clear()
    visit(page, "")
    expect(page.get_by_text("gossamer train CartPole-v1")).to_be_visible()


def test_names_of_folders_are_text(page: Page, watch: FakeWatch) -> None:
    evil = 'CartPole-v1/ppo-single/a,b %2F&x=1#"><img src=x onerror=alert(1)>'
    watch.add(make_run(evil, name=evil.split("/", 2)[2]))
    watch.grow(evil, rows=20)
    visit(page, "#/runs?search=onerror")
    expect(page.locator(".run-name")).to_have_text('a,b %2F&x=1#"><img src=x onerror=alert(1)>')
    page.locator("tbody input").check()
    page.locator(".selection .primary").click()
    drawn(page, "return_mean_100")
    page.reload()
    drawn(page, "return_mean_100")
    assert page.locator("img[src=x]").count() == 0


def test_three_hundred_runs(page: Page, watch: FakeWatch) -> None:
    for run in many_runs(288):
        watch.add(run)
    visit(page, "")
    expect(page.locator("tr[data-run]")).to_have_count(300)
    changed = page.evaluate(
        """() => { const rows = [...document.querySelectorAll("tr[data-run]")]; globalThis.rows = rows; return rows.length; }"""
    )
    watch.grow(PONG, mean_return=9.5)
    expect(row(page, PONG)).to_contain_text("9.50")
    # Rows of runs that did not change are the same elements.
    assert (
        page.evaluate(
            "[...document.querySelectorAll('tr[data-run]')].filter((row) => globalThis.rows.includes(row)).length"
        )
        >= changed - 20
    )


def test_a_lost_connection_is_shown_and_found_again(page: Page, watch: FakeWatch) -> None:
    visit(page, "")
    row(page, PONG).wait_for()
    watch.disconnect()
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    expect(page.locator("#lost")).to_be_visible()
    watch.grow(PONG, mean_return=11.75)
    watch.down.clear()
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(row(page, PONG)).to_contain_text("11.75")
    expect(page.locator("#lost")).to_be_hidden()


@pytest.mark.own_page
def test_a_connection_that_has_fallen_silent_is_lost(page: Page, watch: FakeWatch) -> None:
    """As that of a laptop that slept, whose tunnel hangs: nobody tells the browser that it is of no use any more."""
    page.clock.install()
    visit(page, "")
    row(page, PONG).wait_for()
    watch.runs[PONG] |= {"mean_return": 11.75}  # which nobody tells
    page.clock.fast_forward(30_000)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.clock.fast_forward(40_000)
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    page.clock.fast_forward(2_000)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(row(page, PONG)).to_contain_text("11.75")


def look_away(page: Page, *, hidden: bool) -> None:
    """Hide the tab, or show it again."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_run_that_fails_shows_why_without_a_new_row(page: Page, watch: FakeWatch) -> None:
    visit(page, f"#/run?run={quote(PONG)}&section=log")
    log = page.locator("pre.log")
    expect(log).not_to_be_empty()
    watch.last_words = ["RuntimeError: the simulator is gone"]
    watch.runs[PONG] |= {"state": "failed"}
    watch.version += 1
    watch.tell("runs", {"version": watch.version, "runs": [watch.runs[PONG]], "gone": []})
    expect(log).to_contain_text("RuntimeError: the simulator is gone")


@pytest.mark.own_page
def test_of_hidden_tabs_one_listens_which_keeps_the_server(page: Page, watch: FakeWatch) -> None:
    page.clock.install()
    visit(page, "#/runs")
    row(page, PONG).wait_for()
    look_away(page, hidden=True)
    page.clock.fast_forward(31_000)
    watch.grow(PONG, mean_return=8.5)
    expect(row(page, PONG)).to_contain_text("8.5")
    look_away(page, hidden=False)
    watch.grow(PONG, mean_return=9.5)
    expect(row(page, PONG)).to_contain_text("9.5")
    # The next one that is hidden has its turn.
    until(page, "navigator.locks.query().then(({ held }) => !held.length)")


@pytest.mark.own_page
def test_a_tab_that_was_hidden_reads_what_it_missed(page: Page, watch: FakeWatch) -> None:
    page.clock.install()
    visit(page, f"#/run?run={quote(PONG)}")
    page.locator('[data-chart="return"][data-drawn]').wait_for()
    page.locator("nav a[data-view=runs]").click()
    expect(row(page, PONG)).to_contain_text("running")
    # Another hidden tab listens already.
    page.evaluate(
        "() => { navigator.locks.request('the hidden tab that listens', () => new Promise(() => {})); }"
    )
    until(page, "navigator.locks.query().then(({ held }) => held.length === 1)")
    look_away(page, hidden=True)
    page.clock.fast_forward(31_000)
    until(page, "navigator.locks.query().then(({ pending }) => pending.length === 1)")
    # It ends while nobody listens.
    watch.runs[PONG] |= {"state": "done", "mean_return": 11.75}
    watch.version += 1
    look_away(page, hidden=False)
    expect(row(page, PONG)).to_contain_text("11.75")
    expect(row(page, PONG)).to_contain_text("done")
    watch.asked.clear()
    page.goto(f"/#/run?run={quote(PONG)}")
    page.locator('[data-chart="return"][data-drawn]').wait_for()
    assert any(x.startswith("/api/metrics?") for x in watch.asked), "it may have new metrics"


def test_the_keyboard_reaches_everything(page: Page) -> None:
    visit(page, "")
    row(page, PONG).wait_for()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("curves of the selected runs")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(row(page, PONG).locator(".run-name")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator(".selection")).to_contain_text("1 selected")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("20260103-090000-s1")
    page.keyboard.press("6")
    expect(page.locator("svg.graph .node")).to_have_count(1)
    page.keyboard.press("1")
    row(page, PONG).wait_for()
    page.keyboard.press("/")
    expect(page.get_by_label("Search runs")).to_be_focused()


def test_archived_runs_are_offered_nowhere_and_shown_where_they_are_named(page: Page, watch: FakeWatch) -> None:  # fmt: skip
    watch.runs[GOSSIP]["archived"] = True  # it trains, and so it is not put away
    for run in (SEEDS[0], SEEDS[3]):
        watch.runs[run]["archived"] = True
    newest = make_run("CartPole-v1/ppo-single/newest", archived=True, started=time.time())
    watch.add(newest)
    menu = page.locator('[data-menu="runs"]')
    for view in ("curves", "compare"):
        visit(page, f"#/{view}")
        choices = page.locator(".picks button")
        expect(choices).to_have_count(3 if view == "curves" else 1)
        expect(choices.last).to_have_text(re.compile(r"^all of Acrobot-v1 \(2\)$"))
        menu.locator("summary").click()
        expect(menu.locator(".check")).to_have_count(8)
        expect(menu).not_to_contain_text("newest")
        expect(menu).not_to_contain_text("20260101-120001-s1")
    visit(page, "#/curves")
    page.get_by_role("button", name="the newest five").click()
    expect(menu.locator("summary")).to_have_text("Runs (5)")
    assert newest["id"] not in page.url
    visit(page, curves("return_mean_100", runs=[SEEDS[0], SEEDS[1]]))
    drawn(page, "return_mean_100")
    menu.locator("summary").click()
    expect(menu.get_by_role("checkbox", checked=True)).to_have_count(2)


def test_a_view_that_is_left_does_not_write_over_the_address_that_is_gone_to(page: Page) -> None:
    visit(page, curves("return_mean_100", runs=[SEEDS[0], SEEDS[1]]))
    drawn(page, "return_mean_100")
    elsewhere = page.evaluate(
        """async () => {
          const { remember } = await import("/static/address.js");
          remember("curves", { runs: ["kept"] });
          const kept = location.hash;
          location.hash = "#/runs?sort=env_id"; // the page hears of it a moment later
          remember("curves", { runs: ["late"] });
          return [kept, location.hash];
        }"""
    )
    assert elsewhere == ["#/curves?runs=kept", "#/runs?sort=env_id"]


def test_marks_in_names_are_text_in_saved_pictures(page: Page) -> None:
    visit(page, "")
    name = "a <b>bold</b> &lt;i&gt; <a href='https://x.org'>link</a> & more"
    texts = page.evaluate(
        """async (name) => {
          const [{ figure }, { loadPlotly }] = await Promise.all([import("/static/figure.js"), import("/static/api.js")]);
          const line = { key: "a", group: "a", metric: "m", label: name, color: "#000000", x: [1, 2], y: [1, 2] };
          const picture = figure([line, { ...line, key: "b", label: "b" }], { xKind: "env_steps" }, { title: name, yTitle: name, legend: true });
          const image = await (await loadPlotly()).toImage(picture, { format: "svg", width: 1400, height: 700 });
          const saved = new DOMParser().parseFromString(decodeURIComponent(image.split(",").slice(1).join(",")), "image/svg+xml");
          const told = (what) => saved.querySelector(what).textContent.replaceAll("\u00a0", " ");
          return [told(".gtitle"), told(".ytitle"), told(".legendtext"), saved.querySelectorAll("tspan[style*=bold], a").length];
        }""",
        name,
    )
    assert texts == [name, name, name, 0]


def test_a_legend_shows_points_where_points_are_drawn(page: Page) -> None:
    visit(page, f"#/run?run={quote(PONG)}")
    page.locator('[data-chart="return"][data-drawn]').wait_for()
    signs = page.locator('[data-chart="return"] .legend .swatch')
    expect(signs).to_have_count(2)
    has_point = "(sign) => getComputedStyle(sign, '::after').content !== 'none'"
    assert [sign.evaluate(has_point) for sign in signs.all()] == [False, True]
    modes = "document.querySelector('[data-chart=return] .plot').data.filter((x) => x.fill !== 'toself').map((x) => x.mode)"
    assert page.evaluate(modes) == ["lines", "lines+markers"]


@pytest.mark.parametrize("act", ["archive", "delete", "restore"])
def test_what_is_asked_about_one_run_and_about_several(page: Page, watch: FakeWatch, act: str) -> None:  # fmt: skip
    for run in SEEDS[:2] if act == "restore" else []:
        watch.runs[run]["archived"] = True
    visit(page, "#/runs?state=archived" if act == "restore" else "")
    one, many = {
        "archive": (
            "Archive this run? The table hides it, unless \u201carchived\u201d is chosen among the states. Nothing is removed, and it can be restored.",
            "Archive 2 runs? The table hides them, unless \u201carchived\u201d is chosen among the states. Nothing is removed, and they can be restored.",
        ),
        "restore": (
            "Restore this run? The table shows it again.",
            "Restore 2 runs? The table shows them again.",
        ),
        "delete": (
            "Delete this run? Its folder is removed from the disk, with checkpoints, rows, logs and videos. This cannot be undone.",
            "Delete 2 runs? Their folders are removed from the disk, with checkpoints, rows, logs and videos. This cannot be undone.",
        ),
    }[act]
    dialog = page.get_by_role("dialog")
    for run, told in ((SEEDS[0], one), (SEEDS[1], many)):
        row(page, run).get_by_role("checkbox").check()
        page.locator(f".selection [data-act={act}]").click()
        found = dialog.evaluate("(x) => [...x.querySelectorAll('h2, p')].map((each) => each.textContent).join(' ')")  # fmt: skip
        assert found == told
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 390])
def test_a_ticked_row_under_the_pointer_has_one_colour(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    visit(page, "")
    row(page, PONG).get_by_role("checkbox").check()
    # What is seen behind the text of each cell: its own colour, or that of the row, or of the table.
    colors = """(row) => [...new Set([...row.querySelectorAll("td, td > *")].filter((x) => x.getClientRects().length && !x.matches(".icon, .progress")).map((cell) => {
        let node = cell;
        while (getComputedStyle(node).backgroundColor === "rgba(0, 0, 0, 0)") node = node.parentElement;
        return getComputedStyle(node).backgroundColor;
    }))]"""
    soft = page.evaluate("(() => { const x = document.createElement('i'); x.style.background = 'var(--accent-soft)'; document.body.append(x); return getComputedStyle(x).backgroundColor; })()")  # fmt: skip
    page.mouse.move(0, 0)
    assert row(page, PONG).evaluate(colors) == [soft]
    row(page, PONG).hover()
    assert row(page, PONG).evaluate(colors) == [soft]
    row(page, SEEDS[0]).hover()
    assert len(row(page, SEEDS[0]).evaluate(colors)) == 1


@pytest.mark.parametrize(
    "view", [f"#/run?run={PONG}&section=checkpoints", f"#/learners?run={DIFFUSION}"]
)
def test_no_table_is_scrolled_sideways_on_a_telephone(page: Page, view: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, view)
    page.locator("tbody tr").first.wait_for()
    wide = "[...document.querySelectorAll('.table-frame')].filter((x) => x.scrollWidth > x.clientWidth).length"
    assert page.evaluate(wide) == 0
    # At once: the page replaces rows while it is read.
    cells = page.evaluate(
        "[...document.querySelector('tbody tr').cells]"
        ".map((x) => [x.dataset.label, getComputedStyle(x, '::before').content])"
    )
    assert cells
    for label, shown in cells:
        assert shown == (f'"{label}"' if label else "none")


def test_the_choice_of_colours_is_kept(page: Page) -> None:
    visit(page, "")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_nothing_is_wider_than_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    widths: dict[str, int] = {}
    before = ""
    for (
        view
    ) in VIEWS:  # what is seen next is the view's own, and each kind is a document of its own once
        kind = view.partition("?")[0]
        page.goto("about:blank" if kind != before else f"/{PARKED}")
        before = kind
        visit(page, view)
        page.locator("main :is(tr, .chart, .node, pre, video, .banner)").first.wait_for()
        widths[view] = page.evaluate("document.documentElement.scrollWidth")
    assert {view: width for view, width in widths.items() if width > 390} == {}
