"""Command lines: what may be typed is declared once; from that words are read, and the help is written."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from gossamer.errors import ConfigError

Calls = Callable[..., int | None]
"""Function of a command: it is handed what was typed, by name, and returns an exit code, or None for 0."""
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
    words to choose from, "--json" for a switch."""
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
        dest = self.dest or self.name.lstrip("-").lower().replace("-", "_")
        if is_flag and not value:
            parser.add_argument(self.name, dest=dest, action="store_true")
            return
        settings: dict[str, Any] = {"type": self.reads or str, "default": self.default}
        choices = (value if is_flag else self.name).split("|")
        if len(choices) > 1 and self.reads is None:
            settings["choices"] = choices
        if self.default == []:
            settings["action"] = "append"
        if is_flag:
            required = self.default is REQUIRED
            parser.add_argument(self.name, dest=dest, required=required, **settings)
            return
        nargs = "?" if self.typed.startswith("[") else "+" if self.typed.endswith("...") else None
        settings |= {"metavar": self.name, "nargs": nargs} if len(choices) == 1 else {}
        parser.add_argument(dest, **settings)

    @property
    def default_shown(self) -> str:
        """The default as the help tells it; empty: there is none."""
        if self.shown is None and self.default not in (None, REQUIRED, "", []):
            return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        return self.shown or ""


class Command:
    """A command: its arguments, what they are for, and the function that does it, which it decorates.

    Args:
        name: after `gossamer`.
        summary: what it does, in the list of all commands.
        about: what it does, in lines.
        words: what may be typed.
        usage: lines in place of those that follow from the words.
        reads: whether `read` reads what was typed; if not, the function is handed that, as `words`.
    """

    def __init__(
        self, name: str, summary: str, about: str, *words: Word, usage: str = "", reads: bool = True
    ):
        self.name, self.summary, self.about, self.words = name, summary, about, words
        typed = [x.typed for x in words if not x.typed.startswith("--")]
        needed = [x.typed for x in words if x.default is REQUIRED]
        self.usage = usage or " ".join(["gossamer", name, *typed, *needed, "[options]"])
        self._reads = reads
        self._calls: Calls

    def __call__(self, calls: Calls) -> Command:
        """Take the function that does it."""
        self._calls = calls
        return self

    @property
    def head(self) -> str:
        """Return the name, with the word that it needs."""
        needed = [x.name for x in self.words if x.typed[0] not in "[-" and "|" not in x.typed]
        return " ".join([self.name, *needed])

    def run(self, typed: list[str]) -> int:
        """Do what was typed, or print the help; return the exit code."""
        if not self._reads:
            return self._calls(words=typed) or 0
        if not {"-h", "--help"}.isdisjoint(typed):
            sys.stdout.write(self.help())
            return 0
        return self._calls(**self.read(typed)) or 0

    def help(self) -> str:
        """Return the whole help."""
        told = [x for x in self.words if x.meaning]
        left = max((len(x.typed) for x in told if len(x.typed) <= MAX_LEFT), default=0)
        lines = [f"usage: {self.usage}", "", self.about, ""]
        for word in told:
            typed = word.typed.strip("[]").removesuffix(" ...")
            default = f" [{word.default_shown}]" if word.default_shown else ""
            lines += beside(f"  {typed}", f"{word.meaning}{default}", left + 4, WIDTH)
        return "\n".join(lines) + "\n"

    def read(self, typed: Iterable[str]) -> dict[str, Any]:
        """Return what was typed, by name; hyphens and underscores in flags are the same.

        Raises:
            ConfigError: it is not understood.
        """
        parser = _Parser(prog=f"gossamer {self.name}", add_help=False, allow_abbrev=False)
        for word in self.words:
            word.add_to(parser)
        heads = [word.partition("=") for word in typed]
        words = [(x.replace("_", "-") if x.startswith("--") else x) + y + z for x, y, z in heads]
        takes = {x.name for x in self.words if x.typed.startswith("--") and " " in x.typed}
        for i in range(len(words) - 1, 0, -1):  # argparse takes -1e3 for a flag
            if words[i - 1] in takes and re.match(r"-\.?\d", words[i]):
                words[i - 1 : i + 1] = [f"{words[i - 1]}={words[i]}"]
        asked, unknown = parser.parse_known_intermixed_args(words)
        if unknown:
            flags = [x.name for x in self.words if x.name.startswith("--")]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"{parser.prog} --help lists what it knows"
            )
            raise ConfigError(f"{unknown[0]} is not understood; {hint}")
        return vars(asked)


def beside(head: str, text: str, indent: int, width: int) -> Iterator[str]:
    """Yield lines of a help: what may be typed, and what it means in a column beside it, or below it where it is long."""
    if len(head) >= indent - 1:
        yield head
        head = ""
    for line in textwrap.wrap(text, max(width - indent, 30), break_on_hyphens=False):
        yield f"{head:<{indent}}{line}"
        head = ""


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; {self.prog} --help prints more")
