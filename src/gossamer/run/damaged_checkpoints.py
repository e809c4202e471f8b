"""Refuse a checkpoint whose state is not such as a run writes: its hashes may fit and its content be anything."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from gossamer.build.auto import PRECISIONS, Plan
from gossamer.config import most_of
from gossamer.errors import ConfigError
from gossamer.record.checkpoint import STATE
from gossamer.run.recorder import Window
from gossamer.run.snapshot import EXACT

if TYPE_CHECKING:
    from gossamer.record.checkpoint import Checkpoint

MAX_LEARNERS = 65536
MAX_TEXT = 1000
"""Characters that a machine is described in."""
_MAX_COUNT = 1 << 62


def refuse_damaged(checkpoint: Checkpoint, num_learners: int) -> None:
    """Refuse what a run with so many learners could not go on from.

    Raises:
        ConfigError: one line that names what is damaged.
    """
    refuse_damaged_policies(checkpoint)
    state = checkpoint.state
    if state.get("num_learners", num_learners) != num_learners:
        raise _damaged(checkpoint, "num_learners")
    try:
        _check_held(state["held"], num_learners)
        _check_plan(state["plan"])
        _check_environments(checkpoint, num_learners)
        _demand(isinstance(state[EXACT], bool), EXACT)
        _check_record(state["recorder"], num_learners)
        _demand(_is_finite(state.get("evaluation_budget") or 0), "evaluation_budget")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _damaged(checkpoint, str(error).strip("'")) from None


def refuse_damaged_policies(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that does not tell whose policies it holds."""
    state = checkpoint.state
    size = state.get("num_learners", 1)
    whose: list[Any] = [state.get("policy_of"), state.get("best_learner"), state.get("learner")]
    try:
        _demand(type(size) is int and 1 <= size <= MAX_LEARNERS, "num_learners")
        for rank, score in state.get("scores") or []:
            whose.append(rank)
            _demand(type(rank) is int and _is_number(score), "scores")
        for rank in whose:
            known = rank is None or rank == "average" or (type(rank) is int and rank >= 0)
            _demand(known and not (type(rank) is int and rank >= max(size, 1) > 1), "policy_of")
    except (TypeError, ValueError) as error:
        raise _damaged(checkpoint, str(error)) from None


def refuse_damaged_score(checkpoint: Checkpoint) -> None:
    """Refuse the best policy, or the candidate for it, if it does not tell where it comes from."""
    refuse_damaged_policies(checkpoint)
    state = checkpoint.state
    learner = state.get("learner")
    if type(state.get("version")) is not int or not (type(learner) is int or learner == "average"):
        raise _damaged(checkpoint, "version or learner")


def _check_held(held: dict[str, Any], num_learners: int) -> None:
    for name, value in held.items():
        rank, slash, _ = name.partition("/")
        _demand(not slash or rank.isdecimal(), name)
        if not name.endswith(".rng"):
            _demand(_is_number(value) and abs(value) <= _MAX_COUNT, name)
    for rank in range(num_learners):
        for name in ("update", "version", "env_steps"):
            name = f"{rank}/learner.{name}" if rank else f"learner.{name}"
            _demand(type(held[name]) is int and held[name] >= 0, name)


def _check_plan(plan: dict[str, Any]) -> None:
    allowed: dict[str, tuple[Any, ...]] = {
        "device": ("cpu", "cuda"),
        "precision": tuple(PRECISIONS),
        "lag": (None, 0, 1),
    }
    needed = ("device", "precision", "learner_threads", "actor_threads")
    _demand(all(name in plan for name in needed), "plan")
    _demand(type(plan.get("lag")) in (int, type(None)), "plan.lag")
    zero, texts = ("max_episode_steps", "cores", "env_workers"), ("hardware", "torch")
    for field in dataclasses.fields(Plan):
        if field.name in allowed:
            _demand(
                plan.get(field.name, allowed[field.name][0]) in allowed[field.name],
                f"plan.{field.name}",
            )
        elif field.name in texts:
            text = plan.get(field.name, "")
            short = isinstance(text, str) and len(text) <= MAX_TEXT
            _demand(short and text.isprintable(), f"plan.{field.name}")
        elif field.name in plan:
            value = plan[field.name]
            least = 0 if field.name in zero else 1
            _demand(
                type(value) is int and least <= value <= most_of(field.name), f"plan.{field.name}"
            )


def _check_environments(checkpoint: Checkpoint, num_learners: int) -> None:
    """There are as many episodes under way as the plan has environments, before any of those is made."""
    plan = checkpoint.state["plan"]
    for rank in range(num_learners):
        prefix = f"{rank}/actor." if rank else "actor."
        names = [
            f"{prefix}{group}.episodes"
            for group in range(min(plan["env_groups"], plan["num_envs"]))
        ]
        counted = sum(len(checkpoint.tensors[name]) for name in names)
        _demand(counted == plan["num_envs"], "plan.num_envs")


def _check_record(record: dict[str, Any], num_learners: int) -> None:
    window = Window.of(record, num_learners)
    _demand(all(map(_is_number, window.metrics().values())), "window")
    _demand(type(record["episode_rows"]) is int and record["episode_rows"] >= 0, "episode_rows")
    _demand(_is_finite(record["seconds"]) and record["seconds"] >= 0, "seconds")
    steps, seconds = record["paced"]
    _demand(_is_finite(steps) and _is_finite(seconds), "paced")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and (isinstance(value, int) or not math.isnan(value))


def _is_finite(value: Any) -> bool:
    return _is_number(value) and abs(value) <= _MAX_COUNT


def _demand(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _damaged(checkpoint: Checkpoint, what: str) -> ConfigError:
    return ConfigError(f"{checkpoint.path / STATE} is damaged: {what} has an impossible value")
