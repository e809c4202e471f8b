"""A run that was resumed with other settings: which network a checkpoint is of, and by which scores a policy is chosen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_placement import PLAN, FakePlacement, Supervised, done, part, ready, told
from runs import SMALL, rows_of

import gossamer
from gossamer.compare.reading import read_run
from gossamer.config import from_dict, make_config, to_dict
from gossamer.dashboard.listing import Listing
from gossamer.dashboard.root import Root
from gossamer.errors import ConfigError
from gossamer.export.metadata import describe_run
from gossamer.record.checkpoint import CheckpointStore, Score
from gossamer.record.folder import RunFolder
from gossamer.record.objectives import last_evaluation
from gossamer.record.readers import FolderReader
from gossamer.run.checkpoint_contents import RunState
from gossamer.run.recorder import Recorder
from gossamer.run.train import train

OBS = torch.linspace(-2.0, 2.0, 32).reshape(1, 8, 4)
OFTEN = {"every_seconds": 1e-9, "max_time_fraction": 1.0, "episodes": 2}
OTHER: list[dict[str, Any]] = [
    {"policy": {"activation": "relu"}},
    {"policy": {"obs_clip": 0.5}},
    {"policy": {"normalize_obs": False}},
    {"algorithm": {"name": "a2c", "num_minibatches": 1, "value_norm": False}},
]
"""Settings that make another function of the same parameters."""


def trained(folder: Path, **settings: Any) -> Path:
    learns = {"name": "a2c", "num_minibatches": 1, "value_norm": True}
    given = {**SMALL, "algorithm": learns, "placement": "inline", "total_env_steps": 128}
    train(make_config("CartPole-v1", {**given, **settings, "run_folder": str(folder)}), quiet=True)
    return folder


def updates_of(run: Path) -> list[int]:
    return CheckpointStore(run / "checkpoints", 0).list()


def outputs(run: Path, checkpoint: int | str = "last") -> torch.Tensor:
    """Return what a policy makes of some observations: actions' numbers, and values in the units of returns."""
    policy = gossamer.load_policy(run, checkpoint)
    with torch.no_grad():
        starts = torch.zeros(OBS.shape[:2], dtype=torch.bool)
        out = policy(OBS, starts, policy.initial_state(OBS.shape[1]))
        return torch.cat([out.action_params, out.value[..., None]], -1)


@pytest.mark.parametrize("changed", OTHER)
def test_a_checkpoint_is_played_as_it_was_learnt(tmp_path: Path, changed: dict[str, Any]) -> None:
    run = trained(tmp_path / "run")
    (*_, first), before = updates_of(run), outputs(run)
    again: dict[str, Any] = {"total_env_steps": 256, "keep_checkpoints": 0, **changed}
    gossamer.train(resume=run, quiet=True, **again)
    assert torch.equal(outputs(run, first), before)
    # A network that is made of the new settings alone computes what the newest checkpoint does.
    newest = outputs(run)
    (run / "checkpoints" / str(first)).rename(tmp_path / "gone")
    assert torch.equal(outputs(run), newest)
    assert not torch.equal(newest, before)


@pytest.mark.parametrize("changed", OTHER)
def test_a_session_that_saved_nothing_changes_no_policy(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """As one that was killed: its settings are the run's, and its checkpoints are those of before."""
    run = trained(tmp_path / "run")
    before, score = outputs(run), gossamer.evaluate(run, episodes=3).mean
    saved = json.loads((run / "config.json").read_text())
    learnt = from_dict(saved)
    for section, values in changed.items():
        saved[section] |= values
    (run / "config.json").write_text(json.dumps(saved))
    assert torch.equal(outputs(run), before)
    assert gossamer.evaluate(run, episodes=3).mean == score
    begun = make_config("CartPole-v1", {"init_from": str(run)})
    assert (begun.policy, begun.algorithm.value_norm) == (learnt.policy, True)


def test_damaged_settings_of_a_checkpoint_are_told(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    store = CheckpointStore(run / "checkpoints", 0)
    last = store.load("last")
    state = json.loads(json.dumps(last.state))
    state["settings"]["policy"]["obs_clip"] = "wide"
    store.save(last.updates, last.tensors, state)
    with pytest.raises(ConfigError, match=rf"checkpoints.{last.updates} is damaged: .*obs_clip"):
        gossamer.load_policy(run)


@pytest.mark.parametrize(
    ("changed", "kept"),
    [({"max_episode_steps": 20}, False), ({"evaluation": {"every_seconds": 0.0}}, True)],
)
def test_scores_that_compare_no_more_choose_no_learner(
    tmp_path: Path, changed: dict[str, Any], kept: bool
) -> None:
    learners = {"topology": {"name": "single"}, "num_learners": 2, "evaluation": OFTEN}
    run = trained(tmp_path / "run", total_env_steps=512, **learners)
    before = CheckpointStore(run / "checkpoints", 0).load("last").state["scores"]
    assert len(before) == 2
    none = {"total_env_steps": 1024, "evaluation": {"every_seconds": 0.0}}
    gossamer.train(resume=run, quiet=True, **{**none, **changed})
    after = CheckpointStore(run / "checkpoints", 0).load("last").state["scores"]
    assert after == (before if kept else [])


def scored(run: Path, **settings: Any) -> Path:
    """Train a run that is evaluated at once, and give it a best policy that no other will beat."""
    trained(run, **{"evaluation": OFTEN, "max_episode_steps": 40, **settings})
    store = CheckpointStore(run / "checkpoints", 0)
    best = store.load("best")
    store.save_scored("best", best.updates, best.tensors, best.state, Score(39.5))
    return run


def best_of(run: Path) -> float | None:
    score = CheckpointStore(run / "checkpoints", 0).score()
    return None if score is None else score.mean


def test_the_best_policy_is_played_with_what_it_was_learnt_with(tmp_path: Path) -> None:
    """Normalised values change no score, so that it stays the best."""
    run = scored(tmp_path / "run")
    before = outputs(run, "best")
    none = {"algorithm": OTHER[3]["algorithm"], "evaluation": {"every_seconds": 0.0}}
    gossamer.train(resume=run, quiet=True, total_env_steps=256, **none)
    assert best_of(run) == 39.5
    assert torch.equal(outputs(run, "best"), before)


def test_a_best_policy_compares_by_the_settings_that_it_was_scored_with(tmp_path: Path) -> None:
    """Whatever a session in between has asked for, of which no checkpoint tells."""
    run = scored(tmp_path / "run")
    (tmp_path / "first.json").write_text((run / "config.json").read_text())
    last = CheckpointStore(run / "checkpoints", 0).load("last")
    # A session with another limit was killed after it had scored a policy.
    store = CheckpointStore(run / "checkpoints", 0)
    facts = dict(store.load("best").state)
    other = {**facts, "max_episode_steps": 60}
    store.save_scored("best", last.updates, store.load("best").tensors, other, Score(59.0))
    kept, dropped = tmp_path / "kept", tmp_path / "dropped"
    for copy in (kept, dropped):
        shutil.copytree(run, copy)
    none = {"total_env_steps": 256, "evaluation": {"every_seconds": 0.0}, "quiet": True}
    gossamer.train(resume=kept, max_episode_steps=60, **none)
    assert best_of(kept) == 59.0, "it was scored in such episodes"
    gossamer.train(resume=dropped, max_episode_steps=40, **none)
    assert best_of(dropped) is None, "as these are"
    assert "max_episode_steps 60 -> 40" in (dropped / "log.txt").read_text()


def test_a_resume_that_is_refused_late_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose writer is refused by its server: the run would be refused ever after."""
    run = scored(tmp_path / "run")
    files = ["config.json", "layers.json", "meta.json", "summary.json"]
    before = {name: (run / name).read_bytes() for name in files}
    opened = Recorder.open

    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError("no such account")

    monkeypatch.setattr(Recorder, "open", refuse)
    again: dict[str, Any] = {"total_env_steps": 256, "max_episode_steps": 20}
    with pytest.raises(ConfigError, match="no such account"):
        gossamer.train(resume=run, quiet=True, **again)
    assert {name: (run / name).read_bytes() for name in files} == before
    assert best_of(run) == 39.5
    monkeypatch.setattr(Recorder, "open", opened)
    gossamer.train(resume=run, quiet=True, **again)
    assert best_of(run) != 39.5


def test_until_something_is_learnt_a_checkpoint_is_of_the_network_of_before(tmp_path: Path) -> None:
    """Of a session that changed it and was stopped at once."""
    for name, updates, wanted in (("same", 5, ("tanh", True)), ("more", 6, ("relu", False))):
        last = [ready()], [part(updates=updates)], [told(updates=updates, last=True)], [done()]
        changed = {
            "policy": {"activation": "relu"},
            "algorithm": {"value_norm": False, "discount": 0.5},
        }
        held = Supervised(tmp_path / name, FakePlacement([*last]), **changed)
        learnt = make_config(
            "CartPole-v1", {"algorithm.value_norm": True, "algorithm.discount": 0.98}
        )
        _, loaded = part(updates=5)
        held.supervisor.load_state(
            RunState(
                [*loaded.learners.values()],
                PLAN,
                exact=True,
                recorder=held.recorder.state(50),
                settings=to_dict(learnt),
            )
        )
        held.stop.request("SIGINT")
        held.run(resumed=True)
        held.supervisor.finish_saving()
        saved = held.saved().settings
        assert saved["algorithm"]["discount"] == (0.98 if name == "same" else 0.5)
        assert (saved["policy"]["activation"], saved["algorithm"]["value_norm"]) == wanted
        assert saved["num_envs"] == 2
        held.close()


def test_evaluations_of_other_conditions_are_not_the_runs_score(tmp_path: Path) -> None:
    run = scored(tmp_path / "run", total_env_steps=512)
    assert read_run(run).evaluation is not None
    assert last_evaluation(FolderReader(run)) is not None
    none = {"total_env_steps": 576, "evaluation": {"every_seconds": 0.0}, "quiet": True}
    same, other = tmp_path / "same", tmp_path / "other"
    for copy in (same, other):
        shutil.copytree(run, copy)
    gossamer.train(resume=same, **none)
    assert read_run(same).evaluation == read_run(run).evaluation
    gossamer.train(resume=other, max_episode_steps=20, **none)
    assert read_run(other).evaluation is None
    assert last_evaluation(FolderReader(other)) is None
    listing = Listing(Root(tmp_path))
    listing.look()
    told = {x["id"]: x["last_evaluation"] for x in listing.runs()}
    assert told["other"] is None
    assert told["same"] == told["run"] == last_evaluation(FolderReader(run))
    # Taken back, they count again.
    gossamer.train(resume=other, max_episode_steps=40, **{**none, "total_env_steps": 640})
    assert last_evaluation(FolderReader(other)) == last_evaluation(FolderReader(run))


def test_evaluations_of_a_run_from_before_marks_are_of_the_settings_that_it_had(
    tmp_path: Path,
) -> None:
    """Two changes later they are no score either."""
    run = scored(tmp_path / "run", total_env_steps=512)
    rows = rows_of(run, "evaluation")
    unmarked = [{name: x for name, x in row.items() if name != "scored_by"} for row in rows]
    (run / "evaluation.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in unmarked))
    before = last_evaluation(FolderReader(run))
    none = {"evaluation": {"every_seconds": 0.0}, "quiet": True}
    for limit, steps, wanted in ((9, 576, None), (12, 640, None), (40, 704, before)):
        gossamer.train(resume=run, max_episode_steps=limit, total_env_steps=steps, **none)
        assert last_evaluation(FolderReader(run)) == wanted
    # Where nothing says how the run is scored now, the newest evaluation does.
    (run / "meta.json").write_text("{}")
    assert last_evaluation(FolderReader(run)) == before


def test_returns_of_other_episodes_end_no_run(tmp_path: Path) -> None:
    """In episodes of 9 steps nobody earns more than 9."""
    run = trained(tmp_path / "run", total_env_steps=4_000)
    again: dict[str, Any] = {"total_env_steps": 4_400, "stop_at_return": 12.0}
    result = gossamer.train(resume=run, quiet=True, max_episode_steps=9, **again)
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    assert result.summary["mean_return_last_100"] <= 9.0


def test_scores_from_before_learners_mixed_choose_none_afterwards(tmp_path: Path) -> None:
    independent = {"topology": {"name": "single"}, "num_learners": 2}
    run = trained(tmp_path / "run", total_env_steps=512, evaluation=OFTEN, **independent)
    none = {"evaluation": {"every_seconds": 0.0}, "quiet": True}
    for steps, name in ((1_024, "gossip"), (1_536, "single")):
        gossamer.train(resume=run, topology={"name": name}, total_env_steps=steps, **none)
        assert CheckpointStore(run / "checkpoints", 0).load("last").state["scores"] == []


def test_an_export_tells_what_its_values_are_by_what_was_learnt(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **{"algorithm.discount": 0.98})
    saved = json.loads((run / "config.json").read_text())
    saved["algorithm"] |= {"discount": 0.5, "reward_clip": "sign"}
    (run / "config.json").write_text(json.dumps(saved))
    config, checkpoint = from_dict(saved), CheckpointStore(run / "checkpoints", 0).load("last")
    told = describe_run(RunFolder(run), config, checkpoint, "last", None)
    assert (told["discount"], told["reward_clip"]) == (0.98, "none")


def test_a_learner_without_a_place_has_learnt_nothing(tmp_path: Path) -> None:
    """In its place the policy of another is saved, which may have made more updates."""
    changed = {"policy": {"activation": "relu"}, "topology": {"name": "gossip"}}
    given = {**changed, "cluster.min_learners": 1}
    placement = FakePlacement([], num_hosts=2)
    placement.unplace(1)
    placement.script = [[ready()], [part(updates=5)], [told(updates=5, last=True)], [done()]]
    held = Supervised(tmp_path, placement, **given)
    learners = [part(updates=x)[1].learners[0] for x in (5, 3)]
    held.supervisor.load_state(
        RunState(
            learners,
            PLAN,
            exact=True,
            recorder=held.recorder.state(50),
            settings=to_dict(make_config("CartPole-v1")),
        )
    )
    held.stop.request("SIGINT")
    held.run(resumed=True)
    held.supervisor.finish_saving()
    assert held.saved().settings["policy"]["activation"] == "tanh"
    held.close()
