"""Messages, bytes and disagreement as learners grow: tiny ones that take turns in one process.

    OMP_NUM_THREADS=1 python benchmarks/grow_learners.py --figures docs/assets/growth.json --plot docs/assets/growth.svg

Every learner is a whole one: A2C on a CartPole of its own, unrolls of 5 steps, hidden layers of 8. What is told
comes from metrics.jsonl. Prints two tables; `--redraw` draws figures that are there already.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gossamer

GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {"name": "gossip", "graph": "ring"},
    "rotating": {"name": "gossip", "graph": "rotating"},
    "diffusion ring": {"name": "diffusion", "adjacency": "ring"},
    "exponential": {"name": "gossip", "graph": "exponential"},
    "complete": {"name": "gossip", "graph": "complete"},
    "never talking": {"name": "single"},
}
GROWING = ("ring", "rotating", "diffusion ring", "exponential", "complete")
APART = ("ring", "rotating", "never talking")
UNROLL_LENGTH = 5
MESSAGES, BYTES = "topology/messages_per_update", "topology/bytes_per_update"


def main() -> None:
    """Measure, print, write the figures down and draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--learners", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    parser.add_argument(
        "--updates", type=int, default=3, help="of every learner, to count messages"
    )
    parser.add_argument("--complete-up-to", type=int, default=256, help="learners")
    parser.add_argument("--apart-learners", type=int, default=16, help="for disagreement")
    parser.add_argument("--apart-updates", type=int, default=120)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-4, 1e-4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figures", type=Path, required=True, help="JSON to write, or to redraw")
    parser.add_argument("--plot", type=Path, help="SVG to write")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    if not asked.redraw:
        began = time.monotonic()
        figures: dict[str, Any] = {"growth": grow(asked), "disagreement": drift_apart(asked)}
        figures["seconds"] = round(time.monotonic() - began)
        asked.figures.write_text(json.dumps(figures, indent=1) + "\n")
    figures = json.loads(asked.figures.read_text())
    tell(figures)
    if asked.plot is not None:
        draw(figures, asked.plot)


def grow(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Count messages and bytes per learner and update."""
    found: list[dict[str, Any]] = []
    for size in asked.learners:
        for graph in GROWING:
            if graph == "complete" and size > asked.complete_up_to:
                continue
            began = time.process_time()
            rows = train(graph, size, asked.updates, rate=1e-3, seed=1)
            last = {row["learner"]: row for row in rows}
            assert len(last) == size
            found.append({
                "learners": size,
                "graph": graph,
                "messages": statistics.fmean(row[MESSAGES] for row in last.values()),
                "bytes": statistics.fmean(row[BYTES] for row in last.values()),
                "cpu_seconds": round(time.process_time() - began, 1),
            })  # fmt: skip
            print(found[-1], flush=True)
    return found


def drift_apart(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Follow how far learners are apart, at several learning rates that stay as they are."""
    found: list[dict[str, Any]] = []
    for graph in APART:
        for rate in asked.rates:
            for seed in range(1, asked.seeds + 1):
                size, updates = asked.apart_learners, asked.apart_updates
                rows = [x for x in train(graph, size, updates, rate=rate, seed=seed)
                        if "topology/disagreement" in x]  # fmt: skip
                found.append({
                    "learners": size,
                    "graph": graph,
                    "rate": rate,
                    "seed": seed,
                    "updates": [row["updates"] for row in rows],
                    "disagreement": [row["topology/disagreement"] for row in rows],
                })  # fmt: skip
                print(graph, rate, seed, f"{settled(found[-1]):.2e}", flush=True)
    return found


def train(graph: str, size: int, updates: int, *, rate: float, seed: int) -> list[dict[str, Any]]:
    """Train so many learners for so many updates each; return the rows of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "algorithm": {"name": "a2c", "num_minibatches": 1, "value_norm": False},
            "optimizer": {"learning_rate": rate, "schedule": "constant"},
            "policy": {"hidden_sizes": [8]},
            "topology": GRAPHS[graph],
            "placement": "inline",
            "num_learners": size,
            "num_envs": 1,
            "env_threads": 1,
            "unroll_length": UNROLL_LENGTH,
            "total_env_steps": size * UNROLL_LENGTH * updates,
            "seed": seed,
            "checkpoint_every_seconds": 0.0,
            "evaluation": {"every_seconds": 0.0},
            "run_folder": str(Path(folder) / "run"),
        }
        run = gossamer.train(gossamer.make_config("CartPole-v1", settings), quiet=True).folder
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def settled(curve: dict[str, Any]) -> float:
    """Return the mean disagreement over the second half of a run."""
    half = curve["updates"][-1] / 2
    pairs = zip(curve["updates"], curve["disagreement"], strict=True)
    return statistics.fmean(apart for update, apart in pairs if update >= half)


def tell(figures: dict[str, Any]) -> None:
    """Print the tables."""
    sizes = sorted({row["learners"] for row in figures["growth"]})
    print("\nmessages (bytes) per learner and update")
    print(f"{'':16}" + "".join(f"{size:>16,}" for size in sizes))
    for graph in GROWING:
        cells = {row["learners"]: f"{row['messages']:.4g} ({row['bytes']:,.0f})"
                 for row in figures["growth"] if row["graph"] == graph}  # fmt: skip
        print(f"{graph:16}" + "".join(f"{cells.get(size, '-'):>16}" for size in sizes))
    print("\ndisagreement in the second half of a run: mean over seeds (each seed)")
    for graph in APART:
        for rate in rates_of(figures):
            each = [settled(curve) for curve in figures["disagreement"]
                    if (curve["graph"], curve["rate"]) == (graph, rate)]  # fmt: skip
            told = ", ".join(f"{apart:.2e}" for apart in each)
            print(f"{graph:16}{rate:<10g}{statistics.fmean(each):.2e}  ({told})")
    print(f"\n{figures['seconds']} s")


def rates_of(figures: dict[str, Any]) -> list[float]:
    """Return the learning rates, the highest first."""
    return sorted({curve["rate"] for curve in figures["disagreement"]}, reverse=True)


def draw(figures: dict[str, Any], target: Path) -> None:
    """Draw both: messages over learners, disagreement over updates."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    # Fixed ids and no date: the same figures draw the same file.
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    figure, (growth, apart) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    for graph in GROWING:
        rows = [row for row in figures["growth"] if row["graph"] == graph]
        style = "--" if graph == "rotating" else "-"  # it lies on the ring
        growth.plot([row["learners"] for row in rows], [row["messages"] for row in rows], style,
                    marker="o", markersize=3, linewidth=1.6, label=graph)  # fmt: skip
    sizes = sorted({row["learners"] for row in figures["growth"]})
    each = figures["growth"][0]["bytes"] / figures["growth"][0]["messages"]
    growth.set_xscale("log", base=2)
    growth.set_yscale("log")
    growth.set_xticks(sizes, [f"{size:,}" for size in sizes])
    growth.set_xlabel("learners")
    growth.set_ylabel(f"messages of {each:,.0f} bytes")
    growth.set_title("heard by each learner per update", fontsize=11)

    styles = dict(zip(APART, ("-", "--", ":"), strict=True))
    colors = {rate: f"C{i}" for i, rate in enumerate(rates_of(figures))}
    for curve in figures["disagreement"]:
        heights = [x or math.nan for x in curve["disagreement"]]  # alike at the start: no logarithm
        apart.plot(curve["updates"], heights, styles[curve["graph"]], linewidth=1.0,
                   color=colors[curve["rate"]])  # fmt: skip
    apart.set_yscale("log")
    apart.set_xlabel("updates")
    apart.set_ylabel("disagreement")
    apart.set_title(f"{figures['disagreement'][0]['learners']} learners", fontsize=11)
    lines = [Line2D([], [], color=color, label=f"learning rate {rate:g}")
             for rate, color in colors.items()]  # fmt: skip
    lines += [Line2D([], [], color="0.3", linestyle=style, label=graph)
              for graph, style in styles.items()]  # fmt: skip
    apart.legend(
        handles=lines, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5)
    )
    growth.legend(frameon=False, fontsize=8)
    for axes in (growth, apart):
        axes.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
