"""What the machines of a cluster have, and what of it would keep a run from working; plain data in, lines out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIN_SHARED_BYTES = 256 << 20
"""Fewest bytes free in /dev/shm: a host's learners and actors share some tens of megabytes, Ray's object store more."""
MIN_STORE_BYTES = 64 << 20
"""Smallest object store of Ray's, in bytes: it holds parameters and letters on their way."""
VERSIONS = ("python", "torch", "gossamer", "ray")


@dataclass(frozen=True)
class Seen:
    """One machine, as a task of the cluster has found it."""

    address: str
    cpus: float = 0.0
    gpus: float = 0.0
    gpu_kind: str = ""
    memory_bytes: int = 0
    store_bytes: int = 0
    shared_bytes: int | None = 0
    """Free in /dev/shm; None: it has none, as it is not Linux."""
    processor: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    extras: tuple[str, ...] = ()
    """Packages of environments that can be imported."""
    broken: dict[str, str] = field(default_factory=dict)
    """Packages that are installed and cannot be imported, and why."""
    silent: str = ""
    """Why it did not answer; empty: it did."""


@dataclass(frozen=True)
class Joined:
    """How fast two machines are joined, measured with a message as large as Pong's parameters."""

    source: str
    target: str
    mebibytes_per_second: float = 0.0
    milliseconds: float = 0.0
    failed: str = ""
    """Why nothing arrived; empty: it did."""


def described(seen: Seen) -> str:
    """Return one machine in one line."""
    if seen.silent:
        return f"{seen.address}: no answer ({seen.silent})"
    gpus = f", {seen.gpus:g} GPUs ({seen.gpu_kind})" if seen.gpus else ""
    versions = ", ".join(f"{name} {seen.versions.get(name, 'missing')}" for name in VERSIONS)
    return (
        f"{seen.address}: {seen.cpus:g} CPUs ({seen.processor}){gpus}, {seen.memory_bytes / 2**30:.0f} GiB, "
        f"{versions}, environments: {', '.join(seen.extras) or 'gymnasium alone'}"
    )


def joined_in_words(link: Joined) -> str:
    """Return how two machines are joined, in one line."""
    return (
        f"{link.source} -> {link.target}: {link.mebibytes_per_second:,.0f} MiB/s, "
        f"{link.milliseconds:.1f} ms for a message and its answer"
    )


def findings(
    machines: Sequence[Seen], me: Seen | None = None, cut: Sequence[Joined] = ()
) -> Iterator[str]:
    """Yield what would not work and how to set it right, a line each; nothing: all is well.

    Args:
        machines: of the cluster.
        me: the process that asks, which would be the supervisor of a run.
        cut: pairs of machines between which nothing arrived.
    """
    for link in cut:
        yield (
            f"nothing from {link.source} arrives at {link.target} ({link.failed}): all machines must reach each other on every port"
        )
    for seen in machines:
        if seen.silent:
            yield f"{seen.address} does not answer ({seen.silent}): look at it with ray status, or take it out with ray stop"
    there = [seen for seen in machines if not seen.silent]
    for name in VERSIONS:
        has = [(x.versions.get(name, "missing"), x.address) for x in (*there, me) if x]
        count = Counter(version for version, _ in has)
        if len(count) > 1:
            usual = count.most_common(1)[0][0]
            others = [f"{version} on {address}" for version, address in has if version != usual]
            yield f"{name} differs: {usual} on most machines, {'; '.join(others)}: install {name} {usual} there"
    every = {extra for seen in there for extra in seen.extras}
    for extra in sorted(every):
        lacking = [x.address for x in there if extra not in (*x.extras, *x.broken)]
        if lacking:
            yield f"{extra} is missing on {', '.join(lacking)}: its environments fail there; install it on every machine"
    for seen in there:
        for extra, why in seen.broken.items():
            yield f"{extra} cannot be imported on {seen.address} ({why}): its environments fail there"
        if seen.cpus < 1 and not _has_cpus(machines):
            yield f"{seen.address} offers no CPU, so nothing is placed there: ray start --num-cpus N"
        if seen.shared_bytes is not None and seen.shared_bytes < MIN_SHARED_BYTES:
            yield f"{seen.address} has {seen.shared_bytes >> 20} MiB free in /dev/shm; {MIN_SHARED_BYTES >> 20} are needed"
        if seen.store_bytes < MIN_STORE_BYTES:
            yield (
                f"{seen.address} has an object store of {seen.store_bytes >> 20} MiB; {MIN_STORE_BYTES >> 20} are needed: "
                "ray start --object-store-memory BYTES"
            )


def _has_cpus(machines: Sequence[Seen]) -> bool:
    """Whether a machine that answers offers CPUs; others may then join without any, as the one of a supervisor does."""
    return any(seen.cpus >= 1 and not seen.silent for seen in machines)


def remarks(machines: Sequence[Seen], free_cpus: float | None = None) -> Iterator[str]:
    """Yield what is good to know, and keeps nothing from working.

    Args:
        machines: of the cluster.
        free_cpus: CPUs that nobody has taken; None: it is not known.
    """
    offered = sum(seen.cpus for seen in machines)
    if free_cpus is not None and free_cpus < offered:
        yield f"{free_cpus:g} of {offered:g} CPUs are free: others use the cluster too"
    if _has_cpus(machines):
        for seen in machines:
            if seen.cpus < 1 and not seen.silent:
                yield f"{seen.address} offers no CPU, so it runs no learners"
    kinds = sorted({seen.processor for seen in machines if not seen.silent})
    if len(kinds) > 1:
        yield f"processors differ ({'; '.join(kinds)}): learners in lock-step may round differently, so no run is exact"
