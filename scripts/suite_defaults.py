"""The tables of docs/algorithms/NAME.md: an algorithm's defaults in every suite of environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossamer.config.cores import AUTO
from gossamer.config.names import flag
from gossamer.config.shown_defaults import defaults_by_suite
from gossamer.envs.settings import SUITE_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

ALWAYS = ("num_envs", "unroll_length", "lag", "total_env_steps", "optimizer.learning_rate")
"""Settings outside the algorithm that every table has."""
WHERE_DIFFERENT = ("optimizer.", "policy.")
"""Sections whose settings a table has if suites differ in them."""
TITLES = {"other": "all others"}
INTRO = (
    "Values that `gossamer train ENV algorithm:{name} --show-config` prints for {examples} and environments of no known suite "
    "(all others)."
)
SEVERAL = (
    "The table is for one learner. On a CPU with at least four cores, runs of the suite {suites} have several learners "
    "(`--num-learners auto`), each with fewer environments and twice the learning rate unless you set one of these, the unroll length or the "
    "minibatches; `--show-config` prints the values for your machine."
)


def shown_value(value: Any) -> str:
    """Return a value as it is typed after its flag."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(map(shown_value, value)) or "[]"
    if isinstance(value, int):
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def rows_of(by_suite: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by setting, and then by suite, the defaults that a table has, of those by suite and setting."""
    found: dict[str, dict[str, Any]] = {}
    for setting in by_suite["other"]:
        values = {suite: values[setting] for suite, values in by_suite.items()}
        differ = any(value != values["other"] for value in values.values())
        own = setting.startswith("algorithm.") and setting != "algorithm.name"
        if own or setting in ALWAYS or (differ and setting.startswith(WHERE_DIFFERENT)):
            found[setting] = values
    # Those of the algorithm come first.
    return dict(sorted(found.items(), key=lambda row: not row[0].startswith("algorithm.")))


def defaults_table(name: str) -> str:
    """Return the table of an algorithm's defaults as Markdown."""
    examples = ", ".join(f"{x} ({suite})" for suite, x in SUITE_IDS.items() if suite != "other")
    by_suite = defaults_by_suite(name)
    lines = [INTRO.format(name=name, examples=examples), ""]
    titles = [TITLES.get(suite, suite) for suite in SUITE_IDS]
    lines += [f"| setting | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for setting, values in rows_of(by_suite).items():
        cells = " | ".join(f"`{shown_value(x)}`" for x in values.values())
        lines.append(f"| `{flag(setting)}` | {cells} |")
    if several := [suite for suite, values in by_suite.items() if values["num_learners"] == AUTO]:
        lines += ["", SEVERAL.format(suites=" and ".join(several))]
    return "\n".join(lines)
