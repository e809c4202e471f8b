"""`gossamer compare` from words to what is printed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scored_runs import make_run

from gossamer.cli import main
from gossamer.compare import report
from gossamer.compare.statistics import Scores, Spread, Statistic, spread_of
from gossamer.record.objectives import measure
from gossamer.record.readers import FolderReader
from gossamer.record.runs import select_runs

Capture = pytest.CaptureFixture[str]
FAST, SLOW = ["--optimizer.learning-rate", "0.01"], ["--optimizer.learning-rate", "0.001"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_groups(
    fast: list[float] | None = None, slow: list[float] | None = None, env_id: str = "CartPole-v1"
) -> None:
    groups = (
        ("fast", FAST, [100.0, 110, 120] if fast is None else fast),
        ("slow", SLOW, [10.0, 20, 30] if slow is None else slow),
    )
    for name, words, scores in groups:
        for seed, score in enumerate(scores, start=1):
            returns = [score * share for share in (0.2, 0.5, 0.8, 1.0)]
            make_run(
                Path("runs"),
                f"{env_id}/{name}-s{seed}".replace("ALE/", ""),
                words,
                env_id=env_id,
                seed=seed,
                returns=returns,
                evaluation=score,
            )


def printed(capsys: Capture, *words: str) -> str:
    assert main(["compare", *words]) == 0
    return capsys.readouterr().out


def compared(capsys: Capture, *words: str) -> dict[str, Any]:
    return json.loads(printed(capsys, *words, "--json"))


def refused(capsys: Capture, *words: str) -> str:
    assert main(["compare", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    line = said.err.splitlines()[-1]
    assert line.startswith("gossamer: ")
    return line


def test_seeds_are_grouped_and_the_better_group_is_named(capsys: Capture) -> None:
    make_groups()
    found = compared(capsys, "runs")
    slow, fast = found["groups"]
    assert slow["label"] == "optimizer.learning_rate=0.001"
    assert (slow["n"], fast["n"]) == (3, 3)
    assert {run["seed"] for run in fast["runs"]} == {"1", "2", "3"}
    assert fast["statistics"]["mean"]["value"] == 110
    low, high = stats.t.interval(0.95, 2, 110, stats.sem([100, 110, 120]))
    interval = fast["statistics"]["iqm"]
    assert low - 2 < interval["low"] < low
    assert high < interval["high"] < high + 2
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"], pair["verdict"]) == ("A", "B", "worse")
    assert pair["difference"]["value"] == -90
    assert pair["improvement"]["value"] == 0
    assert found["source"] == "evaluation"
    assert found["notes"] == []
    text = "B is better than A"
    for form in ((), ("--markdown",)):
        assert text in printed(capsys, "runs", *form)


def test_nothing_is_better_with_two_seeds_or_an_interval_over_zero(capsys: Capture) -> None:
    make_groups(fast=[100.0, 101])
    (pair,) = compared(capsys, "runs")["pairs"]
    assert pair["verdict"] == "open"
    assert pair["reason"] == "B has 2 seeds, 3 are needed"
    shutil.rmtree("runs")
    make_groups(fast=[10.0, 60, 110])
    (pair,) = compared(capsys, "runs")["pairs"]
    assert (pair["verdict"], pair["reason"]) == ("open", "the interval holds 0")
    assert pair["difference"]["low"] < 0 < pair["difference"]["high"]
    text = printed(capsys, "runs")
    assert "No verdict: the interval holds 0" in text
    assert "A scores higher than B with probability 0.28 [" in text
    shutil.rmtree("runs")
    make_groups(fast=[110.0], slow=[10.0])
    text = printed(capsys, "runs")
    assert "A - B: IQM -100. No verdict" in text
    assert "probability" not in text, "of one pair it would be 0 or 1"


def test_scores_that_never_differ_prove_nothing(capsys: Capture) -> None:
    make_groups(fast=[500.0] * 3, slow=[9.0] * 3)
    (pair,) = compared(capsys, "runs")["pairs"]
    assert pair["verdict"] == "open"
    assert "no seed differs" in pair["reason"]
    text = printed(capsys, "runs")
    assert "500 (all equal)" in text
    assert "[500, 500]" not in text


def test_many_comparisons_ask_for_more(capsys: Capture) -> None:
    """A difference that is sure alone need not be so among ten."""
    make_groups(fast=[30.0, 34, 38], slow=[19.0, 23, 27])
    assert compared(capsys, "runs")["pairs"][0]["verdict"] == "worse"
    for i in range(3):
        for seed, score in enumerate((20.0, 26, 33), start=1):
            words = ["--optimizer.learning-rate", f"0.1{i}"]
            make_run(Path("runs"), f"x{i}-{seed}", words, seed=seed, evaluation=score + i)
    found = compared(capsys, "runs")
    assert len(found["pairs"]) == 10
    pair = next(x for x in found["pairs"] if (x["first"], x["second"]) == ("A", "B"))
    assert pair["verdict"] == "open"
    said = re.fullmatch(
        r"allowing for 10 comparisons the interval is \[(.*), (.*)\], which holds 0", pair["reason"]
    )
    assert said
    assert float(said[1]) < 0 < float(said[2])
    assert pair["difference"]["high"] < 0


def test_groups_of_too_few_seeds_ask_for_nothing_of_the_others(capsys: Capture) -> None:
    make_groups(fast=[30.0, 34, 38], slow=[19.0, 23, 27])
    for i in range(4):
        make_run(Path("runs"), f"one{i}", ["--optimizer.learning-rate", f"0.2{i}"], evaluation=20.0)
    found = compared(capsys, "runs")
    assert len(found["pairs"]) == 15
    assert found["pairs"][0]["verdict"] == "worse", "as without the single runs"
    assert [pair["decided_with"] for pair in found["pairs"]] == [1] + [0] * 14
    assert "corrected for" not in printed(capsys, "runs")


def test_a_run_with_itself_is_one_clear_line(capsys: Capture) -> None:
    make_groups()
    run = "runs/CartPole-v1/fast-s1"
    Path("link").symlink_to(run)
    for words in ((run, run), (run, f"./{run}"), (run, "fast-s1"), (run, "link")):
        line = refused(capsys, *words)
        assert "a run cannot be compared with itself; name another run too" in line
    assert len(compared(capsys, run, run, "slow-s1")["groups"]) == 2


def test_one_run_alone_is_told_of_without_intervals(capsys: Capture) -> None:
    make_groups()
    found = compared(capsys, "fast-s1")
    assert found["groups"][0]["statistics"]["iqm"] == {"value": 100, "low": None, "high": None}
    assert "nothing to compare" in printed(capsys, "fast-s1")


def test_a_copy_of_a_run_is_no_further_seed(capsys: Capture) -> None:
    make_groups()
    shutil.copytree("runs/CartPole-v1/fast-s1", "runs/copy")
    found = compared(capsys, "runs")
    assert [group["n"] for group in found["groups"]] == [3, 3]
    (note,) = found["notes"]
    assert "runs/copy is the same experiment as runs/CartPole-v1/fast-s1" in note
    make_run(Path("runs"), "again", FAST, seed=1, evaluation=90.0, returns=[1.0] * 4)
    found = compared(capsys, "runs")
    assert found["groups"][1]["n"] == 4
    assert any("several runs of CartPole-v1 have seed 1" in note for note in found["notes"])


def test_equal_results_of_different_settings_are_no_copies(capsys: Capture) -> None:
    make_groups(fast=[500.0, 500], slow=[500.0, 500])
    found = compared(capsys, "runs", "--by", "algorithm")
    assert found["groups"][0]["n"] == 4
    assert not any("same experiment" in note for note in found["notes"])


def test_scores_of_two_kinds_are_never_mixed(capsys: Capture) -> None:
    make_groups()
    make_run(Path("runs"), "bare", FAST, seed=9, returns=[1.0, 2, 3, 50])
    found = compared(capsys, "runs")
    assert found["source"] == "training"
    assert found["groups"][1]["statistics"]["mean"]["value"] == pytest.approx(95)
    assert "no evaluation of the last policy of 1 of 7 runs (runs/bare)" in found["notes"][0]
    found = compared(capsys, "runs", "--score", "evaluation")
    assert found["groups"][1]["n"] == 3
    assert any("left out" in note and "runs/bare" in note for note in found["notes"])
    assert compared(capsys, "runs/CartPole-v1", "--score", "training")["source"] == "training"


def test_protocols_that_differ_are_refused(capsys: Capture) -> None:
    make_run(Path("runs"), "one", env_id="PongNoFrameskip-v4", evaluation=1.0)
    make_run(Path("runs"), "other", env_id="ALE/Pong-v5", evaluation=1.0)
    line = refused(capsys, "runs")
    assert "sticky actions 0 (runs/one), 0.25 (runs/other)" in line
    assert "different protocols" in line


def test_games_together_are_on_the_human_scale(capsys: Capture) -> None:
    make_groups(fast=[10.0, 12, 14], slow=[-20.0, -19, -18], env_id="PongNoFrameskip-v4")
    make_groups(fast=[300.0, 310, 320], slow=[2.0, 3, 4], env_id="BreakoutNoFrameskip-v4")
    found = compared(capsys, "runs")
    assert found["scale"] == "human-normalized"
    assert found["tasks"] == ["BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"]
    slow, fast = found["groups"]
    pong = (np.array([10.0, 12, 14]) + 20.7) / 35.3
    breakout = (np.array([300.0, 310, 320]) - 1.7) / 28.8
    expected = stats.trim_mean(np.concatenate([pong, breakout]), 0.25)
    assert fast["statistics"]["iqm"]["value"] == pytest.approx(expected)
    assert fast["tasks"]["PongNoFrameskip-v4"]["statistics"]["mean"]["value"] == 12
    human = fast["tasks"]["PongNoFrameskip-v4"]["human_normalized"]
    assert human["value"] == pytest.approx(pong.mean())
    assert slow["n"] == fast["n"] == 3
    (pair,) = found["pairs"]
    assert (pair["task"], pair["verdict"]) == (None, "worse")
    assert "human-normalized" in printed(capsys, "runs")


def test_a_group_is_resampled_once_for_all_its_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for env_id in ("PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"):
        for group in range(5):
            words = ["--optimizer.learning-rate", f"0.00{group + 1}"]
            for seed in (1, 2, 3):
                name, score = f"{env_id}-{group}-{seed}", 3.0 * group + seed
                make_run(Path("runs"), name, words, env_id=env_id, seed=seed, evaluation=score)
    counted: list[Statistic] = []

    def counting(scores: Scores, statistic: Statistic) -> Spread:
        counted.append(statistic)
        return spread_of(scores, statistic)

    monkeypatch.setattr(report, "spread_of", counting)
    found = compared(capsys, "runs")
    assert len(found["pairs"]) == 10
    assert counted == [report.DECIDES] * 5


def test_returns_of_unlike_environments_are_not_added_up(capsys: Capture) -> None:
    make_groups()
    make_groups(fast=[-90.0, -85, -80], slow=[-95.0, -88, -81], env_id="Acrobot-v1")
    found = compared(capsys, "runs")
    assert found["scale"] is None
    assert found["groups"][0]["statistics"] is None
    verdicts = {pair["task"]: pair["verdict"] for pair in found["pairs"]}
    assert verdicts == {"Acrobot-v1": "open", "CartPole-v1": "worse", None: "open"}
    overall = found["pairs"][-1]
    assert overall["difference"] is None
    assert overall["improvement"]["value"] == pytest.approx((0 + 3 / 9) / 2)
    assert any("no scale in common" in note for note in found["notes"])
    assert main(["compare", "runs", "--plot", "a.svg"]) == 0


def test_only_environments_that_all_groups_have_count_together(capsys: Capture) -> None:
    make_groups()
    make_groups(fast=[-90.0, -85, -80], slow=[], env_id="Acrobot-v1")
    found = compared(capsys, "runs")
    assert any("not in every group" in note and "Acrobot-v1" in note for note in found["notes"])
    assert {pair["task"] for pair in found["pairs"]} == {"CartPole-v1", None}
    shutil.rmtree("runs/CartPole-v1")
    make_groups(fast=[], slow=[1.0, 2])
    words = ("runs", "--by", "optimizer.learning_rate")
    alone = compared(capsys, *words)["comparisons"]
    assert [x["tasks"] for x in alone] == [["Acrobot-v1"], ["CartPole-v1"]]
    assert [len(x["groups"]) for x in alone] == [1, 1]
    told = printed(capsys, *words)
    assert told.count("score of a run") == 2
    assert "--plot draws one comparison" in refused(capsys, *words, "--plot", "a.svg")
    assert "Acrobot-v1, CartPole-v1" in refused(capsys, *words, "--threshold", "5")


def test_thresholds_are_told_in_steps_and_seconds(capsys: Capture) -> None:
    make_groups()
    found = compared(capsys, "runs", "--threshold", "55")
    slow, fast = (group["tasks"]["CartPole-v1"]["threshold"] for group in found["groups"])
    assert (slow["reached"], slow["n"]) == (0, 3)
    assert slow["env_steps"] == {"value": None, "low": None, "high": None}
    # Half of 110 and 120 after 2,000 steps; of 100 it is less.
    assert fast["reached"] == 3
    assert fast["env_steps"]["value"] == pytest.approx(2_000)
    assert fast["env_steps"]["low"] < 2_000 < fast["env_steps"]["high"]
    assert fast["seconds"]["value"] == pytest.approx(2)
    some = compared(capsys, "runs", "--threshold", "115")["groups"][1]["tasks"]["CartPole-v1"]
    assert some["threshold"]["reached"] == 1
    assert some["threshold"]["env_steps"]["value"] is None, "half of them did not"
    text = printed(capsys, "runs", "--threshold", "55")
    assert "3 of 3" in text
    assert "not by more than half" in text


def test_the_median_of_an_even_number_of_seeds_lies_in_the_middle(capsys: Capture) -> None:
    for seed, at in enumerate((1, 2, 6, 8), start=1):
        returns = [0.0] * (at - 1) + [100.0] * (10 - at)
        make_run(Path("runs"), f"s{seed}", seed=seed, returns=returns, evaluation=1.0)

    def told() -> dict[str, float]:
        (group,) = compared(capsys, "runs", "--threshold", "50")["groups"]
        return group["tasks"]["CartPole-v1"]["threshold"]["env_steps"]

    assert told()["value"] == 4_000
    assert told()["low"] < 4_000 < told()["high"]
    shutil.rmtree("runs/s4")
    make_run(Path("runs"), "s4", seed=4, returns=[0.0] * 9, evaluation=1.0)
    assert told()["value"] == 4_000, "the two in the middle are the same"


def test_a_threshold_is_reached_where_an_episode_ended(capsys: Capture) -> None:
    """A row is written up to a second later, when the mean may have fallen again."""
    path = make_run(Path("runs"), "a", returns=[10.0, 20.0, 30.0])
    rows = [
        {"env_steps": 10 * i, "time_s": 0.01 * i, "return": 45.0 if 100 < i <= 200 else 5.0, "length": 10, "learner": 0}
        for i in range(1, 301)
    ]  # fmt: skip
    (path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (group,) = compared(capsys, "runs", "--threshold", "25")["groups"]
    found = group["tasks"]["CartPole-v1"]["threshold"]
    assert (
        found["env_steps"]["value"]
        == measure(FolderReader(path), "steps_to_score", score=25.0)
        == 1_500
    )
    assert found["seconds"]["value"] == pytest.approx(1.5)
    (group,) = compared(capsys, "runs", "--threshold", "46")["groups"]
    assert group["tasks"]["CartPole-v1"]["threshold"]["reached"] == 0


def test_curves_are_over_steps_or_seconds(capsys: Capture) -> None:
    make_groups()
    steps = compared(capsys, "runs")["groups"][1]["tasks"]["CartPole-v1"]["curve"]
    seconds = compared(capsys, "runs", "--x", "seconds")
    assert (steps["x"][0], steps["x"][-1]) == (1_000, 4_000)
    assert steps["value"][-1] == pytest.approx(110)
    curve = seconds["groups"][1]["tasks"]["CartPole-v1"]["curve"]
    assert (curve["x"][0], curve["x"][-1]) == (1, 4)
    for axis, head in (("env_steps", "4,000"), ("seconds", "4 s")):
        assert head in printed(capsys, "runs", "--x", axis)


def test_profiles_fall_from_all_runs_to_none(capsys: Capture) -> None:
    make_groups()
    found = compared(capsys, "runs")
    slow, fast = ([x["value"] for x in group["profile"]] for group in found["groups"])
    assert (found["profile_at"][0], found["profile_at"][-1]) == (10, 120)
    assert slow[0] == pytest.approx(2 / 3)
    assert fast[0] == 1
    assert slow[-1] == fast[-1] == 0


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_pictures_are_drawn(name: str, capsys: Capture) -> None:
    make_groups()
    assert main(["compare", "runs", "--plot", name, "--threshold", "50"]) == 0
    assert f"wrote {name}" in capsys.readouterr().err
    content = Path(name).read_bytes()
    assert content.startswith({"a.png": b"\x89PNG", "a.svg": b"<?xml", "a.pdf": b"%PDF"}[name])
    assert main(["compare", "runs", "--plot", name, "--threshold", "50"]) == 0
    assert Path(name).read_bytes() == content


def test_runs_that_are_not_done_and_uneven_ones_are_told_of(capsys: Capture) -> None:
    make_groups()
    make_run(Path("runs"), "cut", FAST, seed=9, evaluation=100.0, done=False, returns=[100.0] * 2)
    notes = compared(capsys, "runs")["notes"]
    assert any(note.startswith("killed") and "runs/cut" in note for note in notes)
    assert any("trained for 2,000 to 4,000 env steps" in note for note in notes)


def test_small_returns_are_told_by_their_digits(capsys: Capture) -> None:
    """Four behind the point would make 0 of all of them, and of the difference by which one is better."""
    make_groups([1.0e-5, 1.1e-5, 1.2e-5], [1e-6, 2e-6, 3e-6])
    (line,) = [x for x in printed(capsys, "runs").splitlines() if "A - B: IQM " in x]
    value, low, high = (float(x) for x in re.findall(r"-?[\d.]+", line.partition(": IQM ")[2])[:3])
    assert low < value < high < 0
    assert value == pytest.approx(-0.9e-5, rel=0.05)


def test_runs_that_may_not_be_looked_into_are_told_of(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_groups()
    hidden, scan = Path("runs/CartPole-v1/fast-s1"), os.scandir
    (hidden / "config.json").unlink()  # as who may not look sees it

    def scandir(path: Path) -> Any:
        if Path(path) == hidden:
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for word in ("runs", "runs/*/fast*"):
        assert main(["compare", word]) == 0
        assert f"left out: {hidden} cannot be read: Permission denied" in capsys.readouterr().err


def test_grouping_by_a_setting(capsys: Capture) -> None:
    make_groups()
    found = compared(capsys, "runs", "--by", "algorithm")
    (group,) = found["groups"]
    assert (group["label"], group["n"]) == ("algorithm=ppo", 6)
    assert any("may differ in optimizer.learning_rate" in note for note in found["notes"])


def test_seconds_of_different_machines_are_told_of(capsys: Capture) -> None:
    make_groups()
    meta = Path("runs/CartPole-v1/fast-s1/meta.json")
    content = json.loads(meta.read_text())
    content["sessions"][-1]["machine"]["processor"] = "Abacus"
    meta.write_text(json.dumps(content))
    assert compared(capsys, "runs")["notes"] == []
    for words in (["--x", "seconds"], ["--threshold", "50"]):
        (note,) = compared(capsys, "runs", *words)["notes"]
        assert "different machines, or parts of one: A" in note
        assert "Abacus, " in note


def test_names_of_settings_command_no_terminal(capsys: Capture) -> None:
    make_groups()
    for i, name in enumerate(("fast-s1", "slow-s1")):
        path = Path(f"runs/CartPole-v1/{name}/config.json")
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "optimizer": {"\x1b[2Jname": f"\x1b[{i}"}}))
    text = printed(capsys, "fast-s1", "slow-s1")
    assert "\\x1b[2Jname=" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the following arguments are required: RUN"),
        (["nothing"], "no run 'nothing'"),
        (["no-*"], "no run fits 'no-*'"),
        (["a**b"], "no run fits 'a**b'"),
        (["["], "no run fits '['"),
        ([""], "no run ''"),
        (["x" * 300], "longer than a name can be"),
        (["empty"], "folder empty holds no runs"),
        (["runs", "--by", "learning_rate"], "did you mean optimizer.learning_rate?"),
        (["runs", "--by", "lr"], "did you mean optimizer.learning_rate?"),
        (["runs", "--x", "updates"], "--x"),
        (["runs", "--score", "best"], "--score"),
        (["runs", "--threshold", "high"], "--threshold"),
        (["runs", "--threshold", "nan"], "--threshold"),
        (["runs", "--plot", "a.gif"], "must end in .png, .svg, .pdf; type --plot a.png"),
        (["runs", "--plot", "no/a.png"], "there is no folder no"),
        (["runs", "--plot", "folder.png"], "is a folder"),
        (["runs", "--json", "--markdown"], "leave one out"),
        (["runs", "--jsn"], "did you mean --json?"),
    ],
)
def test_mistakes_are_one_clear_line(words: list[str], told: str, capsys: Capture) -> None:
    make_groups(fast=[1.0], slow=[2.0])
    Path("empty").mkdir()
    Path("folder.png").mkdir()
    assert told in refused(capsys, *words)


@pytest.mark.parametrize(("module", "words"), [("scipy", []), ("matplotlib", ["--plot", "a.png"])])
def test_a_missing_extra_is_named_with_what_installs_it(
    module: str, words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_groups()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == module else find(name)
    )
    line = refused(capsys, "runs", *words)
    assert f"needs {module}, which is not installed; type: " in line
    assert "compare]" in line
    assert not Path("a.png").exists()


def test_a_threshold_is_of_one_environment(capsys: Capture) -> None:
    make_groups()
    make_groups(env_id="Acrobot-v1")
    assert "name runs of one" in refused(capsys, "runs", "--threshold", "3")


def test_runs_without_scores_are_refused(capsys: Capture) -> None:
    for seed in (1, 2):
        make_run(Path("runs"), f"s{seed}", seed=seed, returns=[])
    assert "none of the 2 runs has a score yet" in refused(capsys, "runs")


def test_words_mean_folders_parts_and_patterns() -> None:
    make_groups()
    root = Path("runs/CartPole-v1")
    assert len(select_runs("runs")) == 6
    assert len(select_runs("CartPole")) == 6
    assert select_runs("fast-s1") == [root / "fast-s1"]
    assert select_runs(str(root / "fast-s1")) == [root / "fast-s1"]
    assert select_runs("fast") == [root / f"fast-s{i}" for i in (1, 2, 3)]
    assert select_runs("fast-*") == select_runs("fast")
    assert select_runs("runs/*/fast-s?") == select_runs("fast")
    assert select_runs(str(root.absolute() / "slow-s[12]")) == [
        root.absolute() / f"slow-s{i}" for i in (1, 2)
    ]
    assert select_runs("**") == select_runs("runs")
    assert len(select_runs("last")) == 1
