"""One machine, several learners: a process for each or for some, started, watched and restarted.

The launcher does not learn. It holds the run folder, hears what the processes tell, orders checkpoints,
scores what the learners have in common, and puts a new process where one has died.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from gossamer.build.replays import shared_blocks
from gossamer.build.roles import build_evaluator, build_learner, build_policy
from gossamer.config import to_dict
from gossamer.errors import RunFailed
from gossamer.links.shared_memory import AWAITS, BEATS, make_memory
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.links.threads import Roles, ThreadQueue
from gossamer.replay.base import ReplayMix
from gossamer.replay.ring import make_shared_block
from gossamer.roles.actor import Episode
from gossamer.run import messages
from gossamer.run.placements.channel import unpack
from gossamer.run.placements.group import Memory, Sizes
from gossamer.run.placements.learner_process import FINAL, Task
from gossamer.run.placements.orders import Orders
from gossamer.run.placements.processes import (
    donors_of,
    end_processes,
    failure_of,
    layout_of,
    rows_of,
    start_process,
    transport_of,
)
from gossamer.run.placements.template import ready
from gossamer.run.placements.threads import JOIN_SECONDS, start_thread
from gossamer.run.rows import Told
from gossamer.run.snapshot import EXACT, NOT_BACK
from gossamer.system.signs import START_SECONDS, Patience

if TYPE_CHECKING:
    import mmap
    import threading
    from pathlib import Path

    from torch import Tensor

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.record.folder import RunFolder
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.control import Control
    from gossamer.run.placements.processes import Process
    from gossamer.types import EnvSpec

LOOK_SECONDS = 0.1
"""Longest time between two looks at signals, deadlines and processes."""
MAX_DEATHS_IN_A_ROW = 3
"""Of a process that has not learnt a version in between."""
MARGIN_SECONDS = 5.0
"""A process that gives itself up, or another, knows more about it: the launcher does so later."""


class GroupDied(Exception):
    """A learner of a group that can only go on together has died."""


class Fleet:
    """The processes of a run; to its control, the run."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, plan: Plan, *, tried: bool):
        self.config, self.spec, self.plan = config, spec, plan
        self._tried = tried  # whether it is known if environments come back
        self.evaluator: Evaluator | None = None
        self.restarts = 0
        self._layout = layout_of(config)
        self._policy = build_policy(config, spec)
        queue = ThreadQueue([], StopSignal(), Roles(config.patience_seconds))
        learner = build_learner(config, plan, self._policy, ReplayMix(queue))
        self._sizes = Sizes.of(learner)
        self._shared = shared_blocks(config, spec, self._policy)
        learner.close()
        self._resumed_env_steps = 0
        self._told = Told(config.num_learners, updates=0)
        self._processes: list[Process] = []
        self._deaths_in_a_row = [0] * len(self._layout.ranks)
        self._restarts_of = [0] * len(self._layout.ranks)
        self._evaluating: threading.Thread | None = None
        self._descriptors: list[int] = []
        self._meeting: Path | None = None
        self._make_memory()

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners."""
        size = self.config.num_learners
        return max(sum(map(self._memory.boxes.env_steps, range(size))), self._resumed_env_steps)

    @property
    def version(self) -> int:
        """Of learner 0."""
        return max(self._memory.versions.newest(0), 0)

    @property
    def updates(self) -> int:
        """Of learner 0, as it last told."""
        return self._told.updates

    @property
    def names(self) -> list[str]:
        """Names of the tensors of a policy."""
        return self._policy.shared_names()

    def run(self, control: Control, folder: RunFolder, *, resume: tuple[int, int] | None) -> None:
        """Train until control says stop, and hand it the last checkpoint.

        Args:
            control: of the run.
            folder: of the run.
            resume: updates and env steps of the checkpoint to continue from.

        Raises:
            GroupDied: a learner has died that the others cannot do without.
            RunFailed: a learner has failed, or died too often.
        """
        updates, self._resumed_env_steps = resume or (0, 0)
        self._told = Told(self.config.num_learners, updates=updates)
        self._resume = None if resume is None else resume[0]
        self._control, self._folder = control, folder
        self._order, self._ending = 0, False
        # Snapshots of processes: of the order under way, and the last of those that have ended.
        self._parts: dict[int, tuple[dict[str, Tensor], dict[str, Any]]] = {}
        self._finals: dict[int, tuple[dict[str, Tensor], dict[str, Any]]] = {}
        self._stop = StopSignal()
        self._ready: set[int] = set()
        self._all_began = False
        if self._processes:  # the group has died, and left it as it was
            self.close()
            self._make_memory()
        for left in folder.path.glob("meeting-*"):  # by a launcher that was killed
            left.unlink(missing_ok=True)
        self._meeting = folder.path / f"meeting-{os.getpid()}-{time.monotonic_ns()}"
        self._make_evaluator(control)
        control.begin(self)
        try:
            self._processes = []
            if resume is not None:
                control.recorder.say(f"starting {self._layout}")
            self._began = time.monotonic()
            for i in range(len(self._layout.ranks)):
                self._processes.append(self._start(i))
            self._write_processes()
            self._watch()
        finally:
            self._stop.stop()
            end_processes(self._processes)
            if self._evaluating is not None:
                self._evaluating.join(JOIN_SECONDS)
        if self._stop.error is not None:
            raise self._stop.error

    def close(self) -> None:
        """Free what outlives processes."""
        if self.evaluator is not None and not self.stuck:
            self.evaluator.close()
        self.evaluator = None
        self._free_memory()

    @property
    def stuck(self) -> bool:
        """Whether the evaluator is still at something."""
        return self._evaluating is not None and self._evaluating.is_alive()

    def score_policy_next(self) -> None:
        """Let what is shipped be evaluated next."""
        self._memory.versions.score_policy_next(self._control.best_saved)

    def _make_memory(self) -> None:
        size = self.config.num_learners
        blocks: list[mmap.mmap] = []
        for nbytes in (*self._sizes.nbytes(size), Orders.nbytes(len(self._layout.ranks))):
            descriptor, block = make_memory(nbytes)
            self._descriptors.append(descriptor)
            blocks.append(block)
        for nbytes, path in self._shared:
            self._descriptors += [make_shared_block(nbytes, path)[0] for _ in range(size)]
        self._memory = Memory(blocks[:2], self.config, self._sizes, self._policy.shared_tensors())
        self._orders = Orders(blocks[2], len(self._layout.ranks))

    def _free_memory(self) -> None:
        if self._meeting is not None:
            self._meeting.unlink(missing_ok=True)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _make_evaluator(self, control: Control) -> None:
        self._evaluating = None
        self._memory.versions.score_next(control.next_to_score)
        read = self._memory.versions.read_next
        self.evaluator = build_evaluator(self.config, self.plan, self._policy, read, self._stop)

    def _start(self, process: int, donors: dict[str, list[int]] | None = None) -> Process:
        ranks = self._layout.ranks[process]
        task = Task(
            config=to_dict(self.config),
            plan=dataclasses.asdict(self.plan),
            folder=str(self._folder.path),
            ranks=(ranks.start, ranks.stop),
            process=process,
            num_processes=len(self._layout.ranks),
            blocks=tuple(self._descriptors),
            mixed_sizes=self._sizes.mixed,
            policy_sizes=self._sizes.policy,
            cores=self._layout.cores[process],
            overlaps=self._layout.overlaps,
            resume=self._resume,
            restarts=self._restarts_of[process] if donors else 0,
            donors=donors or {},
            differs=self.spec.differs if self._tried else None,
            transport=transport_of(self.config, self.plan.device),
            meeting=str(self._meeting),
        )
        version = self._memory.versions.newest(ranks.start)
        return start_process(
            task, version=version, device=self.plan.device, patience=self._patience_with(ranks)
        )

    def _patience_with(self, ranks: range) -> Patience:
        header, seconds = self._memory.boxes.headers[ranks.start], self.config.patience_seconds

        def count() -> int:
            return int(header[BEATS])

        return Patience(seconds and seconds + MARGIN_SECONDS, f"learner {ranks.start}", count)

    def _look_after(self, index: int, process: Process) -> None:
        """Give the run up if a process shows no sign of life, unless it waits for another's."""
        ranks = self._layout.ranks[index]
        header = self._memory.boxes.headers[ranks.start]
        seconds = time.monotonic() - process.started
        starting = index not in self._ready and seconds < START_SECONDS
        if starting:
            header[BEATS] += 1  # so that others wait for it
        if starting or header[AWAITS]:
            process.life = self._patience_with(ranks).wait("")
        else:
            process.life.look()

    def _write_processes(self) -> None:
        pids = [process.popen.pid for process in self._processes]
        rows = rows_of(self._layout, pids, self._restarts_of)
        self._folder.write_json("processes.json", rows)
        self._control.recorder.watch(pids)

    def _watch(self) -> None:
        while not all(process.done for process in self._processes):
            open_ = [p.channel.end.fileno() for p in self._processes if not p.channel.closed]
            readable = ready(open_, LOOK_SECONDS)
            if not open_:
                time.sleep(LOOK_SECONDS)
            for i, process in enumerate(self._processes):
                if process.channel.end.fileno() in readable:
                    self._hear(i, process)
                if not process.done:
                    self._look_after(i, process)
            if self._control.watch.over and not self._control.whole:
                raise Stopped
            if self._stop.error is not None:  # the evaluator's
                raise self._stop.error
            self._bury()
            self._order_what_is_due()
        if not self._control.exit_reason:
            self._control.reached_end()

    def _hear(self, index: int, process: Process) -> None:
        for message in process.channel.receive():
            if message["kind"] == "failed":  # the first to tell is whose fault it is
                raise failure_of(message)
            if message["kind"] == "notice":
                self._control.recorder.say(message["text"])
            elif index in self._parts:
                process.held.append(message)
            else:
                self._take(index, process, message)

    def _take(self, index: int, process: Process, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "rows":
            self._record(message)
        elif kind == "snapshot":
            tensors = unpack(process.channel.take_descriptor(), message["layout"])
            if message["number"] == FINAL:
                self._finals[index] = (tensors, message["state"])
            if message["number"] in (FINAL, self._order):  # a new process may see to an old order
                self._parts[index] = (tensors, message["state"])
                self._save_when_whole()
        elif kind == "ready":
            process.began_version = self._memory.versions.newest(self._layout.ranks[index].start)
            self._ready.add(index)
            self._note_env(message["differs"])
            if len(self._ready) == len(self._processes) and not self._all_began:
                self._all_began = True
                self._on_beginning()
        elif kind == "done":
            process.done = True

    def _note_env(self, differs: str) -> None:
        """Take notice that a process knows whether its environments come back."""
        if not self._tried or (differs and not self.spec.differs):
            self.spec = dataclasses.replace(self.spec, differs=differs)
            self._folder.note(messages.env_facts(self.spec))
            told = messages.new_episodes_in_words(self.spec)
            if differs == NOT_BACK:
                told = f"not resumed exactly after all: {differs}; new episodes have begun"
            if differs:
                self._control.recorder.say(told)
        self._tried = True

    def _on_beginning(self) -> None:
        if self._resume is not None:
            took = time.monotonic() - self._began
            self._control.recorder.say(f"restoring took {took:.1f} s")
        if self.evaluator is not None:
            work = self.evaluator.run
            self._evaluating = start_thread(self._stop, "evaluator", work, low=True)
        # So that the run can be resumed from now on; a signal may have been quicker.
        if self._resume is None and not self._ending:
            self._order = self._orders.announce(ends=False, together=self._in_step)

    @property
    def _in_step(self) -> bool:
        return self.config.topology.staleness == 0

    def _record(self, message: dict[str, Any]) -> None:
        recorder = self._control.recorder
        for learner, episode in message["episodes"]:
            recorder.on_episode(Episode(**episode), learner)
        rows = self._told.take(message)
        self._control.note_version()
        self._write_rows(rows)

    def _write_rows(self, told: list[dict[str, Any]], *, last: bool = False) -> None:
        recorder, env_steps = self._control.recorder, self.env_steps
        apart = None
        if self._told.by_all:  # all have a policy, and the pace is theirs
            recorder.on_version(env_steps, last=last)
            apart = self._memory.versions.disagreement
        rows = [{**row, "env_steps": env_steps} for row in told]
        recorder.on_rows(rows, env_steps, disagreement=apart)

    def _save_when_whole(self) -> None:
        parts = self._finals | self._parts
        if len(parts) < len(self._processes):
            return
        tensors: dict[str, Tensor] = {}
        held: dict[str, Any] = {}
        for index in sorted(parts):
            tensors |= parts[index][0]
            held |= parts[index][1]["held"]
        state = {**parts[0][1], "held": held}
        if len(self._finals) == len(self._processes):
            self._write_rows(self._told.take_last(), last=True)
        state[EXACT] = all(part[1][EXACT] for part in parts.values())
        self._control.save(held["learner.update"], tensors, state, again=True)
        self._control.whole = len(self._finals) == len(self._processes)
        self._go_on()

    def _go_on(self) -> None:
        """Take what was told after the parts of an order that is done with."""
        self._order = 0
        self._parts = {}
        for index, process in enumerate(self._processes):
            waiting, process.held = process.held, []
            for i, message in enumerate(waiting):
                if index in self._parts:
                    process.held = waiting[i:]
                    break
                self._take(index, process, message)

    def _order_what_is_due(self) -> None:
        control = self._control
        if self._ending:
            return
        if control.reached_end():
            self._ending = True
            known = self.env_steps >= self.config.total_env_steps and not self._orders.patched
            if not known:  # to them
                self._go_on()
                self._orders.announce(ends=True, together=self._in_step)
        elif control.save_due() and not self._order:
            self._order = self._orders.announce(ends=False, together=self._in_step)

    def _bury(self) -> None:
        for i, process in enumerate(self._processes):
            over = process.done or any(message["kind"] == "done" for message in process.held)
            if over or not process.channel.closed or process.popen.poll() is None:
                continue
            if i in self._finals:  # all that it had to give is here
                process.done = True
            else:
                self._on_death(i, process)

    def _on_death(self, index: int, process: Process) -> None:
        ranks = self._layout.ranks[index]
        code = process.popen.returncode
        assert code is not None, "told by the last look at it"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        version = self._memory.versions.newest(ranks.start)
        in_a_row = self._deaths_in_a_row[index] + 1 if version <= process.began_version else 0
        self._deaths_in_a_row[index] = in_a_row
        who = f"learner {ranks.start}" + (f" to {ranks[-1]}" if len(ranks) > 1 else "")
        if in_a_row >= MAX_DEATHS_IN_A_ROW:
            raise RunFailed(
                f"the process of {who} died {in_a_row} times before it had learnt anything ({how})"
            )
        self.restarts += 1
        self._restarts_of[index] += 1
        process.channel.close()
        told = f"the process of {who} has died ({how}); "
        # Those that share a process would have to find their way back into step together.
        if self.config.topology.on_death == "restart_group" or (self._in_step and len(ranks) > 1):
            self._control.recorder.say(told + "the group starts again from the last checkpoint")
            raise GroupDied
        self._control.recorder.say(told + "a new one takes over")
        self._orders.forget(index)
        self._parts.pop(index, None)
        self._finals.pop(index, None)
        donors = None
        boxes = self._memory.boxes
        boxes.headers[ranks.start][AWAITS] = 0
        self._ready.discard(index)
        if version >= 0:  # it had begun: the others do without it, or they would still wait for it
            self._orders.patch()  # before counts may differ
            for rank in ranks:
                self._memory.boxes.mark_left(rank)
            donors = donors_of(self.config, ranks, self._memory.versions)
        self._processes[index] = self._start(index, donors)
        # Where others have reached the end, the new one may not: it is told.
        self._ending = False
        self._write_processes()
