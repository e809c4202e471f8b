"""From a config to a finished run: folder, resume, signals, summary. The public API's verbs."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.build.auto import Plan, learners_machine, make_plan
from gossamer.build.evaluation_tasks import tasks_in_words
from gossamer.build.preflight import (
    refuse_full_shared_memory,
    refuse_large,
    refuse_what_a_gpu_cannot_hold,
    refuse_what_memory_cannot_hold,
)
from gossamer.config import (
    FOR_REPLAYS,
    TrainConfig,
    code_in,
    make_config,
    to_dict,
    validate,
    with_ratio,
)
from gossamer.envs.registry import read_spec, try_to_repeat
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import Stopped
from gossamer.machine import keep_freed_memory, process_began, same_folder, this_machine
from gossamer.record.exits import Exit
from gossamer.record.folder import RunFolder
from gossamer.record.origin import mark
from gossamer.roles.evaluator import Interrupted
from gossamer.run import resume_rules, snapshot, wording
from gossamer.run.best_videos import BestVideos, refuse_no_videos
from gossamer.run.checkpointing import Checkpointing
from gossamer.run.damaged_checkpoints import refuse_damaged
from gossamer.run.evaluate import read_policy, refuse_misfit, refuse_other_best
from gossamer.run.placements.layout import layout_of
from gossamer.run.placements.placing import place
from gossamer.run.recorder import Recorder, refuse_missing_writers
from gossamer.run.requests import Requests
from gossamer.run.resume_rules import resumed_plan, summary_of
from gossamer.run.scoring import Scoring
from gossamer.run.stopping import Overdue, Signals, Watch, at_work, hand_over, tell
from gossamer.run.supervisor import Supervisor
from gossamer.system.beginning import Beginning
from gossamer.system.devices import cpu_by_default, use_deterministic_algorithms
from gossamer.system.reading import clipped, quoted, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from gossamer.record.checkpoint import Checkpoint
    from gossamer.run.host_protocol import Placement
    from gossamer.types import EnvSpec


@dataclass(frozen=True)
class TrainResult:
    """Where a run is and what came of it; a path, for `load_policy` and `evaluate`."""

    folder: Path
    """The run folder."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Content of summary.json."""

    def __fspath__(self) -> str:
        return str(self.folder)


def train(
    task: TrainConfig | str | Mapping[str, Any] = "",
    *,
    presets: Sequence[str] = (),
    resume: str | Path | None = None,
    trust: bool = False,
    torso: torch.nn.Module | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train a policy and return where the run is: `train("CartPole-v1", total_env_steps=20_000)`.

    Args:
        task: an environment's id, settings by name (`env_id` among them), or what `make_config` has returned; empty: that
            of the run to continue, or of a preset.
        presets: preset names or settings files, as for `make_config`.
        resume: the run to continue; with a task that is no config, its settings hold where no others are given.
        trust: import the environment and parts that the run to be continued names, wherever it comes from.
        torso: your own feature layers, [N, *obs_shape] float -> [N, F] with `feature_size`.
        quiet: show no progress.
        settings: by field name, such as `algorithm="ppo"` or `optimizer={"learning_rate": 1e-3}`; none beside a config.

    Raises:
        ConfigError: a mistake in the settings; nothing was created.
        RunFailed: the run could not go on; its folder says why.
        KeyboardInterrupt: Ctrl-C; the run has saved a checkpoint, unless it was pressed twice. So with other signals that
            stop a run: whoever heard them before hears them once it is saved.
    """
    if isinstance(task, TrainConfig):
        if settings or presets:
            raise ConfigError(
                f"{', '.join(settings) or 'presets'} and a config are both given; give them to make_config, which made it"
            )
        config = task
    elif isinstance(task, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        env_id, more = (task, {}) if isinstance(task, str) else ("", dict(task))
        given = {**more, **settings}
        where = None if resume is None else str(resume)
        config = make_config(env_id, given, presets=presets, resume=where, trust=trust)
    else:
        raise ConfigError(
            f"train was given {type(task).__name__} {clipped(repr(task), 40)}; it takes an environment's id, settings by "
            'name, or a config: train("CartPole-v1", total_env_steps=20_000)'
        )
    beginning = Beginning(time.time(), told=not quiet)
    try:
        result, stopped_by = _train_watched(
            config, beginning, resume=resume, torso=torso, quiet=quiet
        )
    except ConfigError as error:
        # The mistake is the caller's: where in here it was noticed tells nothing.
        raise error.with_traceback(None) from None
    hand_over(stopped_by)
    return result


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
    return _train_watched(
        config,
        beginning or Beginning(time.time()),
        layers=layers,
        argv=argv,
        resume=resume,
        config_given=config_given,
    )[0]


def _train_watched(
    config: TrainConfig,
    beginning: Beginning,
    *,
    layers: Mapping[str, str] | None = None,
    argv: list[str] | None = None,
    resume: str | Path | None = None,
    config_given: set[str] | frozenset[str] = frozenset(),
    torso: torch.nn.Module | None = None,
    quiet: bool = False,
) -> tuple[TrainResult, int]:
    """Train within its limits of time; return the signal that stopped it too, 0 if none did."""
    config = with_ratio(config)
    validate(config)
    began = process_began() if argv is not None else time.time()
    ticks_before = time.time() - began - time.monotonic()  # the clock of the day may be set

    with Watch(
        config.patience_seconds,
        lambda text: tell(f"gossamer: {text}"),
        within_seconds=config.stop_within_seconds,
        stop_after=config.stop_after_seconds,
        seconds=lambda: ticks_before + time.monotonic(),
        last_resort=argv is not None,
    ) as watch:
        try:
            result = _train(
                config,
                watch,
                beginning,
                began,
                layers or {},
                argv or [],
                resume,
                config_given,
                torso,
                quiet,
            )
        except Overdue as overdue:
            at = at_work()
            raise overdue.failure or RunFailed(
                f"stopped before training began: --stop-after-seconds {config.stop_after_seconds:g} have passed"
                + f"; {at}" * bool(at)
            ) from None
        finally:
            beginning.over()
    return result, watch.stopped_by


@cpu_by_default()
def _train(
    config: TrainConfig,
    watch: Watch,
    beginning: Beginning,
    began: float,
    layers: Mapping[str, str],
    argv: list[str],
    resume: str | Path | None,
    config_given: set[str] | frozenset[str],
    torso: torch.nn.Module | None,
    quiet: bool,
) -> TrainResult:
    # A run must not change, nor end, with a file that it does not own.
    config, home = replace(config, topology=config.topology.written_out()), Path.cwd()
    keep_freed_memory()
    refuse_missing_writers(config)
    refuse_no_videos(config)
    refuse_full_shared_memory(config)
    folder = RunFolder.open(resume) if resume is not None else None
    try:
        if folder is not None:
            folder.lock()
        layout = layout_of(config)
        # What goes to other processes is loaded when they start.
        ranks = range(0 if layout else config.num_learners)
        mine = snapshot.names_of(ranks, replays=config.checkpoint_replay)
        checkpoint = folder.checkpoints().load("last", mine) if folder is not None else None
        before = {} if folder is None else folder.read_settings()
        if folder is not None and checkpoint is not None:
            resume_rules.refuse_changes(before, to_dict(config))
            refuse_damaged(checkpoint, config.num_learners)
            for warning in checkpoint.warnings:
                print(f"gossamer: {visible(warning)}", file=sys.stderr)
            ended, summary = resume_rules.finished(config, folder, checkpoint)
            if ended is not None:
                told = str(ended)
                if ended.cause == "stop_after_seconds":
                    told += f" by its {summary['seconds']:.0f} s over all sessions"
                limit = resume_rules.raised(config, ended, summary["seconds"])
                print(f"{folder.shown} is finished ({told}); to train it further: gossamer train "
                      f"--resume {quoted(folder.shown)} {limit}")  # fmt: skip
                return TrainResult(folder.path, summary)
        beginning.at(f"trying out {config.env_id}", everywhere=False)
        with same_folder():
            spec = read_spec(
                config.env_id,
                config.env,
                config.max_episode_steps,
                tries=folder is None,
                before_trial=lambda spec: refuse_large(
                    config, spec, make_plan(config, spec), torso
                ),
            )
        if folder is not None and checkpoint is not None:
            refuse_misfit(config, spec, checkpoint, torso)
            refuse_other_best(config, spec, folder.checkpoints(), torso)
        differs = None if folder is None else resume_rules.known_to_differ(folder)
        if differs is None and not layout:  # processes try by themselves
            with same_folder():
                differs = try_to_repeat(spec, config.env, config.max_episode_steps).differs
        tried = differs is not None
        spec = replace(spec, differs=spec.differs or differs or "")
        machine = learners_machine(config, this_machine())
        if layout:
            machine = machine.share_of(layout.share)
        more = ""
        if checkpoint is None:
            plan = make_plan(config, spec, machine)
        else:
            # From Python nobody says what was asked for; what differs was.
            changed = resume_rules.changes(before, to_dict(config))
            given = set(config_given) or {name for name, _, _ in changed}
            saved = checkpoint.state["plan"]
            config = resume_rules.for_this_machine(config, machine, given, saved)
            plan, more = resumed_plan(checkpoint, config, spec, machine, given, before)
        processes = len(layout.ranks) if layout else 0
        if plan.device != "cpu":
            use_deterministic_algorithms(config.deterministic)
        # Of a cluster every machine must hold one host's learners at least, as this one could.
        here = replace(config, num_learners=1) if layout and layout.on_cluster else config
        replays = refuse_what_memory_cannot_hold(here, spec, plan, processes, checkpoint, torso)
        refuse_what_a_gpu_cannot_hold(config, spec, plan, torso, processes=processes)
        for line in replays if not quiet else ():
            print(line, flush=True)  # before any is made
        session = _Session(
            config,
            spec,
            plan,
            folder,
            checkpoint,
            watch,
            beginning,
            began=began,
            quiet=quiet,
            replays=replays,
            tried=tried,
            more=more,
            home=home,
        )
        return session.run(layers, argv, torso)
    finally:
        if folder is not None:
            folder.unlock()


class _Session:
    """One session of a run, from its parts to its summary."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        plan: Plan,
        folder: RunFolder | None,
        checkpoint: Checkpoint | None,
        watch: Watch,
        beginning: Beginning,
        *,
        began: float,
        quiet: bool,
        replays: list[str],
        tried: bool,
        more: str,
        home: Path,
    ):
        self.config, self.spec, self.plan, self.folder = config, spec, plan, folder
        self.checkpoint, self.watch, self.beginning = checkpoint, watch, beginning
        self.began, self.quiet, self.replays, self.tried = began, quiet, replays, tried
        self.home = home  # a simulator may take the process elsewhere
        self.more = more  # what the user may like to know of this machine
        self.unmarked = ""
        self.lost_env_steps = 0  # that came after the checkpoint
        self.run_folder = folder  # or that of a new run, once it is made

    def run(
        self, layers: Mapping[str, str], argv: list[str], torso: torch.nn.Module | None
    ) -> TrainResult:
        """Build, run, and write down how it ended."""
        config = self.config
        if config.init_from and self.checkpoint is None:
            source = RunFolder.open(config.init_from)
            refuse_misfit(config, self.spec, read_policy(source), torso)
            self.config = replace(config, init_from=str(source.path.resolve()))
        with contextlib.ExitStack() as stack:
            # Processes make their environments later, which the supervisor tells.
            resumed = self.checkpoint is not None
            if resumed or layout_of(self.config) is None:
                num_envs = self.plan.num_envs
                making = wording.making_in_words(self.config, num_envs, resumed=resumed)
                self.beginning.at(making)
            placement = place(
                self.config,
                self.spec,
                self.plan,
                self._begin,
                torso=torso,
                tried=self.tried,
                hold=lambda: folder.join(),
            )
            stack.callback(self._close, placement.close)
            self.spec = placement.spec
            folder = self.run_folder = self._open()
            store = folder.checkpoints(self.config.keep_checkpoints)
            signals = stack.enter_context(Signals(self.watch, self.recorder.notice))
            requests = stack.enter_context(Requests(folder.path, self.watch, signals))
            scoring = Scoring(
                self.config,
                self.recorder,
                store,
                placement.names,
                lambda: (placement.updates, placement.env_steps),
                BestVideos(self.config, folder, store, placement.names, self.recorder.say)
                if self.config.evaluation.video
                else None,
            )
            supervisor = Supervisor(
                self.config,
                folder,
                placement,
                self.recorder,
                Checkpointing(self.config, store, self.watch),
                scoring,
                self.watch,
                signals,
                tried=self.tried,
                requests=requests,
                making=wording.making_in_words(self.config, self.plan.num_envs),
            )
            stack.callback(self._close, supervisor.close)
            before = {} if self.folder is None else folder.read_settings()
            self._write_beginning(folder, supervisor, layers, argv)
            self._introduce(folder, before, placement.restore_seconds or 0.0)
            if layers.get("algorithm.name") == FOR_REPLAYS and self.checkpoint is None:
                self.recorder.say(
                    f"algorithm {config.algorithm.name}, which learns from older data too, as replays hold it; another one: "
                    "algorithm:vtrace"
                )
            return self._supervise(supervisor, placement, scoring, folder)

    def _close(self, close: Callable[[], None]) -> None:
        """Close what a run holds, within the bound of a stop: an environment may hang there too."""
        try:
            with self.watch.within(self.config.stop_within_seconds):
                close()
        except Overdue:
            at = at_work()
            tell("gossamer: closing was left unfinished" + f": {at}" * bool(at))

    def _begin(self, wanted: Callable[[str], bool]) -> Checkpoint | None:
        """Return what learners begin with, of its tensors those that are wanted; they may be given up."""
        checkpoint, folder = self.checkpoint, self.run_folder
        if checkpoint is None:
            source = self.config.init_from
            return read_policy(RunFolder.open(source)) if source else None
        missing = any(wanted(name) for name, x in checkpoint.tensors.items() if x.is_meta)
        if not missing or folder is None:
            return checkpoint
        return folder.checkpoints().load(checkpoint.updates, wanted)

    @property
    def progress(self) -> tuple[int, int] | None:
        """Updates and env steps of the checkpoint that is continued from; None without one."""
        return None if self.checkpoint is None else snapshot.progress_of(self.checkpoint)

    def _open(self) -> RunFolder:
        config = self.config
        folder = self.folder or RunFolder.create(
            config.run_folder or None,
            env_id=config.env_id,
            algorithm=config.algorithm.name,
            topology=config.topology.name,
            seed=config.seed,
            named_in=self.home,
        )
        title = f"{config.env_id}  {config.algorithm.name}  seed {config.seed}"
        if config.num_learners > 1:
            title += f"  {config.num_learners} learners, {config.topology.name}"
        title = None if self.quiet else title
        self.recorder = Recorder(config, folder, began=self.began, title=title)
        self.watch.say, self.watch.seconds = self.recorder.say, self.recorder.seconds
        return folder

    def _write_beginning(
        self,
        folder: RunFolder,
        supervisor: Supervisor,
        layers: Mapping[str, str],
        argv: list[str],
    ) -> None:
        """Write what a run begins with; of a new run nothing stays if that fails."""
        try:
            known = wording.env_facts(self.spec) if self.tried else {}
            settings = to_dict(self.config)
            facts = {
                **wording.mixing_facts(self.config),
                **known,
                **self._origin(code_in(settings)),
            }
            before = self.checkpoint.state["recorder"]["seconds"] if self.checkpoint else 0.0
            folder.write_start(
                settings, layers, argv, facts, began=self.began, seconds_before=before
            )
            if mixing := wording.mixing_rows(self.config):
                folder.write_json("mixing.json", mixing)
            if self.checkpoint is not None:
                self._cut_back(folder)
                supervisor.load_state_dict(self.checkpoint.state)
            self.recorder.open(resumed_at=self.progress[1] if self.progress else None)
        except BaseException as error:
            if self.folder is None:
                folder.discard()
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

    def _cut_back(self, folder: RunFolder) -> None:
        """Drop what was written after the checkpoint: it is another future."""
        (updates, env_steps), each, episodes = self.progress or (0, 0), {0: 0}, 0
        self.lost_env_steps = max(folder.env_steps_told() - env_steps, 0)
        if self.checkpoint is not None:
            each = snapshot.updates_of(self.checkpoint)
            episodes = self.checkpoint.state["recorder"]["episode_rows"]
        folder.cut(env_steps, each, episodes=episodes)
        folder.checkpoints().discard_after(updates)
        (folder.path / "summary.json").unlink(missing_ok=True)

    def _go_back(self, folder: RunFolder) -> bool:
        """Return to the last checkpoint, or the beginning, in the midst of a session; whether there is one."""
        store = folder.checkpoints()
        none = snapshot.names_of(range(0))
        self.checkpoint = store.load("last", none) if store.list() else None
        self.recorder.close_files()
        self._cut_back(folder)
        record = self.checkpoint.state["recorder"] if self.checkpoint else None
        self.recorder.go_back(record)
        self.recorder.open_files(resumed_at=self.progress[1] if self.progress else 0)
        return self.checkpoint is not None

    def _introduce(self, folder: RunFolder, before: Mapping[str, Any], seconds: float) -> None:
        plan, recorder = self.plan, self.recorder
        self.beginning.over()
        recorder.say(self.spec.protocol)
        if self.checkpoint is None and (told := wording.new_episodes_in_words(self.spec)):
            recorder.say(told)
        for remark in self.spec.remarks:
            recorder.say(remark)
        if tasks := tasks_in_words(self.config, self.spec, num_envs=self.plan.num_envs):
            recorder.say(tasks)
        lag = "free" if plan.lag is None else plan.lag
        if plan.lag is None and self.config.placement == "inline":
            lag = "1 (free needs --placement local)"
        each = " each" if self.config.num_learners > 1 else ""
        recorder.say(
            f"{plan.num_envs} envs{each}, lag {lag}, {plan.device} {plan.precision}, threads: learner "
            f"{plan.learner_threads}, actor {plan.actor_threads}, envs {plan.env_threads}"
        )
        for line in self.replays:  # shown before
            with suppress(OSError):
                folder.log(line)
        if mixing := wording.mixing_in_words(self.config, wording.mixing_facts(self.config)):
            recorder.say(mixing)
        recorder.say(f"run folder {folder.shown}")
        if self.unmarked:
            recorder.say(self.unmarked)
        if self.checkpoint is None or self.progress is None:
            if self.config.init_from and len(self.config.replays) > 1:
                self._say_filling()
            return
        updates, env_steps = self.progress
        told = wording.resumed_in_words(
            new_episodes=not snapshot.comes_back(self.checkpoint, self.spec),
            why=resume_rules.why_not_exact(self.config, self.spec, plan, self.checkpoint, before),
            env_steps=env_steps,
            updates=updates,
            seconds=seconds,
            lost=self.lost_env_steps,
        )
        recorder.say(told)
        if resume_rules.begins_empty(self.config, self.checkpoint):
            self._say_filling()
        if self.more:
            recorder.say(self.more)
        for name, old, new in resume_rules.changes(before, to_dict(self.config)):
            recorder.say(f"changed: {name} {old} -> {new}")

    def _say_filling(self) -> None:
        rows = resume_rules.rows_to_fill(self.config, self.plan, self.checkpoint)
        self.recorder.say(wording.filling_in_words(rows))

    def _supervise(
        self, supervisor: Supervisor, placement: Placement, scoring: Scoring, folder: RunFolder
    ) -> TrainResult:
        recorder, watch = self.recorder, self.watch
        failure: BaseException | None = None

        def summary() -> dict[str, Any]:
            return summary_of(
                env_steps=placement.env_steps,
                updates=placement.updates,
                restarts=supervisor.restarts,
                seconds=recorder.seconds(),
                steps_per_second=recorder.steps_per_second(placement.env_steps),
                mean_return=recorder.mean_return(),
                best=recorder.best,
                candidate=recorder.candidate,
                best_learner=scoring.best_saved,
                ended=supervisor.exit,
            )

        def last_words() -> int:
            """Write down how the run ended, from a thread beside one that does not come back."""
            if watch.failure is not None:
                supervisor.exit = Exit("failed", wording.headline(watch.failure))
            elif not supervisor.saved:
                supervisor.leave_at_once()
            with suppress(OSError):
                folder.write_json("summary.json", summary())
            recorder.say(wording.ending(summary(), folder))
            if watch.failure is not None:
                tell(f"gossamer: {wording.headline(watch.failure)}")
            return int(watch.failure is not None)

        watch.last_words = last_words
        try:
            try:
                resumed = self.checkpoint is not None
                supervisor.run(self._begin, lambda: self._go_back(folder), resumed=resumed)
            except Overdue as overdue:
                if overdue.failure is not None:
                    raise overdue.failure from None
            except (Interrupted, Stopped):
                pass
            if not supervisor.final_snapshot_queued:
                supervisor.leave()
            supervisor.finish_saving()
            watch.settle()
        except BaseException as error:  # noqa: BLE001 - written down below, then raised
            failure = error
            supervisor.exit = Exit("failed", wording.headline(error))
            with suppress(OSError):  # of a full disk
                folder.log("".join(traceback.format_exception(error)))
            with suppress(Exception):  # a checkpoint under way is written to its end
                supervisor.finish_saving()
        ended = summary()
        for write in (partial(folder.write_json, "summary.json", ended), recorder.close):
            try:
                write()
            except OSError as error:
                failure = failure or error
        for line in wording.learners_in_words(
            self.config, scoring.scores_saved, recorder.mean_return_of, scoring.best_saved
        ):
            recorder.say(line)
        recorder.say(wording.ending(ended, folder))
        folder.unlock()
        # If closing does not end: the run has.
        watch.last_words = lambda: int(failure is not None)
        if failure is not None:
            wording.raise_failure(failure, folder)
        return TrainResult(folder.path, ended)
