"""What the server of `gossamer watch` answers, against the files that it reads."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import platform
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import SEEDS, made_runs, row_of

pytest.importorskip("starlette", reason="needs the extra dashboard")
from starlette.testclient import TestClient

from gossamer.compare.statistics import estimate
from gossamer.config import make_config, to_dict, train_help
from gossamer.dashboard.app import Dashboard
from gossamer.dashboard.ranges import requested
from gossamer.dashboard.root import RunFiles
from gossamer.dashboard.thinning import thin
from gossamer.policies.settings import EncoderConfig
from gossamer.record.folder import RunFolder
from gossamer.system.cores import machine_cores

ROWS = 40
ADDRESS = "http://127.0.0.1:8765"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched")
    made_runs(root, 2 * SEEDS, ROWS)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def client(root: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(Dashboard(root, host).app, base_url=ADDRESS, raise_server_exceptions=True)


def ask(root: Path, path: str, **query: Any) -> Any:
    answer = client(root).get(path, params={k: str(v) for k, v in query.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(root: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("config.json"))


def rows_of(root: Path, run: str, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / run / name).read_text().splitlines()]


def joined(items: list[str]) -> str:
    return ",".join(quote(item, safe="") for item in items)


def curves(root: Path, runs: list[str], **query: Any) -> list[dict[str, Any]]:
    rest = "&".join(f"{name}={value}" for name, value in query.items())
    answer = client(root).get(f"/api/curves?runs={joined(runs)}&{rest}")
    assert answer.status_code == 200, answer.text
    return answer.json()["groups"]


def test_every_run_is_listed_with_what_tells_it_apart(made: Path) -> None:
    told = ask(made, "/api/runs")
    assert [run["id"] for run in told["runs"]] == sorted(
        ids(made), key=lambda x: (-told["runs"][0]["started"], x)
    )
    run = told["runs"][-1]
    last = rows_of(made, run["id"])[-1]
    assert run["env_id"] == "CartPole-v1"
    assert run["seed"] == json.loads((made / run["id"] / "config.json").read_text())["seed"]
    assert run["env_steps"] == last["env_steps"]
    assert run["where"] == "this machine"
    assert {x["settings"]["algorithm.name"] for x in told["runs"]} == {"ppo", "vtrace"}
    assert all("seed" not in x["settings"] for x in told["runs"])


def test_states_and_what_may_be_done(root: Path) -> None:
    running, died, stopped, damaged, link = ids(root)[:5]
    (root / running / "checkpoints").mkdir()
    lock = RunFolder(root / running)
    lock.lock()
    for run in (died, stopped):
        (root / run / "checkpoints/40").mkdir(parents=True)
    (root / died / "summary.json").unlink()
    (root / stopped / "summary.json").write_text('{"exit_reason": "stopped by SIGINT"}')
    (root / damaged / "config.json").write_text('{"env_id": "Cart')
    (root / link / "config.json").unlink()
    (root / link / "config.json").symlink_to("/etc/passwd")
    told = {run["id"]: run for run in ask(root, "/api/runs")["runs"]}
    lock.unlock()
    assert (told[running]["state"], told[running]["acts"]) == (
        "running", ["stop", "checkpoint", "evaluate"],
    )  # fmt: skip
    assert (told[died]["state"], told[died]["acts"]) == ("killed", ["resume"])
    assert (told[stopped]["state"], told[stopped]["acts"]) == ("stopped", ["resume"])
    for run in (damaged, link):
        assert told[run]["state"] == "damaged"
        assert "config.json" in told[run]["problem"]
        assert told[run]["acts"] == []


def test_no_folder_and_an_empty_one_have_no_runs(tmp_path: Path) -> None:
    assert ask(tmp_path, "/api/runs")["runs"] == []
    assert ask(tmp_path / "not yet", "/api/runs")["runs"] == []


@pytest.mark.parametrize(
    ("axis", "key"),
    [("env_steps", "env_steps"), ("updates", "updates"), ("seconds", "time_s")],
)
def test_a_series_is_what_the_rows_tell(made: Path, axis: str, key: str) -> None:
    run = ids(made)[0]
    rows = rows_of(made, run)
    told = ask(made, "/api/series", run=run, metric="return_mean_100", x=axis)
    assert told["x"] == pytest.approx([row[key] for row in rows])
    assert told["y"] == pytest.approx([row["return_mean_100"] for row in rows])
    assert (told["low"], told["high"], told["rows"], told["exact"]) == (None, None, ROWS, True)
    part = ask(
        made, "/api/series", run=run, metric="return_mean_100", x=axis,
        **{"from": rows[10][key], "to": rows[20][key]},
    )  # fmt: skip
    assert part["y"] == pytest.approx([row["return_mean_100"] for row in rows[10:21]])


def test_seconds_become_the_clock_of_their_session(root: Path) -> None:
    run = ids(root)[0]
    meta = json.loads((root / run / "meta.json").read_text())
    first = meta["sessions"][0]
    # Ten seconds were trained; a day later it was resumed.
    meta["sessions"] = [
        {**first, "time_unix": 1000.0, "seconds_before": 0.0},
        {**first, "time_unix": 87400.0, "seconds_before": 10.0},
    ]
    (root / run / "meta.json").write_text(json.dumps(meta))

    def at_the_end(row: dict[str, Any]) -> bool:
        row["time_s"] = 10.0 if 9.5 < row["time_s"] < 10.5 else row["time_s"]
        return True

    changed_rows(root / run, at_the_end)  # as the last evaluation of the first session is
    seconds = [row["time_s"] for row in rows_of(root, run)]
    assert 10.0 in seconds
    told = ask(root, "/api/series", run=run, metric="learner/loss", x="time")
    assert told["x"] == pytest.approx([(1000 if x <= 10 else 87390) + x for x in seconds])
    # In the second one the machine slept for an hour.
    meta["sessions"][1]["clock"] = [[87390.0 + 3600.0 + 20.0, 20.0], ["x", 3]]
    (root / run / "meta.json").write_text(json.dumps(meta))
    told = ask(root, "/api/series", run=run, metric="learner/loss", x="time")
    starts = [1000 if x <= 10 else 87390 if x <= 20 else 90990 for x in seconds]
    assert told["x"] == pytest.approx([x + begin for x, begin in zip(seconds, starts, strict=True)])


def test_evaluations_and_episodes_are_series_too(made: Path) -> None:
    run = ids(made)[0]
    told = ask(made, "/api/series", run=run, metric="evaluation/mean", x="env_steps")
    rows = rows_of(made, run, "evaluation.jsonl")
    assert told["y"] == pytest.approx([row["mean"] for row in rows if not row["confirmation"]])
    told = ask(made, "/api/series", run=run, metric="episode/return", x="env_steps")
    assert told["rows"] == len(rows_of(made, run, "episodes.jsonl"))
    names = {x["name"]: x for x in ask(made, "/api/metrics", run=run)["metrics"]}
    assert names["learner/loss"]["learners"] == [0]
    assert names["evaluation/mean"]["unit"] == "return"


def test_a_long_file_is_sampled_at_once_and_then_read_whole(root: Path) -> None:
    run = ids(root)[0]
    line = (root / run / "metrics.jsonl").read_text().splitlines()[0]
    row = json.loads(line)
    count = (5 << 20) // len(line)
    with (root / run / "metrics.jsonl").open("w") as file:
        for i in range(count):
            file.write(json.dumps({**row, "env_steps": i, "learner/loss": float(i % 7)}) + "\n")
    with client(root) as asked:
        query = {"run": run, "metric": "learner/loss", "x": "env_steps", "points": "20000"}
        first = asked.get("/api/series", params=query).json()
        assert not first["exact"]
        assert first["not_positive_rows"] is None, "of a sample nobody can tell"
        assert 1000 < first["rows"] < count
        until = time.monotonic() + 60
        while not (told := asked.get("/api/series", params=query).json())["exact"]:
            assert time.monotonic() < until
            time.sleep(0.02)  # whoever asks all the time is told at last, too
        assert told["rows"] == count
        assert told["y"] == [float(i % 7) for i in range(count)]


def test_seeds_are_one_curve_with_the_interval_of_compare(made: Path) -> None:
    runs = ids(made)
    groups = curves(
        made, runs, metric="return_mean_100", x="env_steps", statistic="iqm", points=ROWS
    )
    assert sorted(group["settings"]["algorithm.name"] for group in groups) == ["ppo", "vtrace"]
    for group in groups:
        assert (group["n"], group["interval"]) == (SEEDS, "95 % studentized bootstrap")
        seeds = []
        for run in group["runs"]:
            rows = rows_of(made, run)
            x, y = ([row[k] for row in rows] for k in ("env_steps", "return_mean_100"))
            seeds.append(np.interp(group["x"], x, y))
        wanted = estimate([np.array(seeds)], "iqm")
        assert group["y"] == pytest.approx(wanted.value.tolist())
        assert group["low"] == pytest.approx(wanted.low.tolist())
        assert group["high"] == pytest.approx(wanted.high.tolist())
        assert set(group["counts"]) == {SEEDS}


def test_rows_without_a_place_on_a_logarithmic_axis_are_counted(root: Path) -> None:
    """Of the rows, however few points are drawn; of a mean's points many more may be 0 or less."""
    run, other = ids(root)[:2]

    def signed(row: dict[str, Any]) -> bool:
        row["learner/loss"] = 1.0 if row["updates"] % 3 else -row["updates"] + 3.0
        return True

    changed_rows(root / run, signed)
    count = sum(row["learner/loss"] <= 0 for row in rows_of(root, run))
    assert 0 < count < ROWS
    for points in (3, 100):
        query = {"metric": "learner/loss", "x": "updates", "points": points}
        assert ask(root, "/api/series", run=run, **query)["not_positive_rows"] == count
        query["metric"] = "learner%2Floss"
        (group,) = curves(root, [run, other], statistic="mean", **query)
        others = sum(row["learner/loss"] <= 0 for row in rows_of(root, other))
        assert group["not_positive_rows"] == count + others


def test_two_seeds_have_no_interval(made: Path) -> None:
    runs = ids(made)[:2]
    (group,) = curves(made, runs, metric="return_mean_100", x="env_steps", statistic="mean")
    assert (group["n"], group["interval"]) == (2, "none: two runs")
    assert set(group["low"]) == set(group["high"]) == {None}
    assert None not in group["y"]


@pytest.mark.parametrize("path", ["/api/curves", "/api/export.csv"])
def test_seeds_have_no_statistic_over_the_wall_clock(made: Path, path: str) -> None:
    """They may have trained one after another."""
    query = f"runs={joined(ids(made)[:3])}&metric=return_mean_100&x=time&statistic=mean"
    answer = client(made).get(f"{path}?{query}")
    assert answer.status_code == 400
    assert "x=env_steps" in answer.json()["error"]


def test_two_runs_differ_in_what_they_differ(made: Path) -> None:
    a, b = ids(made)[0], ids(made)[-1]
    told = {x["name"]: x for x in ask(made, "/api/difference", a=a, b=b)["settings"]}
    assert (told["algorithm.name"]["a"], told["algorithm.name"]["b"]) == ("ppo", "vtrace")
    assert told["algorithm.name"]["layer_a"] == "command line"
    assert "env_id" not in told


def test_a_replay_ratio_that_became_fractions_is_told_as_it_was_set(root: Path) -> None:
    run = root / ids(root)[0]
    config = make_config("CartPole-v1", {"algorithm": {"name": "vtrace"}, "replay_ratio": 3.0})
    (run / "config.json").write_text(json.dumps(to_dict(config)))
    layers = {"replay_ratio": "in the fractions", "replays": "command line"}
    (run / "layers.json").write_text(json.dumps(layers))
    settings = ask(root, "/api/run", run=ids(root)[0])["settings"]
    (told,) = [x for x in settings if x["name"] == "replay_ratio"]
    assert told == {"name": "replay_ratio", "value": 3.0, "layer": "in the fractions"}


def test_details_tell_settings_with_their_layers(made: Path) -> None:
    told = ask(made, "/api/run", run=ids(made)[0])
    settings = {x["name"]: x for x in told["settings"]}
    assert settings["env_id"] == {
        "name": "env_id", "value": "CartPole-v1", "layer": "command line",
    }  # fmt: skip
    assert told["log"][-1].endswith("CartPole-v1: Gymnasium, truncated after 500 steps")
    shares = {(x["role"], x["doing"]): x["share"] for x in told["limits"]["shares"]}
    last = rows_of(made, ids(made)[0])[-10:]
    assert shares["learner", "learn"] == pytest.approx(
        np.mean([row["share/learn"] for row in last])
    )
    assert "earner" in told["limits"]["sentence"].split(":")[0]
    assert told["machine"]["cores"] == os.cpu_count()
    assert told["environment"] == {
        "protocol": "CartPole-v1: Gymnasium, truncated after 500 steps",
        "observes": ["vector 4"],
        "acts": ["one of 2"],
    }


@pytest.mark.parametrize(
    ("facts", "cores"),
    [({"machine_cores": 2, "host": "elsewhere"}, 2), ({"host": platform.node()}, machine_cores())],
)
def test_the_cores_that_limit_a_run_are_the_machine_s(
    root: Path, facts: dict[str, Any], cores: int
) -> None:
    """Of two seeds that train at a time each has half of the cores, and the other one is another program."""
    run = ids(root)[0]
    meta = json.loads((root / run / "meta.json").read_text())
    meta["sessions"][-1]["machine"] = {"cores": 1, **facts}
    (root / run / "meta.json").write_text(json.dumps(meta))

    def busy(row: dict[str, Any]) -> bool:
        row |= {"cpu_percent": 70.0, "others_cpu_percent": 130.0, "share/learn": 0.95}
        row |= {"share/wait_learner": 0.05, "share/wait_actor": 0.6}
        return True

    changed_rows(root / run, busy)
    told = ask(root, "/api/run", run=run)["limits"]["sentence"]
    assert f"the run uses 0.7 of {cores} cores, other programs 1.3" in told


def test_what_a_run_observes_and_how_it_acts_are_told(root: Path) -> None:
    meta = json.loads((root / ids(root)[0] / "meta.json").read_text())
    meta["observes"] = [
        {"name": "image", "kind": "pixels", "shape": [3, 60, 80]},
        {"name": "state/speed", "kind": "vector", "shape": [2]},
    ]
    meta["acts"] = [
        {"name": "aim", "kind": "gaussian", "sizes": [2], "masked": False},
        {"name": "legs/move", "kind": "categorical", "sizes": [5], "masked": True},
        {"name": 7, "kind": ["x"], "sizes": "many"},
        {"kind": "{x} {0.__class__}", "sizes": [1]},
        "nothing",
    ]
    (root / ids(root)[0] / "meta.json").write_text(json.dumps(meta))
    told = ask(root, "/api/run", run=ids(root)[0])["environment"]
    assert told["observes"] == ["image: pixels 3 x 60 x 80", "state/speed: vector 2"]
    assert told["acts"][:2] == [
        "aim: 2 real numbers",
        "legs/move: one of 5 (some may be forbidden)",
    ]
    assert told["acts"][3:] == ["{x} {0.__class__} 1", ""]


def test_what_is_not_known_of_a_machine_is_left_out(root: Path) -> None:
    known, damaged = ids(root)[:2]
    (root / damaged / "meta.json").unlink()
    (root / damaged / "config.json").write_text("{")
    assert ask(root, "/api/run", run=damaged)["machine"] == {}
    assert ask(root, "/api/run", run=known)["machine"].keys() >= {"versions", "command", "sessions"}


def test_learners_are_nodes_and_messages_links(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    run = str(folder.relative_to(tmp_path))
    told = ask(tmp_path, "/api/graph", run=run)
    assert [node["rank"] for node in told["nodes"]] == [0, 1, 2, 3]
    rows = rows_of(tmp_path, run)
    for node in told["nodes"]:
        own = [row for row in rows if row["learner"] == node["rank"]][-1]
        assert node["return"] == pytest.approx(own["learner/return_mean_100"])
        assert node["updates"] == own["updates"]
    mixing = json.loads((folder / "mixing.json").read_text())["turns"]
    weights = np.zeros((4, 4))
    for turn in mixing:
        for reader, row in enumerate(turn):
            for peer, weight in row:
                weights[reader, peer] += weight / len(mixing)
    for edge in told["edges"]:
        assert edge["weight"] == pytest.approx(weights[edge["to"], edge["from"]])
    assert {(x["from"], x["to"]) for x in told["edges"]} >= {
        (peer, reader) for reader, peer in zip(*np.nonzero(weights), strict=True) if peer != reader
    }
    early = ask(tmp_path, "/api/graph", run=run, at=rows[8]["time_s"])
    newest = [row for row in rows if row["time_s"] <= rows[8]["time_s"] and row["learner"] == 0]
    assert early["nodes"][0]["updates"] == newest[-1]["updates"]


def test_the_range_of_returns_is_that_of_the_whole_run(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    run = str(folder.relative_to(tmp_path))
    of_all = [row["learner/return_mean_100"] for row in rows_of(tmp_path, run)]
    with client(tmp_path) as asked:
        for at in (None, 1.0, 30.0):
            told = asked.get("/api/graph", params={"run": run, "at": at} if at else {"run": run})
            assert told.json()["returns"] == pytest.approx([min(of_all), max(of_all)])
        # Newer runs tell all returns in the rows of learner 0, and those are what the graph shows.
        with (folder / "metrics.jsonl").open("a") as file:
            row = {"time_s": 99.0, "env_steps": 1, "updates": 1, "learner": 0}
            returns = {f"learner/return_of_{rank}": -50.0 * rank for rank in range(4)}
            file.write(json.dumps({**row, **returns}) + "\n")
            file.write('{"learner/return_of_0": 7')
        told = asked.get("/api/graph", params={"run": run, "at": 5.0}).json()
        assert told["returns"] == [-150.0, 0.0]
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(".5}\n")
        assert asked.get("/api/graph", params={"run": run}).json()["returns"] == [-150.0, 7.5]


def changed_rows(folder: Path, change: Callable[[dict[str, Any]], bool]) -> None:
    """Write a run's metrics anew, each row as `change` leaves it, without those of which it returns False."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [json.dumps(row) + "\n" for row in rows if change(row)]
    (folder / "metrics.jsonl").write_text("".join(kept))


def test_the_ranges_of_links_and_rims_are_those_of_the_whole_run(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    run = str(folder.relative_to(tmp_path))

    def apart(row: dict[str, Any]) -> bool:
        seconds = row["time_s"]
        row["topology/staleness_updates_of_1"] = 100 - abs(seconds - 30)
        if row["learner"] == 0:
            row |= {f"topology/disagreement_of_{rank}": rank / seconds for rank in range(4)}
        return True

    changed_rows(folder, apart)
    rows = rows_of(tmp_path, run)
    with client(tmp_path) as asked:
        for at in ("", "&at=3", "&at=30"):
            told = asked.get(f"/api/graph?run={quote(run)}{at}").json()
            for name in ("staleness_updates", "disagreement"):
                values = [
                    y for x in rows for k, y in x.items() if k.startswith(f"topology/{name}_of_")
                ]
                assert told[f"most_{name}"] == max(values)


def learners(root: Path, run: str, **query: Any) -> list[str]:
    """Return the state of each learner of a run."""
    nodes = ask(root, "/api/graph", run=run, **query)["nodes"]
    words = {(True, True): "running", (True, False): "ended", (False, False): "not begun"}
    return [words[node["begun"], node["alive"]] for node in nodes]


def test_what_a_learner_tells_of_itself_is_its_own_and_has_an_age(tmp_path: Path) -> None:
    """Learner 0 has a row every second, others have one every ten."""
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    run = str(folder.relative_to(tmp_path))
    changed_rows(folder, lambda row: row["learner"] == 0 or row["time_s"] < 20)
    first, *others = ask(tmp_path, "/api/graph", run=run, at=25.0)["nodes"]
    assert first["told_seconds_before"] == 0.0
    assert all(node["told_seconds_before"] > 4.0 for node in others)

    def without_own(row: dict[str, Any]) -> bool:
        row.pop("learner/env_steps", None)
        return True

    changed_rows(folder, without_own)
    nodes = ask(tmp_path, "/api/graph", run=run)["nodes"]
    assert [node["env_steps"] for node in nodes] == [None] * 4, "not everybody's for each"


def test_learners_have_not_begun_before_their_first_row(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    run = str(folder.relative_to(tmp_path))
    changed_rows(folder, lambda row: row["learner"] != 3 or row["time_s"] > 20)
    assert learners(tmp_path, run, at=5.0) == ["running"] * 3 + ["not begun"]
    assert learners(tmp_path, run, at=35.0) == ["running"] * 4
    (folder / "log.txt").write_text(
        "2001-01-01 00:00:00 Learner 3 died (signal 9) and was restarted\n"
    )
    assert learners(tmp_path, run, at=5.0) == ["running"] * 3 + ["ended"]


def test_learners_of_a_resumed_run_have_not_begun_until_their_processes_are_known(
    tmp_path: Path,
) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=2)
    run = str(folder.relative_to(tmp_path))

    def started(supervisor: int, *learners: int) -> None:
        rows = [{"role": "supervisor", "rank": None, "pid": supervisor, "restarts": 0}]
        rows += [
            {"role": "learner", "rank": i, "pid": x, "restarts": 0} for i, x in enumerate(learners)
        ]
        (folder / "processes.json").write_text(json.dumps(rows))

    meta = json.loads((folder / "meta.json").read_text())
    resumed = {"time_unix": time.time() - 12, "seconds_before": 61.0}
    first = {**meta["sessions"][0], "time_unix": time.time() - 7200, "seconds_before": 0.0}
    (folder / "meta.json").write_text(json.dumps({**meta, "sessions": [first, resumed]}))
    now, dead = time.strftime("%Y-%m-%d %H:%M:%S"), 2**22 + 1
    (folder / "log.txt").write_text(f"{now} Resumed with 2 learners\n")
    started(dead, dead, dead)
    lock = RunFolder(folder)
    lock.lock()
    assert learners(tmp_path, run) == ["not begun"] * 2
    told = ask(tmp_path, "/api/graph", run=run)
    (event,) = told["events"]
    assert event["seconds"] <= told["at"]
    assert told["at"] == pytest.approx(73, abs=10)
    assert told["times"][1] == told["at"], "the slider ends now"
    started(os.getpid(), os.getpid(), dead)
    assert learners(tmp_path, run) == ["running", "ended"]
    lock.unlock()
    assert ask(tmp_path, "/api/graph", run=run)["times"][1] < 62


def test_the_range_of_returns_of_a_long_run_is_of_parts_of_it(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 2)
    run = str(folder.relative_to(tmp_path))
    row = {**rows_of(tmp_path, run)[-1], "padding": "x" * 4000}
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(2500):
            file.write(json.dumps({**row, "time_s": float(i), "return_mean_100": float(i)}) + "\n")
    low, high = ask(tmp_path, "/api/graph", run=run, at=7.0)["returns"]
    assert (low, high) == (0.0, 2499.0)


def test_one_learner_is_one_node(made: Path) -> None:
    told = ask(made, "/api/graph", run=ids(made)[0])
    assert (len(told["nodes"]), told["edges"]) == (1, [])


def without_the_first(folder: Path, left_at: float) -> None:
    """Let learner 0 of a run leave, as on a cluster, and learner 1 tell of the run from then on."""
    of_the_run: dict[str, Any] = {}

    def later(row: dict[str, Any]) -> bool:
        if row["time_s"] < left_at:
            own = row_of(0, 1, np.random.default_rng(0), 4).keys()
            if row["learner"] == 0:
                of_the_run.update({x: y for x, y in row.items() if x not in own})
        elif row["learner"] == 1:
            row |= {
                **of_the_run,
                "return_mean_100": row["time_s"],
                "topology/disagreement_of_1": 7.5,
            }
        return row["time_s"] < left_at or row["learner"] > 0

    changed_rows(folder, later)


def test_a_run_goes_on_where_its_first_learner_has_left(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    run = str(folder.relative_to(tmp_path))
    without_the_first(folder, 30.0)
    newest = [row["time_s"] for row in rows_of(tmp_path, run) if row["learner"] == 1][-1]
    told = ask(tmp_path, "/api/series", run=run, metric="return_mean_100", x="seconds")
    assert (told["x"][-1], told["y"][-1]) == (newest, newest)
    assert len(told["x"]) == len(set(told["x"]))
    told = ask(tmp_path, "/api/series", run=run, metric="learner/loss", x="seconds")
    rows = [row for row in rows_of(tmp_path, run) if "episodes" in row]
    assert told["y"] == pytest.approx([row["learner/loss"] for row in rows])
    nodes = ask(tmp_path, "/api/graph", run=run)["nodes"]
    assert nodes[1]["disagreement"] == 7.5
    (folder / "summary.json").unlink()
    (listed_run,) = ask(tmp_path, "/api/runs")["runs"]
    assert listed_run["mean_return"] == newest


def test_evaluations_of_learners_on_their_own_are_one_line(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 5, learners=3)
    rows = [(0, 10.0), (1, 20.0), (0, 30.0), (2, 40.0), (1, 50.0)]
    with (folder / "evaluation.jsonl").open("w") as file:
        for i, (rank, mean) in enumerate(rows):
            row = {"env_steps": i, "mean": mean, "learner": rank, "confirmation": False}
            file.write(json.dumps(row) + "\n")
    query = {
        "run": str(folder.relative_to(tmp_path)),
        "metric": "evaluation/mean",
        "x": "env_steps",
    }
    assert ask(tmp_path, "/api/series", **query)["y"] == [10, 15, 25, 30, 40]
    assert ask(tmp_path, "/api/series", **query, learner=1)["y"] == [20, 50]
    # They mixed until the run was resumed.
    with (folder / "evaluation.jsonl").open("w") as file:
        for i, (who, mean) in enumerate([("average", 5.0), (0, 7.0), ("average", 8.0), *rows]):
            row = {"env_steps": i, "mean": mean, "learner": who, "confirmation": False}
            file.write(json.dumps(row) + "\n")
    config = json.loads((folder / "config.json").read_text())
    for topology, want in (("gossip", [5, 8]), ("single", [5, 8, 10, 15, 25, 30, 40])):
        (folder / "config.json").write_text(json.dumps({**config, "topology": {"name": topology}}))
        assert ask(tmp_path, "/api/series", **query)["y"] == want


def test_events_are_told_by_the_clock_of_the_run_s_machine(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 60, learners=4)
    meta = json.loads((folder / "meta.json").read_text())
    away = time.localtime().tm_gmtoff + 5 * 3600
    meta["sessions"][0] |= {"time_unix": 1_790_000_000.0, "utc_offset_s": away}
    (folder / "meta.json").write_text(json.dumps(meta))
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_790_000_000.0 + 20 + away))
    (folder / "log.txt").write_text(f"{stamp} Learner 3 died (signal 9) and was restarted\n")
    (event,) = ask(tmp_path, "/api/graph", run=str(folder.relative_to(tmp_path)))["events"]
    assert event["seconds"] == pytest.approx(20.0)


def test_sessions_of_older_runs_are_known_by_their_older_name(root: Path) -> None:
    run = ids(root)[0]
    meta = json.loads((root / run / "meta.json").read_text())
    meta["sittings"] = meta.pop("sessions")
    (root / run / "meta.json").write_text(json.dumps(meta))
    told = ask(root, "/api/series", run=run, metric="learner/loss", x="time")
    assert told["x"][0] > meta["started_unix"] - 1
    assert ask(root, "/api/run", run=run)["machine"]["sessions"] == 1


def test_a_limit_of_time_is_told(root: Path) -> None:
    run = ids(root)[0]
    config = json.loads((root / run / "config.json").read_text())
    (root / run / "config.json").write_text(json.dumps({**config, "stop_after_seconds": 600.0}))
    told = {x["id"]: x["stop_after_seconds"] for x in ask(root, "/api/runs")["runs"]}
    assert told.pop(run) == 600.0
    assert set(told.values()) == {0.0}


def test_a_group_of_one_run_keeps_its_extremes(root: Path) -> None:
    run = ids(root)[0]

    def peak(row: dict[str, Any]) -> bool:
        row["learner/loss"] = 1e6 if row["version"] == 20 else 1.0
        return True

    changed_rows(root / run, peak)
    (one,) = curves(root, [run], metric="learner%2Floss", x="updates", statistic="mean", points=4)
    assert max(one["high"]) == 1e6
    assert min(one["low"]) == 1.0
    assert max(one["y"]) < 2e5


def test_each_run_s_table_has_every_row(root: Path) -> None:
    run = ids(root)[0]
    row = rows_of(root, run)[0]
    with (root / run / "metrics.jsonl").open("w") as file:
        for i in range(2_000):
            file.write(json.dumps({**row, "time_s": i / 4, "learner/loss": float(i)}) + "\n")
    query = f"runs={joined([run])}&metric=learner%2Floss&x=time"
    table = list(csv.DictReader(io.StringIO(client(root).get(f"/api/export.csv?{query}").text)))
    assert [float(x["value"]) for x in table] == list(range(2_000))
    clock = [float(x["time"]) for x in table]
    assert np.diff(clock) == pytest.approx(0.25, abs=1e-3), "not whole seconds"
    query += "&points=10"
    assert len(client(root).get(f"/api/export.csv?{query}").text.splitlines()) == 11


def test_the_table_has_what_the_chart_shows(made: Path) -> None:
    runs = ids(made)[:2]
    query = f"runs={joined(runs)}&metric={joined(['learner/loss', 'return_mean_100'])}&x=updates"
    answer = client(made).get(f"/api/export.csv?{query}")
    table = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(table) == 2 * 2 * ROWS
    own = [
        float(x["value"]) for x in table if x["run"] == runs[1] and x["metric"] == "learner/loss"
    ]
    assert own == pytest.approx([row["learner/loss"] for row in rows_of(made, runs[1])])


def test_a_group_of_one_run_has_a_table_without_bounds(made: Path) -> None:
    """An interval takes two runs; a cell of none is empty."""
    run = ids(made)[0]
    query = f"runs={joined([run])}&metric=learner%2Floss&x=updates&statistic=mean"
    answer = client(made).get(f"/api/export.csv?{query}")
    table = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(table) == ROWS
    assert "nan" not in answer.text.lower()
    assert {x["low"] + x["high"] for x in table} == {""}
    own = [float(x["value"]) for x in table]
    assert own == pytest.approx([row["learner/loss"] for row in rows_of(made, run)])


def test_cells_are_no_formulas(root: Path) -> None:
    run = ids(root)[0]
    new = root / "=cmd|' ..!A1"
    (root / run).rename(new)
    answer = client(root).get(
        f"/api/export.csv?runs={joined([new.name])}&metric=learner%2Floss&x=updates"
    )
    assert all(
        not x["run"].startswith(("=", "+", "-", "@"))
        for x in csv.DictReader(io.StringIO(answer.text))
    )


@pytest.mark.parametrize(
    ("header", "status", "want"),
    [
        ("", 200, slice(None)),
        ("bytes=0-", 206, slice(None)),
        ("bytes=10-19", 206, slice(10, 20)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=990-5000", 206, slice(990, None)),
        ("bytes=5000-", 416, slice(0, 0)),
        ("lines=1-2", 200, slice(None)),
    ],
)
def test_a_video_is_sent_in_parts(root: Path, header: str, status: int, want: slice) -> None:
    run, film = ids(root)[0], bytes(range(250)) * 4
    (root / run / "videos").mkdir()
    (root / run / "videos/best-00002000.mp4").write_bytes(film)
    (root / run / "videos/best-00002000.json").write_text('{"env_steps": 2000, "return": 312.5}')
    (video,) = ask(root, "/api/run", run=run)["videos"]
    assert (video["env_steps"], video["return"]) == (2000, 312.5)
    headers = {"Range": header} if header else {}
    query = {"run": run, "name": video["name"]}
    answer = client(root).get("/video", params=query, headers=headers)
    assert (answer.status_code, answer.content) == (status, film[want])


def saved_checkpoint(root: Path, run: str, name: str = "40") -> dict[str, bytes]:
    """Make a checkpoint of a run and return what its files hold."""
    held = {"tensors.safetensors": bytes(range(256)) * 3001, "state.json": b"{}", "empty": b""}
    folder = root / run / "checkpoints" / name
    folder.mkdir(parents=True)
    for file, content in held.items():
        (folder / file).write_bytes(content)
    (folder / "not named.txt").write_text("private")
    manifest = json.dumps({"updates": 40, "files": {x: {"bytes": len(y)} for x, y in held.items()}})
    (folder / "manifest.json").write_text(manifest)
    return {**held, "manifest.json": manifest.encode()}


@pytest.mark.parametrize("name", ["40", "best"])
def test_a_checkpoint_is_sent_as_a_tar(root: Path, name: str) -> None:
    run = ids(root)[0]
    held = saved_checkpoint(root, run, name)
    assert name in {x["name"] for x in ask(root, "/api/run", run=run)["checkpoints"]}
    query = {"run": run, "name": name}
    answer = client(root).get("/checkpoint", params=query)
    assert answer.status_code == 200
    folder = f"{Path(run).name}-{name}"
    assert answer.headers["content-disposition"] == f'attachment; filename="{folder}.tar"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:") as archive:
        found = {x.name: archive.extractfile(x) for x in archive}
        told = {x: file.read() for x, file in found.items() if file}
    config = (root / run / "config.json").read_bytes()
    wanted = {f"{folder}/checkpoints/{name}/{x}": content for x, content in held.items()}
    assert told == {f"{folder}/config.json": config, **wanted}
    head = client(root).head("/checkpoint", params=query)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == answer.headers["content-length"]


@pytest.mark.parametrize("name", ["41", "best", "../40", "not named.txt", "40/state.json"])
def test_other_names_are_no_checkpoints(root: Path, name: str) -> None:
    run = ids(root)[0]
    saved_checkpoint(root, run)
    answer = client(root).get("/checkpoint", params={"run": run, "name": name})
    assert (answer.status_code, answer.json()["error"]) == (404, "there is no such checkpoint")


def test_a_checkpoint_that_lacks_a_file_is_not_sent(root: Path) -> None:
    run = ids(root)[0]
    saved_checkpoint(root, run)
    (root / run / "checkpoints/40/state.json").unlink()
    before = os.listdir("/dev/fd")  # noqa: PTH208
    answer = client(root).get("/checkpoint", params={"run": run, "name": "40"})
    assert (answer.status_code, answer.json()["error"]) == (
        404, "a file of the checkpoint is missing",
    )  # fmt: skip
    (root / run / "checkpoints/40/state.json").mkdir()
    assert client(root).get("/checkpoint", params={"run": run, "name": "40"}).status_code == 404
    assert len(os.listdir("/dev/fd")) == len(before)  # noqa: PTH208


def make_best(root: Path, run: str, generation: int) -> Path:
    """Make a best checkpoint beside its place, of which both files tell the generation."""
    folder = root / run / "checkpoints" / "best.partial"
    folder.mkdir(parents=True)
    content = f"generation {generation}".encode()
    (folder / "tensors.safetensors").write_bytes(content)
    files = {"tensors.safetensors": {"bytes": len(content)}}
    (folder / "manifest.json").write_text(json.dumps({"updates": generation, "files": files}))
    return folder


@pytest.mark.parametrize("removed", [False, True])
def test_all_files_are_of_one_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, removed: bool
) -> None:
    """The run puts another best checkpoint in its place as soon as the manifest is open, twice."""
    run = ids(root)[0]
    best = make_best(root, run, 1).rename(root / run / "checkpoints/best")
    open_file = RunFiles.open
    generations = iter((2, 3))

    def opened(files: RunFiles, name: str) -> BinaryIO:
        file = open_file(files, name)
        if name.endswith("manifest.json") and (generation := next(generations, None)):
            new = make_best(root, run, generation)
            best.rename(best.with_name(f"old{generation}"))
            new.rename(best)
            if removed:
                shutil.rmtree(best.with_name(f"old{generation}"))
        return file

    monkeypatch.setattr(RunFiles, "open", opened)
    answer = client(root).get("/checkpoint", params={"run": run, "name": "best"})
    assert answer.status_code == 200, answer.text
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:") as archive:
        told = {x.name.rpartition("/")[2]: archive.extractfile(x) for x in archive}
        manifest, tensors = (
            file.read() for x in ("manifest.json", "tensors.safetensors") if (file := told[x])
        )
    assert tensors.decode() == f"generation {json.loads(manifest)['updates']}"


def test_a_checkpoint_of_another_size_is_not_sent(root: Path) -> None:
    run = ids(root)[0]
    saved_checkpoint(root, run)
    (root / run / "checkpoints/40/state.json").write_text("{}cut")
    answer = client(root).get("/checkpoint", params={"run": run, "name": "40"})
    assert (answer.status_code, answer.json()["error"]) == (
        404, "a file of the checkpoint has 5 bytes; 2 were written",
    )  # fmt: skip


def test_runs_are_grouped_as_their_curves_are(made: Path) -> None:
    runs = ids(made)
    groups = client(made).get(f"/api/groups?runs={joined(runs)}").json()["groups"]
    drawn = curves(made, runs, metric="return_mean_100", x="env_steps", statistic="mean")
    assert [(x["label"], x["runs"]) for x in groups] == [(x["label"], x["runs"]) for x in drawn]
    assert len(groups) == 2
    by_seed = client(made).get(f"/api/groups?runs={joined(runs)}&by=seed").json()["groups"]
    assert len(by_seed) == SEEDS


def test_every_setting_of_a_run_has_its_meaning(root: Path) -> None:
    """The text of the command line's help, of the kinds that the run has."""
    run = ids(root)[0]
    config = json.loads((root / run / "config.json").read_text())
    config["replays"] = [{"name": "queue", "fraction": 0.5}, {"name": "elite", "fraction": 0.5}]
    config["policy"]["encoders"] = {"pair/0": to_dict(EncoderConfig("mlp"))}
    (root / run / "config.json").write_text(json.dumps(config))
    told = ask(root, "/api/meanings", run=run)["meanings"]
    assert told["policy.encoders.pair/0.fc_size"].startswith("Units of")
    names = [x["name"] for x in ask(root, "/api/run", run=run)["settings"]]
    assert [name for name in names if not told.get(name)] == []
    text = train_help(every=True, width=10_000)
    for name in (
        "num_envs",
        "algorithm.clip_ratio",
        "optimizer.learning_rate",
        "replays.1.fraction",
    ):
        assert told[name] in text
    assert told["algorithm.name"].startswith("ppo: Proximal policy optimisation")
    assert "replays.1.name" in told
    assert told["replays.0.name"] != told["replays.1.name"]


@given(st.text("bytes=-0123456789, ", max_size=20), st.integers(0, 50))
def test_any_range_is_inside_the_file(header: str, size: int) -> None:
    try:
        found = requested(header, size)
    except ValueError:
        return
    assert found is None or 0 <= found[0] < found[1] <= size


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(-5, 5)), min_size=0, max_size=40),
    st.integers(1, 12),
)
def test_thinned_series_keep_extremes_and_means(rows: list[tuple[int, int]], points: int) -> None:
    x, y = (np.array([row[i] for row in rows], float) for i in (0, 1))
    found = thin(x, y, points)
    ordered = sorted(rows, key=lambda row: row[0])
    assert found.rows == len(rows)
    assert len(found.x) == min(points, len(rows))
    if found.low is None or found.high is None:
        assert found.y.tolist() == [row[1] for row in ordered]
        return
    assert found.low.min() == min(y)
    assert found.high.max() == max(y)
    edges = [math.floor(i * len(rows) / points + 1e-9) for i in range(points + 1)]
    buckets = [ordered[a:b] for a, b in itertools.pairwise(edges)]
    assert found.y == pytest.approx([sum(v for _, v in b) / len(b) for b in buckets])


def test_checkpoints_tell_their_env_steps(root: Path) -> None:
    run = ids(root)[0]
    for name, updates, state in (
        ("40", 40, {"held": {"learner.env_steps": 4096}}),
        ("best", 30, {"version": 3, "learner": 0, "env_steps": 3072, "mean": 20.5}),
        ("candidate", 35, {}),
    ):
        folder = root / run / "checkpoints" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"updates": updates}))
        (folder / "state.json").write_text(json.dumps(state))
    told = ask(root, "/api/run", run=run)["checkpoints"]
    found = {x["updates"]: x["env_steps"] for x in told}
    assert (found[30], found[35], found[40]) == (3072, None, 4096)


def test_what_checkpoints_tell_is_read_once_until_one_is_replaced(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ids(root)[0]
    for name in ("40", "best"):
        saved_checkpoint(root, run, name)
    app, read = client(root), list[str]()

    def told() -> list[Any]:
        return app.get("/api/run", params={"run": run}).json()["checkpoints"]

    first = told()
    inner = RunFiles.open
    monkeypatch.setattr(RunFiles, "open", lambda self, name: read.append(name) or inner(self, name))
    assert told() == first
    assert not [x for x in read if x.startswith("checkpoints/40")]
    manifest = root / run / "checkpoints/best/manifest.json"
    manifest.unlink()
    manifest.write_text('{"updates": 41, "score": 9.5}')
    assert {x["updates"] for x in told()} == {40, 41}


@pytest.mark.parametrize(
    ("every", "mixings", "stale", "want"),
    [
        # A learner that is quicker than the one it hears is ever further ahead of its messages.
        ("updates", 100, [8_000.0, 8_080.0], 0.0),
        ("updates", 100, [8_000.0, 8_100.0], 81.0),
        ("updates", 10, [5.0, 0.0], 0.0),
        # Of 16 updates each; a version a second, of which the last 50 have heard nothing.
        ("versions", 1, [49.0, 50.0], 50.0),
    ],
)
def test_how_old_the_last_message_of_a_link_is(
    tmp_path: Path, every: str, mixings: int, stale: list[float], want: float
) -> None:
    (folder,) = made_runs(tmp_path, 1, 5, learners=2)
    config = json.loads((folder / "config.json").read_text())
    config["topology"] = {"name": "gossip", "every": every}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [
        {
            "time_s": float(i),
            "learner": 0,
            "version": mixings * i,
            "updates": mixings * i * (16 if every == "versions" else 1),
            "topology/staleness_updates_of_1": x,
        }
        for i, x in enumerate(stale)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    edges = ask(tmp_path, "/api/graph", run=str(folder.relative_to(tmp_path)))["edges"]
    (edge,) = [x for x in edges if (x["from"], x["to"]) == (1, 0)]
    assert edge["seconds_since"] == pytest.approx(want)


def test_a_seed_that_a_browser_would_round_is_a_text(root: Path) -> None:
    run = ids(root)[0]
    config = json.loads((root / run / "config.json").read_text())
    for seed, told in ((7, 7), (2**53 + 1, str(2**53 + 1)), (2**63 - 1, str(2**63 - 1))):
        (root / run / "config.json").write_text(json.dumps({**config, "seed": seed}))
        found = {x["id"]: x["seed"] for x in ask(root, "/api/runs")["runs"]}
        assert found[run] == told
