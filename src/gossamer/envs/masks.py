"""Which actions an environment allows: where it says so, and how that becomes a leaf of what it observes.

A mask is a leaf `action_mask` of logits in the order of the action's parts, True where one is allowed. It is stored with
observations, so that a learner masks as the actor did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from gossamer.envs.spaces import Misfit, action_format
from gossamer.errors import ConfigError
from gossamer.spec import Leaf

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MASK = "action_mask"
"""Key of masks in observations and infos (Gymnasium's and PettingZoo's habit), and name of their leaf."""
MaskSource = Literal["observation", "info"]


class AllForbidden(Exception):
    """A mask allows no action; the message says which one it forbids all choices of."""


@dataclass(frozen=True, slots=True)
class MaskFormat:
    """How what one environment says of its actions is written into a batch."""

    source: MaskSource
    """What holds it: a Dict of observations, or the info beside them."""
    sizes: tuple[int, ...]
    """Choices of each part of an action."""

    @property
    def leaf(self) -> Leaf:
        """What a policy gets."""
        return Leaf(MASK, "mask", (sum(self.sizes),))

    def write(self, batch: NDArray[np.bool_], i: int, held: Any, *, over: bool = False) -> None:
        """Store the mask that an observation or an info holds as row i.

        Args:
            batch: [N, M].
            i: the row.
            held: the observation or info.
            over: the episode is; no action is chosen any more, and nothing need be allowed.

        Raises:
            Misfit: there is none, or it does not fit the actions.
            AllForbidden: it allows nothing.
        """
        if over:
            batch[i] = True
            return
        try:
            said = held[MASK]
        except (KeyError, TypeError, IndexError):
            raise Misfit(f"there is no {MASK} in its {self.source}") from None
        batch[i] = row = self.flat(said)
        first = 0
        for part, size in enumerate(self.sizes):
            if not row[first : first + size].any():
                which = f" of part {part}" * (len(self.sizes) > 1)
                raise AllForbidden(f"{MASK} forbids every action{which}")
            first += size

    def flat(self, said: Any) -> NDArray[np.bool_]:
        """Return a mask, in any of its forms, as one row [M]; Misfit: it has none of them."""
        parts = len(self.sizes)
        if isinstance(said, (tuple, list)) and parts > 1:
            listed = cast("Sequence[Any]", said)
            held = [np.asarray(x) for x in listed]
            if [x.shape for x in held] == [(size,) for size in self.sizes]:
                return _of_bools(np.concatenate(held))
        try:
            array = np.asarray(said)
        except ValueError:
            raise Misfit(f"its {MASK} is no array; {self._wanted()}") from None
        if array.shape == (sum(self.sizes),):
            return _of_bools(array)
        if parts > 1 and array.shape == (parts, self.sizes[0]) and len(set(self.sizes)) == 1:
            if array.shape == self.sizes:
                raise Misfit(
                    f"its {MASK} has shape {array.shape}, which may mean parts or combinations; {self._wanted()}"
                )
            return _of_bools(array.reshape(-1))
        raise Misfit(f"its {MASK} has shape {array.shape}; {self._wanted()}")

    def _wanted(self) -> str:
        flat = f"({sum(self.sizes)},)"
        if len(self.sizes) == 1:
            return f"its actions need {flat}"
        return f"its actions need {flat}, or a tuple with an array of each part's choices, {list(self.sizes)}"


def _of_bools(array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
        raise Misfit(f"its {MASK} holds other values than 0 and 1")
    return array.astype(np.bool_)


def mask_format(env_id: str, source: MaskSource, action_space: Any) -> MaskFormat:
    """Return the format of an environment's masks; refuse those of actions that cannot be masked."""
    action = action_format(env_id, action_space).spec
    if action.kind == "bernoulli":
        raise ConfigError(
            f"--env.mask {source}: {env_id} has MultiBinary actions, of whose masks there are several readings; make it "
            f"MultiDiscrete([2] * {action.sizes[0]}), or use --env.mask off"
        )
    if action.kind == "gaussian":
        raise ConfigError(
            f"--env.mask {source}: {env_id} has continuous actions, which have no mask; use --env.mask off"
        )
    return MaskFormat(source, action.sizes)


def find_mask(env_id: str, obs_space: Any, action_space: Any, info: Mapping[str, Any]) -> str:
    """Return where an environment says what it allows: "observation", "info", or "off": nowhere that is known.

    Args:
        env_id: of the environment.
        obs_space: of its observations.
        action_space: of its actions.
        info: of a reset.

    Raises:
        ConfigError: it says something that does not fit its actions.
    """
    from gossamer.envs.spaces import dict_of

    source: MaskSource = "observation"
    held: Any = dict_of(obs_space)
    if MASK in held:
        said: Any = held[MASK].sample()
        said = tuple(np.zeros_like(x) for x in said) if isinstance(said, tuple) else said * 0
    elif MASK in info:
        source, said = "info", info[MASK]
    else:
        return "off"
    if action_format(env_id, action_space).spec.kind in ("bernoulli", "gaussian"):
        return "off"
    try:
        mask_format(env_id, source, action_space).flat(said)
    except Misfit as error:
        raise ConfigError(
            f"{env_id}: {error}; if it is no mask of actions: --env.mask off"
        ) from None
    return source
