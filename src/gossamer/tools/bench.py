"""What this machine can do at most, and how near training comes to it.

The limit is what the machine could do if stepping, inference and learning overlapped perfectly. On a CPU all
three share the cores: 1 / (1 / env + 1 / inference + 1 / learner), each rate the total of one copy per core
running at once, at its own best batch size. A GPU does two of them while the cores step:
min(env, 1 / (1 / inference + 1 / learner)). Training is measured end to end, logging included.
"""

from __future__ import annotations

import dataclasses
import json as json_module
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gossamer.build.plan import PRECISIONS, make_plan
from gossamer.build.roles import build_inference_policy, build_policy
from gossamer.config import TrainConfig, make_config, to_dict
from gossamer.envs.registry import make_vec_env, masked_as, may_mask, read_spec
from gossamer.envs.seeding import stream_seed
from gossamer.envs.spaces import draw_actions
from gossamer.errors import NeverBegan, RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.links.threads import Roles, ThreadQueue
from gossamer.machine import keep_freed_memory, process_began, use_threads
from gossamer.ops.micro_batches import MicroBatches
from gossamer.record.exits import exit_of
from gossamer.replay.batches import BatchSource
from gossamer.roles.acting_step import ActingStep
from gossamer.roles.learner import Learner
from gossamer.spec import leaves_of, map_obs, obs_at
from gossamer.system.cores import num_cores
from gossamer.system.devices import is_gpu
from gossamer.system.graphs import Graphs
from gossamer.system.signals import Signals
from gossamer.system.streams import show_result
from gossamer.tools.prediction import Rates
from gossamer.types import empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gossamer.build.plan import Plan
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.spec import EnvSpec
    from gossamer.types import Trajectory

PONG = "PongNoFrameskip-v4"
SEVERAL = {"num_learners": "auto", "num_envs": 16, "unroll_length": 64}
"""Where the cores are enough for several learners, each has a batch of as many rows, from environments that start sooner."""
MAX_ENVS = 64
"""Most environments that are made to be stepped: Atari's are made one after the other, each in 0.1 s."""
ENVS_PER_COPY = 16
"""Most of them on one core; with 4 to 32 the rate is the same."""
INFERENCE_BATCHES = (32, 64, 128, 256)
GPU_INFERENCE_BATCHES = (64, 256, 1024)
GPU_LEARNING_ENVS = (64, 128, 256, 512)
"""Columns of a batch, which a GPU learns whole."""
MICRO_BATCH_ROWS = (136, 272, 544)
MAKING_FRACTION = 0.25
"""Largest share of the time in which environments are made."""
TRAINING_FRACTION = 0.4
TRAINING_SECONDS = 40.0
"""Training gets more than its share of a short time, up to this: it has to begin first."""
SHORTEST_SECONDS = 8.0
"""With less time than this for the limits on either side of training, they are measured once, after it."""
LAST_CALL_SECONDS = 1.5
"""Learning a batch that was begun in time takes about so long."""
ENDING_SECONDS = 3.0
"""Time in which training ends after it was told to."""


def main(*, json: bool, seconds: float) -> None:
    """Measure and print; `seconds` is the time for all of it, at least 20."""
    config = make_config(PONG, presets=("bench",))
    several = make_config(PONG, SEVERAL, presets=("bench",))
    config = several if several.num_learners > 1 else config
    say = partial(print, file=sys.stderr if json else sys.stdout, flush=True)
    begun = time.time() - process_began()
    report = measure(config, seconds=seconds - begun, say=say)
    if json:
        show_result(json_module.dumps(report))
        return
    limit, trained = report["limit_steps_per_second"], report["train_steps_per_second"]
    if limit is not None:
        print(f"\nlimit      {limit:8,.0f} steps/s if all three overlapped perfectly")
    if trained is not None:
        fraction = report["fraction_of_limit"]
        near = f", {fraction:.2f} of the limit" if fraction is not None else ""
        print(f"training   {trained:8,.0f} steps/s{near}")


def measure(config: TrainConfig, *, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Return rates of stepping, inference, learning and training, in env steps per second.

    The three limits are measured before and after training and averaged, since a machine's speed
    drifts; in a short time once. What there was no time for is None, and told.

    Args:
        config: what is trained.
        seconds: after which this ends.
        say: told what is being done, and the rates.
    """
    until = time.monotonic() + seconds
    keep_freed_memory()
    config, spec = _read(config)
    plan = make_plan(config, spec)
    cores = num_cores()
    say(f"{config.env_id} on {cores} cores, {plan.device} {plan.precision}")
    on_gpu = plan.device != "cpu"
    copies = 1 if on_gpu else cores
    envs = plan.num_envs
    sizes = [(envs, n) for n in MICRO_BATCH_ROWS]
    if on_gpu:
        sizes = [(n, n * (config.unroll_length + 1)) for n in sorted({*GPU_LEARNING_ENVS, envs})]
    per_copy = max(1, min(ENVS_PER_COPY, MAX_ENVS // cores))
    works = {
        "stepping": _Work([_stepping(config, per_copy)], cores, MAX_ENVS // per_copy),
        "inference": _Work(
            [
                _inference(config, spec, plan, n)
                for n in (GPU_INFERENCE_BATCHES if on_gpu else INFERENCE_BATCHES)
            ],
            copies,
        ),
        "learning": _Work([_learning(config, spec, plan, *size) for size in sizes], copies),
    }
    say(f"making {per_copy * min(cores, MAX_ENVS // per_copy)} environments")
    works["stepping"].make(time.monotonic() + MAKING_FRACTION * seconds)
    left = until - time.monotonic()
    training = max(TRAINING_FRACTION * left, min(TRAINING_SECONDS, 0.7 * left))
    limits = (left - training) / 2
    found: list[dict[str, float | None]] = []
    if limits >= SHORTEST_SECONDS:
        say(f"measuring stepping, inference and learning for {limits:.0f} s")
        found.append(_limits(works, time.monotonic() + limits))
    say(f"training for {training:.0f} s, its start included")
    trained = trained_rate(config, seconds=training, say=say)
    say(f"measuring stepping, inference and learning{' again' * len(found)}")
    found.append(_limits(works, until - LAST_CALL_SECONDS))
    rates: dict[str, float | None] = {}
    for name, work in works.items():
        known = [rate for each in found if (rate := each[name]) is not None]
        rate = rates[name] = sum(known) / len(known) if known else None
        where = "one copy on each core at once"
        where = "alone on the GPU, copies included" if on_gpu and name != "stepping" else where
        if work.made < work.copies:
            where = f"{work.made} copies at once on {work.copies} cores, for which the rate is scaled up"
        say(
            f"{name:10s} {rate:8,.0f} steps/s, {where}"
            if rate is not None
            else f"{name:10s} not measured: {seconds:.0f} s are over; --seconds gives more"
        )
    known = {name: rate for name, rate in rates.items() if rate is not None}
    limit = limit_of(known, on_gpu=on_gpu) if len(known) == len(rates) else None
    return {
        "cores": cores,
        "device": plan.device,
        "precision": plan.precision,
        "settings": dataclasses.asdict(plan),
        "env_steps_per_second": rates["stepping"],
        "inference_steps_per_second": rates["inference"],
        "learner_steps_per_second": rates["learning"],
        "limit_steps_per_second": limit,
        "train_steps_per_second": trained,
        "fraction_of_limit": trained / limit if trained is not None and limit else None,
    }


def limit_of(rates: Mapping[str, float], *, on_gpu: bool) -> float:
    """Return the rate of perfect overlap; on a CPU stepping takes time from the others, beside a GPU not."""
    if not on_gpu:
        return 1.0 / sum(1.0 / rate for rate in rates.values())
    return min(rates["stepping"], 1.0 / (1.0 / rates["inference"] + 1.0 / rates["learning"]))


def _read(config: TrainConfig) -> tuple[TrainConfig, EnvSpec]:
    """Return what is known of the environment, and settings that say where masks of its actions are, as a run finds them."""
    env = config.env
    if env.mask is None and may_mask(config.env_id):
        env = replace(env, mask="auto")
    spec = read_spec(config.env_id, env, config.max_episode_steps)
    return replace(config, env=masked_as(env, spec)), spec


def core_rates(config: TrainConfig, *, seconds: float, say: Callable[[str], None]) -> Rates:
    """Measure what one core does, and what is left of that while all cores work."""
    until = time.monotonic() + seconds
    keep_freed_memory()
    config, spec = _read(config)
    plan, cores = make_plan(config, spec), num_cores()
    per_copy = max(1, min(ENVS_PER_COPY, MAX_ENVS // cores))
    say(f"measuring what a core does for {seconds:.0f} s, with {per_copy} environments")
    makers = (
        _stepping(config, per_copy),
        _inference(config, spec, plan, plan.num_envs),
        _learning(config, spec, plan, plan.num_envs, plan.micro_batch_rows),
    )
    works = [make(0) for make in makers]
    share = (until - time.monotonic()) / 4
    alone = [_total_rate([work], time.monotonic() + share) for work in works]
    # Learning, which moves most memory, on every core at once.
    copies = [works[2]]
    while len(copies) < cores and time.monotonic() < until - share / 2:
        copies.append(makers[2](len(copies)))
    kept = _total_rate(copies, until) / (len(copies) * alone[2])
    return Rates(alone[0], alone[1], alone[2], min(kept, 1.0), len(copies))


class _Work:
    """Copies of one kind of work, made when they are needed and kept at their best size.

    Args:
        sizes: for each size a function that makes the copy of a number.
        copies: wanted, one a core.
        most: copies that are made; the rate of all is theirs, scaled up.
    """

    def __init__(
        self, sizes: list[Callable[[int], Callable[[], int]]], copies: int, most: int = sys.maxsize
    ):
        self.copies = copies
        self._sizes = sizes
        self._most = min(copies, most)
        self._kept: list[Callable[[], int]] = []

    @property
    def made(self) -> int:
        """How many copies there are."""
        return len(self._kept)

    def make(self, until: float) -> None:
        """Make the copies of the only size, as many as can be made until then, one at least."""
        (size,) = self._sizes
        self._kept = self._made(size, until)

    def _made(
        self, size: Callable[[int], Callable[[], int]], until: float
    ) -> list[Callable[[], int]]:
        copies = [size(0)]
        while len(copies) < self._most and time.monotonic() < until:
            copies.append(size(len(copies)))
        return copies

    def rate(self, until: float) -> float | None:
        """Return the best total rate over the sizes, of which the best is kept for later calls; None: no time."""
        if self._kept:
            return self._measured(self._kept, until) if time.monotonic() < until else None
        best: float | None = None
        for tried, size in enumerate(self._sizes):
            left = until - time.monotonic()
            if left <= 0:
                break
            share = left / (len(self._sizes) - tried)
            try:
                copies = self._made(size, time.monotonic() + share / 2)
                rate = self._measured(copies, until - left + share)
            except (torch.OutOfMemoryError, RunFailed):  # larger ones need not fit a GPU
                if best is None:
                    raise
                break
            if best is None or rate > best:
                best, self._kept = rate, copies
        return best

    def _measured(self, copies: list[Callable[[], int]], until: float) -> float:
        return _total_rate(copies, until) * self.copies / len(copies)


def _limits(works: Mapping[str, _Work], until: float) -> dict[str, float | None]:
    """Return the best total rate of each kind of work over its sizes."""
    found: dict[str, float | None] = {}
    for done, (name, work) in enumerate(works.items()):
        now = time.monotonic()
        found[name] = work.rate(now + (until - now) / (len(works) - done))
    return found


def _total_rate(works: list[Callable[[], int]], until: float) -> float:
    """Run one copy a thread at once, each with one torch thread; return their summed rate. What fails in one is raised."""
    rates = [0.0] * len(works)
    ready = threading.Barrier(len(works))
    over = threading.Event()  # before its time: one has failed, or Ctrl-C was pressed
    failures: list[BaseException] = []

    def measure_one(i: int) -> None:
        use_threads(1)
        works[i]()
        ready.wait(60.0)
        began, done = time.perf_counter(), 0
        while not done or (time.monotonic() < until and not over.is_set()):
            done += works[i]()
        rates[i] = done / (time.perf_counter() - began)

    def run(i: int) -> None:
        try:
            measure_one(i)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            over.set()
            ready.abort()  # the others wait for it

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.set()
        ready.abort()  # not all may have started
    if failures:
        raise failures[0]
    return sum(rates)


def _stepping(config: TrainConfig, num_envs: int) -> Callable[[int], Callable[[], int]]:
    def make(copy: int) -> Callable[[], int]:
        envs = make_vec_env(
            config.env_id, num_envs=num_envs, seed=1, rank=copy, settings=config.env, num_threads=1
        )
        spec = envs.spec
        obs = envs.start(np.zeros(num_envs, np.int64))
        draw = np.random.default_rng(copy)
        ended = np.zeros(num_envs, np.bool_)

        def step() -> int:
            nonlocal ended, obs
            mask = leaves_of(obs)[spec.mask.name] if spec.mask else None
            envs.send(draw_actions(spec.action, num_envs, draw, mask))
            result = envs.recv()
            begun, ended, obs = ended, result.ended, result.obs
            return num_envs - int(np.count_nonzero(begun))

        return step

    return make


def _inference(
    config: TrainConfig, spec: EnvSpec, plan: Plan, num_envs: int
) -> Callable[[int], Callable[[], int]]:
    def make(copy: int) -> Callable[[], int]:
        policy = build_inference_policy(build_policy(config, spec), plan)
        state = policy.initial_state(num_envs)
        slot = empty_trajectory(
            spec, unroll_length=1, num_columns=num_envs, core_units=policy.core_units
        )
        if is_gpu(state.device):
            return _captured_inference(policy, slot, config.unroll_length)

        obs = obs_at(slot.obs, slice(1))

        @torch.no_grad()
        def act() -> int:
            out = policy(obs, slot.starts[:1], state, slot.action, slot.reward)
            policy.distribution(out.action_params).sample()
            return num_envs

        return act

    return make


def _captured_inference(
    policy: ActorCritic, slot: Trajectory, unroll_length: int
) -> Callable[[], int]:
    """Return work that acts for a trajectory as actors on a GPU do, observations copied there included."""
    device, num_envs = policy.device, slot.num_columns
    step = ActingStep(
        policy,
        num_envs,
        unroll_length=unroll_length,
        generator=torch.Generator(device=device).manual_seed(1),
        graphs=Graphs(device),
    )
    obs = map_obs(Tensor.numpy, map_obs(Tensor.contiguous, obs_at(slot.obs, 0)))

    @torch.no_grad()
    def act() -> int:
        step.begin(slot.last_action)
        for _ in range(unroll_length):
            step.take(obs)
            step(slot.last_reward, slot.starts[0])
        return num_envs * unroll_length

    return act


def _learning(
    config: TrainConfig, spec: EnvSpec, plan: Plan, num_envs: int, micro_batch_rows: int
) -> Callable[[int], Callable[[], int]]:
    def make(copy: int) -> Callable[[], int]:
        policy = build_policy(config, spec).to(plan.device)
        policy.set_precision(PRECISIONS[plan.precision])
        slot = empty_trajectory(
            spec,
            unroll_length=config.unroll_length,
            num_columns=num_envs,
            core_units=policy.core_units,
            device=policy.device,
        )
        slot.valid.fill_(True)
        slot.env_steps = slot.valid.numel()
        queue = ThreadQueue([slot], StopSignal(), Roles(60.0))
        learner = Learner(
            policy,
            config.algorithm,
            config.optimizer,
            BatchSource(queue),
            micro_batches=MicroBatches(micro_batch_rows),
            total_env_steps=10**9,
            seed=stream_seed(1, copy, "bench"),
        )

        def learn() -> int:
            queue.put(queue.slot())
            learner.learn_version()
            return slot.reward.numel()

        return learn

    return make


def interrupt(_: int) -> None:
    """Answer any signal as Ctrl-C, so that nothing is left behind."""
    raise KeyboardInterrupt


def trained_rate(
    config: TrainConfig, *, seconds: float, say: Callable[[str], None]
) -> float | None:
    """Train in a process of its own, as `gossamer train` does: memory that others used is not new.

    Returns:
        Env steps per second after the first update; None, and told, where the time was too short for one.

    Raises:
        KeyboardInterrupt: a signal has come; the process has ended.
    """
    with Signals(interrupt), tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "bench.json"
        timed = dataclasses.replace(
            config,
            run_folder=str(Path(folder) / "run"),
            stop_after_seconds=max(seconds - ENDING_SECONDS, 1.0),
            stop_within_seconds=ENDING_SECONDS,
        )
        settings.write_text(json_module.dumps(to_dict(timed)))
        command = [sys.executable, "-m", "gossamer", "train", "--config", str(settings)]
        short = (
            f"training    not measured: {seconds:.0f} s were too short for it; --seconds gives more"
        )
        try:
            # A run ends 10 s after its limits, whatever it is at.
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=seconds + 15.0
            )
        except subprocess.TimeoutExpired:
            say(short)
            return None
        if NeverBegan.SAYS in done.stderr:
            say(short)
            return None
        if done.returncode:
            raise RunFailed(f"training for the benchmark failed: {done.stderr.strip()[-500:]}")
        summary = json_module.loads((Path(folder) / "run" / "summary.json").read_text())
    ended = exit_of(summary)
    if ended is not None and ended.kind == "stopped":
        raise KeyboardInterrupt
    if summary["steps_per_second"] is None:
        say(short)
        return None
    return float(summary["steps_per_second"])
