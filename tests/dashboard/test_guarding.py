"""Whom the server answers, what it can be made to open, what may act, and what damaged files do to it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_runs
from sessions import slow

pytest.importorskip("starlette", reason="needs the extra dashboard")
from starlette.testclient import TestClient

from gossamer.dashboard.acts import OUTPUT, Acts
from gossamer.dashboard.app import Dashboard
from gossamer.dashboard.root import Root
from gossamer.errors import ConfigError
from gossamer.record.folder import RunFolder

ADDRESS = "http://127.0.0.1:8765"
OUTSIDE = "not for anybody"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made_runs(tmp_path / "runs", 1, 20)
    (tmp_path / "outside").mkdir()
    for name in ("config.json", "meta.json", "log.txt", "film.mp4"):
        (tmp_path / "outside" / name).write_text(f'{{"env_id": "{OUTSIDE}"}}')
    return tmp_path / "runs"


def client(root: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(Dashboard(root, host).app, base_url=ADDRESS)


def run_of(root: Path) -> str:
    return str(next(root.rglob("config.json")).parent.relative_to(root))


def token_of(asked: TestClient) -> str:
    found = re.search(r'name="gossamer-token" content="([^"]+)"', asked.get("/").text)
    assert found
    return found[1]


def act(asked: TestClient, run: str, what: str, token: str, origin: str = ADDRESS) -> Any:
    headers = {"X-Gossamer-Token": token, "Origin": origin}
    return asked.post("/api/act", params={"run": run, "act": what}, headers=headers)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8765", 200), ("localhost:8765", 200), ("[::1]:8765", 200), ("127.0.0.1", 200),
        ("evil.example", 403), ("127.0.0.1.evil.example:8765", 403), ("192.168.0.7:8765", 403), ("", 403),
    ],
)  # fmt: skip
def test_other_names_are_not_answered(root: Path, host: str, status: int) -> None:
    assert client(root).get("/api/runs", headers={"Host": host}).status_code == status


def test_an_address_that_all_can_reach_goes_by_any_address(root: Path) -> None:
    asked = client(root, "0.0.0.0")
    assert asked.get("/api/runs", headers={"Host": "192.168.0.7:8765"}).status_code == 200
    assert asked.get("/api/runs", headers={"Host": "evil.example"}).status_code == 403


def test_only_a_page_of_this_server_acts(root: Path) -> None:
    asked, run = client(root), run_of(root)
    token = token_of(asked)
    folder = RunFolder(root / run)
    folder.lock()
    requests = lambda: sorted(x.name for x in (root / run).glob(".asked-*"))  # noqa: E731
    assert act(asked, run, "stop", "").status_code == 403
    assert act(asked, run, "stop", token[:-1] + "x").status_code == 403
    assert act(asked, run, "stop", token, "http://evil.example").status_code == 403
    assert act(asked, run, "stop", token, "null").status_code == 403
    without = asked.post(f"/api/act?run={run}&act=stop", headers={"X-Gossamer-Token": token})
    assert without.status_code == 403
    assert asked.get(f"/api/act?run={run}&act=stop").status_code == 405
    assert requests() == []
    told = act(asked, run, "stop", token)
    assert (told.status_code, requests()) == (200, [".asked-stop"])
    assert "asked before" in act(asked, run, "stop", token).json()["said"]
    assert act(asked, run, "explode", token).status_code == 409
    assert act(asked, run, "resume", token).json()["error"].endswith("it need not be resumed")
    folder.unlock()
    assert act(asked, run, "checkpoint", token).status_code == 409
    assert act(asked, "../outside", "stop", token).status_code == 404
    # Another start has another token.
    assert token_of(client(root)) != token


@pytest.mark.parametrize(
    "path",
    [
        "/api/run?run=../outside", "/api/run?run=/etc", "/api/run?run=link", "/api/run?run=%00",
        "/api/run?run=RUN/..", "/api/series?run=../outside&metric=x&x=updates",
        "/video?run=RUN&name=../../outside/film.mp4", "/video?run=RUN&name=film.mp4",
        "/video?run=../outside&name=film.mp4", "/checkpoint?run=../outside&name=40", "/checkpoint?run=RUN&name=../../outside",
        "/checkpoint?run=RUN&name=40", "/checkpoint?run=RUN&name=50", "/checkpoint?run=RUN&name=60",
        "/checkpoint?run=RUN&name=60/..", "/checkpoint?run=RUN&name=%C2%B2", "/static/..%2fapp.py", "/static/../app.py", "/static/%2e%2e%2fapp.py",
        "/static//etc/passwd", "/etc/passwd",
    ],
)  # fmt: skip
def test_nothing_outside_the_folder_is_opened(root: Path, path: str) -> None:
    run = run_of(root)
    (root / "link").symlink_to(root.parent / "outside")
    (root / run / "videos").mkdir()
    (root / run / "videos/film.mp4").symlink_to(root.parent / "outside/film.mp4")
    checkpoints = root / run / "checkpoints"
    for name, named in (("50", "film.mp4"), ("60", "../../../../outside/film.mp4")):
        (checkpoints / name).mkdir(parents=True)
        (checkpoints / name / "manifest.json").write_text(json.dumps({"files": {named: {}}}))
    (checkpoints / "50/film.mp4").symlink_to(root.parent / "outside/film.mp4")
    (checkpoints / "40").symlink_to(root.parent / "outside")
    answer = client(root).get(path.replace("RUN", run))
    assert answer.status_code == 404, answer.text
    assert OUTSIDE not in answer.text
    assert "link" not in [x["id"] for x in client(root).get("/api/runs").json()["runs"]]


@pytest.mark.parametrize("run", ["missing", "link", "..", "RUN/missing/deeper"])
def test_a_folder_that_is_not_there_closes_nothing_else(root: Path, run: str) -> None:
    """A descriptor that is closed twice may be another thread's by then."""
    (root / "link").symlink_to(root.parent / "outside")
    before = os.listdir("/dev/fd")  # noqa: PTH208
    missing = pytest.raises((FileNotFoundError, NotADirectoryError))
    with missing, Root(root).run(run.replace("RUN", run_of(root))):
        pass
    with Root(root).run(run_of(root)) as files:
        assert files.names("../outside") == []
    assert os.listdir("/dev/fd") == before  # noqa: PTH208


def test_names_that_are_no_text_keep_nobody_from_the_others(root: Path) -> None:
    run = run_of(root)
    (root / run / "videos").mkdir()
    try:
        (root / run / "videos" / os.fsdecode(b"\xff.mp4")).touch()
    except OSError:
        pytest.skip("this file system has names of text alone")
    shutil.copytree(root / run, root / os.fsdecode(b"run-\xff"))
    asked = client(root)
    assert [x["id"] for x in asked.get("/api/runs").json()["runs"]] == [run]
    assert asked.get("/api/run", params={"run": run}).json()["videos"] == []
    odd = root.rename(root.with_name(os.fsdecode(b"runs-\xff")))
    told = client(odd).get("/api/runs")
    assert told.status_code == 200
    assert told.json()["root"].endswith("runs-\\udcff")


@pytest.mark.parametrize("code", [0, 1])
def test_a_resumed_run_gives_way_to_nobody_and_keeps_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder, usual = tmp_path / "run", os.getpriority(os.PRIO_PROCESS, 0)
    folder.mkdir()
    (tmp_path / "elsewhere").touch()
    (folder / OUTPUT).symlink_to(tmp_path / "elsewhere")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nnice > "$5/nice"\necho "$4" is read >&2\nexit {code}\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    acts, said = Acts(), list[str]()

    def resume() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(usual + 5, 19))
        try:
            said.append(acts.do("resume", {"acts": ["resume"]}, folder))
        except ConfigError as error:
            said.append(str(error))

    asks = threading.Thread(target=resume)  # as the server's threads, which give way to training
    asks.start()
    asks.join()
    acts.close()
    assert said[0].endswith("did not begin: --resume is read" if code else "was started")
    assert int((folder / "nice").read_text()) == usual
    assert (folder / OUTPUT).read_text() == "--resume is read\n"
    assert (tmp_path / "elsewhere").read_text() == ""


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/api/series", "run is missing"),
        ("/api/series?run=RUN&metric=learner%2Floss&x=furlongs", "x must be one of env_steps, updates, seconds, time"),
        ("/api/series?run=RUN&metric=learner%2Floss&points=many", "points"),
        ("/api/curves?runs=RUN&metric=learner%2Floss&statistic=mode", "statistic must be one of iqm, mean, median"),
        ("/api/curves?runs=&metric=learner%2Floss", "1 to 1000 can be named"),
        ("/api/graph?run=RUN&at=soon", "at"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(root: Path, path: str, told: str) -> None:
    answer = client(root).get(path.replace("RUN", run_of(root)))
    assert answer.status_code == 400
    assert told in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_every_answer_keeps_the_page_to_this_server(root: Path) -> None:
    for path in ("/", "/api/runs", "/static/app.js", "/no/such"):
        headers = client(root).get(path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_damaged_files_are_answered_all_the_same(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    run = run_of(root)
    (root / run / "checkpoints/40").mkdir(parents=True)
    (root / run / "checkpoints/40/state.json").write_text("{}")
    (root / run / "checkpoints/40/manifest.json").write_text(
        '{"files": {"state.json": {"bytes": 2}}}'
    )
    good = root.parent / "good"
    shutil.copytree(root / run, good)
    answers = (
        "/api/runs", "/api/metrics?run=RUN", "/api/series?run=RUN&metric=learner%2Floss&x=env_steps",
        "/api/series?run=RUN&metric=evaluation%2Fmean&x=time", "/api/curves?runs=RUN&metric=return_mean_100&statistic=iqm&x=seconds",
        "/api/run?run=RUN", "/api/graph?run=RUN", "/api/replay?run=RUN", "/api/difference?a=RUN&b=RUN",
        "/api/export.csv?runs=RUN&metric=learner%2Floss&x=updates", "/api/meanings?run=RUN", "/api/groups?runs=RUN",
        "/checkpoint?run=RUN&name=40",
    )  # fmt: skip
    for path in sorted(good.rglob("*.json*")):
        held = path.read_bytes()
        name = path.relative_to(good)
        for damage in (
            b"", held[: rng.randrange(len(held) + 1)], rng.randbytes(200), b"[" * 5000, b"null\n1\n[]\n{}\n",
            re.sub(rb"\d+", lambda _: rng.choice([b"1e999", b"-1", b"{}", b'"x"', b"null", b"NaN"]), held),
        ):  # fmt: skip
            (root / run / name).write_bytes(damage)
            asked = client(root)
            for answer in answers:
                found = asked.get(answer.replace("RUN", run))
                assert found.status_code in (200, 404), (name, damage[:50], answer, found.text)
        (root / run / name).write_bytes(held)
