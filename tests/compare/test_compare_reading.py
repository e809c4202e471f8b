"""What is read out of run folders, whole, old, damaged or hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored_runs import evaluation_row, make_run

from gossamer.compare.grouping import group_by_settings
from gossamer.compare.protocols import refuse_mixed
from gossamer.compare.reading import ComparedRun, read_run, read_runs
from gossamer.errors import ConfigError


def write_evaluations(run: Path, *rows: object) -> None:
    (run / "evaluation.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_run_is_read(tmp_path: Path) -> None:
    words = ["--optimizer.learning-rate", "0.01"]
    path = make_run(tmp_path, "a", words, seed=3, evaluation=25.0, protocol="CartPole-v1: as it is")
    run = read_run(path)
    assert (run.env_id, run.seed, run.state) == ("CartPole-v1", "3", "done")
    assert run.settings["optimizer.learning_rate"] == [0.01]
    assert run.chosen == {"env_id", "seed", "optimizer.learning_rate"}
    assert run.protocol == {"stuck_steps": "0", "protocol": "as it is", "greedy": "no"}
    assert run.described == "CartPole-v1: as it is"
    assert (run.score("evaluation"), run.score("training")) == (25, 30)
    assert (run.env_steps, run.seconds) == (3000, 3)
    np.testing.assert_array_equal(run.curve.value, [10, 20, 30])


def test_a_setting_that_came_later_sets_no_seeds_apart(tmp_path: Path) -> None:
    """A run of an older version lacks it, and may have one that is gone; it trained as the default has it now."""
    words = ["algorithm:vtrace", "--replay-ratio", "1", "--optimizer.outer-rate"]
    runs = [make_run(tmp_path, name, [*words, x]) for name, x in zip("abc", "115", strict=True)]
    saved = json.loads((runs[0] / "config.json").read_text())
    del saved["optimizer"]["outer_rate"], saved["algorithm"]["clip_pg_rho"]
    del saved["replays"][1]["shared"], saved["prefetch_batches"]
    (runs[0] / "config.json").write_text(json.dumps({**saved, "compile": False}))
    old, new, other = (read_run(run).settings for run in runs)
    assert old == new
    found = group_by_settings([old, new, other])
    assert found.members == ((0, 1), (2,))
    assert found.by == ("optimizer.outer_rate",)


def test_settings_of_an_own_part_are_left_as_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    saved = json.loads((run / "config.json").read_text())
    saved["algorithm"] = {"name": "no_such_module:Mine", "width": 3}
    saved["topology"] = "damaged"
    (run / "config.json").write_text(json.dumps(saved))
    settings = read_run(run).settings
    told = {name: x for name, x in settings.items() if name.startswith(("algorithm", "topology"))}
    assert told == {
        "algorithm.name": "no_such_module:Mine",
        "algorithm.width": 3,
        "topology": "damaged",
    }


def test_the_last_evaluation_of_the_last_policy_counts(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a")
    early, late = evaluation_row(1.0, 1_000), evaluation_row(2.0, 2_900)
    confirmed = evaluation_row(9.0, 2_900, confirmation=True)
    write_evaluations(path, early, late, confirmed)
    assert read_run(path).score("evaluation") == 2
    write_evaluations(path, early)
    assert read_run(path).evaluation is None, "the run went on for two thirds"


def test_an_evaluation_of_the_last_version_counts_wherever_it_was(tmp_path: Path) -> None:
    """The learner that is evaluated may be behind the mean of all, or not have heard yet how far the others are."""
    path = make_run(tmp_path, "a", ["topology:single", "--num-learners", "2"])
    with (path / "metrics.jsonl").open("a") as file:
        for rank in (0, 1):
            row = {"time_s": 4, "env_steps": 4000, "learner": rank, "version": 5 + rank}
            file.write(json.dumps({**row, "return_mean_100": 40, "episodes": 400}) + "\n")
    rows = [evaluation_row(8.0, 4_000, version=5)]
    write_evaluations(path, *rows, evaluation_row(4.0, 3_500, learner=1, version=5))
    assert read_run(path).evaluation is None
    write_evaluations(path, *rows, evaluation_row(4.0, 3_500, learner=1, version=6))
    assert read_run(path).score("evaluation") == 6
    other = make_run(tmp_path, "b", ["topology:gossip", "--num-learners", "2"])
    (path / "config.json").write_text((other / "config.json").read_text())
    write_evaluations(path, evaluation_row(3.0, 3_500, learner="average", version=5))
    assert read_run(path).evaluation is None, "that learner 1 has gone beyond"
    write_evaluations(path, evaluation_row(3.0, 3_500, learner="average", version=6))
    assert read_run(path).score("evaluation") == 3


def test_evaluations_of_learners_that_mix_are_those_of_their_average(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", ["topology:gossip", "--num-learners", "2"])
    average = evaluation_row(5.0, 2_900, learner="average")
    write_evaluations(path, average, evaluation_row(1.0, 3_000, learner=1))
    assert read_run(path).score("evaluation") == 5
    early = evaluation_row(5.0, 900, learner="average")
    write_evaluations(path, early, evaluation_row(1.0, 3_000, learner=1))
    assert read_run(path).evaluation is None


def test_learners_that_never_mix_count_alike(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", ["topology:single", "--num-learners", "2"])
    write_evaluations(path, evaluation_row(9.0, 2_900, learner=1))
    assert read_run(path).evaluation is None, "who was chosen by its score is not the run"
    rows = [evaluation_row(x, 2_900, learner=rank) for rank, x in ((0, 9.0), (0, 4.0), (1, 2.0))]
    write_evaluations(path, *rows)
    run = read_run(path)
    assert run.score("evaluation") == 3
    assert run.evaluation is not None
    assert run.evaluation.episodes == 4


def test_broken_rows_are_passed_over(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", evaluation=7.0)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"time_s": 4, "env_steps": 4000, "return_mean_100": "many", "episodes": 400}\n')
        file.write('{"time_s": 5, "env_steps": 5000, "return_mean_100": 1e300, "episodes": 1}\n')
        file.write('{"time_s": 5, "env_steps": 5000, "return_mean_100": NaN, "episodes": 1}\n')
        file.write('{"time_s": 2, "env_steps": 1000, "return_mean_100": 5, "episodes": 1}\n')
        file.write('{"time_s": 6, "env_steps": 6000, "learner": 1}\n')
        file.write("[" * 100_000 + "\n")
        file.write('{"a": ' * 100_000 + "\n")
        file.write("\0\xff\n")
        file.write('{"time_s": 7, "env_steps": 7000, "return_mean_100": 70, "episodes": 700}\n')
        file.write('{"time_s": 8, "env_steps": 80')
    with (path / "evaluation.jsonl").open("a") as file:
        file.write('{"mean": "x", "returns": [1], "env_steps": 7000}\n')
        file.write('{"mean": 1e400, "returns": [1], "env_steps": 7000}\n')
        file.write('{"mean": 3.0, "returns": [], "env_steps": 7000}\n')
        file.write('{"mean": 3.0, "returns": 3, "env_steps": 7000}\n[]\n3\n')
        file.write('{"mean": 3.0, "returns": [3.0], "env_steps": 6900, "learner": []}\n')
    run = read_run(path)
    np.testing.assert_array_equal(run.curve.value, [10, 20, 30, 70])
    assert run.evaluation is not None
    assert run.evaluation.mean == 3


def test_a_run_whose_last_episodes_earned_nan_has_no_training_score(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", returns=[10.0, 20.0], evaluation=5.0)
    row = {"time_s": 9.0, "env_steps": 9_000, "learner": 0, "episodes": 900}
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**row, "return_mean_100": None}) + "\n")
    run = read_run(path)
    assert (run.env_steps, run.seconds, run.score("training")) == (9_000, 9.0, None)
    assert run.score("evaluation") is None, "that of 2,000 env steps is not of its last policy"
    with (path / "metrics.jsonl").open("a") as file:
        row |= {"time_s": 10.0, "env_steps": 9_500, "episodes": 1_000}
        file.write(json.dumps({**row, "return_mean_100": 30.0}) + "\n")
    assert read_run(path).score("training") == 30.0


def test_a_pipe_instead_of_a_log_is_an_empty_log(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a")
    (path / "metrics.jsonl").unlink()
    assert len(read_run(path).curve.value) == 0
    os.mkfifo(path / "metrics.jsonl")
    assert len(read_run(path).curve.value) == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is damaged"),
        ("[]", "it holds no settings"),
        ("{}", "names no environment"),
        ('{"env_id": 3}', "names no environment"),
        ('{"env_id": "PongNoFrameskip-v4", "env": {"sticky": 7}}', "env"),
        ('{"env_id": "PongNoFrameskip-v4", "env": {"frame_skip": 1000}}', "frame-skip is 1000"),
        ('{"env_id": "PongNoFrameskip-v4", "env": 5}', "env"),
        ('{"a":' * 100_000, "is damaged"),
    ],
)
def test_damaged_settings_leave_a_run_out_with_a_line(
    content: str, told: str, tmp_path: Path
) -> None:
    good, bad = make_run(tmp_path, "good"), make_run(tmp_path, "bad")
    (bad / "config.json").write_text(content)
    lines: list[str] = []
    assert [run.path for run in read_runs([bad, good], lines.append)] == [good]
    (line,) = lines
    assert line.startswith("left out: ")
    assert str(bad) in line
    assert told in line
    assert "\n" not in line


def test_settings_that_run_code_are_only_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a")
    config = json.loads((path / "config.json").read_text())
    config["env_id"] = "no_such_module:environment"
    config["algorithm"] = {"name": "no_such_module:Loss"}
    (path / "config.json").write_text(json.dumps(config))
    assert read_run(path).settings["algorithm.name"] == "no_such_module:Loss"


@pytest.mark.parametrize("name", ["meta.json", "layers.json", "summary.json"])
def test_a_run_without_what_is_not_needed_is_read(name: str, tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", evaluation=1.0)
    for content in ("{", "[1]", '{"protocol": 3, "seed": {}}'):
        (path / name).write_text(content)
        assert read_run(path).score("evaluation") == 1
    (path / name).unlink()
    assert read_run(path).score("evaluation") == 1


PONG = "PongNoFrameskip-v4"


def both(folder: Path, one: dict[str, Any], other: dict[str, Any]) -> list[ComparedRun]:
    """Return two runs, made with these arguments of `make_run`."""
    for name, how in (("one", one), ("other", other)):
        make_run(folder, name, **{"env_id": PONG, **how})
    return [read_run(folder / name) for name in ("one", "other")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--env.sticky", "0.25"], "sticky actions 0 (one) and 0.25 (other)"),
        (["--env.frame-skip", "2"], "frame skip 2 (other) and 4 (one)"),
        (["--env.full-action-space"], "full action set no (one) and yes (other)"),
        (["--env.noop-max", "0"], "no-ops below 0 (other) and 30 (one)"),
        (["--max-episode-steps", "4500"], "cut after steps 27000 (one) and 4500 (other)"),
        (["--evaluation.greedy"], "greedy evaluation no (one) and yes (other)"),
    ],
)
def test_different_protocols_are_refused_by_name(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = both(Path(), {}, {"words": words})
    with pytest.raises(ConfigError) as refused:
        refuse_mixed(runs, evaluated=True)
    assert told.replace(" and ", ", ") in str(refused.value)
    if "evaluation" in words[0]:
        refuse_mixed(runs, evaluated=False)  # the rule of evaluations is not that of training
    refuse_mixed([runs[0], runs[0]], evaluated=True)


def test_named_protocols_of_atari_differ_whatever_the_game(tmp_path: Path) -> None:
    runs = both(tmp_path, {}, {"env_id": "ALE/Breakout-v5"})
    with pytest.raises(ConfigError, match=r"sticky actions 0 .*, 0\.25"):
        refuse_mixed(runs, evaluated=True)
    make_run(tmp_path, "same", ["--env.sticky", "0"], env_id="ALE/Breakout-v5")
    refuse_mixed([runs[0], read_run(tmp_path / "same")], evaluated=True)


def test_what_a_policy_sees_is_no_protocol(tmp_path: Path) -> None:
    words = ["--env.frame-stack", "1", "--env.life-loss-terminal", "false"]
    other = {"words": words, "protocol": f"{PONG}: stack 1"}
    refuse_mixed(both(tmp_path, {"protocol": f"{PONG}: stack 4"}, other), evaluated=True)


def test_masks_are_no_protocol(tmp_path: Path) -> None:
    limit = "Taxi-v3: Gymnasium, truncated after 200 steps"
    told = (limit, f"{limit}; actions masked as its info says")
    refuse_mixed(
        both(tmp_path, *({"env_id": "Taxi-v3", "protocol": x} for x in told)), evaluated=True
    )


def test_an_environment_that_has_become_another_is_refused(tmp_path: Path) -> None:
    limits = [f"CartPole-v1: truncated after {limit} steps" for limit in (200, 500)]
    runs = both(tmp_path, *({"env_id": "CartPole-v1", "protocol": x} for x in limits))
    with pytest.raises(ConfigError, match=r"truncated after 200 steps .*truncated after 500 steps"):
        refuse_mixed(runs, evaluated=False)
