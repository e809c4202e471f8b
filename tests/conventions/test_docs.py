"""Generated pages are current, links lead somewhere, and printed commands are accepted."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    path
    for name in ("benchmarks", "scripts")
    for path in sorted((ROOT / name).rglob("*.py"))
    if "def main" in path.read_text()
]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks" / "notes").glob("*.md")),
]
PROBE = """
import contextlib, io, json, sys
from gossamer.cli import main
refused = []
for arguments in json.load(sys.stdin):
    sys.argv = ["gossamer", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main()
    if code != 0:
        refused.append([arguments, said.getvalue()])
print(json.dumps(refused))
"""


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, f"run scripts/gen_docs.py: {done.stdout}{done.stderr}"
    assert done.stdout == ""


def test_every_metric_has_a_unit_and_a_meaning() -> None:
    from gossamer.record.metrics import METRICS

    assert METRICS
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*(/[a-z][a-z0-9_]*){0,2}", name), name
        assert metric.unit, name
        assert len(metric.meaning.split()) >= 3, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def train_commands(page: Path) -> list[list[str]]:
    """Return the `gossamer train` commands of a page's ```bash blocks, continuation lines joined.

    Commands of later releases stand in ```text blocks and are not returned.
    """
    found: list[list[str]] = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["gossamer", "train"]:
                found.append(words[1:])
    return found


def test_printed_commands_are_accepted(tmp_path: Path) -> None:
    """Every training command in README, docs and notes parses; --show-config starts nothing."""
    import json

    commands = [
        [*command, "--show-config"]
        for page in PAGES
        for command in train_commands(page)
        if "--resume" not in command and "module:function" not in " ".join(command)
    ]
    assert len(commands) >= 5
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(commands),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_what_is_written_out_as_published_takes_nothing_from_suites() -> None:
    """Their defaults are ours: passes, minibatches and normalisers that nobody published."""
    from gossamer.config import parse_train, resolve

    commands = [
        command
        for command in train_commands(ROOT / "docs" / "coming-from" / "papers.md")
        if "--algorithm.normalize-advantage" in command
    ]
    assert len(commands) >= 4
    for command in commands:
        asked = parse_train(command[1:])
        config, layers = resolve(asked.settings, configs=asked.config)
        idle = set[str]()
        if not config.policy.normalize_obs:
            idle.add("policy.normalize_steps")
        if config.policy.torso != "nature":
            idle.add("policy.last_filters")
        taken = [name for name, layer in layers.items() if layer.startswith("suite")]
        ours = [
            name for name in taken if name.split(".")[0] in ("algorithm", "policy", "optimizer")
        ]
        assert set(ours) <= idle, (command, ours)


@pytest.mark.parametrize("preset", ["diffdac_acrobot", "gala_pong_published"])
def test_a_preset_written_out_is_that_preset(preset: str) -> None:
    from gossamer.config import TrainConfig, parse_train, resolve, to_dict

    def config(command: list[str]) -> TrainConfig:
        asked = parse_train(command[1:])
        return resolve(asked.settings, configs=asked.config)[0]

    commands = train_commands(ROOT / "docs" / "coming-from" / "papers.md")
    short = [command for command in commands if command[:3] == ["train", "--config", preset]]
    env_id = config(short[0]).env_id
    (written_out,) = [x for x in commands if x[1] == env_id and "--topology.max-staleness" in x]
    assert "--config" not in written_out
    assert to_dict(config(written_out)) == to_dict(config(["train", "--config", preset]))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_and_benchmarks_find_what_they_import(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (path.parent / "requirements.txt").exists():
        pytest.skip("runs in a virtual environment of its own")
    monkeypatch.syspath_prepend(str(path.parent))  # as Python does with a script that is run
    assert callable(runpy.run_path(str(path), run_name="imported")["main"])
