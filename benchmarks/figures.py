"""What benchmarks share that train runs of several kinds and seeds: runs that go on, figures kept, intervals."""

from __future__ import annotations

import fcntl
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.config import from_dict, parse_train, resolve, to_dict
from gossamer.record.exits import exit_of, state_of
from gossamer.run.resumed_settings import changes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

T_975 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t for a 95 % interval, by the number of runs."""


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line: the parser's arguments and those common to trainings, and the settings after `--`."""
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--figures", type=Path, help="JSON with results of runs: read, and added to"
    )
    parser.add_argument(
        "--only-known", action="store_true", help="train nothing: leave out runs without results"
    )
    own = sys.argv[1:]
    settings = own[own.index("--") + 1 :] if "--" in own else []
    asked = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    asked.seeds = list(dict.fromkeys(asked.seeds))
    if len(asked.seeds) > max(T_975):
        parser.error(f"--seeds: at most {max(T_975)} of them")
    return asked, settings


def result_of(
    asked: argparse.Namespace,
    name: str,
    words: list[str],
    score: Callable[[Path], dict[str, Any]],
) -> dict[str, Any] | None:
    """Return a run's result, training and scoring it if need be; None with --only-known if there is none."""
    result = known(asked.figures, name, words)
    if result is not None or asked.only_known:
        return result
    asked.folder.mkdir(parents=True, exist_ok=True)
    train(asked.folder / name, words)
    result = {"settings": words, **score(asked.folder / name)}
    remember(asked.figures, name, result)
    told = (f"{key} {x:,.1f}" for key, x in result.items() if isinstance(x, int | float))
    print(f"{name}: {', '.join(told)}", file=sys.stderr, flush=True)
    return result


def known(figures: Path | None, name: str, words: list[str]) -> dict[str, Any] | None:
    """Return what is written of a run of these settings; exit if it had others."""
    if figures is None or not figures.exists():
        return None
    found = json.loads(figures.read_text()).get(name)
    if found is not None and found["settings"] != words:
        sys.exit(
            f"{figures}: {name} was trained with {' '.join(found['settings'])}, not {' '.join(words)}: "
            "name another file"
        )
    return found


def remember(figures: Path | None, name: str, result: dict[str, Any]) -> None:
    """Write down what a run gave, beside what is written already, by whomever."""
    if figures is None:
        return
    with figures.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found = json.loads(file.read() or "{}")
        found[name] = result
        # A line a run: readable, and no line for each number.
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found))
        file.truncate(0)
        file.write(f"{{\n{lines}\n}}\n")


def train(run: Path, words: list[str]) -> None:
    """Train a run unless it is there; one that was interrupted goes on."""
    command, summary = [sys.executable, "-m", "gossamer", "train"], run / "summary.json"
    if (run / "config.json").exists():
        refuse_others(run, words)
        if summary.exists() and state_of(json.loads(summary.read_text()), running=False) == "done":
            return
        command += ["--resume", str(run)]
    else:
        command += [*words, "--run-folder", str(run)]
    with (run.parent / f"{run.name}.txt").open("a") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True)
    ended = exit_of(json.loads(summary.read_text()))
    if ended is None or ended.kind != "done":
        sys.exit(f"{run} has ended early: {ended}; the same command goes on with it")


def refuse_others(run: Path, words: list[str]) -> None:
    """Exit in one line if the run that is there has other settings than these words give."""
    asked = parse_train(words)
    wanted, _ = resolve(asked.settings, configs=asked.config)
    found = from_dict(json.loads((run / "config.json").read_text()))
    for name, old, new in changes(to_dict(found), to_dict(wanted)):
        if name != "run_folder":
            sys.exit(f"{run} was trained with {name} {old}, not {new}: name another folder")


def interval(numbers: list[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval, which a single number does not have (NaN)."""
    n = len(numbers)
    if n < 2:
        return numbers[0], math.nan
    return statistics.fmean(numbers), T_975[n] * statistics.stdev(numbers) / math.sqrt(n)


def in_words(numbers: list[float]) -> str:
    """Return the mean of numbers with its interval."""
    mean, half = interval(numbers)
    return f"{mean:.1f}" if math.isnan(half) else f"{mean:.1f} +- {half:.1f}"


def binned(
    results: list[dict[str, Any]], bins: int = 20
) -> tuple[list[float], list[float], list[float]]:
    """Return env steps, mean return, and half of its interval over runs (NaN for one), of curves of points."""
    total = max(steps for result in results for steps, _ in result["curve"])
    by_bin: list[list[float]] = [[] for _ in range(bins)]
    for result in results:
        own: list[list[float]] = [[] for _ in range(bins)]
        for steps, mean in result["curve"]:
            own[min(int(steps / total * bins), bins - 1)].append(mean)
        for found, means in zip(by_bin, own, strict=True):
            if means:
                found.append(statistics.fmean(means))
    kept = [(i, *interval(found)) for i, found in enumerate(by_bin) if found]
    return (
        [(i + 0.5) * total / bins for i, _, _ in kept],
        [mean for _, mean, _ in kept],
        [half for _, _, half in kept],
    )
