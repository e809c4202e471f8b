"""Captured functions: work that a GPU's host asks for kernel by kernel once, and repeats as a whole afterwards.

A function that is captured has no arguments: it reads and writes tensors whose addresses stay. While it warms up it is
called; then its kernels are recorded, and from then on replayed. So it must not read a tensor back to Python, draw
random numbers, or do anything that depends on what tensors hold: all of this would be frozen as it was. On a CPU, and
where a function cannot be captured, it is called every time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

WARM_UP = 2
"""Calls before a capture: torch and its libraries allocate, load and choose at the first ones."""
CAPTURING = threading.RLock()
"""One function of a process warms up or is captured at a time: what libraries do meanwhile would end another's capture."""


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
        tell: takes a sentence about a function that cannot be captured; said once.
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
        self._engine, self._tell = engine, tell

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
        if self._tell is not None:
            self._tell(
                f"{name} cannot be captured as a CUDA graph and is run step by step, which is slower: {why}"
            )
            self._tell = None


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
        self._called = 0
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
        try:
            engine.capture(self._work)
        except CaptureError as error:
            self._make = None
            self._refused(str(error))
            self._work()
        else:
            self._engine = engine


def _cuda_engine(
    device: torch.device,
) -> Callable[[Callable[[], Sequence[Tensor]], Sequence[Tensor]], Engine]:
    return lambda static, pinned: _CudaEngine(device)


class _CudaEngine:
    """A CUDA graph with memory of its own: graphs that run side by side must not share any."""

    def __init__(self, device: torch.device):
        import torch

        self._device = device
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        """Record on a stream beside the caller's, then replay on that."""
        import torch

        with torch.cuda.device(self._device):
            try:
                # Other threads go on allocating meanwhile: only what this one does may end the capture.
                with torch.cuda.graph(
                    self._graph,
                    stream=torch.cuda.Stream(self._device),
                    capture_error_mode="thread_local",
                ):
                    work()
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                torch.cuda.synchronize(self._device)
                raise CaptureError(" ".join(str(error).split())[:200]) from error
        self._graph.replay()

    def replay(self) -> None:
        """Ask for all of it at once, on the caller's stream."""
        self._graph.replay()
