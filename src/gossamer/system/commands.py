"""Command lines: what may be typed is declared once; from that words are read, and the help is written."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from gossamer.errors import ConfigError

Calls = Callable[..., int | None]
"""Function of a command: it is handed what was typed, by name, and returns an exit code, or None for 0."""
Reader = Callable[[list[str]], dict[str, Any]]
"""Function that reads what was typed, by name."""
REQUIRED: Any = object()
"""In place of a default: it must be given."""
WIDTH = 116
"""Characters of a line of help."""
MAX_LEFT = 26
"""Characters of what may be typed, beside which its meaning has room."""


class Word(NamedTuple):
    """An argument of a command."""

    typed: str
    """How it is typed: "RUN", "RUN ..." for one or more, "[RUN]" if it may be left out, "--episodes N", "--device cpu|cuda" for
    words to choose from, "--json" for a switch, "--no-browser" for one that turns `browser` off."""
    meaning: str
    """Its help; empty: it is not told."""
    reads: Any = None
    """Reads its value from a text, and raises ArgumentTypeError; None: the text is the value, or one of the words."""
    default: Any = None
    shown: str | None = None
    """The default as the help tells it; None: as it is, where there is one."""

    dest: str = ""
    """Its name among what was read; empty: the flag's, or the word in small letters."""

    @property
    def name(self) -> str:
        """The flag, or the word without its marks."""
        return re.split(r"[ \]]", self.typed.lstrip("["))[0]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Let a parser read it."""
        is_flag, value = self.typed.startswith("--"), self.typed.partition(" ")[2]
        named: dict[str, Any] = {"dest": self.dest} if self.dest else {}
        if is_flag and not value:
            off = self.name.startswith("--no-")
            named = {"dest": self.name.removeprefix("--no-")} if off else named
            parser.add_argument(self.name, action="store_false" if off else "store_true", **named)
            return
        settings: dict[str, Any] = {"type": self.reads or str, "default": self.default}
        choices = (value if is_flag else self.name).split("|")
        if len(choices) > 1 and self.reads is None:
            settings["choices"] = choices
        if self.default == []:
            settings["action"] = "append"
        if is_flag:
            required = self.default is REQUIRED
            settings |= {"required": required, "default": None if required else self.default}
            parser.add_argument(self.name, **settings, **named)
            return
        nargs = "?" if self.typed.startswith("[") else "+" if self.typed.endswith("...") else None
        settings |= {"metavar": self.name, "nargs": nargs} if len(choices) == 1 else {}
        parser.add_argument(self.dest or self.name.lower(), **settings)

    @property
    def default_shown(self) -> str:
        """The default as the help tells it; empty: there is none."""
        if self.shown is None and self.default not in (None, REQUIRED, "", []):
            return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        return self.shown or ""

    def told(self) -> str:
        """Return its meaning with its default."""
        return f"{self.meaning} [{self.default_shown}]" if self.default_shown else self.meaning


class Command:
    """A command: its arguments, what they are for, and the function that does it.

    Args:
        name: after `gossamer`.
        summary: what it does, in the list of all commands.
        about: what it does, in lines.
        words: what may be typed.
        calls: does it.
        usage: lines in place of those that follow from the words.
        reads: reads what was typed, in place of `read`.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        about: str,
        *words: Word,
        calls: Calls,
        usage: str = "",
        reads: Reader | None = None,
    ):
        self.name, self.summary, self.words = name, summary, words
        typed = [x.typed for x in words if not x.typed.startswith("--")]
        needed = [x.typed for x in words if x.default is REQUIRED]
        self.usage = usage or " ".join(["gossamer", name, *typed, *needed, "[options]"])
        self.about = about
        self._calls, self._reads = calls, reads or self.read

    @property
    def head(self) -> str:
        """Return the name, with the word that it needs."""
        needed = [x.name for x in self.words if x.typed[0] not in "[-" and "|" not in x.typed]
        return " ".join([self.name, *needed])

    def run(self, typed: list[str]) -> int:
        """Do what was typed; return the exit code."""
        return self._calls(**self._reads(typed)) or 0

    def help(self) -> str:
        """Return the whole help."""
        told = [x for x in self.words if x.meaning]
        left = max((len(x.typed) for x in told if len(x.typed) <= MAX_LEFT), default=0)
        lines = [f"usage: {self.usage}", "", self.about, ""]
        for word in told:
            wrapped = textwrap.wrap(
                word.told(), WIDTH - left - 4, break_on_hyphens=False, break_long_words=False
            )
            typed = word.typed.strip("[]").removesuffix(" ...")
            if len(typed) > left:
                lines.append(f"  {typed}")
            else:
                lines.append(f"  {typed:<{left}}  {wrapped.pop(0)}")
            lines += [" " * (left + 4) + x for x in wrapped]
        return "\n".join(lines) + "\n"

    def read(self, typed: Iterable[str]) -> dict[str, Any]:
        """Return what was typed, by name; hyphens and underscores in flags are the same.

        Raises:
            ConfigError: it is not understood.
            SystemExit: the help was asked for, and is printed.
        """
        parser = _Parser(self)
        for word in self.words:
            word.add_to(parser)
        heads = [word.partition("=") for word in typed]
        asked, unknown = parser.parse_known_args(
            [(x.replace("_", "-") if x.startswith("--") else x) + y + z for x, y, z in heads]
        )
        if unknown:
            flags = [x.name for x in self.words if x.name.startswith("--")]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"{parser.prog} --help lists what it knows"
            )
            raise ConfigError(f"{unknown[0]} is not understood; {hint}")
        return vars(asked)


class _Parser(argparse.ArgumentParser):
    """argparse with a help of our own, whose complaints are one line.

    Args:
        command: that it reads the words of.
    """

    def __init__(self, command: Command):
        self._command = command
        super().__init__(prog=f"gossamer {command.name}", allow_abbrev=False)

    def format_help(self) -> str:
        return self._command.help()

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; {self.prog} --help prints more")
