"""Write docs/settings.md and docs/metrics.md from the code, which is where their text lives.

    python scripts/gen_docs.py          writes the pages that changed
    python scripts/gen_docs.py --check  says which are old, and exits 1 if any is

A test compares the pages with what this makes, so they cannot go stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gossamer.config.help import setting_groups, values_of
from gossamer.config.names import flag
from gossamer.record.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]

SETTINGS_INTRO = """\
# Settings

<!-- Written by scripts/gen_docs.py from the docstrings in the code; edit those. -->

Every setting of `gossamer train`: its flag, the default, and what it means. The same names, with
underscores and nested tables, are the keys of `--config` files:

```toml
env_id = "PongNoFrameskip-v4"
num_envs = 64

[algorithm]
name = "ppo"
passes = 2

[optimizer]
learning_rate = [2.5e-4]
```

Precedence, highest first: command line, `--config` files, the resumed run, what
`gossamer tune` found on this machine, the suite, the defaults below.
`--show-config` prints every setting that would be used and the layer that set it. `auto`, and `0` where the text says
auto, are resolved from the environment and the machine at the start.

"""

METRICS_INTRO = """\
# Metrics

<!-- Written by scripts/gen_docs.py from gossamer/record/metrics.py; edit that. -->

Each line of `metrics.jsonl` is one JSON object, appended and flushed. A name that is
not in this table is refused when it is written. A value that is not finite is `null`. *Env steps*
are decisions; an Atari env step is 4 emulator frames unless `--env.frame-skip` changes that.

Each learner appends rows: learner 0 at most once a second, the other learners every ten seconds. Metrics of
the whole run (returns, evaluations, `topology/disagreement`) are in the rows of learner 0.

A second replay of the same kind is numbered: `replay/elite_2_columns`, in the order of `replays`.

"""

HEADINGS = {
    "": "The run",
    "learner": "Learning",
    "share": "Where the time goes",
}


def settings_page() -> str:
    """Return docs/settings.md."""
    return SETTINGS_INTRO + shown(settings_table().strip()) + "\n"


def settings_table() -> str:
    """Return every setting with default and meaning as tables, one for each group."""
    lines: list[str] = []
    for group in setting_groups():
        lines += [f"## {group.title}", "", group.intro, ""]
        if not group.rows:
            lines += ["No settings of its own.", ""] if ":" in group.title else []
            continue
        lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        for row in group.rows:
            name = "ENV" if row.name == "env_id" else flag(row.name)
            meaning = row.meaning.replace("|", "\\|").replace("<", "&lt;")
            values = values_of(row.annotation).replace("|", " ")
            lines.append(f"| `{name}` | `{row.default_shown}` | {values} | {meaning} |")
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


def pages() -> dict[str, str]:
    """Return each generated page by its path below the project."""
    return {"docs/metrics.md": metrics_page(), "docs/settings.md": settings_page()}


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
