"""How an LSTM's initial forget bias and the form of observations decide whether a cue is learnt: supervised, without RL.

    python benchmarks/memory_probe.py
    python benchmarks/memory_probe.py --seen 0.25 --batch 32 --learning-rate 5e-4

A script plays MiniGrid-MemoryS11-v0 from the room where the cue is seen: it walks to the end of the hallway, now and then takes
a random step, and turns to a random side. A network of the policy's layers (64-64 tanh, an LSTM of 128 units) is trained on
the sequences to predict, at every step, whether the game will be won, which takes the cue and what lies ahead at the end: the
product of two facts, many steps apart. Each row prints the share of games whose last prediction is right, in tenths of the
training; 0.5 is chance.

With --seen below 1 the cue is hidden in the other games, whose outcome is then a coin's, and the heads are compared instead: the
LSTM's output alone, layers after it, and `policy.head_sizes`, whose layers see the present features too.
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
LONGEST, HIDDEN = 40, 6


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
    games: list[tuple[np.ndarray, float]],
    form: str,
    bias: float,
    asked: argparse.Namespace,
    heads: str = "none",
) -> list[float]:
    """Train one network; return the share of right predictions, of games whose cue was seen, by tenths."""
    rng, gen = np.random.default_rng(0), torch.Generator().manual_seed(0)
    every = torch.from_numpy(np.concatenate([x for x, _ in games[:1500]]))
    seen = every.float() if form == "numbers" else one_hot(every)
    mean, deviation = seen.mean(0), (seen.var(0) + 1e-4).sqrt()
    torso = MLP(seen.shape[1], (64, 64), "tanh", gen)
    core = Core(PolicyConfig(core="lstm", core_size=128, forget_bias=bias), 64, gen)
    head: nn.Module = linear(128, 1, 1.0, gen)
    if heads != "none":
        layers = MLP(128 + 64 * (heads == "beside"), (64,), "tanh", gen)
        head = nn.Sequential(layers, linear(64, 1, 1.0, gen))
    weights = [*torso.parameters(), *core.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, asked.learning_rate, eps=1e-5)
    right: list[float] = []
    for _ in range(asked.steps):
        batch = [games[i] for i in rng.integers(len(games), size=asked.batch)]
        hidden = rng.random(asked.batch) >= asked.seen
        lengths = torch.tensor([len(x) for x, _ in batch])
        x = torch.zeros(int(lengths.max()), asked.batch, 3 * TILES, dtype=torch.uint8)
        won = torch.tensor([outcome for _, outcome in batch])
        for i, (obs, _) in enumerate(batch):
            x[: len(obs), i] = torch.from_numpy(obs)
            if hidden[i]:  # the first steps are spent in the hallway
                x[:HIDDEN, i] = torch.from_numpy(obs[min(HIDDEN, len(obs) - 1)])
                won[i] = float(rng.random() < 0.5)
        z = x.float() if form == "numbers" else one_hot(x)
        if form != "one-hot":
            z = ((z - mean) / deviation).clamp(-10.0, 10.0)
        starts = torch.zeros(x.shape[:2], dtype=torch.bool)
        present = torso(z.flatten(0, 1))
        features, _ = core(present, starts, torch.zeros(core.state_size, asked.batch))
        if heads == "beside":
            features = torch.cat([features, present], dim=1)
        said = head(features).view(x.shape[:2])
        counts = torch.arange(len(x))[:, None] < lengths
        loss = ((said - won).square() * counts).sum() / counts.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()
        last = said.detach()[lengths - 1, torch.arange(asked.batch)]
        rights = ((last > 0.5) == (won > 0.5)).float()
        if not hidden.all():
            right.append(rights[torch.from_numpy(~hidden)].mean().item())
    return [round(float(np.mean(part)), 2) for part in np.array_split(right, 10)]


def main() -> None:
    """Print a row for each form of observations and each bias."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1_500, help="gradient steps")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=16, help="games of a step")
    parser.add_argument("--seen", type=float, default=1.0, help="share of games with a cue")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rng, env = np.random.default_rng(0), FromTheCue(size=11)
    games = [x for x in (play(rng, env) for _ in range(asked.games)) if len(x[0]) <= LONGEST]
    print(f"{len(games)} games of {np.mean([len(x) for x, _ in games]):.1f} steps")
    forms = ("numbers", "one-hot", "one-hot, normalised")
    cases = [(*x, "none") for x in product(forms, (0.0, 1.0, 4.0))]
    if asked.seen < 1.0:
        cases = [(forms[-1], 4.0, heads) for heads in ("none", "after", "beside")]
    for form, bias, heads in cases:
        began = time.perf_counter()
        shares = learn(games, form, bias, asked, heads)
        seconds = time.perf_counter() - began
        print(f"{form:20} bias {bias:g} heads {heads}  {shares}  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
