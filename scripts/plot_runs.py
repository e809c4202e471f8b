"""Draw training returns of runs over wall time as an SVG, one thin line a run.

    python scripts/plot_runs.py docs/assets/pong.svg RUN RUN RUN --title "Pong" --target 18

Reads episodes.jsonl and nothing else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from gossamer.record.metrics import read_rows

WINDOW = 20
"""Episodes averaged into a point of the curve."""


def main() -> None:
    """Read episodes.jsonl of each run and draw."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--target", type=float, default=None)
    asked = parser.parse_args()
    # Fixed ids and no date: the same runs draw the same file.
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for run in asked.runs:
        rows = list(read_rows(run / "episodes.jsonl"))
        minutes = np.array([row["time_s"] for row in rows]) / 60
        returns = np.array([row["return"] for row in rows])
        if len(rows) < WINDOW:
            continue
        mean = np.convolve(returns, np.ones(WINDOW) / WINDOW, mode="valid")
        seed = json.loads((run / "config.json").read_text())["seed"]
        axes.plot(minutes[WINDOW - 1 :], mean, linewidth=1.6, label=f"seed {seed}")
    if asked.target is not None:
        axes.axhline(asked.target, color="0.6", linewidth=0.8, linestyle="--")
    axes.set_xlabel("minutes since the command was typed")
    axes.set_ylabel(f"return, mean of {WINDOW} episodes")
    axes.set_title(asked.title, fontsize=11)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
