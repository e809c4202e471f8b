"""Env steps of a run with several learners: of all of them, wherever they are told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_placement import FakePlacement, Supervised
from runs import rows_of

from gossamer.dashboard.listing import env_steps_of
from gossamer.dashboard.root import Root
from gossamer.record.folder import RunFolder
from gossamer.roles.acting_group import Episode
from gossamer.run.host_protocol import ProgressReport, Ready
from gossamer.run.placements.metric_rows import Rows


def report(index: int, env_steps: int) -> tuple[int, ProgressReport]:
    """Return what a host tells: an episode of its learner, which ended after so many steps of its own actor."""
    ended = Episode(
        env=0, number=1, episode_return=1.0, length=9, env_steps=env_steps, truncated=False
    )
    return index, ProgressReport([], [(index, ended)], last=False)


@pytest.mark.parametrize(
    ("topology", "missing", "wanted"),
    [
        ({"name": "diffusion"}, False, 400),  # in lock-step the others are as far
        ({"name": "gossip", "max_staleness": "never"}, False, 270),
        ({"name": "single"}, False, 270),
        ({"name": "gossip", "max_staleness": "never"}, True, 270),
        ({"name": "diffusion"}, True, 270),
    ],
)
def test_an_episode_is_told_at_the_steps_of_those_that_are_there(
    tmp_path: Path, topology: dict[str, Any], missing: bool, wanted: int
) -> None:
    """Four learners have learnt from 250 steps, 80 of which are its own whose actor has made 100 and ends an episode."""
    ready = [(i, Ready(None)) for i in range(2 if missing else 4)]
    script = [ready, [report(1, 100)]]
    placement = FakePlacement(script, num_hosts=4, env_steps=250, learnt={1: 80})
    if missing:
        for index in (2, 3):
            placement.unplace(index)
    held = Supervised(tmp_path, placement, topology=topology, **{"cluster.min_learners": 2} if missing else {})  # fmt: skip
    held.run_script()
    assert [row["env_steps"] for row in held.rows("episodes")] == [wanted]
    held.close()


def test_an_episode_before_anything_was_learnt_is_told_at_its_own_steps(tmp_path: Path) -> None:
    script = [[(i, Ready(None)) for i in range(2)], [report(0, 30)]]
    held = Supervised(tmp_path, FakePlacement(script, num_hosts=2), topology={"name": "single"})
    held.run_script()
    assert [row["env_steps"] for row in held.rows("episodes")] == [30]
    held.close()


def test_the_episodes_of_a_single_learner_are_told_where_they_ended(tmp_path: Path) -> None:
    """However many are told at once."""
    script = [[(0, Ready(None))], [report(0, x) for x in (20, 60, 100)]]
    placement = FakePlacement(script, env_steps=250, learnt={0: 250})
    held = Supervised(tmp_path, placement)
    held.run_script()
    assert [row["env_steps"] for row in held.rows("episodes")] == [20, 60, 100]
    held.close()


def test_a_checkpoint_is_of_the_steps_that_all_learners_made(tmp_path: Path) -> None:
    """What one of them knows of the others may be old, or a guess."""
    folder = tmp_path / "run/checkpoints/7"
    folder.mkdir(parents=True)
    held = {"learner.env_steps": 900, "learner.own_env_steps": 300, "1/learner.env_steps": 800}
    several = {**held, "1/learner.own_env_steps": 450, "2/learner.own_env_steps": 260}
    with Root(tmp_path).run("run") as files:
        for told, wanted in ((several, 1_010), ({"learner.env_steps": 900}, 900)):
            (folder / "state.json").write_text(json.dumps({"held": told}))
            assert env_steps_of(files, "7") == wanted
        (folder / "state.json").write_text(json.dumps({"env_steps": 20}))  # of the best policy
        assert env_steps_of(files, "7") == 20


def test_a_resume_leaves_evaluations_of_independent_learners_where_they_were(
    tmp_path: Path,
) -> None:
    """The quick one of two was evaluated at twice its own steps, beyond the sum of both."""
    rows = [
        {"env_steps": 900, "updates": 5, "learner": 0, "mean": 1.0, "time_s": 1.0},
        {"env_steps": 1_700, "updates": 8, "learner": 0, "mean": 2.0, "time_s": 2.0},
        {"env_steps": 2_400, "updates": 12, "learner": 0, "mean": 3.0, "time_s": 3.0},
        {"env_steps": 300, "updates": 2, "learner": 1, "mean": 4.0, "time_s": 4.0},
    ]
    for independent, wanted in ((True, [900, 1_700, 300]), (False, [900, 1_200, 300])):
        (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
        RunFolder(tmp_path).cut(1_200, {0: 9, 1: 3}, independent=independent)
        assert [row["env_steps"] for row in rows_of(tmp_path, "evaluation")] == wanted


def test_actors_that_step_do_not_wait_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At lag free the thread that hands on what processes have collected waits, and they collect on."""
    now = [100.0]
    monkeypatch.setattr("gossamer.run.placements.metric_rows.time.monotonic", lambda: now[0])
    learner: Any = SimpleNamespace(
        rank=0, env_steps=0, update=0, version=0, mixer=None, num_learners=1,
        seconds={"learn": 0.0, "wait": 0.0}, replay=SimpleNamespace(replays=[]),
        take_metrics=dict, lag_versions_max=0.0,
    )  # fmt: skip
    actor = SimpleNamespace(seconds={"env": 0.0, "inference": 0.0}, processes=[])
    queue = SimpleNamespace(waited_seconds={"slot": 0.0})
    for lag, actors, wanted in ((None, 2, 0.6), (None, 0, 0.9), (1, 2, 0.9)):
        parts: Any = SimpleNamespace(
            learner=learner, actor=actor, queue=queue,
            board=SimpleNamespace(waited_seconds=0.0), checkpoint_seconds=0.0,
            plan=SimpleNamespace(device="cpu", lag=lag, actors=actors),
            policy=SimpleNamespace(device=torch.device("cpu")),
        )  # fmt: skip
        rows = Rows(SimpleNamespace(parts=[parts]))  # type: ignore[arg-type]
        rows.make()
        now[0] += 10.0
        actor.seconds["env"] += 3.0
        actor.seconds["inference"] += 1.0
        queue.waited_seconds["slot"] += 9.0
        (row,) = rows.make()
        assert row["share/wait_actor"] == pytest.approx(wanted)
        assert row["queue_wait_seconds_fraction"] == pytest.approx(wanted)
