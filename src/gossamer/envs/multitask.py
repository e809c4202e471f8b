"""Families of tasks on Gymnasium's physics: acrobots of other links, robots of other mass in the wind.

A family is any environment with a method `set_task(seed)`, called before a reset: the seed stands for the
task. What it may tell of an episode in a property `episode_info`, numbers by their names, is recorded with the
episode; what it may say of its tasks in `task_words` is printed beside every score.
"""

from __future__ import annotations

import copy
import importlib
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv

SUCCESS_STEPS = 90
"""An acrobot that is up within so many steps has succeeded (Packer et al. 2018)."""
VISCOSITY, DENSITY = 0.0002, 1.2
"""Viscosity (Pa s) and density (kg / m^3) of the air around the robots of a family, in MuJoCo's units."""
MUJOCO_PREFIXES = {
    "MuJoCo": (False, False),
    "RandomWindMuJoCo": (True, False),
    "RandomMassMuJoCo": (False, True),
    "RandomMuJoCo": (True, True),
}
"""Beginning of an id -> whether wind and masses differ from task to task; where neither does, no family."""
_REGISTERING = threading.Lock()
"""Held while ids are made known, which a program may do in several threads at once."""


class _RandomAcrobot(AcrobotEnv):
    """An acrobot whose links have another mass, length and inertia; both links the same ones."""

    def __init__(self, render_mode: str | None = None):
        super().__init__(render_mode)
        self._links = (1.0, 1.0, 1.0)
        self._steps = 0
        self._success = False

    def _set_links(self, mass: float, length: float, inertia: float) -> None:
        self._links = (mass, length, inertia)
        self.LINK_MASS_1 = self.LINK_MASS_2 = mass
        self.LINK_LENGTH_1 = self.LINK_LENGTH_2 = length
        self.LINK_MOI = inertia

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Hang down, nearly at rest."""
        self._steps, self._success = 0, False
        return super().reset(seed=seed, options=options)

    def step(self, a: Any) -> Any:
        """Apply a torque to the joint between the links."""
        obs, reward, terminated, truncated, info = super().step(a)
        self._steps += 1
        self._success = bool(terminated) and self._steps <= SUCCESS_STEPS
        return obs, reward, terminated, truncated, info

    @property
    def episode_info(self) -> dict[str, float]:
        """Return the links' parameters, and whether the acrobot was up in time."""
        mass, length, inertia = self._links
        return {
            "mass": mass,
            "length": length,
            "inertia": inertia,
            "success": float(self._success),
        }


class RandomExtremeAcrobot(_RandomAcrobot):
    """Mass, length and inertia each far from 1, drawn once per task (Packer et al. 2018)."""

    task_words = "mass, length and inertia of the links each in [0.5, 0.75) or [1.25, 1.5)"

    def set_task(self, seed: int) -> None:
        """Become the acrobot that a seed stands for.

        Each parameter is uniform on [0.5, 0.75) and [1.25, 1.5), in the order mass, length, inertia.
        """
        drawn = np.random.default_rng(seed).uniform(0.5, 1.0, size=3)
        mass, length, inertia = np.where(drawn < 0.75, drawn, drawn + 0.5).tolist()
        self._set_links(mass, length, inertia)


class RandomNormalAcrobot(_RandomAcrobot):
    """Mass, length and inertia near 1, drawn anew for every episode (Packer et al. 2018); no family."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw each parameter uniformly from [0.75, 1.25), then hang down."""
        began = super().reset(seed=seed, options=options)
        mass, length, inertia = self.np_random.uniform(0.75, 1.25, size=3).tolist()
        self._set_links(mass, length, inertia)
        return began


class MujocoInAir(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A MuJoCo robot in air, without wind; one that swims stays in its fluid."""

    def __init__(self, env: Any):
        super().__init__(env)
        medium = env.unwrapped.model.opt
        if not medium.density and not medium.viscosity:
            medium.viscosity, medium.density = VISCOSITY, DENSITY


class MujocoTasks(MujocoInAir):
    """A MuJoCo robot in air, with the wind and the masses of its task.

    Source: Valcarcel Macua et al. 2021, "Fully distributed actor-critic architecture for multitask
    deep reinforcement learning", experiments.
    """

    def __init__(self, env: Any, *, wind: bool, mass: bool):
        super().__init__(env)
        self._wind = wind
        # Every task starts from what was loaded: scaling what is there would pile up.
        self._mass = env.unwrapped.model.body_mass.copy() if mass else None
        self._info: dict[str, float] = {}
        self.task_words = " and ".join(
            ["wind of up to 15 m/s along x and y"] * wind + ["all masses times 0.05 to 1.95"] * mass
        )

    def set_task(self, seed: int) -> None:
        """Draw the wind and the factor of all masses that a seed stands for, in that order.

        Wind: 30 (Beta(0.4, 0.4) - 0.5) m/s along x and along y. Factor: 1 + 1.9 (Beta(0.1, 0.1) - 0.5).
        Call it before a reset.
        """
        mujoco: Any = importlib.import_module("mujoco")
        rng = np.random.default_rng(seed)
        robot: Any = self.env.unwrapped
        self._info = {}
        if self._wind:
            wind_x, wind_y = (30.0 * (rng.beta(0.4, 0.4, size=2) - 0.5)).tolist()
            robot.model.opt.wind[:2] = wind_x, wind_y
            self._info |= {"wind_x": wind_x, "wind_y": wind_y}
        if self._mass is not None:
            factor = 1.0 + 1.9 * (float(rng.beta(0.1, 0.1)) - 0.5)
            robot.model.body_mass[:] = self._mass * factor
            # What MuJoCo derives from masses when it loads a model.
            mujoco.mj_setConst(robot.model, robot.data)
            self._info["mass_factor"] = factor

    @property
    def episode_info(self) -> dict[str, float]:
        """Return the task's wind in m/s and factor of mass, as far as they vary."""
        return self._info


def make_mujoco(base: str, *, wind: bool, mass: bool, **options: Any) -> MujocoInAir:
    """Make a robot of a family from its Gymnasium id, with the options of `gymnasium.make`."""
    spec = copy.copy(gymnasium.spec(base))
    spec.max_episode_steps = None  # the family's own id sets it
    env = gymnasium.make(spec, disable_env_checker=True, **options)
    return MujocoTasks(env, wind=wind, mass=mass) if wind or mass else MujocoInAir(env)


def register() -> None:
    """Let Gymnasium know the families' ids."""
    with _REGISTERING:
        if "RandomExtremeAcrobot-v1" in gymnasium.registry:
            return
        for name in ("RandomExtremeAcrobot", "RandomNormalAcrobot"):
            gymnasium.register(
                f"{name}-v1",
                entry_point=f"{__name__}:{name}",
                max_episode_steps=500,
                reward_threshold=-100.0,
            )
        robots = [spec for spec in gymnasium.registry.values() if _is_robot(spec)]
        for spec in robots:
            for prefix, (wind, mass) in MUJOCO_PREFIXES.items():
                gymnasium.register(
                    prefix + spec.id,
                    entry_point=f"{__name__}:make_mujoco",
                    max_episode_steps=spec.max_episode_steps,
                    kwargs={"base": spec.id, "wind": wind, "mass": mass},
                )


def _is_robot(spec: Any) -> bool:
    return str(spec.entry_point).startswith("gymnasium.envs.mujoco") and spec.id.endswith("-v5")
