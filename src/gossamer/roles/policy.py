"""A trained policy as users meet it: an environment's own observations in, actions that it takes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from gossamer.envs.interface import interface_of
from gossamer.envs.masks import MASK, BadMask
from gossamer.envs.spaces import Misfit
from gossamer.policies.actor_critic import ActorCritic
from gossamer.roles.inference import Carried, nothing_carried, take_step
from gossamer.spec import leaves_of, map_obs
from gossamer.system.devices import cpu_by_default

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gymnasium import Space
    from numpy.typing import ArrayLike, NDArray

    from gossamer.envs.interface import Interface
    from gossamer.envs.masks import MaskFormat
    from gossamer.spec import Obs


class Policy(ActorCritic):
    """The network of a run, which also converts its environment's observations and actions.

    A policy is a `torch.nn.Module`: `policy(obs, starts, core_state)` runs the network itself on rows of observations.
    """

    interface: Interface
    """How to create the run's environment, and which form its observations, actions and masks have."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process, or a file of `torch.save`, needs of it: not its interface's functions."""
        held = self.interface
        spaces = (held.observation_space, held.action_space)
        told = (held.environment, held.observation, held.action)
        return self.__dict__ | {"interface": (spaces, told)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be what was saved; the functions are made anew."""
        (observes, acts), (environment, observation, action) = state["interface"]
        super().__setstate__(state)
        found = interface_of(self.spec.env_id, environment, observes, acts, self.spec)
        self.interface = replace(found, observation=observation, action=action)

    @property
    def observation_space(self) -> Space[Any]:
        """Space of one environment's observations; without bounds if the policy was exported."""
        return self.interface.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Space of one environment's actions."""
        return self.interface.action_space

    @cpu_by_default()
    @torch.no_grad()
    def act(
        self,
        obs: Any,
        state: Carried | None = None,
        *,
        deterministic: bool = True,
        reward: ArrayLike | None = None,
        episode_start: ArrayLike | None = None,
        generator: torch.Generator | None = None,
        mask: Any = None,
    ) -> tuple[Any, Carried]:
        """Choose an action for one environment, or one for each of B environments.

        Args:
            obs: the observation as the environment returns it; for B environments [B, ...].
            state: the state that the last call returned; None: an episode begins in every environment.
            deterministic: take the likeliest action, as `gossamer.evaluate` does, instead of sampling.
            reward: reward of the last step, as the environment returned it; for B environments [B]. Needed by a policy
                that was trained with `policy.last_reward`.
            episode_start: true if an episode begins with this observation, which clears the state; for B environments
                [B].
            generator: random generator for sampled actions; None: torch's own.
            mask: allowed actions, in the form of `action_mask` in the environment's info; for B environments a sequence
                of masks. Not needed if the observation contains the mask.

        Returns:
            The action as the environment takes it (for B environments [B, ...]), and the state for the next call.

        Raises:
            ValueError: an observation does not fit the environment's space or is not finite, an argument has the wrong
                size, or the mask is missing although the policy was trained with one.
        """
        form = self.interface.obs_format
        count = form.count(obs)
        alone, rows = count is None, 1 if count is None else count
        if rows == 0:
            raise ValueError("obs holds no environment; act needs at least one")
        batch: Any = form.empty(rows)
        try:
            if alone:
                form.write(batch, 0, obs)
            else:
                form.write_all(batch, obs)
        except Misfit as error:
            raise Misfit(
                f"the observation does not fit the policy's environment: {error}"
            ) from None
        _refuse_not_finite(batch)
        if self.interface.mask is not None:
            batch = {**leaves_of(batch), MASK: self._masks(obs, mask, rows, alone=alone)}
        elif mask is not None:
            raise ValueError("this policy was trained without a mask of actions; leave mask out")
        if state is not None and self.config.last_reward and reward is None:
            raise ValueError(
                "this policy is fed the reward of the last step: act(obs, state, reward=...)"
            )
        carried = nothing_carried(self, rows) if state is None else state
        if carried.action.shape[1] != rows:
            raise ValueError(f"state is of {carried.action.shape[1]} environments, obs of {rows}")
        begins: ArrayLike = state is None
        if state is not None and episode_start is not None:
            begins = episode_start
        device = self.device
        _, carried = take_step(
            self,
            self,
            map_obs(partial(torch.as_tensor, device=device), batch),
            torch.from_numpy(_of_each(begins, rows, np.bool_)).to(device),
            torch.from_numpy(_of_each(0.0 if reward is None else reward, rows, np.float32)).to(
                device
            ),
            carried,
            greedy=deterministic,
            generator=generator,
        )
        chosen = self.env_action(carried.action[0].cpu()).numpy()
        actions = self.interface.action_format
        if alone:
            return actions.decode(chosen)[0], carried
        return (actions.batch or actions.decode)(chosen), carried

    def _masks(self, obs: Any, mask: Any, rows: int, *, alone: bool) -> Any:
        """Return the masks [B, M] of actions of environments."""
        form = self.interface.mask
        assert form is not None
        observed = mask is None and form.source == "observation"
        if observed:
            mask = obs.get(form.key)
        if mask is None:
            key = form.key
            what = f'act(obs, mask=info["{key}"])'
            if form.source == "observation":
                what = f"obs has no {key!r}; put it there, or give it as act(obs, mask=...)"
            raise ValueError(f"this policy was trained with a mask of actions: {what}")
        if alone:
            said = [mask]
        elif observed or (_is_batched(mask) and not _are_wholes(mask, rows, form)):
            said = _each(mask, rows)
        else:
            said = _listed(mask, rows)
        try:
            return form.masks([form.row({form.key: one}) for one in said])
        except BadMask as error:
            raise ValueError(str(error)) from None


def _refuse_not_finite(batch: Obs[NDArray[Any]]) -> None:
    """Refuse numbers by which no policy can act, as a run does."""
    for name, x in leaves_of(batch).items():
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            found = x[~np.isfinite(x)].flat[0]
            what = f"observation {name}".rstrip()
            raise ValueError(f"a number of the {what} is {found}; it must be a finite number")


def _listed(masks: Any, rows: int) -> list[Any]:
    """Return the mask of each environment."""
    if len(masks) != rows:
        raise ValueError(f"mask is of {len(masks)} environments, obs of {rows}")
    return list(masks)


def _is_batched(masks: Any) -> bool:
    """Whether masks are in a Dict or Tuple of arrays, each of all environments, as Gymnasium's vector environments stack them."""
    if isinstance(masks, Mapping):
        return True
    return isinstance(masks, tuple) and all(
        x is None or np.ndim(x) > 1 if isinstance(x, np.ndarray | None) else _is_batched(x)
        for x in cast("tuple[Any, ...]", masks)
    )


def _are_wholes(masks: Any, rows: int, form: MaskFormat) -> bool:
    """Whether what looks like parts of masks, each of all environments, are whole masks, one of each environment."""
    if not isinstance(masks, tuple) or len(cast("tuple[Any, ...]", masks)) != rows:
        return False
    parts = cast("tuple[Any, ...]", masks)
    # By their forms alone, so that the answer is the same at every step.
    if not _fit(parts, form):
        return False
    if not _fit(_each(parts, rows), form):
        return True
    raise ValueError(
        f"mask is a tuple of {rows} arrays, which may be one of each environment or one of each part of the actions; "
        "give a list with the mask of each environment"
    )


def _fit(masks: Iterable[Any], form: MaskFormat) -> bool:
    try:
        for one in masks:
            form.row({form.key: one})
    except ValueError:
        return False
    return True


def _each(masks: Any, rows: int) -> list[Any]:
    """Return the mask of each environment, given those of all in an array, or in a Dict or Tuple of arrays."""
    if masks is None:
        return [None] * rows
    if isinstance(masks, Mapping):
        held = dict(cast("Mapping[Any, Any]", masks))
        for key in [x for x in held if isinstance(x, str) and x[:1] == "_" and x[1:] in held]:
            del held[key]  # in which environments there is one, as Gymnasium's infos have it
        named = {key: _each(one, rows) for key, one in held.items()}
        return [{key: one[i] for key, one in named.items()} for i in range(rows)]
    if isinstance(masks, tuple):
        parts = [_each(one, rows) for one in cast("tuple[Any, ...]", masks)]
        return [tuple(one[i] for one in parts) for i in range(rows)]
    return _listed(masks, rows)


def _of_each(x: ArrayLike, count: int, dtype: type[np.generic]) -> Any:
    """Return a number of each environment, [B]; one that is given alone holds for all."""
    return np.broadcast_to(np.asarray(x, dtype).reshape(-1), (count,)).copy()
