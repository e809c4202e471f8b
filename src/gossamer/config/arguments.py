"""The words after `gossamer train`, read into the tree of settings they spell."""

from __future__ import annotations

import itertools
import re
import typing
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gossamer.config import own_parts
from gossamer.config.files import is_config_name
from gossamer.config.names import flag, near, place
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import (
    Layer,
    fields_of,
    find_annotation,
    listed,
    member_name,
    members,
    unknown_setting,
)
from gossamer.config.values import SWITCH_WORDS, is_endless, is_switch, read_value
from gossamer.errors import ConfigError
from gossamer.system.reading import parse_json

if typing.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class Arguments:
    """What was typed, before files and defaults are looked at."""

    configs: list[str] = field(default_factory=list[str])
    resume: str | None = None
    trust: bool = False
    show_config: bool = False
    wants_help: bool = False
    wants_all: bool = False
    reads_more: bool = False
    """Settings come from files or a run too."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def chosen(self, section: str) -> str:
        """Return which kind of a part was typed; empty: none."""
        asked = self.settings.get(section, "")
        return str(asked.get("name", "")) if isinstance(asked, dict) else str(asked)


def parse_train(words: Sequence[str]) -> Arguments:
    """Read words in any order: ENV, algorithm:NAME, --config, --resume, and --any.setting VALUE.

    Raises:
        ConfigError: unknown flag (with the nearest one), a missing value, a second environment.
    """
    found = Arguments()
    rest = deque(words)
    choices = {name: members(f.annotation) for name, f in fields_of(TrainConfig).items()}
    _use_own_parts(words, choices)
    # Flags of a class that a file or the run names are looked at once that is read.
    more = ("--config", "--resume", "--replays")
    found.reads_more = any(word.partition("=")[0] in more for word in words)
    while rest:
        word = rest.popleft()
        kind, _, name = word.partition(":")
        if word in ("-h", "--help", "--help-all"):
            found.wants_help = True
            found.wants_all = found.wants_all or word == "--help-all"
        elif word.startswith("-") and len(word) > 1:
            _read_flag(word, rest, found)
        elif name and any(member_name(member) for member in choices.get(kind, ())):
            _choose(found.settings, kind, name)
        elif name and (sections := listed(find_annotation(TrainConfig, kind))):
            others = [str(member_name(section)) for section in sections[1:]]
            added = name if name in others else member_name(own_parts.default_of(sections))
            raise ConfigError(
                f"{word} is not understood; {kind} is a list, to which this adds one: "
                f"{flag(kind)}.1.name {added}"
            )
        elif name and (meant := _meant(kind, name, choices)):
            raise ConfigError(f"{word} is not understood; did you mean {meant}?")
        elif "env_id" in found.settings:
            raise ConfigError(
                f"{word} is one word too many, the environment being {found.settings['env_id']}; "
                "settings start with two hyphens: --num-envs 32"
            )
        else:
            found.settings["env_id"] = word
    return found


def _use_own_parts(words: Sequence[str], choices: Mapping[str, tuple[type, ...]]) -> None:
    """Import the classes that words such as `algorithm:my_module:MyLoss` name: flags are theirs too."""
    replays = listed(find_annotation(TrainConfig, "replays"))
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        kind, _, name = word.partition(":")
        kinds = choices.get(kind, ())
        head, equals, attached = word.partition("=")
        if flagged := re.fullmatch(r"--(algorithm|topology|replays\.\d+)(?:\.name)?", head):
            kind, name = flagged[1], attached if equals else after
            kinds = choices.get(kind, replays)
        base = own_parts.open_base(kinds) if own_parts.is_name(name) else None
        if base is not None:
            try:
                own_parts.find(name, base)
            except ConfigError as error:
                raise ConfigError(f"{kind}: {error}") from error


def _choose(settings: dict[str, Any], kind: str, name: str) -> None:
    section = settings.get(kind)
    before = section.get("name", name) if isinstance(section, dict) else section or name
    if before != name:
        raise ConfigError(f"{kind} is chosen twice, {before} and {name}; leave one of them out")
    place(settings, f"{kind}.name", name)


def _meant(kind: str, name: str, choices: dict[str, tuple[type, ...]]) -> str | None:
    """Return the choice that `kind:name` misspells; an environment may be `module:function` too."""
    name = name.lower()
    has_name = [c for c, kinds in choices.items() if name in [member_name(k) for k in kinds]]
    meant = near(kind, has_name)
    return f"{meant}:{name}" if meant else None


def _read_flag(word: str, rest: deque[str], found: Arguments) -> None:
    head, equals, attached = word.partition("=")
    if equals:
        rest.appendleft(attached)
    name = head.lstrip("-").replace("-", "_")
    flagged, colon, value = head.partition(":")
    if colon and members(find_annotation(TrainConfig, name.partition(":")[0])):
        raise ConfigError(f"{head} is not a flag; type it without hyphens: {head.lstrip('-')}")
    if colon:
        raise ConfigError(f"{head} is not a flag; type: {flagged} {value}")
    if not word.startswith("--"):
        raise ConfigError(f"{head} is not a flag; flags start with two hyphens: --{name}")
    if name == "config":
        found.configs.append(_take(head, rest))
        while rest and not equals and is_config_name(rest[0]):
            found.configs.append(rest.popleft())
    elif name == "resume":
        found.resume = _take(head, rest)
    elif name == "trust":
        found.trust = True
    elif name == "show_config":
        found.show_config = True
    elif name in ("dry_run", "print_config"):
        raise ConfigError(f"{head} is not a flag; to see all settings: --show-config")
    elif name == "env_id" or (name == "env" and not (rest and rest[0].lstrip().startswith("{"))):
        raise ConfigError(
            f"{head} is not a flag; type the environment's id alone: gossamer train ENV"
        )
    else:
        _read_setting(head, name, rest, found, attached=bool(equals))


def _read_setting(
    head: str, name: str, rest: deque[str], found: Arguments, *, attached: bool
) -> None:
    annotation = find_annotation(TrainConfig, name)
    path, dot, last = name.removeprefix("no_").rpartition(".")
    positive = path + dot + last.removeprefix("no_")
    negated = positive != name and is_switch(find_annotation(TrainConfig, positive))
    if annotation is None and not negated and found.reads_more and _may_be_own(name):
        given = attached or (rest and not rest[0].startswith("--"))
        place(found.settings, name, rest.popleft() if given else True)
    elif annotation is None:
        if attached or not negated:
            raise unknown_setting(Layer("command line", {}, typed=True), name, TrainConfig)
        place(found.settings, positive, False)
    elif is_switch(annotation):
        given = attached or (rest and rest[0].lower() in (*SWITCH_WORDS, "none"))
        place(found.settings, name, rest.popleft() if given else True)
    elif members(annotation) or listed(annotation):
        place(found.settings, name, _json(head, _take(head, rest)))
    elif typing.get_origin(annotation) is tuple:
        values = [_take(head, rest)]
        while rest and not attached and _reads(rest[0], annotation):
            values.append(rest.popleft())
        place(found.settings, name, values)
    else:
        place(found.settings, name, _take(head, rest))


def _may_be_own(name: str) -> bool:
    section, _, setting = name.partition(".")
    annotation = find_annotation(TrainConfig, section) if setting else None
    kinds = members(annotation) or listed(annotation)
    return bool(kinds) and own_parts.open_base(kinds) is not None


def _take(head: str, rest: deque[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"{head} needs a value: {head} VALUE")
    return rest.popleft()


def _json(head: str, text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{head} is not valid JSON: {error}") from None


def _reads(text: str, annotation: Any) -> bool:
    try:
        return bool(read_value(text, annotation, typed=True))
    except ValueError:
        return is_endless(text)  # meant as one more number, and refused as such
