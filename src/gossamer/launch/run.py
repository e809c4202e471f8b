"""From a config to a finished run: folder, resume, signals, summary. The public API's verbs."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gossamer.build import Plan, build_policy, make_plan
from gossamer.config import TrainConfig, to_dict, validate, with_ratio
from gossamer.envs.registry import read_spec
from gossamer.evaluator import Interrupted
from gossamer.group import build_group
from gossamer.launch import resume as resuming
from gossamer.launch import snapshot, words
from gossamer.launch.control import Control, GroupControl, signals
from gossamer.launch.evaluation import load_weights
from gossamer.launch.fleet import Fleet, GroupDied
from gossamer.launch.inline import run_inline
from gossamer.launch.local import run_local
from gossamer.launch.process import layout_of, transport_of
from gossamer.launch.recorder import Recorder, refuse_missing_writers
from gossamer.launch.resume import resumed_plan, summary_of
from gossamer.machine import keep_freed_memory, process_began
from gossamer.record.folder import RunFolder
from gossamer.room import refuse_full_shared_memory, refuse_what_memory_cannot_hold
from gossamer.trials import tasks_in_words
from gossamer.types import ConfigError, EnvSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    import torch

    from gossamer.launch.control import Run
    from gossamer.record.checkpoint import Checkpoint


PATIENCE_SECONDS = 1.5
"""Restoring that takes longer is explained."""


@dataclass(frozen=True)
class TrainResult:
    """Where a run is and what came of it."""

    folder: Path
    """The run folder."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Content of summary.json."""


def train(
    config: TrainConfig,
    *,
    layers: Mapping[str, str] | None = None,
    argv: list[str] | None = None,
    resume: str | None = None,
    config_given: set[str] | frozenset[str] = frozenset(),
    torso: torch.nn.Module | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a policy and return where the run is.

    Args:
        config: every setting; `make_config` builds one with the environment's defaults.
        layers: which layer set each setting, for the record.
        argv: the command line, for the record.
        resume: the run to continue, with this config.
        config_given: names of settings that were asked for, which win over a resumed run's plan.
        torso: your own feature layers, [N, *obs_shape] float -> [N, F] with `feature_size`.
        quiet: show no progress.

    Raises:
        ConfigError: a mistake in the settings; nothing was created.
        RunFailed: the run could not go on; its folder says why.
    """
    config = with_ratio(config)
    validate(config)
    # A run must not change, nor end, with a file that it does not own.
    config = replace(config, topology=config.topology.written_out())
    keep_freed_memory()
    refuse_missing_writers(config)
    refuse_full_shared_memory(config)
    began = process_began() if argv is not None else time.time()
    folder = RunFolder.open(resume) if resume is not None else None
    try:
        if folder is not None:
            folder.lock()
        fleet = config.num_learners > 1 and config.placement == "local"
        # Processes load what is theirs.
        mine = snapshot.names_of(range(0 if fleet else config.num_learners))
        checkpoint = folder.checkpoints().load("last", mine) if folder is not None else None
        before: dict[str, Any] = {} if folder is None else folder.read_json("config.json")
        if folder is not None and checkpoint is not None:
            resuming.refuse_changes(before, to_dict(config))
            for warning in checkpoint.warnings:
                print(f"gossamer: {warning}", file=sys.stderr)
            reason, summary = resuming.finished(config, folder, checkpoint)
            if reason:
                if reason.endswith("stop_after_seconds reached"):
                    reason += f" by its {summary['seconds']:.0f} s over all sittings"
                limit = resuming.raised(config, reason)
                print(f"{folder.path} is finished ({reason}); to train it further: gossamer train "
                      f"--resume {folder.path} {limit}")  # fmt: skip
                return TrainResult(folder.path, summary)
        spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=folder is None)
        layout = layout_of(config) if fleet else None
        cores = layout.share if layout else 0
        plan = make_plan(config, spec, cores)
        if folder is not None and checkpoint is not None:
            now = to_dict(config)
            # From Python nobody says what was asked for; what differs was.
            given = set(config_given) or {name for name, _, _ in resuming.changes(before, now)}
            plan = resumed_plan(checkpoint, plan, given, before, now)
        processes = len(layout.ranks) if layout else 0
        replays = refuse_what_memory_cannot_hold(config, spec, plan, processes, checkpoint)
        for line in replays if not quiet else ():
            print(line, flush=True)  # before any is made
        run = _Run(config, spec, plan, folder, began=began, quiet=quiet, replays=replays)
        return run(checkpoint, layers or {}, argv or [], torso)
    finally:
        if folder is not None:
            folder.unlock()


class _Run:
    """One sitting of a run, from its parts to its summary."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        plan: Plan,
        folder: RunFolder | None,
        *,
        began: float,
        quiet: bool,
        replays: list[str],
    ):
        self.config, self.spec, self.plan, self.folder = config, spec, plan, folder
        self.began, self.quiet, self.replays = began, quiet, replays
        self.restore_seconds = 0.0
        self.control: Control

    def __call__(
        self,
        checkpoint: Checkpoint | None,
        layers: Mapping[str, str],
        argv: list[str],
        torso: torch.nn.Module | None,
    ) -> TrainResult:
        """Build, run, and write down how it ended."""
        self.checkpoint, self.layers, self.argv = checkpoint, layers, argv
        if self.config.num_learners > 1 and self.config.placement == "local":
            return self._in_processes(torso)
        return self._in_this_process(torso)

    def _in_this_process(self, torso: torch.nn.Module | None) -> TrainResult:
        config, checkpoint = self.config, self.checkpoint
        control: GroupControl
        group = build_group(
            config,
            self.spec,
            self.plan,
            on_episode=lambda episode, learner: self.recorder.on_episode(episode, learner),
            on_evaluation=lambda result, version, params, learner, at: control.on_evaluation(
                result, version, params, learner, at
            ),
            torso=torso,
            start=checkpoint is None or not checkpoint.state[snapshot.EXACT],
        )

        def work() -> None:
            control.take_charge(group)
            (run_inline if config.placement == "inline" else run_local)(group, control)
            control.finish_saving()
            if group.evaluator is not None and control.exit_reason.startswith("done"):
                if group.memory is not None:
                    group.memory.versions.score_policy_next(control.best_saved)
                group.evaluator.evaluate_newest(stop=control.interrupted)

        try:
            if config.init_from and checkpoint is None:
                for parts in group.parts:
                    load_weights(parts.policy, RunFolder.open(config.init_from), "last")
            if checkpoint is not None:
                restoring = time.monotonic()
                with self._patience():
                    snapshot.put_back(group, checkpoint)
                self.restore_seconds = time.monotonic() - restoring
            group.join()
            folder = self._open()
            control = GroupControl(
                config, self.recorder, folder.checkpoints(config.keep_checkpoints)
            )
            self.control = control
            with signals(control):
                self._begin(folder)
                return self._run(work, group, control, folder)
        finally:
            group.close()

    @contextmanager
    def _patience(self) -> Generator[None]:
        """Tell what takes so long, if it does: long episodes are replayed."""
        envs = self.plan.num_envs * self.config.num_learners
        told = f"bringing {envs} environments back to where they were, by replaying their episodes"
        timer = threading.Timer(PATIENCE_SECONDS, partial(print, told, flush=True))
        if not self.quiet:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _in_processes(self, torso: torch.nn.Module | None) -> TrainResult:
        config = self.config
        if torso is not None:
            raise ConfigError(
                "a torso of your own cannot be handed to other processes; use one learner, or "
                "placement inline"
            )
        # Mistakes show here, before anything is written, and not in the processes.
        transport_of(config, self.plan.device)
        policy = build_policy(config, self.spec)
        if self.checkpoint is not None and self.folder is not None:
            load_weights(policy, self.folder, self.checkpoint.updates)
            resuming.refuse_replays(config, self.plan, policy, self.checkpoint)
        elif config.init_from:
            source = RunFolder.open(config.init_from)
            load_weights(policy, source, "last")
            config = self.config = replace(config, init_from=str(source.path.resolve()))
        fleet = Fleet(config, self.spec, self.plan)
        folder = self._open()
        control = Control(config, self.recorder, folder.checkpoints(config.keep_checkpoints))
        self.control = control
        with signals(control):
            self._begin(folder)

            def work() -> None:
                while True:
                    try:
                        fleet.run(control, folder, resume=self.progress)
                        break
                    except GroupDied:
                        control.finish_saving()
                        self._go_back(folder)
                control.finish_saving()
                if control.exit_reason.startswith("done"):
                    fleet.score_policy()

            try:
                return self._run(work, fleet, control, folder)
            finally:
                fleet.close()

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
        )
        title = f"{config.env_id}  {config.algorithm.name}  seed {config.seed}"
        if config.num_learners > 1:
            title += f"  {config.num_learners} learners, {config.topology.name}"
        title = None if self.quiet else title
        self.recorder = Recorder(config, folder, began=self.began, title=title)
        return folder

    def _begin(self, folder: RunFolder) -> None:
        """Write what a run begins with; of a new run nothing stays if that fails."""
        before = None if self.folder is None else folder.read_json("config.json")
        try:
            facts = words.mixing_facts(self.config)
            settings = to_dict(self.config)
            folder.write_start(settings, self.layers, self.argv, facts, began=self.began)
            if self.checkpoint is not None:
                self._cut_back(folder)
                self.recorder.load_state_dict(self.checkpoint.state["recorder"])
                self.control.load_state_dict(self.checkpoint.state)
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
        self._introduce(folder, before, facts)

    def _cut_back(self, folder: RunFolder) -> None:
        """Drop what was written after the checkpoint: it is another future."""
        updates, env_steps = self.progress or (0, 0)
        episodes = self.checkpoint.state["recorder"]["episode_rows"] if self.checkpoint else 0
        folder.cut(env_steps, updates, episodes=episodes)
        folder.checkpoints().discard_after(updates)
        (folder.path / "summary.json").unlink(missing_ok=True)

    def _go_back(self, folder: RunFolder) -> None:
        """Return to the last checkpoint, or the beginning, in the midst of a sitting."""
        store = folder.checkpoints()
        none = snapshot.names_of(range(0))
        self.checkpoint = store.load("last", none) if store.list() else None
        self.control.exit_reason = ""  # an end that was reached is not reached any more
        self.recorder.close_files()
        self._cut_back(folder)
        record = self.checkpoint.state["recorder"] if self.checkpoint else None
        self.recorder.go_back(record)
        self.recorder.open_files(resumed_at=self.progress[1] if self.progress else 0)

    def _introduce(self, folder: RunFolder, before: Any, facts: Mapping[str, float]) -> None:
        plan, recorder = self.plan, self.recorder
        recorder.say(self.spec.protocol)
        if tasks := tasks_in_words(self.config, self.spec):
            recorder.say(tasks)
        lag = "free" if plan.lag is None else plan.lag
        if plan.lag is None and self.config.placement == "inline":
            lag = "1 (inline nobody runs free)"
        each = " each" if self.config.num_learners > 1 else ""
        recorder.say(
            f"{plan.num_envs} envs{each}, lag {lag}, {plan.device} {plan.precision}, threads: learner "
            f"{plan.learner_threads}, actor {plan.actor_threads}, envs {plan.env_threads}"
        )
        for line in self.replays:  # shown before
            with suppress(OSError):
                folder.log(line)
        if mixing := words.mixing_in_words(self.config, facts):
            recorder.say(mixing)
        recorder.say(f"run folder {folder.path}")
        if self.checkpoint is None or self.progress is None:
            return
        exact, held = self.checkpoint.state[snapshot.EXACT], self.checkpoint.state["held"]
        how = "exactly" if exact else "with new episodes (not exactly)"
        kept = self.config.checkpoint_replay and any(name.endswith(".stored") for name in held)
        if len(self.config.replays) > 1 and not kept:
            how = f"{'' if exact else how + ', '}with empty replays (--checkpoint-replay keeps what they hold)"
        updates, env_steps = self.progress
        took = f"; restoring took {self.restore_seconds:.1f} s" if self.restore_seconds else ""
        recorder.say(f"resumed {how} at {env_steps:,} env steps, update {updates:,}{took}")
        for name, old, new in resuming.changes(before, to_dict(self.config)):
            recorder.say(f"changed: {name} {old} -> {new}")

    def _run(
        self, work: Callable[[], None], run: Run, control: Control, folder: RunFolder
    ) -> TrainResult:
        config, recorder = self.config, self.recorder
        failure: BaseException | None = None
        try:
            work()
        except Interrupted:
            pass
        except BaseException as error:  # noqa: BLE001 - written down below, then raised
            failure = error
            control.exit_reason = f"failed: {words.headline(error)}"
            with suppress(OSError):  # of a full disk
                folder.log("".join(traceback.format_exception(error)))
            with suppress(Exception):  # a checkpoint under way is written to its end
                control.finish_saving()
        summary = summary_of(
            env_steps=run.env_steps,
            updates=run.updates,
            restarts=run.restarts,
            seconds=recorder.seconds(),
            steps_per_second=recorder.steps_per_second(run.env_steps),
            mean_return=recorder.mean_return(),
            best_evaluation=recorder.best_evaluation,
            best_learner=control.best_saved,
            exit_reason=control.exit_reason,
        )
        try:
            folder.write_json("summary.json", summary)
        except OSError as error:
            failure = failure or error
        recorder.close()
        for line in words.learners_in_words(
            config, control.scores_saved, recorder.mean_return_of, control.best_saved
        ):
            recorder.say(line)
        recorder.say(words.ending(summary, folder))
        folder.unlock()
        if failure is not None:
            words.raise_failure(failure, folder)
        return TrainResult(folder.path, summary)
