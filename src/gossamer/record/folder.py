"""Run folders: create, find, lock, describe, and cut back to a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import free_disk
from gossamer.record.checkpoint import PARTIAL, CheckpointStore
from gossamer.record.files import LOCK, take_lock, write_bytes, write_text
from gossamer.record.metrics import (
    keep_rows,
    monitor_head,
    monitor_line,
    plain,
    read_rows,
)
from gossamer.record.readers import (
    FolderReader,
    json_in,
    newest_row,
    sessions_in,
    settings_in,
    table_in,
)
from gossamer.record.requests import take
from gossamer.record.runs import find_run, is_run
from gossamer.record.software import describe_machine, git_state, package_versions
from gossamer.system.reading import clipped, expand, mapping, number, quoted, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIN_FREE_BYTES = 64 * 2**20
"""Free space a run needs to begin; the first few checkpoints of an Atari policy."""
MEMBERS = ".members"
MEMBERS_SECONDS = 3.0
"""How long a new session waits for processes of the last one; they end within a second."""
OTHER_FOLDER = "; choose another with --run-folder PATH"
MAX_ENV_NAME = 100
"""Characters of an environment's id in a name of a file or folder."""
_ROW_FILES = ("metrics.jsonl", "episodes.jsonl", "evaluation.jsonl")
_OWN_NAMES = (
    "config.json",
    "layers.json",
    "meta.json",
    "summary.json",
    "processes.json",
    "mixing.json",
    "wandb.json",
)
_OF_A_SESSION = ("meta.json", "layers.json", "mixing.json", "summary.json", "config.json")
"""Files that a session writes over at its beginning or its end; the last one makes the folder a run."""
_OWN_FOLDERS = ("monitor", "checkpoints", "tensorboard", "videos", "wandb")


class RunFolder:
    """One run's folder. `create` and `open` find it; `lock` makes it this process's alone."""

    def __init__(self, path: Path | str, named_in: Path | None = None) -> None:
        """Name a folder without touching it, below `named_in` or the folder that the process is in, which it may leave later."""
        self._named_in = None if Path(path).is_absolute() else named_in or Path.cwd()
        self.path = Path(path) if self._named_in is None else self._named_in / path
        self._lock: int | None = None
        self._member: int | None = None
        self._created: list[Path] = []  # by this object, outermost first
        self._mine: set[str] = set()  # names that nothing had when it was locked

    @property
    def shown(self) -> str:
        """The path as it was named, and as it may be typed in a command."""
        path = self.path if self._named_in is None else self.path.relative_to(self._named_in)
        return f"./{path}" if str(path) == "last" or str(path).startswith("-") else str(path)

    @classmethod
    def create(
        cls,
        path: str | None,
        *,
        env_id: str,
        algorithm: str,
        topology: str,
        seed: int,
        root: str = "runs",
        named_in: Path | None = None,
    ) -> RunFolder:
        """Make a new, locked run folder; ConfigError, and nothing left behind, if that cannot be.

        Args:
            path: Exactly here; None or "" for `<root>/<env>/<algorithm>-<topology>/<time>-s<seed>`.
            env_id: Names the folder, as do the next three.
            algorithm: Its name.
            topology: Its name.
            seed: The run's seed.
            root: Where runs are kept.
            named_in: Folder that a relative path begins in; None: the one that the process is in.
        """
        if path:
            target = expand(path, OTHER_FOLDER)
        else:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            target = cls.path_of(env_id, algorithm, topology, root) / f"{stamp}-s{seed}"
        folder = cls(target, named_in)
        target, shown = folder.path, folder.shown
        if path and (below := _runs_below(target)):
            raise ConfigError(
                f"--run-folder {shown} has other runs below it, such as {below[0]}, which would be hidden; "
                f"name a new folder: --run-folder {quoted(f'{shown}/new')}"
            )
        above = Path(os.path.realpath(target)).parents if path else ()
        if hides := next(filter(is_run, above), None):
            raise ConfigError(
                f"--run-folder {shown} is in the folder of a run, {hides}, which would hide it; name another folder"
            )
        try:
            if not path or not _holds_run(target) or never_learnt(target):
                _check_space(target)
                folder._make(numbered=not path)
                folder.lock()
                if never_learnt(folder.path):
                    folder._clear()
            # Asked again under the lock: another process may have been quicker.
            if _holds_run(folder.path):
                raise ConfigError(
                    f"--run-folder {shown} already holds a run; "
                    f"continue it with --resume {quoted(folder.shown)}, or name another folder"
                )
            new = {x for x in ("log.txt", *_OWN_FOLDERS) if not (folder.path / x).exists()}
            folder._mine = {*_OWN_NAMES, *_ROW_FILES, LOCK, MEMBERS, *new}
        except OSError as error:
            folder.discard()
            raise ConfigError(
                f"cannot write run folder {shown}: {error.strerror}{OTHER_FOLDER}"
            ) from None
        except ConfigError:
            folder.discard()
            raise
        return folder

    @staticmethod
    def path_of(env_id: str, algorithm: str, topology: str, root: str = "runs") -> Path:
        """Return the folder in which runs of such settings are kept, each below its own name."""
        return Path(root) / file_name(env_id) / f"{algorithm}-{topology}"

    @classmethod
    def open(cls, run: str | os.PathLike[str], *, root: str = "runs") -> RunFolder:
        """Find an existing run; not locked, so that a running one can be read.

        Args:
            run: As `find_run` takes it.
            root: Where runs are kept.
        """
        return cls(find_run(run, root))

    def lock(self) -> None:
        """Become the only process that may write here; ConfigError if another one is."""
        if self._lock is not None:
            return
        self._refuse_links()
        # Short patience: whoever lists runs holds the lock for an instant to see if it is free.
        try:
            handle = take_lock(self.path / LOCK, fcntl.LOCK_EX, patience_seconds=0.5)
        except OSError as error:
            raise ConfigError(
                f"cannot lock run folder {self.path}: {error.strerror}; it must exist, be writable "
                "and lie on a file system with locks"
            ) from None
        if handle is None:
            owner = _first_line(self.path / LOCK)
            raise ConfigError(
                f"run folder {self.path} is in use by process {owner}; stop that one first, "
                "or train into another folder"
            )
        members = take_lock(self.path / MEMBERS, fcntl.LOCK_EX, patience_seconds=MEMBERS_SECONDS)
        if members is None:
            os.close(handle)
            raise ConfigError(
                f"processes of an earlier session still run in {self.path}; stop them first"
            )
        os.close(members)
        with suppress(OSError):  # only a message to others; a full disk shows soon enough
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        take(self.path)  # what was asked of an earlier session; from now on this one is asked
        self._lock = handle

    def _refuse_links(self) -> None:
        """Refuse what is written to and is not the folder's own: a link would carry that to another place."""
        names = (*_OWN_NAMES, *_ROW_FILES, "log.txt", LOCK, MEMBERS)
        for path in [
            *(self.path / f"{name}{end}" for name in names for end in ("", ".partial")),
            *(self.path / "monitor").glob("*"),
        ]:
            with suppress(OSError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise ConfigError(
                        f"{path} is not a plain file; remove it, or put one in its place"
                    )
        for path in [
            *map(self.path.__truediv__, _OWN_FOLDERS),
            *(self.path / "checkpoints").glob("*"),
        ]:
            if path.is_symlink():
                raise ConfigError(f"{path} is a link; put the folder that it leads to in its place")

    def join(self) -> int:
        """Return a descriptor for child processes: no new session begins before all that have it open have ended."""
        if self._member is None:
            self._member = take_lock(self.path / MEMBERS, fcntl.LOCK_SH, patience_seconds=1.0)
            if self._member is None:
                raise RunFailed(f"another session has begun in {self.path}; this process ends")
        return self._member

    def unlock(self) -> None:
        """Give up what `lock` or `join` took."""
        for handle in (self._lock, self._member):
            if handle is not None:
                with suppress(OSError):  # an environment may have closed what is not its own
                    os.close(handle)
        self._lock = self._member = None

    def discard(self) -> None:
        """Remove a run that `create` made and that has not begun; of a given folder, its files."""
        for name in self._mine:
            if name in _OWN_FOLDERS:
                shutil.rmtree(self.path / name, ignore_errors=True)
            else:
                (self.path / name).unlink(missing_ok=True)
        for path in reversed(self._created):
            with suppress(OSError):
                path.rmdir()  # refuses to take what someone else put there
        self._created, self._mine = [], set()
        self.unlock()

    def checkpoints(self, keep: int = 0) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.path / "checkpoints", keep)

    def write_json(self, name: str, content: Any, *, exact: bool = False) -> None:
        """Replace a JSON file whole.

        Args:
            name: File name in the folder.
            content: What JSON holds, and numbers of numpy and torch.
            exact: Keep NaN and infinities, as only Python reads them; otherwise they become null.
        """
        text = json.dumps(content if exact else plain(content), indent=1)
        write_text(self.path / name, text + "\n")

    def read_json(self, name: str) -> Any:
        """Content of a JSON file; ConfigError if it is missing or damaged."""
        return json_in(FolderReader(self.path), name, self.path)

    def read_settings(self) -> dict[str, Any]:
        """Return what config.json holds; ConfigError if it is missing or damaged."""
        return settings_in(FolderReader(self.path), self.path)

    def log(self, text: str) -> None:
        """Append a line to log.txt with the time before it."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n"
        # What an environment says need not be text that can be encoded.
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)

    def write_start(
        self,
        config: Mapping[str, Any],
        layers: Mapping[str, Any],
        argv: Sequence[str],
        facts: Mapping[str, Any] | None = None,
        *,
        began: float | None = None,
        seconds_before: float = 0.0,
    ) -> None:
        """Record what is about to run; on resume, add this session to the first one's record.

        Args:
            config: Every setting.
            layers: Which layer set each setting.
            argv: The command line.
            facts: What else meta.json is to hold; None: nothing.
            began: When the command was started, from which the run's times count; None: now.
            seconds_before: Of the run when it was started.
        """
        session = {
            "time_unix": time.time() if began is None else began,
            "seconds_before": seconds_before,
            "utc_offset_s": time.localtime().tm_gmtoff,
            "argv": list(argv),
            "process": os.getpid(),
            "versions": package_versions(),
            "git": git_state(),
            "machine": describe_machine(),
        }
        before = self._sessions()
        started = before[0]["time_unix"] if before else session["time_unix"]
        meta = {"started_unix": started, **(facts or {}), "sessions": [*before, session]}
        self.write_json("meta.json", meta)
        self.write_json("layers.json", layers, exact=True)
        # Last, as it makes the folder a run; exact, as a setting may be infinite.
        self.write_json("config.json", config, exact=True)

    def beginnings(self) -> dict[str, bytes]:
        """Return the content of files that a session writes over, for `put_back`."""
        paths = [self.path / name for name in _OF_A_SESSION]
        return {path.name: read_plain(path) for path in paths if path.exists()}

    def put_back(self, beginnings: Mapping[str, bytes]) -> None:
        """Undo what a session has written that was refused before it learnt anything."""
        for name in _OF_A_SESSION:
            if name in beginnings:
                write_bytes(self.path / name, beginnings[name])
            else:
                (self.path / name).unlink(missing_ok=True)

    def _sessions(self) -> list[Any]:
        """Return the earlier sessions that meta.json tells of; none if it is damaged."""
        try:
            found = sessions_in(mapping(self.read_json("meta.json")))
            began = [float(session["time_unix"]) for session in found]
        except (ConfigError, TypeError, KeyError, ValueError, OverflowError):
            return []
        return found if all(map(math.isfinite, began)) else []

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add to meta.json what was found out after the start."""
        self.write_json("meta.json", {**self.read_json("meta.json"), **facts})

    def note_clock(self, unix: float, seconds: float) -> None:
        """Add to meta.json, for this session, the Unix time at some seconds of the run."""
        meta = self.read_json("meta.json")
        sessions_in(meta)[-1].setdefault("clock", []).append([unix, seconds])
        self.write_json("meta.json", meta)

    def env_steps_told(self) -> int:
        """Return the env steps of the newest row of metrics.jsonl; 0 without one."""
        told = newest_row(FolderReader(self.path)).get("env_steps")
        return told if isinstance(told, int) else 0

    def cut(
        self,
        env_steps: int,
        updates: Mapping[int, int],
        *,
        episodes: int | None = None,
        independent: bool = False,
        scored_by: str = "",
    ) -> float:
        """Drop the log rows later than a checkpoint, and return the run's time at the last of the others. Files are replaced whole.

        Args:
            env_steps: The checkpoint's; rows that tell no updates, as episodes, go if they have more.
            updates: The checkpoint's, by learner; a row goes if its own learner had made fewer. Those of the slowest
                count for rows of the average of all. A row that stays was perhaps written a little after it
                was made, when other learners had gone on: it tells no more env steps than the checkpoint.
            episodes: Keep exactly this many rows of `episodes.jsonl` instead of going by env_steps.
            independent: Learners do not mix, and an evaluation of one tells its own env steps times their number.
            scored_by: Mark of evaluations that have none yet; empty: they get none.
        """
        last, slowest = 0.0, min(updates.values())

        def kept(name: str, row: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal last
            evaluates = name == "evaluation.jsonl"
            if evaluates and scored_by and not row.get("confirmation"):
                row = {**row, "scored_by": row.get("scored_by", scored_by)}
            new = cut_back(row, tells_own=independent and evaluates)
            if new is not None:
                last = max(last, number(row.get("time_s")) or 0.0)
            return new

        def cut_back(row: dict[str, Any], *, tells_own: bool) -> dict[str, Any] | None:
            late = (row.get("env_steps") or 0) > env_steps
            if row.get("updates") is None:
                return None if late else row
            learner = row.get("learner", 0)
            most = updates.get(learner, updates[0]) if isinstance(learner, int) else slowest
            if row["updates"] > most:
                return None
            return {**row, "env_steps": env_steps} if late and not tells_own else row

        for name in _ROW_FILES:
            if name == "episodes.jsonl" and episodes is not None:
                keep_rows(self.path / name, lambda row: row, episodes)
            else:
                keep_rows(self.path / name, partial(kept, name))
        self._rewrite_monitors()
        return last

    def _rewrite_monitors(self) -> None:
        # The CSVs repeat episodes.jsonl, so they are made from it: a kill between the two writes
        # of an episode is healed too.
        monitors = sorted((self.path / "monitor").glob("*.monitor.csv"))
        heads = {path.name: monitor_head(path) for path in monitors}
        lines = {name: [head] for name, (head, _) in heads.items()}
        for row in read_rows(self.path / "episodes.jsonl"):
            name = f"{row.get('env')}.monitor.csv"
            # A file killed inside its header has no episode; EpisodeLog writes a new header.
            if name in heads and heads[name][0]:
                lines[name].append(monitor_line(row, heads[name][1]))
        for path in monitors:
            new = b"".join(lines[path.name])
            if new != path.read_bytes():
                write_bytes(path, new)

    def _clear(self) -> None:
        """Remove the files of a run that has `never_learnt`."""
        for name in (*_OWN_NAMES, *_ROW_FILES, "log.txt"):
            (self.path / name).unlink(missing_ok=True)
        for path in (self.path / "monitor").glob("*.monitor.csv"):
            path.unlink()
        for path in (self.path / "checkpoints").glob(f"*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)
        for name in _OWN_FOLDERS:
            with suppress(OSError):
                (self.path / name).rmdir()  # empty, or somebody else's

    def _make(self, *, numbered: bool) -> None:
        for parent in reversed(self.path.parents):
            if not parent.exists():
                self._mkdir(parent)
        name, number = self.path.name, 1
        while not self._mkdir(self.path) and numbered:
            number += 1
            self.path = self.path.with_name(f"{name}-{number}")
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _mkdir(self, path: Path) -> bool:
        """Make a folder; False if it was there."""
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
            return False
        self._created.append(path)
        return True


def _holds_run(path: Path) -> bool:
    # Stricter than is_run: these must not be overwritten, whoever wrote them.
    names = (*_OWN_NAMES, *_ROW_FILES, "checkpoints")
    return any((path / name).exists() for name in names)


FEW_ROWS = 100
"""Of metrics, before the first checkpoint is on disk."""


def never_learnt(path: Path) -> bool:
    """Whether a folder holds a run of ours that was ended before it learnt anything: there is nothing to continue, nor to lose."""
    files = FolderReader(path)
    sessions = sessions_in(table_in(files, "meta.json"))
    ours = [mapping(x).keys() >= {"time_unix", "argv", "process"} for x in sessions]
    if not ours or not all(ours) or table_in(files, "summary.json").get("env_steps"):
        return False
    if any(any((path / name).glob("*")) for name in ("tensorboard", "videos", "wandb")):
        return False
    if saved := [x.name for x in (path / "checkpoints").glob("*")]:
        # It was killed while it wrote its first one, a moment after its first rows.
        few = len([*islice(read_rows(path / "metrics.jsonl"), FEW_ROWS)]) < FEW_ROWS
        return few and all(name.endswith(PARTIAL) for name in saved)
    return not any(x.exists() and x.stat().st_size for x in map(path.__truediv__, _ROW_FILES))


def file_name(text: str) -> str:
    """Return what of an environment's id can be in a name of a file or folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:MAX_ENV_NAME] or "env"


def _runs_below(target: Path) -> list[Path]:
    return [path.parent for n in (1, 2, 3) for path in target.glob("*/" * n + "config.json")]


def _check_space(path: Path) -> None:
    free = free_disk(path)
    if free < MIN_FREE_BYTES:
        raise ConfigError(
            f"only {free / 2**20:.0f} MiB free at {path}, a run needs "
            f"{MIN_FREE_BYTES / 2**20:.0f} MiB; free some, or choose --run-folder on another disk"
        )


def _first_line(path: Path) -> str:
    with suppress(OSError, ValueError, IndexError):
        return clipped(read_plain(path).decode(errors="replace").splitlines()[0])
    return "unknown"
