"""Actors of the learners of one host, placed by Ray on any machine of the cluster.

Ray only places and ends them: what they collect goes to their learner's process over a connection of their own
(`remote_actor`), which is also how that notices that one has died, and asks for another.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import ray
from ray.exceptions import RayError

from gossamer.errors import RunFailed
from gossamer.run.hosts import Failed, Notice
from gossamer.run.placements.channel import failure_in
from gossamer.run.placements.starting import start_child
from gossamer.run.placements.template import ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.config import TrainConfig
    from gossamer.run.hosts import Event

LOOK_SECONDS = 0.2
"""Longest time between two looks at an actor's process."""


class _Failure(NamedTuple):
    """Why an actor cannot go on, as `tell_failure` says it."""

    message: dict[str, Any]


class ActorHost:
    """Runs one actor's process on some machine; a Ray actor.

    Args:
        task: of the process, as plain data.
    """

    def __init__(self, task: dict[str, Any]):
        told = {**task, "machine": ray.util.get_node_ip_address()}
        self._popen, self._channel = start_child("actor", told, ())

    def run(self) -> _Failure | None:
        """Wait until the process has ended; return the failure that it told."""
        failure = None
        while not self._channel.closed:  # which it is once the process is gone
            if ready([self._channel.end.fileno()], LOOK_SECONDS):
                for message in self._channel.receive():
                    if message["kind"] == "failed":
                        failure = _Failure(message)
        return failure


class RemoteActors:
    """Has actors placed, at most one for each learner and index.

    Args:
        config: of the run.
        tell: tells the supervisor.
    """

    def __init__(self, config: TrainConfig, tell: Callable[[Event], None]):
        self._config, self._tell = config, tell
        self._hosts: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def place(self, task: dict[str, Any]) -> None:
        """Have an actor with this task started, in place of the last one of its learner and index."""
        key = (task["rank"], task["actor"])
        options: dict[str, Any] = {"num_cpus": self._config.cluster.cpus_per_actor}
        options |= {"scheduling_strategy": "SPREAD", "max_restarts": 0}
        made = cast("Any", ray.remote(**options)(ActorHost)).remote(task)
        with self._lock:
            before, self._hosts[key] = self._hosts.get(key), made
        if before is not None:
            _end(before)
        threading.Thread(target=self._follow, args=(made, key), daemon=True).start()

    def end(self) -> None:
        """End all actors."""
        with self._lock:
            hosts, self._hosts = self._hosts, {}
        for host in hosts.values():
            _end(host)

    def _follow(self, made: Any, key: tuple[int, int]) -> None:
        """Say that an actor has no place yet, and why it has failed where its connection could not tell."""
        seconds = self._config.cluster.wait_seconds
        placed, ends = made.__ray_ready__.remote(), made.run.remote()  # one after the other
        who = f"actor {key[1]} of learner {key[0]}"
        with suppress(RayError):
            done, _ = ray.wait([placed], timeout=seconds)
            if not done and self._hosts.get(key) is made:
                free = cast("dict[str, float]", ray.available_resources()).get("CPU", 0.0)
                each = self._config.cluster.cpus_per_actor
                self._tell(
                    Notice(
                        f"{who} has had no place in the cluster for {seconds:.0f} s: it needs {each:g} CPUs, and "
                        f"{free:g} are free"
                    )
                )
            failure = cast("Any", ray.get(ends))
            if failure is not None and self._hosts.get(key) is made:
                error = failure_in(failure.message, "an actor")
                self._tell(Failed(error if isinstance(error, RunFailed) else RunFailed(str(error))))


def _end(host: Any) -> None:
    with suppress(RayError):
        ray.kill(host)
