"""`gossamer cluster check`: every machine of a cluster tells what it has, calls every other, and how fast it is joined to the next."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gossamer.config import make_config
from gossamer.links.wire import Listener, Wire
from gossamer.machine import free_memory, processor_name
from gossamer.run.cluster_findings import (
    MIN_STORE_BYTES,
    Joined,
    Seen,
    described,
    findings,
    joined_in_words,
    remarks,
)
from gossamer.run.placements.cluster.session import Session
from gossamer.system.reading import clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from gossamer.links.wire import Address

ANSWER_SECONDS = 60.0
"""Longest wait for a machine, unless told otherwise: a first task starts a process there."""
MESSAGE_BYTES = 3_200_000
"""As Pong's parameters."""
MESSAGES = 10
MAX_CALLS = 64
"""At a time, from a machine to others."""
SAID_SECONDS = 5.0
"""After which it is said whom there is to wait for."""
IMPORT_SECONDS = 20.0
"""Longest time for a package to be imported."""
EXTRAS = ("ale_py", "Box2D", "envpool", "minigrid", "mujoco", "vizdoom")


def here() -> dict[str, Any]:
    """Return what is on this machine, as plain fields of `Seen`."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "gossamer", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions["gossamer"] = f"{versions.get('gossamer', '')} ({_digest_of_source()})"
    installed = [x for x in EXTRAS if importlib.util.find_spec(x) is not None]
    with ThreadPoolExecutor() as pool:
        tried = zip(installed, pool.map(_why_not, installed), strict=True)
        broken = {name: why for name, why in tried if why}
    extras = [x for x in installed if x not in broken]
    kinds = ""
    if os.environ.get("CUDA_VISIBLE_DEVICES") or shutil.which("nvidia-smi"):
        import torch

        if torch.cuda.is_available():
            kinds = torch.cuda.get_device_name()
    return {
        "memory_bytes": free_memory(),
        "shared_bytes": shared_bytes(),
        "processor": processor_name(),
        "versions": versions,
        "extras": tuple(extras),
        "broken": broken,
        "gpu_kind": kinds,
    }


def shared_bytes() -> int | None:
    """Return the bytes that are free in /dev/shm, 0 where it is missing; None: only Linux has it."""
    if sys.platform != "linux":
        return None
    try:
        return shutil.disk_usage("/dev/shm").free  # noqa: S108 - looked at, not written to
    except OSError:
        return 0


def _why_unheard(address: Address) -> str:
    """Return why an end that waits for calls does not answer with what it hears, its port; empty: it does."""
    try:
        with closing(Wire.call(address)) as wire:
            wire.send(address.port)
            if wire.receive(int) == address.port:
                return ""
        why = "something else answers there"
    except (OSError, ValueError) as error:
        why = clipped(str(error)) or type(error).__name__
    return f"port {address.port}: {why}"


def _why_not(package: str) -> str:
    """Return why a package cannot be imported; empty: it can. It is tried in a process of its own, which it may end."""
    words = [sys.executable, "-c", f"import {package}"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        tried = subprocess.run(words, timeout=IMPORT_SECONDS, check=False, **quiet)
    except subprocess.TimeoutExpired:
        return f"still importing after {IMPORT_SECONDS:.0f} s"
    last = [x for x in tried.stderr.splitlines() if x.strip()][-1:]
    return clipped("".join(last) or f"exit code {tried.returncode}") if tried.returncode else ""


def _digest_of_source() -> str:
    """Return a short digest of gossamer's source: checkouts of one version may differ."""
    root, digest = Path(__file__).parents[3], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:8]


class Looker:
    """Looks at the machine that it runs on; a Ray actor."""

    def look(self) -> dict[str, Any]:
        """Return what is here."""
        return here()

    def listen(self) -> Address:
        """Wait for calls as agents do, as long as this lives; return where."""
        listener = Listener(ray.util.get_node_ip_address())
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()
        return listener.address

    def _answer(self, listener: Listener) -> None:
        for wire in listener.callers(lambda: True):
            with closing(wire), suppress(OSError, ValueError):
                wire.send(wire.receive(int))

    def call(self, others: Mapping[int, Address]) -> dict[int, str]:
        """Call other machines as an agent does; return why it does not work, for those with which it does not."""
        with ThreadPoolExecutor(MAX_CALLS) as pool:
            answers = zip(others, pool.map(_why_unheard, others.values()), strict=True)
            return {k: why for k, why in answers if why}

    def take(self, message: NDArray[np.uint8]) -> int:
        """Return how long a message is."""
        return message.nbytes

    def send_to(self, other: Any, answer_seconds: float) -> tuple[float, float]:
        """Return the bytes a second, and the seconds there and back, to another machine.

        Args:
            other: a `Looker` there.
            answer_seconds: longest wait for it.
        """
        small, large = np.zeros(1, np.uint8), np.zeros(MESSAGE_BYTES, np.uint8)
        ray.get(other.take.remote(large), timeout=answer_seconds)
        began = time.perf_counter()
        for _ in range(MESSAGES):
            ray.get(other.take.remote(small), timeout=answer_seconds)
        answered = time.perf_counter()
        sent = [other.take.remote(large) for _ in range(MESSAGES)]
        ray.get(sent, timeout=answer_seconds)
        ended = time.perf_counter()
        return MESSAGES * MESSAGE_BYTES / (ended - answered), (answered - began) / MESSAGES


def check_cluster(
    address: str,
    *,
    as_json: bool,
    say: Callable[[str], None] = lambda _: None,
    answer_seconds: float = ANSWER_SECONDS,
) -> tuple[str, bool]:
    """Return in words, or as JSON, what is there and what would not work, and whether nothing would fail.

    Args:
        address: of the cluster; empty: as training finds it.
        as_json: return JSON.
        say: told whom there is to wait for.
        answer_seconds: longest wait for a machine, > SAID_SECONDS.

    Raises:
        ConfigError: there is no such cluster.
    """
    config = make_config("CartPole-v1", {"cluster.address": address})
    with closing(Session(config, 0, 0, 0)) as session:
        inquiry = _Inquiry(say, answer_seconds)
        machines = inquiry.machines
        links = inquiry.calls() + inquiry.links()
        heading, free = str(session), cast("dict[str, float]", ray.available_resources())
    me = Seen("this process", cpus=1.0, store_bytes=MIN_STORE_BYTES, **here())
    wrong = list(findings(machines, me, [x for x in links if x.failed]))
    notes = list(remarks(machines, free_cpus=free.get("CPU", 0.0)))
    if as_json:
        told = {
            "machines": [dataclasses.asdict(x) for x in machines],
            "links": [dataclasses.asdict(x) for x in links],
            "wrong": wrong,
            "notes": notes,
        }
        return json.dumps(told, indent=2), not wrong
    lines = [heading, *map(described, machines)]
    lines += [joined_in_words(x) for x in links if not x.failed]
    lines += [f"note: {x}" for x in notes]
    lines += [f"would fail: {x}" for x in wrong] or ["nothing would fail"]
    return "\n".join(lines), not wrong


def _looker(node_id: str) -> Any:
    options: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return cast("Any", ray.remote(**options)(Looker)).remote()


class _Inquiry:
    """The machines of a cluster, each with a `Looker` there; once made, all have been asked what they have.

    Args:
        say: told whom there is to wait for.
        seconds: longest wait for a machine.
    """

    def __init__(self, say: Callable[[str], None], seconds: float):
        self._say, self._seconds = say, seconds
        self.machines: list[Seen] = []
        self._there: list[tuple[str, Any]] = []
        """Those that answer, each with its looker; two nodes may have one machine."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        lookers = [_looker(node["NodeID"]) for node in nodes]
        asked = [looker.look.remote() for looker in lookers]
        addresses: list[str] = [node["NodeManagerAddress"] for node in nodes]
        self._wait(asked, addresses, "")
        for node, address, looker, answer in zip(nodes, addresses, lookers, asked, strict=True):
            has = node["Resources"]
            resources: dict[str, Any] = {
                "cpus": has.get("CPU", 0.0),
                "gpus": has.get("GPU", 0.0),
                "store_bytes": int(has.get("object_store_memory", 0)),
            }
            seen, silent = _answer(answer, f"nothing for {self._seconds:.0f} s")
            self.machines.append(Seen(address, **resources, **(seen or {}), silent=silent))
            if not silent:
                self._there.append((address, looker))

    def calls(self) -> list[Joined]:
        """Let every machine that answers call every other one; return the pairs between which that fails."""
        asked = [looker.listen.remote() for _, looker in self._there]
        told = [_answer(x, "", self._seconds)[0] for x in asked]
        addresses = {i: x for i, x in enumerate(told) if x}
        calling = [
            looker.call.remote({k: address for k, address in addresses.items() if k != i})
            for i, (_, looker) in enumerate(self._there)
        ]
        if calling:
            self._wait(calling, [x for x, _ in self._there], "the calls of ")
        found: list[Joined] = []
        for (machine, _), answer in zip(self._there, calling, strict=True):
            failed, why = _answer(answer, "no answer")
            if why:
                found.append(Joined(machine, "the others", failed=why))
            found += [
                Joined(machine, self._there[k][0], failed=x) for k, x in (failed or {}).items()
            ]
        return found

    def links(self) -> list[Joined]:
        """Measure every machine that answers to the next, the last to the first."""
        found: list[Joined] = []
        following = self._there[1:] + self._there[:1]
        for (one, sends), (other, takes) in zip(self._there, following, strict=True):
            if sends is takes:
                continue
            asked = sends.send_to.remote(takes, self._seconds)
            silence = f"nothing arrived for {self._seconds:.0f} s"
            measured, why = _answer(asked, silence, self._seconds)
            rate, seconds = measured or (0.0, 0.0)
            found.append(Joined(one, other, rate / 2**20, 1e3 * seconds, why))
        return found

    def _wait(self, asked: Sequence[Any], machines: Sequence[str], what: str) -> None:
        """Wait for answers of machines, and say after a while what of whom there is to wait for."""
        _, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SAID_SECONDS)
        if silent:
            late = [name for name, x in zip(machines, asked, strict=True) if x in silent]
            rest = self._seconds - SAID_SECONDS
            self._say(f"waiting for {what}{', '.join(late)}, {rest:.0f} s at most")
            ray.wait(list(asked), num_returns=len(asked), timeout=rest)


def _answer(asked: Any, silence: str, seconds: float = 0.0) -> tuple[Any, str]:
    """Return an answer, and why there is none; empty: there is.

    Args:
        asked: the answer to come.
        silence: why there is none if it does not come in time.
        seconds: longest wait.
    """
    try:
        return ray.get(asked, timeout=seconds), ""
    except GetTimeoutError:
        return None, silence
    except RayError as error:
        # Python's own error, which Ray puts below where it came from.
        lines = [x.strip() for x in str(error).splitlines() if x.strip()]
        named = [x for x in lines if "Error: " in x]
        return None, clipped((named or lines or [type(error).__name__])[-1], 200)
