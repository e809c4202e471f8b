"""Make run folders as runs leave them, with rows that look like learning: for measuring and testing what reads them.

    python benchmarks/make_runs.py FOLDER --runs 300 --rows 20000     # nine gigabytes
    python benchmarks/make_runs.py FOLDER --runs 1 --learners 8
    python benchmarks/make_runs.py FOLDER --runs 4 --grow 2           # two of them get a row a second until Ctrl-C

Runs are five seeds of each learning rate and algorithm. Few files of rows are made and the others are copies: what
differs between seeds of 20,000 rows nobody sees.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.config import make_config, to_dict
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import EpisodeLog, JsonLog, MetricLog
from gossamer.record.software import describe_machine, git_state, package_versions
from gossamer.run.mixing_facts import mixing_rows

ALGORITHMS = ("ppo", "vtrace", "a2c")
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
SEEDS = 5
DISTINCT = 10
STEPS_PER_ROW = 2000
BEST_RETURN = 500.0
ROW_SECONDS, OTHERS_ROW_SECONDS = 1.0, 10.0
EVALUATION_ROWS = 60


def row_of(number: int, learner: int, rng: np.random.Generator, learners: int) -> dict[str, Any]:
    """Return the row of metrics that a learner writes at some second of a run."""
    noise = rng.standard_normal(16).tolist()
    done = 1.0 - np.exp(-number / 3000)
    row: dict[str, Any] = {
        "time_s": round(ROW_SECONDS * (number + 1) + 0.01 * abs(noise[0]), 3),
        "env_steps": STEPS_PER_ROW * (number + 1) * learners,
        "updates": 40 * (number + 1),
        "version": number + 1,
        "learner": learner,
        "lag_versions_max": 1.0,
        "lag_versions_mean": 0.9 + 0.01 * noise[1],
        "learner/policy_loss": 0.01 * noise[2],
        "learner/value_loss": 5.0 * np.exp(-number / 2000) * (1 + 0.2 * abs(noise[3])),
        "learner/entropy_nats": 0.69 - 0.5 * done + 0.01 * noise[4],
        "learner/loss": 2.5 * np.exp(-number / 2000) * (1 + 0.2 * abs(noise[3])),
        "learner/advantage_mean": 1e-9 * noise[5],
        "learner/value_mean": 50.0 * done,
        "learner/target_mean": 50.0 * done + 0.1 * noise[6],
        "learner/mean_log_rho": 0.001 * noise[7],
        "learner/mean_kl_nats": 0.002 * abs(noise[8]),
        "learner/valid_fraction": 0.998,
        "learner/clip_fraction": 0.02 * abs(noise[9]),
        "learner/grad_norm": 0.2 + 0.05 * abs(noise[10]),
        "learner/explained_variance": done + 0.01 * noise[11],
        "learner/advantage_std": 1.0,
        "learner/learning_rate": 1e-3,
        "learner/nonfinite_updates": 0.0,
        "share/env": 0.31 + 0.01 * noise[12],
        "share/inference": 0.22 + 0.01 * noise[13],
        "share/learn": 0.95 + 0.005 * noise[14],
        "share/wait_learner": 0.03,
        "share/wait_actor": 0.14,
        "queue_wait_seconds_fraction": 0.01,
        "share/checkpoint": 0.0,
    }
    mean = BEST_RETURN * done * (1 - 0.05 * abs(noise[15]))
    if learners > 1:
        row |= {
            "topology/messages_per_update": 1.0,
            "topology/bytes_per_update": 36716.0,
            "topology/staleness_updates": 2.0 + abs(noise[5]),
            f"topology/staleness_updates_of_{(learner - 1) % learners}": 2.0 + abs(noise[5]),
            "share/mix": 0.03,
            "share/wait_peers": 0.0,
            "learner/return_mean_100": mean,
        }
    if learner == 0:
        row |= {
            "share/evaluation": 0.02,
            "steps_per_second": STEPS_PER_ROW * learners / ROW_SECONDS,
            "episodes": 10 * (number + 1),
            "cpu_percent": 190.0 + noise[0],
            "memory_bytes": 400_000_000,
            "evaluation_mean": mean,
            "evaluation_standard_error": 12.0,
            "evaluation_episodes": 5,
            "evaluation_best": BEST_RETURN * done,
            "evaluation_best_episodes": 20,
            "return_mean_100": mean,
            "return_min_100": 0.6 * mean,
            "return_max_100": min(1.2 * mean, BEST_RETURN),
            "length_mean_100": mean,
        }
        if learners > 1:
            row["topology/disagreement"] = 0.01 * (1 + abs(noise[1]))
    return row


def rows_of(number: int, rng: np.random.Generator, learners: int) -> list[dict[str, Any]]:
    """Return the rows that are written at some second: the first learner's, and now and then the others'."""
    others = range(1, learners) if number % int(OTHERS_ROW_SECONDS) == 0 else ()
    return [row_of(number, rank, rng, learners) for rank in (*reversed(others), 0)]


def make_run(
    root: Path, index: int, rows: int, learners: int, session: dict[str, Any], copies: list[Path]
) -> RunFolder:
    """Make the run of a number; the first few write their rows, the others copy them."""
    seed, kind = 1 + index % SEEDS, index // SEEDS
    algorithm, rate = (
        ALGORITHMS[kind % len(ALGORITHMS)],
        RATES[kind // len(ALGORITHMS) % len(RATES)],
    )
    given: dict[str, Any] = {
        "algorithm": {"name": algorithm},
        "optimizer": {"learning_rate": [rate * (1 + kind // (len(ALGORITHMS) * len(RATES)))]},
        "seed": seed,
        "total_env_steps": STEPS_PER_ROW * max(rows, 1) * learners,
        "num_learners": learners,
    }
    if learners > 1:
        given["topology"] = {"name": "gossip"}
    config = make_config("CartPole-v1", given)
    name = f"CartPole-v1/{algorithm}-{config.topology.name}/{20260101 + index}-000000-s{seed}"
    folder = RunFolder.create(
        str(root / name), env_id="CartPole-v1", algorithm=algorithm, topology="single", seed=seed
    )
    meta = {
        "started_unix": session["time_unix"],
        "protocol": "CartPole-v1: Gymnasium, truncated after 500 steps",
        "observes": [{"name": "", "kind": "vector", "shape": [4]}],
        "acts": [{"name": "", "kind": "categorical", "sizes": [2], "masked": False}],
        "env_comes_back": True,
        "sessions": [session],
    }
    folder.write_json("meta.json", meta)
    folder.write_json(
        "layers.json", dict.fromkeys(("env_id", "seed", "algorithm.name"), "command line")
    )
    folder.write_json("config.json", to_dict(config), exact=True)
    if mixing := mixing_rows(config):
        folder.write_json("mixing.json", mixing)
    processes: list[dict[str, Any]] = [
        {"role": "supervisor", "rank": None, "pid": 1, "restarts": 0}
    ]
    processes += [{"role": "learner", "rank": i, "pid": 1, "restarts": 0} for i in range(learners)]
    folder.write_json("processes.json", processes)
    folder.log("CartPole-v1: Gymnasium, truncated after 500 steps")
    if len(copies) < DISTINCT:
        write_rows(folder, rows, learners, np.random.default_rng(index))
        copies.append(folder.path)
    else:
        for path in copies[index % DISTINCT].glob("*.jsonl"):
            shutil.copyfile(path, folder.path / path.name)
    summary = {
        "env_steps": STEPS_PER_ROW * rows * learners,
        "updates": 40 * rows,
        "restarts": 0,
        "seconds": ROW_SECONDS * rows,
        "steps_per_second": STEPS_PER_ROW * learners / ROW_SECONDS,
        "mean_return_last_100": BEST_RETURN * 0.9,
        "best_evaluation": BEST_RETURN,
        "exit_reason": "done: total_env_steps reached" if index % 7 else "stopped by SIGINT",
    }
    if rows:
        folder.write_json("summary.json", summary)
    return folder


def write_rows(folder: RunFolder, rows: int, learners: int, rng: np.random.Generator) -> None:
    """Write the rows of a run: metrics, evaluations and episodes."""
    with (folder.path / "metrics.jsonl").open("w") as file:
        for number in range(rows):
            for row in rows_of(number, rng, learners):
                file.write(json.dumps(row) + "\n")
    evaluations = JsonLog(folder.path / "evaluation.jsonl")
    for number in range(0, rows, EVALUATION_ROWS):
        returns = (BEST_RETURN * rng.uniform(0.5, 1, 5)).tolist()
        evaluations.write(
            {
                "time_s": number * ROW_SECONDS,
                "env_steps": STEPS_PER_ROW * number * learners,
                "updates": 40 * number,
                "version": number,
                "learner": 0 if learners == 1 else "average",
                "mean": sum(returns) / len(returns),
                "standard_error": 5.0,
                "returns": returns,
                "lengths": [500] * 5,
                "truncated": 0,
                "confirmation": False,
            }
        )
    evaluations.close()
    log = EpisodeLog(folder.path, 0.0, "CartPole-v1")
    for number in range(min(rows, 1000)):
        log.write(
            env=0,
            episode_return=float(rng.uniform(0, BEST_RETURN)),
            length=100,
            env_steps=STEPS_PER_ROW * number,
            time_s=number * ROW_SECONDS,
        )
    log.close()


def grow(folders: list[RunFolder], rows: int, learners: int) -> None:
    """Append a row a second to runs, which are running as long as they are locked."""
    rng = np.random.default_rng(0)
    logs = [MetricLog(folder.path / "metrics.jsonl") for folder in folders]
    for folder in folders:
        folder.lock()
        (folder.path / "summary.json").unlink(missing_ok=True)
    number = rows
    while True:
        for log in logs:
            for row in rows_of(number, rng, learners):
                log.write(row)
        number += 1
        time.sleep(ROW_SECONDS)


def make_runs(root: Path, runs: int, rows: int, learners: int = 1) -> list[RunFolder]:
    """Make runs below a folder; they are unlocked."""
    session = {
        "time_unix": time.time() - ROW_SECONDS * rows,
        "seconds_before": 0.0,
        "argv": ["gossamer", "train", "CartPole-v1"],
        "process": 1,
        "versions": package_versions(),
        "git": git_state(),
        "machine": describe_machine(),
    }
    copies: list[Path] = []
    made: list[RunFolder] = []
    for index in range(runs):
        made.append(make_run(root, index, rows, learners, session, copies))
        made[-1].unlock()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--grow", type=int, default=0)
    asked = parser.parse_args()
    began = time.monotonic()
    made = make_runs(asked.folder, asked.runs, asked.rows, asked.learners)
    print(f"{len(made)} runs of {asked.rows:,} rows in {time.monotonic() - began:.0f} s")
    if asked.grow:
        grow(made[: asked.grow], asked.rows, asked.learners)


if __name__ == "__main__":
    main()
