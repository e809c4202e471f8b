"""Runs grouped by the settings that differ between them, so that what is left in a group are seeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.config.suggestions import nearest, our_name
from gossamer.errors import ConfigError
from gossamer.system.reading import clipped, visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    Settings = Mapping[str, Any]
    """Values by dotted name, as `gossamer.config.tree.flatten` yields them."""

SAME_RUN = frozenset(
    {
        "seed",
        "env.task_seed",
        "env_id",
        "run_folder",
        "checkpoint_every_seconds",
        "keep_checkpoints",
        "checkpoint_replay",
        "patience_seconds",
        "stop_within_seconds",
        "tensorboard",
        "wandb",
    }
)
"""Settings that set no two runs of a group apart: seeds, and what is kept of a run. Environments are tasks of a group."""
SAME_RUN_SECTIONS = ("evaluation.", "cluster.")
"""Sections likewise: when and where; whether scores are comparable is for `protocols` to say."""
ABSENT = "-"
"""Shown for a setting that a run does not have, as one of another algorithm."""
KINDS = ("algorithm.name", "topology.name")
"""Settings that are told first wherever they differ."""
MAX_LABEL = 4
"""Settings that a label shows; with more, it tells how many there are."""


class Grouping(NamedTuple):
    """Which run is in which group."""

    members: tuple[tuple[int, ...], ...]
    """Indices of the runs of each group."""
    by: tuple[str, ...]
    """Settings that tell the groups apart, few of those that differ."""
    values: tuple[dict[str, str], ...]
    """What they are in each group, as shown."""
    labels: tuple[str, ...]
    """A name for each group, such as `algorithm=ppo optimizer.learning_rate=0.001`."""
    also: tuple[str, ...]
    """Settings that differ between runs of one environment and are not in `by`."""


def group_by_settings(
    runs: Sequence[Settings],
    by: Sequence[str] = (),
    *,
    chosen: Collection[str] = (),
) -> Grouping:
    """Group runs by the settings that differ between those of one environment.

    Suites of environments have defaults of their own, so what differs from environment to environment sets no group apart.

    Args:
        runs: settings of each.
        by: settings to group by, whatever else differs; a section, such as `algorithm`, stands for its name.
        chosen: settings that the user set in some run: they are the ones that groups are named by, where they can.

    Raises:
        ConfigError: no run has a setting of that name.
    """
    known = sorted({name for settings in runs for name in settings})
    differing = _differing(runs, known)
    if by:
        names = tuple(dict.fromkeys(_setting(word, known) for word in by))
    else:
        names = _telling(runs, differing, chosen)
    keys = [tuple(value_key(settings, name) for name in names) for settings in runs]
    order = sorted({*keys}, key=lambda key: [_sort(value) for value in key])
    members = tuple(tuple(i for i, key in enumerate(keys) if key == group) for group in order)
    values = tuple({name: shown(runs[found[0]], name) for name in names} for found in members)
    return Grouping(
        members,
        names,
        values,
        tuple(_label(held) for held in values),
        tuple(name for name in differing if name not in names),
    )


def sets_apart(name: str) -> bool:
    """Return whether runs that differ in a setting are no seeds of one thing."""
    return name not in SAME_RUN and not name.startswith(SAME_RUN_SECTIONS)


def shown(settings: Settings, name: str) -> str:
    """Return a setting's value as it is typed."""
    if name not in settings:
        return ABSENT
    value = settings[name]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    text = value if isinstance(value, str) else json.dumps(value).replace(", ", ",")
    return visible(clipped(text or '""', 60))


def _differing(runs: Sequence[Settings], known: Iterable[str]) -> list[str]:
    """Return the settings in which runs of one environment differ."""
    by_env: dict[str, list[Settings]] = {}
    for settings in runs:
        by_env.setdefault(str(settings.get("env_id")), []).append(settings)
    return [
        name
        for name in known
        if sets_apart(name)
        and any(len({value_key(x, name) for x in held}) > 1 for held in by_env.values())
    ]


def _telling(
    runs: Sequence[Settings], differing: Sequence[str], chosen: Collection[str]
) -> tuple[str, ...]:
    """Return few of the differing settings that tell apart, within every environment, all runs that differ at all."""
    envs = [str(settings.get("env_id")) for settings in runs]

    def parts(names: Sequence[str]) -> int:
        keys = (
            (env, *(value_key(x, name) for name in names))
            for env, x in zip(envs, runs, strict=True)
        )
        return len({*keys})

    # Kinds come first, as they bring their own settings along; then what somebody chose.
    # Of those, how many learners there are says more than what each has.
    order = sorted(
        differing, key=lambda x: (not x.endswith("name"), x not in chosen, x != "num_learners", x)
    )
    names = [x for x in KINDS if x in differing]
    whole = parts(differing)
    for name in order:
        if parts(names) == whole:
            break
        if parts([*names, name]) > parts(names):
            names.append(name)
    # One that was taken early may have become needless; but of kinds it is told which they are.
    for name in tuple(names):
        rest = [x for x in names if x != name]
        if parts(rest) == whole and name not in KINDS:
            names = rest
    return tuple(names)


def _setting(word: str, known: Collection[str]) -> str:
    """Return the setting that is meant."""
    name = word.strip().removeprefix("--").replace("-", "_")
    for found in (name, f"{name}.name"):
        if found in known:
            if found == "env_id":
                raise ConfigError(
                    "--by env_id: scores of different environments cannot be compared; each group is scored on all of its environments"
                )
            return found
    meant = nearest(our_name(name), known)
    hint = f"did you mean {meant}?" if meant else "gossamer train --help-all lists them"
    raise ConfigError(f"--by {clipped(word)}: no run has a setting of that name; {hint}")


def value_key(settings: Settings, name: str) -> str:
    """Return what tells values of a setting apart: not 1 and 1.0, nor one value for all learners and a list of it."""
    if name not in settings:
        return ""
    value = settings[name]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _sort(key: str) -> tuple[int, float, str]:
    try:
        found = json.loads(key) if key else None
    except ValueError:  # a number too long to read back
        return 2, 0.0, key
    if isinstance(found, int | float) and not isinstance(found, bool):
        return 0, float(found), key
    return 1, 0.0, key


def _label(values: Mapping[str, str]) -> str:
    told = [
        f"{visible(clipped(name.removesuffix('.name')))}={value}" for name, value in values.items()
    ]
    if len(told) > MAX_LABEL:
        told = [*told[:MAX_LABEL], f"and {len(told) - MAX_LABEL} more"]
    return " ".join(told) or "all runs"
