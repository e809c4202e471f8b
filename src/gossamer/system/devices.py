"""GPUs: copies that nobody waits for, numbers that come back together, streams and where they meet.

On a CPU nothing here does anything. Importing this imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from gossamer.errors import RunFailed

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Generator, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


@contextlib.contextmanager
def cpu_by_default() -> Generator[None]:
    """Context in which this thread makes tensors on the CPU where no device is named.

    A script may have called `torch.set_default_device`; what it has set holds again afterwards.
    """
    import torch

    if _default_device() is None:
        yield
        return
    with torch.device("cpu"):
        yield


@contextlib.contextmanager
def own_arithmetic() -> Generator[None]:
    """Context in which this thread computes as a run's settings say, whatever `torch.autocast` and the like are around it."""
    import torch

    with cpu_by_default(), torch.inference_mode(mode=False), contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def default_device_kept() -> Generator[None]:
    """Context after which torch's default device is what it was: simulators set it where they are imported or made."""
    before = _default_device()
    try:
        yield
    finally:
        if _default_device() != before:
            import torch

            # None, not the CPU by name, which would be asked at every call of torch's from now on.
            torch.set_default_device(before)


def _default_device() -> torch.device | None:
    """Return this thread's default device; None: torch has not been imported, or it is the CPU."""
    torch: Any = sys.modules.get("torch")
    found = None
    with contextlib.suppress(AttributeError):  # of torch 2.9, once the default was set back to None
        found = None if torch is None else torch.get_default_device()
    return None if found is None or found.type == "cpu" else found


CAPTURING = threading.RLock()
"""Held while a function warms up or is captured, one at a time in a process, and by whoever waits for a whole GPU: what
libraries do, and such a wait, would end another thread's capture."""


def is_gpu(device: torch.device) -> bool:
    """Whether what is on a device has to be waited for, and fetched."""
    return device.type != "cpu"


def pinned(x: Tensor) -> Tensor:
    """Return a copy in memory that a GPU reaches by itself; without a GPU the tensor as it is."""
    import torch

    return x.pin_memory() if torch.cuda.is_available() else x


def send(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for it; one that is there is returned as it is."""
    if x.device == device:
        return x
    return (pinned(x) if x.device.type == "cpu" else x).to(device, non_blocking=True)


_PAGE_LOCKED: dict[int, mmap.mmap | NDArray[np.uint8]] = {}
"""By address; memory that was given back while it is locked would be written to by copies for others."""


class PageLocked:
    """Memory of the host that a GPU reaches by itself until `close`.

    Where the system refuses, it stays as it was: slower, not wrong.

    Args:
        memory: whole pages.
        device: the GPU; on a CPU this does nothing.
    """

    def __init__(self, memory: mmap.mmap | NDArray[np.uint8], device: torch.device):
        self._address, self._device = 0, device
        if device.type != "cuda":
            return
        import numpy as np

        address = int(np.frombuffer(memory, np.uint8).ctypes.data)
        if self._ask("cudaHostRegister", address, len(memory), 0):
            self._address = address
            _PAGE_LOCKED[address] = memory

    @property
    def holds(self) -> bool:
        """Whether the GPU reaches it."""
        return bool(self._address)

    def _ask(self, name: str, *args: int) -> bool:
        """Call a function of CUDA on this device; return whether it was done."""
        import torch

        with torch.cuda.device(self._device):  # else GPU 0 would be begun with
            if not int(getattr(torch.cuda.cudart(), name)(*args)):
                return True
            with contextlib.suppress(RuntimeError):  # CUDA tells its last error to whoever is next
                torch.zeros(1, device=self._device)
        return False

    def close(self) -> None:
        """Give the pages back to the system; no copy may be under way."""
        address, self._address = self._address, 0
        if address and self._ask("cudaHostUnregister", address):
            del _PAGE_LOCKED[address]


def is_pinned(x: Tensor) -> bool:
    """Whether a tensor lies in memory of the host that a GPU reaches by itself."""
    return x.is_pinned()


def memory_of(device: torch.device) -> int:
    """Return the bytes of a GPU's memory, whoever uses them; 0 where that is not known."""
    if device.type != "cuda":
        return 0
    import torch

    return torch.cuda.mem_get_info(device)[1]


@contextlib.contextmanager
def memory_told(doing: str, how: str) -> Generator[None]:
    """Context, or decorator, in which a GPU's memory that runs out ends the run in a line: for what, and what helps."""
    try:
        yield
    except Exception as error:
        import torch

        if not isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        short = " ".join(str(error).split())[:200]
        raise RunFailed(f"the GPU's memory is too small {doing} ({short}); {how}") from None


ROOM = "free some (nvidia-smi tells who uses it), or use fewer environments or a smaller network"
"""What helps where a GPU has no room for a run's own."""


def stacked(numbers: Sequence[Tensor | float], device: torch.device) -> Tensor:
    """Return numbers side by side [N] float64 on the device that they are on, without waiting for it."""
    import torch

    if not is_gpu(device):  # reading them costs less than converting them
        read: dict[int, float] = {}  # counts are the same tensor many times
        for x in numbers:
            if id(x) not in read:
                read[id(x)] = float(x)
        return torch.tensor([read[id(x)] for x in numbers], dtype=torch.float64)
    made: dict[int, Tensor] = {}
    for x in numbers:
        if isinstance(x, (int, float)):
            made[id(x)] = torch.full((), x, dtype=torch.float64, device=device)
        elif id(x) not in made:  # counts are the same tensor many times
            made[id(x)] = x if x.is_floating_point() else x.float()
    return torch.stack([made[id(x)] for x in numbers]).double().detach()


@contextlib.contextmanager
def kept_algorithms() -> Generator[None]:
    """Context after which this process computes as its program wants, however a run in it has computed.

    Threads that the program begins later have as many threads for computing as the one that comes here.
    """
    import torch

    def choice() -> tuple[bool, bool]:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warns

    chosen = choice()
    filling: Any = torch.utils.deterministic
    fills, tries = filling.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        if choice() != chosen:
            torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])
        filling.fill_uninitialized_memory = fills
        torch.backends.cudnn.benchmark = tries
        # Every thread has a number of its own, but a new one begins with the last that any thread was given.
        torch.set_num_threads(torch.get_num_threads())


def use_deterministic_algorithms(deterministic: bool) -> None:
    """Let this process compute the same on a GPU every time, or as fast as it can; before any work is done there."""
    import torch

    if not deterministic:
        # An earlier run of this process may have been. Asking for nothing imports torch's compiler: seconds of a start.
        if torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(False)
        # Shapes do not change: the quickest way to convolve is tried out once, while functions warm up.
        torch.backends.cudnn.benchmark = True
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what its matrix products ask for
    torch.use_deterministic_algorithms(True)
    # Nobody reads memory before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.benchmark = False


def wait(device: torch.device) -> None:
    """Wait until what this thread's stream has been given so far is done."""
    if device.type == "cuda":
        import torch

        torch.cuda.current_stream(device).synchronize()


STREAMS_IN_USE: set[tuple[torch.device, int]] = set()
"""Streams that were given out and not given back. Torch has 32 of a device and a priority, and hands them out again and again."""
CAPTURE_STREAMS: set[tuple[torch.device, int]] = set()
"""Those of them on which functions are captured: what anybody else asks for there would be captured too."""
STREAMS = 32


def new_stream(
    device: torch.device, *, first: bool = False, captures: bool = False
) -> torch.cuda.Stream:
    """Return a stream of a GPU that nobody here works on, as long as there is one; never one for captures.

    Args:
        device: the GPU.
        first: its kernels go before those of other streams.
        captures: it is for captures, for good.
    """
    import torch

    found: torch.cuda.Stream | None = None
    for _ in range(STREAMS):
        stream = torch.cuda.Stream(device, priority=-1 if first else 0)
        key = stream.device, stream.cuda_stream
        if key not in CAPTURE_STREAMS:
            found = stream
        if key not in STREAMS_IN_USE:
            break
    assert found is not None
    STREAMS_IN_USE.add((found.device, found.cuda_stream))
    if captures:
        CAPTURE_STREAMS.add((found.device, found.cuda_stream))
    return found


def give_back(stream: torch.cuda.Stream) -> None:
    """Record that nobody works on a stream any more."""
    STREAMS_IN_USE.discard((stream.device, stream.cuda_stream))


class SideStream:
    """A stream for work beside a GPU's own, which does not wait for it; on a CPU nothing."""

    def __init__(self, device: torch.device):
        self._stream = new_stream(device) if device.type == "cuda" else None

    @contextlib.contextmanager
    def working(self) -> Generator[None]:
        """Context in which this thread works on the stream; what it has asked for is done when it ends."""
        if self._stream is None:
            yield
            return
        import torch

        # What libraries do at a first use would end another thread's capture.
        with CAPTURING, torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()

    def close(self) -> None:
        """Give the stream back."""
        if self._stream is not None:
            give_back(self._stream)
            self._stream = None


class Mark:
    """A point in the work of a stream, behind which other streams go on."""

    def __init__(self, device: torch.device):
        self._device = device
        self._event: torch.cuda.Event | None = None

    def set(self) -> None:
        """Mark what this thread's stream has been given so far."""
        if self._device.type == "cuda":
            import torch

            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(self._device))

    def follow(self) -> None:
        """Let this thread's stream do what it is given from now on after the mark."""
        if self._event is not None:
            import torch

            torch.cuda.current_stream(self._device).wait_event(self._event)


@contextlib.contextmanager
def own_stream(device: torch.device, *, first: bool = False) -> Generator[None]:
    """Context in which this thread has a stream of its own on a GPU, beside those of other threads.

    What others had asked for before is done when it begins.

    Args:
        device: of the work.
        first: its kernels go before those of other streams.
    """
    if device.type != "cuda":
        yield
        return
    import torch

    with CAPTURING:
        torch.cuda.synchronize(device)
    stream = new_stream(device, first=first)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        give_back(stream)


def on_own_stream(
    device: torch.device, work: Callable[[], None], *, first: bool = False
) -> Callable[[], None]:
    """Return the same work in a stream of its own."""

    def run() -> None:
        with own_stream(device, first=first):
            work()

    return run
