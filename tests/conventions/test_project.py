"""The frame holds together: verbs, constraints and metadata say the same thing everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERBS = ("train", "test", "check", "bench", "learn", "docs", "clean", "help")
NOT_PINNED = {"envpool", "gossamer", "vizdoom", "wandb"}
REQUIREMENT = r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+)(?:; (python_version [<>]=? '3\.\d+'))?"
"""A name, extras, the lowest version, and for which Pythons."""


def package(requirement: str) -> str:
    """Return the normalised name of a requirement."""
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def test_makefile_has_every_verb() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for verb in VERBS:
        assert re.search(rf"^{verb}:.*## \w", makefile, flags=re.MULTILINE), verb


def test_contributing_and_ci_use_the_same_verbs() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for verb in VERBS[:6]:
        assert f"make {verb}" in contributing, verb
    script = (ROOT / ".ci" / "run").read_text()
    assert "make check" in script
    assert "make test" in script
    assert ".ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_lower_bounds_only() -> None:
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *(r for group in extras.values() for r in group)]:
        if package(requirement) != "gossamer":
            assert re.fullmatch(REQUIREMENT, requirement), requirement


def test_the_lowest_versions_are_tested() -> None:
    extras = PROJECT["optional-dependencies"]
    groups = [PROJECT["dependencies"], *(extras[x] for x in extras if x != "dev")]
    bounds = [re.fullmatch(REQUIREMENT, x) for group in groups for x in group]
    # They are tested with Python 3.11.
    promised = {x[1]: x[2] for x in bounds if x and ">=" not in (x[3] or "")}
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tested = dict(x.split("==") for x in lines if x and not x.startswith("#"))
    assert set(promised) - set(tested) == {"envpool", "vizdoom", "wandb"}
    for name, version in tested.items():
        assert Version(version) == Version(promised[name]), name
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "make test VENV=.venv-lowest CONSTRAINTS=constraints-lowest.txt" in workflow


def test_every_python_that_is_promised_is_tested() -> None:
    promised = {x.rsplit(" ", 1)[1] for x in PROJECT["classifiers"] if "Python :: 3." in x}
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix
    assert set(re.findall(r"3\.\d+", matrix[1])) == promised


def test_what_make_installs_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), (
        "exact versions, no local tag"
    )
    pinned = {package(pin) for pin in pins}
    extras = PROJECT["optional-dependencies"]
    wanted = {package(r) for r in PROJECT["dependencies"]}
    wanted |= {package(r) for group in extras.values() for r in group}
    assert wanted - pinned == NOT_PINNED & wanted


def test_peers_are_measured_with_the_same_torch() -> None:
    pin = re.search(r"^torch==.+$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pin
    for path in (ROOT / "benchmarks" / "peers").glob("*/requirements.txt"):
        assert pin[0] in path.read_text().splitlines(), path


def test_licence_is_apache() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
