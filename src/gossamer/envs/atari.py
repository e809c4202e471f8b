"""Atari through ale-py's native vector environment, which steps in C++ threads without the GIL.

An episode is a function of its seed and its actions. Seeding a game costs as much as 200 steps (ALE
loads the ROM again), so without sticky actions only every 32nd episode of an environment is seeded:
the random streams of a game (no-ops, the console's timer at power-on) are then drawn from at resets
only, and episode 32 k + p is the one that p resets after seed k begin, whatever was played between.
With sticky actions every frame draws from the stream, and every episode is seeded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.envs.seeding import WithoutTasks
from gossamer.envs.settings import (
    ATARI_ID,
    FAMILIES_ONLY,
    OF_OWN_ENVIRONMENTS,
    check_range,
    refuse_settings,
)
from gossamer.envs.spaces import check_actions
from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.spec import ActionSpec, EnvSpec, one_leaf
from gossamer.system.signs_of_life import Sign
from gossamer.types import StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gossamer.envs.seeding import SeedStream
    from gossamer.envs.settings import EnvConfig

EPISODES_PER_SEED = 32
"""Episodes begun from one seed where nothing but resets draws from the random streams."""
CARRIES_STATE = frozenset(
    {
        "hangman",
        "haunted_house",
        "ice_hockey",
        "sir_lancelot",
        "surround",
        "time_pilot",
        "yars_revenge",
    }
)
"""Games whose start depends on what memory held at the reset: there every episode is seeded. Found by
comparing, for all 104 games, resets after play with resets after none."""
MAX_FRAMES = 2**31 - 1
"""Longest episode that ale-py can count, in emulator frames."""
SPARE_STEPS = 2
"""Of its limit, so that it never cuts an episode: nor in the step after the end, which it takes for one."""
MAX_EPISODE_STEPS = 27_000
"""108,000 emulator frames at 4 frames per step: half an hour of play."""
_TWO_PLAYER_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})


@dataclass(frozen=True, slots=True)
class AtariProtocol:
    """An `EnvConfig` with nothing left open."""

    frame_skip: int = 4
    frame_stack: int = 4
    size: int = 84
    grayscale: bool = True
    noop_max: int = 30
    sticky: float = 0.0
    full_action_space: bool = False
    life_loss_terminal: bool = True
    fire_reset: bool = True
    stuck_steps: int = 0

    def describe(self, env_id: str, max_episode_steps: int) -> str:
        """Say in words what a score was made under."""
        return ", ".join(
            [
                f"{env_id}: sticky actions {self.sticky:g}"
                if self.sticky
                else f"{env_id}: no sticky",
                "full action set" if self.full_action_space else "minimal action set",
                f"no-ops below {self.noop_max}" if self.noop_max > 1 else "no no-ops",
                "FIRE at the start" if self.fire_reset else "no FIRE at the start",
                f"frame skip {self.frame_skip}"
                + " (maximum of the last 2)" * (self.frame_skip > 1),
                f"{self.size}x{self.size} {'grey' if self.grayscale else 'colour'}",
                f"stack {self.frame_stack}",
                "a lost life is terminal in training"
                if self.life_loss_terminal
                else "lives not looked at",
                f"cut after {max_episode_steps:,} steps",
                *([f"cut after {self.stuck_steps:,} without reward"] if self.stuck_steps else []),
            ]
        )


def atari_protocol(env_id: str, settings: EnvConfig) -> AtariProtocol:
    """Fill in what the settings leave open from the protocol the id names; refuse bad values."""
    refuse_settings(
        env_id,
        settings,
        (*FAMILIES_ONLY, *OF_OWN_ENVIRONMENTS),
        "it is not a family of tasks",
    )
    named = (
        AtariProtocol(sticky=0.25, life_loss_terminal=False)
        if env_id.startswith("ALE/")
        else AtariProtocol()
    )
    values = {field.name: getattr(settings, field.name) for field in fields(AtariProtocol)}
    protocol = AtariProtocol(
        **{name: getattr(named, name) if v is None else v for name, v in values.items()}
    )
    check_range("frame_skip", protocol.frame_skip, 1, 60)
    check_range("frame_stack", protocol.frame_stack, 1, 16)
    # ale-py writes past its buffer when only one side equals the screen's (160 wide, 210 high)
    check_range("size", protocol.size, 36, 150)
    check_range("noop_max", protocol.noop_max, 0, 100)
    check_range("sticky", protocol.sticky, 0, 0.999)
    check_range("stuck_steps", protocol.stuck_steps, 0, 10**9)
    return protocol


def atari_ids() -> list[str]:
    """Return all Atari ids; none where ale-py is not installed."""
    try:
        names = _game_names()
    except ConfigError:
        return []
    return [id_ for name in names for id_ in (f"{name}NoFrameskip-v4", f"ALE/{name}-v5")]


def atari_game(env_id: str) -> str | None:
    """Return ale-py's name of the game an Atari id names, None if there is no such game."""
    match = ATARI_ID.match(env_id)
    return None if match is None else _game_names().get(match["new"] or match["old"])


def emulator_arguments(protocol: AtariProtocol, limit: int) -> dict[str, Any]:
    """Return what `ale_py.vector_env.AtariVectorEnv` is told of a protocol and of the longest episode, in steps."""
    return {
        "max_num_frames_per_episode": limit * protocol.frame_skip,
        "repeat_action_probability": protocol.sticky,
        "full_action_space": protocol.full_action_space,
        "img_height": protocol.size,
        "img_width": protocol.size,
        "grayscale": protocol.grayscale,
        "stack_num": protocol.frame_stack,
        "frameskip": protocol.frame_skip,
        "noop_max": protocol.noop_max,
        # One would end the whole game with the first life; the other would tell a lost life and the
        # end of a game alike, and hide a truncation behind either. Lives are counted here.
        "episodic_life": False,
        "life_loss_info": False,
        "reward_clipping": False,
        "use_fire_reset": protocol.fire_reset,
    }


def lost_life(
    before: NDArray[Any], now: NDArray[Any], begun: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell in which games a life was lost and another is left, but where an episode has just begun.

    The last one is lost with the game, which may show its end for a few steps more. How many are left
    says nothing about whether a game is over: some end with a life, and some have none.
    """
    return (now < before) & (now > 0) & ~begun


def _game_names() -> dict[str, str]:
    try:
        from ale_py import roms
    except ImportError as error:
        raise MissingExtra("Atari needs ale-py", "atari") from error
    games: list[str] = roms.get_all_rom_ids()
    return {game.title().replace("_", ""): game for game in games if game not in _TWO_PLAYER_ONLY}


class AtariEnvs(WithoutTasks):
    """N copies of an Atari game, as a `VecEnv`."""

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int,
        num_threads: int,
        seeds: SeedStream,
        settings: EnvConfig,
        max_episode_steps: int,
        training: bool,
    ):
        game = atari_game(env_id)
        if game is None:
            from gossamer.envs.making import unknown_id

            raise unknown_id(env_id)
        protocol = atari_protocol(env_id, settings)
        from ale_py.vector_env import AtariVectorEnv
        from gymnasium.vector import AutoresetMode

        limit = max_episode_steps or MAX_EPISODE_STEPS
        most = MAX_FRAMES // protocol.frame_skip - SPARE_STEPS
        if limit > most:
            raise ConfigError(
                f"max_episode_steps is {limit}, with {protocol.frame_skip} frames a step more than the {MAX_FRAMES} "
                f"frames that ale-py counts: --max-episode-steps {most}"
            )
        self._game, self._protocol = game, protocol
        self._watches_lives = training and protocol.life_loss_terminal
        self._envs: Any = AtariVectorEnv(
            game,
            num_envs,
            # a second thread per env would only wait; 0 would mean every core, in every instance
            num_threads=max(1, min(num_threads, num_envs)),
            autoreset_mode=AutoresetMode.NEXT_STEP,
            # Where it cuts an episode by itself the last observation lacks the last frame: episodes are cut here.
            **emulator_arguments(protocol, limit + SPARE_STEPS),
        )
        channels = protocol.frame_stack * (1 if protocol.grayscale else 3)
        self.num_envs = num_envs
        self.spec = EnvSpec(
            env_id=env_id,
            leaves=one_leaf(
                "pixels",
                (channels, protocol.size, protocol.size),
                frame_stack=protocol.frame_stack,
                stack_padding="zero",
            ),
            action=ActionSpec("categorical", (int(self._envs.single_action_space.n),)),
            protocol=protocol.describe(env_id, limit),
            max_episode_steps=limit,
            action_repeat=protocol.frame_skip,
        )
        self._seeds = seeds
        self._limit, self._stuck_steps = limit, protocol.stuck_steps
        self.episodes_per_seed = (
            1 if protocol.sticky or game in CARRIES_STATE else EPISODES_PER_SEED
        )
        self.seeded_resets = 0
        """Resets that gave seeds, each of which costs a start of the game."""
        self._episode = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)
        self._cut = np.zeros(num_envs, np.bool_)  # ended here: the game does not know
        self._steps = np.zeros(num_envs, np.int64)
        self._quiet_steps = np.zeros(num_envs, np.int64)
        self._any_ended = False
        self._in_flight = False
        self._begun = False
        self.sign = Sign(seeds.whose)
        self._info: dict[str, NDArray[np.int32]] = {"lives": np.zeros(num_envs, np.int32)}

    @property
    def lives(self) -> NDArray[np.int32]:
        """[N] lives left, as each game counts them; 0 throughout in games without lives."""
        return self._info["lives"]

    def start(self, episodes: NDArray[np.int64]) -> NDArray[Any]:
        """Begin episode `episodes[i]` in every env i; return first observations."""
        self._prepare(episodes)
        return self._obs(self._begin(np.ones(self.num_envs, np.bool_)))

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step in the simulator's threads; returns at once."""
        # an action out of range would make ale-py hang for ever, and so would a second send
        check_actions(action, self.num_envs, self.spec)
        assert self._begun, "send before start"
        assert not self._in_flight, "send without recv"
        self._envs.send(action)
        self._in_flight = True

    def recv(self) -> StepResult:
        """Wait for the step; the GIL is released meanwhile."""
        assert self._in_flight, "recv without send"
        lives = self.lives
        self.sign.doing = "step"
        try:
            obs, rewards, terminated, truncated, self._info = self._envs.recv()
        finally:  # what a signal raises, it raises once the step has been fetched
            self._in_flight, self.sign.doing = False, ""
        self.sign.beats += 1
        reward = rewards.astype(np.float64)
        begun = self._ended
        if self._any_ended:
            obs = self._begin_next(obs, reward, terminated, truncated)
        over = terminated
        if self._watches_lives:
            terminated = over | lost_life(lives, self.lives, begun)
        truncated = self._account(reward, over, truncated)
        return StepResult(self._obs(obs), reward, terminated, truncated, self._ended)

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> NDArray[Any]:
        """Begin episodes, replay each env's action log since, return the observations.

        All are stepped together and all logs end on the same step; an env whose log is shorter idles
        until its turn. It takes as long as playing the longest log did.
        """
        for log in logs:
            if len(log):
                check_actions(log, len(log), self.spec)
        self._prepare(episodes)
        lengths = np.array([len(log) for log in logs])
        num_steps = int(lengths.max())
        first = num_steps - lengths
        script = np.zeros((num_steps, self.num_envs), np.int64)
        for i, log in enumerate(logs):
            script[first[i] :, i] = log
        if not self._begun:
            self._envs.reset()  # ale-py begins single envs only after it has begun all
            self._begun = True
        obs: Any = None
        for t in range(num_steps):
            if (first == t).any():
                self._begin(first == t)
            self._envs.send(script[t])
            obs, rewards, terminated, truncated, self._info = self._envs.recv()
            self.sign.beats += 1
            self._account(rewards, terminated, truncated)
        if (first == num_steps).any():
            obs = self._begin(first == num_steps)
        return self._obs(obs)

    def _fetch(self) -> None:
        """Wait for a step that nobody wants any more, if there is one."""
        if self._in_flight:
            self._in_flight = False
            self._envs.recv()

    def _prepare(self, episodes: NDArray[np.int64]) -> None:
        self._fetch()  # a step that was interrupted
        assert len(episodes) == self.num_envs
        self._episode = episodes.astype(np.int64)

    def _begin(self, begun: NDArray[np.bool_]) -> Any:
        """Begin the current episodes of some envs from their seeds; return everyone's frames."""
        position = self._episode % self.episodes_per_seed
        obs = self._reset(begun, self._seeds_of(begun))
        for p in range(1, int(position[begun].max()) + 1):
            later = begun & (position >= p)
            obs = self._reset(later, np.full(int(later.sum()), -1))
        self._forget(begun)
        return obs

    def _begin_next(
        self,
        obs: Any,
        reward: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> Any:
        """Finish a step in which some envs began their next episode, replacing ale-py's own start."""
        begun, cut = self._ended, self._cut
        self._episode[begun] += 1
        seeded = begun & (self._episode % self.episodes_per_seed == 0)
        # where ale-py has seen the end it has also begun the next game, on the running streams
        fresh = seeded | cut
        if fresh.any():
            seeds = np.where(seeded[fresh], self._seeds_of(fresh), -1)
            obs = self._reset(fresh, seeds)
            reward[fresh] = 0
            terminated[fresh] = truncated[fresh] = False
        self._forget(begun)
        # The row that begins an episode is not a step of it.
        self._steps[begun] = self._quiet_steps[begun] = -1
        return obs

    def _seeds_of(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        every = self.episodes_per_seed
        return np.array(
            [
                self._seeds.seed(i, int(self._episode[i]) // every * every)
                for i in np.flatnonzero(which).tolist()
            ]
        )

    def _reset(self, which: NDArray[np.bool_], seeds: NDArray[np.int64]) -> Any:
        """Reset some envs, -1 leaving an env's random streams as they are."""
        self.seeded_resets += bool((seeds >= 0).any())
        options = {"reset_mask": which} if self._begun else None
        if not self._begun:
            assert which.all()
            self._begun = True
        obs, self._info = self._envs.reset(seed=seeds, options=options)
        return obs

    def _forget(self, begun: NDArray[np.bool_]) -> None:
        self._steps[begun] = self._quiet_steps[begun] = 0
        self._ended = self._ended & ~begun
        self._cut = self._cut & ~begun
        self._any_ended = bool(self._ended.any())

    def _account(
        self, reward: Any, over: NDArray[np.bool_], truncated: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Work out which episodes have ended; return `truncated` with the cuts of the time limit and of the stuck guard."""
        self._steps += 1
        cut = self._steps >= self._limit
        if self._stuck_steps:
            self._quiet_steps += 1
            self._quiet_steps[reward != 0] = 0
            cut |= self._quiet_steps >= self._stuck_steps
        ended = over | truncated
        self._cut = cut & ~ended
        self._ended = ended | cut
        self._any_ended = bool(self._ended.any())
        return truncated | self._cut

    def _obs(self, obs: Any) -> NDArray[Any]:
        if self._protocol.grayscale:
            return obs
        return np.moveaxis(obs, -1, 2).reshape(
            self.num_envs, *self.spec.obs_shape
        )  # [N, S, C, H, W]

    def close(self) -> None:
        """Free the simulators and their threads."""
        self._fetch()
        self._envs.close()
        self._envs = None
