"""Every game that ale-py ships and one player can play, beside Gymnasium's own single environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")

from ale_py.env import AtariEnv
from gymnasium.wrappers import TimeLimit
from rolling import Rolling
from sessions import some

from gossamer.envs.atari import CARRIES_STATE, EPISODES_PER_SEED, atari_game, atari_ids
from gossamer.envs.registry import make_vec_env
from gossamer.envs.seeding import SeedStream
from gossamer.envs.settings import EnvConfig

SEED = 3
TO_THE_END = {"adventure": (162, 24)}
"""Seed of the actions, and how long each is held, where random ones lead to no end for thousands of steps."""
OLD = [id_ for id_ in atari_ids() if id_.endswith("NoFrameskip-v4")]


@dataclass(frozen=True)
class Row:
    """What a step told."""

    reward: float
    lost: bool
    """A life, and the game goes on."""
    over: bool
    truncated: bool


class Single:
    """Gymnasium's environment of a game, begun from given seeds."""

    def __init__(self, game: str, sticky: float):
        self.game = game
        self.env: Any = AtariEnv(
            game,
            frameskip=4,
            repeat_action_probability=sticky,
            full_action_space=False,
            obs_type="ram",
        )
        self.every = 1 if sticky or game in CARRIES_STATE else EPISODES_PER_SEED

    def play(self, actions: list[int], limit: int) -> list[Row]:
        """Play the actions, and the next episode after each end, whose first row ignores its action."""
        env = TimeLimit(self.env, limit)
        episode, rows, ended = 0, [], False
        lives = self._begin(env, episode)
        for action in actions:
            if ended:
                episode, ended = episode + 1, False
                lives = self._begin(env, episode)
                rows.append(Row(0.0, lost=False, over=False, truncated=False))
                continue
            _, reward, over, truncated, info = env.step(action)
            # A game may end a while after its last life was lost.
            lost = 0 < info["lives"] < lives and not over
            truncated = truncated and not over
            rows.append(Row(float(reward), lost=lost, over=over, truncated=truncated))
            lives, ended = info["lives"], over or truncated
        return rows

    def _begin(self, env: Any, episode: int) -> int:
        if episode % self.every == 0:
            seed = SeedStream(SEED, 0, 0).seed(0, episode)
            self.env.ale.setInt("random_seed", seed)
            self.env.load_game()
        return env.reset()[1]["lives"]


def actions_of(single: Single, steps: int) -> list[int]:
    seed, held = TO_THE_END.get(single.game, (0, 1))
    drawn = np.random.default_rng(seed).integers(single.env.action_space.n, size=steps // held + 1)
    return [int(x) for x in np.repeat(drawn, held)[:steps]]


def ours(env_id: str, actions: list[int], limit: int, *, training: bool = True) -> list[Row]:
    """Play as training does, without what is done at the start of an episode."""
    settings = EnvConfig(size=36, noop_max=0, fire_reset=False)
    envs = make_vec_env(
        env_id,
        num_envs=1,
        seed=SEED,
        settings=settings,
        max_episode_steps=limit,
        training=training,
    )
    rolling = Rolling(envs).start()
    rows: list[Row] = []
    for action in actions:
        row = rolling.step(np.array([action]))
        truncated = bool(row.truncated[0])
        over = bool(row.ended[0]) and not truncated
        rows.append(
            Row(
                float(row.reward[0]),
                lost=bool(row.terminated[0]) and not over,
                over=over,
                truncated=truncated,
            )
        )
        assert not over or row.terminated[0]
    envs.close()
    return rows


def episodes_of(rows: list[Row]) -> list[tuple[int, float, bool]]:
    """Length, return, and whether it was cut, of every whole episode."""
    episodes: list[tuple[int, float, bool]] = []
    length, total, resets = 0, 0.0, False
    for row in rows:
        length, total = length + (not resets), total + row.reward
        resets = row.over or row.truncated
        if resets:
            episodes.append((length, total, row.truncated))
            length, total = 0, 0.0
    return episodes


def limit_for(rows: list[Row]) -> int:
    """Steps after which an episode is cut, so that it is when the last life of the first one is lost.

    If none is, it ends by itself where it does, or is cut half-way.
    """
    first = next((t for t, row in enumerate(rows) if row.over), len(rows))
    lost = [t for t, row in enumerate(rows[:first]) if row.lost]
    return lost[-1] + 1 if lost else (first + 2 if first < len(rows) else len(rows) // 2)


def assert_equal(env_id: str, single: Single, actions: list[int], limit: int) -> list[Row]:
    expected, played = single.play(actions, limit), ours(env_id, actions, limit)
    assert episodes_of(played) == episodes_of(expected)
    if env_id.startswith("ALE/"):  # its protocol does not look at lives
        assert not any(row.lost and not row.truncated for row in played)
        played = [replace(a, lost=b.lost) for a, b in zip(played, expected, strict=True)]
    differ = [t for t, (a, b) in enumerate(zip(played, expected, strict=True)) if a != b]
    assert not differ, (limit, differ[0], played[differ[0]], expected[differ[0]])
    return played


@pytest.mark.parametrize("env_id", some(OLD, every=9))
def test_a_game_ends_as_in_gymnasium(env_id: str) -> None:
    """Lives lost before the limit, one lost right at it, and the end of the game where it is near."""
    single = Single(atari_game(env_id) or "", 0.0)
    actions = actions_of(single, 160)
    rows = assert_equal(env_id, single, actions, limit_for(single.play(actions, 27_000)))
    assert episodes_of(rows)
    if single.game in TO_THE_END:
        assert any(row.over for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", atari_ids())
def test_a_game_ends_as_in_gymnasium_for_long(env_id: str) -> None:
    single = Single(atari_game(env_id) or "", 0.25 if env_id.startswith("ALE/") else 0.0)
    actions = actions_of(single, 1500)
    whole = assert_equal(env_id, single, actions, 27_000)
    for row in [row for row in whole if row.lost][:1]:
        cut = assert_equal(env_id, single, actions, whole.index(row) + 1)
        assert cut[whole.index(row)].truncated
