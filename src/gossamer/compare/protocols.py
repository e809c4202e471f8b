"""What a run's scores were made under, and whether scores of several runs may be compared."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gossamer.envs.atari import MAX_EPISODE_STEPS, atari_protocol
from gossamer.envs.settings import EnvConfig, suite_of
from gossamer.errors import ConfigError
from gossamer.system.reading import clipped, in_a_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gossamer.compare.reading import ComparedRun

_NAMES = {
    "sticky": "sticky actions",
    "frame_skip": "frame skip",
    "full_action_space": "full action set",
    "noop_max": "no-ops below",
    "fire_reset": "FIRE at the start",
    "stuck_steps": "cut after steps without reward",
    "max_episode_steps": "cut after steps",
    "protocol": "environment",
    "greedy": "greedy evaluation",
}
"""Facts that make up a protocol, in words. What a policy sees of a game, and whether a lost life ends an episode of
training, are not among them: they are settings to be compared."""
_MASKED = re.compile(r"; actions masked as its \w+ says")
MAX_NAMED = 2
"""Runs of each protocol that a refusal names."""


def protocol_facts(settings: Mapping[str, Any], described: str) -> dict[str, str]:
    """Return what decides what a score means, in words, by name.

    Args:
        settings: the content of config.json.
        described: how the run itself says that its environment was set up; empty: it does not.

    Raises:
        ConfigError: the settings of the environment are none.
    """
    env_id, section = str(settings.get("env_id", "")), settings.get("env")
    facts: dict[str, Any] = {}
    limit = settings.get("max_episode_steps") or 0
    if suite_of(env_id) == "atari":
        known = asdict(atari_protocol(env_id, _env_config(section)))
        facts = {name: known[name] for name in _NAMES if name in known}
        facts["max_episode_steps"] = limit or MAX_EPISODE_STEPS
    else:
        facts["max_episode_steps"] = limit
        held = cast("dict[str, Any]", section) if isinstance(section, dict) else {}
        facts["stuck_steps"] = held.get("stuck_steps") or 0
        if described:
            # What a policy is told differs as other settings do.
            facts["protocol"] = _MASKED.sub("", described.removeprefix(f"{env_id}: "))
            del facts["max_episode_steps"]  # which is told there, whoever set it
    evaluation = settings.get("evaluation")
    if isinstance(evaluation, dict):
        facts["greedy"] = cast("dict[str, Any]", evaluation).get("greedy", False)
    return {name: _shown(value) for name, value in facts.items()}


def refuse_mixed(runs: Sequence[ComparedRun], *, evaluated: bool) -> None:
    """Raise ConfigError unless all runs were scored under one protocol; it says what differs.

    Args:
        runs: of one or several environments.
        evaluated: whether their scores are of evaluations, whose rule then counts.
    """
    atari = [run for run in runs if suite_of(run.env_id) == "atari"]
    told = [*_differing(atari, set(_NAMES) - {"greedy", "protocol"})]
    for env_id in sorted({run.env_id for run in runs if run not in atari}):
        told += _differing([x for x in runs if x.env_id == env_id], set(_NAMES) - {"greedy"})
    if evaluated:
        told += _differing(runs, {"greedy"})
    if told:
        raise ConfigError(
            f"these runs were scored under different protocols, which cannot be compared: {'; '.join(told)}; name runs of one"
        )


def _differing(runs: Sequence[ComparedRun], names: Iterable[str]) -> list[str]:
    """Return what differs between runs among the facts that all of them tell."""
    found: list[str] = []
    for name in (x for x in _NAMES if x in names):
        whose: dict[str, list[str]] = {}
        for run in runs:
            if name in run.protocol:
                whose.setdefault(run.protocol[name], []).append(run.name)
        if len(whose) > 1:
            values = (
                f"{value} ({in_a_line(named, MAX_NAMED)})" for value, named in sorted(whose.items())
            )
            found.append(f"{_NAMES[name]} {', '.join(values)}")
    return found


def _env_config(section: Any) -> EnvConfig:
    try:
        return msgspec.convert(section or {}, EnvConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: env: {error}") from None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:g}"
    return visible(clipped(str(int(value) if isinstance(value, float) else value)))
