"""Diff-DAC on acrobots: learners that diffuse against learners on their own and one that sees every task.

    python benchmarks/diffuse.py runs/diffuse --learners 25 4 --seeds 5 --figures docs/assets/diffuse.json --plot docs/assets/diffuse.svg

Trains what is missing in the folder and in the figures, each run with as many environments in all, one task each. Scores what came of
it on every training task and on held-out ones: the average policy of those that diffuse, each policy of those
that never talk, the one of a single learner. Settings after `--` go to every run; `--also` gives some to one variant,
one number of learners or both, as what suits one may not suit another: `--also "one learner" "--optimizer.learning-rate 2e-3"`.

A seed chooses tasks too, so variants are compared seed by seed: beside each interval stands that of the differences
to "diffusion". In the curve a point of "independent" is the mean over its runs of one or two learners each, those
whose turn it was to be evaluated; the table scores all of them.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from figures import T_975, binned, in_words, known, remember, train

import gossamer

VARIANTS = {
    "diffusion": ("topology:diffusion", "--num-learners", "{n}", "--num-envs", "1"),
    "independent": ("topology:single", "--num-learners", "{n}", "--num-envs", "1"),
    "one learner": ("topology:single", "--num-learners", "1", "--num-envs", "{n}"),
}
MEASURES = ("training", "held_out")
Results = dict[tuple[int, str], list[dict[str, Any]]]
"""What the runs of each number of learners and variant gave, in order of their seeds."""


def main() -> None:
    """Train, score, print a table, and draw the curves."""
    parser = argparse.ArgumentParser(description="Diff-DAC on acrobots.")
    parser.add_argument("folder", type=Path, help="where the runs are and go")
    parser.add_argument("--learners", type=int, nargs="+", default=[25, 4])
    parser.add_argument(
        "--seeds", type=int, default=5, choices=range(1, max(T_975) + 1), help="runs of each kind"
    )
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument(
        "--also",
        nargs=2,
        action="append",
        default=[],
        metavar=("WHOSE", "SETTINGS"),
        help="settings of a VARIANT, of N learners or of VARIANT-N; may be given again, the last wins",
    )
    parser.add_argument("--figures", type=Path, help="JSON with what runs gave: read, and added to")
    parser.add_argument("--plot", type=Path, help="SVG to write")
    own = sys.argv[1:]
    given = own[own.index("--") + 1 :] if "--" in own else []
    asked = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    for whose, _ in asked.also:
        if not re.fullmatch(rf"\d+|({'|'.join(VARIANTS)})(-\d+)?", whose):
            parser.error(
                f"--also {whose!r} is no number of learners and none of {', '.join(VARIANTS)}"
            )
    asked.folder.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    for seed in range(1, asked.seeds + 1):
        for learners in asked.learners:
            for variant in asked.variants:
                run = folder_of(asked.folder, variant, learners, seed)
                words = words_of(variant, learners, seed)
                words += [*given, *own_words(asked.also, variant, learners)]
                result = known(asked.figures, run.name, words)
                if result is None:
                    train(run, words)
                    result = {"settings": words, **score(run), "curve": curve(run)}
                    remember(asked.figures, run.name, result)
                results.setdefault((learners, variant), []).append(result)
    tell(results)
    if asked.plot is not None:
        draw(results, asked.plot)


def own_words(also: list[list[str]], variant: str, learners: int) -> list[str]:
    """Return the settings that are given to this variant, this number of learners, or both."""
    whose = (variant, str(learners), f"{variant}-{learners}")
    return [word for name, words in also if name in whose for word in shlex.split(words)]


def folder_of(folder: Path, variant: str, learners: int, seed: int) -> Path:
    """Return where a run is."""
    return folder / f"{variant.replace(' ', '-')}-{learners}-s{seed}"


def words_of(variant: str, learners: int, seed: int) -> list[str]:
    """Return the settings of a run."""
    return [
        "--config", "diffdac_acrobot", *(word.format(n=learners) for word in VARIANTS[variant]),
        "--seed", str(seed), "--evaluation.episodes", str(learners),
        "--evaluation.every-seconds", "10", "--evaluation.max-time-fraction", "0.1",
    ]  # fmt: skip


def score(run: Path) -> dict[str, float]:
    """Return the mean return on training and held-out tasks, sampled actions; keep it beside the run."""
    kept = run / "score.json"
    newest = max(path.stat().st_mtime for path in (run / "checkpoints").iterdir())
    if kept.exists() and kept.stat().st_mtime >= newest:
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


def tell(results: Results) -> None:
    """Print a table."""
    print(
        "| tasks | learners | training tasks | - diffusion | held-out tasks | - diffusion | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for (learners, variant), found in results.items():
        others = results.get((learners, "diffusion"))
        cells: list[str] = []
        for name in MEASURES:
            own = [x[name] for x in found]
            cells.append(in_words(own))
            if others is None or variant == "diffusion":
                cells.append("")
            else:
                pairs = zip(own, (x[name] for x in others), strict=True)
                cells.append(in_words([mine - theirs for mine, theirs in pairs]))
        seconds = statistics.fmean(x["seconds"] for x in found)
        print(f"| {learners} | {variant} | {' | '.join(cells)} | {seconds:.0f} |")


def curve(run: Path) -> list[list[float]]:
    """Return [env steps, mean return on training tasks] of a run's evaluations: of the average, if learners mix."""
    config = json.loads((run / "config.json").read_text())
    mixes = config["topology"]["name"] != "single"
    rows = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    return [
        [row["env_steps"], round(row["mean"], 2)]
        for row in rows
        if not row.get("confirmation") and (not mixes or row["learner"] == "average")
    ]


def draw(results: Results, target: Path) -> None:
    """Draw mean returns over env steps, with intervals."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    # Fixed ids and no date: the same figures draw the same file.
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    sizes = sorted({learners for learners, _ in results})
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(4.8 * len(sizes), 3.6), layout="constrained", squeeze=False
    )
    for learners, panel in zip(sizes, panels[0], strict=True):
        for (size, variant), found in results.items():
            if size != learners:
                continue
            steps, means, halves = binned(found)
            panel.plot(steps, means, linewidth=1.6, label=variant)
            if len(found) > 1:
                low = [mean - half for mean, half in zip(means, halves, strict=True)]
                high = [mean + half for mean, half in zip(means, halves, strict=True)]
                panel.fill_between(steps, low, high, alpha=0.2)
        panel.set_ylim(-510, -50)  # an episode ends after 500 steps
        panel.set_xlabel("env steps, all learners")
        panel.set_ylabel("mean return over all training tasks")
        panel.set_title(f"{learners} tasks", fontsize=11)
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
