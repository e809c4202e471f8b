"""Two threads of a run save at once: both checkpoints are whole."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from gossamer.record.checkpoint import CheckpointStore, Score

if TYPE_CHECKING:
    from pathlib import Path


class Held(dict[str, torch.Tensor]):
    """Tensors whose first reader waits a while for a second writer."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.began, self.go_on = threading.Event(), threading.Event()

    def __getitem__(self, name: str) -> torch.Tensor:
        if not self.began.is_set():
            self.began.set()
            self.go_on.wait(0.3)  # by then a writer that does not wait is through
        return super().__getitem__(name)


def test_the_best_policy_is_saved_beside_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    tensors, failed = Held({"weight": torch.ones(3)}), list[BaseException]()

    def write() -> None:
        try:
            store.save_scored("best", 5, tensors, {}, Score(1.0))
        except OSError as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert tensors.began.wait(5.0)
    store.save(7, {"weight": torch.zeros(3)}, {})
    tensors.go_on.set()
    writer.join(5.0)
    assert not failed
    assert torch.equal(store.load("best").tensors["weight"], torch.ones(3))
    assert torch.equal(store.load(7).tensors["weight"], torch.zeros(3))
