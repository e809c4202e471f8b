"""Settings told to people: the help of `train`, `--show-config` and the table of docs/settings.md.

What a setting means is written once, in the docstring under its field, and read from the source.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
import textwrap
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from gossamer.config import own_parts
from gossamer.config.names import flag
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import fields_of, flatten, listed, member_name, members, to_tree
from gossamer.config.values import is_switch, is_union, spell
from gossamer.types import Imported

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True)
class Row:
    """One setting."""

    name: str
    annotation: Any
    default: Any
    meaning: str


class Group(NamedTuple):
    """Settings that are read together."""

    title: str
    intro: str
    rows: tuple[Row, ...]


@functools.cache
def _docs_of_module(module: str) -> dict[str, dict[str, str]]:
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:  # a notebook
        return {}
    path = Path(str(file))
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found[node.name] = {"": ast.get_docstring(node) or ""}
        for line, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[line.target.id] = " ".join(after.value.value.split())
    return found


def field_docs(section: type) -> dict[str, str]:
    """Return the docstrings under a section's fields, inherited ones included."""
    docs: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if owner.__module__ != "builtins":
            docs |= _docs_of_module(owner.__module__).get(owner.__name__, {})
    return {name: docs.get(name, "") for name in fields_of(section)}


def _intro(section: type) -> str:
    doc = _docs_of_module(section.__module__).get(section.__name__, {}).get("", "")
    return " ".join(doc.split("\n\n")[0].split())


def _rows(section: type, path: str) -> tuple[Row, ...]:
    docs = field_docs(section)
    return tuple(
        Row(path + name, field.annotation, field.default, docs[name])
        for name, field in fields_of(section).items()
        if not members(field.annotation) and not listed(field.annotation)
    )


def setting_groups() -> tuple[Group, ...]:
    """Return every setting, grouped: the run's own, then each section, then each of its kinds."""
    groups = [Group("run", _intro(TrainConfig), _rows(TrainConfig, ""))]
    for name, field in fields_of(TrainConfig).items():
        if entry := listed(field.annotation):
            groups += _list_groups(name, entry)
            continue
        sections, path = members(field.annotation), f"{name}."
        each = {section: _rows(section, path) for section in sections}
        if len(sections) == 1 and member_name(sections[0]) is None:
            groups += [Group(name, _intro(s), rows) for s, rows in each.items()]
            continue
        # What all kinds have in common is told once.
        shared = tuple(
            r for r in next(iter(each.values()), ()) if all(r in e for e in each.values())
        )
        if len(sections) > 1:
            kinds = ", ".join(f"{name}:{member_name(section)}" for section in sections)
            groups.append(
                Group(name, f"Choose one of {kinds}{'; all have:' * bool(shared)}", shared)
            )
        for section, rows in each.items():
            own = rows if len(sections) == 1 else tuple(r for r in rows if r not in shared)
            groups.append(Group(f"{name}:{member_name(section)}", _intro(section), own))
    return tuple(groups)


def _list_groups(name: str, sections: tuple[type, ...]) -> Iterator[Group]:
    """Yield the settings of a list's entries: of each kind those that the kind it extends has not."""
    first, *others = (str(member_name(section)) for section in sections)
    default = member_name(own_parts.default_of(sections))
    yield Group(
        name,
        f"{field_docs(TrainConfig)[name]} {flag(name)} JSON gives the whole list, of {first} and {', '.join(others)}; "
        f"{flag(name)}.1.name {default} adds entry 1 or changes its kind, and {flag(name)}.1.SETTING changes one "
        "setting of it. In the flags below, 1 stands for the entry's number.",
        (),
    )
    for i, section in enumerate(sections):
        rows = _rows(section, f"{name}.{min(i, 1)}.")
        earlier = ((s, set(_rows(s, f"{name}.{min(i, 1)}."))) for s in reversed(sections[:i]))
        base = next((s for s, told in earlier if told and told <= set(rows)), None)
        had = _rows(base, f"{name}.{min(i, 1)}.") if base else ()
        own, intro = tuple(x for x in rows if x not in had), _intro(section)
        if base:
            intro += f" All that {member_name(base)} has{', and:' if own else '.'}"
        yield Group(f"{name}:{member_name(section)}", intro, own)


def kinds(section: str) -> dict[str, str]:
    """Return the names a section can be chosen by, with what each is in one line."""
    annotation = fields_of(TrainConfig)[section].annotation
    found = members(annotation) or listed(annotation)
    return {str(member_name(kind)): _intro(kind) for kind in found}


def settings_table() -> str:
    """Return every setting with default and meaning as Markdown tables; the body of docs/settings.md."""
    lines: list[str] = []
    for group in setting_groups():
        lines += [f"## {group.title}", "", group.intro, ""]
        if not group.rows:
            lines += ["No settings of its own.", ""] if ":" in group.title else []
            continue
        lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        for row in group.rows:
            cells = (
                "`ENV`" if row.name == "env_id" else f"`{flag(row.name)}`",
                f"`{_default(row.default)}`",
                _kind(row.annotation).replace("|", " "),
                row.meaning.replace("|", "\\|").replace("<", "&lt;"),
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def show_config(config: TrainConfig, layers: Mapping[str, str]) -> str:
    """Return every setting, its value and which layer set it, as TOML that --config can read."""
    rows = [(f"{name} = {spell(value)}", layers[name]) for name, value in flatten(to_tree(config))]
    width = max(len(left) for left, _ in rows if len(left) <= 60)
    return "\n".join(f"{left:<{width}}  # {label}" for left, label in rows)


COMMON: Mapping[str, tuple[str, ...]] = {
    "how long": ("total_env_steps", "stop_after_seconds", "stop_at_return", "seed"),
    "acting": ("num_envs", "unroll_length", "lag", "max_episode_steps", "env.workers"),
    "learning": (
        "optimizer.learning_rate", "optimizer.schedule", "optimizer.max_grad_norm",
        "algorithm.discount", "algorithm.trace_lambda", "algorithm.entropy_cost", "algorithm.value_cost",
        "algorithm.num_minibatches", "algorithm.passes", "algorithm.clip_ratio", "algorithm.reward_clip",
        "algorithm.normalize_advantage", "algorithm.value_norm",
    ),
    "network": ("policy.torso", "policy.hidden_sizes", "policy.core", "policy.normalize_obs"),
    "replay": ("replay_ratio", "replays.1.capacity_steps", "replays.1.shared", "checkpoint_replay"),
    "several learners": (
        "num_learners", "topology.graph", "topology.adjacency", "topology.max_staleness",
    ),
    "records": (
        "run_folder", "init_from", "checkpoint_every_seconds", "keep_checkpoints", "evaluation.every_seconds",
        "evaluation.episodes", "tensorboard", "wandb",
    ),
    "machine": ("placement", "device", "precision"),
}  # fmt: skip
"""Settings that most people use, which the short help tells."""


def train_help(
    *, every: bool = False, chosen: Iterable[str] = (), width: int = 100, color: bool = False
) -> str:
    """Return the help of `gossamer train`.

    Args:
        every: all settings, by section; otherwise those that most people use.
        chosen: kinds of parts whose own settings are told too, such as "algorithm:ppo".
        width: of a line.
        color: titles are bold.
    """
    groups, rest = setting_groups(), ""
    if not every:
        known = {row.name: row for group in reversed(groups) for row in group.rows}
        common = [
            Group(title, "", tuple(known[x] for x in names)) for title, names in COMMON.items()
        ]
        told = {row.name for group in common for row in group.rows}
        wanted = set(chosen)
        own = [group for group in groups if group.title in wanted]
        common += [g._replace(rows=tuple(r for r in g.rows if r.name not in told)) for g in own]
        told |= {row.name for group in common for row in group.rows}
        rest = f"All {len(known)} settings: gossamer train --help-all; of one part: gossamer train algorithm:ppo --help"
        groups = tuple(common)
    lines = [_TRAIN_USAGE.rstrip()]
    for group in groups:
        title = f"{group.title}:"
        lines += ["", f"\033[1m{title}\033[0m" if color else title]
        lines += textwrap.wrap(group.intro, width, initial_indent="  ", subsequent_indent="  ")
        for row in group.rows:
            if row.name != "env_id":  # told above, as ENV
                lines += _help_of(_shortened(row) if group.title in COMMON else row, width)
    return "\n".join([*lines, *(["", rest] if rest else [])])


def _shortened(row: Row) -> Row:
    """Return a setting with the first sentence of what it means."""
    first = re.split(r"(?<=[^l]\.) ", row.meaning, maxsplit=1)[0]  # "et al." ends none
    return dataclasses.replace(row, meaning=first)


def _help_of(row: Row, width: int) -> Iterator[str]:
    head = f"  {flag(row.name)}"
    if not is_switch(row.annotation):
        head += f" {_kind(row.annotation)}"
    text = f"{row.meaning} [{_default(row.default)}]"
    indent = 38
    body = textwrap.wrap(text, max(width - indent, 30))
    if len(head) < indent - 1:
        yield f"{head:<{indent}}{body[0]}"
        body = body[1:]
    else:
        yield head
    for line in body:
        yield " " * indent + line


def _kind(annotation: Any) -> str:
    if is_union(annotation):
        parts = [a for a in typing.get_args(annotation) if a is not type(None)]
        return "|".join(_kind(part) for part in parts)
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return "|".join(str(a) for a in typing.get_args(annotation))
    if origin is tuple:
        return _kind(typing.get_args(annotation)[0]) + " ..."
    return {bool: "on or off", int: "N", float: "X", str: "TEXT", Imported: "module:NAME"}[
        annotation
    ]


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(_default(item) for item in cast("tuple[Any, ...]", value))
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value) or "empty"


_TRAIN_USAGE = """\
usage: gossamer train ENV [--config NAME ...] [--resume RUN] [settings]

Train a policy on ENV. Settings go in any order; hyphens and underscores are the same.
Precedence: command line > --config > the resumed run > the suite's defaults > defaults.

examples:
  gossamer train PongNoFrameskip-v4 --config pong
  gossamer train CartPole-v1 algorithm:ppo --algorithm.passes 3 --num-envs 32
  gossamer train --resume last --total-env-steps 2e7

general:
  ENV                                 PongNoFrameskip-v4, ALE/Pong-v5, CartPole-v1, HalfCheetah-v5,
                                      envpool:Ant-v5, module:function; leave it out with --resume or
                                      a preset that names one
  --config NAME ...                   presets (see gossamer list) or .toml and .json files; later ones win
  --resume RUN                        continue a run: a path, part of its name, or last
  --trust                             with --resume: allow a run from another machine or user to import
                                      its environment and parts, such as module:function
  --show-config                       print every setting, its value and where it comes from; do not train
  algorithm:NAME, topology:NAME       choose an algorithm or a topology; module:Class is one of your own
  --SECTION.SETTING VALUE             change a setting, see below; --no-SETTING turns a switch off
  --replay-ratio X                    replay X columns per new one; --replays.1.name elite sets the kind of
                                      replay, --replays.1.capacity-steps 20000 its size
  --replays JSON                      all replays as a list, for example
        '[{"name": "queue", "fraction": 0.5}, {"name": "elite", "fraction": 0.5}]'
  -h, --help, --help-all              print this help; with all settings
"""
