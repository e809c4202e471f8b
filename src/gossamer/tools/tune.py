"""The fastest settings for this machine, found by trying: one change at a time, kept if it helps."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.build.auto import make_plan
from gossamer.config import TrainConfig, make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.machine import has_bf16
from gossamer.record.files import write_whole
from gossamer.run.train import train
from gossamer.system.cores import num_cores
from gossamer.system.reading import expand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gossamer.build.auto import Plan
    from gossamer.types import EnvSpec

WORTH = 1.03
"""A change is kept if it is faster by this factor; less is noise."""
TRIAL_SECONDS = 5.0
"""Training time of one trial."""


def main(env_id: str, *, seconds: float, output: str) -> None:
    """Try settings for `seconds`, print every trial, and write what beat the defaults as a preset file."""
    target = expand(output)
    if target.exists():
        raise ConfigError(f"--output {target} exists; name another file, or remove it")
    began = time.monotonic()
    config = make_config(env_id)
    spec = read_spec(env_id, config.env, config.max_episode_steps)
    plan = make_plan(config, spec)
    best: dict[str, Any] = {}
    best_rate = measured_rate(config, best)
    print(f"{env_id} on {num_cores()} cores: {best_rate:,.0f} steps/s with the defaults")
    for name, value in _candidates(config, spec, plan):
        if time.monotonic() - began > seconds - TRIAL_SECONDS:
            print(f"{seconds:.0f} s are over; --seconds tries more")
            break
        rate = measured_rate(config, {**best, name: value})
        kept = rate > best_rate * WORTH
        print(f"{name} = {value}: {rate:,.0f} steps/s{', kept' if kept else ''}", flush=True)
        if kept:
            best[name], best_rate = value, rate
    if not best:
        print("nothing that was tried is faster than the defaults; no preset written")
        return
    lines = [
        f"# Fastest of what was tried for {env_id} on {num_cores()} cores: {best_rate:,.0f} steps/s."
    ]
    lines += [f"{name} = {_toml(value)}" for name, value in best.items()]
    text = "\n".join(lines) + "\n"
    write_whole(target, lambda file: file.write(text.encode()))
    print(f"wrote {target}; use it: gossamer train {env_id} --config {target}")


def _candidates(config: TrainConfig, spec: EnvSpec, plan: Plan) -> Iterator[tuple[str, Any]]:
    cores = num_cores()
    for factor in (2, 0.5):
        if (n := int(plan.num_envs * factor)) >= config.algorithm.num_minibatches:
            yield "num_envs", n
    yield "env_groups", 1 if plan.env_groups > 1 else 2
    rows = plan.num_envs * (config.unroll_length + 1)
    for micro in (plan.micro_batch_rows // 2, plan.micro_batch_rows * 2):
        if config.unroll_length < micro <= rows:
            yield "micro_batch_rows", micro
    if spec.obs_kind == "pixels" and plan.device == "cpu":
        for threads in {max(1, cores // 2), cores} - {plan.learner_threads}:
            yield "learner_threads", threads
    for threads in {max(1, cores // 2), cores} - {plan.env_threads}:
        yield "env_threads", threads
    if spec.obs_kind == "pixels" and has_bf16(plan.device):
        yield "precision", "fp32" if plan.precision == "bf16" else "bf16"
    if config.algorithm.corrects:
        yield "lag", "free"


def measured_rate(config: TrainConfig, changes: dict[str, Any]) -> float:
    """Steps per second of a short training run with some settings changed."""
    with tempfile.TemporaryDirectory() as folder:
        trial = dataclasses.replace(
            config,
            **changes,
            run_folder=str(Path(folder) / "run"),
            stop_after_seconds=TRIAL_SECONDS + 1.0,
            checkpoint_every_seconds=0.0,
            evaluation=dataclasses.replace(config.evaluation, every_seconds=0.0),
        )
        summary = train(trial, quiet=True).summary
    if summary["exit_reason"].startswith("stopped"):
        raise KeyboardInterrupt
    rate = summary["steps_per_second"]
    return rate if rate is not None else -math.inf


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
