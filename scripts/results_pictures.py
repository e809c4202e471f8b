"""Draw the pictures of docs/results that no other script draws, from figures in the tables behind them.

    python scripts/results_pictures.py        # writes speed.svg, defaults.svg and cluster.svg into docs/assets

Figures are those of the tables in docs/results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Sequence

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
OURS, OTHERS, GREY = "#0072b2", "#d55e00", "0.6"
ZOO_PPO = {
    "Pendulum-v1": -172.2,
    "MountainCarContinuous-v0": 88.3,
    "LunarLander-v3": 242.1,
    "Walker2d-v5": 3478.8,
}
"""Scores of PPO in RL Baselines3 Zoo's benchmark.md, of the environments' versions of then."""


def main() -> None:
    """Draw all of them; the same figures draw the same files."""
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    speed()
    defaults()
    cluster()


def speed() -> None:
    """Steps a second of docs/results/speed.md, machine A."""
    rows = [
        ("limit of the two cores", 2430, GREY),
        ("gossamer, bench preset", 2234, OURS),
        ("Stable-Baselines3, A2C", 726, OTHERS),
    ]
    figure, axes = plt.subplots(figsize=(7.2, 1.8), layout="constrained")
    _bars(axes, rows, "{:,}")
    axes.set_xlabel("env steps a second, Pong, Nature CNN")
    _save(figure, "speed.svg")


def cluster() -> None:
    """Medians of docs/results/cluster.md."""
    rows = [
        ("gossip, never waiting", 0.936, OURS),
        ("gossip in lock-step", 0.868, OURS),
        ("the actor on the other host", 0.853, OURS),
    ]
    figure, axes = plt.subplots(figsize=(7.2, 1.8), layout="constrained")
    _bars(axes, rows, "{:.2f}")
    axes.axvline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_xlabel("steps/s on two hosts of one core / on one machine of two")
    _save(figure, "cluster.svg")


def defaults() -> None:
    """Training returns of an id alone, and what the zoo's tuned PPO ends with."""
    runs: dict[str, Any] = {}
    for name in ("defaults", "mujoco"):
        runs |= json.loads((ASSETS / f"{name}.json").read_text())
    figure, panels = plt.subplots(1, len(ZOO_PPO), figsize=(9.0, 2.4), layout="constrained")
    for axes, (env_id, zoo) in zip(panels, ZOO_PPO.items(), strict=True):
        for name, run in runs.items():
            if name.startswith(env_id):
                steps, returns = zip(*run["curve"], strict=True)
                axes.plot([x / 1e3 for x in steps], returns, color=OURS, linewidth=1.2)
        axes.axhline(zoo, color=OTHERS, linewidth=1.0, linestyle="--")
        axes.set_title(env_id, fontsize=9)
        axes.set_xlabel("thousand steps", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("return in training", fontsize=8)
    _save(figure, "defaults.svg")


def _bars(axes: Any, rows: Sequence[tuple[str, float, str]], form: str) -> None:
    names, values, colors = zip(*reversed(rows), strict=True)
    bars = axes.barh(names, values, color=colors, height=0.6)
    axes.bar_label(bars, labels=[form.format(x) for x in values], padding=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, max(values) * 1.12)


def _save(figure: Any, name: str) -> None:
    figure.savefig(ASSETS / name, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
