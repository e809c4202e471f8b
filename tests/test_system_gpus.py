"""Which GPUs a process has, told without loading torch, and why torch uses none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gossamer
import gossamer.run.train as train_module
from gossamer.system.gpus import gpus_of, torch_backend, unused_gpus, visible_gpus

VERSION = "__all__ = ['__version__', 'cuda', 'hip']\n__version__ = '2.13.0'\ncuda: Optional[str] = {}\nhip: Optional[str] = {}\n"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Return a function that has a torch installed with such a version.py; None: with no torch at all."""

    def build(text: str | None) -> None:
        (tmp_path / "torch").mkdir(exist_ok=True)
        if text is not None:
            (tmp_path / "torch/version.py").write_text(text)
        spec = SimpleNamespace(origin=str(tmp_path / "torch/__init__.py"))
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if text is None else spec
        )

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return build


def put(root: Path, *names: str, text: str = "") -> Path:
    """Make files below a root, and return it."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        (VERSION.format("'13.0'", "None"), "cuda"),
        (VERSION.format("None", "'6.4.1'"), "hip"),
        (VERSION.format("None", "None"), ""),
        ("cuda = None\n", ""),
        ("__version__ = '9'\n", "cuda"),
        (None, ""),
    ],
)
def test_what_torch_was_built_for(built, text: str | None, backend: str) -> None:
    built(text)
    assert torch_backend() == backend


def test_the_build_is_found_without_loading_torch() -> None:
    program = (
        "import sys; from gossamer.system.gpus import torch_backend; b = torch_backend(); "
        "assert 'torch' not in sys.modules; import torch; "
        "assert b == ('cuda' if torch.version.cuda else 'hip' if torch.version.hip else ''), b"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_gpus_are_counted_by_their_files(built, tmp_path: Path) -> None:
    built(VERSION.format("'13.0'", "None"))
    assert visible_gpus(tmp_path) == []
    put(tmp_path / "a", "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm")
    assert visible_gpus(tmp_path / "a") == ["0", "1"]
    put(tmp_path / "b", "dev/dxg")
    assert visible_gpus(tmp_path / "b") == [], "Windows' Linux without a driver of NVIDIA's"
    put(tmp_path / "b", "usr/lib/wsl/lib/libcuda.so.1")
    assert visible_gpus(tmp_path / "b") == ["0"]


def test_amd_gpus_are_told_from_processors(built, tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    put(tmp_path, f"{nodes}/0/gpu_id", text="0\n")
    put(tmp_path, f"{nodes}/1/gpu_id", f"{nodes}/2/gpu_id", text="51966\n")
    built(VERSION.format("None", "'6.4.1'"))
    assert visible_gpus(tmp_path) == ["0", "1"]
    built(VERSION.format("'13.0'", "None"))
    assert visible_gpus(tmp_path) == [], "this torch computes on NVIDIA's alone"


def test_a_torch_for_cpus_sees_no_gpu(built, tmp_path: Path) -> None:
    built(VERSION.format("None", "None"))
    put(tmp_path, "dev/nvidia0")
    assert visible_gpus(tmp_path) == []
    assert gpus_of("cuda", tmp_path) == ["0"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        *(("", []), ("-1", []), ("2", ["2"]), ("0,GPU-8f3", ["0", "GPU-8f3"])),
        *(("NoDevFiles", []), ("none", []), ("0,-1,1", ["0"]), ("0,1,", ["0", "1"])),
    ],
)
def test_the_variable_decides(
    built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    found: list[str],
) -> None:
    built(VERSION.format("'13.0'", "None"))
    put(tmp_path, "dev/nvidia0", "dev/nvidia1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus(tmp_path) == found
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (unused_gpus(tmp_path) != "") == bool(found)
    assert unused_gpus(tmp_path / "elsewhere") == "", "whatever is named, there is none"
    built(VERSION.format("None", "'6.4.1'"))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3")
    assert visible_gpus(tmp_path) == [], "whatever the variable names"
    put(tmp_path, "sys/class/kfd/kfd/topology/nodes/1/gpu_id", text="4711")
    assert visible_gpus(tmp_path) == ["3"]


def test_a_gpu_that_torch_does_not_use_is_told(
    built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    built(VERSION.format("None", "None"))
    assert unused_gpus(tmp_path) == "", "there is none"
    put(tmp_path, "dev/nvidia0")
    assert unused_gpus(tmp_path).startswith("1 GPU not used: torch ")
    assert "built for CPUs only" in unused_gpus(tmp_path)
    built(VERSION.format("'13.0'", "None"))
    put(tmp_path, "dev/nvidia1")

    def fail() -> None:
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by\n"
            "downloading it."
        )

    monkeypatch.setattr(torch.cuda, "init", fail)
    told = unused_gpus(tmp_path)
    assert told.startswith("2 GPUs not used: torch ")
    assert told.endswith(": The NVIDIA driver on your system is too old (found version 12020)")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unused_gpus(tmp_path) == ""


@pytest.mark.parametrize(("device", "lines"), [("auto", 1), ("cpu", 0)])
def test_a_run_says_so_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    device: str,
    lines: int,
) -> None:
    put(tmp_path, "dev/nvidia0")
    monkeypatch.setattr(train_module, "unused_gpus", lambda: unused_gpus(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gossamer.train(
        "CartPole-v1",
        presets=["debug"],
        device=device,
        total_env_steps=64,
        run_folder=str(tmp_path / "run"),
    )
    output = "".join(capfd.readouterr())
    assert output.count("1 GPU not used: torch") == lines
    assert (tmp_path / "run/log.txt").read_text().count("1 GPU not used: torch") == lines
