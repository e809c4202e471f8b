"""Help of `gossamer train`, and the groups of settings that docs/settings.md lists too.

What a setting means is written once, in the docstring under its field, and read from the source.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from gossamer.config import own_parts
from gossamer.config.arguments import Options
from gossamer.config.names import ANY, flag
from gossamer.config.shown_defaults import (
    BY_SUITE,
    BY_TOPOLOGY,
    default_algorithm,
    defaults_by_suite,
    defaults_of,
    in_common,
)
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import choices, fields_of, flatten, member_name, members, to_tree
from gossamer.config.values import bare, is_list, is_mapping, is_switch, kinds_of
from gossamer.system.commands import beside
from gossamer.topology.base import Topology

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

INDENT = 38
"""Characters of what may be typed, beside which stands what it means."""


class Row(NamedTuple):
    """One setting."""

    name: str
    annotation: Any
    default: Any
    meaning: str

    @property
    def values(self) -> str:
        """Return the words that stand for its value in help; none for a switch."""
        return "" if is_switch(self.annotation) else values_of(self.annotation)

    @property
    def default_shown(self) -> str:
        """Return the default as help has it."""
        return _in_help(self.default)


class Group(NamedTuple):
    """Settings that are read together."""

    title: str
    intro: str
    rows: tuple[Row, ...]


@functools.cache
def _docs_of_module(module: str) -> dict[str, dict[str, str]]:
    """Return by class the docstrings under its fields, and its own under ""."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:  # a notebook
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(str(file)).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found[node.name] = {"": ast.get_docstring(node) or ""}
        for line, after in zip(node.body, node.body[1:], strict=False):
            told = after.value if isinstance(after, ast.Expr) else None
            if isinstance(line, ast.AnnAssign) and isinstance(told, ast.Constant):
                docs[ast.unparse(line.target)] = " ".join(str(told.value).split())
    return found


def field_docs(section: type) -> dict[str, str]:
    """Return the docstrings under a section's fields, inherited ones included."""
    docs: dict[str, str] = {}
    for owner in reversed(section.__mro__[:-1]):
        docs |= _docs_of_module(owner.__module__).get(owner.__name__, {})
    return {name: docs.get(name, "") for name in fields_of(section)}


def _intro(section: type) -> str:
    doc = _docs_of_module(section.__module__).get(section.__name__, {}).get("", "")
    return " ".join(doc.split("\n\n")[0].split())


def _rows(section: type, path: str = "") -> tuple[Row, ...]:
    docs = field_docs(section)
    rows: list[Row] = []
    for name, field in fields_of(section).items():
        kinds = members(field.annotation)
        if is_mapping(field.annotation):  # whose sections are told by what chooses them
            chosen = fields_of(kinds[0])["name"]
            rows.append(Row(f"{path}{name}.{ANY}", *chosen, docs[name]))
        elif not kinds:
            rows.append(Row(path + name, *field, docs[name]))
    return tuple(rows)


def setting_groups() -> tuple[Group, ...]:
    """Return every setting, grouped: the run's own, then each section, then each of its kinds."""
    groups = [Group("run", _intro(TrainConfig), _rows(TrainConfig))]
    for name, field in fields_of(TrainConfig).items():
        groups += _groups_of(name, members(field.annotation), listed=is_list(field.annotation))
    return tuple(groups)


def _groups_of(name: str, kinds: tuple[type, ...], *, listed: bool) -> Iterator[Group]:
    """Yield the settings that all kinds of a section have, then those of each; of a list's the first has its own."""
    names = [member_name(kind) for kind in kinds]
    if names in ([None], []):
        yield from (Group(name, _intro(kind), _rows(kind, f"{name}.")) for kind in kinds)
        return
    paths = [f"{name}.{min(i, 1)}." if listed else f"{name}." for i in range(len(kinds))]
    each = [_rows(kind, path) for kind, path in zip(kinds, paths, strict=True)]
    alike = each[1:] if listed else each
    shared = tuple(row for row in alike[0] if all(row in rows for rows in alike))
    intro = f"Choose one of {', '.join(f'{name}:{kind}' for kind in names)}"
    if listed:
        intro = (
            f"{field_docs(TrainConfig)[name]} {flag(name)} JSON gives the whole list; the kinds are {', '.join(map(str, names))}. "
            f"{flag(name)}.1.name {member_name(own_parts.default_of(kinds))} adds entry 1 or changes its kind; "
            f"{flag(name)}.1.SETTING changes one of its settings. In the flags below, 1 stands for the entry's number. "
            f"All kinds except {names[0]} have these settings:"
        )
    elif shared:
        intro += "; all of them have these settings:"
    yield Group(name, intro, shared)
    for kind, rows in zip(kinds, each, strict=True):
        own = tuple(row for row in rows if row not in shared)
        yield Group(f"{name}:{member_name(kind)}", _intro(kind), own)


def option_rows() -> tuple[Row, ...]:
    """Return the options of `gossamer train` that are no settings."""
    return _rows(Options)


def kinds(section: str) -> dict[str, str]:
    """Return the names a section can be chosen by, with what each is in one line."""
    found = choices(fields_of(TrainConfig)[section].annotation)
    return {name: _intro(kind) for name, kind in found.items()}


COMMON: Mapping[str, tuple[str, ...]] = {
    "how long": ("total_env_steps", "stop_after_seconds", "stop_at_return", "seed"),
    "acting": ("num_envs", "unroll_length", "lag", "max_episode_steps", "env.workers"),
    "learning": (
        *(f"optimizer.{x}" for x in ("learning_rate", "schedule", "max_grad_norm")),
        *(f"algorithm.{x}" for x in ("discount", "trace_lambda", "entropy_cost", "value_cost")),
        *(f"algorithm.{x}" for x in ("num_minibatches", "passes", "clip_ratio", "reward_clip")),
        *(f"algorithm.{x}" for x in ("normalize_advantage", "value_norm")),
    ),
    "network": tuple(f"policy.{x}" for x in ("torso", "hidden_sizes", "core", "normalize_obs")),
    "replay": ("replay_ratio", "replays.1.capacity_steps", "replays.1.shared", "checkpoint_replay"),
    "several learners": (
        *("num_learners", "topology.graph", "topology.adjacency", "topology.max_staleness"),
    ),
    "records": (
        *("run_folder", "init_from", "checkpoint_every_seconds", "keep_checkpoints"),
        *("evaluation.every_seconds", "evaluation.episodes", "tensorboard", "wandb"),
    ),
    "machine": ("placement", "device", "precision"),
}
"""Settings that most people use, which the short help tells."""


def shown_groups(
    *, algorithm: str = "", topology: str = "", config: TrainConfig | None = None
) -> tuple[Group, ...]:
    """Return every setting, grouped, with the defaults that a run would use.

    Without a config a default that depends on the environment is `BY_SUITE`.

    Args:
        algorithm: whose defaults the settings that do not belong to an algorithm have; empty: the one that suites choose.
        topology: the one that a run would have; empty: any.
        config: of a run, in place of both. Algorithms that it does not use have the defaults of its environment.
    """
    run = dict(flatten(to_tree(config))) if config else {}
    algorithm = run.get("algorithm.name", algorithm) or default_algorithm()
    used = {"topology": {run.get("topology.name", topology)}}
    used["replays"] = {replay.name for replay in config.replays} if config else set()
    known = {algorithm: run} if config else {}

    def defaults(group: Group) -> Mapping[str, Any]:
        section, _, kind = group.title.partition(":")
        if section in used:
            return run if kind in used[section] or not kind else {}
        name = kind or algorithm
        if name not in known:
            known[name] = (
                defaults_of(config.env_id, name) if config else in_common(defaults_by_suite(name))
            )
        return known[name]

    return tuple(_with_defaults(group, defaults(group)) for group in setting_groups())


def _with_defaults(group: Group, values: Mapping[str, Any]) -> Group:
    rows = (row._replace(default=values.get(row.name, row.default)) for row in group.rows)
    return group._replace(rows=tuple(rows))


def _common_rows(groups: Iterable[Group], algorithm: str, topology: str) -> dict[str, Row]:
    """Return by name the rows of settings that a run with an algorithm and a topology has; those of any topology for none."""
    rows: dict[str, Row] = {}
    by_topology: dict[str, dict[str, Row]] = {}
    for group in groups:
        section, _, kind = group.title.partition(":")
        if section == "topology" and kind and not topology:
            for row in group.rows:
                by_topology.setdefault(row.name, {})[kind] = row
        elif section not in ("algorithm", "topology") or kind in ("", algorithm, topology):
            for row in group.rows:
                rows.setdefault(row.name, row)
    for name, of_kinds in by_topology.items():
        shown = {kind: row.default_shown for kind, row in of_kinds.items()}
        row = next(iter(of_kinds.values()))
        if len(set(shown.values())) > 1:
            each = ", ".join(f"{kind} {default}" for kind, default in shown.items())
            row = row._replace(default=f"{BY_TOPOLOGY}: {each}")
        rows[name] = row
    return rows


def train_help(
    *,
    every: bool = False,
    chosen: Iterable[str] = (),
    config: TrainConfig | None = None,
    width: int = 100,
    color: bool = False,
) -> str:
    """Return the help of `gossamer train`.

    Args:
        every: all settings, by section; otherwise those that most people use.
        chosen: kinds of parts whose own settings are told first, such as "algorithm:ppo".
        config: whose values stand in brackets where it has them; None: those that every suite of environments has.
        width: of a line.
        color: titles are bold.
    """
    wanted = {group.title for group in setting_groups()} & set(chosen)
    parts = dict(title.split(":", 1) for title in wanted)
    topology = config.topology.name if config else parts.get("topology", "")
    algorithm = config.algorithm.name if config else parts.get("algorithm", default_algorithm())
    known = shown_groups(algorithm=algorithm, topology=topology, config=config)
    first = [group for group in known if group.title in wanted]
    told = {row.name for group in first for row in group.rows}
    others = [group for group in known if group not in first]
    last = ""
    if not every:
        # Learners that do not talk have nothing to set, but who reads this may want some that do.
        talks = topology if topology != Topology.default_kind else ""
        rows = _common_rows(known, algorithm, talks)
        common = (
            (t, [rows[x] for x in names if x in rows and x not in told])
            for t, names in COMMON.items()
        )
        others = [Group(t, "", tuple(map(_shortened, some))) for t, some in common if some]
        count = len({row.name for group in known for row in group.rows})
        last = f"All {count} settings: gossamer train --help-all; of one part: gossamer train algorithm:ppo --help"
    lines = [line for group in first for line in (*_told(group, width, color), "")]
    options = (line for row in option_rows() for line in _help_of(row, row.meaning, width))
    lines += [
        _USAGE,
        *options,
        *_choices_told(width),
        _SETTINGS_USAGE,
        "",
        *_brackets(config, algorithm, width),
    ]
    for group in others:
        lines += ["", *_told(group, width, color)]
    return "\n".join([*lines, *(["", last] if last else [])])


def _choices_told(width: int) -> Iterator[str]:
    """Yield how an algorithm and a topology are chosen, with their names."""
    for section, what, default in (
        ("algorithm", "the algorithm that trains", default_algorithm()),
        ("topology", "the way in which several learners mix", Topology.default_kind),
    ):
        names = ", ".join(kinds(section))
        text = f"{what}: {names}, or a class of your own as module:Class [{default}]"
        yield from beside(f"  {section}:NAME", text, INDENT, width)


def _brackets(config: TrainConfig | None, algorithm: str, width: int) -> list[str]:
    """Return the lines that say what stands in brackets."""
    text = (
        f"In brackets: the value that a run with algorithm:{algorithm} has; {BY_SUITE}: it depends on the suite of "
        "environments, and gossamer train ENV --help shows it."
    )
    if config:
        text = (
            f"In brackets: the value that a run in {config.env_id} has; of algorithms that are not chosen, the default of "
            "its suite."
        )
    return textwrap.wrap(text, width)


def _told(group: Group, width: int, color: bool) -> Iterator[str]:
    yield f"\033[1m{group.title}:\033[0m" if color else f"{group.title}:"
    yield from textwrap.wrap(group.intro, width, initial_indent="  ", subsequent_indent="  ")
    for row in group.rows:
        if row.name != "env_id":  # told in the usage, as ENV
            yield from _help_of(row, f"{row.meaning} [{row.default_shown}]", width)


def _shortened(row: Row) -> Row:
    """Return a setting with the first sentence of what it means, and those that say what 0 or a word stands for."""
    first, *others = re.split(r"(?<=\.)(?<!\.\.)(?<! al\.) ", row.meaning)
    kept = [x for x in others if re.match(r"(0|auto|none|empty|default)\b[^.]*:", x, re.IGNORECASE)]
    return row._replace(meaning=" ".join([first, *kept]))


def _help_of(row: Row, text: str, width: int) -> Iterator[str]:
    return beside(f"  {flag(row.name)} {row.values}".rstrip(), text, INDENT, width)


def values_of(annotation: Any) -> str:
    """Return what stands for a setting's value in its help."""
    words: list[str] = []
    for kind in kinds_of(annotation):
        base, meta = bare(kind)
        if typing.get_origin(base) is Literal:
            words += [str(name) for name in typing.get_args(base)]
        elif typing.get_origin(base) is tuple:
            words.append(f"{values_of(typing.get_args(base)[0])} ...")
        elif base is not type(None):
            plain = {bool: "on or off", int: "N", float: "X", str: "TEXT"}
            words.append(meta.title or ("module:NAME" if meta.pattern else plain[base]))
    return "|".join(words)


def _in_help(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(_in_help(item) for item in cast("list[Any]", value))
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value) or "empty"


_USAGE = """\
usage: gossamer train ENV [--config NAME ...] [--resume RUN] [settings]

Train a policy on ENV. Settings go in any order; hyphens and underscores are the same.
Precedence: command line > --config > the resumed run > tuned here > the suite's defaults > defaults.

examples:
  gossamer train PongNoFrameskip-v4 --config pong
  gossamer train CartPole-v1 algorithm:ppo --algorithm.passes 3 --num-envs 32
  gossamer train --resume last --total-env-steps 2e7

general:
  ENV                                 PongNoFrameskip-v4, ALE/Pong-v5, CartPole-v1, HalfCheetah-v5,
                                      envpool:Ant-v5, module:function; leave it out with --resume or
                                      a preset that names one"""
_SETTINGS_USAGE = """\
  --SECTION.SETTING VALUE             change a setting, see below; --no-SETTING turns a switch off
  --replay-ratio X                    replay X columns per new one; --replays.1.name elite sets the kind of
                                      replay (module:Class is one of your own), --replays.1.capacity-steps
                                      20000 its size
  --replays JSON                      all replays as a list, for example
        '[{"name": "queue", "fraction": 0.5}, {"name": "elite", "fraction": 0.5}]'
  -h, --help, --help-all              print this help for ENV or in general; with all settings"""
