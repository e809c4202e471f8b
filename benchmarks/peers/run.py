"""Compare training speed with other trainers: side by side, in one run, each in its own venv.

    python benchmarks/peers/run.py --seconds 60 --repeats 3

Absolute speeds drift with the machine and with whatever else it does, so trainers alternate, every
repeat yields one ratio, and the ratios are what is reported. Speeds are env steps (agent decisions)
per second from the end of the first update on, the definition of `steps_per_second` in a run's
`summary.json`. Needs only the standard library; a peer's venv is made when it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS_FOLDER = Path(__file__).resolve().parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
OURS = VENV_PYTHON if VENV_PYTHON.exists() else Path(sys.executable)
"""gossamer's interpreter: the one `make` made, or the one that runs this."""
ENV_ID = "PongNoFrameskip-v4"
GRACE_SECONDS = 180
"""Importing, starting and saving come on top of the training time asked for."""


@dataclass(frozen=True)
class Peer:
    """Another trainer: what it is, how to install it and how to measure it once."""

    title: str
    folder: str
    """Below benchmarks/peers: requirements.txt and train.py."""
    arguments: tuple[str, ...] = ()

    @property
    def venv(self) -> Path:
        """Where its packages live; git-ignored."""
        return ROOT / f".venv-{self.folder}"

    def install(self) -> None:
        """Make the venv if it is missing or older than the requirements."""
        requirements = PEERS_FOLDER / self.folder / "requirements.txt"
        stamp = self.venv / ".installed"
        if stamp.exists() and stamp.stat().st_mtime >= requirements.stat().st_mtime:
            return
        print(f"installing {self.title} into {self.venv.name} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        pip = [str(self.venv / "bin" / "pip"), "install", "--quiet"]
        # The wheel index of a machine may warn about folders it does not have; errors still show.
        done = subprocess.run(
            [*pip, "-r", str(requirements)], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"could not install {self.title}:\n{done.stderr}")
        stamp.touch()

    def measure(self, seconds: float, seed: int) -> float:
        """Train once; return env steps per second."""
        command = [
            str(self.venv / "bin" / "python"),
            str(PEERS_FOLDER / self.folder / "train.py"),
            *("--env", ENV_ID, "--seconds", str(seconds), "--seed", str(seed)),
            *self.arguments,
        ]
        output = run_quietly(command, seconds)
        return float(json.loads(output.strip().splitlines()[-1])["steps_per_second"])


PEERS = {
    "sb3": Peer("Stable-Baselines3 A2C, 16 envs, its defaults", "sb3"),
}


def measure_gossamer(preset: str, seconds: float, seed: int) -> float:
    """Train once with a preset, logging and run folder included; return env steps per second."""
    with tempfile.TemporaryDirectory(prefix="gossamer-peers-") as scratch:
        folder = Path(scratch) / "run"
        command = [
            *(str(OURS), "-m", "gossamer", "train", ENV_ID, "--config", preset),
            *("--seed", str(seed), "--total-env-steps", "1000000000"),
            *("--stop-after-seconds", str(seconds), "--run-folder", str(folder)),
        ]
        run_quietly(command, seconds)
        summary = json.loads((folder / "summary.json").read_text())
        return float(summary["steps_per_second"])


def run_quietly(command: list[str], seconds: float) -> str:
    """Run a command; return its standard output, or stop with everything it said."""
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
        timeout=seconds + GRACE_SECONDS,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Measure, print a table of ratios, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each trainer")
    parser.add_argument("--peers", nargs="+", choices=sorted(PEERS), default=sorted(PEERS))
    parser.add_argument("--preset", default="bench", help="gossamer's preset")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    if args.seconds <= 0 or args.repeats < 1:
        parser.error("--seconds must be above 0 and --repeats at least 1")

    for name in args.peers:
        PEERS[name].install()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.3 * cores:
        print(
            f"warning: load is {load:.1f} on {cores} cores; ratios need an idle machine",
            file=sys.stderr,
        )

    trainers: dict[str, Callable[[float, int], float]] = {
        "gossamer": lambda seconds, seed: measure_gossamer(args.preset, seconds, seed),
        **{name: PEERS[name].measure for name in args.peers},
    }
    speeds: dict[str, list[float]] = {name: [] for name in trainers}
    for repeat in range(args.repeats):
        # Back and forth, so that a machine that slows down does not favour whoever is first.
        order = list(trainers) if repeat % 2 == 0 else list(reversed(trainers))
        for name in order:
            speed = trainers[name](args.seconds, repeat + 1)
            speeds[name].append(speed)
            print(f"repeat {repeat + 1}: {name} {speed:,.0f} steps/s", file=sys.stderr)

    print(f"\n{ENV_ID}, {args.seconds:g} s a run, {os.cpu_count()} cores, {platform.machine()}\n")
    print("| trainer | steps/s, median (all) | gossamer is faster by, median (all) |")
    print("|---|---|---|")
    ours = speeds["gossamer"]
    print(f"| gossamer, preset `{args.preset}` | {listing(ours, ',.0f')} | |")
    ratios: dict[str, list[float]] = {}
    for name in args.peers:
        ratios[name] = [a / b for a, b in zip(ours, speeds[name], strict=True)]
        steps = listing(speeds[name], ",.0f")
        print(f"| {PEERS[name].title} | {steps} | {listing(ratios[name], '.2f')} |")
    if args.json:
        figures = {"env": ENV_ID, "seconds": args.seconds, "preset": args.preset}
        args.json.write_text(
            json.dumps({**figures, "steps_per_second": speeds, "ratios": ratios}, indent=2) + "\n"
        )


def listing(values: list[float], spec: str) -> str:
    """Format a median, and every value after it."""
    each = ", ".join(format(value, spec) for value in values)
    return f"{statistics.median(values):{spec}} ({each})"


if __name__ == "__main__":
    main()
