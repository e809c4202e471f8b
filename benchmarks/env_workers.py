"""Atari games in this process against games in worker processes: seconds to make them, env steps/s.

    python benchmarks/env_workers.py --envs 128 --groups 2 --workers 0 2 4

Each way in turn, in as many rounds as asked for. Groups are made and started as a run does it: in one process one is made while
those before it start, in worker processes all are made at once. Then one group steps while the other waits for actions, which
are random and there at once: steps/s are of the environments alone, and compared with the first of `--workers`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig
from gossamer.machine import in_thread, processor_name
from gossamer.system.cores import num_cores

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gossamer.types import VecEnv


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--env-id", default="PongNoFrameskip-v4")
    parser.add_argument("--envs", type=int, default=128, help="of all groups")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--threads", type=int, default=num_cores(), help="of each group")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4], help="of each group")
    parser.add_argument("--seconds", type=float, default=10.0, help="of stepping")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"{processor_name()}, {num_cores()} cores, {asked.envs} games in {asked.groups} groups")
    found: dict[int, list[tuple[float, float]]] = {workers: [] for workers in asked.workers}
    for _ in range(asked.rounds):
        for workers in asked.workers:
            found[workers].append(once(asked, workers))
    print("| workers of a group | seconds to make and start | env steps/s | of the first |")
    print("|---|---|---|---|")
    for workers, results in found.items():
        made, speeds = ([x[i] for x in results] for i in range(2))
        first = [x[1] for x in found[asked.workers[0]]]
        ratio = statistics.median(a / b for a, b in zip(speeds, first, strict=True))
        print(f"| {workers} | {listed(made, '.1f')} | {listed(speeds, ',.0f')} | {ratio:.2f} |")


def listed(values: list[float], spec: str) -> str:
    """Return all values, the median first."""
    return f"{statistics.median(values):{spec}} ({', '.join(format(x, spec) for x in values)})"


def once(asked: argparse.Namespace, workers: int) -> tuple[float, float]:
    """Return the seconds until all games are made and have begun, and env steps/s from then on."""
    size = asked.envs // asked.groups
    began = time.perf_counter()

    def make(group: int) -> VecEnv:
        return make_vec_env(
            asked.env_id,
            num_envs=size,
            seed=1,
            first_env=group * size,
            num_threads=asked.threads,
            settings=EnvConfig(workers=workers or None),
        )

    def started(envs: VecEnv) -> VecEnv:
        envs.start(np.zeros(size, np.int64))
        return envs

    starting: list[Future[VecEnv]] = []
    for group in range(asked.groups):
        if workers:
            starting.append(in_thread(lambda group=group: started(make(group)), "make"))
        else:
            envs = make(group)
            starting.append(in_thread(lambda envs=envs: started(envs), "start"))
    groups = [one.result() for one in starting]
    try:
        made = time.perf_counter() - began
        rng, steps = np.random.default_rng(1), 0
        count = groups[0].spec.action.sizes[0]
        began = time.perf_counter()
        for envs in groups:
            envs.send(rng.integers(count, size=size))
        while time.perf_counter() - began < asked.seconds:
            for envs in groups:
                envs.recv()
                envs.send(rng.integers(count, size=size))
                steps += size
        for envs in groups:
            envs.recv()
        return made, steps / (time.perf_counter() - began)
    finally:
        for envs in groups:
            envs.close()


if __name__ == "__main__":
    main()
