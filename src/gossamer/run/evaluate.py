"""Full episodes with a run's policy: `gossamer eval` and its Python form."""

from __future__ import annotations

import contextlib
import json as json_module
import signal
import sys
import time
from typing import TYPE_CHECKING

import torch

from gossamer.build.evaluation_tasks import build_trials
from gossamer.build.plan import find_device
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import Stopped
from gossamer.machine import same_folder, threads
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import plain
from gossamer.record.progress import PLAIN_EVERY_SECONDS, REDRAWS_PER_SECOND
from gossamer.record.terminal import is_live
from gossamer.roles.evaluation import Evaluation, Interrupted, play_trials
from gossamer.run.load_policy import config_of, policy_and_checkpoint, whose, whose_in_words
from gossamer.run.stopping import GivenUp, Overdue, Stop, Unsaved, Watch, without_advice
from gossamer.run.video_or_window import record_video, show_episode
from gossamer.system.cores import num_cores
from gossamer.system.devices import memory_told, own_arithmetic
from gossamer.system.ignored_signals import STOP_SIGNALS
from gossamer.system.reading import visible
from gossamer.system.signals import Signalled
from gossamer.system.signs_of_life import made_until
from gossamer.system.streams import show_result

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator

    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.types import VecEnv


def evaluate(
    run: str | os.PathLike[str],
    *,
    episodes: int = 30,
    checkpoint: str | int = "last",
    learner: int | None = None,
    sample: bool = False,
    seed: int = 1,
    device: str = "auto",
    torso: torch.nn.Module | None = None,
    env_id: str = "",
    trust: bool = False,
) -> Evaluation:
    """Play full episodes with a run's policy, with seeds that training does not use.

    Args:
        run: a run folder, part of its path, "last", or the result of `train`.
        episodes: number of episodes, at least 1. For a family of tasks: this many on the training tasks, and again on
            the `held_out` tasks, each time rounded up so that all tasks are played equally often. If a set has more
            than N = max(100, `episodes`) tasks, N evenly spaced ones are played once each.
        checkpoint: "last", "best", "candidate" (a best policy not confirmed yet) or a number of updates.
        learner: number of the learner whose policy is played; None: the run's policy, which for gossip and diffusion is
            the average of all learners.
        sample: sample actions instead of taking the likeliest.
        seed: seed of the episodes and of sampled actions.
        device: device of the policy: "auto", "cpu" or "cuda".
        torso: feature layers of your own that the run was trained with.
        env_id: the name of the run's environment again, which allows its import; see `load_policy`.
        trust: import the environment and parts that the run names, even if it comes from another machine or user.

    Returns:
        An `Evaluation`: each episode's return and length, and the mean return.

    Raises:
        ConfigError: the run or checkpoint does not exist, the checkpoint does not fit the run's settings, or the run would
            import code that may not be yours.
        RunFailed: an environment raised an exception or is stuck.
        KeyboardInterrupt: Ctrl-C was pressed; raised after the current step.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be >= 1")
    where = find_device(device, has_gpu=torch.cuda.is_available())
    folder = RunFolder.open(run)
    config = config_of(folder, env_id, trust=trust)
    with watched(config, last_resort=False) as watch:
        policy = policy_and_checkpoint(folder, config, checkpoint, learner, torso)[0].to(where)
        return play_episodes(
            config, policy, watch, episodes=episodes, sample=sample, seed=seed, quiet=True
        )


INTERRUPT_SECONDS = 5.0
"""Longest time from Ctrl-C to the end of the step that is being played."""


@contextlib.contextmanager
def watched(config: TrainConfig, *, last_resort: bool) -> Generator[Watch]:
    """Context in which slow environments are named, those that are stuck given up, and a signal ends both."""
    stop = Stop(INTERRUPT_SECONDS)
    watch = Watch(config.patience_seconds, Unsaved(stop), stop, last_resort=last_resort)
    with watch, watch.leaving():
        try:
            with memory_told("to evaluate", "use --device cpu"):
                yield watch
        except GivenUp as given_up:
            raise RunFailed(without_advice(given_up.failure)) from None
        except Overdue:
            raise Signalled(stop.signal) from None


@own_arithmetic()
def play_episodes(
    config: TrainConfig,
    policy: ActorCritic,
    watch: Watch,
    *,
    episodes: int,
    sample: bool,
    seed: int,
    quiet: bool = False,
) -> Evaluation:
    """Play what `gossamer eval` plays, and unless `quiet`, tell on standard error how far it has come; else as `evaluate`."""
    cores = num_cores()
    trials = build_trials(config, policy.spec, episodes=episodes, seed=seed, num_threads=cores)
    with (
        threads(1),
        same_folder(),
        stop_on_interrupt(watch) as stop,
        contextlib.ExitStack() as stack,
    ):
        progress = None
        if not quiet:
            progress = _Progress(sum(trial.episodes for trial in trials))
            stack.callback(progress.close)
        with made_until(stop):
            envs = [stack.enter_context(contextlib.closing(trial.open())) for trial in trials]
        return play_trials(
            policy,
            trials,
            envs,
            greedy=not sample,
            seed=seed,
            num_threads=cores if policy.pixels and policy.device.type == "cpu" else 1,
            stop=stop,
            on_step=progress,
        )


def _episodes(count: int) -> str:
    return f"{count} episode{'' if count == 1 else 's'}"


class _Progress:
    """Tells every few seconds how far an evaluation has come: over itself in a terminal."""

    def __init__(self, episodes: int):
        self._episodes = episodes
        self._steps = self._before = 0
        self._now = -1
        self._wrote_at = time.monotonic()
        self._in_terminal = is_live(sys.stderr)
        self._wrote = False

    def __call__(self, envs: VecEnv, ended: int) -> None:
        """Note a step of every environment."""
        if self._now < 0 or ended < self._now:  # a trial begins
            self._before += max(self._now, 0)
        else:
            self._steps += envs.num_envs
        self._now = ended
        now = time.monotonic()
        if now - self._wrote_at >= (
            1 / REDRAWS_PER_SECOND if self._in_terminal else PLAIN_EVERY_SECONDS
        ):
            self._wrote_at, self._wrote = now, True
            ended += self._before
            text = f"{ended} of {_episodes(self._episodes)}, {self._steps:,} steps"
            self._write(f"\r{text} " if self._in_terminal else f"{text}\n")

    def close(self) -> None:
        """Leave a terminal's line."""
        if self._wrote and self._in_terminal:
            self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody watches any more
            sys.stderr.write(text)
            sys.stderr.flush()


@contextlib.contextmanager
def stop_on_interrupt(watch: Watch) -> Generator[Callable[[], bool]]:
    """Context whose first signal ends an evaluation between two steps, or soon; the second comes through.

    An exception amid a step would leave simulators' threads with a step that nobody fetches. In a process that is not
    ours Ctrl-C alone is heard.
    """

    def on_interrupt(number: int) -> None:
        if not watch.stop.is_requested:
            watch.stop.request(signal.Signals(number).name, number)
        elif number != signal.SIGHUP:  # a terminal that is closed says so more than once
            watch.quit(number)

    with watch.hearing(on_interrupt, STOP_SIGNALS if watch.ends_process else [signal.SIGINT]):
        try:
            yield lambda: watch.stop.is_requested
        except (Interrupted, Stopped):
            raise Signalled(watch.stop.signal) from None


def evaluate_run(
    run: str,
    *,
    episodes: int,
    checkpoint: str | int,
    learner: int | None,
    env_id: str,
    trust: bool,
    sample: bool,
    seed: int,
    device: str,
    json: bool,
    video: str | None,
    render: bool,
) -> None:
    """Do what `gossamer eval` promises and print the result."""
    where = find_device(device, has_gpu=torch.cuda.is_available())
    folder = RunFolder.open(run)
    config = config_of(folder, env_id, trust=trust, command="eval")
    with watched(config, last_resort=True) as watch:
        policy, loaded = policy_and_checkpoint(folder, config, checkpoint, learner)
        spec = policy.spec
        policy = policy.to(where)
        if video:
            shown = record_video(config, policy, video, seed=seed, greedy=not sample)
            print(
                f"wrote {video}: one episode of {shown.lengths[0]:,} steps, return {shown.mean:.4g}",
                file=sys.stderr,
            )
        if render:
            show_episode(config, policy, seed=seed, greedy=not sample)
        for remark in spec.remarks:
            print(f"gossamer: {visible(remark)}", file=sys.stderr)
        if not json:
            print(f"{folder.shown}\n{spec.protocol}", flush=True)
        result = play_episodes(config, policy, watch, episodes=episodes, sample=sample, seed=seed)
    if json:
        row = {
            "run": folder.shown,
            "env": config.env_id,
            "protocol": spec.protocol,
            "checkpoint": checkpoint,
            "learner": whose(loaded, learner, config.num_learners),
            "episodes": len(result.returns),
            **result.as_dict(),
        }
        show_result(json_module.dumps(plain(row)))
        return
    how = "sampled" if sample else "greedy"
    count, scores = _count_in_words(result), _scores_in_words(result)
    owner = whose_in_words(loaded, learner, config)
    print(f"checkpoint {checkpoint}, {owner}{count}, {how}, seed {seed}: {scores}")
    if (held_out := result.held_out) is not None:
        print(f"{_count_in_words(held_out)} held out: {_scores_in_words(held_out)}")
    if config.env.episode_info and result.info:  # a family tells of its tasks, unasked
        print("means: " + ", ".join(f"{visible(name)} {x:.4g}" for name, x in result.info.items()))


def _count_in_words(result: Evaluation) -> str:
    tasks = len(set(result.tasks))
    return _episodes(len(result.returns)) + (
        f" of {tasks} task{'s' * (tasks > 1)}" if tasks else ""
    )


def _scores_in_words(result: Evaluation) -> str:
    if len(result.returns) == 1:  # which tells nothing of an error
        return f"return {result.mean:.4g}, {result.truncated} cut by a time limit"
    return (
        f"mean {result.mean:.4g} +- {result.standard_error:.2g} (standard error), lowest "
        f"{min(result.returns):.4g}, highest {max(result.returns):.4g}, {result.truncated} cut by a "
        "time limit"
    )
