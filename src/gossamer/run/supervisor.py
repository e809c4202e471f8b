"""The supervisor of a run: hears hosts of learners and requests from beside, joins parts of checkpoints, replaces hosts that die, ends the run.

It takes the same way for one learner in this process and for many elsewhere: a `Placement` tells what its hosts have done,
and carries out orders. What belongs to the run folder is written here, and nowhere that learners run.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gossamer.config import to_dict
from gossamer.errors import RunFailed
from gossamer.record.exits import ON_ROW, Exit
from gossamer.run import user_messages
from gossamer.run.checkpoint_contents import RunState
from gossamer.run.host_group import HostGroup
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
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.resume import of_before
from gossamer.run.slow_calls import at_work
from gossamer.run.snapshot import LOST, NOT_BACK, fill_absent_learners
from gossamer.run.stopping import end_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.record.folder import RunFolder
    from gossamer.record.requests import Requests
    from gossamer.roles.acting_group import Episode
    from gossamer.run.checkpointing import Checkpointing
    from gossamer.run.evaluations import Evaluations
    from gossamer.run.host_protocol import Event, Host, LoadInitialState, Placement
    from gossamer.run.recorder import Recorder
    from gossamer.run.stopping import Stop


MAX_DEATHS_IN_A_ROW = 3
"""Deaths of a host without a completed version in between, after which the run ends."""


MAX_RETURNS = 10
"""Returns to one checkpoint, after which the run ends."""


class LockstepBroken(Exception):
    """A learner has died without which the others cannot go on: all begin again with the last checkpoint."""


@dataclass
class Supervisor:
    """Runs a placement from its start to its end.

    Args:
        config: of the run.
        folder: of the run.
        placement: where the learners run.
        recorder: writes what is told.
        checkpoints: writes snapshots.
        evaluations: evaluates policies.
        stop: asked to.
        requests: what the run is asked for from beside it.
        on_began: called when all learners have been made, for the first time.
    """

    config: TrainConfig
    folder: RunFolder
    placement: Placement
    recorder: Recorder
    checkpoints: Checkpointing
    evaluations: Evaluations
    stop: Stop
    requests: Requests
    exit: Exit | None = None
    """How the run ends, once that is known."""
    on_began: Callable[[], object] = lambda: None
    began: bool = False
    """Whether all learners have been made, and hold what they begin with."""
    loaded: RunState | None = None
    """State of the checkpoint that the session goes on from; None: it is the first."""
    _group: HostGroup = field(init=False)

    def __post_init__(self) -> None:
        """Be ready to answer the placement."""
        self.placement.before_snapshot = lambda: self.checkpoints.wait(self.placement.show_life)
        self.placement.asked_to_stop = lambda: self.stop.exit is not None
        self.placement.say = self.recorder.say
        # Found out once: episodes may end thousands of times a second.
        self._in_step = self.config.topology.staleness == 0 or layout_of(self.config) is None

    def load_state(self, state: RunState) -> None:
        """Continue from the state of a checkpoint."""
        self.loaded = state
        self.recorder.load_state(state.recorder)
        self.evaluations.load_state(state)
        self.checkpoints.load_state(state)

    def run(
        self,
        load: LoadInitialState,
        go_back: Callable[[], bool],
        *,
        resumed: bool,
        making: str = "",
    ) -> None:
        """Train to the end, then evaluate the run's final policy, and write the last row of metrics.

        Args:
            load: reads the state that learners begin with.
            go_back: brings the run folder back to its last checkpoint; returns whether there is one.
            resumed: the run goes on from a checkpoint.
            making: what to tell if hosts take long to begin; empty: nothing.

        Raises:
            RunFailed: a learner has failed, or died too often.
            Stopped: a stop's time was over before everything was saved.
            Overdue: the same, noticed while the main thread was at something that does not return.
        """
        try:
            self._run(load, go_back, resumed=resumed, making=making)
        finally:
            self.recorder.write_last_row()

    def _run(
        self, load: LoadInitialState, go_back: Callable[[], bool], *, resumed: bool, making: str
    ) -> None:
        returns, returned_to = 0, None
        while True:
            self._group = HostGroup(self.placement, resumed, making)
            try:
                self._supervise(load)
                break
            except LockstepBroken as broken:
                self.checkpoints.wait(self.placement.show_life)
                at, returned_to = returned_to, self.checkpoints.on_disk
                returns = returns + 1 if returned_to == at else 1
                if returns > MAX_RETURNS:  # what they meet there again is the same each time
                    raise RunFailed(
                        f"a learner has died after each of {MAX_RETURNS} returns to the last checkpoint: {broken}"
                    ) from None
                self.checkpoints.forget()
                self.exit = None  # an end that was reached is not reached any more
                resumed, making = go_back(), self._group.making
        self.finish_saving()
        if self.checkpoints.final_snapshot_queued:
            self.evaluations.finish(self.exit, self.finish_saving)

    def _supervise(self, load: LoadInitialState) -> None:
        placement, group = self.placement, self._group
        if group.resumed and placement.restore_seconds is None:
            self.recorder.say(f"starting {placement}")
        try:
            placement.start(load)
            self._write_processes()
            self.evaluations.begin()
            self.checkpoints.begin()
            while not group.is_done:
                group.events.extend(_those_at_fault_first(placement.poll()))
                # A learner that is lost would hold the run's mean where it was.
                absent = set(range(self.config.num_learners)) - group.ranks
                self.recorder.window.leave_out(absent)
                while group.events:
                    self._hear(*group.events.popleft())
                if explanation := group.explanation():
                    self.recorder.say(explanation)
                if placement.stop.error is not None:  # the evaluator's
                    raise placement.stop.error
                self._hear_of_checkpoints()
                self._order_what_is_due()
                self._see_to_requests()
                may_evaluate = group.ranks_told and not group.ending
                if may_evaluate and self.evaluations.evaluate_in_turn():
                    self._order_what_is_due()
            self._reached_end(max(placement.env_steps, self._env_steps_of_whole_run()))
        finally:
            # Processes of this machine leave in a moment what they are at, and close their environments, or are killed.
            local = layout_of(self.config) is not None and self.config.placement == "local"
            self.stop.is_saving = local
            try:
                placement.end()
            finally:
                self.stop.is_saving = False
            self.evaluations.join()
        if placement.stop.error is not None:
            raise placement.stop.error

    def _hear_of_checkpoints(self) -> None:
        """Say that a checkpoint could not be written; raise why if that is no disk's, or the second in a row."""
        if (error := self.checkpoints.take_failure()) is None:
            return
        if self.checkpoints.failures > 1 or not isinstance(error, OSError):
            raise error
        self.recorder.say(user_messages.not_saved(error, kept=self.checkpoints.on_disk is not None))

    @property
    def restarts(self) -> int:
        """How often a host was started again."""
        return sum(host.state.incarnation for host in self.placement.hosts)

    def _write_processes(self) -> None:
        rows: list[dict[str, Any]] = [
            {"role": "supervisor", "rank": None, "pid": os.getpid(), "restarts": 0}
        ]
        actors: list[dict[str, Any]] = []
        here: set[int] = set()
        for host in self.placement.hosts:
            place = {"machine": host.machine} if host.machine else {}
            row = {"pid": host.pid or None, "restarts": host.state.incarnation, **place}
            learners: list[dict[str, Any]] = [
                {"role": "learner", "rank": rank, **row} for rank in host.ranks
            ]
            beside = [{**place, **actor} for actor in host.state.actors]
            if host.here and host.pid:
                own = (x for x in (*learners, *beside) if x.get("machine", "") == host.machine)
                here |= {int(x["pid"]) for x in own}
            rows += learners
            actors += beside
        self.folder.write_json("processes.json", [*rows, *actors])
        self.recorder.usage.watch(here - {os.getpid()})

    def _hear(self, index: int, event: Event) -> None:
        """Act on one event of a host; events after its part of a checkpoint wait for the other parts."""
        host = self.placement.hosts[index]
        state = host.state
        if isinstance(event, ProgressReport) and event.rows:
            state.has_told_rows = True
        match event:
            case Failed():  # the first to tell is whose fault it is
                raise event.error
            case Notice(text, saves):
                self.recorder.say(text)
                self._group.checkpoint_overdue |= saves
            case ActorProcesses(rows):
                state.actors = rows
                self._write_processes()
            case Died(how):
                if state.die(host.version):
                    self._replace(index, how)
            case SnapshotSent(seconds):
                self.checkpoints.note_pause(seconds)
            case _ if state.part is not None:
                state.deferred.append(event)
            case ProgressReport():
                self._record(event)
            case Snapshot(number):
                if number in (FINAL, self._group.order):  # a new host may answer an old order
                    state.give(event)
                    self._save_when_whole()
            case Ready(differs):
                self._begin(host, differs)
            case Done():
                state.finish()

    def _begin(self, host: Host, differs: str | None) -> None:
        """Record that a host's learners have been made, and whether its environments come back if that is news."""
        host.state.version_at_start = host.version
        host.state.move("learning")
        if host.state.incarnation or host.machine:
            self._write_processes()  # now it is known where
        if differs is not None:
            self.folder.note(user_messages.env_facts(self.placement.spec))
            told = user_messages.new_episodes_in_words(self.placement.spec)
            if differs in (NOT_BACK, LOST):
                told = f"not resumed exactly after all: {differs}; new episodes have begun"
            if differs:
                self.recorder.say(told)
        self._look_whether_all_began()

    def _look_whether_all_began(self) -> None:
        group = self._group
        if not group.begin():
            return
        if not self.began:
            self.on_began()
        self.began = True
        if group.resumed and self.placement.restore_seconds is None:
            self.recorder.say(f"restoring took {time.monotonic() - group.started_at:.1f} s")
        self.evaluations.begin_beside()
        # So that the run can be resumed from now on; a signal may have been quicker.
        if not group.resumed and not group.ending:
            group.order_checkpoint()

    def _record(self, told: ProgressReport) -> None:
        for learner, episode in told.episodes:
            self.recorder.on_episode(episode, learner, self._env_steps_of_all(episode, learner))
        if self.checkpoints.save_initial() and self.recorder.tells_caller:
            self.checkpoints.wait(self.placement.show_life)  # the caller may play with the policy
        self._group.ranks_told.update(row["learner"] for row in told.rows)
        if told.last:
            self._group.last_rows += told.rows
        else:
            self._write_rows(told.rows)

    def _env_steps_of_all(self, episode: Episode, learner: int) -> int:
        """Return the env steps of all learners by the end of an episode, which tells those of its own learner's actor."""
        size = self.config.num_learners
        if size == 1 or (self._in_step and len(self._group.ranks) == size):
            return episode.env_steps * size  # the others are as far, however late they are heard
        # Others may be behind or ahead by any number, or have no place.
        others = self.placement.env_steps - self.placement.env_steps_of(learner)
        return episode.env_steps + max(others, 0)

    def _write_rows(self, told: list[dict[str, Any]], *, last: bool = False) -> None:
        recorder, env_steps = self.recorder, self.placement.env_steps
        apart, ranks = None, self._group.ranks
        if ranks <= self._group.ranks_told:  # the pace is that of all
            recorder.pace.on_version(env_steps, last=last)
            boards = self.placement.boards if self.config.num_learners > 1 else None
            apart = boards and boards.disagreement
        rows = [{**row, "env_steps": env_steps} for row in told]
        first = min(ranks)
        for row in (row for row in rows if row["learner"] == first):
            if (share := self.evaluations.take_share()) is not None:
                row["share/evaluation"] = share
            hosts = self.placement.hosts
            # Of a cluster alone; nobody learns any more where all have told everything.
            if machines := {x.machine for x in hosts if x.machine and x.state.phase != "done"}:
                row |= {"cluster/hosts": len(machines), "cluster/learners": len(ranks)}
                row["cluster/restarts"] = self.restarts
        stops = recorder.on_rows(rows, env_steps, disagreement=apart, first=first, last=last)
        if stops:
            self.stop.ask(Exit("stopped", ON_ROW))

    def _save_when_whole(self) -> None:
        parts = self._group.parts()
        if not parts:
            return
        learners = {rank: learner for part in parts for rank, learner in part.learners.items()}
        absent = self.placement.absent()
        updates = self.checkpoints.updates
        filled = fill_absent_learners(learners, absent, updates, self._own_policy)
        ended = all(host.state.final is not None for host in self._group.placed)
        if ended:
            self._write_rows(self._group.last_rows, last=True)
            self._group.last_rows = []
        state = RunState(
            [learners[rank] for rank in sorted(learners)],
            parts[0].plan,
            exact=not absent and all(part.exact for part in parts),
            recorder=self.recorder.state(self.placement.env_steps),
            evaluation_budget=self.evaluations.budget,
            policies=self.evaluations.state(dict(filled)),
            settings=to_dict(self.config),
        )
        loaded = self.loaded
        there = learners.keys() - dict(filled).keys()
        if loaded and all(learners[x].update == loaded.updates[x] for x in there):
            state = of_before(state, loaded)  # nothing has been learnt in this session
        if self._group.ranks_told or ended:
            seconds = max(part.seconds for part in parts)
            self.checkpoints.save(state, seconds=seconds)
        else:
            self.checkpoints.initial = state
        self.checkpoints.final_snapshot_queued = ended
        self._group.release()

    def _own_policy(self, rank: int) -> dict[str, Tensor] | None:
        """Return the last policy of an independent learner that has no place, by name; None: it is not known, or they mix."""
        boards = self.placement.boards
        if boards is None or self.config.topology.run_policy != "best":
            return None
        policy = boards.policy_of(rank)
        return None if policy is None else dict(zip(self.placement.names, policy, strict=True))

    def _reached_end(self, env_steps: int) -> bool:
        """Return whether the run has reached an end, learnt from so many steps; `exit` then says which."""
        if self.exit is None:
            recorder = self.recorder
            # Of many learners the mean takes milliseconds.
            asked = self.config.stop_at_return is not None and recorder.window.full
            self.exit = end_of(
                self.config,
                env_steps=env_steps,
                seconds=recorder.seconds(),
                mean_return=recorder.window.mean() if asked else None,
            )
        self.exit = self.exit or self.stop.exit
        return self.exit is not None

    def _env_steps_of_whole_run(self) -> int:
        """Return the env steps by which a run knows its end: of independent learners, each with a share of its own, as if all were as far as the slowest."""
        placement, size = self.placement, self.config.num_learners
        if size == 1 or self.config.topology.talks:
            return placement.env_steps
        return size * min(map(placement.env_steps_of, self._group.ranks))

    def _order_what_is_due(self) -> None:
        placement, group = self.placement, self._group
        if group.ending:
            return
        env_steps = self._env_steps_of_whole_run()
        if self._reached_end(env_steps):
            group.ending = True
            if env_steps < self.config.total_env_steps or not placement.ends_alone:
                group.release()  # the checkpoint under way is given up
                placement.order(ends=True)
            return
        if group.waits_for_newcomer(in_step=self.config.topology.staleness == 0):
            group.release()
            group.checkpoint_overdue = True  # to be ordered anew once all learn
        wanted = self.checkpoints.due or group.checkpoint_overdue
        if wanted and group.order is None and group.all_began and group.all_learn:
            group.order_checkpoint()

    def _see_to_requests(self) -> None:
        """Begin what somebody beside the run has asked for, once learners learn."""
        requests, group = self.requests, self._group
        if group.ending or not group.all_began:
            return
        free = group.order is None and not self.checkpoints.busy and group.all_learn
        if free and requests.hear("checkpoint"):
            self.recorder.say("saving a checkpoint, as was asked")
            group.order_checkpoint()
        if requests.hear("evaluate"):
            self.evaluations.request()

    def _replace(self, index: int, how: str) -> None:
        """Have a new host started where one is dead, or let all learners begin again; tell how it died."""
        host, topology = self.placement.hosts[index], self.config.topology
        ranks, deaths, several = host.ranks, host.state.deaths_in_a_row, len(host.ranks) > 1
        who = f"Learners {ranks[0]}-{ranks[-1]}" if several else f"Learner {ranks[0]}"
        if deaths >= MAX_DEATHS_IN_A_ROW:
            raise RunFailed(f"{who} died {deaths} times before a version was complete ({how})")
        # Those that share a process would have to find their way back into step together.
        in_step = topology.staleness == 0
        if topology.on_death == "restart_group" or (in_step and several):
            self.recorder.say(
                f"{who} died ({how}): all learners begin again at the last checkpoint"
            )
            raise LockstepBroken(f"{who} died ({how})")
        self.recorder.say(f"{who} died ({how}) and {'were' if several else 'was'} restarted")
        # What it told behind its part of a checkpoint: the run's steps count it.
        for event in host.state.deferred:
            if isinstance(event, ProgressReport):
                self._record(event)
        self.placement.replace(index)
        # Where others have reached the end, the new one may not: it is told.
        self._group.ending = False
        self._write_processes()
        self._look_whether_all_began()  # the others may have waited for this one alone
        self._save_when_whole()

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; raise OSError if it could not be written."""
        self.checkpoints.finish(self.placement.show_life)

    def leave(self) -> None:
        """Save what the run begins with, if it has learnt nothing yet, and tell that the batch at work is lost."""
        self.checkpoints.save_initial()
        saved = self.checkpoints
        self.tell_lost(saved.on_disk if saved.failed else saved.saved_env_steps)

    def tell_lost(self, saved: int | None) -> None:
        """Tell that the batch at work is lost, as is all after so many saved env steps; None: nothing is saved."""
        self.exit = self.exit or self.stop.exit
        at = "at all" if saved is None else f"after env step {saved:,}"
        self.recorder.say(
            f"The present batch was abandoned: nothing {at} is saved" + at_work(" ({})")
        )


def _those_at_fault_first(told: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Return what hosts have told, those last that fail as another has: where nobody has looked for long, both have told by now."""
    late = {index for index, event in told if isinstance(event, Failed) and event.follows}
    return sorted(told, key=lambda one: one[0] in late)
