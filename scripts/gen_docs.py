"""Write the pages and the parts of pages in docs/ whose text lives in the code.

Whole pages: command-line.md, metrics.md, settings.md. Parts, between `<!-- generated: NAME -->` and `<!-- end -->`: the
reference in python.md, and the defaults by suite in algorithms/NAME.md.

    python scripts/gen_docs.py          writes the pages that changed
    python scripts/gen_docs.py --check  says which are old, and exits 1 if any is

A test compares the pages with what this makes, so they cannot go stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from api_reference import api_reference
from command_line_page import command_line_page
from suite_defaults import defaults_table

from gossamer.config import kinds
from gossamer.config.help import shown_groups, values_of
from gossamer.config.names import flag
from gossamer.config.shown_defaults import BY_SUITE
from gossamer.record.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]

SETTINGS_INTRO = """\
# Settings

<!-- Written by scripts/gen_docs.py from the docstrings in the code; edit those. -->

All settings of `gossamer train`. A table of one algorithm shows its defaults; all other tables show those of PPO, the default
algorithm. *by suite*: the default depends on the
environment's suite (Atari, MuJoCo, ...). `gossamer train ENV --help` shows the values for one environment, and the pages of
[PPO](algorithms/ppo.md), [A2C](algorithms/a2c.md), [V-trace](algorithms/vtrace.md), [LASER](algorithms/laser.md) and
[IMPACT](algorithms/impact.md) each have a table of all suites.

In `--config` files, settings have the same names, with underscores and in nested tables:

```toml
env_id = "PongNoFrameskip-v4"
num_envs = 64

[algorithm]
name = "ppo"
passes = 2

[optimizer]
learning_rate = [2.5e-4]
```

Precedence, highest first: command line, `--config` files, the resumed run, the settings that
`gossamer tune` found on this machine, the suite's defaults, the defaults in the code. What `tune` found is used only if no
layer above it sets what may change the fastest settings (such as learners, environments, lag, network, topology, or a
setting of the algorithm): in a comparison, give both arms the same `--num-learners`.
`--show-config` prints every setting's value and layer.

"""

METRICS_INTRO = """\
# Metrics

<!-- Written by scripts/gen_docs.py from gossamer/record/metrics.py; edit that. -->

Each line of `metrics.jsonl` is one JSON object, flushed at once. Metrics of your own parts
begin with `own/`; any other name must be in these tables. Non-finite values become `null`. *Env steps*
are decisions; an Atari env step is 4 emulator frames unless you set `--env.frame-skip`.

Each learner appends rows: learner 0 at most once a second, the other learners every ten seconds. Metrics of
the whole run (returns, evaluations, `topology/disagreement`) are in the rows of learner 0.

Of several replays of one kind, the metrics of the second and further ones have a number, in the order of
`replays`: `replay/elite_2_columns`.

"""

HEADINGS = {
    "": "The run",
    "info": "What your environment tells",
    "learner": "Learning",
    "share": "Where the time goes",
}


def settings_page() -> str:
    """Return docs/settings.md."""
    return SETTINGS_INTRO + shown(settings_table().strip()) + "\n"


def settings_table() -> str:
    """Return every setting with default and meaning as tables, one for each group."""
    lines: list[str] = []
    for group in shown_groups():
        lines += [f"## {group.title}", "", group.intro, ""]
        if not group.rows:
            lines += ["No settings of its own.", ""] if ":" in group.title else []
            continue
        lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        for row in group.rows:
            name = "ENV" if row.name == "env_id" else flag(row.name)
            meaning = row.meaning.replace("|", "\\|").replace("<", "&lt;")
            values = values_of(row.annotation).replace("|", " ")
            default = f"`{row.default_shown}`" if row.default != BY_SUITE else f"*{BY_SUITE}*"
            lines.append(f"| `{name}` | {default} | {values} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def shown(text: str) -> str:
    """Escape `<` outside code spans; Markdown would take runs/<env> for HTML and drop it."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", text)


def metrics_page() -> str:
    """Return docs/metrics.md: one table for each prefix of a name, in the order of the code."""
    sections: dict[str, list[str]] = {}
    for name, metric in METRICS.items():
        prefix = name.partition("/")[0] if "/" in name else ""
        meaning = shown(metric.meaning).replace("|", "\\|")
        sections.setdefault(prefix, []).append(f"| `{name}` | {metric.unit} | {meaning} |")
    lines: list[str] = []
    for prefix, rows in sections.items():
        title = HEADINGS.get(prefix, prefix.replace("_", " ").capitalize())
        lines += [f"## {title}", "", "| name | unit | meaning |", "|---|---|---|", *rows, ""]
    return METRICS_INTRO + "\n".join(lines).strip() + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "api": api_reference,
    **{f"defaults {name}": partial(defaults_table, name) for name in kinds("algorithm")},
}
"""Text of each generated part of a page, by the name in its marker."""
MARKED = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its generated parts as they are now.

    Raises:
        KeyError: there is no such part.
    """
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


def pages() -> dict[str, str]:
    """Return each generated page, and each page with a generated part, by its path below the project."""
    found = {
        "docs/command-line.md": command_line_page(),
        "docs/metrics.md": metrics_page(),
        "docs/settings.md": settings_page(),
    }
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if name not in found and MARKED.search(text):
            found[name] = filled(text)
    return found


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one is old")
    check = parser.parse_args().check
    old = [
        (ROOT / name, text)
        for name, text in pages().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    for path, text in old:
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{'old' if check else 'wrote'}: {path.relative_to(ROOT)}")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
