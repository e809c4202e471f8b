"""A placement without learners: tells what a test has written down, and keeps what the supervisor asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
import torch
from runs import rows_of

from gossamer.build.plan import Plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.record.folder import RunFolder
from gossamer.record.requests import Requests
from gossamer.roles.acting_group import Episode
from gossamer.run.checkpoint_contents import LearnerState, RunState, from_disk
from gossamer.run.checkpointing import Checkpointing
from gossamer.run.evaluations import Evaluations
from gossamer.run.host_protocol import FINAL, Done, ProgressReport, Ready, Snapshot
from gossamer.run.host_state import HostState
from gossamer.run.recorder import Recorder
from gossamer.run.scoring import Scoring
from gossamer.run.stopping import Stop
from gossamer.run.supervisor import Supervisor

PLAN = Plan(
    device="cpu",
    precision="fp32",
    num_envs=1,
    lag=0,
    micro_batch_rows=1,
    learner_threads=1,
    actor_threads=1,
    env_threads=1,
    env_groups=1,
    max_episode_steps=0,
)


@dataclass
class FakeHost:
    ranks: range
    pid: int = 0
    machine: str = ""
    here: bool = True
    version: int = -1
    state: HostState = field(default_factory=HostState)


@dataclass
class FakePlacement:
    """Every poll tells the next entry of `script`: events with the index of their host, or a function that is called."""

    script: list[Any]
    num_hosts: int = 1
    env_steps: int = 0
    ends_alone: bool = True
    evaluates: str = "beside"
    restore_seconds: float | None = 0.0
    asked: list[Any] = field(default_factory=list)
    learnt: dict[int, int] = field(default_factory=dict)
    """Env steps of each learner."""

    def __post_init__(self) -> None:
        self.hosts = [FakeHost(range(i, i + 1)) for i in range(self.num_hosts)]
        self.spec = read_spec("CartPole-v1", make_config("CartPole-v1").env, 0, tries=False)
        self.names: list[str] = []
        self.stop = StopSignal()
        self.updates = 0
        self.boards: Any = None
        self.stuck = False
        self.orders = 0
        self.on_replace: Any = lambda: None

    def unplace(self, index: int) -> None:
        """Let a host find no place."""
        self.hosts[index].state = HostState(self.hosts[index].state.incarnation, phase="unplaced")

    def place(self, index: int) -> None:
        """Let a host find a place after all."""
        self.hosts[index].state.move("starting")

    def absent(self) -> dict[int, int]:
        unplaced = (host for host in self.hosts if not host.state.is_placed)
        return {rank: 20 for host in unplaced for rank in host.ranks}

    def env_steps_of(self, rank: int) -> int:
        return self.learnt.get(rank, 0)

    def make_evaluator(self) -> None:
        return None

    def start(self, load: Any) -> None:
        if "start" in self.asked:
            for host in self.hosts:
                host.state = host.state.successor(host.version)
        self.asked.append("start")
        for host in self.hosts:
            if host.state.phase == "placing":
                host.state.move("starting")

    def replace(self, index: int) -> None:
        host = self.hosts[index]
        host.state = host.state.successor(host.version)
        self.asked.append(("replace", index, host.state.incarnation))
        host.state.move("starting")
        self.on_replace()

    def poll(self) -> list[Any]:
        if not self.script:
            raise Stopped
        entry = self.script.pop(0)
        return (entry() if callable(entry) else entry) or []

    def order(self, *, ends: bool) -> int:
        self.orders += 1
        self.asked.append(("order", self.orders, ends))
        return self.orders

    def show_life(self) -> None: ...

    def end(self) -> None:
        self.asked.append("end")

    def close(self) -> None: ...


def ready(index: int = 0) -> tuple[int, Ready]:
    return index, Ready(None)


def told(
    index: int = 0, updates: int = 1, *, episodes: int = 0, last: bool = False
) -> tuple[int, ProgressReport]:
    row = {"learner": index, "updates": updates, "version": updates, "env_steps": 1}
    ended = [
        (
            index,
            Episode(env=0, number=i, episode_return=1.0, length=1, env_steps=1, truncated=False),
        )
        for i in range(episodes)
    ]
    return index, ProgressReport([row], ended, last)


def part(index: int = 0, number: int = FINAL, updates: int = 1) -> tuple[int, Snapshot]:
    learner = LearnerState(
        update=updates,
        version=updates,
        env_steps=10 * updates,
        own_env_steps=10 * updates,
        numbers={},
        tensors={
            "learner.policy.weight": torch.full((2,), float(updates)),
            "learner.algorithm.tensors.target.weight": torch.zeros(2),
            "learner.optimizer.0.exp_avg": torch.ones(2),
            "actor.0.episodes": torch.zeros(1),
            "actor.generator": torch.zeros(1),
        },
    )
    return index, Snapshot(number, {index: learner}, PLAN, exact=True)


def done(index: int = 0) -> tuple[int, Done]:
    return index, Done()


class Supervised:
    """A supervisor of a fake placement, with a run folder, its records, and a clock that stands still."""

    def __init__(self, tmp_path: Any, placement: FakePlacement, **settings: Any):
        given = {"num_envs": 2, "num_learners": placement.num_hosts, **settings}
        self.config = make_config("CartPole-v1", given)
        self.folder = RunFolder.create(
            str(tmp_path / "run"), env_id="CartPole-v1", algorithm="a", topology="t", seed=1
        )
        self.folder.write_start({}, {}, [])
        self.placement = placement
        self.recorder = Recorder(self.config, self.folder, began=0.0, title=None)
        self.recorder.open(resumed_at=None)
        self.said: list[str] = []
        self.recorder.say = self.said.append  # type: ignore[method-assign]
        self.stop = Stop()
        store = self.folder.checkpoints()
        self.store = store
        self.scoring = Scoring(self.config, self.recorder, store, cast("Any", placement))
        self.checkpoints = Checkpointing(self.config, store, self.stop)
        self.requests = Requests(self.folder.path, partial(self.stop.request, "request"))
        self.supervisor = Supervisor(
            self.config,
            self.folder,
            placement,
            self.recorder,
            self.checkpoints,
            Evaluations(
                self.config,
                cast("Any", placement),
                self.recorder,
                self.scoring,
                self.stop,
            ),
            self.stop,
            self.requests,
        )
        self.went_back = 0

    def run(self, *, resumed: bool = False) -> None:
        self.supervisor.run(lambda _: None, self._go_back, resumed=resumed)

    def run_script(self) -> None:
        """Run until the script is over, which is in the midst of the run."""
        with pytest.raises(Stopped):
            self.run()

    def _go_back(self) -> bool:
        self.went_back += 1
        return False

    def rows(self, name: str = "metrics") -> list[dict[str, Any]]:
        return rows_of(self.folder.path, name)

    def saved(self, which: str | int = "last") -> RunState:
        return from_disk(self.store.load(which), self.config.num_learners)

    def close(self) -> None:
        self.supervisor.finish_saving()
        self.recorder.close()
        self.folder.unlock()
