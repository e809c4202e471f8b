"""The table of metric names, and the append-only logs of a run: metrics, episodes, evaluations."""

from __future__ import annotations

import difflib
import json
import math
import re
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gossamer.errors import RunFailed
from gossamer.record.files import write_whole
from gossamer.system.reading import mapping, open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Metric:
    """Unit and meaning of a logged number."""

    unit: str
    meaning: str


_SHARE = "fraction"

_KINDS = {
    "uniform": "",
    "circular": "",
    "elite": "the distance between a column's present and stored features",
    "attentive": "the distance between a column's features and the newest state's",
}
"""Replays, and what their distances are."""


def _of_replay(kind: str, distance: str) -> dict[str, Metric]:
    columns = "columns in this replay (if shared, those of all learners)"
    found = {f"replay/{kind}_columns": Metric("columns", columns)}
    if not distance:
        return found
    for tenth in (1, 5, 9):
        metric = Metric(
            "1", f"{10 * tenth}th percentile of {distance}, over the last batch's candidates"
        )
        found[f"replay/{kind}_distance_p{10 * tenth}"] = metric
    chosen = Metric("1", f"mean of {distance}, over the last batch's chosen columns")
    return {**found, f"replay/{kind}_distance_chosen": chosen}


METRICS: Mapping[str, Metric] = {
    "time_s": Metric(
        "s",
        "wall time of the run, summed over all sessions; of a killed session only the time until its last checkpoint",
    ),
    "env_steps": Metric(
        "steps", "decisions learnt from, summed over learners; reset rows do not count"
    ),
    "updates": Metric(
        "updates",
        "minibatches that this learner has processed; each is an optimizer step, except before optimizer.learn_start, where "
        "the loss or gradient was not finite, and, in lock-step or on a GPU, where algorithm.max_kl_nats ended the batch",
    ),
    "version": Metric(
        "versions", "batches learnt so far, which is the version of the present parameters"
    ),
    "learner": Metric("rank", "rank of the learner that wrote the row"),
    "steps_per_second": Metric(
        "steps/s", "env steps since the first update, divided by the seconds since then"
    ),
    "episodes": Metric("episodes", "finished training episodes"),
    "return_mean_100": Metric(
        "return",
        "mean return of the last 100 training episodes, with unclipped rewards; with several learners, the same number of episodes from each; on a cluster, from each that has a place",
    ),
    "return_min_100": Metric("return", "smallest return of the last 100 training episodes"),
    "return_max_100": Metric("return", "largest return of the last 100 training episodes"),
    "length_mean_100": Metric("steps", "mean length of the last 100 training episodes"),
    "info/name": Metric(
        "as told",
        "mean of a number of the environment's episode_info over those of the last 100 training episodes that tell it",
    ),
    "learner/return_mean_100": Metric(
        "return",
        "mean return of this learner's own last 100 training episodes; only with several learners",
    ),
    "learner/return_of_n": Metric(
        "return",
        "mean return of the episodes that learner n contributes to return_mean_100; only with several learners",
    ),
    "learner/env_steps": Metric(
        "steps", "env steps of this learner's own actors; only with several learners"
    ),
    "learner/actor_restarts": Metric(
        "restarts",
        "actor processes of this learner that died and were replaced in this session",
    ),
    "learner/loss": Metric(
        "1",
        "mean loss of valid rows (LASER: of accepted ones). What is minimised is their sum, divided by the number of all valid "
        "rows unless algorithm.reduction is sum",
    ),
    "learner/policy_loss": Metric("1", "policy gradient term of the loss, unweighted"),
    "learner/value_loss": Metric(
        "return^2",
        "half the squared error of the value, unweighted; with algorithm.value_norm, errors are in standard deviations",
    ),
    "learner/entropy_nats": Metric(
        "nats", "mean entropy of the policy; LASER: over accepted online rows"
    ),
    "learner/entropy_nats/part": Metric(
        "nats",
        "mean entropy of one part of a joint action; the sum over parts is the policy's entropy",
    ),
    "learner/mean_log_rho": Metric(
        "nats",
        "mean of log pi(a|x) - log mu(a|x), policy pi and behavior mu, over valid rows, including rejected ones; 0 means on-policy",
    ),
    "learner/mean_kl_nats": Metric(
        "nats", "mean KL(behavior || policy) over valid rows, including rejected ones"
    ),
    "learner/clip_fraction": Metric(
        _SHARE, "fraction of rows whose probability ratio is outside PPO's clip range"
    ),
    "learner/grad_norm": Metric("1", "norm of the gradient before clipping"),
    "learner/learning_rate": Metric("1", "learning rate of the last update"),
    "learner/outer_step_ratio": Metric(
        "1",
        "length of outer steps, divided by the length of the parameter change from updates and mixing; only with optimizer.outer_momentum",
    ),
    "learner/advantage_mean": Metric(
        "return", "mean advantage, after normalize_advantage and before scale_rewards"
    ),
    "learner/advantage_std": Metric(
        "return",
        "standard deviation of the advantage, after normalize_advantage and before scale_rewards",
    ),
    "learner/explained_variance": Metric(
        "1",
        "1 - var(target - value) / var(target); 1 is a perfect value function. 0 if var(target) may be rounding error: below a "
        "millionth of the mean square of targets",
    ),
    "learner/value_mean": Metric("return", "mean predicted value"),
    "learner/target_mean": Metric("return", "mean value target"),
    "learner/nonfinite_updates": Metric(
        "updates", "updates skipped so far because the loss or gradient was not finite"
    ),
    "learner/valid_fraction": Metric(
        _SHARE, "fraction of rows that are valid (reset rows and burn-in rows are not)"
    ),
    "learner/rejected_fraction": Metric(
        _SHARE,
        "fraction of valid rows that the trust region rejects, by the KL that algorithm.kl names; learner/mean_kl_nats is always "
        "KL(behavior || policy)",
    ),
    "learner/policy_cloning_loss": Metric(
        "nats",
        "CLEAR's KL(behavior || policy), unweighted mean over replayed rows (LASER: accepted ones)",
    ),
    "learner/value_cloning_loss": Metric(
        "return^2",
        "CLEAR's squared distance to the recorded value, over the rows of learner/policy_cloning_loss, in the unit of "
        "learner/value_loss",
    ),
    "replay/ratio": Metric("1", "replayed columns learnt per online column"),
    "replay/age_updates": Metric(
        "updates",
        "mean age of replayed columns minus mean age of online columns; only the learner's own columns count",
    ),
    "replay/nonfinite_columns": Metric(
        "columns", "columns rejected so far because they contain a non-finite number"
    ),
    **{
        name: metric
        for kind, distance in _KINDS.items()
        for name, metric in _of_replay(kind, distance).items()
    },
    "lag_versions_mean": Metric(
        "versions",
        "mean difference between the learner's version and that of the policy that acted",
    ),
    "lag_versions_max": Metric(
        "versions",
        "largest difference between the learner's version and that of the policy that acted, since the last row",
    ),
    "queue_wait_seconds_fraction": Metric(
        _SHARE, "fraction of actors' time spent waiting because the queue is full"
    ),
    "share/env": Metric(_SHARE, "share of actors' time spent stepping environments"),
    "share/inference": Metric(_SHARE, "share of actors' time spent choosing actions"),
    "share/learn": Metric(_SHARE, "share of the learner's time spent learning"),
    "share/wait_actor": Metric(
        _SHARE, "share of actors' time spent waiting for a slot or for parameters"
    ),
    "share/wait_learner": Metric(
        _SHARE, "share of the learner's time spent waiting for trajectories"
    ),
    "share/replay": Metric(
        _SHARE,
        "share of time spent storing and choosing columns, on the replay's or the learner's thread",
    ),
    "share/wait_replay": Metric(
        _SHARE,
        "share of the learner's time spent assembling batches, including waiting for the replay",
    ),
    "share/mix": Metric(_SHARE, "share of the learner's time spent sending and mixing messages"),
    "share/wait_peers": Metric(
        _SHARE, "share of the learner's time spent waiting for other learners"
    ),
    "share/wait_turn": Metric(
        _SHARE, "share of time spent waiting while other learners of this process ran"
    ),
    "topology/disagreement": Metric(
        "1",
        "mean over learners of |theta - average| / |average|; theta: a learner's parameters, average: their mean over learners",
    ),
    "topology/disagreement_of_n": Metric(
        "1", "|theta - average| / |average| for learner n; see topology/disagreement"
    ),
    "topology/staleness_updates": Metric(
        "mixings",
        "mean over mixed messages: mixings (updates or versions, see topology.every) by which the sender was behind the reader (0 "
        "if it was ahead)",
    ),
    "topology/staleness_updates_of_n": Metric(
        "mixings",
        "mixings by which the messages of learner n were behind the reader; if learner n no longer sends, those of its last message",
    ),
    "topology/messages_per_update": Metric(
        "messages", "messages per mixing (per update or version, see topology.every)"
    ),
    "topology/bytes_per_update": Metric("bytes", "total size of the messages of a mixing"),
    "cluster/hosts": Metric("machines", "machines of the cluster that run learners now"),
    "cluster/learners": Metric("learners", "learners that have a place on these machines now"),
    "cluster/restarts": Metric(
        "restarts", "times in this session that a learner died and was started again"
    ),
    "cluster/sent_bytes_per_second": Metric(
        "bytes/s",
        "messages that this learner's host sends to other hosts",
    ),
    "share/evaluation": Metric(
        _SHARE,
        "seconds of evaluations per second of wall time, counted in the row in which the evaluation ends, so it may exceed 1",
    ),
    "share/checkpoint": Metric(_SHARE, "share of the learner's time spent taking checkpoints"),
    "cpu_percent": Metric(
        "percent",
        "CPU use of all processes of the run, environments' workers included (in a program of yours, of all that it has started); 100 is one core; on a cluster, of those on the supervisor's machine",
    ),
    "others_cpu_percent": Metric(
        "percent", "CPU use of everything else on the same machine; 100 is one core"
    ),
    "memory_bytes": Metric(
        "bytes",
        "resident memory of the same processes; memory that several of them share counts for each",
    ),
    "gpu_percent": Metric("percent", "utilisation of the GPU"),
    "gpu_memory_bytes": Metric("bytes", "GPU memory held by the run"),
    "evaluation_mean": Metric("return", "mean return of the last evaluation"),
    "evaluation_standard_error": Metric(
        "return",
        "standard error of evaluation_mean; with several tasks, computed from the tasks' means",
    ),
    "evaluation_env_steps": Metric(
        "steps",
        "the run's env steps at the last evaluation; of independent learners, the evaluated one's times their number",
    ),
    "evaluation_episodes": Metric("episodes", "episodes in the last evaluation"),
    "evaluation_learner": Metric(
        "rank", "rank of the learner that was evaluated; only for independent learners"
    ),
    "evaluation_best": Metric("return", "mean return of the best policy so far"),
    "evaluation_best_episodes": Metric(
        "episodes", "episodes over which evaluation_best is the mean"
    ),
    "evaluation_candidate": Metric(
        "return", "mean return of the candidate for best policy (not confirmed yet)"
    ),
    "evaluation_held_out_mean": Metric(
        "return", "mean return of the last evaluation on held-out tasks"
    ),
}
"""Every name that `metrics.jsonl` may hold. A new metric gets its line here first."""


OWN = "own/"
"""Prefix of the metrics that come from parts of the user's own; METRICS cannot explain them."""
_TOLD = re.compile(r"^(info/).*", re.DOTALL)
_PARTS = re.compile(r"^(learner/entropy_nats/).*", re.DOTALL)
_LINKS = re.compile(r"^(topology/(?:staleness_updates|disagreement)_of_|learner/return_of_)\d+$")
_NUMBERED = re.compile(rf"^(replay/(?:{'|'.join(_KINDS)}))_(?:[2-9]|[1-9]\d+)_")


def name_in_table(name: str) -> str:
    """Return the name under which METRICS explains one: replays of a kind are numbered, links, parts of actions and what is told of episodes have names."""
    name = _TOLD.sub(r"\1name", name)
    return _PARTS.sub(r"\1part", _LINKS.sub(r"\1n", _NUMBERED.sub(r"\1_", name)))


def plain(value: Any) -> Any:
    """Copy into what strict JSON holds: numpy and torch numbers unwrapped, NaN and inf to null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} does not fit into JSON: {value!r}")


class JsonLog:
    """Append-only file of one JSON object a line, in the operating system's hands at once."""

    def __init__(self, path: Path) -> None:
        """Open for appending; a line cut off by a kill stays one broken line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open_append(path)
        self._writing = threading.Lock()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; OSError on a full disk."""
        line = json.dumps(plain(row)).encode() + b"\n"
        with self._writing:
            _write_all(self._file, line)

    def close(self) -> None:
        """Close the file; further writes raise."""
        self._file.close()


class MetricLog(JsonLog):
    """`metrics.jsonl`: rows of names from METRICS."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; RunFailed for a name that METRICS does not explain."""
        for name in row:
            if not name.startswith(OWN) and name_in_table(name) not in METRICS:
                near = difflib.get_close_matches(name, METRICS, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise RunFailed(
                    f"{name} is no metric of gossamer's{hint}; names of your own metrics begin with own/, as own/{name}"
                )
        super().write(row)


MAX_ROW_BYTES = 1 << 20
"""Longest line of a log, in bytes; a longer one is broken."""
_COUNTED = ("env_steps", "updates", "return", "length", "time_s")
_NUMBER = (int, float, type(None))
MAX_OPEN_MONITORS = 128
"""Files held open at once; a process may often open only 1,024."""
LINES_AT_ONCE = 16
"""Lines that wait for a file which is not open; a resumed run makes up for those that were lost, as `RunFolder.cut` does."""


class EpisodeLog:
    """One line per finished training episode, in `episodes.jsonl` and the env's monitor CSV.

    The CSV is the format of the Baselines family's Monitor, so that its plotting tools read it.
    """

    def __init__(self, folder: Path, t_start: float, env_id: str) -> None:
        """Append to the logs of the run in `folder`.

        Args:
            folder: The run folder.
            t_start: Unix time at which the run began; the header of a new CSV.
            env_id: Environment, likewise.
        """
        path = folder / "episodes.jsonl"
        self.count = 0
        """Rows in `episodes.jsonl`, earlier sessions included."""
        self._folder = folder / "monitor"
        self._folder.mkdir(exist_ok=True)
        self._first_line = "#" + json.dumps({"t_start": t_start, "env_id": env_id})
        self._open: dict[int, tuple[BinaryIO, list[str]]] = {}
        self._waiting: dict[int, list[tuple[dict[str, Any], Mapping[str, float]]]] = {}
        self._writing = threading.Lock()
        there = {x.name for x in self._folder.iterdir()}
        for row in read_rows(path):
            self.count += 1
            env = row.get("env")
            # It waited for its file when the session ended that it was of.
            if isinstance(env, int) and f"{env}.monitor.csv" not in there:
                waiting = self._waiting.setdefault(env, [])
                waiting.append((row, mapping(row.get("info"))))
                if len(waiting) >= LINES_AT_ONCE:
                    self._write_waiting(env, keep_open=False)
        self._rows = JsonLog(path)

    def write(
        self,
        *,
        env: int,
        episode_return: float,
        length: int,
        env_steps: int,
        time_s: float,
        learner: int = 0,
        task: int = 0,
        truncated: bool = False,
        info: Mapping[str, float] | None = None,
    ) -> None:
        """Append one finished episode.

        Args:
            env: Index of the simulator among the run's.
            episode_return: Sum of unclipped rewards.
            length: Decisions.
            env_steps: The run's env steps when it ended; `RunFolder.cut` goes by it.
            time_s: Seconds of the run, over all sessions.
            learner: Rank of the learner.
            task: Index of the task.
            truncated: It ended by a time limit.
            info: What the environment tells of it; the CSV has columns for the names in its first episode.
        """
        row: dict[str, Any] = {
            "time_s": round(time_s, 3),
            "env_steps": env_steps,
            "return": episode_return,
            "length": length,
            "env": env,
            "learner": learner,
            "task": task,
            "truncated": truncated,
        }
        if info:
            row["info"] = dict(info)
        with self._writing:
            self._rows.write(row)
            self.count += 1
            waiting = self._waiting.setdefault(env, [])
            waiting.append((row, info or {}))
            room = env in self._open or len(self._open) < MAX_OPEN_MONITORS
            if room or len(waiting) >= LINES_AT_ONCE:
                self._write_waiting(env, keep_open=room)

    def close(self) -> None:
        """Write what waits, and close every file."""
        with ExitStack() as stack:  # one that cannot be closed leaves the others to be
            stack.callback(self._open.clear)
            stack.callback(self._waiting.clear)
            for env in list(self._waiting):
                stack.callback(self._write_waiting, env, keep_open=False)
            for file, _ in self._open.values():
                stack.callback(file.close)
            stack.callback(self._rows.close)

    def _write_waiting(self, env: int, *, keep_open: bool) -> None:
        waiting = self._waiting.pop(env)
        file, names = self._open.get(env) or self._monitor(env, waiting[0][1])
        try:
            _write_all(file, b"".join(monitor_line(plain(row), names) for row, _ in waiting))
        finally:
            if keep_open:
                self._open[env] = file, names
            else:
                file.close()

    def _monitor(self, env: int, info: Mapping[str, float]) -> tuple[BinaryIO, list[str]]:
        path = self._folder / f"{env}.monitor.csv"
        file = _open_append(path)
        if file.tell() == 0:
            columns = ",".join(["r", "l", "t", *info])
            _write_all(file, f"{self._first_line}\n{columns}\n".encode())
        return file, monitor_head(path)[1]


def monitor_head(path: Path) -> tuple[bytes, list[str]]:
    """Return a monitor CSV's two lines before the first episode, and the names of what is told there.

    Of a file that was killed in its header both are empty.
    """
    with open_plain(path) as file:
        first, columns = file.readline(MAX_ROW_BYTES), file.readline(MAX_ROW_BYTES)
    if not (columns.startswith(b"r,l,t") and columns.endswith(b"\n")):
        return b"", []
    return first + columns, columns.decode(errors="replace").rstrip("\n").split(",")[3:]


def monitor_line(row: Mapping[str, Any], names: Sequence[str] = ()) -> bytes:
    """The line of a monitor CSV that belongs to a row of `episodes.jsonl`; `names` of its header."""
    score, told = row.get("return"), mapping(row.get("info"))
    numbers = [None if score is None else round(score, 6), row.get("length"), row.get("time_s")]
    numbers += (told.get(name) for name in names)
    return (",".join("nan" if x is None else str(x) for x in numbers) + "\n").encode()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file; a missing file has none, a broken line is skipped."""
    try:
        file = open_plain(path)
    except (FileNotFoundError, ValueError):
        return
    with file:
        yield from rows_of(file)


def rows_of(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the rows of an open JSON-lines file; a broken line is skipped."""
    while line := file.readline(MAX_ROW_BYTES):
        row = parse_row(line)
        if row is not None:
            yield row


def tells_of_run(row: Mapping[str, Any]) -> bool:
    """Whether a learner's row tells of the run too: that of the first one which has a place, learner 0 but on a cluster."""
    return not row.get("learner") or "episodes" in row


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None if the line was cut off, or holds words where others count."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row = cast("dict[str, Any]", found)
    return row if all(isinstance(row.get(name, 0), _NUMBER) for name in _COUNTED) else None


def keep_rows(
    path: Path, kept: Callable[[dict[str, Any]], Mapping[str, Any] | None], count: int | None = None
) -> None:
    """Keep rows of a JSON-lines file, which is replaced whole if a row goes or changes.

    Args:
        path: The file.
        kept: Returns a row as it is to be kept; None: it goes.
        count: Keep that many rows at most, the first; None: however many there are.
    """

    def lines() -> Iterator[tuple[bytes, bytes]]:
        """Yield each line with the one that takes its place; empty: it goes."""
        num_kept = 0
        with open_plain(path) as file:
            while line := file.readline(MAX_ROW_BYTES):
                row = parse_row(line)
                new = None if row is None or num_kept == count else kept(row)
                if new is None:
                    yield line, b""
                    continue
                num_kept += 1
                yield line, line if new is row else json.dumps(plain(new)).encode() + b"\n"

    if path.exists() and any(old != new for old, new in lines()):
        write_whole(path, lambda file: file.writelines(new for _, new in lines()))


def _open_append(path: Path) -> BinaryIO:
    file = cast("BinaryIO", path.open("ab+", buffering=0))  # O_APPEND: processes may share it
    if file.seek(0, 2):
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            _write_all(file, b"\n")
    return file


def _write_all(file: BinaryIO, data: bytes) -> None:
    # An unbuffered write may stop early, which is what a nearly full disk does first.
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
