"""What a run tells: log files, live progress, and the summary; the same for every placement."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import MissingExtra
from gossamer.record.checkpoint import BEST, CANDIDATE
from gossamer.record.metrics import EpisodeLog, JsonLog, MetricLog, plain
from gossamer.record.progress import Progress
from gossamer.record.window import Window
from gossamer.run.checkpoint_contents import RecorderState
from gossamer.run.pace import Pace
from gossamer.run.usage import Usage
from gossamer.system.reading import without_controls

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.config import TrainConfig
    from gossamer.record.checkpoint import Score, Scored
    from gossamer.record.folder import RunFolder
    from gossamer.roles.acting_group import Episode
    from gossamer.roles.evaluation import Evaluation
    from gossamer.roles.evaluator import Source


DRIFT_SECONDS = 60.0
"""Difference between the clock and the seconds of a run from which on it is written down."""


def refuse_missing_writers(config: TrainConfig) -> None:
    """Refuse a log that needs a package which is not installed, before anything is written."""
    for name, asked in (("tensorboard", config.tensorboard), ("wandb", config.wandb)):
        if asked and importlib.util.find_spec(name) is None:
            raise MissingExtra(f"--{name} needs the package {name}", name)


def name_of(learner: int | None) -> int | Literal["average"]:
    """Return what files call a learner, or the average of all (None)."""
    return "average" if learner is None else learner


class Recorder:
    """Collects what roles report and writes it; safe to call from their threads."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        *,
        began: float,
        title: str | None,
        on_row: Callable[[dict[str, Any]], object] | None = None,
        scored_by: str = "",
    ):
        # A clock of its own from here on: that of the day may be set, and may have been set back meanwhile.
        self._ticks_before = max(time.time() - began, 0.0) - time.monotonic()
        self._began, self._drift = began, 0.0
        self.seconds_before = 0.0
        self.scores: dict[Scored, Score | None] = {BEST: None, CANDIDATE: None}
        """Of the best policy, and of one that is yet to be confirmed; who keeps them writes here."""
        self.last_evaluation: dict[str, float] = {}
        self._untold: deque[dict[str, float]] = deque()  # evaluations since the last row
        self._waiting: tuple[dict[str, Any], int] | None = None  # the run's last row
        self.window = Window(config.num_learners)
        self._config, self._folder = config, folder
        self._title, self._on_row, self._scored_by = title, on_row, scored_by
        self.tells_caller = on_row is not None
        """Whether a function of the caller's is told rows."""
        self.is_at_callers = False
        """Whether a function of the caller's is running, for as long as it likes."""
        self._progress: Progress | None = None
        self.usage, self.pace = Usage(), Pace()

    def notice(self, text: str) -> bool:
        """Show a notice in the live panel, from a signal handler too; whether there is a panel."""
        return self._progress is not None and self._progress.notice(text)

    def open(self, *, resumed_at: int | None) -> None:
        """Open the log files, after a resume has cut them, and show progress."""
        self.open_files(resumed_at=resumed_at)
        config = self._config
        if self._title is not None:
            self._progress = Progress(
                config.total_env_steps,
                target=config.stop_at_return,
                title=self._title,
                stop_after_seconds=config.stop_after_seconds,
            )
            if resumed_at is not None:  # until there is a row
                self._progress.begin_at(resumed_at, self.seconds())

    def open_files(self, *, resumed_at: int | None) -> None:
        """Open the log files."""
        folder = self._folder
        self._metrics = MetricLog(folder.path / "metrics.jsonl")
        t_start = folder.read_json("meta.json")["started_unix"]
        self.episodes = EpisodeLog(folder.path, t_start, self._config.env_id)
        self._evaluations = JsonLog(folder.path / "evaluation.jsonl")
        self._others: list[Any] = []
        try:
            self._open_others(resumed_at)
        except BaseException:  # a service refuses, or does not answer
            self.close_files()
            raise

    def _open_others(self, resumed_at: int | None) -> None:
        config, folder = self._config, self._folder
        if config.tensorboard:
            from gossamer.config import to_dict
            from gossamer.config.tree import flatten
            from gossamer.record.tensorboard import TensorboardWriter

            settings = dict(flatten(to_dict(config)))
            self._others.append(
                TensorboardWriter(folder.path, settings=settings, resumed_at=resumed_at)
            )
        if config.wandb:
            from gossamer.record.wandb_log import WandbLog

            self._others.append(WandbLog(folder.path, folder.read_json("config.json"), self.say))

    def go_back(self, state: RecorderState | None) -> None:
        """Forget what came after a checkpoint (None: everything) within a session, but not its time."""
        self._waiting, self.last_evaluation = None, {}
        self._untold.clear()
        self.window.load([] if state is None else state.window)
        self.pace.load((0, 0.0) if state is None else state.paced)

    def seconds(self) -> float:
        """Wall time of the run, over all sessions."""
        return self.seconds_before + self._ticks_before + time.monotonic()

    def say(self, text: str) -> None:
        """Show a line and keep it in log.txt."""
        # A run's folder may be a stranger's.
        text = "\n".join(map(without_controls, text.split("\n")))
        if self._progress:
            self._progress.message(text)
        with suppress(OSError):  # of a full disk those files tell whose loss matters
            self._folder.log(text)

    def on_episode(self, episode: Episode, learner: int, env_steps: int) -> None:
        """Record a finished training episode of a learner, at so many env steps of all."""
        self.window.add(learner, episode.episode_return, episode.length, episode.info)
        self.episodes.write(
            env=episode.env,
            episode_return=episode.episode_return,
            length=episode.length,
            env_steps=env_steps,
            learner=learner,
            time_s=self.seconds(),
            truncated=episode.truncated,
            task=episode.task,
            info=episode.info,
        )

    def on_evaluation(
        self, result: Evaluation, source: Source, at: tuple[int, int], *, ships: bool
    ) -> None:
        """Record an evaluation of a source's policy, `at` so many updates and env steps; `ships`: of the run's policy."""
        updates, env_steps = at
        if ships:
            self.last_evaluation = {
                "evaluation_mean": result.mean,
                "evaluation_standard_error": result.standard_error,
                "evaluation_episodes": len(result.returns),
                "evaluation_env_steps": env_steps,
            }
            if self._config.num_learners > 1 and self._config.topology.run_policy == "best":
                self.last_evaluation["evaluation_learner"] = source.learner or 0
            if result.held_out is not None:
                self.last_evaluation["evaluation_held_out_mean"] = result.held_out.mean
            self._untold.append(self.last_evaluation)
        self._evaluations.write(
            {
                "time_s": round(self.seconds(), 3),
                "env_steps": env_steps,
                "updates": updates,
                "version": source.version,
                "learner": name_of(source.learner),
                **result.as_dict(),
                "confirmation": False,
                **({"scored_by": self._scored_by} if self._scored_by else {}),
            }
        )

    def on_confirmation(
        self,
        candidate: Evaluation,
        whose: dict[str, Any],
        best: Evaluation | None,
        best_whose: dict[str, Any] | None,
        *,
        wins: bool,
    ) -> None:
        """Record what a candidate and the best (None: there was none any more) have earned in the same episodes.

        Args:
            candidate: its result.
            whose: its env steps, updates, version and learner.
            best: the best's result.
            best_whose: the same of the best.
            wins: whether the candidate is the best from now on.
        """
        row = {"time_s": round(self.seconds(), 3), **whose, **candidate.as_dict()}
        row |= {"confirmation": True, "wins": wins}
        row["against"] = best and best_whose and {**best_whose, **best.as_dict()}
        self._evaluations.write(row)

    def on_rows(
        self,
        rows: list[dict[str, Any]],
        env_steps: int,
        *,
        disagreement: Callable[[], dict[int, float]] | None,
        first: int = 0,
        last: bool = False,
    ) -> bool:
        """Write rows of learners; return whether the caller of `train`, who was told the run's, asks it to stop.

        Args:
            rows: as `Rows` makes them, of those whose time has come.
            env_steps: of the run.
            disagreement: tells how far each learner is from their average; None: it is not known, or there is one.
            first: of the learners that have a place; its row tells of the run too.
            last: they have learnt all; the row that tells of the run waits for `write_last_row`.
        """
        time_s = round(self.seconds(), 3)
        several, stops = self._config.num_learners > 1, False
        for own in sorted(rows, key=lambda row: -row["learner"]):
            mean = self.window.mean_of(own["learner"]) if several else None
            if mean is not None:
                own["learner/return_mean_100"] = mean
            row = {"time_s": time_s, **own}
            if own["learner"] != first:
                self._metrics.write(row)
                continue
            row |= self._of_run(env_steps, disagreement)
            if not last:
                stops = self._tell(row, env_steps)
                continue
            self._waiting = row, env_steps
            if self._progress:
                self._progress.update(row)
        return stops

    def write_last_row(self) -> None:
        """Write the last row that tells of the run, if there is one, with what the last evaluation has found."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._tell(*waiting)

    def _tell(self, row: dict[str, Any], env_steps: int) -> bool:
        """Write a row that tells of the run; return whether the caller of `train` asks it to stop."""
        while self._untold:  # a row tells of one evaluation alone
            evaluation = self._untold.popleft()
            for writer in self._others:
                writer.write(evaluation, env_steps)
        row = {**row, **self._evaluated()}
        self._look_at_clock(row["time_s"])
        if self._progress:
            self._progress.update(row)
        for writer in self._others:
            writer.write(row, env_steps)
        self._metrics.write(row)
        if self._on_row is None:
            return False
        self.is_at_callers = True
        try:
            said = self._on_row(plain(row))
        except RunFailed:
            raise
        except (Exception, SystemExit) as error:  # the user's; a ConfigError is not of this run
            raise RunFailed(f"on_row raised {type(error).__name__}: {error}") from error
        finally:
            self.is_at_callers = False
        # No number of characters written.
        return isinstance(said, bool | np.bool_) and bool(said)

    def _look_at_clock(self, time_s: float) -> None:
        """Write down, just before a row, what time it is where the clock was set or the machine has slept."""
        ago = self.seconds() - time_s + 0.001  # seconds of a run count neither
        drift = time.time() - self._began - (time_s + ago - 0.001 - self.seconds_before)
        if abs(drift - self._drift) > DRIFT_SECONDS:
            self._drift = drift
            with suppress(OSError, ConfigError):  # it is for charts
                self._folder.note_clock(time.time() - ago, round(time_s - 0.001, 3))

    def _of_run(
        self, env_steps: int, disagreement: Callable[[], dict[int, float]] | None
    ) -> dict[str, float | None]:
        row = {
            "steps_per_second": self.pace.per_second(env_steps),
            "episodes": self.episodes.count,
            **self.usage.measure(),
        }
        if disagreement is not None:
            apart = disagreement()
            row["topology/disagreement"] = sum(apart.values()) / len(apart)
            row |= {f"topology/disagreement_of_{rank}": x for rank, x in apart.items()}
        if self._config.num_learners > 1:
            means = self.window.shares()
            row |= {f"learner/return_of_{rank}": x for rank, x in means.items()}
        return row | self.window.metrics()

    def _evaluated(self) -> dict[str, float]:
        row = dict(self.last_evaluation)
        best, candidate = self.scores[BEST], self.scores[CANDIDATE]  # an evaluator changes them
        if best is not None:
            row["evaluation_best"] = best.mean
            if best.episodes is not None:  # as in an older run
                row["evaluation_best_episodes"] = best.episodes
        if candidate is not None:
            row["evaluation_candidate"] = candidate.mean
        return row

    def state(self, env_steps: int) -> RecorderState:
        """Return the state that a resumed run's records continue from."""
        return RecorderState(
            window=self.window.state(),
            episode_rows=self.episodes.count,
            seconds=self.seconds(),
            paced=self.pace.totals(env_steps),
        )

    def load_state(self, state: RecorderState) -> None:
        """Continue from `state`."""
        self.window.load(state.window)
        self.seconds_before = state.seconds
        self.pace.load(state.paced)

    def close(self) -> None:
        """Close every file and give the terminal back."""
        if self._progress:
            self._progress.close()
        self.close_files()

    def close_files(self) -> None:
        """Close the log files; raise the first OSError once all are closed."""
        with contextlib.ExitStack() as stack:
            for file in (*self._others, self._evaluations, self.episodes, self._metrics):
                stack.callback(file.close)
