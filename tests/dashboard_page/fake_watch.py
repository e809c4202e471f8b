"""A server that answers the page as `gossamer watch` does, from runs that are made up: training ones whose rows grow, seeds, many
learners, a damaged and an empty folder.

    python tests/dashboard_page/fake_watch.py --port 8100 --more 280 --grow 0.5
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

PAGE = Path(__file__).parents[2] / "src" / "gossamer" / "dashboard" / "page"
TOKEN = "token-of-the-fake"
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
ALIVE_SECONDS = 15.0
STEPS = 200
"""Env steps of a row."""
METRICS = {
    "return_mean_100": ("mean return of the last 100 training episodes", "return"),
    "evaluation/mean": ("mean return of an evaluation", "return"),
    "episode/return": ("return of a training episode", "return"),
    "length_mean_100": ("mean length of the last 100 training episodes", "steps"),
    "learner/loss": ("the minimised loss", "1"),
    "learner/policy_loss": ("policy gradient term of the loss", "1"),
    "learner/value_loss": ("half the squared error of the value", "return^2"),
    "learner/entropy_nats": ("mean entropy of the policy", "nats"),
    "learner/mean_kl_nats": ("mean KL(behavior || policy)", "nats"),
    "learner/grad_norm": ("norm of the gradient before clipping", "1"),
    "learner/rejected_fraction": ("valid rows that the trust region excludes", "fraction"),
    "lag_versions_mean": ("mean lag", "versions"),
    "lag_versions_max": ("largest lag", "versions"),
    "steps_per_second": ("env steps a second", "steps/s"),
    "cpu_percent": ("CPU use of all processes; 100 is one core", "percent"),
    "memory_bytes": ("resident memory of all processes", "bytes"),
}
REPLAY = {
    "replay/ratio": ("replayed columns learnt per online column", "1"),
    "replay/age_updates": ("mean age difference", "updates"),
    "replay/elite_columns": ("columns in this replay", "columns"),
    "replay/elite_distance_p10": ("10th percentile of distances", "1"),
    "replay/elite_distance_p50": ("50th percentile of distances", "1"),
    "replay/elite_distance_p90": ("90th percentile of distances", "1"),
    "replay/elite_distance_chosen": ("mean distance of the chosen", "1"),
}


def make_run(run_id: str, **changes: Any) -> dict[str, Any]:
    """Return a run as the server tells it."""
    env_id, method, name = run_id.split("/")[-3:]
    algorithm, topology = method.split("-")
    now = time.time()
    run = {
        "id": run_id,
        "name": name,
        "folder_name": name,
        "tags": [],
        "note": "",
        "archived": False,
        "env_id": env_id,
        "algorithm": algorithm,
        "topology": topology,
        "num_learners": 1,
        "placement": "local",
        "seed": 1,
        "state": "done",
        "exit_reason": "done: total_env_steps reached",
        "progress": 1.0,
        "env_steps": 100_000,
        "total_env_steps": 100_000,
        "stop_after_seconds": 0.0,
        "mean_return": 400.0,
        "mean_return_episodes": 100,
        "best_evaluation": 480.5,
        "last_evaluation": 471.2,
        "candidate_evaluation": None,
        "steps_per_second": 2150.0,
        "seconds": 512.0,
        "where": "this machine",
        "started": now - 7200,
        "changed": now - 3600,
        "settings": {},
        "problem": None,
    }
    run |= changes
    return {**run, "acts": changes.get("acts", acts_of(run["state"]))}


def acts_of(state: str) -> list[str]:
    """Return what can be done to a run that has a checkpoint."""
    if state == "running":
        return ["stop", "checkpoint", "evaluate"]
    return ["resume"] if state in ("stopped", "failed", "killed") else []


def unread(run_id: str, state: str, problem: str) -> dict[str, Any]:
    """Return a run of which nothing can be read, but what its folders' names say."""
    whole = make_run(run_id)
    run = dict.fromkeys(whole)
    kept = (
        "id", "name", "folder_name", "env_id", "algorithm", "topology", "num_learners", "where", "changed",
    )  # fmt: skip
    return {
        **run,
        **{name: whole[name] for name in kept},
        "placement": "",
        "tags": [],
        "note": "",
        "archived": False,
        "state": state,
        "problem": problem,
        "settings": {},
        "acts": [],
    }


def usual_runs() -> list[dict[str, Any]]:
    """Return two settings of three seeds, runs that train, one of many learners, and two folders that hold no whole run."""
    now = time.time()
    runs = [
        make_run(
            f"CartPole-v1/ppo-single/20260101-1200{seed:02}-s{seed}"
            if rate == 0.001
            else f"CartPole-v1/ppo-single/20260102-1200{seed:02}-s{seed}",
            seed=seed,
            mean_return=round(300 + 40 * seed + 20000 * rate, 2),
            started=now - 90_000 - seed * 100 - rate * 1e6,
            settings={
                "optimizer.learning_rate": [rate],
                "seed": seed,
                "env_id": "CartPole-v1",
                "num_learners": 1,
            },
        )
        for rate in (0.001, 0.003)
        for seed in (1, 2, 3)
    ]
    training = {
        "state": "running",
        "exit_reason": None,
        "progress": 0.4,
        "env_steps": 40_000,
    }
    runs += [
        make_run(
            "PongNoFrameskip-v4/laser-single/20260103-090000-s1",
            **training,
            started=now - 700,
            mean_return=-3.25,
            best_evaluation=2.4,
            settings={
                "optimizer.learning_rate": [0.0006],
                "seed": 1,
                "env_id": "PongNoFrameskip-v4",
                "num_learners": 1,
            },
        ),
        make_run(
            "Acrobot-v1/a2c-gossip/20260103-093000-s1",
            **training,
            started=now - 300,
            num_learners=8,
            mean_return=-92.5,
            best_evaluation=-88.0,
            where="node-a",
            settings={
                "optimizer.learning_rate": [0.001],
                "seed": 1,
                "env_id": "Acrobot-v1",
                "num_learners": 8,
            },
        ),
        make_run(
            "Acrobot-v1/ppo-diffusion/20260102-200000-s4",
            state="killed",
            exit_reason=None,
            seed=4,
            started=now - 50_000,
            num_learners=30,
            progress=0.62,
            mean_return=-110.0,
            settings={
                "optimizer.learning_rate": [0.001],
                "seed": 4,
                "env_id": "Acrobot-v1",
                "num_learners": 30,
            },
        ),
        make_run(
            "LunarLander-v3/impact-single/20260102-210000-s1",
            state="failed",
            exit_reason="failed: the loss was not finite 100 times",
            started=now - 40_000,
            mean_return=-180.0,
            best_evaluation=None,
        ),
        unread(
            "CartPole-v1/ppo-single/20251224-180000-s7",
            "damaged",
            "config.json ends in the midst of a line; the run cannot be resumed, its rows can be read",
        ),
        unread(
            "CartPole-v1/ppo-single/20251224-190000-s8",
            "empty",
            "the folder holds no config.json: the run was stopped before it began",
        ),
    ]
    return runs


def many_runs(count: int) -> list[dict[str, Any]]:
    """Return so many runs more, that ended."""
    envs, methods = (
        ("Walker2d-v5", "HalfCheetah-v5", "Hopper-v5"),
        ("ppo-single", "vtrace-single", "a2c-allreduce"),
    )
    return [
        make_run(
            f"{envs[n % 3]}/{methods[n // 3 % 3]}/20250{1 + n % 9}{1 + n % 27:02}-{n:06}-s{n % 5}",
            seed=n % 5,
            started=time.time() - 200_000 - 4000 * n,
            mean_return=round(1000 + 37.5 * n % 800, 2),
            state=("done", "done", "stopped", "done", "killed")[n % 5],
            settings={
                "seed": n % 5,
                "env_id": envs[n % 3],
                "num_learners": 1,
                "optimizer.learning_rate": [0.001],
            },
        )
        for n in range(count)
    ]


@cache
def video() -> bytes:
    """Return two seconds of a moving square."""
    import imageio.v3 as imageio

    frames = np.zeros((20, 96, 128, 3), np.uint8)
    for n in range(20):
        frames[n, 40:56, 4 * n : 4 * n + 16] = 255
    with TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        imageio.imwrite(path, frames, fps=10, macro_block_size=16)
        return path.read_bytes()


def evaluation(number: int) -> dict[str, Any]:
    """Return a row of evaluation.jsonl; the last one compares a policy with the best one again."""
    played = {
        "env_steps": 20_000 * number,
        "updates": 400 * number,
        "version": 100 * number,
        "learner": 0,
        "mean": 90.0 * number,
        "standard_error": 4.2,
        "returns": [90.0 * number] * 20,
        "lengths": [90] * 20,
        "truncated": 0,
    }
    row = {**played, "time_s": 60.0 * number, "confirmation": number == 5, "scored_by": "0a1b2c3d"}
    return {**row, "wins": True, "against": {**played, "mean": 70.0}} if number == 5 else row


class FakeWatch:
    """The made-up runs and who listens to them."""

    def __init__(self, runs: Sequence[dict[str, Any]]) -> None:
        self.runs = {run["id"]: run for run in runs}
        self.rows = {run["id"]: (run["env_steps"] or 0) // STEPS for run in runs}
        self.version = 1
        self.acted: list[tuple[str, str, str | None, str | None]] = []
        self.asked: list[str] = []
        self.listeners: set[queue.SimpleQueue[str | None]] = set()
        self.down = threading.Event()
        self.was_down = False
        self.exact = True  # all rows stand behind what is drawn
        self.machine = "this machine"
        self.last_words: list[str] = []  # of every log
        self.spikes: dict[
            str, list[int]
        ] = {}  # rows in which a metric is a thousand times as large
        self.negative: dict[str, list[int]] = {}
        self.first_row_seconds = 0.0

    def tell(self, event: str, data: Any) -> None:
        for listener in tuple(self.listeners):
            listener.put(f"event: {event}\ndata: {json.dumps(data)}\n\n")

    def grow(self, run_id: str, rows: int = 1, **changes: Any) -> None:
        """Let a run have more rows, and say so."""
        self.rows[run_id] += rows
        steps = self.rows[run_id] * STEPS
        run = self.runs[run_id]
        run |= {
            "env_steps": steps,
            "progress": min(0.99, steps / run["total_env_steps"]),
            "seconds": steps / 2000,
            "changed": time.time(),
            **changes,
        }
        self.version += 1
        sizes = {"metrics": 400 * self.rows[run_id], "evaluations": 0, "episodes": 0}
        self.tell("runs", {"version": self.version, "runs": [run], "gone": []})
        self.tell("rows", {"run": run_id, "rows": sizes})

    def add(self, run: dict[str, Any]) -> None:
        """Let a run begin."""
        self.runs[run["id"]] = run
        self.rows[run["id"]] = (run["env_steps"] or 0) // STEPS
        self.version += 1
        self.tell("runs", {"version": self.version, "runs": [run], "gone": []})

    def disconnect(self) -> None:
        """End every stream of events, and refuse new ones until `down` is cleared."""
        self.down.set()
        self.was_down = True
        for listener in tuple(self.listeners):
            listener.put(None)

    # What follows answers requests; `asked` is the query, parsed.

    def all_runs(self, asked: dict[str, str]) -> Any:
        return {"root": "runs", "version": self.version, "runs": list(self.runs.values())}

    def metrics(self, asked: dict[str, str]) -> Any:
        run = self.runs[asked["run"]]
        if run["state"] in ("damaged", "empty"):
            return {"metrics": []}
        known = {**METRICS, **(REPLAY if run["algorithm"] == "laser" else {})}
        if run["num_learners"] > 1:
            known["topology/disagreement"] = ("mean distance from the average", "1")
        learners = list(range(run["num_learners"]))
        return {
            "metrics": [
                {
                    "name": name,
                    "meaning": meaning,
                    "unit": unit,
                    "learners": []
                    if name in ("evaluation/mean", "episode/return")
                    else learners
                    if name.startswith("learner/")
                    else [0],
                }
                for name, (meaning, unit) in known.items()
            ]
        }

    def curve(self, run_id: str, metric: str, x: str) -> tuple[np.ndarray, np.ndarray]:
        """Return x and y of every row."""
        run, rows = self.runs[run_id], self.rows[run_id]
        if metric not in {**METRICS, **REPLAY, "topology/disagreement": 0}:
            raise KeyError(metric)
        at = np.arange(1, rows + 1)
        rng = np.random.default_rng(abs(hash((run["seed"], metric))) % 2**32)
        share = at / 500
        rate = (run["settings"].get("optimizer.learning_rate") or [0.001])[0]
        shape = 1 - np.exp(-share * (1.5 + 900 * rate))
        noise = (
            np.cumsum(rng.normal(size=rows)) * 0.02 / np.sqrt(np.maximum(share, 0.05)) * 0.3
            + rng.normal(size=rows) * 0.05
        )
        y = {
            "return_mean_100": (shape + noise * 0.4) * 480,
            "episode/return": (shape + rng.normal(size=rows) * 0.2) * 480,
            "evaluation/mean": shape * 500,
            "length_mean_100": (shape + noise * 0.4) * 480,
            "memory_bytes": 6e8 + 1e8 * shape,
            "cpu_percent": 180 + 10 * noise,
            "steps_per_second": 2100 + 200 * noise,
            "learner/entropy_nats": 0.69 * (1 - 0.7 * shape) + 0.02 * noise,
            "lag_versions_max": np.ceil(1 + np.abs(noise)),
        }.get(metric, np.abs(np.exp(-2 * share) + 0.2 * noise) + 0.01)
        if metric.startswith("replay/elite_distance"):
            y = (0.2 + 0.1 * noise + shape * 0.3) * {
                "p10": 0.5,
                "p50": 1.0,
                "p90": 1.9,
                "chosen": 0.7,
            }[metric.rpartition("_")[2]]
        for row in self.spikes.get(metric, []):
            y[row] *= 1000
        for row in self.negative.get(metric, []):
            y[row] = -1.0
        if metric == "evaluation/mean":
            at, y = at[19::20], y[19::20]
        seconds = at * STEPS / 2000
        return {
            "env_steps": at * STEPS,
            "updates": at * 4,
            "seconds": seconds,
            "time": run["started"] + seconds,
        }[x], y

    def series(self, asked: dict[str, str]) -> Any:
        x, y = self.curve(asked["run"], asked["metric"], asked["x"])
        keep = (x >= float(asked.get("from", "-inf"))) & (x <= float(asked.get("to", "inf")))
        x, y, rows = x[keep], y[keep], len(x)
        points = int(asked["points"])
        below = int((y <= 0).sum()) if self.exact else None
        counted = {"rows": rows, "not_positive_rows": below, "exact": self.exact}
        if len(x) <= points:
            whole = {"x": x.tolist(), "y": y.tolist(), "low": None, "high": None}
            return {**whole, **counted}
        parts = np.array_split(np.arange(len(x)), points)
        take = {
            name: [float(fold(y[part])) for part in parts]
            for name, fold in (("y", np.mean), ("low", np.min), ("high", np.max))
        }
        return {
            "x": [float(x[part[-1]]) for part in parts],
            **take,
            **counted,
        }

    def groups_of(self, asked: dict[str, str]) -> dict[str, tuple[dict[str, Any], list[str]]]:
        by = [
            name for name in asked.get("by", "").split(",") if name
        ]  # settings' names hold no comma
        groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
        for run_id in map(unquote, asked["runs"].split(",")):
            run = self.runs[run_id]
            settings = {name: run["settings"].get(name) for name in by} or {
                "env_id": run["env_id"],
                "algorithm.name": run["algorithm"],
                "optimizer.learning_rate": (
                    run["settings"].get("optimizer.learning_rate") or [None]
                )[0],
            }
            label = ", ".join(f"{name} {value}" for name, value in settings.items())
            groups.setdefault(label, (settings, []))[1].append(run_id)
        return groups

    def groups(self, asked: dict[str, str]) -> Any:
        found = self.groups_of(asked).items()
        told = [{"label": x, "settings": settings, "runs": runs} for x, (settings, runs) in found]
        return {"groups": told, "said": []}

    def meanings(self, asked: dict[str, str]) -> Any:
        return {
            "meanings": {
                "seed": "Seed of everything random in the run, >= 0.",
                "optimizer.learning_rate": "Learning rate: one for all learners, or one each.",
            }
        }

    def curves(self, asked: dict[str, str]) -> Any:
        told = []
        for label, (settings, ids) in self.groups_of(asked).items():
            found = [self.curve(run_id, asked["metric"], asked["x"]) for run_id in ids]
            grid = np.linspace(
                max(x[0] for x, _ in found),
                min(x[-1] for x, _ in found),
                min(int(asked["points"]), len(found[0][0])),
            )
            seeds = np.array([np.interp(grid, x, y) for x, y in found])
            y = (
                np.median(seeds, axis=0)
                if asked.get("statistic") == "median"
                else seeds.mean(axis=0)
            )
            # One run has no interval, and its line stands for it; of two there is none to be had.
            low, high = (
                [None] * len(y) if len(ids) == 2 else (y + side * seeds.std(axis=0)).tolist()
                for side in (-1, 1)
            )
            told.append(
                {
                    "label": label,
                    "settings": settings,
                    "n": len(ids),
                    "runs": ids,
                    "x": grid.tolist(),
                    "y": y.tolist(),
                    "low": low,
                    "high": high,
                    "counts": [len(ids)] * len(y),
                    "exact": self.exact,
                    "not_positive_rows": sum(int((x <= 0).sum()) for _, x in found)
                    if self.exact
                    else None,
                    "interval": {1: "none: one run", 2: "none: two runs"}.get(
                        len(ids), "95 % studentized bootstrap"
                    ),
                }
            )
        return {"groups": told, "said": []}

    def run(self, asked: dict[str, str]) -> Any:
        run = self.runs[asked["run"]]
        bad = run["state"] in ("damaged", "empty")
        now = time.time()
        settings = [
            {"name": "env_id", "value": run["env_id"], "layer": "command line"},
            {"name": "seed", "value": run["seed"], "layer": "command line"},
            {"name": "algorithm.name", "value": run["algorithm"], "layer": "preset"},
            {"name": "algorithm.discount", "value": 0.99, "layer": "default"},
            {"name": "optimizer.learning_rate", "value": [0.001], "layer": "suite classic"},
            {"name": "deterministic", "value": False, "layer": "default"},
            {"name": "policy.hidden_sizes", "value": [64, 64], "layer": "default"},
        ]
        shares = [
            ("actor", "env step", 0.33),
            ("actor", "inference", 0.22),
            ("actor", "wait for the learner", 0.45),
            ("learner", "learn", 0.94),
            ("learner", "wait for trajectories", 0.05),
            ("evaluator", "evaluate", 0.12),
        ]
        return {
            "run": run,
            "settings": [] if bad else settings,
            "checkpoints": []
            if bad
            else [
                {
                    "name": "best" if n == 4 else str(400 * n),
                    "updates": 400 * n,
                    "env_steps": 20_000 * n,
                    "time": now - 900 * (6 - n),
                    "kinds": ["last"] if n == 5 else ["best"] if n == 4 else [],
                    "bytes": 1_250_000,
                    "score": 360.0 if n == 4 else None,
                }
                for n in range(1, 6)
            ],
            "videos": [
                {"name": "best-80000.mp4", "env_steps": 80_000, "return": 481.0, "time": now - 400}
            ]
            if run["algorithm"] == "ppo" and not bad
            else [],
            "processes": []
            if bad
            else [
                {
                    "role": "learner",
                    "rank": 0,
                    "pid": 4242,
                    "machine": self.machine,
                    "restarts": 0,
                    "alive": run["state"] == "running",
                },
                {
                    "role": "actor",
                    "rank": 0,
                    "pid": 4250,
                    "machine": self.machine,
                    "restarts": 1,
                    "alive": run["state"] == "running",
                },
            ],
            "log": [
                *(
                    f"12:00:{n % 60:02} steps {n * 1000:,}/100,000 return {n * 4.5:.2f} <b>not markup</b>"
                    for n in range(60)
                ),
                *self.last_words,
            ],
            "evaluations": [evaluation(n) for n in range(1, 6)],
            "limits": {
                "shares": []
                if bad
                else [
                    {"role": role, "doing": doing, "share": share} for role, doing, share in shares
                ],
                "sentence": ""
                if bad
                else "Learner-bound: the learner is busy 94 % of the time, actors wait 45 %; try fewer passes or --precision bf16",
            },
            "machine": {
                "host": "node-a",
                "platform": "Linux",
                "processor": "a processor",
                "cores": 2,
                "hardware_threads": 4,
                "machine_cores": 2,
                "memory_bytes": 8e9,
                "versions": {"python": "3.11.2", "torch": "2.9.1"},
                "git": {"commit": "0" * 40, "changed": False},
                "command": ["gossamer", "train", run["env_id"]],
                "sessions": 1,
            },
            "environment": {
                "protocol": f"{run['env_id']}: Gymnasium, truncated after 500 steps",
                "observes": ["vector 4"],
                "acts": ["one of 2"],
            },
        }

    def difference(self, asked: dict[str, str]) -> Any:
        rates = [
            self.runs[asked[side]]["settings"].get("optimizer.learning_rate") for side in ("a", "b")
        ]
        if rates[0] == rates[1]:
            return {"settings": []}
        return {
            "settings": [
                {
                    "name": "optimizer.learning_rate",
                    "a": rates[0],
                    "b": rates[1],
                    "layer_a": "suite classic",
                    "layer_b": "command line",
                }
            ]
        }

    def graph(self, asked: dict[str, str]) -> Any:
        run = self.runs[asked["run"]]
        last = self.rows[asked["run"]] * STEPS / 2000
        at = float(asked.get("at", last))
        count, directed = run["num_learners"] or 1, run["topology"] == "gossip"
        rng = np.random.default_rng(int(at))
        nodes = [
            {
                "rank": rank,
                "return": round(-400 + 300 * at / max(last, 1) + 15 * float(rng.normal()), 2),
                "disagreement": abs(float(rng.normal())) * 0.01,
                "restarts": int(rank == 3),
                "host": f"node-{'ab'[rank * 2 // count]}",
                "begun": rank != 7 or at >= 2,
                "alive": rank != 5 and (rank != 7 or at >= 2),
                "updates": int(at * 10),
                "env_steps": int(at * 250),
                "told_seconds_before": 8.0 if rank == 6 else 0.0,
            }
            for rank in range(count)
        ]
        if count == 30:  # a chain with shortcuts
            pairs = [(n, n + 1) for n in range(29)] + [(0, 9), (4, 22), (12, 27), (16, 25)]
        else:
            pairs = [(n, (n + 1) % count) for n in range(count)] if count > 1 else []
        edges = [
            {
                "from": a,
                "to": b,
                "weight": 0.5 if n % 3 else 0.2,
                "staleness_updates": int(rng.integers(0, 6)),
                "seconds_since": float(rng.random()),
            }
            for n, (a, b) in enumerate(pairs)
        ]
        events = (
            [
                {"seconds": 3.0, "text": "Learner 3 died (signal 9) and was restarted", "rank": 3},
                {"seconds": 9.0, "text": "process of learner 5 has died", "rank": 5},
            ]
            if count > 5
            else []
        )
        return {
            "times": [min(self.first_row_seconds, last), last, 1.0],
            "at": at,
            "directed": directed,
            "nodes": nodes,
            "returns": [-450.0, -50.0],
            "most_staleness_updates": 9,
            "most_disagreement": 0.05,
            "edges": edges,
            "events": events,
        }

    def views(self, asked: dict[str, str]) -> Any:
        return {"views": [{"name": "seeds of Pong", "address": "#/runs?q=Pong"}]}

    def replay(self, asked: dict[str, str]) -> Any:
        if self.runs[asked["run"]]["algorithm"] != "laser":
            return {"replays": []}
        return {"replays": [{"name": "elite", "metrics": list(REPLAY)}]}


ANSWERS = {
    "runs": "all_runs",
    "metrics": "metrics",
    "series": "series",
    "curves": "curves",
    "groups": "groups",
    "meanings": "meanings",
    "run": "run",
    "difference": "difference",
    "graph": "graph",
    "replay": "replay",
    "views": "views",
}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, body: bytes, kind: str, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": POLICY,
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, answer: Any, status: int = 200) -> None:
        self.send(json.dumps(answer).encode(), "application/json", status)

    def do_GET(self) -> None:
        path, watch = urlsplit(self.path).path, self.server.watch
        watch.asked.append(self.path)
        if path == "/":
            self.send(
                (PAGE / "index.html").read_bytes().replace(b"GOSSAMER_TOKEN", TOKEN.encode()),
                "text/html; charset=utf-8",
            )
        elif path.startswith("/static/") and (file := PAGE / Path(path).name).is_file():
            kept = "max-age=31536000"  # nobody changes it while tests run
            self.send(file.read_bytes(), KINDS[file.suffix], Cache_Control=kept)
        elif path == "/plotly.js":
            spec = find_spec("plotly")
            assert spec
            assert spec.origin
            self.send(
                (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes(),
                "text/javascript",
                Cache_Control="max-age=31536000",
            )
        elif path == "/events":
            self.events()
        elif path == "/api/export.csv":
            of_groups = "statistic=" in self.path
            table = (
                b"metric,group,runs,env_steps,value,low,high,runs_here\nx,y,3,1,2,2,2,3\n"
                if of_groups
                else b"metric,run,env_steps,value,low,high\nx,y,1,2,2,2\n"
            )
            self.send(table, "text/csv")
        elif path == "/video":
            self.send(video(), "video/mp4")
        elif path == "/checkpoint":
            saved = 'attachment; filename="run.tar"'
            self.send(b"an archive", "application/x-tar", Content_Disposition=saved)
        else:
            self.answer(path.removeprefix("/api/"))

    def answer(self, name: str) -> None:
        query = dict(part.split("=", 1) for part in urlsplit(self.path).query.split("&") if part)
        # Lists are split before their items are decoded.
        query = {key: value if key == "runs" else unquote(value) for key, value in query.items()}
        if name not in ANSWERS:
            self.json({"error": f"there is no {name}"}, 404)
            return
        try:
            self.json(getattr(self.server.watch, ANSWERS[name])(query))
        except KeyError as error:
            self.json({"error": f"this run has no {error.args[0]}"}, 404)

    def events(self) -> None:
        watch = self.server.watch
        if watch.down.is_set():
            self.send(b"down", "text/plain", 503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        listener: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        watch.listeners.add(listener)
        try:
            self.wfile.write(f"event: version\ndata: {watch.version}\n\n".encode())
            while (said := self.heard(listener)) is not None:
                self.wfile.write(said.encode())
        except OSError:
            pass
        finally:
            watch.listeners.discard(listener)

    def heard(self, listener: queue.SimpleQueue[str | None]) -> str | None:
        try:
            return listener.get(timeout=ALIVE_SECONDS)
        except queue.Empty:
            return "event: alive\ndata: 1\n\n"

    def do_POST(self) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        token, origin = self.headers["X-Gossamer-Token"], self.headers["Origin"]
        self.server.watch.acted.append((query["run"], query["act"], token, origin))
        if token != TOKEN:
            self.json({"error": "The server restarted. Reload to act"}, 403)
        else:
            self.json({"said": f"asked to {query['act']}: {query['run']}"})


class FakeServer(ThreadingHTTPServer):
    """Serves on a free port, in threads that end with the process."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, watch: FakeWatch, port: int = 0) -> None:
        self.watch = watch
        super().__init__(("127.0.0.1", port), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(
            sys.exception(), OSError
        ):  # a browser that closes a connection is no error
            super().handle_error(request, client_address)

    def show(self, watch: FakeWatch) -> None:
        """Answer from other runs from now on; whoever listens goes on listening."""
        watch.listeners = self.watch.listeners
        watch.version = self.watch.version + 1
        self.watch = watch

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.watch.disconnect()
        self.shutdown()
        self.server_close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--more", type=int, default=0)
    parser.add_argument(
        "--grow",
        type=float,
        default=0.0,
        help="seconds between new rows of runs that train; 0: never",
    )
    asked = parser.parse_args()
    server = FakeServer(FakeWatch([*usual_runs(), *many_runs(asked.more)]), asked.port)
    server.start()
    print(server.address, flush=True)
    while True:
        time.sleep(asked.grow or 1.0)
        if asked.grow:
            for run_id in [
                run["id"] for run in server.watch.runs.values() if run["state"] == "running"
            ]:
                server.watch.grow(run_id)


if __name__ == "__main__":
    main()
