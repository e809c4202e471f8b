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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.build.auto import PRECISIONS, make_plan, stream_seed
from gossamer.build.roles import build_inference_policy, build_policy
from gossamer.config import TrainConfig, make_config, to_dict
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.errors import RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.links.threads import Roles, ThreadQueue
from gossamer.machine import keep_freed_memory, use_threads
from gossamer.ops.micro_batches import MicroBatches
from gossamer.replay.batches import BatchSource
from gossamer.roles.learner import Learner
from gossamer.system.cores import num_cores
from gossamer.system.devices import Inbox, is_gpu
from gossamer.types import empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gossamer.build.auto import Plan
    from gossamer.types import EnvSpec

ENV_BATCHES = (16, 32)
INFERENCE_BATCHES = (32, 64, 128, 256)
GPU_INFERENCE_BATCHES = (64, 256, 1024)
GPU_LEARNING_ENVS = (64, 128, 256, 512)
"""Columns of a batch, which a GPU learns whole."""
MICRO_BATCH_ROWS = (136, 272, 544)


def main(*, json: bool, seconds: float) -> None:
    """Measure and print; `seconds` is the time for all of it, at least 20."""
    config = make_config("PongNoFrameskip-v4", presets=("bench",))
    report = measure(config, seconds=seconds, say=(lambda text: None) if json else print)
    if json:
        print(json_module.dumps(report))
        return
    print(
        f"\nlimit      {report['limit_steps_per_second']:8,.0f} steps/s if all three overlapped "
        f"perfectly\ntraining   {report['train_steps_per_second']:8,.0f} steps/s, "
        f"{report['fraction_of_limit']:.2f} of the limit"
    )


def measure(config: TrainConfig, *, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Return rates of stepping, inference, learning and training, in env steps per second.

    The three limits are measured before and after training and averaged, since a machine's speed
    drifts.
    """
    keep_freed_memory()
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    plan = make_plan(config, spec)
    cores = num_cores()
    say(f"{config.env_id} on {cores} cores, {plan.device} {plan.precision}")
    share = max(seconds, 20.0) / 10
    on_gpu = plan.device != "cpu"
    copies = 1 if on_gpu else cores
    envs = plan.num_envs
    sizes = [(envs, n) for n in MICRO_BATCH_ROWS]
    if on_gpu:
        sizes = [(n, n * (config.unroll_length + 1)) for n in sorted({*GPU_LEARNING_ENVS, envs})]
    works = {
        "stepping": [_copies(_stepping(config, n), cores) for n in ENV_BATCHES],
        "inference": [
            _copies(_inference(config, spec, plan, n), copies)
            for n in (GPU_INFERENCE_BATCHES if on_gpu else INFERENCE_BATCHES)
        ],
        "learning": [_copies(_learning(config, spec, plan, *size), copies) for size in sizes],
    }
    before = _limits(works, share)
    trained = _train(config, seconds=4 * share)
    after = _limits(works, share)
    rates = {name: (before[name] + after[name]) / 2 for name in before}
    for name, rate in rates.items():
        where = "one copy on each core at once"
        where = "alone on the GPU, copies included" if on_gpu and name != "stepping" else where
        say(f"{name:10s} {rate:8,.0f} steps/s, {where}")
    limit = limit_of(rates, on_gpu=on_gpu)
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
        "fraction_of_limit": trained / limit,
    }


def limit_of(rates: Mapping[str, float], *, on_gpu: bool) -> float:
    """Return the rate of perfect overlap; on a CPU stepping takes time from the others, beside a GPU not."""
    if not on_gpu:
        return 1.0 / sum(1.0 / rate for rate in rates.values())
    return min(rates["stepping"], 1.0 / (1.0 / rates["inference"] + 1.0 / rates["learning"]))


def _copies(make: Callable[[int], Callable[[], int]], count: int) -> list[Callable[[], int]]:
    return [make(i) for i in range(count)]


def _limits(works: dict[str, list[list[Callable[[], int]]]], seconds: float) -> dict[str, float]:
    """Return the best total rate of each kind of work over its batch sizes."""
    return {
        name: max(_total_rate(copies, seconds / len(sizes)) for copies in sizes)
        for name, sizes in works.items()
    }


def _total_rate(works: list[Callable[[], int]], seconds: float) -> float:
    """Run one copy a thread at once, each with one torch thread; return their summed rate."""
    rates = [0.0] * len(works)
    ready = threading.Barrier(len(works))

    def run(i: int) -> None:
        use_threads(1)
        works[i]()
        ready.wait(60.0)
        began, done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            done += works[i]()
        rates[i] = done / took

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _stepping(config: TrainConfig, num_envs: int) -> Callable[[int], Callable[[], int]]:
    def make(copy: int) -> Callable[[], int]:
        envs = make_vec_env(
            config.env_id, num_envs=num_envs, seed=1, rank=copy, settings=config.env, num_threads=1
        )
        envs.start(np.zeros(num_envs, np.int64))
        draw = np.random.default_rng(copy)
        count = envs.spec.action.sizes[0]
        ended = np.zeros(num_envs, np.bool_)

        def step() -> int:
            nonlocal ended
            envs.send(draw.integers(count, size=num_envs))
            begun, ended = ended, envs.recv().ended
            return num_envs - int(np.count_nonzero(begun))

        return step

    return make


def _inference(
    config: TrainConfig, spec: EnvSpec, plan: Plan, num_envs: int
) -> Callable[[int], Callable[[], int]]:
    def make(copy: int) -> Callable[[], int]:
        policy = build_inference_policy(build_policy(config, spec), plan)
        state = policy.initial_state(num_envs)
        on_gpu = is_gpu(state.device)
        slot = empty_trajectory(
            spec,
            unroll_length=1,
            num_columns=num_envs,
            core_units=policy.core_units,
            pinned=on_gpu,
        )
        there, starts, inbox = slot.to(state.device), slot.starts[:1].to(state.device), Inbox()

        @torch.no_grad()
        def act() -> int:
            obs = slot.obs[:1].to(state.device, non_blocking=True)
            out = policy(obs, starts, state, there.action, there.reward)
            sampled = policy.distribution(out.action_params).sample()
            if on_gpu:
                inbox.receive([sampled, out.action_params, out.value])
            return num_envs

        return act

    return make


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
            pinned=is_gpu(policy.obs_scale.device),
        )
        slot.valid.fill_(True)
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


def _train(config: TrainConfig, *, seconds: float) -> float:
    """Train in a process of its own, as `gossamer train` does: memory that others used is not new."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "bench.json"
        timed = dataclasses.replace(
            config, run_folder=str(Path(folder) / "run"), stop_after_seconds=seconds
        )
        settings.write_text(json_module.dumps(to_dict(timed)))
        command = [sys.executable, "-m", "gossamer", "train", "--config", str(settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunFailed(f"training for the benchmark failed: {done.stderr.strip()[-500:]}")
        summary = json_module.loads((Path(folder) / "run" / "summary.json").read_text())
    if summary["exit_reason"].startswith("stopped"):
        raise KeyboardInterrupt
    if summary["steps_per_second"] is None:
        raise RunFailed(
            "training was over before its speed could be measured; give it longer: --seconds 200"
        )
    return float(summary["steps_per_second"])
