"""How fast the dashboard is, how much memory it takes, and what it costs a run that is watched.

python benchmarks/watched.py page FOLDER       # a folder of benchmarks/make_runs.py
python benchmarks/watched.py drawn FOLDER      # the same in a browser (playwright and a chromium)
python benchmarks/watched.py live              # how soon a new row is seen
python benchmarks/watched.py training          # pairs of the same run, watched and not
python benchmarks/watched.py training --pairs 2 -- --config pong
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil
from make_runs import make_runs, rows_of

from gossamer.record.metrics import MetricLog

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

CHARTED_RUNS, POINTS = 20, 1500
METRIC = "learner/loss"
CHROMIUM = "/usr/bin/chromium"
PARALLEL = 6
"""Requests that a browser sends at a time."""
PACE_SECONDS = 0.9
"""From a chart that has been read until it is read again: PACE_MS of the page."""
QUIET_SECONDS = 30.0
"""Without an event, after which no more rows are waited for."""


@contextmanager
def server(folder: Path) -> Generator[tuple[str, psutil.Process]]:
    """Context with the address and the process of a server of a folder."""
    words = [sys.executable, "-m", "gossamer", "watch", str(folder), "--no-browser", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield line.split(" at ")[1].split()[0], psutil.Process(process.pid)
        finally:
            process.terminate()


def get(address: str) -> Any:
    """Return what an address answers."""
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def events(address: str, until: float) -> Iterator[tuple[str, Any]]:
    """Yield events and their content."""
    with urllib.request.urlopen(address + "events", timeout=60) as lines:  # noqa: S310
        name = ""
        for line in lines:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])
            if time.monotonic() > until:
                return


def hear_rows(address: str) -> SimpleQueue[str]:
    """Return a queue of the runs that have new rows, which grows as long as the server tells."""
    heard: SimpleQueue[str] = SimpleQueue()

    def hear() -> None:
        with suppress(OSError, HTTPException):  # the server ends
            for event, told in events(address, math.inf):
                if event == "rows":
                    heard.put(told["run"])

    threading.Thread(target=hear, daemon=True).start()
    return heard


def measure_page(folder: Path) -> None:
    """Print the seconds of the first page, of charts, and the memory of the server."""
    with server(folder) as (address, process):
        idle = process.memory_info().rss
        began = time.monotonic()
        runs = get(f"{address}api/runs")["runs"]
        print(f"first list of {len(runs)} runs: {time.monotonic() - began:.3f} s")
        began = time.monotonic()
        get(f"{address}api/runs")
        print(f"second list: {time.monotonic() - began:.3f} s")
        listed = process.memory_info().rss
        heard = hear_rows(address)
        ids = [quote(run["id"], safe="") for run in runs[:CHARTED_RUNS]]

        def series(run: str) -> Any:
            return get(f"{address}api/series?run={run}&metric={METRIC}&x=env_steps&points={POINTS}")

        with ThreadPoolExecutor(PARALLEL) as browser:
            began = time.monotonic()
            first = list(browser.map(series, ids))
            took = time.monotonic() - began
            exact = sum(x["exact"] for x in first)
            print(f"first chart of {len(ids)} runs: {took:.3f} s ({exact} of them with every row)")
            # An inexact answer delays the reading of files: whoever asks more often than a page measures that delay.
            due = 0.0
            while not all(x["exact"] for x in first):
                try:
                    heard.get(timeout=QUIET_SECONDS)
                except Empty:  # the server has no room for them
                    break
                time.sleep(max(due - time.monotonic(), 0.0))
                while not heard.empty():
                    heard.get()
                first = list(browser.map(series, ids))
                took = time.monotonic() - began
                due = time.monotonic() + PACE_SECONDS
            exact = sum(x["exact"] for x in first)
            print(f"every row of {exact} of {len(ids)} runs: {took:.1f} s")
            began = time.monotonic()
            list(browser.map(series, ids))
            print(f"the same chart again: {time.monotonic() - began:.3f} s")
            began = time.monotonic()
            query = f"runs={','.join(ids)}&metric={METRIC}&x=env_steps&statistic=iqm"
            groups = get(f"{address}api/curves?{query}")["groups"]
            print(f"{len(groups)} grouped curves: {time.monotonic() - began:.3f} s")
        charted = process.memory_info().rss
        print(
            "memory: "
            + ", ".join(
                f"{name} {x / 2**20:.0f} MiB"
                for name, x in (("idle", idle), ("listed", listed), ("charted", charted))
            )
        )
        began, before = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(10.0)  # the stream of events is still open
        used = sum(process.cpu_times()[:2]) - before
        print(f"processor while a page is open: {used / (time.monotonic() - began):.1%} of a core")


def measure_drawn(folder: Path, *, tries: int = 5) -> None:
    """Print the seconds from opening an address until a browser has drawn it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        pages: list[float] = []
        charts: list[float] = []
        for _ in range(tries):
            with server(folder) as (address, _process):
                # With nothing kept from before.
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                began = time.monotonic()
                page.goto(address)
                page.locator("main tr[data-run]").first.wait_for()
                pages.append(time.monotonic() - began)
                runs = get(f"{address}api/runs")["runs"][:CHARTED_RUNS]
                ids = ",".join(quote(run["id"], safe="") for run in runs)
                time.sleep(1.0)  # as whoever looks at the page before the chart is asked for
                began = time.monotonic()
                page.evaluate(
                    "view => { location.hash = view; }", f"#/curves?runs={ids}&metrics={METRIC}"
                )
                page.locator("main .chart[data-drawn]").first.wait_for()
                charts.append(time.monotonic() - began)
                page.close()
        browser.close()
    for name, seconds in (("first page", pages), (f"chart of {CHARTED_RUNS} runs", charts)):
        median = statistics.median(seconds)
        print(f"{name}, drawn: {median:.2f} s (median of {tries}; at most {max(seconds):.2f})")


def measure_live(rows: int = 20) -> None:
    """Print after how long a new row of a running run reaches a page."""
    import numpy as np

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (folder, *_) = make_runs(root, 50, 100)
        folder.lock()
        (folder.path / "summary.json").unlink()
        log, written, seen = MetricLog(folder.path / "metrics.jsonl"), list[float](), list[float]()
        with server(root) as (address, _):

            def read() -> None:
                for event, _ in events(address, math.inf):
                    if event == "rows":
                        seen.append(time.monotonic())

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            time.sleep(2.0)
            rng = np.random.default_rng(0)
            for number in range(rows):
                for row in rows_of(100 + number, rng, 1):
                    log.write(row)
                written.append(time.monotonic())
                time.sleep(1.0 + rng.uniform(0, 0.1))
            reader.join(3.0)
        folder.unlock()
        # Two rows that are read together are told of once.
        delays = [min(seen_at for seen_at in seen if seen_at >= a) - a for a in written]
        print(f"a row is seen after {statistics.mean(delays):.2f} s, at most {max(delays):.2f} s")


def train(folder: Path, seconds: float, *, watched: bool, given: list[str]) -> float:
    """Return the env steps a second of a run, which a page watches or not."""
    words = [sys.executable, "-m", "gossamer", "train", *given, "--run-folder", str(folder)]
    words += (
        ["--stop-after-seconds", str(seconds), "--watch"]
        if watched
        else ["--stop-after-seconds", str(seconds)]
    )
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        if watched:
            address = (
                next(x for x in run.stdout if x.startswith("watching")).split(" at ")[1].split()[0]
            )
            threading.Thread(target=look, args=(address, seconds), daemon=True).start()
        run.communicate()
    speed = json.loads((folder / "summary.json").read_text())["steps_per_second"]
    if speed is None:
        raise SystemExit(f"a run learnt no two batches in {seconds:g} s; type a longer --seconds")
    return speed


def look(address: str, seconds: float) -> None:
    """Do what a page does that shows a run: hear events, ask for series and details when there are rows."""
    until = time.monotonic() + seconds
    try:
        get(f"{address}api/runs")
        for event, told in events(address, until):
            if event != "rows":
                continue
            run = quote(told["run"], safe="")
            for metric in (
                "return_mean_100",
                "learner/loss",
                "learner/entropy_nats",
                "lag_versions_mean",
            ):
                get(f"{address}api/series?run={run}&metric={metric}&x=env_steps&points={POINTS}")
            get(f"{address}api/run?run={run}")
    except OSError:  # the run has ended, and the server with it
        return


def measure_training(pairs: int, seconds: float, given: list[str]) -> None:
    """Print the speed of watched runs over that of others, pair by pair, in turns."""
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        for pair in range(pairs):
            speeds = {
                watched: train(
                    Path(name, f"{pair}-{watched}"), seconds, watched=watched, given=given
                )
                for watched in ((False, True) if pair % 2 else (True, False))
            }
            ratios.append(speeds[True] / speeds[False])
            print(
                f"watched {speeds[True]:,.0f}, not {speeds[False]:,.0f}: {ratios[-1]:.3f}",
                flush=True,
            )
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    print(
        f"mean {statistics.mean(ratios):.3f} +- {error:.3f}, median {statistics.median(ratios):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("page", "drawn", "live", "training"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    own = sys.argv[1:]
    cut = own.index("--") if "--" in own else len(own)
    asked, words = parser.parse_args(own[:cut]), own[cut + 1 :]
    if asked.what == "page":
        measure_page(asked.folder)
    elif asked.what == "drawn":
        measure_drawn(asked.folder)
    elif asked.what == "live":
        measure_live()
    else:
        measure_training(asked.pairs, asked.seconds, words or ["--config", "bench"])


if __name__ == "__main__":
    main()
