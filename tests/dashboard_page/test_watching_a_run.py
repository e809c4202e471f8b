"""The page of `gossamer watch` in a real browser with the real server, while a real run trains: seen, charted, stopped, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil
import pytest
from made_runs import made_runs

from gossamer.record.files import LOCK

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytest.importorskip("starlette", reason="needs the extra dashboard")
from playwright.sync_api import expect

GOSSIP = ["topology:gossip", "--num-learners", "2", "--placement", "inline"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made_runs(tmp_path / "runs", 10, 60)
    made_runs(tmp_path / "runs/graphs", 1, 60, learners=4)
    return tmp_path / "runs"


def test_every_view_shows_what_the_real_server_tells(live: Page, root: Path) -> None:
    runs = sorted(str(x.parent.relative_to(root)) for x in root.rglob("config.json"))
    one, (graph,) = runs[0], [x for x in runs if x.startswith("graphs")]
    live.goto("/#/runs")
    expect(live.locator("tr[data-run]")).to_have_count(11)
    seeds = ",".join(quote(x, safe="") for x in runs[:5])
    live.goto(f"/#/curves?runs={seeds}&metrics=return_mean_100&stat=iqm")
    live.locator('[data-chart="return_mean_100"][data-drawn] .main-svg').first.wait_for()
    expect(live.locator(".groups")).to_contain_text("95 % studentized bootstrap interval")
    live.goto(f"/#/run?run={quote(one, safe='')}")
    expect(live.locator("main")).to_contain_text("bound")
    for section in ("settings", "log", "checkpoints", "videos"):
        live.goto(f"/#/run?run={quote(one, safe='')}&section={section}")
        expect(live.locator("main")).not_to_contain_text("Error")
    live.goto(f"/#/learners?run={quote(graph, safe='')}")
    expect(live.locator("svg.graph .node")).to_have_count(4)
    expect(live.locator("svg.graph .edge")).to_have_count(4)
    live.goto(f"/#/replay?run={quote(one, safe='')}")
    expect(live.locator("main")).to_contain_text("replay", ignore_case=True)


@pytest.fixture
def folder(root: Path) -> Iterator[Path]:
    """Of a run, whose process is gone afterwards, whoever has started it."""
    yield root / "live"
    with suppress(OSError, ValueError, psutil.Error):
        owner = psutil.Process(int((root / "live" / LOCK).read_text()))
        if str(root) in " ".join(owner.cmdline()):
            owner.kill()


def test_a_run_is_followed_stopped_and_resumed_from_the_page(
    live: Page, root: Path, folder: Path
) -> None:
    command = [sys.executable, "-m", "gossamer", "train", "CartPole-v1", *GOSSIP, "--num-envs", "4"]
    command += ["--total-env-steps", "50000000", "--run-folder", str(folder)]
    live.goto("/#/runs")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=root
    ) as child:
        try:
            state = live.locator('tr[data-run="live"]')
            expect(state).to_contain_text("running")
            live.goto("/#/run?run=live")
            live.locator("[data-act=stop]").click()
            live.locator("[data-confirm]").click()
            expect(live.locator(".toast")).to_contain_text("the run saves a checkpoint, then stops")
            assert child.wait(30) == 0
        finally:
            child.kill()
    assert json.loads((folder / "summary.json").read_text())["exit_reason"] == "stopped by request"
    live.locator("[data-act=resume]").click()
    live.locator("[data-confirm]").click()
    expect(live.locator(".toast").last).to_contain_text("was started")
    live.locator("[data-act=stop]").click()
    live.locator("[data-confirm]").click()
    expect(live.locator("[data-act=resume]")).to_be_visible(timeout=30_000)
