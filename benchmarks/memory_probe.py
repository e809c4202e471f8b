"""How an LSTM's initial forget bias and the form of observations decide whether a cue is learnt: supervised, without RL.

    python benchmarks/memory_probe.py

A script plays MiniGrid-MemoryS11-v0 from the room where the cue is seen: it walks to the end of the hallway, now and then takes
a random step, and turns to a random side. A network of the policy's layers (64-64 tanh, an LSTM of 128 units) is trained on
the sequences to predict, at every step, whether the game will be won, which takes the cue and what lies ahead at the end: the
product of two facts, many steps apart. Each row prints the share of games whose last prediction is right, in tenths of the
training; 0.5 is chance.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from typing import Any

import gymnasium
import minigrid.envs.memory
import numpy as np
import torch
from torch import nn

from gossamer.envs.symbols import TILE_SIZES
from gossamer.policies.core import Core
from gossamer.policies.layers import linear
from gossamer.policies.settings import PolicyConfig
from gossamer.policies.torsos import MLP

TILES, VALUES = 49, sum(TILE_SIZES)
FIRST = torch.from_numpy(
    np.add.outer(np.arange(TILES) * VALUES, np.cumsum((0, *TILE_SIZES[:-1]))).ravel()
)
HALLWAY_END, TURN_LEFT, TURN_RIGHT, FORWARD, UP, RIGHT, DOWN = 9, 0, 1, 2, 3, 0, 1
LONGEST = 40


class FromTheCue(minigrid.envs.memory.MemoryEnv):
    """The task, from beside the cue."""

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        self.agent_pos = np.array((1, height // 2))


def play(rng: np.random.Generator, env: gymnasium.Env[Any, Any]) -> tuple[np.ndarray, float]:
    """Play a game; return its observations [T, 147] and whether it was won."""
    game: Any = env.unwrapped
    obs, side, seen, done, reward = (
        env.reset(seed=int(rng.integers(2**31)))[0],
        rng.choice((UP, DOWN)),
        [],
        False,
        0.0,
    )
    while not done:
        seen.append(obs["image"].reshape(-1))
        wanted = RIGHT if game.agent_pos[0] < HALLWAY_END else side
        turn = TURN_RIGHT if (wanted - game.agent_dir) % 4 in (1, 2) else TURN_LEFT
        action = FORWARD if game.agent_dir == wanted else turn
        if rng.random() < 0.3:
            action = rng.integers(game.action_space.n)
        obs, reward, terminated, truncated, _ = env.step(int(action))
        done = terminated or truncated
    return np.stack(seen), float(float(reward) > 0)


def one_hot(x: torch.Tensor) -> torch.Tensor:
    """[..., 147] -> [..., 1029]."""
    return torch.zeros(*x.shape[:-1], TILES * VALUES).scatter_(-1, x.long() + FIRST, 1.0)


def learn(
    games: list[tuple[np.ndarray, float]], form: str, bias: float, steps: int, rate: float
) -> list[float]:
    """Train one network on batches of 16 games; return the share of right predictions by tenths."""
    rng, gen = np.random.default_rng(0), torch.Generator().manual_seed(0)
    every = torch.from_numpy(np.concatenate([x for x, _ in games[:1500]]))
    seen = every.float() if form == "numbers" else one_hot(every)
    mean, deviation = seen.mean(0), (seen.var(0) + 1e-4).sqrt()
    torso = MLP(seen.shape[1], (64, 64), "tanh", gen)
    core = Core(PolicyConfig(core="lstm", core_size=128, forget_bias=bias), 64, gen)
    head = linear(128, 1, 1.0, gen)
    weights = [*torso.parameters(), *core.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, rate, eps=1e-5)
    right: list[float] = []
    for _ in range(steps):
        batch = [games[i] for i in rng.integers(len(games), size=16)]
        lengths = torch.tensor([len(x) for x, _ in batch])
        x = torch.zeros(int(lengths.max()), 16, 3 * TILES, dtype=torch.uint8)
        for i, (obs, _) in enumerate(batch):
            x[: len(obs), i] = torch.from_numpy(obs)
        won = torch.tensor([outcome for _, outcome in batch])
        z = x.float() if form == "numbers" else one_hot(x)
        if form != "one-hot":
            z = ((z - mean) / deviation).clamp(-10.0, 10.0)
        starts = torch.zeros(x.shape[:2], dtype=torch.bool)
        features, _ = core(torso(z.flatten(0, 1)), starts, torch.zeros(core.state_size, 16))
        said = head(features).view(x.shape[:2])
        counts = torch.arange(len(x))[:, None] < lengths
        loss = ((said - won).square() * counts).sum() / counts.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()
        last = said.detach()[lengths - 1, torch.arange(16)]
        right.append(((last > 0.5) == (won > 0.5)).float().mean().item())
    return [round(float(np.mean(part)), 2) for part in np.array_split(right, 10)]


def main() -> None:
    """Print a row for each form of observations and each bias."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1_500, help="gradient steps")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rng, env = np.random.default_rng(0), FromTheCue(size=11)
    games = [x for x in (play(rng, env) for _ in range(asked.games)) if len(x[0]) <= LONGEST]
    print(f"{len(games)} games of {np.mean([len(x) for x, _ in games]):.1f} steps")
    for form, bias in product(("numbers", "one-hot", "one-hot, normalised"), (0.0, 1.0, 4.0)):
        began = time.perf_counter()
        shares = learn(games, form, bias, asked.steps, asked.learning_rate)
        print(f"{form:20} bias {bias:g}  {shares}  {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
