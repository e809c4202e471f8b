"""Learners, topologies and outer steps: env steps and seconds until a score is reached.

    python benchmarks/learners.py runs/learners --results runs/learners.jsonl
    python benchmarks/learners.py runs/learners --results runs/learners.jsonl --tasks CartPole --learners 1 4 --seeds 1 2

One learner, and several that gossip or diffuse in a ring or average their gradients, all in lock-step; together they have as
many environments, and as large a batch, as the one. Each without an outer step, and with those of OUTER. A run ends when the
last 100 training games have reached the score on average, or after `--budget-seconds`. Each result is a line of the file.
What stands there is not trained again, unless it missed the score within a smaller budget; an interrupted run goes on.
Settings after `--` go to every run. Steps to a score do not depend on what else the machine does, seconds do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections import deque
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from figures import train

GAMES = 100
"""Training games whose mean return is the score."""


class Task(NamedTuple):
    """What is trained: its settings, the environments of all learners together, and the score."""

    words: tuple[str, ...]
    num_envs: int
    score: float


TASKS = {
    "CartPole": Task(("CartPole-v1",), 8, 475.0),
    "Pong": Task(("--config", "pong", "--lag", "0"), 16, 18.0),
    "Hopper": Task(("Hopper-v5", "--total-env-steps", "1_000_000"), 16, 2000.0),
}
TOPOLOGIES = {
    "gossip": ("topology:gossip", "--topology.max-staleness", "0"),
    "diffusion": ("topology:diffusion", "--topology.adjacency", "ring"),
    "allreduce": ("topology:allreduce",),
}
OUTER = {
    "none": (0.0, 1.0),
    **{f"momentum {x}": (x, 1.0) for x in (0.3, 0.5, 0.7)},
    **{f"momentum {x}, rate {1 - x:.1f}": (x, round(1 - x, 1)) for x in (0.3, 0.5, 0.7)},
    **{f"rate {x}": (0.0, x) for x in (1.5, 2.0)},
}
"""Momentum and rate of outer steps."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What a run tries; of one learner the topology is "single"."""

    task: str
    learners: int
    topology: str
    outer: str

    def __str__(self) -> str:
        return f"{self.task}, {self.learners} {self.topology}, outer step: {self.outer}"


def main() -> None:
    """Train what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path, help="where runs are while they last")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines: read, added to")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument(
        "--learners", type=int, nargs="+", default=[1, 2, 4, 8], choices=(1, 2, 4, 8)
    )
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES), choices=TOPOLOGIES)
    parser.add_argument("--outer", nargs="+", default=list(OUTER), choices=OUTER)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--budget-seconds", type=float, default=900.0, help="of a run")
    parser.add_argument("--only-known", action="store_true", help="train nothing, print the table")
    own = sys.argv[1:]
    settings = own[own.index("--") + 1 :] if "--" in own else []
    asked = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    asked.seeds = list(dict.fromkeys(asked.seeds))
    results = read(asked.results)
    kinds = kinds_of(asked)
    for seed, kind in product(asked.seeds, kinds):
        words = words_of(kind, seed, settings)
        if asked.only_known or is_known(results, kind, seed, words, asked.budget_seconds):
            continue
        result = result_of(asked.folder, kind, seed, words, asked.budget_seconds)
        results.append(result)
        with asked.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        told = f"{result['steps_to_score']:,} env steps" if result["reached"] else "not reached"
        print(f"{kind}, seed {seed}: {told}", file=sys.stderr, flush=True)
    print(table(results, kinds, asked.seeds), end="")


def kinds_of(asked: argparse.Namespace) -> list[Kind]:
    """Return what is to be tried, those without an outer step first."""
    found: list[Kind] = []
    for outer, task, learners in product(
        sorted(asked.outer, key=list(OUTER).index), asked.tasks, sorted(set(asked.learners))
    ):
        topologies = ["single"] if learners == 1 else asked.topologies
        found += [Kind(task, learners, topology, outer) for topology in topologies]
    return found


def words_of(kind: Kind, seed: int, settings: list[str]) -> list[str]:
    """Return the command line of a run, but for how long it takes."""
    task, (momentum, rate) = TASKS[kind.task], OUTER[kind.outer]
    envs = max(task.num_envs // kind.learners, 1)
    words = [*task.words, "--seed", str(seed), "--stop-at-return", f"{task.score:g}"]
    words += ["--num-envs", str(envs), "--evaluation.every-seconds", "0"]
    if kind.learners > 1:
        words += ["--num-learners", str(kind.learners), *TOPOLOGIES[kind.topology]]
    if momentum:
        words += ["--optimizer.outer-momentum", str(momentum)]
    if rate != 1.0:
        words += ["--optimizer.outer-rate", str(rate)]
    return [*words, *settings]


def read(path: Path) -> list[Result]:
    """Return what stands in a file of results."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def is_known(
    results: list[Result], kind: Kind, seed: int, words: list[str], budget_seconds: float
) -> bool:
    """Whether a run need not be made; exits if it was made with other settings."""
    found = result_in(results, kind, seed)
    if found is None:
        return False
    if found["settings"] != words:
        sys.exit(
            f"{kind}, seed {seed} was trained with {' '.join(found['settings'])}, not "
            f"{' '.join(words)}: name another file with --results"
        )
    return bool(found["reached"] or found["ended"] or found["budget_seconds"] >= budget_seconds)


def result_in(results: list[Result], kind: Kind, seed: int) -> Result | None:
    """Return the last result of a kind and seed, of which one that missed the score may have several."""
    sought = {**asdict(kind), "seed": seed}
    found = (x for x in reversed(results) if all(x[name] == y for name, y in sought.items()))
    return next(found, None)


def result_of(
    folder: Path, kind: Kind, seed: int, words: list[str], budget_seconds: float
) -> Result:
    """Train a run, or let it go on, and return what came of it; the run is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(str(x).replace(", ", "-").replace(" ", "-") for x in asdict(kind).values())
    run = folder / f"{name}-s{seed}-{budget_seconds:g}s"
    train(run, [*words, "--stop-after-seconds", f"{budget_seconds:g}"])
    summary = json.loads((run / "summary.json").read_text())
    steps, seconds, last = until(run / "episodes.jsonl", TASKS[kind.task].score)
    if steps is None and summary["exit"]["cause"] == "stop_at_return":
        # A run's last games are as many of each learner.
        steps, seconds = summary["env_steps"], summary["seconds"]
    shutil.rmtree(run)
    return {
        **asdict(kind),
        "seed": seed,
        "reached": steps is not None,
        "ended": summary["exit"]["cause"] != "stop_after_seconds",
        "steps_to_score": steps,
        "seconds_to_score": seconds,
        "last": last,
        "env_steps": summary["env_steps"],
        "seconds": summary["seconds"],
        "steps_per_second": summary["steps_per_second"],
        "budget_seconds": budget_seconds,
        "settings": words,
    }


def until(episodes: Path, score: float) -> tuple[int | None, float | None, float | None]:
    """Return env steps and seconds at which the last games had a score on average, and the mean of a run's last.

    None for steps and seconds that were not reached; None for a mean of no games.
    """
    rows = [json.loads(line) for line in episodes.read_text().splitlines()]
    rows.sort(key=lambda row: (row["env_steps"], row["learner"], row["env"]))
    window: deque[float] = deque(maxlen=GAMES)
    steps = seconds = None
    for row in rows:
        window.append(row["return"])
        if steps is None and len(window) == GAMES and statistics.fmean(window) >= score:
            steps, seconds = row["env_steps"], row["time_s"]
    return steps, seconds, statistics.fmean(window) if window else None


def table(results: list[Result], kinds: list[Kind], seeds: list[int]) -> str:
    """Return a Markdown table for each task: a row for each kind that has results.

    Figures are each seed's, "-" where the score was not reached. Ratios are geometric means, over the seeds with which both
    reached the score, of steps to those of the same learners without an outer step.
    """
    lines: list[str] = []
    for task in dict.fromkeys(kind.task for kind in kinds):
        lines += [
            f"**{task}**, {TASKS[task].score:g}",
            "",
            "| learners | outer step | reached | env steps | of those without (seeds) | seconds | last games |",
            "|---|---|---|---|---|---|---|",
        ]
        for kind in sorted((x for x in kinds if x.task == task), key=_in_order):
            found = {seed: x for seed in seeds if (x := result_in(results, kind, seed))}
            if not found:
                continue
            plain = {seed: result_in(results, replace(kind, outer="none"), seed) for seed in found}
            reached = [x["reached"] for x in found.values()]
            ratios = [
                x["steps_to_score"] / y["steps_to_score"]
                for seed, x in found.items()
                if (y := plain[seed]) and x["reached"] and y["reached"]
            ]
            cells = [
                f"{kind.learners} {kind.topology}",
                kind.outer,
                f"{sum(reached)} of {len(found)}",
                _each([x["steps_to_score"] for x in found.values()]),
                f"{statistics.geometric_mean(ratios):.2f} ({len(ratios)})" if ratios else "-",
                _each([x["seconds_to_score"] for x in found.values()]),
                _each([x["last"] for x in found.values()]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _in_order(kind: Kind) -> tuple[int, str, int]:
    return kind.learners, kind.topology, list(OUTER).index(kind.outer)


def _each(numbers: list[float | None]) -> str:
    return " / ".join("-" if x is None else f"{x:,.0f}" for x in numbers)


if __name__ == "__main__":
    main()
