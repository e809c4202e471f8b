"""Which actions an environment allows: where it says so, and how that becomes a leaf of what it observes.

A mask is a leaf `action_mask` of logits in the order of the action's parts, True where one is allowed. It is stored with
observations, so that a learner masks as the actor did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from gossamer.envs.families import layers_of
from gossamer.envs.making import space_of
from gossamer.envs.settings import flag_of
from gossamer.envs.spaces import (
    MOST_CHOICES,
    Misfit,
    action_format,
    arrays_in,
    dict_of,
    parts_in,
)
from gossamer.errors import ConfigError
from gossamer.spec import Leaf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gossamer.envs.settings import EnvConfig

MASK = "action_mask"
"""Key of masks in observations and infos (Gymnasium's and PettingZoo's habit), and name of their leaf."""
LEGAL_MASK = "legal_action_mask"
"""Key of masks in EnvPool's infos."""
MaskSource = Literal["observation", "info"]
STRANGE = "holds other values than 0 and 1"


class BadMask(Exception):
    """A mask allows no action, or holds other values than 0 and 1; the message says what is wrong.

    Args:
        row: of the mask, among those that were looked at.
        message: for people.
    """

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


@dataclass(frozen=True)
class MaskFormat:
    """How what one environment says of its actions is written into a batch."""

    source: MaskSource
    """What holds it: a Dict of observations, or the info beside them."""
    sizes: tuple[int, ...]
    """Choices of each component of an action."""
    joint: bool = False
    """Combinations of these choices are allowed or not, instead of each."""
    parts: Mapping[tuple[Any, ...], MaskFormat] | None = None
    """Of an action that is a Dict or Tuple: the format of each part that can be masked, by the keys that lead to it."""
    key: str = MASK
    """Under which the observation or the info holds it."""

    @cached_property
    def logits(self) -> tuple[int, ...]:
        """Numbers of logits of which one must be allowed."""
        return (math.prod(self.sizes),) if self.joint else self.sizes

    @property
    def names(self) -> list[str]:
        """What an error calls that of which nothing is allowed, for each of `logits`."""
        if self.parts is not None:
            found = ((_path(keys), form.names) for keys, form in self.parts.items())
            return [f"{own} of {name}" if own else name for name, names in found for own in names]
        if len(self.logits) == 1:
            return [""]
        return [f"part {i}" for i in range(len(self.logits))]

    @property
    def place(self) -> str:
        """What an error calls that which holds it."""
        return "infos" if self.source == "info" else "observation"

    @cached_property
    def leaf(self) -> Leaf:
        """What a policy gets."""
        return Leaf(MASK, "mask", (sum(self.logits),))

    @cached_property
    def all_allowed(self) -> bytes:
        """A row that forbids nothing."""
        return b"\1" * sum(self.logits)

    @cached_property
    def in_info(self) -> bool:
        """Whether the info beside an observation holds it."""
        return self.source == "info"

    def row(self, held: Any) -> bytes:
        """Return the mask [M] that an observation or an info holds, a byte a choice; Misfit: there is none, or it does not fit.

        What it says is not looked at: see `masks`.
        """
        try:
            said = held[self.key]
        except (KeyError, TypeError, IndexError):
            raise Misfit(f"there is no {self.key}") from None
        # Most masks are such arrays; an environment that is quick itself would notice a longer way.
        if said.__class__ is np.ndarray and said.shape == self._row and said.dtype.char in "?bB":
            return said.tobytes()
        return self.flat(said).tobytes()

    def row_at_end(self, held: Any, *, terminated: bool) -> bytes:
        """Return the mask [M] of an episode's last observation; all is allowed where there is none, or nothing is allowed.

        No action is chosen there, but after a time limit its value counts, for a network that may see the mask.
        """
        if not terminated:
            with suppress(Misfit, BadMask):
                row = self.row(held)
                self.masks([row])
                return row
        return self.all_allowed

    def masks(self, rows: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return rows as masks [N, M]; BadMask: as of `check`."""
        held = bytearray().join(rows)
        batch = np.frombuffer(held, np.uint8).reshape(len(rows), sum(self.logits))
        # Bytes are looked at in a third of the time that arrays take.
        if (
            len(self.logits) > 1
            or held.translate(None, b"\0\1")
            or [row for row in rows if 1 not in row]
        ):
            self.check(batch)
        return batch.view(np.bool_)

    def check(self, batch: NDArray[np.uint8]) -> None:
        """Raise BadMask for the first of rows [N, M] that allows nothing of an action, or of a part of it, or has numbers above 1."""
        # The largest number tells both, and a mask that is -1 somewhere is 255 here.
        largest = np.maximum.reduceat(batch, self._firsts, axis=1)
        if (largest == 1).all():
            return
        row, part = np.argwhere(largest != 1)[0].tolist()
        if largest[row].max() > 1:
            raise BadMask(row, f"{self.key} {STRANGE}")
        of = f" of {self.names[part]}" * bool(self.names[part])
        raise BadMask(row, f"{self.key} forbids every action{of}")

    def refuse_strays(self, said: Any) -> None:
        """Raise Misfit where a mask in a Dict or Tuple says something of what is no part that can be masked."""
        if self.parts is None:
            return
        for keys, one in _leaves_in(said, ()):
            if one is not None and not any(keys[: len(known)] == known for known in self.parts):
                held = ", ".join(map(_path, self.parts))
                raise Misfit(
                    f"{self.key} says something of {_path(keys) or 'no part'}; it must be a Dict or Tuple as the action "
                    f"is, with masks of {held}, and None elsewhere"
                )

    def flat(self, said: Any, *, part: str = "") -> NDArray[np.bool_]:
        """Return a mask, in any of its forms, as one row [M]; Misfit: it has none of them.

        Args:
            said: the mask.
            part: path of the part of an action that it is of; empty: of all of them.
        """
        if self.parts is not None:
            return self._flat_of_parts(self.parts, said)
        name = f"{self.key} of {part}" if part else self.key
        parts = len(self.sizes)
        if isinstance(said, (tuple, list)) and parts > 1 and not self.joint:
            listed = cast("Sequence[Any]", said)
            # A component without a mask is free.
            each = zip(listed, self.sizes, strict=False)
            held = [np.ones(n, np.bool_) if x is None else np.asarray(x) for x, n in each]
            if len(listed) == parts and [x.shape for x in held] == [(size,) for size in self.sizes]:
                return _of_bools(np.concatenate(held), name)
        try:
            array = np.asarray(said)
        except ValueError:
            raise Misfit(f"{name} is no array; {self._wanted()}") from None
        if array.shape not in self._shapes:
            raise Misfit(f"{name} has shape {array.shape}; {self._wanted()}")
        return _of_bools(array.reshape(-1), name)

    def _flat_of_parts(
        self, parts: Mapping[tuple[Any, ...], MaskFormat], said: Any
    ) -> NDArray[np.bool_]:
        """Return the masks of parts, in a Dict or Tuple as the action's; a part without one allows all."""
        if said is None:
            raise Misfit(f"{self.key} is None; it must be a Dict or Tuple as the action is")
        # What fits no part, a misspelt key above all, would otherwise allow what it means to forbid.
        self.refuse_strays(said)
        rows: list[NDArray[np.bool_]] = []
        for keys, form in parts.items():
            one = said
            try:
                for key in keys:
                    one = None if one is None else one[key]
            except (LookupError, TypeError):
                one = None
            free = one is None
            rows.append(
                np.ones(form.leaf.shape, np.bool_) if free else form.flat(one, part=_path(keys))
            )
        return np.concatenate(rows)

    @cached_property
    def _row(self) -> tuple[int, ...] | None:
        """Shape of arrays that are taken as they are: all choices side by side; None: none is."""
        return None if self.parts is not None or self.joint else (sum(self.sizes),)

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """Where each of `logits` begins in a row."""
        return np.cumsum((0, *self.logits[:-1]))

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes that one array of a mask may have."""
        if self.joint:
            return [self.sizes]
        found: list[tuple[int, ...]] = [(sum(self.sizes),)]
        if len(set(self.sizes)) == 1:
            found.append((len(self.sizes), self.sizes[0]))
        return found

    def _wanted(self) -> str:
        if self.joint:
            return f"combinations of actions need {self.sizes}"
        if len(self.sizes) == 1:
            return f"the actions need {self._shapes[0]}"
        shapes = ", ".join(map(str, self._shapes))
        return f"the actions need {shapes}, or a tuple with an array of each part's choices, {list(self.sizes)}"


def _path(keys: tuple[Any, ...]) -> str:
    return "/".join(map(str, keys))


def _leaves_in(said: Any, above: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield what dicts, tuples and lists hold, and the keys that lead there."""
    if isinstance(said, Mapping):
        held = cast("Mapping[Any, Any]", said).items()
    elif isinstance(said, (tuple, list)):
        held = enumerate(cast("Sequence[Any]", said))
    else:
        yield above, said
        return
    for key, one in held:
        yield from _leaves_in(one, (*above, key))


def _zeros(said: Any) -> Any:
    """Return a sample of a space of masks with zeros for its numbers."""
    if isinstance(said, Mapping):
        return {key: _zeros(one) for key, one in cast("Mapping[Any, Any]", said).items()}
    if isinstance(said, tuple):
        return tuple(map(_zeros, cast("tuple[Any, ...]", said)))
    return np.zeros_like(said)


def _of_bools(array: NDArray[Any], name: str) -> NDArray[np.bool_]:
    found = array.astype(np.bool_)
    if array.dtype.kind not in "biuf" or not (found == array).all():
        raise Misfit(f"{name} {STRANGE}")
    return found


def _shape(said: Any) -> tuple[int, ...]:
    try:
        return np.shape(said)
    except ValueError:  # an array of each part
        return ()


def mask_format(
    env_id: str, source: MaskSource, action_space: Any, *, joint: bool = False
) -> MaskFormat:
    """Return the format of an environment's masks; refuse those of actions that cannot be masked.

    Args:
        env_id: of the environment.
        source: what holds its masks.
        action_space: of its actions.
        joint: masks are of combinations.
    """
    action = action_format(env_id, action_space).spec
    key = LEGAL_MASK if source == "info" and env_id.startswith("envpool:") else MASK
    if action.kind == "joint" and joint:
        raise ConfigError(
            f"--env.mask-form joint: {env_id} takes a Dict or Tuple of actions, whose masks are of each part; leave it out"
        )
    if action.kind == "joint" and action.choices:
        parts = {
            keys: MaskFormat(source, spec.sizes)
            for (keys, _), spec in zip(parts_in(env_id, action_space), action.each, strict=True)
            if spec.choices
        }
        return MaskFormat(source, action.choices, parts=parts, key=key)
    if action.kind == "bernoulli":
        raise ConfigError(
            f"--env.mask {source}: {env_id} has MultiBinary actions, of whose masks there are several readings; make it "
            f"MultiDiscrete([2] * {action.sizes[0]}), or use --env.mask off"
        )
    if not action.choices:
        raise ConfigError(
            f"--env.mask {source}: {env_id} has no actions of which some could be forbidden; use --env.mask off"
        )
    if joint and math.prod(action.sizes) > MOST_CHOICES:
        raise ConfigError(
            f"{env_id} masks {math.prod(action.sizes):,} combinations of actions; each is a logit, of which there may be "
            f"{MOST_CHOICES:,}"
        )
    return MaskFormat(source, action.sizes, joint, key=key)


def find_mask(
    env_id: str, obs_space: Any, action_space: Any, info: Mapping[str, Any], given: EnvConfig
) -> EnvConfig:
    """Return settings that say where an environment tells what it allows, and of what its masks tell.

    If it does so nowhere that is known, "auto" becomes "off", and other settings stay as they are.

    Args:
        env_id: of the environment.
        obs_space: of its observations.
        action_space: of its actions.
        info: of a reset.
        given: settings that leave some of that to be found.

    Raises:
        ConfigError: it says something that does not fit its actions.
    """
    none = replace(given, mask="off") if given.mask == "auto" else given
    source: MaskSource = "observation"
    held: Any = dict_of(obs_space)
    if MASK in held and given.mask != "info":
        said: Any = _zeros(held[MASK].sample())
    elif MASK in info and given.mask != "observation":
        source, said = "info", info[MASK]
    else:
        return none
    action = action_format(env_id, action_space).spec
    if not action.choices:
        return none
    joint = given.mask_form == "joint"
    if given.mask_form is None and len(action.sizes) > 1 and _shape(said) == action.sizes:
        if action.sizes == (2, 2):
            raise ConfigError(
                f"{env_id}: its {MASK} has shape {action.sizes}, which may tell choices of each part or combinations; say "
                "which: --env.mask-form parts, or joint"
            )
        joint = True
    place = "infos" if source == "info" else "observation_space"
    try:
        form = mask_format(env_id, source, action_space, joint=joint)
        form.refuse_strays(said)
        form.flat(said)
    except Misfit as error:
        raise ConfigError(
            f"{env_id}: in its {place}, {error}; if it is no mask of actions: --env.mask off"
        ) from None
    return replace(given, mask=source, mask_form="joint" if joint else "parts")


def unread_masks(env_id: str, env: Any, info: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about what looks like a mask of actions and is not read as one, `info` being of a reset."""
    actions, none = env.action_space, f"{flag_of('mask')} off says that there is none"
    spec = action_format(env_id, actions).spec
    unread = f"but masks of {type(actions).__name__} actions are not read, so"
    hint = f"return it as {MASK} in the infos of reset and step, or {none}"
    if not spec.choices:
        several = f"make them MultiDiscrete([2] * {spec.length}), or " * (spec.kind == "bernoulli")
        hint = f"{several}{none}"
    if any(callable(getattr(x, "action_masks", None)) for x in layers_of(env)):
        yield f"{env_id} has a method action_masks, which is not called, so no action is forbidden; {hint}"
    if MASK in info:
        yield f"{env_id} has {MASK} in its infos, {unread} no action is forbidden; {hint}"
    for keys, _ in arrays_in(env_id, space_of(env_id, env, "observation_space")):
        if MASK in keys[1:]:
            where = "/".join(map(str, keys))
            yield f"{env_id} observes {where}, which is not at the top, so no action is forbidden; {hint}"
        elif keys[:1] == (MASK,):
            yield f"{env_id} observes {MASK}, {unread} it is observed like any other array; {hint}"
