"""A placement without learners: tells what a test has written down, and keeps what the supervisor asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch

from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.record.folder import RunFolder
from gossamer.roles.actor import Episode
from gossamer.run.checkpointing import Checkpointing
from gossamer.run.evaluations import Evaluations
from gossamer.run.host_protocol import FINAL, Done, ProgressReport, Ready, Snapshot
from gossamer.run.recorder import Recorder
from gossamer.run.requests import Requests
from gossamer.run.scoring import Scoring
from gossamer.run.stopping import Stop
from gossamer.run.supervisor import Supervisor
from gossamer.run.watching import Watch, Watched


@dataclass
class FakeHost:
    ranks: range
    pid: int = 0
    machine: str = ""
    here: bool = True
    away: bool = False
    version: int = -1


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

    def __post_init__(self) -> None:
        self.hosts = [FakeHost(range(i, i + 1)) for i in range(self.num_hosts)]
        self.spec = read_spec("CartPole-v1", make_config("CartPole-v1").env, 0, tries=False)
        self.names: list[str] = []
        self.stop = StopSignal()
        self.version = self.updates = 0
        self.disagreement = None
        self.stuck = False
        self.orders = 0
        self.on_replace: Any = lambda: None

    def absent(self) -> dict[int, int]:
        return {rank: 20 for host in self.hosts if host.away for rank in host.ranks}

    def make_evaluator(self) -> None:
        return None

    def score_next(self, learner: int) -> None: ...

    def score_policy_next(self, best: int | None) -> None: ...

    def start(self, begin: Any) -> None:
        self.asked.append("start")

    def replace(self, index: int, restarts: int) -> bool:
        self.asked.append(("replace", index, restarts))
        self.hosts[index] = FakeHost(self.hosts[index].ranks, version=self.hosts[index].version)
        self.on_replace()
        return True

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
    return index, Ready("")


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
    prefix = f"{index}/" if index else ""
    tensors = {f"{prefix}learner.policy.weight": torch.full((2,), float(updates))}
    held = {
        f"{prefix}learner.update": updates,
        f"{prefix}learner.own_env_steps": 10 * updates,
        f"{prefix}learner.env_steps": 10 * updates,
    }
    return index, Snapshot(number, tensors, {"held": held, "plan": {}, "exact": True})


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
        self.scoring = Scoring(
            self.config, self.recorder, store, [], lambda: (placement.updates, placement.env_steps)
        )
        self.checkpoints = Checkpointing(self.config, store, self.stop)
        self.requests = Requests(self.folder.path, Watch(0.0, Watched(), self.stop))
        self.supervisor = Supervisor(
            self.config,
            self.folder,
            placement,
            self.recorder,
            self.checkpoints,
            self.scoring,
            Evaluations(
                self.config,
                cast("Any", placement),
                self.recorder,
                self.scoring,
                self.stop,
            ),
            self.stop,
            tried=True,
            requests=self.requests,
        )
        self.went_back = 0

    def run(self, *, resumed: bool = False) -> None:
        self.supervisor.run(lambda _: None, self._go_back, resumed=resumed)

    def _go_back(self) -> bool:
        self.went_back += 1
        return False

    def rows(self, name: str = "metrics") -> list[dict[str, Any]]:
        import json

        path = self.folder.path / f"{name}.jsonl"
        return [json.loads(x) for x in path.read_text().splitlines()]

    def close(self) -> None:
        self.supervisor.finish_saving()
        self.recorder.close()
        self.folder.unlock()
