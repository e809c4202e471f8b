"""The best policy is one that was confirmed, in episodes that had no part in choosing it."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import SMALL, assert_same, log_of, rows_of
from sessions import slow, summary_of

from gossamer import cli
from gossamer.config import TrainConfig, make_config
from gossamer.machine import threads
from gossamer.record import checkpoint
from gossamer.record.checkpoint import CheckpointStore, Score, UnreadableError
from gossamer.roles.evaluation import Evaluation, Interrupted, play_trials
from gossamer.roles.evaluator import Contest, Source
from gossamer.run.best_policy import BestPolicy
from gossamer.run.evaluate import evaluate
from gossamer.run.train import train

torch.set_num_threads(1)  # tensors here are tiny: a second thread only waits

OFTEN = {"every_seconds": 1e-9, "max_time_fraction": 1.0, "episodes": 5, "confirm_episodes": 8}

SHORT = {"max_episode_steps": 25}


def config(folder: Path, env_id: str, versions: int, **settings: Any) -> TrainConfig:
    learns = {"algorithm": {"name": "a2c", "num_minibatches": 1}, "placement": "inline"}
    given = {**SMALL, **learns, "evaluation": OFTEN, **settings}
    steps = versions * given["num_envs"] * given["unroll_length"] * given.get("num_learners", 1)
    return make_config(env_id, {**given, "run_folder": str(folder), "total_env_steps": steps})


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return rows_of(folder, "evaluation")


def seeds_in(rows: list[dict[str, Any]]) -> list[int]:
    """What these rows of evaluations played, held-out tasks included."""
    return [
        int(x)
        for row in rows
        for x in (*row["returns"], *row.get("held_out", {}).get("returns", ()))
    ]


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("lottery_envs:Lottery", {}),
        (
            "lottery_envs:Lotteries",
            {"env.family": True, "evaluation": {**OFTEN, "held_out_tasks": 3}},
        ),
    ],
)
def test_nothing_is_scored_by_episodes_that_have_chosen_it(
    tmp_path: Path, env_id: str, settings: dict[str, Any]
) -> None:
    train(config(tmp_path / "run", env_id, 24, **settings), quiet=True)
    rows = evaluations(tmp_path / "run")
    choosing = seeds_in([row for row in rows if not row["confirmation"]])
    confirming = [row for row in rows if row["confirmation"]]
    assert len(confirming) >= 2
    for row in confirming:
        assert len(row["returns"]) == 8
        assert row["against"]["returns"] == row["returns"], "both play the same episodes"
    training = [row["return"] for row in rows_of(tmp_path / "run", "episodes")]
    by_user: list[int] = []
    for seed in (0, 1, 2):  # 1 is the run's seed too
        result = evaluate(str(tmp_path / "run"), episodes=30, checkpoint="best", seed=seed)
        by_user += seeds_in([result.as_dict()])
    # Of a family the held-out tasks are played in episodes with the seeds of the training tasks' episodes.
    twice = 2 if "held_out_tasks" in settings.get("evaluation", {}) else 1
    for own in (choosing, seeds_in(confirming), by_user):
        assert set(Counter(own).values()) <= {1, twice}
    played = [set(choosing), set(seeds_in(confirming)), set(by_user), set(map(int, training))]
    assert sum(map(len, played)) == len(set().union(*played))


def test_luck_does_not_make_a_policy_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody can be good, the first one stays, and its score is what everyone earns on average."""
    train(config(tmp_path / "run", "lottery_envs:Lottery", 24))
    rows = evaluations(tmp_path / "run")
    best = CheckpointStore(tmp_path / "run/checkpoints", 1).load("best")
    assert best.state["version"] == rows[0]["version"]
    confirming = [row for row in rows if row["confirmation"]]
    assert not any(row["wins"] for row in confirming)
    last = confirming[-1]["against"]
    assert (last["version"], last["updates"]) == (best.state["version"], best.updates)
    assert best.score == best.state["mean"] == last["mean"]
    assert best.score < max(row["mean"] for row in rows if not row["confirmation"])
    # every candidate was ahead of the best when it was chosen
    summary = summary_of(tmp_path / "run")
    assert (summary["best_evaluation"], summary["best_evaluation_episodes"]) == (best.score, 8)
    told = capsys.readouterr().err
    assert f"best evaluation {best.score:.4g} over 8 episodes; next: gossamer eval" in told
    assert rows_of(tmp_path / "run")[-1]["evaluation_best_episodes"] in (5, 8)


NAMES = ["weight", "mean"]


class Fakes:
    """A best policy in a folder, the rows that it writes, and policies of one number."""

    def __init__(self, folder: Path):
        self.store = CheckpointStore(folder, 3)
        self.rows: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.best = self.again()

    def again(self) -> BestPolicy:
        """What a resumed run begins with."""
        recorder = SimpleNamespace(
            scores={},
            say=self.said.append,
            on_confirmation=lambda candidate, whose, best, best_whose, *, wins: self.rows.append(
                {"candidate": candidate.mean, **whose, "best": best and best.mean, "wins": wins}
            ),
        )
        best = BestPolicy(self.store, recorder)  # type: ignore[arg-type]
        self.recorder = recorder
        return best

    @property
    def told(self) -> tuple[Score | None, Score | None]:
        """Scores that rows of metrics tell: the best policy's and the candidate's."""
        return self.recorder.scores["best"], self.recorder.scores["candidate"]

    def consider(self, version: int, *returns: float, learner: int | None = 0) -> None:
        tensors = [torch.full((2,), float(version)), torch.full((1,), -1.0, dtype=torch.float64)]
        self.best.consider(
            scored(*returns),
            Source(version, learner),
            tensors,
            NAMES,
            at=(10 * version, 100 * version),
        )

    def contest(self) -> Contest:
        """Return the contest that there must be."""
        found = self.best.contest(NAMES)
        assert found is not None
        return found

    def has_contest(self) -> bool:
        return self.best.contest(NAMES) is not None

    def version(self, name: Any = "best") -> int:
        found = self.store.load(name)
        assert found.tensors["learner.policy.weight"].tolist() == [found.state["version"]] * 2
        assert found.tensors["learner.policy.mean"].tolist() == [-1.0]
        assert found.updates == 10 * found.state["version"]
        assert found.state["env_steps"] == 100 * found.state["version"]
        assert found.score == found.state["mean"]
        return found.state["version"]


def scored_as(store: CheckpointStore) -> tuple[float, int | None]:
    """Mean and episodes of the best policy's score."""
    score = store.score()
    assert score is not None
    return score[:2]


def scored(*returns: float) -> Evaluation:
    return Evaluation(returns, (1,) * len(returns), 0)


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path / "checkpoints")


def test_a_policy_that_is_clearly_ahead_is_the_best_at_once(fakes: Fakes) -> None:
    fakes.consider(1, -20.0, -19.0, -20.0)
    fakes.consider(2, -21.0, 5.0, -19.0)
    assert (fakes.version(), fakes.version("candidate")) == (1, 2), "ahead, but by one game"
    fakes.consider(3, 3.0, 4.0, 3.5)
    assert (fakes.version(), fakes.best.waiting) == (3, False)
    assert fakes.rows == [], "nobody had to play again"
    fakes.consider(4, 3.4, 4.4, 3.9)
    assert (fakes.version(), fakes.version("candidate")) == (3, 4), "a close call"
    fakes.best = fakes.again()
    fakes.consider(5, 20.0, 20.0, 20.0)
    assert (fakes.version(), fakes.best.waiting) == (5, False), "a resumed run knows the interval"
    fakes.store.save_scored("best", 60, {}, {}, Score(0.0, 3))
    fakes.best = fakes.again()
    fakes.consider(7, 20.0, 20.0, 20.0)
    assert fakes.version("candidate") == 7, "of an older run's it is not known"


def test_a_run_that_is_stopped_decides_by_what_it_knows(fakes: Fakes) -> None:
    # BipedalWalker, stopped: the best played 127 in twenty episodes, and the last policy 197.
    fakes.consider(1, 165.0, 158.0, 169.0)
    fakes.consider(2, 205.0, 206.0, 187.0)
    assert fakes.version("candidate") == 2, "their intervals touch"
    fakes.best.settle()
    assert (fakes.version(), fakes.best.waiting) == (2, False)
    assert scored_as(fakes.store) == (pytest.approx(598 / 3), 3)
    assert fakes.told == (fakes.store.score(), None)
    fakes.consider(3, 210.0, 195.0, 196.0)
    fakes.best.settle()
    assert (fakes.version(), fakes.version("candidate")) == (2, 3), "that may be luck"
    fakes.best = fakes.again()
    fakes.best.settle()
    assert (fakes.version(), fakes.version("candidate")) == (2, 3), "of a resumed run too"
    # Of single episodes nothing tells how far they may be off.
    fakes.consider(4, 300.0)
    fakes.best.settle()
    assert (fakes.version(), fakes.best.waiting) == (4, False)
    fakes.best.settle()
    assert fakes.version() == 4, "nothing waits"


def test_a_contest_ends_as_soon_as_it_is_decided(fakes: Fakes) -> None:
    fakes.best = BestPolicy(fakes.store, fakes.recorder, 9)  # type: ignore[arg-type]
    fakes.consider(1, 5.0)
    fakes.consider(2, 9.0)
    assert fakes.contest().played == 0
    fakes.best.decide(scored(5.0, 9.0, 6.0), scored(5.5, 7.0, 6.0))
    assert (fakes.contest().played, fakes.best.waiting, fakes.rows) == (3, True, [])
    fakes.best.decide(scored(9.0, 9.0, 9.0), scored(5.5, 5.0, 4.5))
    assert (fakes.version(), scored_as(fakes.store)) == (2, (pytest.approx(47 / 6), 6))
    # Where nothing tells them apart, all episodes are played.
    fakes.consider(3, 10.0)
    for played in (0, 3, 6):
        assert fakes.contest().played == played
        fakes.best.decide(scored(1.0, 5.0, 9.0), scored(2.0, 4.5, 9.0))
    assert not fakes.best.waiting
    assert fakes.version() == 2


def test_few_episodes_decide_nothing_however_far_one_is_ahead(fakes: Fakes) -> None:
    """The mean of three, which stopped because it was high, would be the score that later policies have to exceed."""
    fakes.best = BestPolicy(fakes.store, fakes.recorder, 20)  # type: ignore[arg-type]
    fakes.consider(1, -1.8)
    fakes.consider(2, -0.4)
    fakes.contest()
    fakes.best.decide(scored(0.54, 1.22, 1.34), scored(-1.5, -2.0, -2.0))
    assert (fakes.version(), fakes.version("candidate"), fakes.rows) == (1, 2, [])
    assert fakes.best.has_begun, "so that the next part of it comes before another candidate does"
    fakes.contest()
    fakes.best.decide(scored(-0.5, 0.2, -2.0), scored(-1.5, -2.0, 1.0))
    assert (fakes.version("candidate"), fakes.best.has_begun) == (2, False)
    # Of contests that are to be shorter all episodes are enough.
    fakes.best = BestPolicy(fakes.store, fakes.recorder, 3)  # type: ignore[arg-type]
    fakes.contest()
    fakes.best.decide(scored(0.54, 1.22, 1.34), scored(-1.5, -2.0, -2.0))
    assert (fakes.version(), fakes.best.waiting) == (2, False)


def test_where_the_disk_refuses_a_policy_a_later_one_may_fit(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.consider(1, 10.0, 10.1, 10.2)
    save = fakes.store.save_scored

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fakes.store, "save_scored", fail)
    fakes.consider(2, 20.0, 20.1, 20.2)  # clearly ahead
    fakes.consider(3, 9.0, 12.0, 12.0)  # perhaps
    assert len(fakes.said) == 2
    assert fakes.said[0] == "the best policy could not be written (No space left on device)"
    assert "a candidate for the best policy" in fakes.said[1]
    assert (fakes.version(), fakes.has_contest()) == (1, False)
    monkeypatch.setattr(fakes.store, "save_scored", save)
    fakes.consider(4, 9.0, 12.0, 12.0)
    assert fakes.has_contest()
    fakes.contest()
    monkeypatch.setattr(fakes.store, "save_scored", fail)
    fakes.best.decide(scored(30.0, 31.0, 32.0), scored(10.0, 10.1, 10.2))
    monkeypatch.setattr(fakes.store, "save_scored", save)
    assert fakes.version() == 1
    assert fakes.version("candidate") == 4, "it is still there to be confirmed"


def test_the_first_policy_was_not_chosen_and_is_the_best(fakes: Fakes) -> None:
    fakes.consider(0, float("nan"))
    assert fakes.store.score() is None, "not a number: no score"
    fakes.consider(1, 4.0, 6.0)
    assert fakes.version() == 1
    assert fakes.store.score() == Score(5.0, 2, 12.71)
    assert fakes.told == (Score(5.0, 2, 12.71), None)
    assert not fakes.best.waiting
    assert not fakes.has_contest()


def test_the_highest_of_those_above_the_best_is_the_candidate(fakes: Fakes) -> None:
    for version, score in enumerate((5.0, 5.0, 4.0, 8.0, 7.0, float("nan"))):
        fakes.consider(version, score)
    assert fakes.version() == 0, "the best stays until it has lost"
    assert fakes.version("candidate") == 3
    fakes.consider(9, 9.0, learner=None)
    contest = fakes.contest()
    assert contest.best is not None
    assert contest.source == Source(9, None)
    assert [x.tolist() for x in contest.candidate] == [[9.0, 9.0], [-1.0]]
    assert [x.tolist() for x in contest.best] == [[0.0, 0.0], [-1.0]]


@pytest.mark.parametrize(
    ("candidate", "best", "kept"),
    [
        (6.0, 4.0, 1),
        (4.0, 4.0, 0),  # nothing has shown that it is better
        (3.0, 4.0, 0),
        (6.0, float("nan"), 1),
        (float("nan"), 4.0, 0),
        (float("nan"), float("nan"), 0),
    ],
)
def test_the_better_one_of_a_contest_is_the_best_with_what_it_earned_there(
    fakes: Fakes, candidate: float, best: float, kept: int
) -> None:
    fakes.consider(0, 5.0)
    fakes.consider(1, 9.0)
    fakes.contest()
    assert fakes.told == (Score(5.0, 1), Score(9.0, 1))
    fakes.best.decide(scored(candidate, candidate), scored(best, best))
    assert fakes.version() == kept
    earned = candidate if kept else best
    assert scored_as(fakes.store) == ((5.0, 1) if earned != earned else (earned, 2))
    assert fakes.told == (fakes.store.score(), None)
    assert not fakes.best.waiting
    (row,) = fakes.rows
    assert (row["version"], row["updates"], row["env_steps"], row["wins"]) == (
        1,
        10,
        100,
        kept == 1,
    )
    fakes.consider(1, 99.0)
    assert not fakes.best.waiting, "it has been decided about"
    fakes.consider(1, 99.0, learner=2)
    assert fakes.best.waiting, "another learner's is another policy"


def test_a_resumed_run_goes_on_with_both(fakes: Fakes) -> None:
    fakes.consider(0, 5.0)
    fakes.consider(1, 9.0)
    fakes.best = fakes.again()
    assert fakes.best.waiting
    fakes.consider(2, 8.0)
    assert fakes.contest().source.version == 1
    fakes.best.decide(scored(7.0), scored(6.0))
    assert (fakes.version(), scored_as(fakes.store)) == (1, (7.0, 1))


def test_a_kill_between_keeping_the_best_and_forgetting_the_candidate(fakes: Fakes) -> None:
    fakes.consider(0, 5.0)
    fakes.consider(1, 9.0)
    found = fakes.store.load("candidate")
    fakes.store.save_scored("best", found.updates, found.tensors, found.state, Score(9.0, 1))
    fakes.best = fakes.again()
    assert not fakes.has_contest()
    assert not fakes.best.waiting


def test_damaged_policies_are_done_without(fakes: Fakes) -> None:
    fakes.consider(0, 5.0)
    fakes.consider(1, 9.0)
    (fakes.store.folder / "best" / "tensors.safetensors").write_bytes(b"?")
    assert fakes.contest().best is None
    fakes.best.decide(scored(1.0), None)
    assert (fakes.version(), scored_as(fakes.store)) == (1, (1.0, 1))
    fakes.consider(2, 9.0)
    (fakes.store.folder / "candidate" / "tensors.safetensors").write_bytes(b"?")
    assert not fakes.has_contest()
    assert not fakes.best.waiting
    assert fakes.version() == 1


def test_policies_that_cannot_be_read_for_now_are_kept(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.consider(0, 5.0)
    fakes.consider(1, 9.0)

    def gone(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    for silent in ([(checkpoint, "read_plain"), (checkpoint, "open_plain")], [(Path, "stat")]):
        with monkeypatch.context() as during:
            for where, name in silent:
                during.setattr(where, name, gone)
            assert not fakes.has_contest()
            with pytest.raises(UnreadableError, match="Stale file handle"):
                fakes.again()  # which would take the next policy for the first
            fakes.consider(2, 7.0)
    assert fakes.best.waiting
    assert (fakes.version(), fakes.version("candidate")) == (0, 1)
    assert fakes.told == (Score(5.0, 1), Score(9.0, 1))
    assert fakes.has_contest()


class Slow:
    """An evaluator for which contests take long, and are interrupted if asked to."""

    confirming_cost, confirming_episodes = 99.0, 20

    def __init__(self, fakes: Fakes):
        self.fakes, self.interrupts = fakes, False

    def confirm(self, stop: Any) -> float:
        if self.interrupts:
            raise Interrupted
        self.fakes.contest()
        self.fakes.best.decide(scored(8.0), scored(6.0))
        return 0.0


def test_what_is_left_to_confirm_is_confirmed_when_a_run_ends(fakes: Fakes) -> None:
    evaluator: Any = Slow(fakes)
    fakes.consider(7, 5.0)
    fakes.best.finish(evaluator, lambda: False)
    assert (fakes.version(), fakes.said) == (7, []), "one alone: nothing to confirm"
    fakes.consider(8, 9.0)
    evaluator.interrupts = True
    with pytest.raises(Interrupted):
        fakes.best.finish(evaluator, lambda: True)
    assert fakes.best.waiting
    (said,) = fakes.said
    assert said.startswith("playing 20 episodes each with the candidate and the best policy")
    evaluator.interrupts = False
    fakes.best.finish(evaluator, lambda: False)
    assert (fakes.version(), scored_as(fakes.store)) == (8, (8.0, 1))


def test_a_short_run_ends_with_its_last_policy_evaluated_and_confirmed(tmp_path: Path) -> None:
    seldom = {**OFTEN, "every_seconds": 1e6}
    made = config(tmp_path / "run", "CartPole-v1", 4, evaluation=seldom)
    train(made, quiet=True)
    (row,) = evaluations(tmp_path / "run")
    assert not row["confirmation"]
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 1)
    assert scored_as(store) == (row["mean"], 5)
    best = store.load("best")
    store.save_scored("best", best.updates, best.tensors, best.state, Score(1.0, 5))
    train(
        replace(made, total_env_steps=2 * made.total_env_steps),
        resume=str(tmp_path / "run"),
        quiet=True,
    )
    _, later, confirmation = evaluations(tmp_path / "run")
    assert not later["confirmation"]
    assert confirmation["confirmation"]
    assert confirmation["version"] == later["version"]
    assert confirmation["against"]["version"] == row["version"] < later["version"]
    assert len(confirmation["returns"]) == len(confirmation["against"]["returns"]) == 8
    wins = confirmation["mean"] > confirmation["against"]["mean"]
    assert confirmation["wins"] == wins
    winner = confirmation if wins else confirmation["against"]
    assert store.load("best").updates == winner["updates"]
    assert scored_as(store) == (winner["mean"], 8)
    assert not (tmp_path / "run" / "videos").exists(), "nobody asked for any"


def test_evaluating_changes_nothing_about_what_is_learnt(tmp_path: Path) -> None:
    """However often and how many: inline runs are the same to the bit."""
    for name, evaluation in {"without": {"every_seconds": 0.0}, "with": OFTEN}.items():
        made = config(tmp_path / name, "CartPole-v1", 12, evaluation=evaluation, **SHORT)
        train(made, quiet=True)
    assert any(row["confirmation"] for row in evaluations(tmp_path / "with"))
    assert_same(tmp_path / "without", tmp_path / "with")


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_every_evaluation_computes_as_the_others_do_the_last_one_too(
    tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in another order would tell another score of the same policy."""
    seen: list[int] = []

    def asked(*args: Any, **named: Any) -> Any:
        seen.append(torch.get_num_threads())
        return play_trials(*args, **named)

    monkeypatch.setattr("gossamer.roles.evaluator.play_trials", asked)
    with threads(2):
        made = config(tmp_path / "run", "CartPole-v1", 4, placement=placement, **SHORT)
        train(made, quiet=True)
    assert len(seen) >= len(evaluations(tmp_path / "run")) > 1
    assert set(seen) == {1}


@pytest.mark.parametrize(
    ("topology", "placement"),
    [
        ("single", "local"),
        ("gossip", "inline"),
        ("allreduce", "local"),
        slow("single", "inline"),
        slow("gossip", "local"),
        slow("allreduce", "inline"),
    ],
)
def test_of_several_learners_the_runs_policy_is_the_best(
    tmp_path: Path, topology: str, placement: str
) -> None:
    settings = {"num_learners": 2, "topology.name": topology, "placement": placement}
    train(config(tmp_path / "run", "lottery_envs:Clock", 12, **settings), quiet=True)
    rows = evaluations(tmp_path / "run")
    ours = {"gossip": {"average"}, "allreduce": {0}, "single": {0, 1}}[topology]
    best = CheckpointStore(tmp_path / "run" / "checkpoints", 1).load("best")
    # Whatever is evaluated later earns more, and clearly: it is the best at once.
    last = [row for row in rows if row["learner"] in ours and not row["confirmation"]][-1]
    assert (best.state["learner"], best.state["version"]) == (last["learner"], last["version"])
    assert best.score == last["mean"]


def test_eval_says_what_has_not_been_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = config(tmp_path / "run", "lottery_envs:Lottery", 2)
    train(made, quiet=True)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 1)
    store.discard("candidate")
    words = ["eval", str(tmp_path / "run"), "--episodes", "1", "--checkpoint"]
    assert cli.main([*words, "candidate"]) == 2
    assert "no checkpoint candidate" in capsys.readouterr().err
    assert cli.main([*words, "best"]) == 0
    assert capsys.readouterr().err == ""
    best = store.load("best")
    store.save_scored("candidate", 99, best.tensors, best.state, Score(5e9, 5))
    assert cli.main([*words, "best"]) == 0
    said = capsys.readouterr().err
    assert "evaluated higher, 5e+09 over 5 episodes, has not been confirmed" in said
    assert "--checkpoint candidate" in said
    assert cli.main([*words, "candidate"]) == 0
    assert "checkpoint candidate, 1 episode" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_episode_steps": 20}, "max_episode_steps 40 -> 20"),
        ({"policy": {"activation": "relu"}}, "policy.activation tanh -> relu"),
        ({"evaluation": {**OFTEN, "greedy": True}}, "evaluation.greedy False -> True"),
        ({"algorithm": {"name": "a2c", "entropy_cost": 0.02, "num_minibatches": 1}}, ""),
    ],
)
def test_a_score_that_no_longer_compares_is_dropped(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    """A balanced pole is worth as many points as an episode has steps, of which there may be fewer now."""
    limit = {"max_episode_steps": 40}
    train(config(tmp_path, "CartPole-v1", 6, **limit), quiet=True)
    store = CheckpointStore(tmp_path / "checkpoints", 0)
    store.save_scored("best", 1, store.load("best").tensors, store.load("best").state, Score(39.5))
    train(config(tmp_path, "CartPole-v1", 12, **limit | changed), resume=str(tmp_path), quiet=True)
    best = store.score()
    assert best is not None
    assert (best.mean == 39.5) == (not told)
    said = "the best policy so far (score 39.5) is dropped, because scores no longer compare: "
    assert (said + told in log_of(tmp_path)) == bool(told)


def test_a_setting_that_an_older_version_did_not_have_drops_no_score(tmp_path: Path) -> None:
    train(config(tmp_path, "CartPole-v1", 6), quiet=True)
    store = CheckpointStore(tmp_path / "checkpoints", 0)
    store.save_scored("best", 1, store.load("best").tensors, store.load("best").state, Score(39.5))
    last = store.load("last")
    state = json.loads(json.dumps(last.state))
    del state["settings"]["policy"]["noise_correlation"], state["settings"]["evaluation"]["greedy"]
    store.save(last.updates, last.tensors, state)
    train(config(tmp_path, "CartPole-v1", 12), resume=str(tmp_path), quiet=True)
    assert "is dropped" not in log_of(tmp_path)
