"""Comparisons in the page: what the command says of the same runs, read without following links, and not read twice."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from scored_runs import evaluation_row, make_run

pytest.importorskip("starlette", reason="needs the extra dashboard")
from starlette.testclient import TestClient

import gossamer.compare.reading
from gossamer.cli import main
from gossamer.dashboard.app import Dashboard
from gossamer.dashboard.comparisons import MAX_GROUPS, Comparisons, Question
from gossamer.dashboard.root import HERE, Root

ADDRESS = "http://127.0.0.1:8765"
RATES = ("0.001", "0.01")
SCORES = ([10.0, 20, 30], [100.0, 110, 120])


def make_groups(root: Path, *scores: list[float], env_id: str = "CartPole-v1") -> list[str]:
    """Return the ids of runs of two learning rates."""
    found = [
        make_run(
            root,
            f"{env_id}/{rate}-s{seed}",
            ["--optimizer.learning-rate", rate],
            env_id=env_id,
            seed=seed,
            returns=[0.2 * score, 0.5 * score, score],
            evaluation=score,
        )
        for rate, group in zip(RATES, scores or SCORES, strict=True)
        for seed, score in enumerate(group, start=1)
    ]
    return [str(path.relative_to(root)) for path in found]


def client(root: Path) -> TestClient:
    return TestClient(Dashboard(root).app, base_url=ADDRESS)


def asked(client: TestClient, runs: list[str], **query: Any) -> Any:
    named = ",".join(quote(run, safe="") for run in runs)
    rest = "".join(f"&{name}={value}" for name, value in query.items())
    return client.get(f"/api/compare?runs={named}{rest}")


def compared(client: TestClient, runs: list[str], **query: Any) -> dict[str, Any]:
    answer = asked(client, runs, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_says_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = make_groups(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *runs, "--threshold", "25", "--x", "seconds"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    (told,) = compared(client(tmp_path), runs, threshold=25, x="seconds")["comparisons"]
    for line in (*told["heading"], *told["remarks"], *told["notes"]):
        assert " ".join(line.split()) in words
    for verdict in told["verdicts"]:
        assert f"{verdict['found']}. {verdict['verdict']}" in words
    titles = [table["title"] for table in told["tables"]]
    assert [x for x in titles if x not in words] == []
    assert any(x.startswith("CartPole-v1: to a mean return of 25") for x in titles)
    for table in told["tables"]:
        for row in (table["head"], *table["rows"]):
            assert " ".join(row) in words
    (verdict,) = told["verdicts"]
    assert verdict["verdict"] == "B is better than A"
    assert not verdict["open"]
    (scores,) = [x for x in told["tables"] if x["scores_of"]]
    assert scores["rows"][0][:2] == ["A optimizer.learning_rate=0.001", "3"]


def test_groups_tell_their_runs_and_seeds(tmp_path: Path) -> None:
    runs = make_groups(tmp_path)
    (told,) = compared(client(tmp_path), runs)["comparisons"]
    assert [group["runs"] for group in told["groups"]] == [runs[:3], runs[3:]]
    found = told["groups"][1]["scores"]["CartPole-v1"]
    assert [x["score"] for x in found["runs"]] == SCORES[1]
    assert found["runs"][0]["run"] == runs[3]
    assert found["iqm"]["value"] == 110
    assert found["iqm"]["low"] < 100 < 120 < found["iqm"]["high"]


def test_why_there_is_no_verdict_is_told(tmp_path: Path) -> None:
    runs = make_groups(tmp_path)
    (told,) = compared(client(tmp_path), runs[:5])["comparisons"]
    (verdict,) = told["verdicts"]
    assert verdict["verdict"] == "No verdict: B has 2 seeds, 3 are needed"
    assert verdict["open"]
    (told,) = compared(client(tmp_path), runs[:3])["comparisons"]
    assert told["verdicts"] == []
    assert told["remarks"][0].startswith("one group: nothing to compare")


def test_environments_that_share_no_group_are_compared_each(tmp_path: Path) -> None:
    runs = [
        str(make_run(tmp_path, f"{env_id}-{rate}", ["--optimizer.learning-rate", rate], env_id=env_id, evaluation=1.0).relative_to(tmp_path))
        for env_id, rates in (("CartPole-v1", ("0.001", "0.01")), ("Acrobot-v1", ("0.01", "0.1")))
        for rate in rates
    ]  # fmt: skip
    found = compared(client(tmp_path), runs)["comparisons"]
    assert [x["tasks"] for x in found] == [["Acrobot-v1"], ["CartPole-v1"]]


def test_a_run_that_was_deleted_is_left_out_and_named(tmp_path: Path) -> None:
    runs = make_groups(tmp_path)
    page = client(tmp_path)
    page.get("/api/runs")
    shutil.rmtree(tmp_path / runs[0])
    gone = f"left out: there is no run {runs[0]}"
    page.get("/api/runs")
    told = compared(page, runs)
    assert told["said"] == [gone]
    assert [group["runs"] for group in told["comparisons"][0]["groups"]] == [runs[1:3], runs[3:]]
    named = ",".join(quote(run, safe="") for run in runs)
    for path in ("groups?", "curves?metric=return_mean_100&"):
        told = page.get(f"/api/{path}runs={named}").json()
        assert told["said"] == [gone]
        assert [group["runs"] for group in told["groups"]] == [runs[1:3], runs[3:]]
    for statistic, name in (("", "run"), ("&statistic=mean", "group")):
        answer = page.get(f"/api/export.csv?metric=return_mean_100&runs={named}{statistic}")
        first, *others = csv.DictReader(io.StringIO(answer.text))
        assert (first["metric"], first[name], first["value"]) == ("return_mean_100", gone, "")
        assert all(row["value"] for row in others)
    answer = asked(page, [f"gone{i}" for i in range(5)])
    assert answer.status_code == 404
    assert answer.json()["error"].endswith(": gone0, gone1, gone2 and 2 more")


def test_the_folder_that_is_watched_may_be_a_run(tmp_path: Path) -> None:
    (run, *_) = make_groups(tmp_path)
    (told,) = compared(client(tmp_path / run), [HERE])["comparisons"]
    (group,) = told["groups"]
    assert group["runs"] == [HERE]
    assert [x["run"] for x in group["scores"]["CartPole-v1"]["runs"]] == [HERE]


def test_a_threshold_reads_the_episodes_of_runs_that_were_read_before(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", returns=[10.0, 30.0])
    rows = [{"env_steps": i, "time_s": i, "return": 30.0, "length": 1} for i in range(1, 200)]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = client(tmp_path)
    assert compared(page, ["a"])["comparisons"]
    (told,) = compared(page, ["a"], threshold=25)["comparisons"]
    (table,) = [x for x in told["tables"] if "to a mean return of 25" in x["title"]]
    assert "100" in table["rows"][0], "not the 2,000 of the next row"


class Reading:
    """Stands for the reading of runs: waits until it may go on, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.read: list[str] = []
        read_run = gossamer.compare.reading.read_run

        def wait(path: Path, *given: Any, **named: Any) -> Any:
            self.begun.set()
            assert self.may_go_on.wait(60)
            self.read.append(str(path))
            return read_run(path, *given, **named)

        monkeypatch.setattr(gossamer.compare.reading, "read_run", wait)


def test_comparisons_that_nobody_waits_for_any_more_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = make_groups(tmp_path)
    reading = Reading(monkeypatch)
    comparisons = Comparisons(Root(tmp_path))
    left = False

    async def gone() -> bool:
        return left

    async def stays() -> bool:
        return False

    async def ask() -> list[Any]:
        nonlocal left
        waiting = [
            asyncio.create_task(comparisons.answer(Question((run,)), gone)) for run in runs[:5]
        ]
        last = asyncio.create_task(comparisons.answer(Question((runs[5],)), stays))
        await asyncio.to_thread(reading.begun.wait, 60)
        left = True
        told = await asyncio.gather(*waiting)
        reading.may_go_on.set()
        return [*told, await last]

    with ThreadPoolExecutor(
        1
    ) as apart:  # a browser of this process has an event loop in this thread
        *abandoned, told = apart.submit(asyncio.run, asyncio.wait_for(ask(), 60)).result()
    comparisons.close()
    assert abandoned == [None] * 5
    assert told["comparisons"][0]["groups"][0]["runs"] == [runs[5]]
    assert reading.read == [runs[0], runs[5]]


def test_other_answers_do_not_wait_for_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty pages compare, and more do not fit into the threads of the server."""
    runs = make_groups(tmp_path)
    reading = Reading(monkeypatch)
    with client(tmp_path) as page:
        pages = [threading.Thread(target=asked, args=(page, runs), daemon=True) for _ in range(60)]
        for one in pages:
            one.start()
        assert reading.begun.wait(60)
        answers: list[int] = []
        other = threading.Thread(
            target=lambda: answers.append(page.get("/api/meanings", params={"run": runs[0]}).status_code),
            daemon=True,
        )  # fmt: skip
        other.start()
        other.join(30)
        in_time = list(answers)
        reading.may_go_on.set()
        for one in [*pages, other]:
            one.join(60)
    assert in_time == [200]


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    runs = make_groups(tmp_path)
    page = client(tmp_path)
    for query, want in (
        ({"by": "no_such_setting"}, "no run has a setting of that name"),
        ({"by": "env_id"}, "scores of different environments cannot be compared"),
    ):
        answer = asked(page, runs, **query)
        assert answer.status_code == 409
        assert want in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
    assert asked(page, ["missing"]).status_code == 404
    assert asked(page, [], x="updates").status_code == 400
    assert asked(page, runs, x="updates").status_code == 400
    assert asked(page, runs, score="best").status_code == 400
    assert asked(page, runs, threshold="nan").status_code == 400


def test_too_many_groups_are_refused_before_they_are_paired(tmp_path: Path) -> None:
    runs = [
        str(make_run(tmp_path, f"r{i}", ["--optimizer.learning-rate", f"0.0{i + 10}"], evaluation=1.0).relative_to(tmp_path))
        for i in range(MAX_GROUPS + 1)
    ]  # fmt: skip
    page = client(tmp_path)
    answer = asked(page, runs)
    assert answer.status_code == 409
    assert f"{MAX_GROUPS} can be compared; group them by a setting" in answer.json()["error"]
    assert len(compared(page, runs, by="algorithm")["comparisons"][0]["groups"]) == 1


def test_damaged_runs_are_left_out_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "outside", "run", evaluation=999.0)
    root = tmp_path / "runs"
    runs = make_groups(root)
    (root / runs[0] / "config.json").write_text("{")
    (root / runs[1] / "evaluation.jsonl").unlink()
    (root / runs[1] / "evaluation.jsonl").symlink_to(outside / "evaluation.jsonl")
    told = compared(client(root), runs, score="evaluation")
    assert told["said"][0].startswith(f"left out: {runs[0]}/config.json is damaged")
    (found,) = told["comparisons"]
    assert any(
        f"as there is no evaluation of the last policy: {runs[1]}" in x for x in found["notes"]
    )
    assert "999" not in json.dumps(told)


def test_a_new_evaluation_changes_the_answer(tmp_path: Path) -> None:
    runs = make_groups(tmp_path)
    page = client(tmp_path)
    before = compared(page, runs)
    assert compared(page, runs) == before
    with (tmp_path / runs[0] / "evaluation.jsonl").open("a") as file:
        file.write(json.dumps(evaluation_row(13.0, 3_000)) + "\n")
    (found,) = compared(page, runs)["comparisons"]
    assert found["groups"][0]["scores"]["CartPole-v1"]["runs"][0]["score"] == 13


def test_runs_that_have_not_changed_are_not_read_again(tmp_path: Path) -> None:
    """What is on the disk is kept while times and sizes stay: another text of the same length is not seen."""
    runs = make_groups(tmp_path)
    page = client(tmp_path)
    before = compared(page, runs)
    path = tmp_path / runs[0] / "evaluation.jsonl"
    status = path.stat()
    path.write_text(path.read_text().replace("10.0", "99.0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert compared(page, runs) == before


def test_nothing_heavy_is_loaded_before_runs_are_compared(tmp_path: Path) -> None:
    runs = make_groups(tmp_path)
    body = f"""
import sys
from pathlib import Path
from starlette.testclient import TestClient
from gossamer.dashboard.app import Dashboard
page = TestClient(Dashboard(Path({str(tmp_path)!r})).app, base_url={ADDRESS!r})
heavy = lambda: [x for x in ("torch", "gymnasium", "scipy", "matplotlib") if x in sys.modules]
assert page.get("/api/runs").status_code == 200
print(heavy())
assert page.get("/api/compare?runs={",".join(quote(run, safe="") for run in runs)}").status_code == 200
print(heavy())
"""
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "['scipy']"]


def test_twenty_runs_are_compared_in_two_seconds(tmp_path: Path) -> None:
    runs = []
    for rate in ("0.001", "0.002", "0.003", "0.004"):
        for seed in range(1, 6):
            words = ["--optimizer.learning-rate", rate]
            scores = [float(i % 97) for i in range(2_000)]
            path = make_run(tmp_path, f"{rate}-s{seed}", words, seed=seed, returns=scores, evaluation=float(seed))  # fmt: skip
            runs.append(str(path.relative_to(tmp_path)))
    page = client(tmp_path)
    page.get("/api/runs")
    began = time.process_time()  # other tests may have the cores
    compared(page, runs)
    assert time.process_time() - began < 2.0


def test_advice_names_the_menus_of_the_page(tmp_path: Path) -> None:
    evaluated = make_run(tmp_path, "evaluated", evaluation=3.0).name
    bare = make_run(tmp_path, "bare", seed=2).name
    told = asked(client(tmp_path), [evaluated, bare]).json()["comparisons"][0]
    assert "“last evaluation” in the menu Score leaves these runs out" in told["notes"][0]
    assert told["remarks"] == ["one group: nothing to compare; the menu Group groups by a setting"]
    refused = asked(client(tmp_path), [bare], score="evaluation").json()["error"]
    assert "“training returns” in the menu Score needs none" in refused
    assert "--" not in json.dumps([told, refused], ensure_ascii=False)


def test_columns_that_say_the_same_are_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, "short", returns=(5.0,)).name
    for axis, column in (("env_steps", "1,000"), ("seconds", "1 s")):
        (table,) = [x for x in asked(client(tmp_path), [run], x=axis).json()["comparisons"][0]["tables"] if "IQM of" in x["title"]]  # fmt: skip
        assert table["head"] == ["group", "n", column]
        assert [len(row) for row in table["rows"]] == [3]
