"""What benchmarks/gpu.py asks for where it is tried without a GPU, and where a program is missing."""

from __future__ import annotations

import argparse
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

GPU: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "benchmarks" / "gpu.py"), run_name="gpu"
)


@pytest.mark.parametrize("dry", [True, False])
def test_kills_are_tried_without_a_gpu(monkeypatch: pytest.MonkeyPatch, dry: bool) -> None:
    asked: list[str] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.extend(words)
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert GPU["PARTS"]["kill"](argparse.Namespace(dry=dry), 0) == {"survived": True}
    assert ("cuda" in asked) != dry


def test_a_program_that_is_missing_ends_one_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **_: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "taskset")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(GPU["Failed"], match="taskset"):
        GPU["PARTS"]["start"](argparse.Namespace(), 0)
