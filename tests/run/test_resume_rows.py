"""What a resumed run keeps of its learners' records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runs import SMALL

from gossamer.config import make_config
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.train import train


def test_a_faster_learner_keeps_its_rows(tmp_path: Path) -> None:
    """Of learners that never talk one may be far ahead of learner 0 when a checkpoint is taken."""
    settings: dict[str, Any] = {
        **SMALL,
        "num_learners": 2,
        "placement": "inline",
        "run_folder": str(tmp_path),
    }
    train(make_config("CartPole-v1", {**settings, "total_env_steps": 1280}), quiet=True)
    store = CheckpointStore(tmp_path / "checkpoints", 0)
    last = store.load("last")
    state = json.loads(json.dumps(last.state))
    state["held"]["1/learner.update"] += 50
    store.save(last.updates, last.tensors, state)
    with (tmp_path / "metrics.jsonl").open("a") as log:
        for ahead in (20, 50, 60):
            row = {
                "env_steps": 1280,
                "updates": last.updates + ahead,
                "learner": 1,
                "version": ahead,
            }
            log.write(json.dumps(row) + "\n")
    train(
        make_config("CartPole-v1", {**settings, "total_env_steps": 1920}),
        resume=str(tmp_path),
        quiet=True,
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    added = [
        row["version"]
        for row in rows
        if row.keys() == {"env_steps", "updates", "learner", "version"}
    ]
    assert added == [20, 50], "what came after its own checkpoint is another future"
