"""`gossamer cluster check`: every machine of a cluster tells what it has, and how fast it is joined to the next."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gossamer.config import make_config
from gossamer.machine import free_memory, processor_name
from gossamer.run.cluster_findings import (
    Joined,
    Seen,
    described,
    findings,
    joined_in_words,
    remarks,
)
from gossamer.run.placements.cluster.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ANSWER_SECONDS = 60.0
"""Longest wait for a machine: a first task starts a process there."""
MESSAGE_BYTES = 3_200_000
"""As Pong's parameters."""
MESSAGES = 10
EXTRAS = ("ale_py", "Box2D", "envpool", "mujoco")


class Looker:
    """Looks at the machine that it runs on; a Ray actor."""

    def look(self) -> dict[str, Any]:
        """Return what is here, as plain fields of `Seen`."""
        shared = 0
        with suppress(OSError):
            shared = shutil.disk_usage("/dev/shm").free  # noqa: S108 - looked at, not written to
        versions = {"python": platform.python_version()}
        for name in ("torch", "gossamer", "ray"):
            with suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        extras = tuple(x for x in EXTRAS if importlib.util.find_spec(x) is not None)
        kinds = ""
        if os.environ.get("CUDA_VISIBLE_DEVICES") or shutil.which("nvidia-smi"):
            import torch

            if torch.cuda.is_available():
                kinds = torch.cuda.get_device_name()
        return {
            "memory_bytes": free_memory(),
            "shared_bytes": shared,
            "processor": processor_name(),
            "versions": versions,
            "extras": extras,
            "gpu_kind": kinds,
        }

    def take(self, message: NDArray[np.uint8]) -> int:
        """Return how long a message is."""
        return message.nbytes

    def send_to(self, other: Any) -> tuple[float, float]:
        """Return the bytes a second, and the seconds there and back, to another machine."""
        small, large = np.zeros(1, np.uint8), np.zeros(MESSAGE_BYTES, np.uint8)
        ray.get(other.take.remote(large), timeout=ANSWER_SECONDS)
        began = time.perf_counter()
        for _ in range(MESSAGES):
            ray.get(other.take.remote(small), timeout=ANSWER_SECONDS)
        answered = time.perf_counter()
        sent = [other.take.remote(large) for _ in range(MESSAGES)]
        ray.get(sent, timeout=ANSWER_SECONDS)
        ended = time.perf_counter()
        return MESSAGES * MESSAGE_BYTES / (ended - answered), (answered - began) / MESSAGES


def check_cluster(address: str, *, as_json: bool) -> tuple[str, bool]:
    """Return in words, or as JSON, what is there and what would not work, and whether nothing would fail.

    Args:
        address: of the cluster; empty: as training finds it.
        as_json: return JSON.

    Raises:
        ConfigError: there is no such cluster.
    """
    session = Session(make_config("CartPole-v1", {"cluster.address": address}), 0, 0, 0)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        lookers = [_looker(node["NodeID"]) for node in nodes]
        machines = [_seen(node, looker) for node, looker in zip(nodes, lookers, strict=True)]
        links = _links(machines, lookers)
        heading = str(session)
    finally:
        session.close()
    wrong, notes = list(findings(machines)), list(remarks(machines))
    if as_json:
        told = {
            "machines": [dataclasses.asdict(x) for x in machines],
            "links": [dataclasses.asdict(x) for x in links],
            "wrong": wrong,
            "notes": notes,
        }
        return json.dumps(told, indent=2), not wrong
    lines = [heading, *map(described, machines), *map(joined_in_words, links)]
    lines += [f"note: {x}" for x in notes]
    lines += [f"would fail: {x}" for x in wrong] or ["nothing would fail"]
    return "\n".join(lines), not wrong


def _looker(node_id: str) -> Any:
    options: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return cast("Any", ray.remote(**options)(Looker)).remote()


def _seen(node: dict[str, Any], looker: Any) -> Seen:
    has = node["Resources"]
    resources: dict[str, Any] = {
        "cpus": has.get("CPU", 0.0),
        "gpus": has.get("GPU", 0.0),
        "store_bytes": int(has.get("object_store_memory", 0)),
    }
    address = node["NodeManagerAddress"]
    try:
        found = cast("dict[str, Any]", ray.get(looker.look.remote(), timeout=ANSWER_SECONDS))
    except GetTimeoutError:
        return Seen(address, **resources, silent=f"nothing for {ANSWER_SECONDS:.0f} s")
    except RayError as error:
        return Seen(address, **resources, silent=str(error).splitlines()[0])
    return Seen(address, **resources, **found)


def _links(machines: Sequence[Seen], lookers: Sequence[Any]) -> list[Joined]:
    """Measure every machine that answers to the next, the last to the first."""
    there = [(x, looker) for x, looker in zip(machines, lookers, strict=True) if not x.silent]
    found: list[Joined] = []
    for (one, sends), (other, takes) in zip(there, there[1:] + there[:1], strict=True):
        if one is other:
            continue
        with suppress(RayError):
            rate, seconds = cast(
                "tuple[float, float]",
                ray.get(sends.send_to.remote(takes), timeout=2 * ANSWER_SECONDS),
            )
            found.append(Joined(one.address, other.address, rate / 2**20, 1e3 * seconds))
    return found
