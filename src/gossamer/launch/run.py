"""From a config to a finished run: folder, resume, signals, summary. The public API's verbs."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gossamer.build import Plan, make_plan
from gossamer.config import TrainConfig, to_dict, validate
from gossamer.envs.registry import read_spec
from gossamer.evaluator import Interrupted
from gossamer.graphs import contraction
from gossamer.group import build_group
from gossamer.launch import resume as resuming
from gossamer.launch import snapshot
from gossamer.launch.control import OWN_POLICY, GroupControl, signals
from gossamer.launch.evaluation import load_weights
from gossamer.launch.inline import run_inline
from gossamer.launch.local import run_local
from gossamer.launch.recorder import Recorder, refuse_missing_writers
from gossamer.launch.resume import resumed_plan, summary_of
from gossamer.machine import keep_freed_memory
from gossamer.record.folder import RunFolder
from gossamer.types import ConfigError, EnvSpec, RunFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from gossamer.group import Group
    from gossamer.record.checkpoint import Checkpoint


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
    validate(config)
    keep_freed_memory()
    refuse_missing_writers(config)
    _refuse_full_shared_memory(config)
    began = _process_began() if argv is not None else time.time()
    folder = RunFolder.open(resume) if resume is not None else None
    try:
        if folder is not None:
            folder.lock()
        checkpoint = folder.checkpoints().load("last") if folder is not None else None
        if folder is not None and checkpoint is not None:
            for warning in checkpoint.warnings:
                print(f"gossamer: {warning}", file=sys.stderr)
            reason, summary = resuming.finished(config, folder, checkpoint)
            if reason:
                if reason.endswith("stop_after_seconds reached"):
                    reason += f" by its {summary['seconds']:.0f} s over all sittings"
                print(f"{folder.path} is finished ({reason}); raise that limit to train it further")
                return TrainResult(folder.path, summary)
        spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=folder is None)
        plan = make_plan(config, spec)
        if folder is not None and checkpoint is not None:
            before, now = folder.read_json("config.json"), to_dict(config)
            # From Python nobody says what was asked for; what differs was.
            given = set(config_given) or {name for name, _, _ in resuming.changes(before, now)}
            plan = resumed_plan(checkpoint, plan, given, before, now)
        run = _Run(config, spec, plan, folder, began=began, quiet=quiet)
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
    ):
        self.config, self.spec, self.plan, self.folder = config, spec, plan, folder
        self.began, self.quiet = began, quiet
        self.restore_seconds = 0.0

    def __call__(
        self,
        checkpoint: Checkpoint | None,
        layers: Mapping[str, str],
        argv: list[str],
        torso: torch.nn.Module | None,
    ) -> TrainResult:
        """Build, run, and write down how it ended."""
        config = self.config
        control: GroupControl
        recorder: Recorder
        group = build_group(
            config,
            self.spec,
            self.plan,
            on_episode=lambda episode, learner: recorder.on_episode(episode, learner),
            on_evaluation=lambda result, version, params, learner: control.on_evaluation(
                result, version, params, learner
            ),
            torso=torso,
            start=checkpoint is None or not checkpoint.state[snapshot.EXACT],
        )
        try:
            if config.init_from and checkpoint is None:
                for parts in group.parts:
                    load_weights(parts.policy, RunFolder.open(config.init_from), "last")
            if checkpoint is not None:
                restoring = time.monotonic()
                snapshot.put_back(group, checkpoint)
                self.restore_seconds = time.monotonic() - restoring
            group.join()
            folder = self.folder or RunFolder.create(
                config.run_folder or None,
                env_id=config.env_id,
                algorithm=config.algorithm.name,
                topology=config.topology.name,
                seed=config.seed,
            )
            title = f"{config.env_id}  {config.algorithm.name}  seed {config.seed}"
            title = None if self.quiet else title
            recorder = Recorder(config, folder, began=self.began, title=title)
            control = GroupControl(config, recorder, folder.checkpoints(config.keep_checkpoints))
            with signals(control):
                self._begin(group, recorder, folder, checkpoint, layers, argv)
                return self._run(group, recorder, control, folder)
        finally:
            group.close()

    def _begin(
        self,
        group: Group,
        recorder: Recorder,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        layers: Mapping[str, str],
        argv: list[str],
    ) -> None:
        """Write what a run begins with; of a new run nothing stays if that fails."""
        before = None if self.folder is None else folder.read_json("config.json")
        try:
            folder.write_start(to_dict(self.config), layers, argv)
            if checkpoint is not None:
                self._cut_back(group, recorder, folder, checkpoint)
            recorder.open(resumed_at=group.env_steps if checkpoint else None)
        except BaseException as error:
            if self.folder is None:
                folder.discard()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"cannot write into {folder.path}: {error.strerror or error}; make room or "
                    "choose another folder"
                ) from None
            raise
        self._introduce(group, recorder, folder, checkpoint, before)

    def _cut_back(
        self, group: Group, recorder: Recorder, folder: RunFolder, checkpoint: Checkpoint
    ) -> None:
        """Drop what was written after the checkpoint: it is another future."""
        learner, record = group.first.learner, checkpoint.state["recorder"]
        recorder.load_state_dict(record)
        folder.cut(group.env_steps, learner.update, episodes=record["episode_rows"])
        folder.checkpoints().discard_after(learner.update)
        (folder.path / "summary.json").unlink(missing_ok=True)

    def _introduce(
        self,
        group: Group,
        recorder: Recorder,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        before: Any,
    ) -> None:
        plan = self.plan
        recorder.say(self.spec.protocol)
        lag = "free" if plan.lag is None else plan.lag
        recorder.say(
            f"{plan.num_envs} envs, lag {lag}, {plan.device} {plan.precision}, threads: learner "
            f"{plan.learner_threads}, actor {plan.actor_threads}, envs {plan.env_threads}"
        )
        if len(group.parts) > 1:
            recorder.say(self._mixing())
        recorder.say(f"run folder {folder.path}")
        if checkpoint is None:
            return
        exact = checkpoint.state[snapshot.EXACT]
        how = "exactly" if exact else "with new episodes (not exactly)"
        recorder.say(
            f"resumed {how} at {group.env_steps:,} env steps, update "
            f"{group.first.learner.update:,}; restoring took {self.restore_seconds:.1f} s"
        )
        for name, old, new in resuming.changes(before, to_dict(self.config)):
            recorder.say(f"changed: {name} {old} -> {new}")

    def _mixing(self) -> str:
        topology, size = self.config.topology, self.config.num_learners
        mixing = f"{size} learners, {topology.name}"
        if topology.name not in OWN_POLICY:
            shrinks = contraction(topology.turns(size, self.config.seed))
            mixing += f": a round of mixing leaves {shrinks:.3f} of their disagreement (spectral gap {1 - shrinks:.3f})"
        return mixing

    def _run(
        self, group: Group, recorder: Recorder, control: GroupControl, folder: RunFolder
    ) -> TrainResult:
        control.take_charge(group)
        failure: BaseException | None = None
        try:
            launch = run_inline if self.config.placement == "inline" else run_local
            launch(group, control)
            control.finish_saving()
            if group.evaluator is not None and control.exit_reason.startswith("done"):
                if group.versions is not None:
                    group.versions.score_policy_next()
                group.evaluator.evaluate_newest(stop=control.interrupted)
        except Interrupted:
            pass
        except BaseException as error:  # noqa: BLE001 - written down below, then raised
            failure = error
            control.exit_reason = f"failed: {_headline(error)}"
            with suppress(OSError):  # of a full disk
                folder.log("".join(traceback.format_exception(error)))
            with suppress(Exception):  # a checkpoint under way is written to its end
                control.finish_saving()
        summary = summary_of(
            env_steps=group.env_steps,
            updates=group.first.learner.update,
            seconds=recorder.seconds(),
            steps_per_second=recorder.steps_per_second(group.env_steps),
            mean_return=recorder.mean_return(),
            best_evaluation=recorder.best_evaluation,
            exit_reason=control.exit_reason,
        )
        try:
            folder.write_json("summary.json", summary)
        except OSError as error:
            failure = failure or error
        recorder.close()
        recorder.say(_ending(summary, folder))
        folder.unlock()
        if failure is not None:
            _raise(failure)
        return TrainResult(folder.path, summary)


def _raise(failure: BaseException) -> None:
    """Raise what ends the run as one line, after the traceback of whose fault it is."""
    if isinstance(failure, ConfigError):
        raise failure
    if isinstance(failure, RunFailed):
        _, _, details = str(failure).strip().partition("\n")
        if details:
            print(details, file=sys.stderr)
        raise RunFailed(_headline(failure)) from failure
    if isinstance(failure, OSError):
        raise RunFailed(
            f"could not write to the run folder: {failure.strerror or failure}; the last checkpoint "
            "is kept, resume from it once there is room"
        ) from failure
    traceback.print_exception(failure)
    raise RunFailed(_headline(failure)) from failure


def _headline(error: BaseException) -> str:
    """Say in one line what failed; a RunFailed of several lines holds a traceback after the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, RunFailed):
        return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {' '.join(lines)}"


def _ending(summary: Mapping[str, Any], folder: RunFolder) -> str:
    parts = [f"{summary['exit_reason']}: {summary['env_steps']:,} env steps"]
    parts.append(f"{summary['seconds']:.0f} s")
    if summary["steps_per_second"]:
        parts.append(f"{summary['steps_per_second']:,.0f} steps/s")
    if summary["mean_return_last_100"] is not None:
        parts.append(f"return {summary['mean_return_last_100']:.4g}")
    if summary["best_evaluation"] is not None:
        parts.append(f"best evaluation {summary['best_evaluation']:.4g}")
    stopped = summary["exit_reason"].startswith("stopped")
    verb = "train --resume" if stopped else "eval"
    hint = "" if summary["exit_reason"].startswith("failed") else f"; next: gossamer {verb} "
    return ", ".join(parts) + (hint and f"{hint}{folder.path}")


def _refuse_full_shared_memory(config: TrainConfig) -> None:
    """Worker processes need locks and arrays in shared memory: without room each would just die."""
    if not config.env.workers:
        return
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        raise ConfigError(
            f"--env.workers {config.env.workers} needs room in shared memory, /dev/shm "
            f"({error.strerror}); free some, or step the environments without workers: --env.workers 0"
        ) from None


def _process_began() -> float:
    try:
        # The kernel counts ticks since boot; psutil adds them to a boot time in whole seconds.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, AttributeError, ValueError):
        return psutil.Process().create_time()
