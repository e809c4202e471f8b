"""The made-up server of the page's tests, held against the real one: every route, every key, the same kinds of values."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from fake_watch import ANSWERS, TOKEN, FakeServer, FakeWatch, many_runs, usual_runs
from made_runs import made_runs
from sessions import QUICK
from waiting import PATIENCE_SECONDS

pytest.importorskip("starlette", reason="needs the extra dashboard")
from starlette.routing import Route
from starlette.testclient import TestClient

from gossamer import cli
from gossamer.dashboard.app import Dashboard
from gossamer.dashboard.limits import SHARES
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import METRICS, name_in_table

pytestmark = pytest.mark.xdist_group("fake_watch")

ADDRESS = "http://127.0.0.1:8765"
ELSEWHERE = {
    "GET /",
    "GET /static/{name}",
    "GET /plotly.js",
    "GET /video",
    "GET /checkpoint",
    "GET /events",
    "GET /api/export.csv",
    "POST /api/act",
}
"""Routes that the made-up server answers by hand; what they answer is compared below, or is a file."""
NOT_FAKED = {"GET /api/compare", "GET /api/sweeps", "GET /api/sweep", "POST /api/views"}
"""Routes that no test of the page on the made-up server uses."""
ANYTHING = {"value", "a", "b"}
"""Keys whose values are of any kind: those of settings."""
BY_NAME = {"settings", "meanings", "versions", "git"}
"""Keys whose objects have names of a user's or of packages as keys."""
Kinds = dict[str, set[str]]
Ask = Callable[[str], Any]
"""Returns the answer to a path with its query."""


def kinds_of(value: Any, kinds: Kinds | None = None, path: str = "") -> Kinds:
    """Return by path the kinds of values in an answer, those of all items of a list together."""
    kinds = {} if kinds is None else kinds
    key = path.rpartition(".")[2]
    names = {bool: "truth", int: "number", float: "number", str: "text", type(None): "nothing"}
    kind = "anything" if key in ANYTHING else names.get(type(value), type(value).__name__)
    kinds.setdefault(path, set()).add(kind)
    if kind == "list":
        for item in value:
            kinds_of(item, kinds, f"{path}[]")
    elif kind == "dict" and key not in BY_NAME:
        for name, item in value.items():
            kinds_of(item, kinds, f"{path}.{name}")
    return kinds


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs of every state: trained ones with all that a run leaves, made-up seeds, one that trains, and two broken ones."""
    root = tmp_path_factory.mktemp("watched")
    often = [*QUICK, "--evaluation.every-seconds", "0.01", "--evaluation.episodes", "2"]
    often += ["--evaluation.max-time-fraction", "1", "--total-env-steps"]
    mixing = ["topology:gossip", "--num-learners", "2", "--placement", "inline"]
    replay = ["algorithm:laser", "--replay-ratio", "1", "--replays.1.name", "elite"]
    for name, words in {
        "mixes": ["CartPole-v1", *often, "2000", *mixing],
        "replays": ["CartPole-v1", *often, "2000", *replay],
    }.items():
        assert cli.main(["train", *words, "--run-folder", str(root / name)]) == 0
    made_runs(root, 10, 60)
    for name, ended in {
        "stopped": {"kind": "stopped", "cause": "SIGINT"},
        "failed": {"kind": "failed", "cause": "the loss was not finite"},
        "killed": None,
        "trains": None,
    }.items():
        shutil.copytree(root / "mixes", root / name)
        summary = json.loads((root / name / "summary.json").read_text())
        if ended:
            text = json.dumps({**summary, "exit": ended})
            (root / name / "summary.json").write_text(text)
        else:
            (root / name / "summary.json").unlink()
    with (root / "stopped" / "log.txt").open("a") as log:
        log.write("2026-01-01 00:00:00 Learner 1 died (signal 9) and was restarted\n")
        log.write(
            "2026-01-01 00:00:01 actor 1 of learner 0 has died (signal 9); a new one begins\n"
        )
    for name in ("damaged", "empty"):
        shutil.copytree(root / "mixes", root / name)
        (root / name / "summary.json").unlink()
    (root / "damaged" / "config.json").write_text("{")
    (root / "damaged" / "meta.json").unlink()
    shutil.rmtree(root / "killed" / "checkpoints" / "best")
    for path in (root / "empty").glob("*.jsonl"):
        path.unlink()
    shutil.rmtree(root / "empty" / "checkpoints")
    kept = [{"name": "all runs", "address": "#/runs"}]
    (root / "views.json").write_text(json.dumps({"views": kept}))
    videos = root / "mixes" / "videos"
    videos.mkdir(exist_ok=True)
    (videos / "best-640.mp4").write_bytes(b"a video")
    (videos / "best-640.json").write_text('{"env_steps": 640, "return": 12.5}')
    trains = RunFolder(root / "trains")
    trains.lock()
    yield root
    trains.unlock()


@pytest.fixture(scope="module")
def real(root: Path) -> Iterator[Ask]:
    with TestClient(Dashboard(root).app, base_url=ADDRESS) as client:

        def ask(path: str) -> Any:
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text)
            return answer.json()

        yield ask


@pytest.fixture(scope="module")
def fake() -> Iterator[Ask]:
    server = FakeServer(FakeWatch([*usual_runs(), *many_runs(5)]))
    server.start()

    def ask(path: str) -> Any:
        with urllib.request.urlopen(server.address + path, timeout=PATIENCE_SECONDS) as answer:
            return json.loads(answer.read())

    yield ask
    server.stop()


def assert_alike(told: Kinds, made_up: Kinds) -> None:
    """Hold what is made up to have the keys of what the real server told, and no other kinds of values."""
    wrong = {f"{path} is invented" for path in made_up.keys() - told.keys()}
    wrong |= {f"{path} is left out" for path in told.keys() - made_up.keys()}
    for path in told.keys() & made_up.keys():
        if made_up[path] - told[path]:
            wrong.add(f"{path} is {made_up[path]}, but {told[path]} in truth")
    assert not wrong, "\n".join(sorted(wrong))


def sound(runs: list[dict[str, Any]]) -> list[str]:
    return [quote(run["id"], safe="") for run in runs if run["state"] not in ("damaged", "empty")]


def everyone(runs: list[dict[str, Any]]) -> list[str]:
    return [quote(run["id"], safe="") for run in runs]


def pairs(runs: list[dict[str, Any]]) -> list[str]:
    ids = sound(runs)
    return [f"a={a}&b={b}" for a in ids[:4] for b in ids]


def curves(runs: list[dict[str, Any]]) -> list[str]:
    ids = ",".join(sound(runs))
    return [
        f"runs={ids}&metric={metric}&x={x}&points=7&statistic={statistic}{by}"
        for metric in ("return_mean_100", "evaluation%2Fmean")
        for x in ("env_steps", "seconds")
        for statistic in ("mean", "median")
        for by in ("", "&by=seed")
    ]


QUESTIONS: dict[str, Callable[[list[dict[str, Any]]], list[str]]] = {
    "/api/runs": lambda _: [""],
    "/api/metrics": lambda runs: [f"run={x}" for x in everyone(runs)],
    "/api/series": lambda runs: [
        f"run={run}&metric={metric}&x={x}&points={points}"
        for run in sound(runs)
        for metric in ("return_mean_100", "episode%2Freturn", "evaluation%2Fmean")
        for x in ("env_steps", "updates", "seconds", "time")
        for points in (2, 100_000)
        if not (metric.startswith("episode") and x == "updates")
    ],
    "/api/curves": curves,
    "/api/run": lambda runs: [f"run={x}" for x in everyone(runs)],
    "/api/difference": pairs,
    "/api/graph": lambda runs: [f"run={x}{at}" for x in sound(runs) for at in ("", "&at=2")],
    "/api/replay": lambda runs: [f"run={x}" for x in sound(runs)],
    "/api/views": lambda _: [""],
    "/api/groups": lambda runs: [f"runs={','.join(sound(runs))}{by}" for by in ("", "&by=seed")],
    "/api/meanings": lambda runs: [f"run={x}" for x in everyone(runs)],
}
"""What is asked of both servers, by route; a route that is added needs an entry."""


def answers(ask: Ask, route: str) -> list[Any]:
    runs = ask("/api/runs")["runs"]
    return [ask(f"{route}?{query}") for query in QUESTIONS[route](runs)]


def test_every_route_has_its_counterpart(root: Path) -> None:
    routes = {
        f"{method} {route.path}"
        for route in Dashboard(root).app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    faked = {f"GET /api/{name}" for name in ANSWERS} | ELSEWHERE
    assert routes - faked == NOT_FAKED, "the made-up server lacks these; add them, or to NOT_FAKED"
    assert faked <= routes, "the made-up server answers these, and the real one does not"
    assert {f"/api/{name}" for name in ANSWERS} == QUESTIONS.keys(), "nothing is asked of these"


@pytest.mark.parametrize("route", sorted(QUESTIONS))
def test_answers_have_the_same_keys_and_kinds_of_values(real: Ask, fake: Ask, route: str) -> None:
    told, made_up = (kinds_of(answers(ask, route)) for ask in (real, fake))
    assert_alike(told, made_up)


def test_what_can_be_done_follows_from_a_runs_state(real: Ask, fake: Ask) -> None:
    done, made_up = (
        {(run["state"], tuple(run["acts"])) for run in ask("/api/runs")["runs"]}
        for ask in (real, fake)
    )
    assert {state for state, _ in done} == {
        "done", "stopped", "failed", "killed", "running", "damaged", "empty"
    }  # fmt: skip
    assert made_up <= done


def test_metrics_are_those_that_runs_write(real: Ask, fake: Ask) -> None:
    of_files = {x["name"]: x for answer in answers(real, "/api/metrics") for x in answer["metrics"]}
    for answer in answers(fake, "/api/metrics"):
        for metric in answer["metrics"]:
            known = METRICS.get(name_in_table(metric["name"]))
            if known is None:
                known_by_file = of_files[metric["name"]]
                assert metric["unit"] == known_by_file["unit"]
            else:
                assert metric["unit"] == known.unit, metric


def test_shares_are_those_that_the_real_server_names(fake: Ask) -> None:
    for answer in answers(fake, "/api/run"):
        told = {(x["role"], x["doing"]) for x in answer["limits"]["shares"]}
        assert told <= set(SHARES.values())


def test_curves_of_a_group_are_as_long_as_each_other(real: Ask, fake: Ask) -> None:
    for ask in (real, fake):
        intervals = set()
        for answer in answers(ask, "/api/curves"):
            for group in answer["groups"]:
                assert len({len(group[x]) for x in ("x", "y", "low", "high", "counts")}) == 1
                intervals.add((min(group["n"], 3), group["interval"]))
        assert intervals <= {
            (0, "none: one run"), (1, "none: one run"), (2, "none: two runs"),
            (3, "95 % studentized bootstrap"),
        }  # fmt: skip


@pytest.mark.parametrize("statistic", ["", "&statistic=mean"])
def test_what_is_exported_has_the_same_columns(root: Path, statistic: str) -> None:
    server = FakeServer(FakeWatch(usual_runs()))
    server.start()
    run = quote(usual_runs()[0]["id"], safe="")
    query = f"/api/export.csv?metric=return_mean_100&x=env_steps{statistic}&runs="
    with urllib.request.urlopen(
        f"{server.address}{query}{run}", timeout=PATIENCE_SECONDS
    ) as answer:
        made_up = answer.read().decode().splitlines()
    server.stop()
    with TestClient(Dashboard(root).app, base_url=ADDRESS) as client:
        told = client.get(f"{query}mixes").text.splitlines()
    assert made_up[0] == told[0]
    assert {len(line.split(",")) for line in made_up} == {len(told[0].split(","))}


def test_acts_are_answered_alike(root: Path) -> None:
    server = FakeServer(FakeWatch(usual_runs()))
    server.start()
    dashboard = Dashboard(root)
    found: dict[str, list[tuple[int, Kinds]]] = {"real": [], "fake": []}
    with TestClient(dashboard.app, base_url=ADDRESS) as client:
        token = re.search(r'content="([\w-]{20,})"', client.get("/").text)
        assert token
        for given in (token[1], "wrong"):
            headers = {"X-Gossamer-Token": given, "Origin": ADDRESS}
            answer = client.post("/api/act?run=trains&act=checkpoint", headers=headers)
            found["real"].append((answer.status_code, kinds_of(answer.json())))
    running = next(run["id"] for run in usual_runs() if run["state"] == "running")
    for given in (TOKEN, "wrong"):
        request = urllib.request.Request(
            f"{server.address}/api/act?run={quote(running, safe='')}&act=checkpoint",
            method="POST",
            headers={"X-Gossamer-Token": given, "Origin": server.address},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                found["fake"].append((answer.status, kinds_of(json.loads(answer.read()))))
        except HTTPError as error:
            with error:
                found["fake"].append((error.code, kinds_of(json.loads(error.read()))))
    server.stop()
    assert found["real"] == found["fake"]
    assert [status for status, _ in found["real"]] == [200, 403]


def parse(event: str) -> tuple[str, Any] | None:
    """Return the name and the data of an event; None for a comment, and for what is for the browser."""
    match = re.fullmatch(r"event: (\w+)\ndata: (.+)\n\n", event)
    return (match[1], json.loads(match[2])) if match else None


async def real_events(root: Path) -> list[tuple[str, Any]]:
    """Return what a page hears that is there when a run gets a row."""
    dashboard, found = Dashboard(root), list[tuple[str, Any]]()

    async def gone() -> bool:
        return False

    async for told in dashboard.events.stream(gone):
        if (event := parse(told.decode())) is None:
            continue
        found.append(event)
        if len(found) == 1:
            with (root / "replays" / "metrics.jsonl").open("a") as file:
                file.write('{"time_s": 1e6, "env_steps": 1000000, "learner": 0}\n')
        if {name for name, _ in found} == {"runs", "rows"}:
            break
    dashboard.close()
    return found


def test_events_tell_the_same(root: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(root, tmp_path / "runs"))
    with ThreadPoolExecutor(
        1
    ) as apart:  # a browser of this process has an event loop in this thread
        told = apart.submit(asyncio.run, real_events(copied)).result(PATIENCE_SECONDS)
    watch, listener = FakeWatch(usual_runs()), queue.SimpleQueue[str | None]()
    watch.listeners.add(listener)
    watch.add(many_runs(1)[0])
    watch.grow(next(run["id"] for run in usual_runs() if run["state"] == "running"))
    made_up = [parse(listener.get_nowait() or "") for _ in range(listener.qsize())]
    for name in ("runs", "rows"):
        one, other = (
            kinds_of([x[1] for x in events if x and x[0] == name]) for events in (told, made_up)
        )
        assert_alike(one, other)
