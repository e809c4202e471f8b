"""A run's checkpoints: when one is due, and how what the supervisor has joined is written while training goes on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gossamer.links.stopping import LOOK_SECONDS
from gossamer.machine import use_threads
from gossamer.run.checkpoint_contents import to_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.config import TrainConfig
    from gossamer.record.checkpoint import CheckpointStore
    from gossamer.run.checkpoint_contents import RunPolicies, RunState
    from gossamer.run.stopping import Stop


class Checkpointing:
    """Writes snapshots of a run on a thread of its own, one at a time, and knows what of it is on disk.

    Args:
        config: of the run.
        store: where checkpoints are written.
        stop: lets saving end.
    """

    def __init__(self, config: TrainConfig, store: CheckpointStore, stop: Stop):
        self.saved_env_steps: int | None = None
        """Env steps behind the last checkpoint, written or being written; None: there is none."""
        self.final_snapshot_queued = False
        """Whether the last parts of all hosts are joined and handed to the writer."""
        self.updates: dict[int, int] = {}
        """Updates of each learner at the last snapshot."""
        self.initial: RunState | None = None
        """State that the run begins with: it is written after the first version, which that would hold up."""
        self._before: int | None = None  # by the checkpoint before that one
        self._every_seconds = config.checkpoint_every_seconds
        self._store, self._stop = store, stop
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None  # of the last one, which has not been raised yet
        self._untold: BaseException | None = None
        self.failures = 0
        """Checkpoints in a row that could not be written."""
        # The longest.
        self._snapshot_seconds = self._sending_seconds = self._writing_seconds = 0.0
        self._at = time.monotonic()
        # Updates behind the last that this session has saved, and its scores.
        self._saved: tuple[dict[int, int], RunPolicies] | None = None

    def load_state(self, state: RunState) -> None:
        """Continue from a checkpoint's state."""
        self.saved_env_steps = self._before = state.env_steps
        self.updates = state.updates

    def begin(self) -> None:
        """Count the time to the next checkpoint from now on."""
        self._at = time.monotonic()

    @property
    def longest_seconds(self) -> float:
        """Longest time that a checkpoint took, its snapshot included."""
        return self._snapshot_seconds + self._sending_seconds + self._writing_seconds

    @property
    def written_bytes(self) -> int | None:
        """Bytes that have reached the disk, over all checkpoints; None while none is being written."""
        return self._store.written_bytes if self.busy else None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether the last one could not be written."""
        return self.failures > 0

    @property
    def all_saved(self) -> bool:
        """Whether the last that was learnt is on disk."""
        return self.final_snapshot_queued and not (self.busy or self.failed)

    @property
    def on_disk(self) -> int | None:
        """Env steps behind the last checkpoint that is on disk; None: there is none."""
        return self._before if self.busy or self.failed else self.saved_env_steps

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        every, waits = self._every_seconds, self.busy or self.initial is not None
        return bool(every) and time.monotonic() - self._at >= every and not waits

    def save(self, state: RunState, *, seconds: float = 0.0) -> None:
        """Begin to write a run's state, unless this session has saved one of as many updates and the same scores.

        Args:
            state: of the run; nobody else writes its tensors.
            seconds: that learning has paused for it.
        """
        self.updates = state.updates
        saved = state.updates, state.policies
        self._snapshot_seconds = max(self._snapshot_seconds, seconds)
        if saved != self._saved or self.failed:
            self.wait()  # the one before it may still be written
            if not self.failed:
                self._before = self.saved_env_steps
            self._error, self.saved_env_steps = None, state.env_steps
            self._thread = threading.Thread(target=self._write, args=[state], name="checkpoint")
            self._thread.start()
        self._at, self._saved = time.monotonic(), saved

    def save_initial(self) -> bool:
        """Begin to write the state that was kept, so that the run can be resumed from any moment on; whether there was one."""
        if self.initial is None:
            return False
        self.save(self.initial)
        self.initial = None
        return True

    def note_pause(self, seconds: float) -> None:
        """Record for how long learning has paused for sending a snapshot."""
        self._sending_seconds = max(self._sending_seconds, seconds)

    def forget(self) -> None:
        """Forget what this session has saved: the run goes back to an earlier checkpoint."""
        self._saved, self.initial, self.final_snapshot_queued = None, None, False

    def take_failure(self) -> BaseException | None:
        """Return why a checkpoint could not be written, once for each of them."""
        found, self._untold = self._untold, None
        return found

    def finish(self, alive: Callable[[], object] = lambda: None) -> None:
        """Wait as `wait` does; raise what went wrong if the last checkpoint could not be written."""
        self.wait(alive)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self, alive: Callable[[], object] = lambda: None) -> None:
        """Wait until the last checkpoint is on disk, or the disk has refused it: there may be room for the next one.

        Args:
            alive: called now and then while what is written reaches the disk.
        """
        written: int | None = -1
        self._stop.is_saving = True
        try:
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(LOOK_SECONDS)
                if self.written_bytes != written:
                    written = self.written_bytes
                    alive()
        finally:
            self._stop.is_saving = False
        self._thread = None
        if self._error is not None and not isinstance(self._error, OSError):
            error, self._error = self._error, None
            raise error

    def _write(self, state: RunState) -> None:
        use_threads(1)
        began = time.monotonic()
        try:
            self._store.save(state.updates[0], *to_disk(state))
            self._writing_seconds = max(self._writing_seconds, time.monotonic() - began)
            self.failures = 0
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            self.failures += 1
            self._error = self._untold = error
