"""What an id alone learns: every environment below, trained without any setting but a seed, and scored.

    python benchmarks/defaults.py runs/defaults --seeds 1 2 3 --figures docs/assets/defaults.json

Trains what is missing in the folder and in the figures; a run that was interrupted goes on. Scored are 30 greedy games
of the last policy, on seeds that training does not see. Settings after `--` go to every run. Several of these may work
on one file of figures at a time, on other environments or seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from figures import in_words, parse, result_of

import gossamer

MILLION = ("--total-env-steps", "1_000_000")
HALF_AN_HOUR = ("--stop-after-seconds", "1800")
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "PongNoFrameskip-v4": MILLION,
    "BreakoutNoFrameskip-v4": HALF_AN_HOUR,
    "QbertNoFrameskip-v4": HALF_AN_HOUR,
    "CartPole-v1": (),
    "Acrobot-v1": (),
    "Pendulum-v1": (),
    "MountainCarContinuous-v0": (),
    "LunarLander-v3": MILLION,
    "LunarLanderContinuous-v3": MILLION,
    "FrozenLake-v1": (),
    "Taxi-v4": (),
    "HalfCheetah-v5": MILLION,
    "Hopper-v5": MILLION,
    "Walker2d-v5": MILLION,
    "Ant-v5": MILLION,
}
"""How long each is trained, where that is not what its suite says."""
EPISODES = 30
"""Greedy games of the last policy."""


def main() -> None:
    """Train, score, and write one table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ids", nargs="+", default=list(ENVIRONMENTS), help="environments")
    parser.add_argument("--table", type=Path, help="Markdown to write; default: standard output")
    asked, settings = parse(parser)
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in asked.seeds:
        for env_id in asked.ids:
            name = f"{env_id.replace('/', '-').replace(':', '-')}-s{seed}"
            words = [env_id, "--seed", str(seed), *ENVIRONMENTS.get(env_id, ()), *settings]
            result = result_of(asked, name, words, score)
            if result is not None:
                results.setdefault(env_id, []).append(result)
    text = table({env_id: results[env_id] for env_id in asked.ids if env_id in results})
    if asked.table is None:
        print(text, end="")
    else:
        asked.table.write_text(text)


def score(run: Path) -> dict[str, Any]:
    """Return what the last policy's games gave, and what training took."""
    summary = json.loads((run / "summary.json").read_text())
    config = json.loads((run / "config.json").read_text())
    return {
        "algorithm": config["algorithm"]["name"],
        "greedy": gossamer.evaluate(str(run), episodes=EPISODES).mean,
        "sampled": summary["mean_return_last_100"],
        "env_steps": summary["env_steps"],
        "seconds": summary["seconds"],
        "curve": curve(run, summary["env_steps"]),
    }


def curve(run: Path, total: int, bins: int = 20) -> list[list[float]]:
    """Return mean training returns [env steps, mean] of so many equal stretches."""
    by_bin: list[list[float]] = [[] for _ in range(bins)]
    for line in (run / "episodes.jsonl").read_text().splitlines():
        row = json.loads(line)
        by_bin[min(int(row["env_steps"] / total * bins), bins - 1)].append(row["return"])
    return [
        [round((i + 0.5) * total / bins), round(sum(found) / len(found), 3)]
        for i, found in enumerate(by_bin)
        if found
    ]


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return a Markdown table: a row an environment."""
    lines = [
        f"| environment | algorithm | env steps | seeds | greedy, {EPISODES} games | each seed's | last 100 training games | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for env_id, found in results.items():
        cells = [
            env_id,
            found[0]["algorithm"],
            f"{max(x['env_steps'] for x in found):,}",
            str(len(found)),
            in_words([x["greedy"] for x in found]),
            ", ".join(f"{x['greedy']:.1f}" for x in found),
            in_words([x["sampled"] for x in found]),
            ", ".join(f"{x['seconds']:.0f}" for x in found),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
