"""Actors of the learners of one host, placed by Ray on any machine of the cluster.

Ray only places and ends them: what they collect goes to their learner's process over a connection of their own
(`remote_actor`), which is also how that notices that one has died, and asks for another.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import ray
from msgspec.structs import replace
from ray.exceptions import RayError

from gossamer.run.host_protocol import Failed, Notice
from gossamer.run.placements.child_protocol import ActorLost, ActorSettled
from gossamer.run.placements.spawn import spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.config import TrainConfig
    from gossamer.run.host_protocol import Event
    from gossamer.run.placements.child_protocol import ActorTask

MAX_ATTEMPTS = 6
"""To start an actor that ends before it has called its team."""
AGAIN_SECONDS = 1.0
"""Wait before the second attempt, twice as long before each further one: the cluster takes seconds to see that a machine is
gone."""
BECAUSE = "The actor is dead because"
"""How Ray begins the line that tells why."""
Told = ActorSettled | ActorLost | Failed
"""What the process of an actor tells whoever has started it."""


class ActorHost:
    """Runs one actor's process on some machine; a Ray actor.

    Args:
        task: of the process.
    """

    def __init__(self, task: ActorTask):
        here = replace(task, machine=ray.util.get_node_ip_address())
        self._popen, self._channel = spawn(here, Told)
        self._channel.end.setblocking(True)

    def run(self) -> list[Told]:
        """Wait until the process has ended; return what it told."""
        told: list[Told] = []
        while not self._channel.closed:  # which it is once the process is gone
            told += self._channel.receive()
        return told


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

    def place(self, task: ActorTask) -> None:
        """Have an actor with this task started, in place of the last one of its learner and index."""
        with self._lock:
            before = self._hosts.get(_key(task))
            self._start(task, attempt=1)
        if before is not None:
            _end(before)

    def _start(self, task: ActorTask, attempt: int) -> None:
        options: dict[str, Any] = {"num_cpus": self._config.cluster.cpus_per_actor}
        options |= {"scheduling_strategy": "SPREAD", "max_restarts": 0}
        made = cast("Any", ray.remote(**options)(ActorHost)).remote(task)
        self._hosts[_key(task)] = made
        threading.Thread(target=self._follow, args=(made, task, attempt), daemon=True).start()

    def end(self) -> None:
        """End all actors."""
        with self._lock:
            hosts, self._hosts = self._hosts, {}
        for host in hosts.values():
            _end(host)

    def _follow(self, made: Any, task: ActorTask, attempt: int) -> None:
        """Say that an actor has no place yet, and why it has failed; start it again if it goes before its team knows it."""
        seconds = self._config.cluster.wait_seconds
        placed, ends = made.__ray_ready__.remote(), made.run.remote()  # one after the other
        who = "actor {1} of learner {0}".format(*_key(task))
        told, why = list[Told](), "its process has ended"
        try:
            done, _ = ray.wait([placed], timeout=seconds)
            if not done and self._hosts.get(_key(task)) is made:
                free = cast("dict[str, float]", ray.available_resources()).get("CPU", 0.0)
                each = self._config.cluster.cpus_per_actor
                self._tell(
                    Notice(
                        f"{who} has had no place in the cluster for {seconds:.0f} s: it needs {each:g} CPUs, and "
                        f"{free:g} are free"
                    )
                )
            told = cast("list[Told]", ray.get(ends))
        except RayError as error:
            why = cause_of(error)
        why = next((x.why for x in told if isinstance(x, ActorLost)), why)
        failed = [x for x in told if isinstance(x, Failed)]
        if failed and self._hosts.get(_key(task)) is made:
            self._tell(replace(failed[-1], kind="RunFailed"))
        elif not any(isinstance(x, ActorSettled) for x in told):
            # A team that knew it has asked for another by then, or does not wait for this one's call.
            time.sleep(AGAIN_SECONDS * 2 ** (attempt - 1) * (attempt < MAX_ATTEMPTS))
            self._start_again(made, task, attempt, f"{who} could not be started: {why}")

    def _start_again(self, made: Any, task: ActorTask, attempt: int, why: str) -> None:
        with self._lock:
            if self._hosts.get(_key(task)) is not made:
                return
            if attempt < MAX_ATTEMPTS:
                self._start(task, attempt + 1)
                return
        self._tell(Failed("RunFailed", f"{why}; {MAX_ATTEMPTS} attempts were made"))


def cause_of(error: RayError) -> str:
    """Return in Ray's words why an actor is dead, or Python's own error and its machine, or else what Ray says first."""
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    known = [x.removeprefix(BECAUSE).strip() for x in lines if x.startswith(BECAUSE)]
    if known:
        return known[0].partition(". ")[0]
    raised = [x for x in lines if re.match(r"[\w.]*(Error|Exception): ", x)]
    if raised:
        where = re.search(r"\bip=([^,)]+)", str(error))
        return f"on {where[1]}: {raised[-1]}" if where else raised[-1]
    return lines[0] if lines else type(error).__name__


def _key(task: ActorTask) -> tuple[int, int]:
    return task.rank, task.actor


def _end(host: Any) -> None:
    with suppress(RayError):
        ray.kill(host)
