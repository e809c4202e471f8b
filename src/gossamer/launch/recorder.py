"""What a run tells: log files, live progress, and the summary; the same for every launcher."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from gossamer.machine import MissingExtra
from gossamer.record.metrics import EpisodeLog, JsonLog, MetricLog
from gossamer.record.progress import Progress

if TYPE_CHECKING:
    from gossamer.actor import Episode
    from gossamer.config import TrainConfig
    from gossamer.evaluator import Evaluation
    from gossamer.group import Group
    from gossamer.record.folder import RunFolder

ROW_SECONDS = 1.0
"""Shortest time between two rows of metrics.jsonl."""
OTHERS_ROW_SECONDS = 10.0
"""The same for learners other than 0."""
WINDOW = 100
"""Episodes behind a mean return."""


def refuse_missing_writers(config: TrainConfig) -> None:
    """Refuse a log that needs a package which is not installed, before anything is written."""
    for name, asked in (("tensorboard", config.tensorboard), ("wandb", config.wandb)):
        if asked and importlib.util.find_spec(name) is None:
            raise MissingExtra(f"--{name} needs the package {name}", name)


class Recorder:
    """Collects what roles report and writes it; safe to call from their threads."""

    def __init__(self, config: TrainConfig, folder: RunFolder, *, began: float, title: str | None):
        self.began = began
        self.seconds_before = 0.0
        self.best_evaluation: float | None = None
        self.last_evaluation: dict[str, float] = {}
        self._config, self._folder = config, folder
        self._title = title
        self._progress: Progress | None = None
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[int] = deque(maxlen=WINDOW)
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._workers: dict[int, psutil.Process] = {}
        self._row_at = self._others_row_at = float("-inf")
        self._shares_at: tuple[float, dict[str, float]] | None = None
        # Steps and seconds behind the first update of every sitting.
        self._paced = [0, 0.0]
        self._first: tuple[float, int] | None = None
        self._last: float | None = None  # when the last version was learnt; closing down is no pace
        self._lag_max = 0.0

    def notice(self, text: str) -> bool:
        """Show a notice in the live panel, from a signal handler too; whether there is a panel."""
        return self._progress is not None and self._progress.notice(text)

    def open(self, *, resumed_at: int | None) -> None:
        """Open the log files, after a resume has cut them."""
        config, folder = self._config, self._folder
        self._metrics = MetricLog(folder.path / "metrics.jsonl")
        t_start = folder.read_json("meta.json")["started_unix"]
        self.episodes = EpisodeLog(folder.path, t_start, config.env_id)
        self._evaluations = JsonLog(folder.path / "evaluation.jsonl")
        self._others: list[Any] = []
        if config.tensorboard:
            from gossamer.record.tensorboard import TensorboardWriter

            self._others.append(TensorboardWriter(folder.path, resumed_at=resumed_at))
        if config.wandb:
            from gossamer.record.wandb_log import WandbLog

            self._others.append(WandbLog(folder.path, folder.read_json("config.json")))
        if self._title is not None:
            self._progress = Progress(
                config.total_env_steps,
                target=config.stop_at_return,
                title=self._title,
                stop_after_seconds=config.stop_after_seconds,
            )

    def seconds(self) -> float:
        """Wall time of the run, over all sittings."""
        return self.seconds_before + time.time() - self.began

    def say(self, text: str) -> None:
        """Show a line and keep it in log.txt."""
        if self._progress:
            self._progress.message(text)
        with suppress(OSError):  # of a full disk those files tell whose loss matters
            self._folder.log(text)

    def on_episode(self, episode: Episode, learner: int = 0) -> None:
        """Record a finished training episode of a learner."""
        with self._lock:
            self._returns.append(episode.episode_return)
            self._lengths.append(episode.length)
        self.episodes.write(
            env=episode.env,
            episode_return=episode.episode_return,
            length=episode.length,
            # Its actor's; the others are about as far.
            env_steps=episode.env_steps * self._config.num_learners,
            learner=learner,
            time_s=self.seconds(),
            truncated=episode.truncated,
        )

    def mean_return(self) -> float | None:
        """Mean return of the last 100 training episodes; None before the first."""
        with self._lock:
            return sum(self._returns) / len(self._returns) if self._returns else None

    def full_window(self) -> bool:
        """Whether the mean return is that of 100 episodes."""
        return len(self._returns) == WINDOW

    def on_evaluation(
        self,
        result: Evaluation,
        *,
        version: int,
        updates: int,
        env_steps: int,
        learner: int | None,
        ships: bool,
    ) -> None:
        """Record an evaluation of a learner, or of the average (None); `ships`: of the run's policy."""
        if ships:
            best = self.best_evaluation
            self.best_evaluation = result.mean if best is None else max(best, result.mean)
            self.last_evaluation = {
                "evaluation_mean": result.mean,
                "evaluation_standard_error": result.standard_error,
                "evaluation_episodes": len(result.returns),
                "evaluation_best": self.best_evaluation,
            }
        self._evaluations.write(
            {
                "time_s": round(self.seconds(), 3),
                "env_steps": env_steps,
                "updates": updates,
                "version": version,
                "learner": "average" if learner is None else learner,
                "mean": result.mean,
                "standard_error": result.standard_error,
                "returns": list(result.returns),
                "lengths": list(result.lengths),
                "truncated": result.truncated,
            }
        )

    def on_version(
        self, group: Group, metrics: list[dict[str, float]], *, last: bool = False
    ) -> None:
        """Record a batch that every learner has learnt, with metrics by rank.

        A row of learner 0 is written at most once a second, those of the others every ten.
        """
        first, env_steps = group.first, group.env_steps
        now = time.monotonic()
        self._lag_max = max(self._lag_max, first.learner.lag_versions)
        if self._first is None:
            self._first = (now, env_steps)
        if last:
            self._last = now
        if now - self._row_at < ROW_SECONDS and not last:
            return
        self._row_at = now
        row = {
            **self._row_of(group, 0, metrics[0]),
            "steps_per_second": self.steps_per_second(env_steps),
            "episodes": self.episodes.count,
            "lag_versions_max": self._lag_max,
            **self._usage(),
            **self._shares(group, now),
            **self.last_evaluation,
            **_gpu(first.plan.device),
        }
        if group.versions is not None:
            row["topology/disagreement"] = group.versions.disagreement()
        with self._lock:
            if self._returns:
                row["return_mean_100"] = sum(self._returns) / len(self._returns)
                row["return_min_100"], row["return_max_100"] = (
                    min(self._returns),
                    max(self._returns),
                )
                row["length_mean_100"] = sum(self._lengths) / len(self._lengths)
        self._lag_max = 0.0
        self._metrics.write(row)
        if len(metrics) > 1 and (last or now - self._others_row_at >= OTHERS_ROW_SECONDS):
            self._others_row_at = now
            for rank in range(1, len(metrics)):
                self._metrics.write(self._row_of(group, rank, metrics[rank]))
        if self._progress:
            self._progress.update(row)
        for other in self._others:
            other.write(row, env_steps)

    def _row_of(self, group: Group, rank: int, metrics: dict[str, float]) -> dict[str, Any]:
        """Return what a learner tells of itself."""
        learner = group.parts[rank].learner
        return {
            "time_s": round(self.seconds(), 3),
            "env_steps": group.env_steps,
            "updates": learner.update,
            "version": learner.version,
            "learner": rank,
            **metrics,
        }

    def _usage(self) -> dict[str, float]:
        """Processor and memory use of this process and the workers it started."""
        cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss
        for child in multiprocessing.active_children():
            with contextlib.suppress(psutil.Error):
                worker = self._workers.setdefault(child.pid or 0, psutil.Process(child.pid))
                cpu += worker.cpu_percent()
                memory += worker.memory_info().rss
        return {"cpu_percent": cpu, "memory_bytes": memory}

    def steps_per_second(self, env_steps: int) -> float | None:
        """Env steps after the first update / seconds since, over all sittings; None before it."""
        steps, seconds = self._pace(env_steps)
        return steps / seconds if seconds > 0 and steps > 0 else None

    def _pace(self, env_steps: int) -> tuple[int, float]:
        if self._first is None:
            return int(self._paced[0]), self._paced[1]
        began, first = self._first
        now = self._last if self._last is not None else time.monotonic()
        return int(self._paced[0]) + env_steps - first, self._paced[1] + now - began

    def _shares(self, group: Group, now: float) -> dict[str, float]:
        """What the time of learner 0 and its actor went into since the last row."""
        parts, mixer = group.first, group.first.learner.mixer
        mixing = mixer.seconds if mixer else 0.0
        waiting = mixer.mailbox.waited_seconds if mixer else 0.0
        spent = {
            "share/env": parts.actor.seconds["env"],
            "share/inference": parts.actor.seconds["inference"],
            "share/learn": parts.learner.seconds["learn"] - mixing - waiting,
            "share/wait_learner": parts.learner.seconds["wait"],
            "share/wait_actor": parts.queue.waited_seconds["slot"] + parts.board.waited_seconds,
            "queue_wait_seconds_fraction": parts.queue.waited_seconds["slot"],
            "share/evaluation": group.evaluator.seconds if group.evaluator else 0.0,
            "share/checkpoint": parts.checkpoint_seconds,
        }
        if mixer:
            spent |= {"share/mix": mixing, "share/wait_peers": waiting}
        before, self._shares_at = self._shares_at, (now, spent)
        if before is None:
            return {}
        took = max(now - before[0], 1e-9)
        return {name: (x - before[1][name]) / took for name, x in spent.items()}

    def state_dict(self, env_steps: int) -> dict[str, Any]:
        """What a resumed run's records continue from."""
        with self._lock:
            return {
                "returns": list(self._returns),
                "lengths": list(self._lengths),
                "episode_rows": self.episodes.count,
                "seconds": self.seconds(),
                "best_evaluation": self.best_evaluation,
                "paced": list(self._pace(env_steps)),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._returns.extend(state["returns"])
        self._lengths.extend(state["lengths"])
        self.seconds_before = state["seconds"]
        self.best_evaluation = state["best_evaluation"]
        self._paced = list(state["paced"])

    def close(self) -> None:
        """Close every file and give the terminal back."""
        if self._progress:
            self._progress.close()
        self._metrics.close()
        self.episodes.close()
        self._evaluations.close()
        for other in self._others:
            other.close()


def _gpu(device: str) -> dict[str, float]:
    if device != "cuda":
        return {}
    import torch

    row: dict[str, float] = {"gpu_memory_bytes": float(torch.cuda.memory_reserved())}
    try:
        row["gpu_percent"] = float(torch.cuda.utilization())
    except Exception:  # noqa: BLE001 - needs NVIDIA's management library, which may be missing
        return row
    return row
