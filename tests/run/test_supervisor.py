"""The supervisor, with hosts that a test has written down: what it records, orders, saves and replaces."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_placement import FakePlacement, done, part, ready, told
from waiting import wait_for

from gossamer.errors import OthersLeft, RunFailed
from gossamer.record.checkpoint import CheckpointStore
from gossamer.record.exits import Exit
from gossamer.run.checkpoint_contents import RunPolicies
from gossamer.run.host_protocol import FINAL, Died, Failed, Notice

SYNCHRONOUS = {"topology": {"name": "diffusion"}}
ASYNCHRONOUS = {"topology": {"name": "gossip"}}
ALL_REDUCED = {"topology": {"name": "allreduce"}}


def test_one_host_trains_to_the_end_it_knows(supervise):
    placement = FakePlacement([[ready()], [told(updates=1)]])

    def learns_the_last():
        placement.env_steps = 100
        return [told(updates=2)]

    placement.script += [learns_the_last, [told(updates=3, last=True), part(updates=3)], [done()]]
    run = supervise(placement, total_env_steps=100)
    run.run()
    assert run.checkpoints.final_snapshot_queued
    assert run.supervisor.exit == Exit("done", "total_env_steps")
    # the order at the beginning asks for what the run begins with
    assert placement.asked == ["start", ("order", 1, False), "end"]
    assert [x["updates"] for x in run.rows()] == [1, 2, 3]
    assert run.store.list() == [3]


def test_a_notice_may_have_a_checkpoint_saved(supervise):
    placement = FakePlacement([[ready()], [told(updates=1)], [part(0, 1, 1)]])
    run = supervise(placement, total_env_steps=100)
    placement.script += [lambda: run.supervisor.finish_saving(), [(0, Notice("hello"))], []]
    placement.script += [[(0, Notice("the head is gone", saves=True))], []]
    run.run_script()
    assert placement.asked[2:] == [("order", 2, False), "end"]


def test_an_end_that_learners_do_not_know_is_ordered(supervise):
    placement = FakePlacement(
        [[ready()], [told(episodes=100)], [told(updates=2, last=True), part(updates=2)], [done()]]
    )
    run = supervise(placement, stop_at_return=0.5)
    run.run()
    assert run.supervisor.exit == Exit("done", "stop_at_return")
    assert placement.asked[2:] == [("order", 2, True), "end"]


def test_independent_learners_of_which_one_has_yet_to_learn_its_share_can_be_stopped(supervise):
    """Others have learnt more than theirs, so that all of them have learnt enough together."""
    placement = FakePlacement([[ready(0), ready(1)], [told(0, 3), told(1, 2)]], num_hosts=2)
    placement.env_steps, placement.learnt = 104, {0: 64, 1: 40}
    orders: list[int] = []
    placement.script += [[], lambda: orders.append(placement.orders)]
    placement.script += [[part(0, 1, 3), part(1, 1, 2)], lambda: run.supervisor.finish_saving()]
    placement.script += [[], lambda: run.stop.request("SIGINT"), []]
    run = supervise(
        placement, total_env_steps=100, checkpoint_every_seconds=1e-6, topology={"name": "single"}
    )
    run.run_script()
    assert placement.asked[-2:] == [("order", placement.orders, True), "end"]
    assert run.supervisor.exit == Exit("stopped", "SIGINT")
    assert placement.orders > 2, "checkpoints meanwhile"


def test_independent_learners_that_have_learnt_their_shares_are_done_without_an_absent_one(
    supervise,
):
    placement = FakePlacement([[ready(0)], [told(0, 1)]], num_hosts=2)
    placement.unplace(1)
    placement.env_steps, placement.learnt = 70, {0: 50, 1: 20}
    placement.script += [[told(0, 2, last=True), part(0, FINAL, 2)], [done(0)]]
    run = supervise(placement, total_env_steps=100, topology={"name": "single"})
    run.run()
    assert run.supervisor.exit == Exit("done", "total_env_steps")


def test_every_row_that_learners_tell_is_written_once_and_the_last_wait_for_everyone(supervise):
    seen: list[int] = []
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [told(0, 4)],
            [told(1, 1)],
            [told(1, 5, last=True), part(1, updates=5)],
            [told(0, 6)],
            lambda: seen.append(len(run.rows())),
            [told(0, 7, last=True), part(0, updates=7)],
            [done(0), done(1)],
        ],
        num_hosts=2,
    )
    placement.env_steps = 50
    run = supervise(placement, total_env_steps=1000, **ASYNCHRONOUS)
    run.run()
    told_of = [(x["learner"], x["updates"]) for x in run.rows()]
    assert told_of == [(0, 4), (1, 1), (0, 6), (1, 5), (0, 7)]
    assert seen == [3]
    assert {x["env_steps"] for x in run.rows()} == {50}, "the run's, not the learner's"


def test_what_a_host_tells_after_its_part_of_a_checkpoint_waits_for_the_others(supervise):
    """So the records of a checkpoint hold what is behind it, and nothing later."""
    kept: list[int] = []
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [told(0, 1), told(1, 1)],
            [part(0, 1, 1)],
            [told(0, 2, episodes=3)],
            lambda: kept.append(len(run.rows("episodes"))),
            [told(1, 2, episodes=1), part(1, 1, 2)],
            lambda: kept.append(len(run.rows("episodes"))),
            [told(0, 3, last=True), part(0, updates=3), told(1, 3, last=True), part(1, updates=3)],
            [done(0), done(1)],
        ],
        num_hosts=2,
    )
    run = supervise(placement, **ASYNCHRONOUS)
    run.run()
    assert kept == [0, 4]
    first, last = (run.saved(x) for x in run.store.list())
    assert first.recorder.episode_rows == 1
    assert last.recorder.episode_rows == 4
    assert first.updates == {0: 1, 1: 2}
    assert [float(x.tensors["learner.policy.weight"][0]) for x in first.learners] == [1.0, 2.0]
    assert first.exact


@pytest.mark.parametrize("topology", [ASYNCHRONOUS, SYNCHRONOUS])
def test_a_dead_host_is_replaced_and_its_part_of_an_order_is_asked_of_the_new_one(
    supervise, topology
):
    """In lock-step the others have stopped for it; else it is ordered anew, and nobody's rows wait."""
    number = 1 if topology is SYNCHRONOUS else 2
    rows: list[int] = []
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            lambda: setattr(placement.hosts[1], "version", 5),
            [told(0, 1), told(1, 1)],
            [part(1, 1, 1)],
            [told(1, 2, episodes=2), (1, Died("signal 9"))],
            [part(0, 1, 1)],
            [told(0, 2)],
            lambda: rows.append(len(run.rows())),
            [ready(1)],
            [told(1, 3)],
            [part(0, number, 3), part(1, number, 4)],
            [part(0, updates=5), part(1, updates=5)],
            [done(0), done(1)],
        ],
        num_hosts=2,
    )
    run = supervise(placement, **topology)
    run.run()
    assert ("replace", 1, 1) in placement.asked
    # Among them what the dead one had told behind its part: the run's steps count it.
    assert rows == [3 if topology is SYNCHRONOUS else 4]
    assert len(run.rows("episodes")) == 2
    assert run.supervisor.restarts == 1
    assert run.said == ["Learner 1 died (signal 9) and was restarted"]
    first = run.saved(run.store.list()[0])
    assert first.updates[1] == 4, "the dead one's part is not that of the new one"
    processes = run.folder.read_json("processes.json")
    assert [x["restarts"] for x in processes] == [0, 0, 1]


def test_a_checkpoint_is_not_waited_for_by_the_rows_of_others_when_somebody_joins(supervise):
    rows: list[int] = []

    def joins():
        placement.place(1)
        return []

    placement = FakePlacement([[ready(0)], [told(0, 1)], [part(0, 1, 1)]], num_hosts=2)
    placement.unplace(1)
    placement.script += [lambda: run.supervisor.finish_saving(), [], joins]
    placement.script += [[part(0, 2, 2)], [told(0, 3)]]
    placement.script += [lambda: rows.append(len(run.rows())), [ready(1)], [told(1, 1)], []]
    placement.script += [[part(0, 3, 4), part(1, 3, 2)], lambda: run.supervisor.finish_saving()]
    run = supervise(placement, checkpoint_every_seconds=1e-6, **ASYNCHRONOUS)
    run.run_script()
    assert rows == [2]
    numbers = [x[1] for x in placement.asked if x[0] == "order"]
    assert numbers[:3] == [1, 2, 3], "the third once both learn"


def test_no_checkpoint_is_ordered_of_those_that_take_in_what_they_begin_with(supervise):
    placement = FakePlacement([[ready(0)], [], [], [ready(1)], []], num_hosts=2)
    orders: list[int] = []
    placement.script.insert(3, lambda: orders.append(placement.orders))
    run = supervise(placement, checkpoint_every_seconds=1e-6, **SYNCHRONOUS)
    run.run_script()
    assert orders == [0]
    assert placement.orders == 1


def test_a_host_that_dies_before_it_has_learnt_three_times_in_a_row_ends_the_run(supervise):
    dies = [(0, Died("exit code 7"))]
    placement = FakePlacement([[ready(0), ready(1)], dies, dies, dies, dies], num_hosts=2)
    run = supervise(placement, **ASYNCHRONOUS)
    with pytest.raises(RunFailed, match=r"Learner 0 died 3 times .* \(exit code 7\)"):
        run.run()
    assert [x for x in placement.asked if x[0] == "replace"] == [
        ("replace", 0, 1),
        ("replace", 0, 2),
    ]
    assert placement.asked[-1] == "end"


def test_deaths_after_learning_are_not_in_a_row(supervise):
    placement = FakePlacement([[ready(0), ready(1)]], num_hosts=2)

    def learns_and_dies():
        placement.hosts[0].version += 10
        return [(0, Died("signal 9"))]

    placement.script += [learns_and_dies] * 6
    run = supervise(placement, **ASYNCHRONOUS)
    run.run_script()
    assert run.supervisor.restarts == 6


def test_deaths_after_each_return_to_the_same_checkpoint_end_the_run(supervise):
    """What has killed a simulator comes again where all goes on to the bit."""
    placement = FakePlacement([[ready(0), ready(1)]], num_hosts=2)

    def learns_and_dies():
        placement.hosts[0].version += 10
        return [(0, Died("signal 9"))]

    placement.script += [learns_and_dies] * 12
    run = supervise(placement, topology={"name": "allreduce"})
    says = r"died after each of 10 returns to the last checkpoint: Learner 0 died \(signal 9\)"
    with pytest.raises(RunFailed, match=says):
        run.run()
    assert run.went_back == 10


def test_rows_show_that_a_host_has_learnt_where_its_policies_come_seldom(supervise):
    life = [[ready(0), told(0, 1)], [(0, Died("signal 9"))]]
    placement = FakePlacement([[ready(1)], *life * 6], num_hosts=2)
    run = supervise(placement, **ASYNCHRONOUS)
    run.run_script()
    assert run.supervisor.restarts == 6


@pytest.mark.parametrize("last", [part(1), done(1)])
def test_a_host_that_has_given_everything_may_die(supervise, last):
    placement = FakePlacement(
        [[ready(0), ready(1)], [told(1, last=True), last, (1, Died("signal 11"))]], num_hosts=2
    )
    placement.script += [[told(0, last=True), part(0)], [done(0)]]
    if last[1].__class__.__name__ == "Done":
        placement.script[1].insert(1, part(1))
    run = supervise(placement, **ASYNCHRONOUS)
    run.run()
    assert run.supervisor.restarts == 0
    assert run.checkpoints.final_snapshot_queued


def test_a_host_may_die_whose_last_part_waits_for_an_order_under_way(supervise):
    """Under all-reduce everyone would go back, and learn again what is here."""
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [told(0, 1), told(1, 1)],
            [part(1, 1, 1)],
            [told(1, 2, last=True), part(1, updates=2), (1, Died("signal 11"))],
            [told(0, 2, last=True), part(0, updates=2)],
            [done(0)],
        ],
        num_hosts=2,
    )
    run = supervise(placement, **ALL_REDUCED)
    run.run()
    assert (run.went_back, run.supervisor.restarts, run.said) == (0, 0, [])
    assert run.checkpoints.final_snapshot_queued
    assert run.saved().updates == {0: 2, 1: 2}
    assert [(x["learner"], x["updates"]) for x in run.rows()][-2:] == [(1, 2), (0, 2)]


def test_a_group_that_cannot_do_without_a_member_goes_back(supervise):
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [told(0, 1), told(1, 1)],
            [(1, Died("signal 9"))],
            [ready(0), ready(1)],
            [told(0, 1), told(1, 1)],
            [told(0, 2, last=True), part(0), told(1, 2, last=True), part(1)],
            [done(0), done(1)],
        ],
        num_hosts=2,
    )
    run = supervise(placement, **ALL_REDUCED)
    run.run()
    assert run.went_back == 1
    assert [x for x in placement.asked if isinstance(x, str)] == ["start", "end", "start", "end"]
    assert not [x for x in placement.asked if x[0] == "replace"]


def test_a_group_that_begins_again_has_what_is_left_for_evaluations(supervise):
    placement, made = FakePlacement([]), list[Any]()

    def make_evaluator() -> Any:
        def nothing(*_: Any) -> None: ...

        made.append(SimpleNamespace(budget=1.0, report_to=nothing, close=nothing))
        return made[-1]

    placement.make_evaluator = make_evaluator
    evaluations = supervise(placement).supervisor.evaluations
    evaluations.load_state(SimpleNamespace(policies=RunPolicies(), evaluation_budget=7.0))
    evaluations.begin()
    assert evaluations.budget == 7.0
    made[-1].budget = 2.0
    evaluations.begin()
    assert evaluations.budget == 2.0, "the checkpoint's was granted once"


def test_scores_that_came_after_the_last_update_are_saved(supervise):
    run = supervise(FakePlacement([[ready()], [told(last=True), part()], [done()]]))
    run.run()
    state = run.saved()
    written = (state_file := run.store.folder / "1" / "state.json").stat().st_mtime_ns
    run.checkpoints.save(state)
    run.checkpoints.wait()
    assert state_file.stat().st_mtime_ns == written, "nothing is new"
    scored = RunPolicies(policy_of=0, best_learner=0, scores=[(0, 9.0)])
    run.checkpoints.save(msgspec.structs.replace(state, policies=scored))
    run.checkpoints.wait()
    assert run.saved().policies == scored


def test_the_first_error_that_is_told_ends_the_run(supervise):
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [(1, Notice("hello")), (1, Failed.of(RunFailed("no more"), "a learner"))],
        ],
        num_hosts=2,
    )
    run = supervise(placement, **ASYNCHRONOUS)
    with pytest.raises(RunFailed, match="no more"):
        run.run()
    assert run.said == ["hello"]


def test_who_is_at_fault_is_told_whoever_is_asked_first(supervise):
    """Where a program's function took long, all that have failed meanwhile are heard at once."""
    follows = Failed.of(OthersLeft("learner 1 has left"), "a learner")
    fault = Failed.of(RunFailed("the motor is on fire"), "a learner")
    both = [(0, follows), (0, Died("exit code 1")), (1, fault), (1, Died("exit code 1"))]
    run = supervise(FakePlacement([[ready(0), ready(1)], both], num_hosts=2), **ALL_REDUCED)
    with pytest.raises(RunFailed, match="the motor is on fire"):
        run.run()


def test_a_group_goes_back_though_the_others_of_a_dead_learner_have_failed(supervise):
    follows = Failed.of(OthersLeft("the connection broke"), "a learner")
    dies = [(0, follows), (0, Died("exit code 1")), (1, Died("signal 9"))]
    run = supervise(FakePlacement([[ready(0), ready(1)], dies], num_hosts=2), **ALL_REDUCED)
    run.run_script()
    assert run.went_back == 1
    alone = [(0, follows), (0, Died("exit code 1"))]
    run.placement.script = [[ready(0), ready(1)], alone]
    with pytest.raises(RunFailed, match="the connection broke"):
        run.run()


def test_checkpoints_are_ordered_when_due_one_at_a_time(supervise):
    placement = FakePlacement(
        [[ready()], [told(updates=1)], [], [], [part(0, 1, 1)], [told(updates=2)]]
    )
    placement.script += [lambda: run.supervisor.finish_saving(), []]
    run = supervise(placement, checkpoint_every_seconds=1e-6)
    run.run_script()
    numbers = [x[1] for x in placement.asked if x[0] == "order"]
    assert numbers == [1, 2], "no other while the first was under way"


def test_what_a_run_begins_with_is_written_after_the_first_version_or_when_it_is_left(supervise):
    there: list[list[int]] = []

    def look():
        run.supervisor.finish_saving()
        there.append(run.store.list())

    placement = FakePlacement([[ready()], [part(0, 1, updates=0)], look, [told(updates=1)], look])
    run = supervise(placement, checkpoint_every_seconds=0.0)
    run.run_script()
    assert there == [[], [0]]


def test_no_checkpoint_is_due_while_what_a_run_begins_with_has_yet_to_be_written(supervise):
    """Where one is due again before anything is learnt, nothing would ever be."""
    placement = FakePlacement([[ready()], [part(0, 1, updates=0)], [], []])
    orders: list[int] = []
    placement.script += [lambda: orders.append(placement.orders), [told(updates=1)]]
    run = supervise(placement, checkpoint_every_seconds=1e-9)
    run.run_script()
    assert orders == [1]


def test_a_run_that_is_left_at_once_can_be_resumed(supervise):
    placement = FakePlacement([[ready()], [part(0, 1, updates=0)]])
    run = supervise(placement, checkpoint_every_seconds=0.0)
    run.run_script()
    run.supervisor.leave()
    run.supervisor.finish_saving()
    assert run.store.list() == [0]
    assert run.said == ["The present batch was abandoned: nothing after env step 0 is saved"]


def test_an_end_is_taken_back_when_a_new_host_has_not_reached_it(supervise):
    placement = FakePlacement([[ready(0), ready(1)], [told(0), told(1)]], num_hosts=2)

    def reaches_the_end():
        placement.env_steps = 100
        placement.hosts[1].version = 3
        return []

    def dies():
        placement.ends_alone = False
        return [(1, Died("signal 9"))]

    placement.script += [reaches_the_end, dies, [ready(1)], [part(0), part(1)], [done(0), done(1)]]
    run = supervise(placement, total_env_steps=100, **SYNCHRONOUS)
    run.run()
    assert placement.asked[-2:] == [("order", 2, True), "end"]


def test_an_order_that_a_replaced_host_never_saw_is_not_mixed_with_a_later_one(supervise):
    placement = FakePlacement(
        [[ready(0), ready(1)], [told(0), told(1)], [part(0, 7, 1)], [part(1, FINAL, 2)]],
        num_hosts=2,
    )
    run = supervise(placement, **ASYNCHRONOUS)
    run.run_script()
    run.supervisor.finish_saving()
    assert run.store.list() == []


def test_a_run_that_ends_before_its_first_version_is_saved(supervise):
    placement = FakePlacement([[ready()], [part(0, FINAL, updates=0)], [done()]])
    run = supervise(placement, checkpoint_every_seconds=0.0)
    run.stop.request("SIGINT")
    run.run()
    assert run.checkpoints.final_snapshot_queued
    assert run.store.list() == [0]


@pytest.fixture
def disk(monkeypatch):
    """Lets the next checkpoints fail, as many as it is set to."""
    left, save = SimpleNamespace(failures=0), CheckpointStore.save

    def sometimes(self: CheckpointStore, *given: Any) -> Any:
        if left.failures:
            left.failures -= 1
            raise OSError(28, "No space left on device")
        return save(self, *given)

    monkeypatch.setattr(CheckpointStore, "save", sometimes)
    return left


def saves_twice() -> FakePlacement:
    """A run that saves what it begins with, and its end."""
    placement = FakePlacement([[ready()], [part(0, 1, updates=0)], [told(updates=1)]])

    def learns_the_last():
        placement.env_steps = 100
        return [told(updates=2)]

    placement.script += [learns_the_last, [told(updates=3, last=True), part(updates=3)], [done()]]
    return placement


def test_a_checkpoint_that_cannot_be_written_is_told_and_the_next_one_is_tried(supervise, disk):
    run = supervise(saves_twice(), total_env_steps=100)
    disk.failures = 1
    run.run()
    assert run.store.list() == [3]
    assert run.checkpoints.all_saved
    (line,) = [x for x in run.said if "could not be written" in x]
    assert line.startswith("a checkpoint could not be written (No space left on device); ")


def test_a_second_checkpoint_that_cannot_be_written_ends_the_run(supervise, disk):
    script = [[ready()], [part(0, 1, updates=0)]]
    script += [[told(updates=n), part(0, n, updates=n)] for n in range(1, 40)]
    run = supervise(FakePlacement(script), total_env_steps=10**6, checkpoint_every_seconds=1e-9)
    disk.failures = 2
    with pytest.raises(OSError, match="No space left"):
        run.run()
    with suppress(OSError):
        run.supervisor.finish_saving()
    assert len([x for x in run.said if "could not be written" in x]) == 1
    assert run.store.list() == []
    assert run.checkpoints.on_disk is None


def test_the_last_checkpoint_has_to_be_written(supervise, disk):
    run = supervise(saves_twice(), total_env_steps=100)
    disk.failures = 2
    with pytest.raises(OSError, match="No space left"):
        run.run()
    with suppress(OSError):
        run.supervisor.finish_saving()
    assert run.store.list() == []


def test_what_could_not_be_written_is_not_said_to_be_on_disk(supervise, monkeypatch):
    placement = FakePlacement([[ready()], [part(0, 1, updates=0)], [told(updates=1)]])
    run = supervise(placement)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.store, "save", full)
    run.run_script()
    wait_for(lambda: run.checkpoints.failed, "the failure")
    assert run.checkpoints.on_disk is None
    assert not run.checkpoints.all_saved
    with pytest.raises(OSError, match="No space left"):
        run.supervisor.finish_saving()
