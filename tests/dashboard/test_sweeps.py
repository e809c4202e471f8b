"""What the server tells of sweeps, against what the sweep itself says, while they run and when they are damaged."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from made_sweeps import add_trial, chosen_of, make_sweep, working

pytest.importorskip("starlette", reason="needs the extra dashboard")
from starlette.testclient import TestClient

from gossamer.cli import main
from gossamer.dashboard.app import Dashboard
from gossamer.dashboard.root import RunFiles

ADDRESS = "http://127.0.0.1:8765"
TINY = """
method = "random"
trials = {trials}
seeds = 2
objective = "area"
[settings]
env_id = "CartPole-v1"
total_env_steps = 600
num_envs = 2
unroll_length = 16
evaluation.every_seconds = 0
policy.hidden_sizes = [8]
[search]
"optimizer.learning_rate" = {{ min = 1e-4, max = 1e-2, log = true }}
"policy.activation" = ["tanh", "relu"]
"""


def client(root: Path) -> TestClient:
    return TestClient(Dashboard(root).app, base_url=ADDRESS)


def told(page: TestClient, sweep: str) -> dict[str, Any]:
    page.get("/api/runs")  # as a page that is open looks at the disk
    answer = page.get("/api/sweep", params={"sweep": sweep})
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_number(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {trial["trial"]: trial for trial in found["trials"]}


def test_a_real_sweep_is_told_as_it_says_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY.format(trials=1))
    assert main(["sweep", "tiny.toml", "--jobs", "2"]) == 0
    page = client(tmp_path / "runs")
    (sweep,) = page.get("/api/sweeps").json()["sweeps"]
    assert (sweep["id"], sweep["name"], sweep["file"]) == ("sweeps/tiny", "tiny", "tiny.toml")
    assert (sweep["asked"], sweep["begun"], sweep["live"]) == (1, 1, False)
    found = told(page, sweep["id"])
    results = json.loads(Path("runs/sweeps/tiny/results.json").read_text())
    assert found["objectives"] == [{"name": "area", "greater": True}]
    assert found["best"] == results["best"]
    assert found["settings"] == [
        {"name": "optimizer.learning_rate", "kind": "log", "values": []},
        {"name": "policy.activation", "kind": "category", "values": ["tanh", "relu"]},
    ]
    table = capsys.readouterr().out
    for trial, want in zip(found["trials"], results["trials"], strict=True):
        assert (trial["state"], trial["settings"]) == ("done", want["settings"])
        assert trial["values"] == pytest.approx([want["area"]])
        assert trial["of_seeds"] == [pytest.approx(x) for x in want["of_seeds"]]
        assert [f"runs/{run['id']}" for run in trial["runs"]] == want["runs"]
        row = " ".join([str(trial["trial"]), *trial["shown"], f"{trial['env_steps']:,}"])
        assert row in " ".join(table.split())
    # More trials of the same sweep are asked for, and told of.
    folder = Path("runs/sweeps/tiny")
    manifest = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**manifest, "trials": 2}))
    shutil.copytree(folder / "000", folder / "001")
    record = json.loads((folder / "000/trial.json").read_text())
    (folder / "001/trial.json").write_text(json.dumps({**record, "number": 1}))
    found = told(page, sweep["id"])
    assert (found["asked"], found["begun"], len(found["trials"])) == (2, 2, 2)


def test_trials_are_told_while_they_are_trained(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, trials=8, seeds=2)
    page = client(tmp_path)
    add_trial(sweep, 0, [100.0, 120.0])
    add_trial(sweep, 1, [50.0])  # its second seed is still to come
    _, second = add_trial(sweep, 2, [10.0, 20.0], done=False)
    add_trial(sweep, 3, [5.0, 6.0], pruned=True)
    add_trial(sweep, 4, [])
    *_, broken = add_trial(sweep, 5, [7.0, 8.0])
    (broken / "summary.json").write_text('{"exit_reason": "failed: no memory"}')
    with working(sweep), working(second):
        found = told(page, "sweeps/rates")
    assert (found["live"], found["asked"], found["begun"]) == (True, 8, 6)
    trials = by_number(found)
    states = ["done", "waiting", "running", "pruned", "waiting", "failed"]
    assert [trials[i]["state"] for i in range(6)] == states
    assert trials[0]["values"] == [110]
    assert trials[0]["shown"] == ["110"]
    assert [run["seed"] for run in trials[0]["runs"]] == [1, 2]
    assert trials[1]["values"] == [None]
    assert trials[2]["mean_return"] == 15
    assert trials[5]["reason"] == "failed: no memory"
    assert found["best"] == [0]
    assert told(page, "sweeps/rates")["live"] is False
    assert by_number(told(page, "sweeps/rates"))[4]["state"] == "unfinished"
    assert found["again"] == "gossamer sweep rates.toml"


def test_settings_have_the_axes_of_their_file(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    add_trial(sweep, 0, [1.0])
    found = told(client(tmp_path), "sweeps/rates")
    assert [(x["name"], x["kind"], x["values"]) for x in found["settings"]] == [
        ("optimizer.learning_rate", "log", []),
        ("algorithm.entropy_cost", "category", [0.0, 0.01]),
        ("algorithm.passes", "linear", []),
        ("policy.activation", "category", ["tanh", "relu"]),
    ]
    assert found["trials"][0]["settings"] == chosen_of(0)


def test_experiments_of_the_elite_platform_have_the_axes_of_their_values(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "elite")
    (sweep / "sweep.json").write_text('{"file": "x.json", "sweep": {"experiments": []}}')
    for i in range(8):
        chosen = {"experiment": i, "rate": 10.0 ** -i, "size": i, "kind": ["a", "b"][i % 2], "same": 3}  # fmt: skip
        add_trial(sweep, i, [float(i)], chosen=chosen)
    found = told(client(tmp_path), "elite")
    assert [(x["name"], x["kind"]) for x in found["settings"]] == [
        ("rate", "log"), ("size", "linear"), ("kind", "category"),
    ]  # fmt: skip
    assert (found["method"], found["asked"], found["objectives"][0]["name"]) == ("experiments", None, "return")  # fmt: skip
    assert found["best"] == [7]


def test_what_is_never_reached_and_what_nobody_tells(tmp_path: Path) -> None:
    objective = ["steps_to_score", "evaluation"]
    sweep = make_sweep(tmp_path, objective=objective, score=475.0)
    add_trial(sweep, 0, [1.0], evaluation=3.0)
    add_trial(sweep, 1, [1.0], evaluation=4.0)
    add_trial(sweep, 2, [1.0])
    found = told(client(tmp_path), "sweeps/rates")
    trials = by_number(found)
    assert found["objectives"] == [
        {"name": "steps_to_score", "greater": False}, {"name": "evaluation", "greater": True},
    ]  # fmt: skip
    assert (trials[0]["values"], trials[0]["shown"]) == ([None, 3], ["never", "3"])
    assert (trials[2]["state"], trials[2]["reason"]) == (
        "failed",
        "not every run has recorded the objective evaluation",
    )
    assert found["best"] == [1], "equal by the first, better by the second"


def test_a_million_steps_are_not_never(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, objective=["steps_to_score"], score=100.0)
    for number, steps in enumerate((3_000_000, 1_200_000, 2_000_000)):
        (run,) = add_trial(sweep, number, [150.0])
        with (run / "episodes.jsonl").open("w") as file:
            for i in range(100):
                row = {"env_steps": steps - 99 + i, "time_s": 1.0, "return": 150.0, "length": 10}
                file.write(json.dumps({**row, "learner": 0}) + "\n")
    found = told(client(tmp_path), "sweeps/rates")
    assert [x["values"] for x in found["trials"]] == [[3_000_000], [1_200_000], [2_000_000]]
    assert found["trials"][1]["shown"] == ["1,200,000"]
    assert found["best"] == [1]


def test_trials_left_out_and_importances_are_those_of_the_results(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    add_trial(sweep, 0, [1.0])
    left_out = {"trial": 1, "state": "refused", "settings": chosen_of(1), "reason": "8 passes of 3"}
    results = {"trials": [{"trial": 0, "state": "done"}, left_out], "importance": {"return": {"algorithm.passes": 0.25, "x": "y"}}}  # fmt: skip
    (sweep / "results.json").write_text(json.dumps(results))
    found = told(client(tmp_path), "sweeps/rates")
    assert by_number(found)[1]["state"] == "refused"
    assert by_number(found)[1]["reason"] == "8 passes of 3"
    assert found["importance"] == {"return": {"algorithm.passes": 0.25}}
    assert found["importance_of"] == 1


def test_the_folder_itself_may_be_a_sweep(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "here")
    add_trial(sweep, 0, [1.0])
    page = client(sweep)
    (one,) = page.get("/api/sweeps").json()["sweeps"]
    assert (one["id"], one["name"]) == (".", "here")
    found = told(page, ".")
    assert found["trials"][0]["runs"][0]["id"] == "000/s1"
    assert found["again"] == f"gossamer sweep here.toml --folder {sweep}"


def test_no_sweep_is_no_sweep(tmp_path: Path) -> None:
    page = client(tmp_path)
    assert page.get("/api/sweeps").json()["sweeps"] == []
    (tmp_path / "plain").mkdir()
    outside = make_sweep(tmp_path / "outside")
    (tmp_path / "link").symlink_to(outside)
    for name in ("plain", "missing", "..", "/etc", "%00"):
        assert page.get("/api/sweep", params={"sweep": name}).status_code == 404
    assert page.get("/api/sweep", params={"sweep": "link"}).status_code == 404
    assert "link" not in [x["id"] for x in page.get("/api/sweeps").json()["sweeps"]]
    assert page.get("/api/sweep").status_code == 400


@pytest.mark.parametrize("content", ["{", "[]", '{"sweep": 3}', '{"sweep": {"search": [], "objective": [{}], "seeds": "x", "score": {}}, "trials": "many", "file": 7}'])  # fmt: skip
@pytest.mark.parametrize("name", ["sweep.json", "000/trial.json", "results.json"])
def test_damaged_files_break_nothing(tmp_path: Path, name: str, content: str) -> None:
    sweep = make_sweep(tmp_path)
    add_trial(sweep, 0, [1.0])
    (sweep / name).write_text(content)
    (sweep / "0000").mkdir()
    (sweep / ("9" * 100)).mkdir()
    page = client(tmp_path)
    assert len(page.get("/api/sweeps").json()["sweeps"]) == 1
    found = told(page, "sweeps/rates")
    assert [trial["trial"] for trial in found["trials"]] == [0]
    assert found["begun"] == 1


def test_links_of_trials_are_not_followed(tmp_path: Path) -> None:
    outside = make_sweep(tmp_path / "outside")
    add_trial(outside, 0, [-777000.0])
    (outside / "000/s1/episodes.jsonl").write_text(
        '{"return": -777000.0, "env_steps": 1, "time_s": 1}\n'
    )
    sweep = make_sweep(tmp_path / "runs", objective=["area"])
    (run,) = add_trial(sweep, 0, [1.0])
    (run / "episodes.jsonl").symlink_to(outside / "000/s1/episodes.jsonl")
    (sweep / "001").symlink_to(outside / "000")
    found = told(client(tmp_path / "runs"), "sweeps/rates")
    assert "-777000" not in json.dumps(found), "as no time is"
    assert found["trials"][0]["values"] == [None]


def test_sweeps_are_in_the_order_in_which_they_were_begun(tmp_path: Path) -> None:
    """Not in that of the last change, as asking for more trials of a sweep writes its file again."""
    for i, name in enumerate(("first", "second", "third")):
        sweep = make_sweep(tmp_path, name)
        manifest = json.loads((sweep / "sweep.json").read_text())
        (sweep / "sweep.json").write_text(json.dumps({**manifest, "started_unix": 1e9 + i}))
        os.utime(sweep / "sweep.json", (2e9 - i, 2e9 - i))
    older = make_sweep(tmp_path, "older")  # of a version that did not tell it
    os.utime(older / "sweep.json", (1e8, 1e8))
    names = [x["name"] for x in client(tmp_path).get("/api/sweeps").json()["sweeps"]]
    assert names == ["third", "second", "first", "older"]


def test_a_sweep_within_another_ones_folder_is_found(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "outer")
    add_trial(sweep, 0, [1.0])
    make_sweep(sweep, "again")
    found = client(tmp_path).get("/api/sweeps").json()["sweeps"]
    assert {x["id"] for x in found} == {"outer", "outer/again"}


def test_the_command_that_goes_on_has_the_whole_path(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    manifest = json.loads((sweep / "sweep.json").read_text())
    file = "/".join(["a folder"] * 40) + "/rates.toml"
    (sweep / "sweep.json").write_text(json.dumps({**manifest, "file": file}))
    found = told(client(tmp_path), "sweeps/rates")
    assert shlex.split(found["again"]) == ["gossamer", "sweep", file]


def test_a_trial_that_changes_is_read_again(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, seeds=1)
    for i in range(2):
        add_trial(sweep, i, [float(i)])
    page = client(tmp_path)
    assert [x["state"] for x in told(page, "sweeps/rates")["trials"]] == ["done", "done"]
    record = json.loads((sweep / "001/trial.json").read_text())
    chosen = {**record["chosen"], "algorithm.passes": 7}
    (sweep / "001/trial.json").write_text(json.dumps({**record, "chosen": chosen, "pruned": True}))
    summary = json.loads((sweep / "000/s1/summary.json").read_text())
    (sweep / "000/s1/summary.json").write_text(json.dumps({**summary, "mean_return_last_100": 50}))
    zero, one = told(page, "sweeps/rates")["trials"]
    assert zero["values"] == [50]
    assert (one["state"], one["settings"]["algorithm.passes"]) == ("pruned", 7)
    shutil.rmtree(sweep / "001")
    assert [x["trial"] for x in told(page, "sweeps/rates")["trials"]] == [0]


def test_trials_that_have_not_changed_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path)
    for i in range(5):
        add_trial(sweep, i, [float(i)])
    page = client(tmp_path)
    before = told(page, "sweeps/rates")
    opened: list[str] = []
    open_file = RunFiles.open

    def counted(files: RunFiles, name: str) -> BinaryIO:
        opened.append(name)
        return open_file(files, name)

    monkeypatch.setattr(RunFiles, "open", counted)
    found = told(page, "sweeps/rates")
    assert found == before
    assert sorted(opened) == ["results.json", "sweep.json"]


def test_many_trials_are_told_at_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, trials=30)
    for i in range(30):
        add_trial(sweep, i, [float(i)], chosen=chosen_of(i % 6))
    page = client(tmp_path)
    assert told(page, "sweeps/rates")["best"] == [29]
    began = time.process_time()  # other tests may have the cores
    page.get("/api/sweep", params={"sweep": "sweeps/rates"})
    assert time.process_time() - began < 0.5
