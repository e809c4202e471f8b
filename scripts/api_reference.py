"""The API reference of docs/python.md, written from the docstrings of the public names of `gossamer`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from typing import Any, NamedTuple

import gossamer
from gossamer.roles.evaluation import Evaluation
from gossamer.roles.inference import Carried
from gossamer.run.train import TrainResult
from gossamer.types import PolicyOutput

FUNCTIONS = ("train", "evaluate", "load_policy", "make_config")
"""Public functions, in the order of the page."""
RETURNED = (TrainResult, Evaluation, gossamer.Policy, Carried, PolicyOutput)
"""Classes that public functions and methods return."""
SETTINGS: dict[type, str] = {
    gossamer.TrainConfig: "The attributes of this class are [all settings](settings.md), in the sections of that page.",
    gossamer.EvaluationConfig: "The attributes of this class are the [settings of evaluation](settings.md#evaluation).",
}
"""Classes whose attributes another page lists."""
SECTIONS = ("Args", "Returns", "Raises")


class Docstring(NamedTuple):
    """The parts of a docstring."""

    text: str
    args: dict[str, str]
    returns: str
    raises: dict[str, str]


def read_docstring(of: Any) -> Docstring:
    """Return the parts of a docstring in Google's form."""
    doc = inspect.getdoc(of) or ""
    found = {"": doc}
    for name in reversed(SECTIONS):
        before, head, after = found[""].partition(f"\n\n{name}:\n")
        found |= {"": before, name: after if head else ""}
    return Docstring(
        _joined(found[""]),
        _entries(found["Args"]),
        _joined(found["Returns"]),
        _entries(found["Raises"]),
    )


def _joined(text: str) -> str:
    return " ".join(text.split())


def _entries(text: str) -> dict[str, str]:
    parts = re.split(r"^    (\w+): ", text, flags=re.MULTILINE)
    return {name: _joined(meaning) for name, meaning in zip(parts[1::2], parts[2::2], strict=True)}


def _cell(text: str) -> str:
    """Return text for a cell of a table, where < outside code would be taken for HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda x: x[1] or "&lt;", text).replace("|", "\\|")


def _plain(annotation: str) -> str:
    """Return a type for a cell of a table, by the names that a program uses."""
    return annotation.replace("|", "\\|").replace("gossamer.", "")


def _parameters(of: Any) -> list[inspect.Parameter]:
    return [x for x in inspect.signature(of).parameters.values() if x.name != "self"]


def _signature(name: str, of: Any) -> str:
    shown: list[str] = []
    for x in _parameters(of):
        if x.kind is x.KEYWORD_ONLY and not any(one.startswith("*") for one in shown):
            shown.append("*")
        stars = "**" if x.kind is x.VAR_KEYWORD else ""
        default = "" if x.default is x.empty else f"={x.default!r}"
        shown.append(f"{stars}{x.name}{default}")
    return f"{name}({', '.join(shown)}) -> {inspect.signature(of).return_annotation}"


def _function(heading: str, name: str, of: Any) -> list[str]:
    """Return the lines of a function or method.

    Raises:
        ValueError: its docstring does not list just its arguments.
    """
    doc = read_docstring(of)
    parameters = {x.name: x for x in _parameters(of)}
    if list(doc.args) != list(parameters):
        raise ValueError(f"{name}: Args are {[*doc.args]}, arguments {[*parameters]}")
    lines = [heading, "", "```text", _signature(name, of), "```", "", _cell(doc.text), ""]
    if parameters:
        lines += ["| argument | type | meaning |", "|---|---|---|"]
        for argument, meaning in doc.args.items():
            lines.append(_row(argument, parameters[argument].annotation, meaning))
        lines.append("")
    if doc.returns:
        lines += [f"Returns: {_cell(doc.returns)}", ""]
    if doc.raises:
        lines += ["| raises | when |", "|---|---|"]
        lines += [f"| `{error}` | {_cell(when)} |" for error, when in doc.raises.items()]
        lines.append("")
    return lines


def _field_docs(of: type) -> dict[str, str]:
    """Return by name the docstrings under the fields of a class."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    docs: dict[str, str] = {}
    body = found.body if isinstance(found, ast.ClassDef) else []
    for line, after in pairwise(body):
        told = after.value if isinstance(after, ast.Expr) else None
        if isinstance(line, ast.AnnAssign) and isinstance(told, ast.Constant):
            docs[ast.unparse(line.target)] = _joined(str(told.value))
    return docs


def _attributes(of: type) -> list[str]:
    """Return the rows of fields and properties."""
    rows: list[str] = []
    for name, meaning in _field_docs(of).items():
        rows.append(_row(name, of.__annotations__[name], meaning))
    for name, member in vars(of).items():
        if isinstance(member, property) and not name.startswith("_"):
            assert member.fget
            returns = inspect.signature(member.fget).return_annotation
            rows.append(_row(name, returns, read_docstring(member).text))
    return rows


def _row(name: str, annotation: Any, meaning: str) -> str:
    kind = getattr(annotation, "__forward_arg__", annotation)  # in a NamedTuple
    return f"| `{name}` | `{_plain(kind)}` | {_cell(meaning)} |"


def _class(of: type, name: str) -> list[str]:
    """Return the lines of a class: what it is, its attributes, its methods."""
    lines = [f"### {name}", "", _cell(read_docstring(of).text), ""]
    if of in SETTINGS:
        lines += [SETTINGS[of], ""]
    elif rows := _attributes(of):
        lines += ["| attribute | type | meaning |", "|---|---|---|", *rows, ""]
    methods = {x: y for x, y in vars(of).items() if inspect.isfunction(y) and x[0] != "_"}
    if of is gossamer.Policy:
        lines += _function("#### Policy.act", "policy.act", of.act)
        return lines + _function("#### Policy as a module", "policy", of.forward)
    if methods:
        lines += ["| method | returns | meaning |", "|---|---|---|"]
        for method, does in methods.items():
            typed, _, returns = _signature(method, does).rpartition(" -> ")
            lines.append(
                f"| `{typed}` | `{_plain(returns)}` | {_cell(read_docstring(does).text)} |"
            )
        lines.append("")
    return lines


def api_reference() -> str:
    """Return the reference as Markdown, below a heading of the page."""
    lines: list[str] = []
    for name in FUNCTIONS:
        lines += _function(f"### gossamer.{name}", f"gossamer.{name}", getattr(gossamer, name))
    for of in RETURNED:
        public = f"gossamer.{of.__name__}" if of.__name__ in gossamer.__all__ else of.__name__
        lines += _class(of, public)
    for name in gossamer.__all__:
        found = getattr(gossamer, name)
        if name in FUNCTIONS or found in RETURNED:
            continue
        if isinstance(found, type):
            lines += _class(found, f"gossamer.{name}")
        else:
            lines += [
                f"### gossamer.{name}",
                "",
                "The version, as `gossamer --version` prints it.",
                "",
            ]
    return "\n".join(lines).strip()
