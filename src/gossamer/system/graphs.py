"""Captured functions: work that a GPU's host asks for kernel by kernel once, and repeats as a whole afterwards.

A function that is captured has no arguments: it reads and writes tensors whose addresses stay. While it warms up it is
called; then its kernels are recorded, and from then on replayed. So it must not read a tensor back to Python, draw
random numbers, or do anything that depends on what tensors hold: all of this would be frozen as it was. On a CPU, and
where a function cannot be captured, it is called every time.
"""

from __future__ import annotations

import gc
import sys
import warnings
from typing import TYPE_CHECKING, Any, Protocol

from gossamer.system.devices import CAPTURING, new_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

WARM_UP = 2
"""Calls before a capture: torch and its libraries allocate, load and choose at the first ones."""
TRIES = 2
"""Captures that are tried before a function is run step by step: another thread may have spoilt the first."""
_capture_streams: dict[Any, Any] = {}
"""One a device, for all captures: torch has few streams, and hands them out again and again."""


class Engine(Protocol):
    """Records the work of one function, and repeats it."""

    def capture(self, work: Callable[[], None]) -> None:
        """Record what a function does; it is done once when this returns.

        Raises:
            CaptureError: it does what cannot be captured; nothing was done.
        """
        ...

    def replay(self) -> None:
        """Do it again."""
        ...


class CaptureError(RuntimeError):
    """A function that does what cannot be captured."""


class Graphs:
    """Makes the captured functions of one device.

    Args:
        device: of their tensors.
        engine: makes what records a function, of its static tensors and of those in pinned memory of the host; None:
            CUDA graphs on a GPU, and on a CPU nothing, so that functions are called.
        tell: takes a sentence about a function that cannot be captured, once; None: standard error does.

    Functions of one object run one after the other and leave results in static tensors only, so they share memory.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        engine: Callable[[Callable[[], Sequence[Tensor]], Sequence[Tensor]], Engine] | None = None,
        tell: Callable[[str], None] | None = None,
    ):
        if engine is None and device.type == "cuda":
            engine = _cuda_engine(device)
        self._engine, self._tell = engine, tell or _say
        self._told = False

    def graph(
        self,
        name: str,
        work: Callable[[], None],
        static: Callable[[], Sequence[Tensor]],
        pinned: Callable[[], Sequence[Tensor]] = tuple,
    ) -> Graph:
        """Return a captured function.

        Args:
            name: said where it cannot be captured.
            work: the function.
            static: names the tensors that it may read and write, beside those that it makes itself.
            pinned: names those of them that are in the host's memory.
        """
        make = self._engine
        return Graph(
            work,
            None if make is None else lambda: make(static, pinned()),
            lambda why: self._refused(name, why),
        )

    def _refused(self, name: str, why: str) -> None:
        if not self._told:
            self._told = True
            self._tell(
                f"{name} cannot be captured as a CUDA graph and is run step by step, which is slower: {why}"
            )


def _say(text: str) -> None:
    sys.stderr.write(f"gossamer: {text}\n")


class Graph:
    """A function that is called while it warms up, then captured, then replayed.

    Args:
        work: the function, without arguments.
        engine: makes what records it; None: it is called every time.
        refused: told why it cannot be captured.
    """

    def __init__(
        self,
        work: Callable[[], None],
        engine: Callable[[], Engine] | None = None,
        refused: Callable[[str], None] = lambda why: None,
    ):
        self._work, self._make, self._refused = work, engine, refused
        self._called = self._tried = 0
        self._engine: Engine | None = None

    def __call__(self) -> None:
        """Do the work once more."""
        if self._engine is not None:
            self._engine.replay()
        elif self._make is None:
            self._work()
        else:
            with CAPTURING:
                self._warm_up(self._make)

    def _warm_up(self, make: Callable[[], Engine]) -> None:
        if self._called < WARM_UP:
            self._called += 1
            self._work()
            return
        engine = make()
        self._tried += 1
        try:
            engine.capture(self._work)
        except CaptureError as error:
            if self._tried == TRIES:
                self._make = None
                self._refused(str(error))
            self._work()
        else:
            self._engine = engine


def _cuda_engine(
    device: torch.device,
) -> Callable[[Callable[[], Sequence[Tensor]], Sequence[Tensor]], Engine]:
    import torch

    # A function may have nothing to do, as where a policy has nothing to normalise.
    warnings.filterwarnings("ignore", "The CUDA Graph is empty", UserWarning)
    pool = torch.cuda.graph_pool_handle()
    return lambda static, pinned: _CudaEngine(device, pool)


class _CudaEngine:
    """A CUDA graph.

    Args:
        device: of its kernels.
        pool: of memory, shared with graphs that never run at the same time.
    """

    def __init__(self, device: torch.device, pool: Any):
        import torch

        self._device, self._pool = device, pool
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        """Record on a stream beside the caller's, then replay on that."""
        import torch

        if self._device not in _capture_streams:
            _capture_streams[self._device] = new_stream(self._device, captures=True)
        mine = torch.cuda.current_stream(self._device)
        collects = gc.isenabled()
        gc.disable()  # pinned memory of a run before that is freed within a capture would end it
        try:
            # A capture that fails leaves its own stream current. Other threads go on allocating meanwhile: only what
            # this one does may end the capture.
            with (
                torch.cuda.stream(mine),
                torch.cuda.graph(
                    self._graph,
                    pool=self._pool,
                    stream=_capture_streams[self._device],
                    capture_error_mode="thread_local",
                ),
            ):
                work()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize(self._device)
            raise CaptureError(" ".join(str(error).split())[:200]) from error
        finally:
            torch.cuda.set_stream(mine)
            if collects:
                gc.enable()
        self._graph.replay()

    def replay(self) -> None:
        """Ask for all of it at once, on the caller's stream."""
        self._graph.replay()
