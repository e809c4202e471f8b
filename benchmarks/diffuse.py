"""Diff-DAC on acrobots: learners that diffuse against learners on their own and one that sees every task.

    python benchmarks/diffuse.py runs/diffuse --learners 25 4 --seeds 5 --plot docs/assets/diffuse.svg

Trains what is missing in the folder, each run with as many environments in all, one task each. Scores what came of
it on every training task and on held-out ones: the average policy of those that diffuse, each policy of those
that never talk, the one of a single learner. Settings after `--` go to every run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import gossamer

VARIANTS = {
    "diffusion": ("topology:diffusion", "--num-learners", "{n}", "--num-envs", "1"),
    "independent": ("topology:single", "--num-learners", "{n}", "--num-envs", "1"),
    "one learner": ("topology:single", "--num-learners", "1", "--num-envs", "{n}"),
}
T_975 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t for a 95 % interval, by the number of runs."""


def main() -> None:
    """Train, score, print a table, and draw the curves."""
    parser = argparse.ArgumentParser(description="Diff-DAC on acrobots.")
    parser.add_argument("folder", type=Path, help="where the runs are and go")
    parser.add_argument("--learners", type=int, nargs="+", default=[25, 4])
    parser.add_argument("--seeds", type=int, default=5, help="runs of each kind")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--plot", type=Path, help="SVG to write")
    own = sys.argv[1:]
    given = own[own.index("--") + 1 :] if "--" in own else []
    asked = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    asked.folder.mkdir(parents=True, exist_ok=True)
    scores: dict[tuple[int, str], list[dict[str, float]]] = {}
    for seed in range(1, asked.seeds + 1):
        for learners in asked.learners:
            for variant in asked.variants:
                run = asked.folder / f"{variant.replace(' ', '-')}-{learners}-s{seed}"
                train(run, variant, learners, seed, given)
                scores.setdefault((learners, variant), []).append(score(run))
    tell(scores)
    if asked.plot is not None:
        draw(asked.folder, scores, asked.plot)


def train(run: Path, variant: str, learners: int, seed: int, given: list[str]) -> None:
    """Train a run unless it is there; one that was interrupted goes on."""
    if (run / "summary.json").exists():
        reason = json.loads((run / "summary.json").read_text())["exit_reason"]
        if reason.startswith("done"):
            return
    words = [word.format(n=learners) for word in VARIANTS[variant]]
    command = [sys.executable, "-m", "gossamer", "train"]
    if (run / "config.json").exists():
        command += ["--resume", str(run)]
    else:
        command += [
            "--config", "diffdac_acrobot", *words, "--seed", str(seed), "--run-folder", str(run),
            "--evaluation.episodes", str(learners), "--evaluation.every-seconds", "10",
            "--evaluation.max-time-fraction", "0.1", *given,
        ]  # fmt: skip
    with (run.parent / f"{run.name}.txt").open("a") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True)


def score(run: Path) -> dict[str, float]:
    """Return the mean return on training and held-out tasks, sampled actions; keep it beside the run."""
    kept = run / "score.json"
    if kept.exists():
        return json.loads(kept.read_text())
    config = json.loads((run / "config.json").read_text())
    size = config["num_learners"]
    alone = config["topology"]["name"] == "single" and size > 1
    episodes = 50 if not alone else size
    found = [
        gossamer.evaluate(str(run), episodes=episodes, learner=learner, sample=True)
        for learner in (range(size) if alone else [None])
    ]
    summary = json.loads((run / "summary.json").read_text())
    result = {
        "training": statistics.fmean(x.mean for x in found),
        "held_out": statistics.fmean(x.held_out.mean for x in found if x.held_out),
        "seconds": summary["seconds"],
    }
    kept.write_text(json.dumps(result) + "\n")
    print(f"{run.name}: {result}", flush=True)
    return result


def interval(numbers: list[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval."""
    n = len(numbers)
    if n < 2:
        return numbers[0], math.nan
    return statistics.fmean(numbers), T_975[n] * statistics.stdev(numbers) / math.sqrt(n)


def tell(scores: dict[tuple[int, str], list[dict[str, float]]]) -> None:
    """Print a table."""
    print("| tasks | learners | training tasks | held-out tasks | seconds |\n|---|---|---|---|---|")
    for (learners, variant), found in scores.items():
        cells = ["{:.1f} +- {:.1f}".format(*interval([x[name] for x in found]))
                 for name in ("training", "held_out")]  # fmt: skip
        seconds = statistics.fmean(x["seconds"] for x in found)
        print(f"| {learners} | {variant} | {cells[0]} | {cells[1]} | {seconds:.0f} |")


def curve(runs: list[Path], bins: int = 20) -> tuple[list[float], list[float], list[float]]:
    """Return env steps, mean return on training tasks, and half of its interval over runs."""
    total = json.loads((runs[0] / "config.json").read_text())["total_env_steps"]
    by_bin: list[list[float]] = [[] for _ in range(bins)]
    for run in runs:
        own: list[list[float]] = [[] for _ in range(bins)]
        config = json.loads((run / "config.json").read_text())
        mixes = config["topology"]["name"] != "single"
        for line in (run / "evaluation.jsonl").read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            if not mixes or row["learner"] == "average":
                own[min(int(row["env_steps"] / total * bins), bins - 1)].append(row["mean"])
        for found, means in zip(by_bin, own, strict=True):
            if means:
                found.append(statistics.fmean(means))
    kept = [(i, *interval(found)) for i, found in enumerate(by_bin) if found]
    return (
        [(i + 0.5) * total / bins for i, _, _ in kept],
        [mean for _, mean, _ in kept],
        [0.0 if math.isnan(half) else half for _, _, half in kept],
    )


def draw(folder: Path, scores: dict[tuple[int, str], Any], target: Path) -> None:
    """Draw mean returns over env steps, with intervals."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    # Fixed ids and no date: the same figures draw the same file.
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    sizes = sorted({learners for learners, _ in scores})
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(4.8 * len(sizes), 3.6), layout="constrained", squeeze=False
    )
    for learners, panel in zip(sizes, panels[0], strict=True):
        for (size, variant), found in scores.items():
            if size != learners:
                continue
            runs = [folder / f"{variant.replace(' ', '-')}-{size}-s{seed}"
                    for seed in range(1, len(found) + 1)]  # fmt: skip
            steps, means, halves = curve(runs)
            panel.plot(steps, means, linewidth=1.6, label=variant)
            low = [mean - half for mean, half in zip(means, halves, strict=True)]
            high = [mean + half for mean, half in zip(means, halves, strict=True)]
            panel.fill_between(steps, low, high, alpha=0.2)
        panel.set_xlabel("env steps, all learners")
        panel.set_ylabel("mean return over all training tasks")
        panel.set_title(f"{learners} tasks", fontsize=11)
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
