"""The GPUs of this machine, found without loading torch: which there are, and which torch will use."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from contextlib import suppress
from pathlib import Path


def torch_backend() -> str:
    """Return what the installed torch was built for: cuda, hip (AMD's), or "" for CPUs alone.

    Of a torch that does not say, it is cuda.
    """
    with suppress(ImportError, ValueError, OSError):
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            return ""
        text = Path(found.origin).with_name("version.py").read_text()
        told = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(\S+)", text, re.MULTILINE))
        if told:
            return next((name for name in ("cuda", "hip") if told.get(name, "None") != "None"), "")
    return "cuda"


VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Environment variables that name the GPUs that a process may use; the first one that is set counts."""
NAME = re.compile(r"\s*(\d|GPU-|MIG-)")
"""Beginning of a GPU's name there."""


def count_gpus(maker: str, root: Path = Path("/")) -> int:
    """Return how many GPUs the machine has.

    Args:
        maker: cuda (NVIDIA's) or hip (AMD's).
        root: that /dev, /sys and /usr are looked up in.
    """
    if maker == "hip":
        nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        return sum(_text(path) not in ("", "0") for path in nodes)  # a processor's is 0
    # On Windows' Linux they have no files of their own; that there is a driver tells of one.
    in_windows = (root / "dev/dxg", root / "usr/lib/wsl/lib/libcuda.so.1")
    return len(list((root / "dev").glob("nvidia[0-9]*"))) or int(
        all(x.exists() for x in in_windows)
    )


def gpus_of(maker: str, root: Path = Path("/")) -> list[str]:
    """Return the GPUs that this process may use, by what CUDA_VISIBLE_DEVICES calls them; arguments as for `count_gpus`."""
    visible = next((os.environ[x] for x in VARIABLES[maker] if x in os.environ), None)
    if visible is not None:  # what names none, as NoDevFiles, hides all behind it
        return list(itertools.takewhile(NAME.match, visible.split(",")))
    return [str(i) for i in range(count_gpus(maker, root))]


def visible_gpus(root: Path = Path("/")) -> list[str]:
    """Return the GPUs that torch will see in this process, by what CUDA_VISIBLE_DEVICES calls them."""
    backend = torch_backend()
    if not backend or not count_gpus(backend, root):  # whatever the variable names
        return []
    return gpus_of(backend, root)


def unused_gpus(root: Path = Path("/")) -> str:
    """Say which GPUs torch does not use, and why, where it uses none; empty: there are none. This loads torch."""
    import torch

    backend = torch_backend()
    maker = backend or "cuda"
    count = min(
        len(gpus_of(maker, root)), count_gpus(maker, root)
    )  # the variable may name what is not there
    if not count or torch.cuda.is_available():
        return ""
    there = f"{count} GPU{'s' * (count > 1)} not used: torch {torch.__version__}"
    if not backend:
        return f"{there} is built for CPUs only (pytorch.org, Get Started, has builds for GPUs)"
    try:
        torch.cuda.init()
        why = "finds none"
    except (RuntimeError, AssertionError) as error:
        why = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{there}: {why}"


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
