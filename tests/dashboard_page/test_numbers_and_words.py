"""Numbers and words of the page say what is so, in a real browser against a server of made-up runs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from pages import visit

if TYPE_CHECKING:
    from fake_watch import FakeWatch
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
from playwright.sync_api import expect

RUN = "CartPole-v1/ppo-single/20260101-120001-s1"
OTHER = "CartPole-v1/ppo-single/20260102-120001-s1"
KILLED = "Acrobot-v1/ppo-diffusion/20260102-200000-s4"
PONG = "PongNoFrameskip-v4/laser-single/20260103-090000-s1"
GOSSIP = "Acrobot-v1/a2c-gossip/20260103-093000-s1"
DAMAGED = "CartPole-v1/ppo-single/20251224-180000-s7"


def tile(page: Page, name: str) -> Any:
    return page.locator(".tile", has_text=name)


def test_the_time_that_is_left_goes_by_the_pace_of_training(page: Page, watch: FakeWatch) -> None:
    """As the command tells it; making environments took most of this run's time so far."""
    watch.runs[RUN] |= {
        "state": "running",
        "progress": 0.4,
        "env_steps": 40_000,
        "total_env_steps": 100_000,
        "steps_per_second": 1000.0,
        "seconds": 400.0,
    }
    visit(page, f"#/run?run={RUN}")
    expect(page.locator(".run-progress")).to_contain_text("1\u00a0min left")


def test_moments_have_no_logarithm(page: Page) -> None:
    visit(page, f"#/run?run={RUN}")
    log = page.get_by_role("group", name="x scale").get_by_role("button", name="Log")
    log.click()
    expect(log).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox", name="x", exact=True).select_option("time")
    expect(log).to_be_disabled()
    expect(log).to_have_attribute("aria-pressed", "false")
    page.get_by_role("combobox", name="x", exact=True).select_option("env_steps")
    expect(log).to_be_enabled()


def test_of_a_long_name_the_end_is_seen(page: Page, watch: FakeWatch) -> None:
    """There is the seed, by which runs of one folder differ."""
    watch.runs[RUN]["name"] = "20261127-092659-seeds-of-the-first-afternoon/s1"
    page.set_viewport_size({"width": 1024, "height": 800})
    visit(page, "#/runs")
    name = page.locator(f'tr[data-run="{RUN}"] .run-name')
    expect(name).to_have_text("20261127-092659-seeds-of-the-first-afternoon/s1")
    assert name.evaluate("(it) => it.scrollWidth <= it.clientWidth")
    tail = name.locator(".name-tail")
    expect(tail).to_have_text("rnoon/s1")
    assert tail.evaluate("(it) => it.getBoundingClientRect().right <= it.closest('td').getBoundingClientRect().right")  # fmt: skip


def test_tiles_say_of_what_their_numbers_are(page: Page, watch: FakeWatch) -> None:
    soon = time.time() + 600  # as long as the page may take, it is now
    watch.runs[RUN] |= {"mean_return_episodes": 78, "started": soon, "seconds": 1.0}
    visit(page, f"#/run?run={RUN}")
    expect(tile(page, "Return")).to_contain_text("mean of 78 episodes")
    expect(tile(page, "Steps/s")).to_contain_text("since the first update")
    expect(tile(page, "Training time")).to_contain_text("started now")
    expect(tile(page, "Training time")).not_to_contain_text("now ago")
    visit(page, "#/runs")
    expect(page.locator(f'tr[data-run="{RUN}"] .c-mean_return span')).to_have_attribute("title", "mean of 78 episodes")  # fmt: skip


def test_small_numbers_keep_their_digits(page: Page, watch: FakeWatch) -> None:
    for run, mean in ((RUN, 0.000133), (OTHER, 0.5)):
        watch.runs[run] |= {"mean_return": mean}
    visit(page, "#/runs")
    expect(page.locator(f'tr[data-run="{RUN}"] .c-mean_return')).to_have_text("0.000133")
    expect(page.locator(f'tr[data-run="{OTHER}"] .c-mean_return')).to_have_text("0.500")


def test_stopping_promises_no_results_and_resuming_tells_what_it_costs(page: Page, watch: FakeWatch) -> None:  # fmt: skip
    watch.runs[KILLED] |= {"env_steps": 102_090}
    visit(page, f"#/run?run={PONG}")
    page.locator("[data-act=stop]").click()
    expect(page.locator("dialog")).to_contain_text("It can be resumed from that checkpoint.")
    expect(page.locator("dialog")).not_to_contain_text("same results")
    page.keyboard.press("Escape")
    visit(page, f"#/run?run={KILLED}")
    page.locator("[data-act=resume]").click()
    expect(page.locator("dialog")).to_contain_text("from the last checkpoint, at 100,000 env steps")
    expect(page.locator("dialog")).to_contain_text("after it, up to 102,090 env steps, are removed")


def test_a_setting_that_one_run_does_not_have_is_no_value(page: Page, watch: FakeWatch) -> None:
    told = {"name": "algorithm.clip", "a": None, "b": 0.2, "layer_a": None, "layer_b": "default"}
    own = {**told, "name": "policy.memory", "layer_a": "default"}
    watch.difference = lambda asked: {"settings": [told, own]}  # type: ignore[method-assign]
    visit(page, f"#/run?run={RUN}&section=difference&with={OTHER}")
    rows = page.locator("main tbody tr")
    expect(rows.nth(0).locator("td").nth(1)).to_have_text("\u2013")
    expect(rows.nth(0).locator("td").nth(1).locator("span")).to_have_attribute("title", re.compile("not a setting of this run"))  # fmt: skip
    expect(rows.nth(1).locator("td").nth(1)).to_contain_text("none")


def test_a_damaged_run_leads_nowhere(page: Page, watch: FakeWatch) -> None:
    watch.runs[DAMAGED] |= {"env_id": "", "algorithm": ""}
    visit(page, f"#/run?run={DAMAGED}&section=settings")
    expect(page.locator(".nothing")).to_contain_text("The settings cannot be read")
    expect(page.get_by_role("button", name="In Curves")).to_have_count(0)
    visit(page, "#/runs")
    row = page.locator(f'tr[data-run="{DAMAGED}"]')
    expect(row.locator(".c-env_id")).to_have_text("\u2013")
    expect(row.locator(".c-algorithm")).to_have_text("\u2013")


def test_a_chart_says_whose_rows_it_draws(page: Page) -> None:
    visit(page, f"#/run?run={GOSSIP}&learner=2")
    whose = page.locator('[data-chart="return"] .whose')
    expect(whose).to_have_text("the run's rows")
    expect(page.locator('[data-chart="loss"]')).to_be_visible()
    expect(page.locator('[data-chart="loss"] .whose')).to_have_count(0)
    page.get_by_label("Rows of").select_option("")
    expect(whose).to_have_count(0)


def test_tabs_are_opened_by_keys_and_keep_the_focus(page: Page) -> None:
    visit(page, f"#/run?run={RUN}")
    page.get_by_role("tab", name="Overview").focus()
    for key, opened in (("Enter", "Settings"), (" ", "Difference")):
        page.keyboard.press("ArrowRight")
        page.keyboard.press(key)
        tab = page.get_by_role("tab", name=opened)
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(tab).to_be_focused()


def test_on_a_telephone_help_and_long_names_are_not_cut(page: Page, watch: FakeWatch) -> None:
    name = "a_name_without_a_place_to_break_" * 4
    watch.runs[OTHER] |= {"name": name, "note": "\n".join(map(str, range(20)))}
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, f"#/run?run={RUN}&section=difference&with={OTHER}")
    expect(page.locator("main tbody tr")).to_have_count(1)
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wider) == 0
    visit(page, "#/runs?search=no_such%3D1")
    cell = page.locator("td.none")
    expect(cell.get_by_role("button", name="Show all runs")).to_be_visible()
    assert cell.evaluate("cell => cell.scrollHeight <= cell.clientHeight + 1")


@pytest.mark.parametrize("width", [1440, 1024])
def test_fields_of_the_table_stay_together(page: Page, watch: FakeWatch, width: int) -> None:
    watch.runs[OTHER] |= {"state": "failed"}
    page.set_viewport_size({"width": width, "height": 900})
    visit(page, "#/runs")
    menu = page.locator("summary", has_text="Columns").bounding_box()
    field = page.get_by_label("Group by").bounding_box()
    assert menu
    assert field
    assert menu["y"] == pytest.approx(field["y"], abs=2)
    assert menu["x"] > width / 2
