"""What to replay: the same game and settings with no replay, uniform, elite (four strategies) and attentive.

    python benchmarks/compare_replays.py runs/replays --seeds 1 2 3 --figures docs/assets/replays.json --plot docs/assets/replays.svg

Trains what is missing in the folder and in the figures, from the preset `elite_breakout`; a run that was interrupted goes
on. Half of every batch is replayed, except in `none`, which learns its online columns as often. Scored are the training
returns of the last 100 games (sampled actions) and 30 greedy games of the last policy. Settings after `--` go to every run.
Several of these may work on one file of figures at a time, on other variants or seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from figures import binned, in_words, parse, result_of

import gossamer

STRATEGIES = ("least_used", "nearest", "stratified", "stratified_least_used")
QUEUE = {"name": "queue", "fraction": 0.5}
HALF = {"fraction": 0.5, "capacity_steps": 200_000}
PICKING = {"candidate_multiplier": 6.0, "anneal_updates": 8_000}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "none": [{"name": "queue"}],
    "uniform": [QUEUE, {"name": "uniform", **HALF}],
    **{
        f"elite {strategy}": [QUEUE, {"name": "elite", "strategy": strategy, **HALF, **PICKING}]
        for strategy in STRATEGIES
    },
    "attentive": [QUEUE, {"name": "attentive", **HALF, **PICKING}],
}
BINS = 25
"""Points of a curve."""
LAST = 100
"""Games at the end of training that count."""
Results = dict[str, list[dict[str, Any]]]
"""What the runs of each variant gave, in order of their seeds."""


def main() -> None:
    """Train, score, print a table, and draw the curves."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--plot", type=Path, help="SVG to write")
    asked, settings = parse(parser)
    results: Results = {}
    for seed in asked.seeds:
        for variant in asked.variants:
            words = ["--config", "elite_breakout", "--seed", str(seed)]
            words += ["--replays", json.dumps(VARIANTS[variant]), *settings]
            result = result_of(asked, f"{variant.replace(' ', '-')}-s{seed}", words, score)
            if result is not None:
                results.setdefault(variant, []).append(result)
    tell(results)
    if asked.plot is not None:
        draw(results, asked.plot)


def score(run: Path) -> dict[str, Any]:
    """Return what a run's games gave while it trained and afterwards."""
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    total = json.loads((run / "config.json").read_text())["total_env_steps"]
    by_bin: list[list[float]] = [[] for _ in range(BINS)]
    for row in rows:
        by_bin[min(int(row["env_steps"] / total * BINS), BINS - 1)].append(row["return"])
    return {
        "sampled": statistics.fmean(row["return"] for row in rows[-LAST:]),
        "greedy": gossamer.evaluate(str(run), episodes=30).mean,
        "seconds": json.loads((run / "summary.json").read_text())["seconds"],
        "curve": [
            [(i + 0.5) * total / BINS, round(statistics.fmean(found), 3)]
            for i, found in enumerate(by_bin)
            if found
        ],
    }


def area(result: dict[str, Any]) -> float:
    """Return the mean of the curve: how much was scored all the way."""
    return statistics.fmean(mean for _, mean in result["curve"])


def tell(results: Results) -> None:
    """Print a table."""
    print(
        f"| replay | seeds | last {LAST} games | greedy, 30 games | all games, over steps | seconds |"
    )
    print("|---|---|---|---|---|---|")
    for variant, found in results.items():
        cells = [
            in_words([x["sampled"] for x in found]),
            in_words([x["greedy"] for x in found]),
            in_words([area(x) for x in found]),
            f"{statistics.fmean(x['seconds'] for x in found):.0f}",
        ]
        print(f"| {variant} | {len(found)} | {' | '.join(cells)} |")


def draw(results: Results, target: Path) -> None:
    """Draw mean returns over env steps: with intervals where there are several seeds, thin where there is one."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    # Fixed ids and no date: the same figures draw the same file.
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    figure, panel = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    for variant, found in results.items():
        steps, means, halves = binned(found, BINS)
        several = len(found) > 1
        panel.plot(steps, means, linewidth=1.8 if several else 0.9, label=variant)
        if several:
            low = [mean - half for mean, half in zip(means, halves, strict=True)]
            high = [mean + half for mean, half in zip(means, halves, strict=True)]
            panel.fill_between(steps, low, high, alpha=0.2)
    panel.set_xlabel("env steps")
    panel.set_ylabel("mean return of a game, sampled actions")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
