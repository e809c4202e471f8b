"""Compare training with other trainers: side by side, in one run, each in its own venv.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py --table peers.md --picture peers.svg

Absolute speeds drift with the machine, so trainers alternate within a task and every repeat yields one ratio. Each run
adds a line to the output as it ends; the same command goes on with the runs that are missing. With `--table` or
`--picture` nothing is trained: both come from the output alone. Needs only the standard library, and matplotlib for
the picture; a peer's venv is made when it is missing. What the figures mean: `README.md` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PEERS_FOLDER = Path(__file__).resolve().parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
OURS = VENV_PYTHON if VENV_PYTHON.exists() else Path(sys.executable)
"""gossamer's interpreter: the one `make` made, or the one that runs this."""
OUTPUT = ROOT / "runs" / "peers.jsonl"
GRACE_SECONDS = 300.0
"""Starting, compiling, the first update and saving come on top of the training time asked for."""
INSTALL_SECONDS = 1800.0
LOAD_SECONDS = 5.0
"""How long the machine is watched before each run."""
MAX_LOAD = 0.5
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Something that every trainer is asked to do."""

    name: str
    env_id: str
    title: str
    """Heads a column of the table."""
    seconds: float
    """Training time at most."""
    score: float | None = None
    """Ends a run: mean return of the last 100 training episodes."""
    total_env_steps: int | None = None
    """Ends a run."""


TASKS = {
    task.name: task
    for task in (
        Task("pong-speed", "PongNoFrameskip-v4", "Pong, steps/s", 60),
        Task("pong-18", "PongNoFrameskip-v4", "Pong, seconds to 18", 3600, score=18),
        Task("cartpole-475", "CartPole-v1", "CartPole, seconds to 475", 300, score=475),
        Task(
            "halfcheetah-1m",
            "HalfCheetah-v5",
            "HalfCheetah, return at 1 M steps (seconds)",
            3600,
            total_env_steps=1_000_000,
        ),
    )
}
PONG = ("pong-speed", "pong-18")
VECTORS = ("cartpole-475", "halfcheetah-1m")


@dataclass(frozen=True)
class Gossamer:
    """gossamer with an algorithm's presets."""

    title: str
    settings: str
    """Where the settings come from."""
    words: dict[str, tuple[str, ...]]
    """`gossamer train` arguments by task."""
    gpu_only = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """Which tasks it is given."""
        return tuple(self.words)

    def install(self) -> Row:
        """Nothing to install: it is the checkout this file is in."""
        return {}

    def measure(self, task: Task, *, seconds: float, seed: int, device: str) -> Row:
        """Train once; return speed, score and times."""
        with tempfile.TemporaryDirectory(prefix="gossamer-peers-") as scratch:
            folder = Path(scratch) / "run"
            steps = task.total_env_steps or 1_000_000_000
            goal = "none" if task.score is None else str(task.score)
            command = [
                *(str(OURS), "-m", "gossamer", "train", *self.words[task.name]),
                *("--seed", str(seed), "--device", device, "--stop-at-return", goal),
                *("--stop-after-seconds", str(seconds), "--run-folder", str(folder)),
            ]
            # A schedule runs over all steps: where a score ends the run, they are the preset's.
            if task.score is None:
                command += ["--total-env-steps", str(steps)]
            began = time.monotonic()
            run_quietly(command, seconds, {"PYTHONPATH": str(ROOT / "src")})
            wall = time.monotonic() - began
            summary = json.loads((folder / "summary.json").read_text())
        reached = summary["exit"]["cause"] == "stop_at_return"
        return {
            "steps_per_second": summary["steps_per_second"],
            "env_steps": summary["env_steps"],
            "seconds": round(wall, 3),
            # To the end of the process, saving included: a little to our disadvantage.
            "seconds_to_return": round(wall, 3) if reached else None,
            "env_steps_to_return": summary["env_steps"] if reached else None,
            "mean_return": summary["mean_return_last_100"],
            "versions": own_versions(),
        }


@dataclass(frozen=True)
class Peer:
    """Another trainer: what it is, how to install it and how to measure it once."""

    title: str
    settings: str
    """Where the settings come from."""
    folder: str
    """Below benchmarks/peers: requirements.txt and train.py."""
    tasks: tuple[str, ...]
    rival: str
    """Which of gossamer's algorithms its speed is compared with."""
    arguments: tuple[str, ...] = ()
    gpu_only: bool = False
    clone: str = ""
    """Environment variable that names a clone of its repository, where no registry has it."""

    @property
    def venv(self) -> Path:
        """Where its packages live; git-ignored."""
        return ROOT / f".venv-{self.folder}"

    def install(self) -> Row:
        """Make the venv if it is missing or older than the requirements; return an error if that fails."""
        if self.clone and not os.environ.get(self.clone):
            return {"error": f"in no registry; {self.clone} names no clone of its repository"}
        folder = PEERS_FOLDER / self.folder
        lists = [
            folder / name
            for name in ("requirements.txt", "without-dependencies.txt")
            if (folder / name).exists()
        ]
        stamp = self.venv / ".installed"
        newest = max(path.stat().st_mtime for path in lists)
        if stamp.exists() and stamp.stat().st_mtime >= newest:
            return {}
        print(f"installing {self.title} into {self.venv.name} ...", file=sys.stderr)
        pip = [str(self.venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        commands = [[sys.executable, "-m", "venv", str(self.venv)]]
        for path in lists:
            alone = ["--no-deps", "--ignore-requires-python"] if path.name.startswith("w") else []
            commands.append([*pip, *alone, "-r", str(path)])
        for command in commands:
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
                )
            except subprocess.TimeoutExpired:
                return {"error": f"pip had not ended after {INSTALL_SECONDS:g} s"}
            # pip may warn about package folders that a machine has configured and not got.
            if done.returncode:
                return {"error": last_errors(done.stderr or done.stdout)}
        stamp.touch()
        return {}

    def measure(self, task: Task, *, seconds: float, seed: int, device: str) -> Row:
        """Train once; return speed, score and times."""
        command = [
            str(self.venv / "bin" / "python"),
            str(PEERS_FOLDER / self.folder / "train.py"),
            *("--env", task.env_id, "--seconds", str(seconds), "--seed", str(seed)),
            *("--device", device, *self.arguments),
        ]
        if task.score is not None:
            command += ["--stop-at-return", str(task.score)]
        if task.total_env_steps is not None:
            command += ["--total-env-steps", str(task.total_env_steps)]
        added = {"PYTHONPATH": str(PEERS_FOLDER), "PEER_STARTED_AT": repr(time.time())}
        return read_result(run_quietly(command, seconds, added))


OUR_PRESET = "gossamer's preset `pong`: 16 envs, unrolls of 64, 3 epochs of 4 minibatches, 6e-4"
OWN, AS_OURS = ("--settings", "own"), ("--settings", "ours")
TRAINERS: dict[str, Gossamer | Peer] = {
    "gossamer": Gossamer(
        "gossamer PPO",
        "presets `pong` and `ppo_halfcheetah`; CartPole: the id alone",
        {
            "pong-speed": ("--config", "pong"),
            "pong-18": ("--config", "pong"),
            "cartpole-475": ("CartPole-v1",),
            "halfcheetah-1m": ("--config", "ppo_halfcheetah"),
        },
    ),
    "gossamer-vtrace": Gossamer(
        "gossamer V-trace",
        "presets `bench` and `halfcheetah`; else the id alone",
        {
            "pong-speed": ("--config", "bench"),
            "pong-18": ("PongNoFrameskip-v4", "--algorithm", "vtrace"),
            "cartpole-475": ("CartPole-v1", "--algorithm", "vtrace"),
            "halfcheetah-1m": ("--config", "halfcheetah"),
        },
    ),
    "sb3-a2c": Peer(
        "Stable-Baselines3 A2C",
        "RL Baselines3 Zoo, `hyperparams/a2c.yml`; HalfCheetah: the library's defaults",
        "sb3",
        (*PONG, *VECTORS),
        "gossamer-vtrace",
        ("--algorithm", "a2c", *OWN),
    ),
    "sb3-ppo": Peer(
        "Stable-Baselines3 PPO",
        "RL Baselines3 Zoo, `hyperparams/ppo.yml`",
        "sb3",
        (*PONG, *VECTORS),
        "gossamer",
        ("--algorithm", "ppo", *OWN),
    ),
    "sb3-ppo-ours": Peer(
        "Stable-Baselines3 PPO, our settings",
        OUR_PRESET,
        "sb3",
        PONG,
        "gossamer",
        ("--algorithm", "ppo", *AS_OURS),
    ),
    "cleanrl": Peer(
        "CleanRL PPO",
        "defaults of its scripts `ppo_atari`, `ppo` and `ppo_continuous_action`",
        "cleanrl",
        (*PONG, *VECTORS),
        "gossamer",
        OWN,
    ),
    "cleanrl-ours": Peer(
        "CleanRL PPO, our settings", OUR_PRESET, "cleanrl", PONG, "gossamer", AS_OURS
    ),
    "leanrl": Peer(
        "LeanRL PPO",
        "defaults of its script `ppo_atari_envpool_torchcompile`, with `--compile --cudagraphs`",
        "leanrl",
        PONG,
        "gossamer",
        gpu_only=True,
        clone="LEANRL_FOLDER",
    ),
    "sample-factory": Peer(
        "Sample Factory APPO",
        "the package's examples: `sf_examples.atari`, `.train_gym_env` and `.mujoco`",
        "sample_factory",
        (*PONG, *VECTORS),
        "gossamer",
        OWN,
    ),
    "sample-factory-ours": Peer(
        "Sample Factory APPO, our settings",
        OUR_PRESET,
        "sample_factory",
        PONG,
        "gossamer",
        AS_OURS,
    ),
    "rl-games": Peer(
        "rl_games PPO on EnvPool",
        "the package's `ppo_pong_envpool`, `ppo_cartpole` and `halfcheetah_envpool` (`.yaml`)",
        "rl_games",
        (*PONG, *VECTORS),
        "gossamer",
        OWN,
    ),
    "rl-games-ours": Peer(
        "rl_games PPO on EnvPool, our settings", OUR_PRESET, "rl_games", PONG, "gossamer", AS_OURS
    ),
    "rllib": Peer(
        "RLlib IMPALA",
        "its examples `pong_impala.py` and `cartpole_impala.py`; there is none for HalfCheetah",
        "rllib",
        (*PONG, "cartpole-475"),
        "gossamer-vtrace",
    ),
    "torchbeast": Peer(
        "TorchBeast MonoBeast",
        "defaults of `torchbeast.monobeast`",
        "torchbeast",
        PONG,
        "gossamer-vtrace",
    ),
}


class RunError(Exception):
    """A trainer ended without a result."""


def run_quietly(command: list[str], seconds: float, added: dict[str, str]) -> str:
    """Run a command with all of its children; return its standard output.

    Raises:
        RunError: it failed, or took longer than the seconds asked for and those of grace.
    """
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "WANDB_MODE": "disabled", **added}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            text=True,
            env=environment,
            cwd=ROOT,
            # A group of its own: some trainers leave processes behind.
            start_new_session=True,
        )
        try:
            code = process.wait(seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process)
        output.seek(0)
        errors.seek(0)
        if code is None:
            raise RunError(f"no result after {seconds + GRACE_SECONDS:g} s")
        if code:
            raise RunError(f"exit code {code}: {last_errors(errors.read() or output.read())}")
        return output.read()


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill whatever is left of a process and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def last_errors(text: str) -> str:
    """Return the lines of an output that say what went wrong, on one line and without this machine's folders."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not line.startswith("WARNING")]
    chosen = " / ".join((named or lines or ["it said nothing"])[-2:])
    for folder in (str(ROOT), sys.prefix, sys.base_prefix, str(Path.home())):
        chosen = chosen.replace(folder, ".")
    return chosen[:300]


def read_result(output: str) -> Row:
    """Return the last JSON line of an output.

    Raises:
        RunError: there is none.
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
    raise RunError("it printed no result")


def own_versions() -> dict[str, str]:
    """Return what gossamer ran with."""
    program = (
        "import json; from importlib.metadata import version; import platform; "
        "print(json.dumps({'python': platform.python_version(), "
        "**{name: version(name) for name in ('torch', 'numpy', 'gymnasium', 'ale-py')}}))"
    )
    done = subprocess.run([str(OURS), "-c", program], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def machine(device: str) -> str:
    """Name the processor, its cores and the GPU that is used."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        name = models[0].split(":", 1)[1].strip() if models else name
    words = f"{name}, {os.cpu_count() or 1} cores"
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        if shutil.which(query[0]) is None:
            return f"{words}, GPU"
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        words += f", {(done.stdout.splitlines() or ['GPU'])[0].strip()}"
    return words


def busy_cores(seconds: float = LOAD_SECONDS) -> float:
    """Return how many cores were busy in the mean of so many seconds; where the system does not count, the load average.

    A load average remembers the run before for minutes; this does not.
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return os.getloadavg()[0]

    def ticks() -> tuple[int, int]:
        numbers = [int(x) for x in stat.read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    before = ticks()
    time.sleep(seconds)
    after = ticks()
    total, idle = after[0] - before[0], after[1] - before[1]
    if total == 0:  # as under gVisor, which counts nothing
        return os.getloadavg()[0]
    return (os.cpu_count() or 1) * (1 - idle / max(total, 1))


def wait_for_quiet(limit: float, seconds: float, load: Callable[[], float]) -> float:
    """Return the load once it is below a limit, or after so many seconds as it is then."""
    until = time.monotonic() + seconds
    while True:
        found = load()
        if found <= limit or time.monotonic() >= until:
            return found


def read_rows(path: Path) -> list[Row]:
    """Return an output's rows; a last line that was cut off is left out."""
    rows: list[Row] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                print(f"{path}: a line that is not JSON is left out", file=sys.stderr)
    return rows


def add_row(path: Path, row: Row) -> None:
    """Add a row, on a line of its own even behind one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        if text and not text.endswith("\n"):
            file.write("\n")
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


WHOLE = 0.99
"""Fraction of the env steps asked for that counts as all: some trainers end with the last whole update before."""
KEY = ("task", "trainer", "seed", "asked_seconds", "device", "machine")


def key_of(row: Row) -> tuple[Any, ...]:
    """Return what tells a run from others."""
    return tuple(row.get(name) for name in KEY)


def plan(asked: argparse.Namespace, trainers: dict[str, Any]) -> Iterator[tuple[Task, str, int]]:
    """Yield tasks, trainers and seeds, in the order in which they run."""
    for name in asked.tasks:
        task = TASKS[name]
        seeds = range(1, asked.repeats + 1) if task.name == "pong-speed" else asked.seeds
        for index, seed in enumerate(seeds):
            able = [key for key, x in trainers.items() if name in x.tasks]
            # Back and forth, so that a machine that slows down does not favour whoever is first.
            for key in able if index % 2 == 0 else reversed(able):
                yield task, key, seed


def seconds_of(asked: argparse.Namespace, task: Task) -> float:
    """Return how long a task may train."""
    if task.name == "pong-speed":
        return asked.seconds or task.seconds
    return min(task.seconds, asked.limit_seconds or task.seconds)


def measure_all(
    asked: argparse.Namespace,
    trainers: dict[str, Any],
    load: Callable[[], float] = busy_cores,
) -> int:
    """Install and run what is missing; return how many runs were refused because the machine was busy."""
    where = machine(asked.device)
    rows = read_rows(asked.output)
    done = {key_of(row) for row in latest(rows) if not again(row, asked)}
    installed: dict[str, Row] = {}
    refused = 0
    for task, name, seed in plan(asked, trainers):
        trainer, seconds = trainers[name], seconds_of(asked, task)
        row: Row = {
            "kind": "run",
            "task": task.name,
            "trainer": name,
            "seed": seed,
            "asked_seconds": seconds,
            "device": asked.device,
            "machine": where,
        }
        if key_of(row) in done:
            continue
        if name not in installed:
            installed[name] = trainer.install()
            if "error" in installed[name]:
                print(f"{name}: not installed: {installed[name]['error']}", file=sys.stderr)
            told = {"kind": "install", "trainer": name, "machine": where, **installed[name]}
            add_row(asked.output, told)
        if "error" in installed[name] or (trainer.gpu_only and asked.device != "cuda"):
            continue
        found = wait_for_quiet(asked.max_load, 0 if asked.busy else asked.wait_seconds, load)
        busy = found > asked.max_load
        if busy and not asked.busy:
            print(
                f"{task.name}, {name}, seed {seed}: not run, {found:.1f} cores are busy",
                file=sys.stderr,
            )
            refused += 1
            continue
        row |= {"load": round(found, 2), "busy": busy, "when": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            row |= trainer.measure(task, seconds=seconds, seed=seed, device=asked.device)
        except RunError as error:
            row["error"] = str(error)
        add_row(asked.output, row)
        print(f"{task.name}, {name}, seed {seed}: {in_words(row)}", file=sys.stderr, flush=True)
    return refused


def again(row: Row, asked: argparse.Namespace) -> bool:
    """Whether a run is to be repeated: it failed, or the machine was busy and may not be now."""
    return (asked.retry and "error" in row) or (row["busy"] and not asked.busy)


def in_words(row: Row) -> str:
    """Say in a line what a run gave."""
    if "error" in row:
        return f"failed: {row['error']}"
    speed = row["steps_per_second"]
    words = [f"{row['env_steps']:,} env steps in {row['seconds']:.0f} s"]
    words += [f"{speed:,.0f} steps/s"] if speed is not None else []
    words += [f"mean return {row['mean_return']:.1f}"] if row["mean_return"] is not None else []
    if row["seconds_to_return"] is not None:
        words.append(f"score reached after {row['seconds_to_return']:.0f} s")
    return ", ".join(words) + (" (busy machine)" if row["busy"] else "")


def latest(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each run."""
    found = {key_of(row): row for row in rows if row["kind"] == "run"}
    return list(found.values())


def listing(values: list[float], spec: str) -> str:
    """Format a median, and every value after it."""
    if len(values) == 1:
        return format(values[0], spec)
    each = ", ".join(format(value, spec) for value in values)
    return f"{statistics.median(values):{spec}} ({each})"


def cell(task: Task, runs: list[Row]) -> str:
    """Return what a task's runs of one trainer gave."""
    if not runs:
        return "not measured yet"
    good = [row for row in sorted(runs, key=lambda row: row["seed"]) if "error" not in row]
    if task.name == "pong-speed":
        speeds = [x["steps_per_second"] for x in good if x["steps_per_second"] is not None]
        words = listing(speeds, ",.0f") if speeds else "too short" if good else "failed"
    elif task.score is not None:
        each = [
            f"{row['seconds_to_return']:,.0f}"
            if row["seconds_to_return"] is not None
            else f"not in {row['seconds']:,.0f} ({score_in_words(row)})"
            for row in good
        ]
        words = ", ".join(each) or "failed"
    else:
        # A run that was ended by its time limit says how far it came.
        short = WHOLE * (task.total_env_steps or 0)
        each = [
            f"{score_in_words(row)} ({row['seconds']:,.0f} s"
            + (f", {row['env_steps']:,} steps)" if row["env_steps"] < short else ")")
            for row in good
        ]
        words = ", ".join(each) or "failed"
    if good and len(good) < len(runs):
        words += f", {len(runs) - len(good)} failed"
    return words + (" (busy)" if any(row["busy"] for row in runs) else "")


def score_in_words(row: Row) -> str:
    """Return a run's mean return."""
    mean = row["mean_return"]
    return "no episode" if mean is None else f"{mean:,.1f}" if abs(mean) < 100 else f"{mean:,.0f}"


def ratios(name: str, trainer: Any, rows: list[Row]) -> str:
    """Return by how much gossamer is faster than a peer, repeat by repeat."""
    if not isinstance(trainer, Peer):
        return ""

    def speeds(of: str) -> dict[tuple[Any, ...], float]:
        return {
            (row["seed"], row["asked_seconds"]): row["steps_per_second"]
            for row in rows
            if row["task"] == "pong-speed"
            and row["trainer"] == of
            and row.get("steps_per_second") is not None
        }

    ours, theirs = speeds(trainer.rival), speeds(name)
    pairs = [ours[x] / theirs[x] for x in sorted(ours.keys() & theirs.keys())]
    return listing(pairs, ".2f") if pairs else "not measured yet"


def table(rows: list[Row], trainers: dict[str, Any] = TRAINERS) -> str:
    """Return Markdown: for each machine a table of results, then what installs, then what failed."""
    runs = latest(rows)
    missing = {
        row["trainer"]: "error" in row for row in rows if row["kind"] == "install"
    }  # whether it is, as it was last tried
    lines: list[str] = []
    places = list(dict.fromkeys((row["machine"], row["device"]) for row in runs))
    for where, device in places:
        here = [row for row in runs if (row["machine"], row["device"]) == (where, device)]
        heads = [task.title for task in TASKS.values()]
        heads.insert(1, "gossamer is faster by")
        if lines:
            lines.append("")
        lines += [f"{where}, device {device}:", "", f"| trainer | {' | '.join(heads)} |"]
        lines.append("|---" * (len(heads) + 1) + "|")
        for name, trainer in trainers.items():
            if trainer.gpu_only and device != "cuda":
                continue
            cells = [
                cell(task, [x for x in here if x["task"] == task.name and x["trainer"] == name])
                if task.name in trainer.tasks
                else "-"
                for task in TASKS.values()
            ]
            cells.insert(1, ratios(name, trainer, here))
            if missing.get(name) and not any(x["trainer"] == name for x in here):
                cells = ["does not install", *("-" for _ in cells[1:])]
            lines.append(f"| {trainer.title} | {' | '.join(cells)} |")
        if any(row["busy"] for row in here):
            lines += ["", "Busy: the machine was at work when one of these runs started."]
    lines += ["", *installs(rows, trainers)]
    failed = [row for row in runs if "error" in row]
    if failed:
        lines += ["", "| failed run | error |", "|---|---|"]
        for row in failed:
            title = trainers[row["trainer"]].title if row["trainer"] in trainers else row["trainer"]
            lines.append(f"| {title}, {row['task']}, seed {row['seed']} | {quoted(row['error'])} |")
    return "\n".join(lines).strip() + "\n"


def installs(rows: list[Row], trainers: dict[str, Any]) -> list[str]:
    """Return a table of versions, or of what pip said."""
    lines = ["| trainer | settings | installed |", "|---|---|---|"]
    for name, trainer in trainers.items():
        errors = [x for x in rows if x["kind"] == "install" and x["trainer"] == name]
        told = [x["versions"] for x in rows if x.get("versions") and x.get("trainer") == name]
        words = "not tried yet"
        if errors and "error" in errors[-1]:
            words = f"no: {quoted(errors[-1]['error'])}"
        elif told:
            words = ", ".join(f"{package} {version}" for package, version in told[-1].items())
        elif errors:
            words = "yes"
        lines.append(f"| {trainer.title} | {trainer.settings} | {words} |")
    return lines


def quoted(text: str) -> str:
    """Return an error such that it fits into a cell."""
    return text.replace("|", "/").replace("\n", " ")


def draw(rows: list[Row], target: Path, trainers: dict[str, Any] = TRAINERS) -> None:
    """Draw a panel for each task with results: bars, a mark for each seed. The first machine in the rows alone."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    # Fixed ids and no date: the same figures draw the same file.
    mpl.rcParams["svg.hashsalt"] = "gossamer"
    runs = latest(rows)
    here = [row for row in runs if "error" not in row and row["machine"] == runs[0]["machine"]]
    tasks = [task for task in TASKS.values() if any(figures(task, here, x) for x in trainers)]
    if not tasks:
        sys.exit("--picture: there is no result to draw")
    names = [x for x in trainers if any(figures(task, here, x) for task in tasks)]
    figure, panels = plt.subplots(
        *(1, len(tasks)),
        figsize=(2.4 + 2.4 * len(tasks), 0.8 + 0.32 * len(names)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, task in zip(panels[0], tasks, strict=True):
        for height, name in enumerate(names):
            values = figures(task, here, name)
            if not values:
                continue
            ours = isinstance(trainers[name], Gossamer)
            axes.barh(height, statistics.median(values), color="C0" if ours else "0.75")
            axes.plot(values, [height] * len(values), "|", color="0.2", markersize=7)
        axes.set_title(task.title.split(" (")[0], fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_yticks(range(len(names)), [trainers[name].title for name in names])
    panels[0][0].invert_yaxis()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)


def figures(task: Task, runs: list[Row], name: str) -> list[float]:
    """Return what is drawn of a trainer: speeds, seconds to the score of the runs that got there, or returns."""
    field = "steps_per_second" if task.name == "pong-speed" else "mean_return"
    field = "seconds_to_return" if task.score is not None else field
    found = [x for x in runs if x["task"] == task.name and x["trainer"] == name]
    if task.total_env_steps is not None:
        found = [x for x in found if x["env_steps"] >= WHOLE * task.total_env_steps]
    return [row[field] for row in found if row.get(field) is not None]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="results: read, and added to; runs/peers.jsonl"
    )
    parser.add_argument("--peers", nargs="+", choices=list(TRAINERS), default=list(TRAINERS))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of scored tasks")
    parser.add_argument("--repeats", type=int, default=3, help="runs of pong-speed")
    parser.add_argument("--seconds", type=float, help="training time of pong-speed; default: 60")
    parser.add_argument(
        "--limit-seconds",
        type=float,
        help="training time of the other tasks at most; default: an hour, five minutes for CartPole",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--max-load", type=float, default=MAX_LOAD, help="busy cores at which no run starts"
    )
    parser.add_argument(
        "--wait-seconds", type=float, default=300.0, help="how long to wait for a quiet machine"
    )
    parser.add_argument("--busy", action="store_true", help="run all the same, and mark the runs")
    parser.add_argument("--retry", action="store_true", help="repeat runs that failed")
    parser.add_argument("--table", type=Path, help="Markdown to write from the output; no training")
    parser.add_argument("--picture", type=Path, help="picture to draw from the output; no training")
    asked = parser.parse_args(words)
    for name in ("seconds", "limit_seconds"):
        value = getattr(asked, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value:g}: must be above 0")
    if asked.repeats < 1:
        parser.error("--repeats must be at least 1")
    return asked


def main(words: list[str] | None = None) -> None:
    """Measure what is missing and print the table, or write table and picture."""
    asked = parse(words)
    if asked.table is not None or asked.picture is not None:
        rows = read_rows(asked.output)
        if not rows:
            sys.exit(f"{asked.output}: no results")
        if asked.table is not None:
            asked.table.write_text(table(rows))
        if asked.picture is not None:
            draw(rows, asked.picture)
        return
    # Ended from outside, it ends the trainer that it has started: an exception gets there, a signal does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; the same command goes on"))
    refused = measure_all(asked, {name: TRAINERS[name] for name in asked.peers})
    print(table(read_rows(asked.output), {name: TRAINERS[name] for name in asked.peers}), end="")
    if refused:
        sys.exit(f"{refused} runs wait for a quiet machine; the same command goes on with them")


if __name__ == "__main__":
    main()
