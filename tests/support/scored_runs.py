"""Run folders as a run leaves them, with scores that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.config import parse_train, resolve, to_dict
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import MetricLog


def make_run(
    root: Path,
    name: str,
    words: Sequence[str] = (),
    *,
    env_id: str = "CartPole-v1",
    seed: int = 1,
    returns: Sequence[float] = (10.0, 20.0, 30.0),
    evaluation: float | None = None,
    evaluated_at: float = 1.0,
    protocol: str = "",
    done: bool = True,
) -> Path:
    """Write a run; its returns are those of its rows, 1,000 env steps and a second apart."""
    asked = parse_train([env_id, "--seed", str(seed), *words])
    config, layers = resolve(asked.settings, configs=asked.config)
    folder = RunFolder.create(
        str(root / name), env_id=env_id, algorithm="ppo", topology="single", seed=seed
    )
    folder.write_start(to_dict(config), layers, [], {"protocol": protocol} if protocol else {})
    log = MetricLog(folder.path / "metrics.jsonl")
    for i, value in enumerate(returns):
        log.write(
            {
                "time_s": float(i + 1),
                "env_steps": 1_000 * (i + 1),
                "learner": 0,
                "episodes": 100 * (i + 1),
                "return_mean_100": value,
            }
        )
    log.close()
    rows: list[dict[str, Any]] = []
    if evaluation is not None:
        at = round(1_000 * len(returns) * evaluated_at)
        rows = [evaluation_row(evaluation, at)]
    (folder.path / "evaluation.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    if done:
        folder.write_json("summary.json", {"exit_reason": "done: total_env_steps reached"})
    folder.unlock()
    return folder.path


def evaluation_row(mean: float, env_steps: int, **others: Any) -> dict[str, Any]:
    """Return a row of evaluation.jsonl over two episodes."""
    row = {
        "time_s": 1.0,
        "env_steps": env_steps,
        "learner": 0,
        "mean": mean,
        "returns": [mean, mean],
        "confirmation": False,
    }
    return row | others
