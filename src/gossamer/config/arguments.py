"""The words after `gossamer train`, read into the tree of settings they spell."""

from __future__ import annotations

import itertools
import re
import typing
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from gossamer.config import own_parts
from gossamer.config.files import is_config_name
from gossamer.config.merging import Layer
from gossamer.config.names import entries_of, flag, place
from gossamer.config.suggestions import near, unknown_setting
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import (
    choices,
    fields_of,
    find_annotation,
    member_name,
    members,
    names_of,
    settings_of,
    use_named,
)
from gossamer.config.values import (
    SWITCH_WORDS,
    is_list,
    is_switch,
    kinds_of,
    read_value,
    shown,
    spells_number,
)
from gossamer.errors import ConfigError
from gossamer.system.reading import expand, parse_json, quoted

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

_SHOW = "to see all settings: --show-config"
_ENV = "type the environment's id alone: gossamer train ENV"
_NO_FLAGS = {
    "dry_run": _SHOW,
    "print_config": _SHOW,
    "env_id": _ENV,
    "env_name": _ENV,
    "gym_id": _ENV,
}
"""Flags that people expect, with what to type instead."""
_FOR_EXAMPLE = {"--resume": "last", "--config": "pong", "--seeds": "5"}
"""A value of flags that were typed without one."""


@dataclass
class Options:
    """Options of `gossamer train` that are no settings; the flag of each has its name."""

    config: tuple[Annotated[str, Meta(title="NAME")], ...] = ()
    """presets (see gossamer list) or .toml and .json files; later ones win"""
    resume: Annotated[str, Meta(title="RUN")] | None = None
    """resume a run: its folder, part of its name, or last; with --run-folder for the same folder: begin the run if it does not exist"""
    seeds: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """train N runs with the seeds from --seed on, as many in parallel as fit the cores; the same --run-folder again
    resumes unfinished runs"""
    trust: bool = False
    """with --resume: allow a run from another machine or user to import its environment and parts, such as
    module:function"""
    watch: bool = False
    """also start gossamer watch, which shows the run in a browser"""
    show_config: bool = False
    """print every setting, its value and where it comes from; do not train"""


@dataclass
class Arguments(Options):
    """Arguments as they were typed, before files and defaults are looked at."""

    wants_help: bool = False
    wants_all: bool = False
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    reads_more: bool = False
    """Settings come from files or a run too."""

    by_word: set[str] = field(default_factory=set[str])
    """Kinds of parts that a word has chosen, as algorithm:ppo."""

    def place(self, name: str, value: Any) -> None:
        """Set a dotted name; the last mention of a setting wins, but what a word chooses is chosen once."""
        kind = name.partition(".")[0]
        before = self._chosen(kind)
        place(self.settings, name, value)
        if before and kind in self.by_word and (after := self._chosen(kind)) != before:
            raise ConfigError(
                f"{kind} is chosen twice, {before} and {after}; leave one of them out"
            )

    def _chosen(self, kind: str) -> Any:
        section = self.settings.get(kind)
        return section.get("name") if isinstance(section, dict) else section

    def parts(self) -> list[str]:
        """Return the kinds of parts that were typed, as `algorithm:ppo`."""
        replays = entries_of(self.settings.get("replays"))
        asked = [(name, self.settings.get(name)) for name in ("algorithm", "topology")]
        asked += [("replays", entry) for entry in replays.values()]
        return [f"{name}:{x.get('name') if isinstance(x, dict) else x}" for name, x in asked]


def parse_train(words: Sequence[str]) -> Arguments:
    """Read words in any order: ENV, algorithm:NAME, --config, --resume, and --any.setting VALUE.

    Raises:
        ConfigError: unknown flag (with the nearest one), a missing value, a second environment.
    """
    found, rest = Arguments(), deque(words)
    _use_own_parts(words)
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
        elif name and kind in _choices():
            found.by_word.add(kind)
            found.place(f"{kind}.name", name)
        else:
            _read_env(word, found.settings)
    if not found.wants_help:
        _begin_or_resume(found)
        _refuse_together(found)
    return found


def _begin_or_resume(asked: Arguments) -> None:
    """Leave one of `--resume R --run-folder R`, by which a command begins a run and resumes it when it is typed again."""
    folder = asked.settings.get("run_folder")
    if not folder or asked.resume is None:
        return
    path = expand(folder)
    if path.resolve() != expand(asked.resume).resolve():
        return
    from gossamer.record.folder import never_learnt  # loads what --help does not need

    if (path / "config.json").exists() and not never_learnt(path):
        del asked.settings["run_folder"]
        asked.settings.pop("init_from", None)  # which was for the beginning
    else:
        asked.resume, asked.trust = None, False


def _refuse_together(asked: Arguments) -> None:
    """Refuse arguments that exclude each other."""
    if asked.resume is None:
        if asked.trust:
            raise ConfigError("--trust is for a resumed run; leave it out, or add --resume RUN")
        return
    if asked.seeds is not None:
        raise ConfigError(
            "--seeds cannot be given with --resume, a run has one seed; leave one of them out"
        )
    if "init_from" in asked.settings:
        raise ConfigError(
            "--init-from cannot be given with --resume, which goes on with what the run has learnt; leave one of them out"
        )
    if "run_folder" in asked.settings:
        raise ConfigError(
            "--run-folder cannot be given with --resume, a run stays where it is; leave it out, or give both the same "
            "folder, which begins the run or resumes it"
        )


def _choices() -> dict[str, list[str]]:
    """Return the sections that are chosen by name, with the names of their kinds."""
    fields = {name: field.annotation for name, field in fields_of(TrainConfig).items()}
    found = {name: [*choices(x)] for name, x in fields.items() if not is_list(x)}
    return {name: names for name, names in found.items() if names}


def _use_own_parts(words: Sequence[str]) -> None:
    """Import the classes that words such as `algorithm:my_module:MyLoss` name: flags are theirs too."""
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        kind, _, name = word.partition(":")
        head, equals, attached = word.partition("=")
        if flagged := re.fullmatch(r"--(algorithm|topology|replays\.\d+)(?:\.name)?", head):
            kind, name = flagged[1], attached if equals else after
        use_named(TrainConfig, kind, name)


def _read_env(word: str, settings: dict[str, Any]) -> None:
    """Take a word for the environment, which may be module:function, unless it misspells a choice."""
    kind, _, name = word.partition(":")
    annotation = find_annotation(TrainConfig, kind)
    if name and is_list(annotation) and (names := [*choices(annotation)]):
        default = member_name(own_parts.default_of(members(annotation)))
        added = name if name in names[1:] else default
        adds = f"{kind} is a list, to which this adds one: {flag(kind)}.1.name {added}"
        raise ConfigError(f"{word} is not understood; {adds}")
    has_name = [kind for kind, names in _choices().items() if name.lower() in names]
    if name and (meant := near(kind, has_name)):
        raise ConfigError(f"{word} is not understood; did you mean {meant}:{name.lower()}?")
    section, equals, value = word.partition("=")
    if equals and value.lower() in _choices().get(section, ()):
        raise ConfigError(f"{word} is not understood; did you mean {section}:{value.lower()}?")
    name = section.replace("-", "_")
    if equals and name in (*_NO_FLAGS, "env"):
        raise ConfigError(f"{word} is not understood; {_NO_FLAGS.get(name, _ENV)}")
    annotation = _annotation_of(name) if equals else None
    if annotation is not None and not members(annotation):
        raise ConfigError(f"{word} is not understood; did you mean {flag(name)} {quoted(value)}?")
    if "env_id" in settings:
        raise ConfigError(
            f"{word} is one word too many, the environment being {settings['env_id']}; "
            "settings start with two hyphens: --num-envs 32"
        )
    settings["env_id"] = word


def _read_flag(word: str, rest: deque[str], found: Arguments) -> None:
    """Read a flag with its value, which is attached to it or begins the rest."""
    head, equals, attached = word.partition("=")
    words = deque([attached]) if equals else rest
    name = head.lstrip("-").replace("-", "_")
    flagged, colon, value = head.partition(":")
    if colon and name.partition(":")[0] in _choices():
        raise ConfigError(f"{head} is not a flag; type it without hyphens: {head.lstrip('-')}")
    if colon:
        raise ConfigError(f"{head} is not a flag; type: {flagged} {value}")
    if not word.startswith("--"):
        raise ConfigError(f"{head} is not a flag; flags start with two hyphens: --{name}")
    if name in _NO_FLAGS or (name == "env" and not (words and words[0].lstrip().startswith("{"))):
        raise ConfigError(f"{head} is not a flag; {_NO_FLAGS.get(name, _ENV)}")
    path, dot, last = name.removeprefix("no_").rpartition(".")
    positive = path + dot + last.removeprefix("no_")
    taken: Any
    if (annotation := _annotation_of(name)) is not None:
        taken = _take_value(head, annotation, words, attached=bool(equals))
    elif positive != name and is_switch(_annotation_of(positive)) and not equals:
        name, taken = positive, False
    elif found.reads_more and _may_be_own(name):
        takes = equals or (words and not words[0].startswith("--"))
        taken = words.popleft() if takes else True
    else:
        switches = {one for one, accepts in settings_of(TrainConfig) if is_switch(accepts)}
        layer = Layer("command line", {}, typed=True)
        raise unknown_setting(layer, name, names_of(TrainConfig), switches)
    if name in fields_of(Options):
        _set_option(found, head, name, taken)
    else:
        found.place(name, taken)


def _annotation_of(name: str) -> Any | None:
    return find_annotation(Options, name) or find_annotation(TrainConfig, name)


def _set_option(found: Arguments, head: str, name: str, written: Any) -> None:
    kind, *_ = kinds_of(fields_of(Options)[name].annotation)
    if is_list(kind):
        setattr(found, name, (*getattr(found, name), *written))
        return
    try:
        setattr(found, name, read_value(written, kind, typed=True))
    except ValueError as error:
        how = "" if is_switch(kind) else f": {head} 5"
        raise ConfigError(
            f"{head} is {shown(written, typed=True)}; it must be {error}{how}"
        ) from None


def _take_value(head: str, annotation: Any, words: deque[str], *, attached: bool) -> Any:
    """Take the value of a setting from the words that follow its flag."""
    if is_switch(annotation):
        takes = attached or (words and words[0].lower() in (*SWITCH_WORDS, "none"))
        return words.popleft() if takes else True
    if not words or words[0].startswith("--"):
        raise ConfigError(f"{head} needs a value: {head} {_FOR_EXAMPLE.get(head, 'VALUE')}")
    taken = words.popleft()
    if members(annotation):
        return _json(head, taken)
    if not is_list(annotation):
        return taken
    goes_on = is_config_name if head == "--config" else partial(_goes_on, annotation)
    several = [taken]
    while words and goes_on(words[0]):
        several.append(words.popleft())
    return several


def _may_be_own(name: str) -> bool:
    section, dot, _ = name.partition(".")
    kinds = members(find_annotation(TrainConfig, section)) if dot else ()
    return own_parts.open_base(kinds) is not None


def _json(head: str, text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{head} is not valid JSON: {error}") from None


def _goes_on(annotation: Any, text: str) -> bool:
    """Whether a word is one more entry of a list, or a number that is refused as such."""
    try:
        return bool(read_value(text, annotation, typed=True))
    except ValueError:
        return spells_number(text)
