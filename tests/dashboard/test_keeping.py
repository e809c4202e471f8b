"""Names, tags, notes, archived and deleted runs, and saved views: what the server keeps, what it refuses, and to whom."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from made_runs import made_runs

pytest.importorskip("starlette", reason="needs the extra dashboard")
from starlette.testclient import TestClient

from gossamer.dashboard import housekeeping
from gossamer.dashboard.app import Dashboard
from gossamer.dashboard.removal import DELETED, remove_leftovers
from gossamer.dashboard.root import HERE, Root
from gossamer.record.about import ABOUT
from gossamer.record.folder import MEMBERS, RunFolder
from gossamer.record.runs import find_runs

ADDRESS = "http://127.0.0.1:8765"
SAID = {"name": "the first", "tags": ["baseline", "short"], "note": "one line\nand <b>another</b>"}
LEFT = f"{DELETED}0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made_runs(tmp_path / "runs", 3, 5)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/config.json").write_text('{"env_id": "x", "algorithm": {}}')
    (tmp_path / "outside/meta.json").write_text('{"started_unix": 1.0}')
    return tmp_path / "runs"


def ids(root: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("config.json"))


class Page:
    """Asks the server as its page does."""

    def __init__(self, root: Path) -> None:
        self.client = TestClient(Dashboard(root).app, base_url=ADDRESS)
        found = re.search(r'name="gossamer-token" content="([^"]+)"', self.client.get("/").text)
        assert found
        self.headers = {"X-Gossamer-Token": found[1], "Origin": ADDRESS}

    def runs(self) -> dict[str, dict[str, Any]]:
        return {run["id"]: run for run in self.client.get("/api/runs").json()["runs"]}

    def views(self) -> list[dict[str, str]]:
        return self.client.get("/api/views").json()["views"]

    def act(
        self, act: str, *runs: str, headers: dict[str, str] | None = None, **body: Any
    ) -> tuple[int, str]:
        name = "run" if act == "describe" else "runs"
        asked = f"act={act}&{name}={','.join(quote(run, safe='') for run in runs)}"
        return self.post(f"/api/act?{asked}", body, headers)

    def view(self, act: str, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, str]:
        return self.post(f"/api/views?act={act}", body, headers)

    def post(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None
    ) -> tuple[int, str]:
        headers = self.headers if headers is None else headers
        answer = self.client.post(path, json=body or None, headers=headers)
        told = answer.json()
        return answer.status_code, told.get("said") or told["error"]


def test_a_run_is_called_tagged_and_noted(root: Path) -> None:
    page, run = Page(root), ids(root)[0]
    before = page.runs()[run]
    assert (before["tags"], before["note"], before["archived"]) == ([], "", False)
    assert page.act("describe", run, **SAID)[0] == 200
    told = page.runs()[run]
    assert {name: told[name] for name in SAID} == SAID
    assert told["folder_name"] == before["name"]
    assert told["changed"] == before["changed"]
    assert page.act("describe", run, name="")[0] == 200
    assert page.runs()[run]["name"] == before["name"]
    assert page.runs()[run]["tags"] == SAID["tags"]
    assert page.act("describe", run, note="", tags=[])[0] == 200
    assert not (root / run / ABOUT).exists(), "nothing is said any more"
    status, told = page.act("describe", run, name="x" * 201)
    assert (status, told) == (409, "name has 201 characters; at most 200 are kept")


def test_a_note_reaches_pages_that_are_open(root: Path) -> None:
    dashboard = Dashboard(root)
    dashboard.listing.look()
    told: list[str] = []
    dashboard.listing.on_change = lambda changes: told.extend(run["note"] for run in changes.runs)
    (root / ids(root)[0] / ABOUT).write_text('{"note": "new"}')
    dashboard.listing.look()
    assert told == ["new"]


def test_runs_are_archived_and_restored(root: Path) -> None:
    page = Page(root)
    one, two, three = ids(root)
    page.act("describe", one, **SAID)
    assert page.act("archive", one, two) == (200, "2 runs are archived")
    assert [run["archived"] for _, run in sorted(page.runs().items())] == [True, True, False]
    assert page.act("restore", one) == (200, f"{one} is no longer archived")
    told = page.runs()
    assert (told[one]["archived"], told[one]["tags"]) == (False, SAID["tags"])
    assert told[two]["archived"]
    assert not (root / three / ABOUT).exists()


def test_runs_are_deleted_with_all_that_is_in_them(root: Path) -> None:
    page = Page(root)
    one, two, three = ids(root)
    (root / one / "videos").mkdir()
    (root / one / "videos/elsewhere").symlink_to(root.parent / "outside")
    (root / one / "checkpoints/best").mkdir(parents=True, exist_ok=True)
    (root / one / "checkpoints/best/file").touch()
    assert page.act("delete", one, two) == (200, "2 runs are deleted")
    assert list(page.runs()) == [three]
    assert ids(root) == [three]
    assert not list(root.rglob(f"{DELETED}*"))
    assert sorted(x.name for x in (root.parent / "outside").iterdir()) == ["config.json", "meta.json"]  # fmt: skip


ACTS = ("describe", "archive", "restore", "delete")


@pytest.mark.parametrize("act", ACTS)
def test_only_a_page_of_this_server_changes_what_is_kept(root: Path, act: str) -> None:
    page, run = Page(root), ids(root)[0]
    before = sorted(root.rglob("*"))
    token = page.headers["X-Gossamer-Token"]
    for headers in (
        {},
        {"Origin": ADDRESS},
        {"X-Gossamer-Token": token},
        {"X-Gossamer-Token": token, "Origin": "http://evil.example"},
        {"X-Gossamer-Token": token[:-1] + "-", "Origin": ADDRESS},
    ):
        assert page.act(act, run, headers=headers, **SAID)[0] == 403
    assert page.client.get(f"/api/act?act={act}&runs={run}&run={run}").status_code == 405
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("act", ["archive", "delete"])
def test_a_running_run_is_neither_archived_nor_deleted(root: Path, act: str) -> None:
    page = Page(root)
    one, two, three = ids(root)
    folder = RunFolder(root / two)
    folder.lock()
    status, told = page.act(act, one, two, three)
    assert status == 409
    assert told.startswith("2 of 3 runs are ")
    assert told.endswith(f"; {two}: it is running; stop it first")
    assert (root / two / "metrics.jsonl").exists()
    assert not page.runs()[two]["archived"]
    assert page.act("describe", two, name="while it trains")[0] == 200
    folder.unlock()


def test_a_run_of_which_processes_are_left_is_not_deleted(root: Path) -> None:
    run = ids(root)[0]
    handle = os.open(root / run / MEMBERS, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as processes of a session do, each of them
    assert Page(root).act("delete", run) == (409, f"{run}: it is running; stop it first")
    os.close(handle)
    assert Page(root).act("delete", run)[0] == 200


@pytest.mark.parametrize("act", ACTS)
def test_a_link_on_the_way_is_not_followed(root: Path, act: str) -> None:
    page, run = Page(root), ids(root)[0]
    outside = root.parent / "outside"
    before = {x: x.read_bytes() for x in outside.iterdir()}
    page.runs()
    shutil.rmtree(root / run)
    (root / run).symlink_to(outside)
    status, told = page.act(act, run, **SAID)
    assert (status in (404, 409), "no such run" in told) == (True, True)
    (root / "link").symlink_to(outside)
    for other in ("link", "../outside", str(outside), "..", f"{ids(root)[0]}/..", "CartPole-v1"):
        status, told = page.act(act, other, **SAID)
        assert (status in (404, 409), "no such run" in told) == (True, True), other
    assert {x: x.read_bytes() for x in outside.iterdir()} == before
    assert sorted(root.parent.iterdir()) == [outside, root]


@pytest.mark.parametrize("act", ["describe", "archive"])
def test_a_link_in_place_of_the_file_is_refused(root: Path, act: str) -> None:
    page, run = Page(root), ids(root)[0]
    outside = root.parent / "outside/config.json"
    (root / run / ABOUT).symlink_to(outside)
    before = outside.read_bytes()
    status, told = page.act(act, run, **SAID)
    assert status == 409
    assert "about.json cannot be read" in told
    assert outside.read_bytes() == before
    assert page.runs()[run]["note"] == ""
    (root / run / ABOUT).unlink()
    (root / run / ABOUT).write_text('{"name": "typed by ha')
    assert "repair or remove it" in page.act(act, run, **SAID)[1]
    assert (root / run / ABOUT).read_text() == '{"name": "typed by ha'


@pytest.mark.parametrize("act", ACTS)
def test_a_folder_that_vanished_is_told_and_keeps_nothing_from_others(root: Path, act: str) -> None:
    page = Page(root)
    one, two, _ = ids(root)
    page.runs()
    shutil.rmtree(root / one)
    several = (one,) if act == "describe" else (one, two)
    status, told = page.act(act, *several, **SAID)
    assert status in (404, 409)
    assert "no such run" in told
    assert (two in page.runs()) == (act != "delete")


@pytest.mark.parametrize("act", ACTS)
def test_what_is_no_run_of_ours_stays_as_it_is(root: Path, act: str) -> None:
    page = Page(root)
    (root / "model/checkpoints").mkdir(parents=True)
    (root / "model/config.json").write_text('{"hidden_size": 768, "algorithm": "bpe"}')
    (root / "rows").mkdir()
    (root / "rows/metrics.jsonl").write_text("{}\n")
    for run in ("model", "rows"):
        assert run in page.runs()
        before = sorted((root / run).iterdir())
        status, told = page.act(act, run, **SAID)
        assert status == 409
        assert "may be something else than a run" in told
        assert sorted((root / run).iterdir()) == before


FOREIGN: dict[str, dict[str, Any]] = {
    "config.json": {"env_id": "Pong", "algorithm": "dqn"},
    "meta.json": {"author": "somebody", "started_unix": "yesterday"},
    "layers.json": {"conv1": "relu"},
}
"""What other programs write under the names of a run's files."""


def test_a_folder_of_another_program_is_described_but_not_deleted(root: Path) -> None:
    page, other = Page(root), root / "other"
    (other / "checkpoints").mkdir(parents=True)
    (other / "checkpoints/precious.pt").write_bytes(b"weights")
    for name, content in FOREIGN.items():
        (other / name).write_text(json.dumps(content))
    assert page.act("describe", "other", name="of another program")[0] == 200
    assert page.act("archive", "other")[0] == 200
    status, told = page.act("delete", "other")
    assert (status, "may be something else than a run" in told) == (409, True)
    assert (other / "checkpoints/precious.pt").read_bytes() == b"weights"


@pytest.mark.parametrize("left", ["config.json", "meta.json"])
def test_a_run_is_deleted_right_after_its_start(root: Path, left: str) -> None:
    """One of the two files that a run begins with is enough, as the other may be damaged."""
    page, run = Page(root), ids(root)[0]
    for path in (root / run).iterdir():
        if path.is_file() and path.name not in (left, "log.txt"):
            path.unlink()
    (root / run / "checkpoints").mkdir(exist_ok=True)
    (root / run / "log.txt").touch()
    assert run in page.runs()
    assert page.act("delete", run) == (200, f"{run} is deleted")


def test_a_damaged_run_of_ours_is_deleted(root: Path) -> None:
    page, run = Page(root), ids(root)[0]
    (root / run / "config.json").write_text('{"env_id": "Cart')
    assert page.runs()[run]["state"] == "damaged"
    assert page.act("delete", run)[0] == 200
    assert not (root / run).exists()


def test_a_run_that_hides_others_is_not_deleted(root: Path) -> None:
    one, two, _ = ids(root)
    shutil.copytree(root / two, root / one / "old/inner")
    status, told = Page(root).act("delete", one)
    assert status == 409
    assert f"other runs below it, such as {one}/old/inner" in told
    assert (root / one / "config.json").exists()


def test_the_folder_that_is_watched_is_not_deleted(root: Path) -> None:
    run = root / ids(root)[0]
    page = Page(run)
    assert list(page.runs()) == [HERE]
    status, told = page.act("delete", HERE)
    assert (status, "it is the folder that is watched" in told) == (409, True)
    assert page.act("describe", HERE, **SAID)[0] == 200
    assert page.runs()[HERE]["name"] == SAID["name"]
    assert (run / "config.json").exists()


def test_a_run_is_not_deleted_while_its_note_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, run = Page(root), ids(root)[0]
    told: list[tuple[int, str]] = []
    deleting = threading.Thread(target=lambda: told.append(page.act("delete", run)), daemon=True)
    there_meanwhile: list[bool] = []
    change = housekeeping.changed

    def changed(*given: Any) -> Any:
        deleting.start()
        deleting.join(0.5)  # it would have been done by then
        there_meanwhile.append((root / run).exists())
        return change(*given)

    monkeypatch.setattr(housekeeping, "changed", changed)
    assert page.act("describe", run, **SAID)[0] == 200
    deleting.join(60)
    assert there_meanwhile == [True]
    assert told == [(200, f"{run} is deleted")]
    assert not list(root.rglob(f"{DELETED}*"))


def test_a_file_that_comes_during_a_removal_is_removed_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, run = Page(root), ids(root)[0]
    remove = shutil.rmtree
    problems = [OSError(errno.ENOTEMPTY, "Directory not empty")]

    def rmtree(*given: Any, **named: Any) -> None:
        if problems:
            raise problems.pop()
        remove(*given, **named)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert page.act("delete", run) == (200, f"{run} is deleted")
    assert not list(root.rglob(f"{DELETED}*"))


def test_a_removal_that_is_cut_short_leaves_no_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, run = Page(root), ids(root)[0]

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            page.act("delete", run)
    (left,) = root.rglob(f"{DELETED}*")
    assert left.parent == (root / run).parent
    assert not {"config.json", "meta.json", "metrics.jsonl"} & {x.name for x in left.iterdir()}
    assert run not in page.runs()
    assert root / run not in find_runs(root)
    with Page(root).client:  # the next start
        end = time.monotonic() + 20
        while left.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
    assert len(ids(root)) == 2


def test_only_leftovers_are_removed_at_the_start(root: Path) -> None:
    run = root / ids(root)[0]
    (run.parent / LEFT).mkdir()
    (run.parent / LEFT / "log.txt").touch()
    kept = [root / f"{DELETED}notes", root / f"x{LEFT}", run / LEFT]
    for folder in kept:
        folder.mkdir()
    outside = root.parent / "outside"
    (root / f"{DELETED}00000000000000aa").symlink_to(outside)
    (root / f"{DELETED}00000000000000bb").write_text("a file")
    assert remove_leftovers(Root(root)) == 1
    assert not (run.parent / LEFT).exists()
    assert all(folder.exists() for folder in [*kept, outside / "config.json"])
    assert remove_leftovers(Root(root / "missing")) == 0


def test_a_folder_that_cannot_be_written_is_told(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    page, run = Page(root), ids(root)[0]
    (root / run).parent.chmod(0o500)
    (root / run).chmod(0o500)
    try:
        assert page.act("delete", run) == (409, f"{run}: it cannot be deleted: Permission denied")
        assert "cannot be written: Permission denied" in page.act("describe", run, **SAID)[1]
    finally:
        (root / run).parent.chmod(0o700)
        (root / run).chmod(0o700)
    assert run in page.runs()


def test_what_is_sent_along_is_an_object_and_small(root: Path) -> None:
    page, run = Page(root), ids(root)[0]
    path = f"/api/act?act=describe&run={quote(run, safe='')}"
    for content, status in ((b"[]", 400), (b"{", 400), (b"\xff", 400), (b" " * (257 << 10), 413)):
        answer = page.client.post(path, content=content, headers=page.headers)
        assert answer.status_code == status
        assert "\n" not in answer.json()["error"]
    assert page.act("describe", run, colour="red")[0] == 409
    assert page.act("delete")[0] == 400


def test_views_are_saved_for_everybody(root: Path) -> None:
    page = Page(root)
    assert page.views() == []
    curves = "#/curves?runs=a%2Cb,c&stat=iqm"
    assert page.view("save", name=" seeds  of b", address=curves) == (200, "the view seeds of b is saved")  # fmt: skip
    assert page.view("save", name="Best", address="#/runs?sort=best_evaluation&down=1")[0] == 200
    other = Page(root)
    assert other.views() == [
        {"name": "Best", "address": "#/runs?sort=best_evaluation&down=1"},
        {"name": "seeds of b", "address": curves},
    ]
    assert other.view("save", name="Best", address="#/runs")[0] == 200
    assert other.view("delete", name="seeds of b") == (200, "the view seeds of b is deleted")
    assert page.views() == [{"name": "Best", "address": "#/runs"}]
    assert page.view("delete", name="seeds of b") == (409, "there is no view seeds of b any more")
    assert len(page.runs()) == 3, "the file of views is no run"


@pytest.mark.parametrize(
    ("view", "told"),
    [
        ({"name": "", "address": "#/runs"}, "1 to 100 characters, not 0"),
        ({"name": "x" * 101, "address": "#/runs"}, "not 101"),
        ({"name": "\x07" * 60, "address": "#/runs"}, "not 240, unprintable ones spelt out"),
        ({"name": ["a"], "address": "#/runs"}, "1 to 100 characters"),
        ({"name": "a", "address": "javascript:alert(1)"}, "begins with #/"),
        ({"name": "a", "address": "https://evil.example/#/"}, "begins with #/"),
        ({"name": "a"}, "begins with #/"),
        ({"name": "a", "address": "#/" + "x" * 4999}, "5001 characters; at most 5000"),
        ({"name": "a", "address": "#/runs\n"}, "no address can have"),
    ],
)
def test_what_is_no_view_is_refused(root: Path, view: dict[str, Any], told: str) -> None:
    page = Page(root)
    status, said = page.view("save", **view)
    assert (status, told in said) == (409, True), said
    assert page.views() == []


@pytest.mark.parametrize("act", ["save", "delete"])
def test_only_a_page_of_this_server_changes_views(root: Path, act: str) -> None:
    page = Page(root)
    page.view("save", name="a", address="#/runs")
    view = {"name": "a", "address": "#/curves"}
    assert page.view(act, headers={}, **view)[0] == 403
    evil = {**page.headers, "Origin": "http://evil.example"}
    assert page.view(act, headers=evil, **view)[0] == 403
    assert page.views() == [{"name": "a", "address": "#/runs"}]


def test_there_are_at_most_a_hundred_views(root: Path) -> None:
    page = Page(root)
    for i in range(100):
        assert page.view("save", name=f"{i}", address="#/" + "x" * 4998)[0] == 200
    assert page.view("save", name="one more", address="#/runs")[0] == 409
    assert page.view("save", name="7", address="#/runs")[0] == 200
    assert len(page.views()) == 100


def test_a_file_of_views_by_others_is_no_danger(root: Path) -> None:
    page = Page(root)
    good = {"name": "good", "address": "#/runs"}
    bad = [{"name": "bad", "address": "javascript:alert(1)"}, {"name": "bad"}, [], "x", None]
    (root / "views.json").write_text(json.dumps({"views": [*bad, good]}))
    assert page.views() == [good]
    for content in ("[", "[]", "{", '{"views": 5}', "x" * 100):
        (root / "views.json").write_text(content)
        assert page.views() == []
    assert "repair or remove it" in page.view("save", **good)[1]
    (root / "views.json").unlink()
    (root / "views.json").symlink_to(root.parent / "outside/config.json")
    before = (root.parent / "outside/config.json").read_bytes()
    assert page.view("save", **good)[0] == 409
    assert (root.parent / "outside/config.json").read_bytes() == before
    assert page.views() == []


def test_views_need_a_folder(tmp_path: Path) -> None:
    status, told = Page(tmp_path / "runs").view("save", name="a", address="#/runs")
    assert (status, told) == (
        409, "the folder that is watched does not exist yet; train a run first",
    )  # fmt: skip
