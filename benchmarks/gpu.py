"""What a GPU makes of training: speed against the limit, curves, several GPUs, and what a kill leaves.

    python benchmarks/gpu.py                       # all parts that the machine has the GPUs for
    python benchmarks/gpu.py start speed --seconds 20
    python benchmarks/gpu.py --output gpu.json
    python benchmarks/gpu.py learn --preset laser_pong --settings="--lag 0"

start     seconds of a run of one batch, from the command to its end.
speed     training with each algorithm, with more environments, other lags, precisions and networks, each with how busy the
          device was.
limit     `gossamer bench`: what stepping, inference and learning could do.
learn     Pong to a greedy 18, three seeds: seconds from the command to the checkpoint (one every 3 s) that plays ten
          greedy games with that mean, the next one too. Checkpoints are played after the run.
cores     `pong` on the processor alone, one seed, with all cores and with two of them: steps/s, and seconds until the
          last 100 training games average 18.
several   one learner a GPU under all-reduce over NCCL and through memory, and gossip, against one alone.
kill      a run killed with SIGKILL and resumed with --deterministic, against one that was left alone.

Prints one table a part; the machine is named once. Without a GPU it says so and ends with code 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PONG = "PongNoFrameskip-v4"
SPEED: dict[str, list[str]] = {
    "vtrace": [],
    "pong_gpu": ["--config", "pong_gpu"],
    "ppo, 16 envs": ["--config", "pong"],
    "ppo, 64 envs": ["--config", "pong_gpu", "--num-envs", "64"],
    "impala lstm": ["--policy.torso", "impala", "--policy.core", "lstm"],
    "laser 7:1": ["--config", "laser_pong"],
    "lag 0": ["--lag", "0"],
    "lag free": ["--lag", "free"],
    "1 group": ["--env-groups", "1"],
    "64 envs": ["--num-envs", "64"],
    "256 envs": ["--num-envs", "256"],
    "512 envs": ["--num-envs", "512"],
    "fp32": ["--precision", "fp32"],
    "lstm": ["--policy.core", "lstm"],
    "impala": ["--policy.torso", "impala"],
    "deterministic": ["--deterministic"],
}
CORES: dict[str, list[str]] = {"all cores": [], "two cores": ["taskset", "-c", "0,1"]}


class Failed(Exception):
    """A command that did not end well, with the end of what it said."""


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [all]")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=list(SPEED), help="runs of speed [all]"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of a training run [30]")
    parser.add_argument("--seeds", type=int, default=3, help="of learn [3]")
    parser.add_argument("--learn", type=float, default=60.0, help="seconds of a run of learn [60]")
    parser.add_argument(
        "--preset", default="pong_gpu", help="what learn runs, one of Pong [pong_gpu]"
    )
    parser.add_argument(
        "--settings", type=shlex.split, default=[], help="settings of learn beside the preset's"
    )
    parser.add_argument(
        "--skip-below",
        type=float,
        default=0.0,
        help="learn plays no checkpoint whose last 20 training games averaged less [0]",
    )
    parser.add_argument(
        "--longest", type=float, default=1800.0, help="seconds of a run of cores to 18 [1800]"
    )
    parser.add_argument("--output", help="file for the numbers, as JSON")
    parser.add_argument(
        "--dry", action="store_true", help="try every command without a GPU; figures mean nothing"
    )
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: it must be of {', '.join(PARTS)}")
    import torch

    if asked.dry:
        asked.seconds, asked.seeds, asked.learn, asked.longest = 25.0, 1, 25.0, 25.0
    elif not torch.cuda.is_available():
        print("no GPU here, or a build of torch without CUDA: nothing measured")
        return
    gpus = torch.cuda.device_count()
    name = torch.cuda.get_device_name() if gpus else "no GPU"
    print(f"{gpus} x {name}, torch {torch.__version__}", flush=True)
    told: dict[str, Any] = {"device": name, "gpus": gpus}
    for part in asked.parts or PARTS:
        print(f"\n{part}", flush=True)
        try:
            told[part] = PARTS[part](asked, gpus)
        except Failed as error:  # the other parts tell something all the same
            told[part] = str(error)
            print(f"  {error}", flush=True)
        if asked.output:  # what there is, should the next part fail
            Path(asked.output).write_text(json.dumps(told, indent=1))


def _start(asked: argparse.Namespace, gpus: int) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name, words in {"vtrace": ["algorithm:vtrace"], "ppo": ["--config", "pong"]}.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as home:
            _run(["train", PONG, *words, "--run-folder", f"{home}/run", "--total-env-steps", "1",
                  "--evaluation.every-seconds", "0"])  # fmt: skip
        seconds[name] = time.monotonic() - began
        print(f"  {name:16s} {seconds[name]:9.1f} s", flush=True)
    return seconds


def _limit(asked: argparse.Namespace, gpus: int) -> dict[str, Any]:
    limits = json.loads(_run(["bench", "--json", "--seconds", str(4 * asked.seconds)]))
    for name in ("env", "inference", "learner", "limit", "train"):
        rate = limits[f"{name}_steps_per_second"]
        print(f"  {name:16s} {rate:9,.0f} steps/s" if rate else f"  {name:16s} not measured")
    return limits


def _speed(asked: argparse.Namespace, gpus: int) -> list[dict[str, Any]]:
    return _trainings({name: SPEED[name] for name in asked.only or SPEED}, asked)


def _cores(asked: argparse.Namespace, gpus: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, before in CORES.items():
        words = ["--config", "pong", "--device", "cpu"]
        row = {"name": name, **_train(words, asked.seconds, before=before)}
        learnt = _train(
            [*words, "--stop-at-return", "18"], asked.longest, before=before, endless=False
        )
        row["seconds_to_18"] = (
            learnt["seconds"] if learnt["exit"]["cause"] == "stop_at_return" else None
        )
        print(
            f"  {name:16s} {row['steps_per_second']:9,.0f} steps/s, 18 after {row['seconds_to_18']} s",
            flush=True,
        )
        rows.append(row)
    return rows


def _trainings(runs: dict[str, list[str]], asked: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, words in runs.items():
        preset = "--config" in words
        row: dict[str, Any] = {"name": name}
        try:
            row |= _train(words if preset else [PONG, "algorithm:vtrace", *words], asked.seconds)
        except Failed as error:
            print(f"  {name:16s} {error}", flush=True)
            rows.append({**row, "failed": str(error)})
            continue
        print(f"  {name:16s} {row['steps_per_second']:9,.0f} steps/s, GPU {row['gpu_percent']:.0f} %, "
              f"learner waits {row['share/wait_learner']:.0%}, actor {row['share/wait_actor']:.0%}",
              flush=True)  # fmt: skip
        rows.append(row)
    return rows


def _learn(asked: argparse.Namespace, gpus: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    script = Path(__file__).with_name("score_run.py")
    for seed in range(1, asked.seeds + 1):
        with tempfile.TemporaryDirectory() as home:
            folder = Path(home) / "run"
            began = time.time()
            _run(["train", "--config", asked.preset, "--seed", str(seed), "--run-folder", str(folder),
                  "--stop-after-seconds", str(asked.learn), "--stop-at-return", "none",
                  "--checkpoint-every-seconds", "3", "--keep-checkpoints", "0",
                  "--evaluation.every-seconds", "0", "--no-checkpoint-replay", *asked.settings])  # fmt: skip
            summary = json.loads((folder / "summary.json").read_text())
            # Seconds from the command, the interpreter's start included.
            saved = {
                int(path.name): path.stat().st_mtime - began
                for path in (folder / "checkpoints").iterdir()
                if path.name.isdigit()
            }
            words = [str(folder), "--target", "18", "--episodes", "10", "--skip-below", str(asked.skip_below), "--window", "20"]  # fmt: skip
            done = subprocess.run(
                [sys.executable, str(script), *words], capture_output=True, text=True
            )
        if done.returncode:
            raise Failed(f"score_run.py, seed {seed}: {done.stderr.strip()[-800:]}")
        played = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
        scores = [(round(saved[x["updates"]], 1), x["mean"]) for x in played]
        means = {x["updates"]: x["mean"] for x in played}
        # Two in a row: one between them that was not played may be worse.
        held = [
            round(saved[first], 1)
            for first, second in itertools.pairwise(sorted(saved))
            if min(means.get(first, -21.0), means.get(second, -21.0)) >= 18
        ]
        row = {"seed": seed, "seconds_to_18": held[0] if held else None, "scores": scores,
               **{name: summary[name] for name in ("env_steps", "seconds", "steps_per_second",
                                                   "mean_return_last_100")}}  # fmt: skip
        reached = f"18 after {held[0]:.1f} s" if held else f"not 18 in {asked.learn:g} s"
        each = ", ".join(f"{seconds:.0f} s {mean:.1f}" for seconds, mean in scores)
        print(f"  seed {seed}: {reached}, {summary['env_steps']:,} env steps; {each}", flush=True)
        rows.append(row)
    return rows


def _several(asked: argparse.Namespace, gpus: int) -> list[dict[str, Any]]:
    if gpus < 2:
        print("  one GPU: left out")
        return []
    each = ["--num-learners", str(gpus)]
    runs = {
        "one learner": [],
        "all-reduce, nccl": ["topology:allreduce", "--topology.transport", "nccl", *each],
        "all-reduce, memory": ["topology:allreduce", "--topology.transport", "memory", *each],
        "gossip": ["topology:gossip", *each],
    }
    return _trainings(runs, asked)


def _kill(asked: argparse.Namespace, gpus: int) -> dict[str, bool]:
    script = Path(__file__).with_name("kill_resume.py")
    many = ["--kills", "1", "--env", "CartPole-v1"] if asked.dry else ["--kills", "5"]
    device = "auto" if asked.dry else "cuda"
    words = [*many, "--", "--device", device, "--deterministic", "--lag", "1", "algorithm:vtrace"]
    done = subprocess.run([sys.executable, str(script), *words], text=True, capture_output=True)
    print("  " + "\n  ".join((done.stdout + done.stderr).strip().splitlines()), flush=True)
    return {"survived": done.returncode == 0}


def _train(
    words: list[str], seconds: float, *, before: Sequence[str] = (), endless: bool = True
) -> dict[str, Any]:
    """Train for some time, the command behind others; return its summary, and the means of its later metrics.

    Only an endless run is certain to last that long; the schedules of another are those of its settings.
    """
    steps = ["--total-env-steps", "100_000_000"] if endless else []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        _run(["train", *words, "--run-folder", str(folder), "--stop-after-seconds", str(seconds),
              *steps, "--evaluation.every-seconds", "0"], before)  # fmt: skip
        summary = json.loads((folder / "summary.json").read_text())
        rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    later = rows[len(rows) // 3 :]
    names = ("gpu_percent", "gpu_memory_bytes", "share/wait_learner", "share/wait_actor",
             "share/env", "share/inference", "share/learn")  # fmt: skip
    means: dict[str, float] = {}
    for name in names:
        held = [row[name] for row in later if row.get(name) is not None]
        means[name] = sum(held) / len(held) if held else float("nan")
    rate = summary["steps_per_second"]  # None: no update in this time
    return {**summary, **means, "steps_per_second": float("nan") if rate is None else rate}


def _run(words: list[str], before: Sequence[str] = ()) -> str:
    command = [*before, sys.executable, "-m", "gossamer", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:  # taskset is not everywhere
        raise Failed(str(error)) from None
    if done.returncode:
        raise Failed(f"gossamer {' '.join(words)}: {done.stderr.strip()[-800:]}")
    return done.stdout


PARTS = {
    "start": _start,
    "speed": _speed,
    "limit": _limit,
    "learn": _learn,
    "cores": _cores,
    "several": _several,
    "kill": _kill,
}

if __name__ == "__main__":
    main()
