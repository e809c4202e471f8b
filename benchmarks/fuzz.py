"""Throw odd command lines, settings files and run folders at gossamer, in this process, and count what falls.

    python benchmarks/fuzz.py --cases 5000 --seed 1

A case is done right if the command ends within a minute with exit code 0, or with 2 and one line, or, where it began to
train, with 1 and no traceback; one that was refused has made and changed nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from gossamer import cli
from gossamer.config import TrainConfig
from gossamer.config.tree import names_of

SECONDS = 60
"""A command that takes longer hangs."""
TINY = ["--num-envs", "4", "--unroll-length", "8", "--placement", "inline", "--evaluation.every-seconds", "0", "--device", "cpu", "--precision", "fp32", "--algorithm.num-minibatches", "1", "--policy.hidden-sizes", "8", "--keep-checkpoints", "1"]  # fmt: skip
BASES = {
    "plain": "train CartPole-v1 algorithm:ppo --lag 0 --total-env-steps 64",
    "replay": "train CartPole-v1 algorithm:laser --lag 1 --replay-ratio 1 --checkpoint-replay --total-env-steps 96 "
    "--replays.1.capacity-steps 1000",
    "gossip": "train CartPole-v1 topology:gossip --num-learners 2 --total-env-steps 128",
}
"""Runs whose folders are spoilt."""
LONG = "x" * 300
DEEP = "[" * 10_000 + "]" * 10_000
NUMBERS: list[Any] = [-1, 0, 1, 2, 0.5, -0.0, 1e18, 10**30, 10**400, 1e300, -1e300, 1e-320, float("nan"), float("inf"),
                      float("-inf")]  # fmt: skip
TEXTS = ["", " ", "none", "true", "auto", "last", "best", "..", "/", "~", "~no-such-user", "~no-such-user/x", LONG, "a/" * 3000,
         "a\0b", "\ud800", "\udc80", "\x1b[2J", "a\nb", "\u0663", "nan", "inf", "1e1000", "1e12", "9" * 400, "9" * 5000, "0x10",
         "1_0", "--", "-", "=", "--=", "{", "[", DEEP, '{"a":' * 2000, "nowhere_at_all:x", "..:x", ":x", "x:", "os:abort",
         "json.decoder:JSONDecoder", "CartPole-v1", "CartPol-v1", "pong", "no.such.toml", "%s", "{}", "$(touch pwned)"]  # fmt: skip
COMMANDS = ["train", "eval", "runs", "list", "bench", "tune", "help", "--version", "trian", ""]
FLAGS = ["--episodes", "--checkpoint", "--learner", "--sample", "--seed", "--json", "--video", "--env", "--trust", "--seconds",
         "--output", "--resume", "--config", "--show-config", "--init-from", "--run-folder", "--help"]  # fmt: skip
FILES = ["config.json", "meta.json", "summary.json", "layers.json", "metrics.jsonl", "episodes.jsonl", "evaluation.jsonl",
         "log.txt", ".lock", ".members", "monitor/0.monitor.csv", "manifest.json", "state.json", "tensors.safetensors"]  # fmt: skip

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

numbers, texts = st.sampled_from(NUMBERS), st.sampled_from(TEXTS) | st.text(max_size=8)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(texts, x, max_size=3), max_leaves=5
)
setting_names = st.sampled_from(sorted(names_of(TrainConfig)))


@dataclass
class Case:
    """One command, and what it finds in the folder it is run in."""

    words: list[str]
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    base: str = ""
    """Of a run folder `run`."""
    spoilt: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    """File, how, and with what."""
    rehashed: bool = True


@st.composite
def command_lines(draw: st.DrawFn) -> Case:
    """Words in any order; nothing that would train or measure for long if it were right."""
    command = draw(st.sampled_from(COMMANDS))
    words = [command]
    flag = st.sampled_from(FLAGS) | setting_names.map(lambda name: "--" + name.replace("_", "-"))
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.integers(0, 5))
        value = draw(st.one_of(texts, numbers.map(_typed), values.map(_json)))
        if kind <= 2:
            words += [draw(flag), value]
        else:
            words.append({3: value, 4: draw(flag), 5: f"{draw(flag)}={value}"}[kind])
    if command == "train":
        words += ["CartPole-v1"] * draw(st.booleans()) + ["--show-config"]
    elif command == "bench":
        words += ["--seconds", draw(st.sampled_from(["1", "nan", "x", "-1", "1e300"]))]
    elif command == "tune":
        words += ["--output", draw(st.sampled_from(["x.json", LONG, "", "~no-such-user/x.toml"]))]
    elif command == "eval":
        words += ["no-such-run"] * draw(st.booleans())
    return Case(words)


@st.composite
def settings_files(draw: st.DrawFn) -> Case:
    """A file of settings, sound, odd or broken."""
    kind = draw(st.sampled_from(["json", "toml"]))
    tree = draw(st.dictionaries(setting_names | texts, values, max_size=4))
    if draw(st.booleans()):
        tree = {"env_id": "CartPole-v1", **tree}
    if kind == "json":
        text = _json(tree)
    else:
        text = "\n".join(
            f"{_json(k) if draw(st.booleans()) else k} = {_json(v)}" for k, v in tree.items()
        )
    form = draw(st.integers(0, 9))
    if form == 0:
        text = draw(st.sampled_from([DEEP, "a=" + DEEP, ".".join("a" * 10_000) + "=1", "[" + ".".join("a" * 10_000) + "]",
                                     "a=" + "{b=" * 10_000, "x = " + "9" * 400, '{"seed": ' + "9" * 5000 + "}", ""]))  # fmt: skip
    content = text.encode(errors="surrogatepass")
    if form == 1:
        content = draw(st.binary(max_size=40))
    if form == 2:
        content = content[: draw(st.integers(0, len(content)))]
    name = f"settings.{kind}"
    how = "pipe" if form == 3 else "folder" if form == 4 else ""
    words = ["train", "--config", name, "--show-config"] + ["CartPole-v1"] * draw(st.booleans())
    return Case(words, {name: content}, spoilt=[(name, how, None)] if how else [])


@st.composite
def run_folders(draw: st.DrawFn) -> Case:
    """A run of which some files were spoilt, and a command that reads it."""
    words = draw(st.sampled_from([
        "eval run --episodes 1", "eval run --episodes 1 --checkpoint best", "eval run --episodes 1 --learner 1",
        "eval run --json --episodes 1 --sample", "train --resume run --total-env-steps 160", "runs .", "runs . --json",
        "train --resume run --show-config", "train CartPole-v1 --init-from run --total-env-steps 32 --run-folder new " + " ".join(TINY),
        "train --config run/config.json --show-config",
    ]))  # fmt: skip
    spoilt: list[tuple[str, str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(FILES))
        how = draw(
            st.sampled_from(
                [
                    "edit",
                    "edit",
                    "edit",
                    "edit",
                    "cut",
                    "bytes",
                    "text",
                    "gone",
                    "pipe",
                    "folder",
                    "link",
                ]
            )
        )
        detail = draw({
            "edit": st.tuples(st.integers(0, 10**6), values, st.sampled_from(["put", "drop", "name"])),
            "cut": st.floats(0, 1), "bytes": st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=9)),
            "text": values.map(_json) | texts,
        }.get(how, st.none()))  # fmt: skip
        spoilt.append((name, how, detail))
    base, rehashed = draw(st.sampled_from(sorted(BASES))), draw(st.integers(0, 3)) > 0
    return Case(words.split(), {}, base, spoilt, rehashed)


cases = st.one_of(command_lines(), settings_files(), run_folders())


def _typed(number: Any) -> str:
    return "9" * 401 if isinstance(number, int) and number > 10**40 else str(number)


def _json(value: Any) -> str:
    return json.dumps(value)


class Hang(BaseException):
    """A command took too long."""


class Fuzzer:
    """Runs cases in folders of their own, and tells what is wrong with how they end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ends: Counter[int] = Counter()
        self.slowest = (0.0, "")
        with contextlib.chdir(folder):
            for name, words in BASES.items():
                code, text, _ = _call([*words.split(), *TINY, "--run-folder", name])
                assert code == 0, text

    def wrong(self, case: Case) -> str:
        """Return what is wrong with how a case ended; empty: nothing."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            with contextlib.chdir(place):
                self._prepare(case, place)
                before = _content_of(place)
                began = time.monotonic()
                code, text, fault = _call(case.words)
                took = time.monotonic() - began
                self.slowest = max(self.slowest, (took, " ".join(case.words)[:200]))
                self.ends[code] += 1
                if not fault and code == 2 and _content_of(place) != before:
                    fault = "refused, and something was made or changed"
                return f"{fault}\n{text[-3000:]}" if fault else ""
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _prepare(self, case: Case, place: Path) -> None:
        for name, content in case.files.items():
            (place / name).write_bytes(content)
        run = place / "run"
        if case.base:
            shutil.copytree(self.folder / case.base, run)
        for name, how, detail in case.spoilt:
            for path in _paths(run if case.base else place, name):
                _spoil(path, how, detail)
        if case.rehashed and case.base:
            for manifest in run.glob("checkpoints/*/manifest.json"):
                _rehash(manifest)


def _paths(folder: Path, name: str) -> list[Path]:
    found = [folder / name, *folder.glob(f"checkpoints/*/{name}")]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _spoil(path: Path, how: str, detail: Any) -> None:
    content = path.read_bytes()
    if how in ("gone", "pipe", "folder", "link"):
        path.unlink()
        if how == "pipe":
            os.mkfifo(path)
        elif how == "folder":
            path.mkdir()
        elif how == "link":
            path.symlink_to(Path(__file__) if len(path.name) % 2 else "/dev/zero")
    elif how == "cut":
        path.write_bytes(content[: int(detail * len(content))])
    elif how == "bytes":
        at = int(detail[0] * len(content))
        path.write_bytes(content[:at] + detail[1] + content[at + len(detail[1]) :])
    elif how == "text":
        path.write_text(detail + "\n", errors="replace")
    elif path.suffix == ".safetensors":
        length = struct.unpack("<Q", content[:8])[0] if len(content) > 8 else 0
        head = _edited(content[8 : 8 + length], *detail)
        path.write_bytes(struct.pack("<Q", len(head)) + head + content[8 + length :])
    elif path.suffix == ".jsonl":
        lines = content.splitlines(keepends=True) or [b"{}\n"]
        at = detail[0] % len(lines)
        lines[at] = _edited(lines[at], *detail) + b"\n"
        path.write_bytes(b"".join(lines))
    elif path.suffix == ".json":
        path.write_bytes(_edited(content, *detail))


def _edited(content: bytes, number: int, value: Any, how: str) -> bytes:
    """Put another value in one place of some JSON, drop that, or give it another name."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return content
    places: list[tuple[Any, Any]] = []
    level = [tree]
    while level:
        one = level.pop()
        keys = (
            list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        )
        for key in keys:
            places.append((one, key))
            level.append(cast("Any", one)[key])
    if places:
        home, key = places[number % len(places)]
        if how == "put":
            home[key] = value
        else:
            held = home.pop(key)
            if how == "name" and isinstance(home, dict):
                home[str(value)[:300]] = held
    return json.dumps(tree, indent=1 if b"\n " in content else None).encode()


def _rehash(manifest: Path) -> None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        held = json.loads(manifest.read_bytes()) if manifest.is_file() else {}
        for name, facts in held["files"].items():
            if (manifest.parent / name).is_file() and not (manifest.parent / name).is_symlink():
                facts["sha256"] = hashlib.sha256((manifest.parent / name).read_bytes()).hexdigest()
        manifest.write_text(json.dumps(held))


def _content_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    found: dict[str, tuple[int, bytes]] = {}
    for path in folder.rglob("*"):
        if path.name not in (".lock", ".members"):
            mode = path.lstat().st_mode
            found[str(path)] = mode, path.read_bytes() if mode & 0o170000 == 0o100000 else b""
    return found


def _call(words: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return exit code, what it printed, and what is wrong with that."""

    def on_alarm(*_: object) -> None:
        raise Hang

    # As in a terminal: what cannot be encoded must not get as far as the stream.
    out_bytes, err_bytes = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(out_bytes, "utf-8", errors="strict")
    err = io.TextIOWrapper(err_bytes, "utf-8", errors="backslashreplace")
    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    fault = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except Hang:
        code, fault = -2, f"no end within {SECONDS} s\n{traceback.format_exc()}"
    except BaseException:  # noqa: BLE001 - what is looked for
        code, fault = -1, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    out.flush()
    err.flush()
    told = err_bytes.getvalue().decode(errors="replace")
    text = out_bytes.getvalue().decode(errors="replace") + told
    if not fault and "Traceback (most recent" in text:
        fault = "a traceback"
    if not fault and code not in (0, 1, 2):
        fault = f"exit code {code}"
    if not fault and code == 2 and [*map(len, told.splitlines())][-1:] > [2000]:
        fault = "a line too long to read"
    if not fault and code == 2 and sum(not _is_warning(line) for line in told.splitlines()) != 1:
        fault = "not one line"
    return code, text, fault


def _is_warning(line: str) -> bool:
    return line.startswith("gossamer: checkpoint ") and line.endswith("instead")


def main() -> int:
    """Run cases and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    faults: Counter[str] = Counter()
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        fuzzer = Fuzzer(Path(folder))

        @settings(max_examples=asked.cases, database=None, deadline=None, phases=[Phase.generate],
                  suppress_health_check=SLOW_IS_FINE)  # fmt: skip
        @seed(asked.seed)
        @given(cases)
        def throw(case: Case) -> None:
            nonlocal done
            done += 1
            if wrong := fuzzer.wrong(case):
                kind = wrong.strip().splitlines()[0]
                faults[
                    "hang"
                    if kind.startswith("no end")
                    else "creation"
                    if kind.startswith("refused")
                    else "traceback"
                ] += 1
                print(f"{str(case)[:1500]}\n{wrong}\n", flush=True)
            if done % 500 == 0:
                print(f"{done} cases, {sum(faults.values())} wrong", file=sys.stderr, flush=True)

        throw()
    took, words = fuzzer.slowest
    print(
        f"{done} cases, seed {asked.seed}: {faults['traceback']} tracebacks or other wrong ends, {faults['hang']} hangs, "
        f"{faults['creation']} creations; exit codes {dict(sorted(fuzzer.ends.items()))}; slowest {took:.1f} s: {words}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
