"""Settings of an environment, and which suite an id belongs to. Nothing here imports a simulator."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from gossamer.errors import ConfigError
from gossamer.system.ranges import (
    BelowOne,
    Count,
    CountToMillion,
    Seed,
    Threads,
    UpToBillion,
    Whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

Suite = Literal["atari", "box2d", "classic", "minigrid", "mujoco", "toy", "other"]

SUITE_IDS: dict[Suite, str] = {
    "other": "module:function",
    "classic": "CartPole-v1",
    "box2d": "LunarLander-v3",
    "mujoco": "HalfCheetah-v5",
    "atari": "PongNoFrameskip-v4",
    "minigrid": "MiniGrid-DoorKey-5x5-v0",
    "toy": "FrozenLake-v1",
}
"""An id of each suite; the first is that of all environments of no known suite."""

ATARI_ID = re.compile(r"^ALE/(?P<new>\w+)-v5$|^(?P<old>\w+)NoFrameskip-v4$")
"""Ids of the two Atari protocols, with the name of the game."""
_ATARI = re.compile(r"^ALE/\w+-v\d+$|^\w+NoFrameskip-v\d+$")
_ID = r"(^|:|phys2d/|tabular/)"
"""What stands before the name of one of Gymnasium's environments; of another name the same words may be a part."""
_MUJOCO = re.compile(
    _ID
    + r"((Random(Wind|Mass)?)?MuJoCo)?(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedPendulum|InvertedDoublePendulum"
    r"|Pusher|Reacher|Swimmer|Walker2d)-v\d+$"
)
_BOX2D = re.compile(
    _ID + r"(LunarLander|LunarLanderContinuous|BipedalWalker|BipedalWalkerHardcore|CarRacing)-v\d+$"
)
_CLASSIC = re.compile(
    _ID
    + r"(CartPole|(RandomExtreme|RandomNormal)?Acrobot|MountainCar|MountainCarContinuous|Pendulum)-v\d+$"
)
_TOY = re.compile(
    _ID + r"(FrozenLake|FrozenLake8x8|Taxi|CliffWalking|CliffWalkingSlippery|Blackjack)-v\d+$"
)
_MINIGRID = re.compile(r"(^|:)(MiniGrid|BabyAI)-")
_ENVPOOL_ATARI = re.compile(
    r"(Adventure|AirRaid|Alien|Amidar|Assault|Asterix|Asteroids|Atlantis|Atlantis2"
    r"|Backgammon|BankHeist|BasicMath|BattleZone|BeamRider|Berzerk|Blackjack|Bowling"
    r"|Boxing|Breakout|Carnival|Casino|Centipede|ChopperCommand|CrazyClimber|Crossbow"
    r"|Darkchambers|Defender|DemonAttack|DonkeyKong|DoubleDunk|Earthworld|ElevatorAction"
    r"|Enduro|Entombed|Et|FishingDerby|FlagCapture|Freeway|Frogger|Frostbite|Galaxian"
    r"|Gopher|Gravitar|Hangman|HauntedHouse|Hero|HumanCannonball|IceHockey|Jamesbond"
    r"|JourneyEscape|Kaboom|Kangaroo|KeystoneKapers|KingKong|Klax|Koolaid|Krull"
    r"|KungFuMaster|LaserGates|LostLuggage|MarioBros|MiniatureGolf|MontezumaRevenge|MrDo"
    r"|MsPacman|NameThisGame|Othello|Pacman|Phoenix|Pitfall|Pitfall2|Pong|Pooyan"
    r"|PrivateEye|Qbert|Riverraid|RoadRunner|Robotank|Seaquest|SirLancelot|Skiing"
    r"|Solaris|SpaceInvaders|SpaceWar|StarGunner|Superman|Surround|Tennis|Tetris"
    r"|TicTacToe3d|TimePilot|Trondead|Turmoil|Tutankham|UpNDown|Venture|VideoCheckers"
    r"|VideoChess|VideoCube|VideoPinball|WizardOfWor|WordZapper|YarsRevenge|Zaxxon"
    r")-v5"
)


@dataclass(frozen=True)
class EnvConfig:
    """How an environment is set up. none: its protocol's default. Atari's protocols: NoFrameskip-v4 and ALE/...-v5."""

    frame_skip: Count | None = None
    """Atari: emulator frames per decision, 1 to 60; the last two frames are merged by their maximum. Both
    protocols: 4 (Mnih et al. 2015)."""
    frame_stack: Count | None = None
    """Atari: newest frames in one observation, 1 to 16. Both protocols: 4 (Mnih et al. 2015)."""
    size: Count | None = None
    """Atari: height and width of a frame in pixels, 36 to 150. Both protocols: 84 (Mnih et al.
    2015)."""
    grayscale: bool | None = None
    """Atari: grey frames (one channel) or colour (three). Both protocols: grey."""
    noop_max: Whole | None = None
    """Atari: an episode begins with a random number of no-ops below this limit, 0 to 100. Both protocols: 30 (Mnih et
    al. 2015)."""
    sticky: BelowOne | None = None
    """Atari: probability in [0, 1) that a frame repeats the previous action. NoFrameskip-v4: 0;
    ALE/...-v5: 0.25 (Machado et al. 2018)."""
    full_action_space: bool | None = None
    """Atari: all 18 joystick actions instead of the actions that the game uses. Both protocols: no."""
    life_loss_terminal: bool | None = None
    """Atari, training only: a lost life counts as terminated, although the game continues. NoFrameskip-v4: yes;
    ALE/...-v5: no (Machado et al. 2018)."""
    fire_reset: bool | None = None
    """Atari: press FIRE at the start of an episode, in games that have it. Both protocols: yes."""
    stuck_steps: UpToBillion | None = None
    """Truncate an episode after this many env steps in a row without a reward; 0: no limit. Default: 0."""
    tasks_per_learner: CountToMillion | None = None
    """Families of tasks: tasks per learner, >= 1, a divisor of num_envs. The learner's environments are divided into
    one group per task. Default: one task per environment."""
    task_seed: Seed | None = None
    """Families of tasks: the seed that tasks are drawn from, >= 0. Default: the run's seed."""
    family: bool | None = None
    """Whether the environment is a family of tasks: its method set_task(seed) chooses a task before a reset, and its
    attribute task_words describes the task. Default: on for gossamer's own families, and if tasks_per_learner or
    task_seed is given."""
    episode_info: bool | None = None
    """Whether the numbers in the environment's property episode_info are recorded with every episode. Default: on
    for families of tasks."""
    mask: Literal["auto", "observation", "info", "off"] | None = None
    """Where the environment reports which actions are allowed. observation: in `action_mask` of its observations.
    info: in `action_mask` of the infos that `reset` and `step` return (EnvPool: `legal_action_mask`). off: nowhere.
    auto: where the first reset reports a mask, for the whole run. Default: auto."""
    mask_form: Literal["parts", "joint"] | None = None
    """Meaning of a mask for actions of several parts. parts: the allowed choices of each part. joint: the allowed
    combinations. Default: the meaning that fits the mask's shape."""
    workers: Threads | None = None
    """Worker processes that step the environments, a divisor of the size of a group (see env_groups); each steps an
    equal share of every group. 0: the actor's own process steps them. Workers are useful for slow Python environments,
    and for many Atari games, which several processes create faster. Default: 0; with a GPU, the command `gossamer
    train` uses one worker per core if there are at least 32 Atari environments."""


EXAMPLES = {
    "PongNoFrameskip-v4": ("any Atari game, no sticky actions", "ale_py"),
    "ALE/Pong-v5": ("any Atari game, sticky actions", "ale_py"),
    "CartPole-v1": ("any environment registered with Gymnasium", ""),
    "HalfCheetah-v5": ("MuJoCo tasks", "mujoco"),
    "LunarLander-v3": ("Box2D tasks", "Box2D"),
    "RandomExtremeAcrobot-v1": ("multi-task: acrobots with different links", ""),
    "RandomNormalAcrobot-v1": ("single task: an acrobot with new links in every episode", ""),
    "RandomMuJoCoHopper-v5": (
        "multi-task: any -v5 robot with different wind and masses; also RandomWind..., RandomMass...",
        "mujoco",
    ),
    "MuJoCoHopper-v5": ("single task: the same robot without wind", "mujoco"),
    "MiniGrid-DoorKey-5x5-v0": ("MiniGrid's and BabyAI's tasks", "minigrid"),
    "VizdoomBasic-v1": ("ViZDoom's scenarios", "vizdoom"),
    "envpool:Ant-v5": ("EnvPool's environments", "envpool"),
    "module:function": ("your own environment: a function that returns a gymnasium.Env", ""),
    "module:Name-v0": ("your own environment: an id that the module registers when imported", ""),
}
"""Ids of every kind, what else is named like it, and the module of the simulator that it needs."""

ATARI_ONLY = (
    "frame_skip",
    "frame_stack",
    "size",
    "grayscale",
    "noop_max",
    "sticky",
    "full_action_space",
    "life_loss_terminal",
    "fire_reset",
)
"""Settings that mean something for Atari alone."""

OF_OWN_ENVIRONMENTS = ("family", "episode_info", "mask", "mask_form")
"""Settings that mean something where an environment may have attributes of its own."""

FAMILIES_ONLY = ("tasks_per_learner", "task_seed")
"""Settings that mean something for families of tasks alone."""


def suite_of(env_id: str) -> Suite:
    """Name the suite of an id by its spelling alone."""
    if env_id.startswith("envpool:"):
        name = env_id.removeprefix("envpool:")
        if _ENVPOOL_ATARI.fullmatch(name):
            return "atari"
        env_id = name
    if _ATARI.match(env_id):
        return "atari"
    if _MUJOCO.search(env_id):
        return "mujoco"
    if _BOX2D.search(env_id):
        return "box2d"
    if _MINIGRID.search(env_id):
        return "minigrid"
    if _TOY.search(env_id):
        return "toy"
    return "classic" if _CLASSIC.search(env_id) else "other"


def is_atari(env_id: str) -> bool:
    """Tell whether an id names one of the two Atari protocols; an older version's is made as any other of Gymnasium's."""
    return ATARI_ID.match(env_id) is not None


def is_native(env_id: str) -> bool:
    """Whether an id's environments are stepped by threads of a simulator, without the interpreter's lock."""
    return env_id.startswith("envpool:") or is_atari(env_id)


def flag_of(name: str) -> str:
    """Return the command-line spelling of a setting of this section."""
    return "--env." + name.replace("_", "-")


def refuse_settings(env_id: str, settings: EnvConfig, names: Iterable[str], reason: str) -> None:
    """Raise ConfigError if one of the named settings was set, though it means nothing here."""
    for field in fields(settings):
        if field.name in names and getattr(settings, field.name) is not None:
            raise ConfigError(
                f"{flag_of(field.name)} {getattr(settings, field.name)} does not apply to "
                f"{env_id}: {reason}; leave it out"
            )


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless low <= value <= high."""
    if not low <= value <= high:
        raise ConfigError(f"{flag_of(name)} is {value}; allowed is {low} to {high}")
