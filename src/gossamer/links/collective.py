"""Averages over all learners that do not go through shared memory: from GPU to GPU, or through sockets."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.errors import OthersLeft

if TYPE_CHECKING:
    from collections.abc import Sequence

EXCHANGE_SECONDS = 300.0
"""Longest time for numbers to travel: everyone has been seen to be there before they are sent."""
GRACE_SECONDS = 5.0
"""Within which a dead process is noticed."""
FAR_GRACE_SECONDS = 60.0
"""Within which a cluster notices a dead machine."""


class Collective:
    """One learner's end of a torch.distributed group; each process has one at most.

    Args:
        backend: "nccl", for learners with a GPU each, or "gloo".
        meeting: where the learners find each other: a file that is not there yet, or HOST:PORT of a store.
        rank: of this learner.
        num_learners: how many there are.
        machine: address of this machine, whose network interface is used; empty: all learners are on this one.
    """

    def __init__(self, backend: str, meeting: str, rank: int, num_learners: int, machine: str = ""):
        self._num_learners = num_learners
        self._grace_seconds = FAR_GRACE_SECONDS if machine else GRACE_SECONDS
        if machine and (interface := _interface_of(machine)):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, interface)
        host, colon, port = meeting.rpartition(":")
        timeout = timedelta(seconds=EXCHANGE_SECONDS)
        store = (
            dist.TCPStore(host, int(port), timeout=timeout)
            if colon and port.isdecimal()
            else dist.FileStore(meeting, num_learners)
        )
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=num_learners, timeout=timeout
        )

    def average(self, vectors: Sequence[Tensor]) -> None:
        """Replace vectors, alike in everyone's length and order, by everyone's average."""
        try:
            for vector in vectors:
                dist.all_reduce(vector)
        except RuntimeError as error:
            # One that dies cuts the others off at once. They are ended as soon as the supervisor knows whose
            # fault it is; only if nobody has died it is theirs.
            time.sleep(self._grace_seconds)
            raise OthersLeft(
                f"the connection between learners broke: {' '.join(str(error).split())}"
            ) from error
        torch._foreach_div_(list(vectors), float(self._num_learners))

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


class MeetingPoint:
    """A store at which the members of a group on several machines find each other; one for each time it starts.

    Args:
        host: address of this machine, at which the others reach it.
    """

    def __init__(self, host: str):
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.address = f"{host}:{self._store.port}"


def _interface_of(address: str) -> str:
    """Return the name of this machine's network interface with an address; empty: there is none."""
    import psutil

    found = psutil.net_if_addrs().items()
    return next((name for name, has in found if any(x.address == address for x in has)), "")


def can_use(backend: str) -> bool:
    """Whether this build of torch has a backend."""
    return dist.is_available() and dist.is_backend_available(backend)
