"""From a config to a finished run: folder, resume, signals, summary. The public API's verbs."""

from __future__ import annotations

import json as json_module
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gossamer.build import (
    Plan,
    build_parts,
    build_policy,
    evaluation_envs,
    make_plan,
    num_cores,
    plan_from,
    threads,
)
from gossamer.config import TrainConfig, from_dict, to_dict, validate
from gossamer.envs.registry import read_spec
from gossamer.evaluator import Evaluation, Interrupted
from gossamer.evaluator import evaluate as play
from gossamer.launch import snapshot
from gossamer.launch.control import Control
from gossamer.launch.inline import run_inline
from gossamer.launch.local import run_local
from gossamer.launch.recorder import Recorder
from gossamer.policies.actor_critic import ActorCritic
from gossamer.record.folder import RunFolder
from gossamer.types import ConfigError, EnvSpec, RunFailed

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from gossamer.build import Parts
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

    Example:
        >>> import gossamer
        >>> config = gossamer.make_config("CartPole-v1", preset="debug", run_folder=str(tmp_path / "r"))
        >>> result = gossamer.train(config)
        >>> result.summary["exit_reason"]
        'done: total_env_steps reached'
    """
    validate(config)
    began = _process_began() if argv is not None else time.time()
    folder = RunFolder.open(resume) if resume is not None else None
    checkpoint = None
    if folder is not None:
        folder.lock()
        checkpoint = folder.checkpoints().load("last")
        for warning in checkpoint.warnings:
            print(f"gossamer: {warning}", file=sys.stderr)
        if checkpoint.state["held"]["learner.env_steps"] >= config.total_env_steps:
            print(
                f"{folder.path} is finished: {config.total_env_steps:,} env steps; train it further "
                "with a larger --total-env-steps"
            )
            return TrainResult(folder.path, folder.read_json("summary.json"))
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    plan = make_plan(config, spec)
    if checkpoint is not None:
        plan = plan_from(checkpoint.state["plan"], plan, set(config_given))
    run = _Run(config, spec, plan, folder, began=began, quiet=quiet)
    return run(checkpoint, layers or {}, argv or [], torso)


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

    def __call__(
        self,
        checkpoint: Checkpoint | None,
        layers: Mapping[str, str],
        argv: list[str],
        torso: torch.nn.Module | None,
    ) -> TrainResult:
        """Build, run, and write down how it ended."""
        config = self.config
        control: Control
        recorder: Recorder
        parts = build_parts(
            config,
            self.spec,
            self.plan,
            on_episode=lambda episode: recorder.on_episode(episode),
            on_evaluation=lambda result, version, params: control.on_evaluation(
                result, version, params
            ),
            torso=torso,
        )
        if config.init_from:
            _load_weights(parts.policy, RunFolder.open(config.init_from), "last")
        before = self.folder.read_json("config.json") if self.folder is not None else None
        folder = self.folder or RunFolder.create(
            config.run_folder or None,
            env_id=config.env_id,
            algorithm=config.algorithm.name,
            topology=config.topology.name,
            seed=config.seed,
        )
        title = f"{config.env_id}  {config.algorithm.name}  seed {config.seed}"
        recorder = Recorder(config, folder, began=self.began,
                            title=None if self.quiet else title)  # fmt: skip
        control = Control(config, recorder, folder.checkpoints(config.keep_checkpoints))
        try:
            folder.write_start(to_dict(config), layers, argv)
            self._restore(parts, recorder, folder, checkpoint)
            recorder.open(resumed_at=parts.learner.env_steps if checkpoint else None)
        except OSError as error:
            folder.discard()
            raise ConfigError(
                f"cannot write into {folder.path}: {error.strerror}; choose another --run-folder"
            ) from None
        except BaseException:
            if self.folder is None:
                folder.discard()
            raise
        self._introduce(recorder, folder, before)
        return self._run(parts, recorder, control, folder)

    def _restore(
        self, parts: Parts, recorder: Recorder, folder: RunFolder, checkpoint: Checkpoint | None
    ) -> None:
        if checkpoint is None:
            return
        began = time.monotonic()
        snapshot.put_back(parts, checkpoint)
        recorder.load_state_dict(checkpoint.state["recorder"])
        learner = parts.learner
        rows = checkpoint.state["recorder"]["episode_rows"]
        folder.cut(learner.env_steps, learner.update, episodes=rows)
        folder.checkpoints().discard_after(learner.update)
        how = "exactly" if checkpoint.state[snapshot.EXACT] else "with new episodes (not exactly)"
        folder.log(
            f"resumed {how} at {learner.env_steps:,} env steps, update {learner.update:,}; bringing "
            f"the environments back took {time.monotonic() - began:.1f} s"
        )

    def _introduce(self, recorder: Recorder, folder: RunFolder, before: Any) -> None:
        plan = self.plan
        recorder.say(f"{self.config.env_id}: {self.spec.protocol}")
        lag = "free" if plan.lag is None else plan.lag
        recorder.say(
            f"{plan.num_envs} envs, lag {lag}, {plan.device} {plan.precision}, threads: learner "
            f"{plan.learner_threads}, actor {plan.actor_threads}, envs {plan.env_threads}"
        )
        recorder.say(f"run folder {folder.path}")
        if before is not None:
            for name, old, new in _changes(before, to_dict(self.config)):
                recorder.say(f"changed: {name} {old} -> {new}")

    def _run(
        self, parts: Parts, recorder: Recorder, control: Control, folder: RunFolder
    ) -> TrainResult:
        control.begin(parts)
        failure: BaseException | None = None
        with _signals(control):
            try:
                launch = run_inline if self.config.placement == "inline" else run_local
                launch(parts, control)
                control.finish_saving()
                if parts.evaluator is not None and control.exit_reason.startswith("done"):
                    parts.evaluator.evaluate_newest(stop=control.interrupted)
            except Interrupted:
                pass
            except BaseException as error:  # written down below, then raised
                failure = error
        if failure is not None:
            control.exit_reason = f"failed: {_one_line(failure)}"
            folder.log("".join(traceback.format_exception(failure)))
        summary = {
            "env_steps": parts.learner.env_steps,
            "updates": parts.learner.update,
            "restarts": 0,
            "seconds": round(recorder.seconds(), 3),
            "steps_per_second": recorder.steps_per_second(parts.learner.env_steps),
            "mean_return_last_100": recorder.mean_return(),
            "best_evaluation": recorder.best_evaluation,
            "exit_reason": control.exit_reason,
        }
        try:
            folder.write_json("summary.json", summary)
        except OSError as error:
            failure = failure or error
        recorder.say(_ending(summary, folder))
        recorder.close()
        parts.close()
        folder.unlock()
        if failure is not None:
            _raise(failure)
        return TrainResult(folder.path, summary)


def _raise(failure: BaseException) -> None:
    if isinstance(failure, RunFailed | ConfigError):
        raise failure
    if isinstance(failure, OSError):
        raise RunFailed(
            f"could not write to the run folder: {failure.strerror or failure}; the last checkpoint "
            "is kept, resume from it once there is room"
        ) from failure
    traceback.print_exception(failure)
    raise RunFailed(_one_line(failure)) from failure


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, RunFailed) else f"{type(error).__name__}: {text}"


def _ending(summary: Mapping[str, Any], folder: RunFolder) -> str:
    parts = [f"{summary['exit_reason']}: {summary['env_steps']:,} env steps"]
    parts.append(f"{summary['seconds']:.0f} s")
    if summary["steps_per_second"]:
        parts.append(f"{summary['steps_per_second']:,.0f} steps/s")
    if summary["mean_return_last_100"] is not None:
        parts.append(f"return {summary['mean_return_last_100']:.4g}")
    if summary["best_evaluation"] is not None:
        parts.append(f"best evaluation {summary['best_evaluation']:.4g}")
    return ", ".join(parts) + f"; next: gossamer eval {folder.path}"


def _changes(before: Any, after: Any, path: str = "") -> Generator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from _changes(before.get(name), after.get(name), f"{path}.{name}".strip("."))
    elif before != after:
        yield path, before, after


class _signals:  # noqa: N801 - reads as a statement
    """Context in which the first SIGINT or SIGTERM ends the run cleanly, the second at once."""

    def __init__(self, control: Control):
        self._control = control
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._control.on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _process_began() -> float:
    import psutil

    return psutil.Process().create_time()


def _load_weights(policy: ActorCritic, folder: RunFolder, which: str | int) -> Checkpoint:
    checkpoint = folder.checkpoints().load(which)
    prefix = "learner.policy."
    tensors = {
        k.removeprefix(prefix): x for k, x in checkpoint.tensors.items() if k.startswith(prefix)
    }
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{checkpoint.path} does not fit this network: {reason}") from None
    policy.refresh()
    return checkpoint


def load_policy(run: str, checkpoint: str | int = "last") -> ActorCritic:
    """Load the policy of a run, ready to act, in float32 on the CPU.

    Args:
        run: a run folder, part of its name, or "last".
        checkpoint: "last", "best" or a number of updates.
    """
    folder = RunFolder.open(run)
    config = from_dict(folder.read_json("config.json"))
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    policy = build_policy(config, spec)
    _load_weights(policy, folder, checkpoint)
    return policy.requires_grad_(False).eval()


def evaluate(
    run: str,
    *,
    episodes: int = 30,
    checkpoint: str | int = "last",
    sample: bool = False,
    seed: int = 1,
) -> Evaluation:
    """Play full episodes with a run's policy, with seeds of their own, and return what they earned."""
    config = from_dict(RunFolder.open(run).read_json("config.json"))
    policy = load_policy(run, checkpoint)
    envs = evaluation_envs(config, seed=seed, num_threads=num_cores())
    with threads(num_cores()):
        return play(policy, envs, episodes=episodes, greedy=not sample, seed=seed)


def evaluate_run(
    run: str,
    *,
    episodes: int,
    checkpoint: str | int,
    sample: bool,
    seed: int,
    json: bool,
    video: str | None,
    render: bool,
) -> None:
    """Do what `gossamer eval` promises and print the result."""
    folder = RunFolder.open(run)
    config = from_dict(folder.read_json("config.json"))
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    if video or render:
        from gossamer.launch.show import show

        show(config, load_policy(run, checkpoint), seed=seed, greedy=not sample, video=video,
             window=render)  # fmt: skip
    result = evaluate(run, episodes=episodes, checkpoint=checkpoint, sample=sample, seed=seed)
    if json:
        print(
            json_module.dumps(
                {
                    "env": config.env_id,
                    "protocol": spec.protocol,
                    "checkpoint": checkpoint,
                    "episodes": len(result.returns),
                    "mean": result.mean,
                    "standard_error": result.standard_error,
                    "returns": list(result.returns),
                    "truncated": result.truncated,
                }
            )
        )
        return
    how = "sampled" if sample else "greedy"
    print(f"{config.env_id}: {spec.protocol}")
    print(
        f"checkpoint {checkpoint}, {len(result.returns)} episodes, {how}, seed {seed}: mean "
        f"{result.mean:.4g} +- {result.standard_error:.2g} (standard error), lowest "
        f"{min(result.returns):.4g}, highest {max(result.returns):.4g}, {result.truncated} cut by a "
        "time limit"
    )
