"""Real `gossamer train` processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import held_envs
import pytest
from programs import Program
from runs import rows_of
from waiting import PATIENCE_SECONDS, wait_for

from gossamer.record.checkpoint import CheckpointStore

QUICK = [
    "--num-envs=4",
    "--unroll-length=8",
    "--algorithm.passes=1",
    "--algorithm.num-minibatches=1",
    "--optimizer.schedule=constant",
    "--evaluation.every-seconds=0",
    "--device=cpu",
    "--precision=fp32",
]
"""Settings under which a version takes milliseconds."""


def slow(*values: Any) -> Any:
    """Return a case that is for the slow tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


def fast(chosen: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Return all cases, tuples of values, of which those that are not chosen are for the slow tests."""
    chosen = list(chosen)
    return [*chosen, *(slow(*x) for x in every if x not in chosen)]


def some(values: Sequence[Any], *, every: int) -> list[Any]:
    """Return cases of which each `every`th is for the fast tests, and all are for the slow ones."""
    return [x if i % every == 0 else slow(x) for i, x in enumerate(values)]


class Session:
    """One process; killed at the end of a `with`, whatever happened.

    Args:
        words: after the command.
        cwd: its folder.
        command: of `gossamer`.
        forked: from a process that has imported everything; else a Python of its own.
    """

    def __init__(self, words: list[str], cwd: Path, *, command: str = "train", forked: bool = True):
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        # Files, not pipes: nobody reads while the process runs, and a full pipe would stop it.
        self._files = ExitStack()
        self._out = self._files.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115
        self._err = self._files.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115
        self.stuck = cwd / "stuck"
        """There once an environment of `broken_envs` hangs; of as many letters as hang."""
        self.stuck.unlink(missing_ok=True)
        self.released = cwd / "released"
        """There once environments of `held_envs` need not wait any more."""
        self.released.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "STUCK_FILE": str(self.stuck.absolute()),
            held_envs.VARIABLE: str(self.released.absolute()),
        }
        self.process: subprocess.Popen[bytes] | Program
        if forked:
            out, err = Path(self._out.name), Path(self._err.name)
            self.process = Program([command, *words], cwd, environment, out, err)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gossamer", command, *words],
                cwd=cwd,
                env=environment,
                stdout=self._out,
                stderr=self._err,
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._files.close()

    def end(self, seconds: float = PATIENCE_SECONDS) -> tuple[int, str, str]:
        """Wait for the end; return exit code, standard output and standard error."""
        code = self.process.wait(seconds)
        texts: list[str] = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode())
        return code, texts[0], texts[1]

    def ends(self, code: int = 0, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait for the end, which must be of this exit code; return standard error."""
        found, out, err = self.end(seconds)
        assert found == code, (found, out, err)
        return err

    def release(self) -> None:
        """Let a run of `held_envs` go on to its end."""
        self.released.touch()

    def let_run(self, seconds: float) -> None:
        """Wait, or until it ends if that is sooner."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for(self, happened: Callable[[], object], what: str) -> None:
        wait_for(lambda: happened() or self.process.poll() is not None, what)
        assert self.process.poll() is None, f"ended before {what}: {self.end()}"

    def wait_for_line(self, text: str, folder: Path) -> None:
        """Wait until a run has said so in its log."""
        log = folder / "log.txt"
        self.wait_for(lambda: log.exists() and text in log.read_text(), f"{text!r} in its log")


def run_session(
    words: list[str],
    cwd: Path,
    code: int = 0,
    *,
    seconds: float = PATIENCE_SECONDS,
    forked: bool = True,
) -> str:
    """Run a session to its end, which must be of this exit code; return standard error."""
    with Session(words, cwd, forked=forked) as session:
        return session.ends(code, seconds)


def checkpoints(folder: Path) -> list[int]:
    return CheckpointStore(folder / "checkpoints", 0).list()


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def env_steps_logged(folder: Path) -> int:
    """Env steps of the newest metrics row; 0 before the first."""
    return max((row["env_steps"] for row in rows_of(folder)), default=0)
