"""The supervisor of a run: listens to the hosts of learners, records, joins their parts of checkpoints, replaces hosts that die, and ends the run.

It takes the same way for one learner in this process and for many elsewhere: a `Placement` tells what its hosts have done,
and carries out orders. What belongs to the run folder is written here, and nowhere that learners run.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gossamer.errors import RunFailed
from gossamer.run import wording
from gossamer.run.host_protocol import (
    FINAL,
    ActorProcesses,
    Died,
    Done,
    Failed,
    Notice,
    ProgressReport,
    Ready,
    Snapshot,
    SnapshotSent,
)
from gossamer.run.host_state import HostState
from gossamer.run.snapshot import EXACT, NOT_BACK, stand_in, updates_in
from gossamer.run.stopping import end_of
from gossamer.run.watching import at_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.record.exits import Exit
    from gossamer.record.folder import RunFolder
    from gossamer.run.checkpointing import Checkpointing
    from gossamer.run.evaluations import Evaluations
    from gossamer.run.host_protocol import Begin, Event, Placement
    from gossamer.run.recorder import Recorder
    from gossamer.run.requests import Requests
    from gossamer.run.scoring import Scoring
    from gossamer.run.stopping import Stop

MAX_DEATHS_IN_A_ROW = 3
"""Deaths of a host without a completed version in between, after which the run ends."""
MAKING_EXPLAINED_AFTER_SECONDS = 2.0
"""Hosts that take longer to make their environments are explained."""


class LockstepBroken(Exception):
    """A learner has died without which the others cannot go on: all begin again with the last checkpoint."""


@dataclass
class _Group:
    """What learners have come to since they were started together, at first or with the last checkpoint."""

    resumed: bool = False
    """Whether they go on from a checkpoint."""
    began: float = field(default_factory=time.monotonic)
    """When they were started, in seconds of the monotonic clock."""
    all_began: bool = False
    """Whether all hosts that have a place learn."""
    ending: bool = False
    """Whether an end was reached, and ordered."""
    order: int | None = None
    """Number of the order of the checkpoint under way."""
    checkpoint_overdue: bool = False
    """Whether a checkpoint was given up, which is to be ordered anew."""
    ranks_told: set[int] = field(default_factory=set[int])
    """Learners that have told a row."""
    last_rows: list[dict[str, Any]] = field(default_factory=list[Any])
    """Last rows of learners that have ended, which wait for those of the others."""
    beginning: tuple[dict[str, Tensor], dict[str, Any]] | None = None
    """Tensors and state of what they begin with, until that is saved."""
    final_snapshot_queued: bool = False
    """Whether the last parts of all hosts are joined and handed to the writer."""


class Supervisor:
    """Runs a placement from its start to its end.

    Args:
        config: of the run.
        folder: of the run.
        placement: where the learners run.
        recorder: writes what is told.
        checkpoints: writes snapshots.
        scoring: keeps what evaluations say.
        evaluations: evaluates policies.
        stop: asked to.
        tried: whether it is known if environments come back.
        requests: what the run is asked for from beside it; None: nobody can.
        making: what to tell if hosts take long to begin; empty: nothing.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        placement: Placement,
        recorder: Recorder,
        checkpoints: Checkpointing,
        scoring: Scoring,
        evaluations: Evaluations,
        stop: Stop,
        *,
        tried: bool,
        requests: Requests | None = None,
        making: str = "",
    ):
        self.exit: Exit | None = None
        """How the run ends, once that is known."""
        self.restarts = 0
        """How often a host was started again."""
        self._config, self._folder, self._placement = config, folder, placement
        self._recorder, self._checkpoints, self._scoring = recorder, checkpoints, scoring
        self._evaluations, self._stop = evaluations, stop
        self._requests = requests
        self._making = making
        self._updates: dict[int, int] = {}  # of each learner at the last snapshot
        self._hosts: list[HostState] = []
        self._events: deque[tuple[int, Event]] = deque()  # to be heard
        self._differs = placement.spec.differs if tried else None
        self._group = _Group()
        placement.before_snapshot = self.finish_saving
        placement.asked_to_stop = lambda: stop.exit is not None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self._recorder.load_state_dict(state["recorder"])
        self._scoring.load_state_dict(state)
        self._checkpoints.load_state_dict(state)
        self._evaluations.keep_budget(state.get("evaluation_budget"))
        self._updates = updates_in(state)

    def run(self, begin: Begin, go_back: Callable[[], bool], *, resumed: bool) -> None:
        """Train to the end, then evaluate the run's final policy.

        Args:
            begin: reads what learners begin with.
            go_back: brings the run folder back to its last checkpoint; returns whether there is one.
            resumed: the run goes on from a checkpoint.

        Raises:
            RunFailed: a learner has failed, or died too often.
            Stopped: a stop's time was over before everything was saved.
            Overdue: the same, noticed while the main thread was at something that does not return.
        """
        while True:
            self._group = _Group(resumed)
            try:
                self._supervise(begin)
                break
            except LockstepBroken:
                self.finish_saving()
                self._checkpoints.forget()
                self._hosts = [HostState(x.incarnation, x.deaths_in_a_row) for x in self._hosts]
                self._events.clear()
                self.exit = None  # an end that was reached is not reached any more
                resumed = go_back()
        self.finish_saving()
        if self._group.final_snapshot_queued:
            self._evaluations.finish(self.exit, self.finish_saving)

    def _supervise(self, begin: Begin) -> None:
        placement = self._placement
        if self._group.resumed and placement.restore_seconds is None:
            self._recorder.say(f"starting {placement}")
        try:
            placement.start(begin)
            self._hosts = self._hosts or [HostState() for _ in placement.hosts]
            for state, host in zip(self._hosts, placement.hosts, strict=True):
                state.version_at_start = host.version
            self._write_processes()
            self._evaluations.begin()
            self._checkpoints.begin()
            while any(self._hosts[i].phase != "done" for i in self._placed_hosts()):
                self._events.extend(placement.poll())
                self._hear_all()
                self._explain_start()
                if placement.stop.error is not None:  # the evaluator's
                    raise placement.stop.error
                self._order_what_is_due()
                self._see_to_requests()
                if (
                    self._group.ranks_told
                    and not self._group.ending
                    and self._evaluations.evaluate_in_turn()
                ):
                    self._order_what_is_due()
            if self.exit is None:
                self._reached_end()
        finally:
            placement.end()
            self._evaluations.join()
        if placement.stop.error is not None:
            raise placement.stop.error

    def _explain_start(self) -> None:
        """Tell once what takes so long, if hosts have not begun."""
        if self._group.all_began or self._group.resumed:  # that one was told
            self._making = ""
        elif self._making and time.monotonic() - self._group.began > MAKING_EXPLAINED_AFTER_SECONDS:
            self._recorder.say(self._making)
            self._making = ""

    def _placed_hosts(self) -> list[int]:
        """Return the hosts that have a place; all of them if none has."""
        hosts = self._placement.hosts
        placed = [i for i, host in enumerate(hosts) if not host.away]
        return placed or list(range(len(hosts)))

    @property
    def final_snapshot_queued(self) -> bool:
        """Whether the last parts of all hosts are joined and handed to the writer."""
        return self._group.final_snapshot_queued

    @property
    def stuck(self) -> bool:
        """Whether a role of this process does not come back."""
        return self._evaluations.stuck or self._placement.stuck

    def close(self) -> None:
        """Free what the evaluator holds, unless it is still at something."""
        self._evaluations.close()

    def _write_processes(self) -> None:
        rows: list[dict[str, Any]] = [
            {"role": "supervisor", "rank": None, "pid": os.getpid(), "restarts": 0}
        ]
        actors: list[dict[str, Any]] = []
        here: set[int] = set()
        for state, host in zip(self._hosts, self._placement.hosts, strict=True):
            place = {"machine": host.machine} if host.machine else {}
            row: dict[str, Any] = {
                "pid": host.pid or None,
                "restarts": state.incarnation,
                **place,
            }
            learners: list[dict[str, Any]] = [
                {"role": "learner", "rank": rank, **row} for rank in host.ranks
            ]
            beside = [{**place, **actor} for actor in state.actors]
            if host.here and host.pid:
                own = (x for x in (*learners, *beside) if x.get("machine", "") == host.machine)
                here |= {int(x["pid"]) for x in own}
            rows += learners
            actors += beside
        self._folder.write_json("processes.json", [*rows, *actors])
        self._recorder.watch(here - {os.getpid()})

    def _hear_all(self) -> None:
        """Hear what hosts have told; what was deferred comes before what was told later."""
        while self._events:
            self._hear(*self._events.popleft())

    def _hear(self, index: int, event: Event) -> None:
        """Act on one event of a host; events after its part of a checkpoint wait for the other parts."""
        state = self._hosts[index]
        if isinstance(event, ProgressReport) and event.rows:
            state.has_told_rows = True
        match event:
            case Failed():  # the first to tell is whose fault it is
                raise event.error
            case Notice(text):
                self._recorder.say(text)
            case ActorProcesses(rows):
                state.actors = rows
                self._write_processes()
            case Died(how):
                if not state.die():
                    self._on_death(index, how)
            case SnapshotSent(seconds):
                self._checkpoints.note_pause(seconds)
            case _ if state.part is not None:
                state.deferred.append(event)
            case ProgressReport():
                self._record(event)
            case Snapshot(number):
                if number in (FINAL, self._group.order):  # a new host may answer an old order
                    state.give(event)
                    self._save_when_whole()
            case Ready(differs):
                self._on_ready(index, differs)
            case Done():
                state.finish()

    def _on_ready(self, index: int, differs: str) -> None:
        state, host = self._hosts[index], self._placement.hosts[index]
        state.version_at_start = host.version
        state.move("learning")
        if state.incarnation or host.machine:
            self._write_processes()  # now it is known where
        self._note_env(differs)
        self._look_whether_all_began()

    def _look_whether_all_began(self) -> None:
        starting = {i for i, state in enumerate(self._hosts) if state.phase == "starting"}
        some_began = len(starting) < len(self._hosts)
        if some_began and not self._group.all_began and starting.isdisjoint(self._placed_hosts()):
            self._group.all_began = True
            self._on_beginning()

    def _all_learn(self) -> bool:
        """Return whether no host that came later has yet to learn its first version: the others' rows would wait for it."""
        return not self._group.ranks_told or all(map(self._learns, self._placed_hosts()))

    def _learns(self, index: int) -> bool:
        """Return whether a host has learnt a version since it was started."""
        state, host = self._hosts[index], self._placement.hosts[index]
        # Policies of hosts on other machines come seldom, rows of metrics do not.
        return state.has_told_rows or host.version > state.version_at_start

    def _note_env(self, differs: str) -> None:
        """Record that a host knows whether its environments come back."""
        if self._differs is None or (differs and not self._differs):
            self._folder.note(wording.env_facts(self._placement.spec))
            told = wording.new_episodes_in_words(self._placement.spec)
            if differs == NOT_BACK:
                told = f"not resumed exactly after all: {differs}; new episodes have begun"
            if differs:
                self._recorder.say(told)
            self._differs = differs

    def _on_beginning(self) -> None:
        placement = self._placement
        if self._group.resumed and placement.restore_seconds is None:
            self._recorder.say(f"restoring took {time.monotonic() - self._group.began:.1f} s")
        self._evaluations.begin_beside()
        # So that the run can be resumed from now on; a signal may have been quicker.
        if not self._group.resumed and not self._group.ending:
            self._order_checkpoint()

    def _order_checkpoint(self) -> None:
        self._group.order = self._placement.order(ends=False)
        self._group.checkpoint_overdue = False
        placed = self._placed_hosts()
        for index, state in enumerate(self._hosts):
            state.ordered = index in placed

    def _give_up_order(self) -> None:
        """Order a checkpoint anew once all learn, if it has come to wait for someone who joins: others' rows wait too.

        In lock-step everyone stands still for whoever joins; before the first rows there is nothing to wait.
        """
        late = any(not self._hosts[i].ordered for i in self._placed_hosts())
        waits = self._config.topology.staleness == 0 or any(x.final for x in self._hosts)
        if self._group.order is not None and late and self._group.ranks_told and not waits:
            self._group.checkpoint_overdue = True
            self._go_on()
            self._hear_all()

    def _record(self, told: ProgressReport) -> None:
        for learner, episode in told.episodes:
            self._recorder.on_episode(episode, learner)
        self._group.ranks_told.update(row["learner"] for row in told.rows)
        if told.last:  # the pace is that of all, so their last rows wait until all have ended
            self._group.last_rows += told.rows
        else:
            self._write_rows(told.rows)
        self._save_beginning()

    def _write_rows(self, told: list[dict[str, Any]], *, last: bool = False) -> None:
        recorder, env_steps = self._recorder, self._placement.env_steps
        apart = None
        hosts = self._placement.hosts
        expected = {rank for i in self._placed_hosts() for rank in hosts[i].ranks}
        if self._group.ranks_told >= expected:  # the pace is that of all
            recorder.on_version(env_steps, last=last)
            apart = self._placement.disagreement
        rows = [{**row, "env_steps": env_steps} for row in told]
        first = min(expected)
        for row in rows:
            if row["learner"] == first and (share := self._evaluations.take_share()) is not None:
                row["share/evaluation"] = share
            if row["learner"] == first and (machines := self._machines()):
                row |= {"cluster/hosts": len(machines), "cluster/restarts": self.restarts}
        recorder.on_rows(rows, env_steps, disagreement=apart, first=first)

    def _machines(self) -> set[str]:
        """Return the machines of a cluster that learners run on; empty: there is no cluster."""
        hosts = zip(self._hosts, self._placement.hosts, strict=True)
        return {host.machine for state, host in hosts if host.machine and state.phase != "done"}

    def _save_when_whole(self) -> None:
        placed = [self._hosts[i] for i in self._placed_hosts()]
        parts = [x.given for x in self._hosts if x.given is not None]
        if not parts or any(x.given is None for x in placed):
            return
        tensors: dict[str, Tensor] = {}
        held: dict[str, Any] = {}
        for part in parts:
            tensors |= part.tensors
            held |= part.state["held"]
        absent = self._placement.absent()
        stand_in(tensors, held, absent, self._updates)
        self._updates = updates_in({"held": held})
        ended = all(x.final is not None for x in placed)
        if ended:
            rows, self._group.last_rows = self._group.last_rows, []
            self._write_rows(rows, last=True)
        state = {**parts[0].state, "held": held} | self._records()
        state[EXACT] = not absent and all(part.state[EXACT] for part in parts)
        if self._group.ranks_told or ended:
            seconds = max(part.seconds for part in parts)
            self._checkpoints.save(tensors, state, seconds=seconds)
        else:
            # What the run begins with, so that it can be resumed from any moment on; written only after the first
            # version, which that would hold up.
            self._group.beginning = tensors, state
        self._group.final_snapshot_queued = ended
        self._go_on()

    def _records(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learners."""
        return {
            "recorder": self._recorder.state_dict(self._placement.env_steps),
            "num_learners": self._config.num_learners,
            "evaluation_budget": self._evaluations.budget,
            **self._scoring.records(),
        }

    def _save_beginning(self) -> None:
        if self._group.beginning is not None:
            self._checkpoints.save(*self._group.beginning)
            self._group.beginning = None

    def _go_on(self) -> None:
        """Be done with an order: what was told after its parts is heard next."""
        self._group.order = None
        deferred = [(i, event) for i, state in enumerate(self._hosts) for event in state.release()]
        self._events.extendleft(reversed(deferred))

    def _reached_end(self) -> bool:
        """Return whether the run has reached an end; `exit` then says which."""
        if self.exit is None:
            recorder = self._recorder
            # Of many learners the mean takes milliseconds.
            asked = self._config.stop_at_return is not None and recorder.full_window()
            self.exit = end_of(
                self._config,
                env_steps=self._placement.env_steps,
                seconds=recorder.seconds(),
                mean_return=recorder.mean_return() if asked else None,
            )
        self.exit = self.exit or self._stop.exit
        return self.exit is not None

    def _order_what_is_due(self) -> None:
        placement = self._placement
        if self._group.ending:
            return
        if self._reached_end():
            self._group.ending = True
            if placement.env_steps < self._config.total_env_steps or not placement.ends_alone:
                self._go_on()
                self._hear_all()
                placement.order(ends=True)
            return
        self._give_up_order()
        wanted = self._checkpoints.due or self._group.checkpoint_overdue
        if wanted and self._group.order is None and self._group.all_began and self._all_learn():
            self._order_checkpoint()

    def _see_to_requests(self) -> None:
        """Begin what somebody beside the run has asked for, once learners learn."""
        requests = self._requests
        if requests is None or self._group.ending or not self._group.all_began:
            return
        free = self._group.order is None and not self._checkpoints.busy and self._all_learn()
        if requests.waiting("checkpoint") and free:
            requests.done("checkpoint")
            self._recorder.say("saving a checkpoint, as was asked")
            self._order_checkpoint()
        if requests.waiting("evaluate"):
            requests.done("evaluate")
            self._evaluations.request()

    def _on_death(self, index: int, how: str) -> None:
        host, topology = self._placement.hosts[index], self._config.topology
        state = self._hosts[index]
        state.deaths_in_a_row = 0 if self._learns(index) else state.deaths_in_a_row + 1
        who = _named(host.ranks)
        if state.deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            raise RunFailed(
                f"{who} died {state.deaths_in_a_row} times before a version was complete ({how})"
            )
        self.restarts += 1
        state.incarnation += 1
        # Those that share a process would have to find their way back into step together.
        in_step = topology.staleness == 0
        if topology.on_death == "restart_group" or (in_step and len(host.ranks) > 1):
            self._recorder.say(
                f"{who} died ({how}): all learners begin again at the last checkpoint"
            )
            raise LockstepBroken
        self._recorder.say(
            f"{who} died ({how}) and {'was' if len(host.ranks) == 1 else 'were'} restarted"
        )
        self._hosts[index] = HostState(
            state.incarnation, state.deaths_in_a_row, version_at_start=host.version
        )
        self._placement.replace(index, state.incarnation)
        # Where others have reached the end, the new one may not: it is told.
        self._group.ending = False
        self._write_processes()
        self._look_whether_all_began()  # the others may have waited for this one alone
        others_gave = self._group.order is not None or any(x.final for x in self._hosts)
        if others_gave:
            self._save_when_whole()

    @property
    def saved(self) -> bool:
        """Whether the last that was learnt is on disk."""
        return self._group.final_snapshot_queued and not (
            self._checkpoints.busy or self._checkpoints.failed
        )

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; raise OSError if it could not be written."""
        self._checkpoints.finish(self._placement.show_life)

    def leave(self) -> None:
        """Save what the run begins with, if it has learnt nothing yet, and tell that the batch at work is lost."""
        self._save_beginning()
        self._tell_lost(self._checkpoints.saved_env_steps)

    def leave_at_once(self) -> None:
        """Tell what is lost where nobody waits for a checkpoint that is being written."""
        self._tell_lost(self._checkpoints.on_disk)

    def _tell_lost(self, saved: int | None) -> None:
        self.exit = self.exit or self._stop.exit
        at = "at all" if saved is None else f"after env step {saved:,}"
        words = at_work()
        self._recorder.say(
            f"The present batch was abandoned: nothing {at} is saved" + f" ({words})" * bool(words)
        )


def _named(ranks: range) -> str:
    return f"Learner {ranks[0]}" if len(ranks) == 1 else f"Learners {ranks[0]}-{ranks[-1]}"
