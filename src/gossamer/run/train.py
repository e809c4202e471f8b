"""From a config to a finished run: folder, resume, signals, summary. The public API's verbs."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gossamer.build.evaluation_tasks import tasks_in_words
from gossamer.config import (
    FOR_REPLAYS,
    RESUMED,
    TrainConfig,
    as_read,
    as_written,
    code_in,
    make_config,
    nested,
    to_dict,
    validate,
)
from gossamer.errors import ConfigError, NeverBegan, RunFailed
from gossamer.links.stopping import Stopped
from gossamer.machine import keep_freed_memory, process_began
from gossamer.record.checkpoint import BEST, CANDIDATE, Scored
from gossamer.record.exits import Exit
from gossamer.record.folder import RunFolder
from gossamer.record.origin import mark
from gossamer.record.requests import Requests
from gossamer.roles.evaluation import Interrupted
from gossamer.run import resume, user_messages
from gossamer.run.best_videos import BestVideos
from gossamer.run.checkpoint_contents import ScoredPolicy, facts_of, from_disk, tensors_of
from gossamer.run.checkpointing import Checkpointing
from gossamer.run.evaluations import Evaluations
from gossamer.run.finished import Finished
from gossamer.run.load_policy import read_policy
from gossamer.run.mixing_facts import mixing_facts, mixing_rows
from gossamer.run.placements.choose_placement import place
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.prepare import Asked, prepare
from gossamer.run.recorder import Recorder
from gossamer.run.resumed_settings import changes, scored_by, scores_changed
from gossamer.run.scoring import Scoring
from gossamer.run.slow_calls import at_work
from gossamer.run.snapshot import is_repeatable
from gossamer.run.stopping import GivenUp, Overdue, Stop, Unsaved, Watch, Watched, hand_over, tell
from gossamer.run.summary import summary_of
from gossamer.run.supervisor import Supervisor
from gossamer.system.beginning import Beginning
from gossamer.system.devices import kept_algorithms, own_arithmetic
from gossamer.system.gpus import unused_gpus
from gossamer.system.reading import clipped, mapping

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from gossamer.record.checkpoint import CheckpointStore
    from gossamer.run.checkpoint_contents import InitialState, RunState
    from gossamer.run.prepare import Prepared


OnRow = Callable[[dict[str, Any]], object]
"""A caller's function of a row of metrics; True stops the run."""


@dataclass(frozen=True)
class TrainResult:
    """Folder and summary of a run. `load_policy`, `evaluate` and `train(resume=...)` accept a result as a path."""

    folder: Path
    """The run folder."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Content of the run's summary.json: `env_steps`, `updates`, `restarts` (learners' processes that were replaced in
    the last session), `seconds`, `steps_per_second`, `mean_return_last_100` (training episodes), `best_evaluation` (mean return),
    `best_evaluation_episodes`, `candidate_evaluation`, `best_learner` and `exit_reason` (a sentence). `exit` is a dict
    of `kind` ("done" or "stopped") and `cause` (the setting whose limit was reached, or the signal). A key without a
    value is None."""

    def __fspath__(self) -> str:
        return str(self.folder)


def train(
    task: TrainConfig | str | Mapping[str, Any] = "",
    *,
    presets: Sequence[str] | str | os.PathLike[str] = (),
    resume: str | os.PathLike[str] | None = None,
    trust: bool = False,
    torso: torch.nn.Module | None = None,
    quiet: bool = False,
    on_row: OnRow | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a policy, or continue a run, until a limit is reached: `train("CartPole-v1", total_env_steps=20_000)`.

    Args:
        task: an environment's id, a dict of settings that includes `env_id`, or a config from `make_config`; empty: the
            environment of the resumed run, or of a preset.
        presets: preset names or settings files, as for `make_config`.
        resume: the run to continue: a run folder, part of its path, "last", or the result of `train`. Settings that you
            do not give come from this run, unless `task` is a config.
        trust: import the environment and parts that the resumed run names, even if it comes from another machine or
            user.
        torso: feature layers of your own: a module that maps floats [N, *obs_shape] to [N, F] and has an attribute
            `feature_size`.
        quiet: print no progress.
        on_row: a function of yours that is called with a dict of the run's metrics as in metrics.jsonl (of several
            learners the first one's rows, which include the run's), at most once a second, and with the last row once
            the last evaluation is over; if it returns True, the run saves, plays the last evaluation and stops.
        settings: settings by field name, nested or dotted, such as `algorithm="ppo"` or
            `optimizer={"learning_rate": 1e-3}`; not allowed if `task` is a config.

    Returns:
        The run's folder and its summary.

    Raises:
        ConfigError: the settings contain a mistake; nothing was created.
        RunFailed: the run could not continue; log.txt in its folder says why.
        KeyboardInterrupt: Ctrl-C was pressed. The run has saved a checkpoint, unless Ctrl-C was pressed twice. Other
            signals that stop a run (SIGTERM, SIGHUP, SIGUSR1) go to the program's own handler once the run is saved.
    """
    if isinstance(task, TrainConfig):
        if settings or presets:
            raise ConfigError(
                f"{', '.join(settings) or 'presets'} and a config are both given; give them to make_config, which made it"
            )
        config = task
    elif isinstance(task, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        env_id, more = (task, {}) if isinstance(task, str) else ("", dict(task))
        given = nested(as_written(settings), below=nested(as_written(more)))
        where = None if resume is None else os.fspath(resume)
        config = make_config(env_id, given, presets=presets, resume=where, trust=trust)
    else:
        takes = "an environment's id, settings by name, or a config"
        example = 'train("CartPole-v1", total_env_steps=20_000)'
        if callable(task) or hasattr(task, "step"):
            takes = "the name of the function or class that makes an environment, module:NAME, as many are made"
            name = f"{getattr(task, '__module__', '')}:{getattr(task, '__qualname__', '<>')}"
            if "<" in name or name.startswith(
                "__main__"
            ):  # nothing that other processes could import
                name = "my_module:make_env"
            known = getattr(getattr(task, "spec", None), "id", None)
            example = f'train("{known if isinstance(known, str) else name}")'
        raise ConfigError(
            f"train was given {type(task).__name__} {clipped(repr(task), 40)}; it takes {takes}: {example}"
        )
    beginning = Beginning(time.time(), told=not quiet)
    asked = Asked(
        config, beginning, time.time(), resume=resume, torso=torso, quiet=quiet, on_row=on_row
    )
    try:
        return _train_watched(asked)
    except ConfigError as error:
        # The mistake is the caller's: where in here it was noticed tells nothing.
        raise error.with_traceback(None) from None


def train_command(
    config: TrainConfig,
    *,
    layers: Mapping[str, str],
    argv: list[str],
    resume: Path | None,
    config_given: set[str],
    beginning: Beginning | None = None,
) -> TrainResult:
    """Do what `gossamer train` promises, and return where the run is.

    Args:
        config: every setting.
        layers: which layer set each, for the record.
        argv: the command line, for the record.
        resume: the run to continue, with this config.
        config_given: names of settings that were asked for, which win over a resumed run's plan.
        beginning: tells what the command is at so far.
    """
    asked = Asked(
        config,
        beginning or Beginning(time.time()),
        process_began(),
        resume=resume,
        config_given=config_given,
        layers=layers,
        argv=argv,
    )
    return _train_watched(asked)


def _train_watched(asked: Asked) -> TrainResult:
    """Train within its limits of time; a program's own handler hears of the signal that stopped it."""
    watch: Watch | None = None
    try:
        config = as_read(asked.config)
        validate(config)
        ends_at = math.inf
        if config.stop_after_seconds:  # the clock of the day may be set
            ends_at = time.monotonic() - (time.time() - asked.began) + config.stop_after_seconds
        stop = Stop(config.stop_within_seconds)
        with (
            Watch(
                config.patience_seconds,
                Unsaved(stop),
                stop,
                ends_at=ends_at,
                last_resort=asked.argv is not None,
            ) as watch,
            watch.leaving(),
        ):
            result = _train(replace(asked, config=config), watch)
    except GivenUp as given_up:
        _hand_over(asked, watch, failed=True)
        raise given_up.failure from None
    except RunFailed:
        _hand_over(asked, watch, failed=True)
        raise
    except Overdue:
        _hand_over(asked, watch)
        ended = watch and watch.stop.exit
        why = f": --stop-after-seconds {asked.config.stop_after_seconds:g} have passed"
        if ended and ended.kind == "stopped":
            why = f" by {ended.cause}"
        raise NeverBegan(f"{NeverBegan.SAYS}{why}" + at_work("; {}")) from None
    finally:
        asked.beginning.over()
    _hand_over(asked, watch)
    return result


def _tell_unclosed() -> None:
    tell("gossamer: closing was left unfinished" + at_work(": {}"))


def _hand_over(asked: Asked, watch: Watch | None, *, failed: bool = False) -> None:
    """Let a program hear the signal that stopped its run."""
    if asked.argv is None and watch is not None:
        hand_over(watch.stop.signal, failed=failed)


@own_arithmetic()
def _train(asked: Asked, watch: Watch) -> TrainResult:
    keep_freed_memory()
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_algorithms())
        folder = RunFolder.open(asked.resume) if asked.resume is not None else None
        if folder is not None:
            stack.callback(folder.unlock)
            folder.lock()
        prepared = prepare(asked, folder)
        if isinstance(prepared, Finished):
            if not asked.quiet:
                print(prepared.told)
            return TrainResult(prepared.folder, prepared.summary)
        for line in prepared.told if not asked.quiet else ():
            print(line, flush=True)  # before any is made
        return _Session(asked, prepared, watch).run()


class _Session:
    """One session of a run, from its parts to its summary."""

    def __init__(self, asked: Asked, prepared: Prepared, watch: Watch):
        self.asked, self.prepared, self.watch = asked, prepared, watch
        self.config, self.spec, self.plan = prepared.config, prepared.spec, prepared.plan
        self.state = prepared.state
        self.scored_by = scored_by(to_dict(self.config), self.plan)
        self.mixing = mixing_facts(self.config)
        self.unmarked = ""
        self.lost_env_steps = 0  # that came after the checkpoint
        self.dropped = ""
        """What is told of a best policy that was dropped."""
        self.folder: RunFolder  # of a new run once it is made
        if prepared.folder is not None:
            self.folder = prepared.folder

    def run(self) -> TrainResult:
        """Build, run, and write down how it ended."""
        config, watch = self.config, self.watch
        with contextlib.ExitStack() as stack:
            resumed, replays = self.state is not None, is_repeatable(self.state, self.spec)
            making = user_messages.making_in_words(config, self.plan.num_envs, resumed=replays)
            # Processes make their environments later, which the supervisor tells.
            if resumed or layout_of(config) is None:
                self.asked.beginning.at(making)
            placement = place(
                config,
                self.spec,
                self.plan,
                self._load,
                torso=self.asked.torso,
                tried=self.prepared.tried,
                hold=lambda: self.folder.join(),
            )
            stack.callback(self._close, placement.close)
            self.spec = placement.spec
            folder, recorder = self._open()
            stack.callback(folder.unlock)  # it may be left before its end is written
            store = folder.checkpoints(config.keep_checkpoints)
            outdated, self.dropped = self._outdated(store)
            stack.enter_context(watch.hearing(watch.on_signal))
            requests = Requests(folder.path, partial(watch.request, "request"))
            stack.callback(requests.close)
            checkpoints = Checkpointing(config, store, watch.stop)
            videos = None
            if config.evaluation.video:
                videos = BestVideos(config, folder, store, placement.names, recorder.say)
            scoring = Scoring(
                config,
                recorder,
                store,
                placement,
                videos,
                max_episode_steps=self.plan.max_episode_steps,
                outdated=outdated,
            )
            evaluations = Evaluations(config, placement, recorder, scoring, watch.stop)
            supervisor = Supervisor(
                config, folder, placement, recorder, checkpoints, evaluations, watch.stop, requests
            )
            # Not before: somebody may refuse to go on yet.
            supervisor.on_began = partial(self._drop, outdated, store)
            stack.callback(self._close, evaluations.close)
            beginnings = folder.beginnings() if resumed else {}
            watch.watched = run = _Run(supervisor, scoring, beginnings)
            self._write_beginning(supervisor, beginnings)
            self._introduce(placement.restore_seconds or 0.0)
            return run.to_its_end(
                lambda: supervisor.run(self._load, self._go_back, resumed=resumed, making=making)
            )

    def _close(self, close: Callable[[], None]) -> None:
        """Close what a run holds, within the bound of a stop: an environment may hang there too."""
        failure = sys.exception()
        try:
            with self.watch.stop.within(self.config.stop_within_seconds):
                close()
        except (Overdue, GivenUp):
            _tell_unclosed()
        except Exception:
            if (
                failure is None
            ):  # else that is told: what it has broken, as a GPU, may not close either
                raise

    def _load(self, ranks: range) -> InitialState | None:
        """Return the state that learners begin with, with the tensors of these ranks; they may be given up."""
        if self.state is None:
            source = self.config.init_from
            return read_policy(RunFolder.open(source)) if source else None
        if not ranks or layout_of(self.config) is None:  # it was loaded with all that is wanted
            return self.state
        return self._read_state(self.state.updates[0], ranks)

    def _read_state(self, which: Literal["last"] | int, ranks: range) -> RunState:
        """Return a checkpoint of this run, with the tensors of these ranks."""
        mine = tensors_of(ranks, replays=self.config.checkpoint_replay)
        found = self.folder.checkpoints().load(which, mine)
        state = from_disk(found, self.config.num_learners)
        return resume.with_changes(state, self.config, self.plan, self.prepared.before)

    def _open(self) -> tuple[RunFolder, Recorder]:
        config = self.config
        if self.prepared.folder is None:
            self.folder = RunFolder.create(
                config.run_folder or None,
                env_id=config.env_id,
                algorithm=config.algorithm.name,
                topology=config.topology.name,
                seed=config.seed,
                named_in=self.prepared.home,
            )
        title = f"{config.env_id}  {config.algorithm.name}  seed {config.seed}"
        if config.num_learners > 1:
            title += f"  {config.num_learners} learners, {config.topology.name}"
        self.recorder = Recorder(
            config,
            self.folder,
            began=self.asked.began,
            title=None if self.asked.quiet else title,
            on_row=self.asked.on_row,
            scored_by=self.scored_by,
        )
        return self.folder, self.recorder

    def _layers(self) -> Mapping[str, str]:
        """Return who set each setting; what a resumed run goes on with, whoever set it first."""
        try:
            before = mapping(self.folder.read_json("layers.json")) if self.state else {}
        except ConfigError:  # which is for the record
            before = {}
        layers = self.asked.layers.items()
        return {name: str(before.get(name, x)) if x == RESUMED else x for name, x in layers}

    def _write_beginning(self, supervisor: Supervisor, beginnings: Mapping[str, bytes]) -> None:
        """Write what a run begins with; of a new run nothing stays if that fails, a resumed one has its `beginnings` back."""
        asked, folder = self.asked, self.folder
        try:
            known = user_messages.env_facts(self.spec) if self.prepared.tried else {}
            settings = to_dict(self.config)
            facts = {
                "scored_by": self.scored_by,
                **self.mixing,
                **known,
                **self._origin(code_in(settings)),
            }
            before = self._cut_rows() if self.state else 0.0
            folder.write_start(
                settings,
                self._layers(),
                asked.argv or [],
                facts,
                began=asked.began,
                seconds_before=before,
            )
            if mixing := mixing_rows(self.config):
                folder.write_json("mixing.json", mixing)
            else:  # they mixed before this resume
                (folder.path / "mixing.json").unlink(missing_ok=True)
            if self.state is not None:
                self._drop_future()
                # What came after the checkpoint was taken, as its last evaluation, has taken time too.
                recorder = msgspec.structs.replace(self.state.recorder, seconds=before)
                self.state = msgspec.structs.replace(self.state, recorder=recorder)
                supervisor.load_state(self.state)
                self.watch.ends_at -= before
            self.recorder.open(resumed_at=self.state.env_steps if self.state else None)
        except BaseException as error:
            if self.prepared.folder is None:
                folder.discard()
            else:  # what is refused now would be refused ever after
                with suppress(OSError):
                    folder.put_back(beginnings)
            if isinstance(error, OSError):
                raise ConfigError(
                    f"cannot write into {folder.path}: {error.strerror or error}; make room or "
                    "choose another folder"
                ) from None
            raise

    def _origin(self, code: Mapping[str, str]) -> dict[str, Any]:
        """Return what shows later that the code which the settings import was chosen here."""
        if not code:
            return {}
        try:
            return {"origin": mark(code.values())}
        except OSError as error:
            reason = f"{error.strerror}: {error.filename}" if error.strerror else error
            self.unmarked = (
                f"{', '.join(code.values())} must be named again when this run is resumed or evaluated: the token that "
                f"shows it was begun here cannot be kept ({reason})"
            )
            return {}

    def _cut_rows(self) -> float:
        """Drop the rows that were written after the checkpoint: they are another future; return the run's time so far."""
        folder, state = self.folder, self.state
        env_steps, updates, episodes = 0, {0: 0}, 0
        if state is not None:
            env_steps, updates = state.env_steps, state.updates
            episodes = state.recorder.episode_rows
        self.lost_env_steps = max(folder.env_steps_told() - env_steps, 0)
        independent = self.config.num_learners > 1 and not self.config.topology.talks
        mark = ""
        if state is not None:  # an older version has marked no evaluations
            mark = scored_by(state.settings or self.prepared.before, state.plan)
        last = folder.cut(
            env_steps, updates, episodes=episodes, independent=independent, scored_by=mark
        )
        return last if state is None else max(last, state.recorder.seconds)

    def _drop_future(self) -> None:
        """Drop the checkpoints and the summary of what came after the checkpoint."""
        self.folder.checkpoints().discard_after(self.state.updates[0] if self.state else 0)
        (self.folder.path / "summary.json").unlink(missing_ok=True)

    def _outdated(self, store: CheckpointStore) -> tuple[list[Scored], str]:
        """Return which of best policy and candidate have scores that do not compare with what comes, and what is told."""
        state, found, told = self.state, list[Scored](), ""
        for name in (BEST, CANDIDATE):
            score = None if state is None else store.score(name)
            if state is None or score is None:
                continue
            before, limit = state.settings or self.prepared.before, state.plan.max_episode_steps
            with suppress(ConfigError):  # a damaged one is nobody's
                own = facts_of(store.load(name, lambda _: False), ScoredPolicy)
                if own.settings:
                    before, limit = own.settings, own.max_episode_steps
            plan = replace(state.plan, max_episode_steps=limit)
            if why := [*scores_changed(before, to_dict(self.config), plan, self.plan)]:
                found.append(name)
                told = told or user_messages.dropped_in_words(
                    score.mean if name == BEST else None, why
                )
        return found, told

    def _drop(self, outdated: list[Scored], store: CheckpointStore) -> None:
        """Drop the best policy or a candidate whose scores do not compare, and say so."""
        for name in outdated:
            store.discard(name)
        self._say(self.dropped)

    def _go_back(self) -> bool:
        """Return to the last checkpoint, or the beginning, in the midst of a session; whether there is one."""
        there = self.folder.checkpoints().list()
        self.state = self._read_state("last", range(0)) if there else None
        self.recorder.close_files()
        self._cut_rows()
        self._drop_future()
        self.recorder.go_back(self.state.recorder if self.state else None)
        self.recorder.open_files(resumed_at=self.state.env_steps if self.state else 0)
        return self.state is not None

    def _introduce(self, restore_seconds: float) -> None:
        """Say what is going to run; 0 seconds: it is not known how long restoring took."""
        config, spec, plan, state = self.config, self.spec, self.plan, self.state
        self.asked.beginning.over()
        lag = "free" if plan.lag is None else plan.lag
        if plan.lag is None and config.placement == "inline":
            lag = "1 (free needs --placement local)"
        elif plan.lag is not None and config.lag == "free":
            lag = "1 (free needs a process for each learner, and two cores)"
        each = " each" if config.num_learners > 1 else ""
        self._say(
            spec.protocol,
            user_messages.seen_and_done(spec),
            user_messages.new_episodes_in_words(spec) if state is None else "",
            *spec.remarks,
            tasks_in_words(config, spec, num_envs=plan.num_envs),
            f"{plan.num_envs} envs{each}, lag {lag}, {plan.device} {plan.precision}, threads: learner "
            f"{plan.learner_threads}, actor {plan.actor_threads}, envs {plan.env_threads}"
            + f"; {plan.actors} actor process{'es' * (plan.actors > 1)}{each}"
            * (plan.actors > 0),
            unused_gpus() if config.device == "auto" and plan.device == "cpu" else "",
        )
        for line in self.prepared.told:  # shown before
            with suppress(OSError):
                self.folder.log(line)
        self._say(
            user_messages.mixing_in_words(config, self.mixing),
            f"run folder {self.folder.shown}",
            self.unmarked,
        )
        if state is None:
            self._say(self.prepared.remark)
            if config.init_from and len(config.replays) > 1:
                self._say(self._filling())
            if self.asked.layers.get("algorithm.name") == FOR_REPLAYS:
                self._say(
                    f"algorithm {config.algorithm.name}, which learns from older data too, as replays hold it; another one: "
                    "algorithm:vtrace"
                )
            return
        resumed = user_messages.resumed_in_words(
            new_episodes=not is_repeatable(state, spec),
            why=resume.why_not_exact(config, spec, plan, state, self.prepared.before),
            env_steps=state.env_steps,
            updates=state.updates[0],
            seconds=restore_seconds,
            lost=self.lost_env_steps,
        )
        differing = changes(self.prepared.before, to_dict(config))
        self._say(
            resumed,
            self._filling() if resume.begins_empty(config, state) else "",
            self.prepared.remark,
            *(f"changed: {name} {old} -> {new}" for name, old, new in differing),
        )

    def _filling(self) -> str:
        rows = resume.rows_to_fill(self.config, self.plan, self.state)
        return user_messages.filling_in_words(rows)

    def _say(self, *lines: str) -> None:
        """Say the lines that are not empty."""
        for line in filter(None, lines):
            self.recorder.say(line)


class _Run(Watched):
    """A run of which everything is made: it trains to its end, and writes down which that was."""

    def __init__(self, supervisor: Supervisor, scoring: Scoring, before: Mapping[str, bytes]):
        self._supervisor, self._scoring = supervisor, scoring
        self._before = before  # files of a resumed run
        self._exit_code: int | None = None  # once it has ended

    def say(self, text: str) -> None:
        self._supervisor.recorder.say(text)

    def notice(self, text: str) -> bool:
        return self._supervisor.recorder.notice(text)

    def look(self) -> None:
        self._supervisor.requests.look()
        if self._supervisor.recorder.is_at_callers:
            self._supervisor.placement.show_life()

    def leave(self) -> None:
        self._supervisor.placement.stop.stop()

    def save_seconds(self) -> float:
        return self._supervisor.checkpoints.longest_seconds

    def written_bytes(self) -> int | None:
        return self._supervisor.checkpoints.written_bytes

    def last_words(self) -> int:
        if self._exit_code is not None:  # it is closing that does not end
            return self._exit_code
        supervisor, failure = self._supervisor, self._supervisor.stop.failure
        if failure is not None:
            supervisor.exit = Exit("failed", user_messages.headline(failure))
        elif not supervisor.checkpoints.all_saved:
            supervisor.tell_lost(supervisor.checkpoints.on_disk)
        with suppress(OSError):
            supervisor.recorder.write_last_row()
        with suppress(OSError):
            supervisor.folder.write_json("summary.json", self._summary())
        self.say(user_messages.ending(self._summary(), supervisor.folder))
        ended = supervisor.exit
        if ended is None or ended.kind != "failed":
            return 0
        tell(f"gossamer: {ended.cause}")  # nobody else will
        return 1

    def to_its_end(self, train: Callable[[], None]) -> TrainResult:
        """Train to the end, by a function that does so.

        Raises:
            RunFailed: the run could not go on; its folder says why.
        """
        supervisor, recorder = self._supervisor, self._supervisor.recorder
        folder = supervisor.folder
        failure: BaseException | None = None
        try:
            with suppress(Overdue, Interrupted, Stopped):
                train()
            with suppress(Overdue):  # a line that nobody reads may hold this up
                if not supervisor.checkpoints.final_snapshot_queued:
                    supervisor.leave()
            supervisor.finish_saving()
            supervisor.stop.settle()
        except BaseException as error:  # noqa: BLE001 - written down below, then raised
            failure = error
            if isinstance(error, GivenUp):
                failure = error.failure.with_traceback(error.__traceback__)
            supervisor.exit = Exit("failed", user_messages.headline(failure))
            with suppress(OSError):  # of a full disk
                folder.log("".join(traceback.format_exception(failure)))
            with suppress(Exception):  # a checkpoint under way is written to its end
                supervisor.finish_saving()
        ended = self._summary()
        summarize = partial(folder.write_json, "summary.json", ended)
        if self._before and isinstance(failure, ConfigError) and not supervisor.began:
            # Processes have refused what one process refuses before it writes: it would be refused ever after.
            summarize = partial(folder.put_back, self._before)
        for write in (summarize, recorder.close):
            try:
                write()
            except (Overdue, GivenUp):  # as of what is sent to a service that does not answer
                supervisor.stop.settle()
                _tell_unclosed()
            except Exception as error:  # noqa: BLE001 - told below, behind what has failed before
                failure = failure or error
        scores, best = self._scoring.scores_saved, self._scoring.best_saved
        mean_of = recorder.window.mean_of
        for line in user_messages.learners_in_words(supervisor.config, scores, mean_of, best):
            recorder.say(line)
        recorder.say(user_messages.ending(ended, folder))
        folder.unlock()
        self._exit_code = int(failure is not None)
        if failure is not None:
            user_messages.raise_failure(failure, folder)
        return TrainResult(folder.path, ended)

    def _summary(self) -> dict[str, Any]:
        supervisor = self._supervisor
        placement, recorder = supervisor.placement, supervisor.recorder
        return summary_of(
            env_steps=placement.env_steps,
            updates=placement.updates,
            restarts=supervisor.restarts,
            seconds=recorder.seconds(),
            steps_per_second=recorder.pace.per_second(placement.env_steps),
            mean_return=recorder.window.mean(),
            best=recorder.scores[BEST],
            candidate=recorder.scores[CANDIDATE],
            best_learner=self._scoring.best_saved,
            ended=supervisor.exit,
        )
