"""A policy's step as a torch program: for `torch.export.load`, and as what ONNX files are made from."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.torch_version import TorchVersion

from gossamer.errors import RunFailed
from gossamer.export.metadata import KEY
from gossamer.machine import threads
from gossamer.spec import nested_obs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch.export import ExportedProgram

    from gossamer.export.recording import Arrays
    from gossamer.export.step import OneStep

TESTED_TORCH = "2.13"
EXAMPLE_BATCH = 3
"""Columns of the inputs that a step is followed with; torch takes a single one, or two, for special cases."""


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Context in which torch's exporters say nothing to those who use them through us."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def make_program(step: OneStep) -> ExportedProgram:
    """Follow a step through its network, for batches of any size.

    Raises:
        RunFailed: torch cannot follow the network, as feature layers of the user's may be written.
    """
    inputs = step.inputs(EXAMPLE_BATCH)
    arguments = nested_obs(inputs)
    batch = torch.export.Dim("batch", min=1)
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(
                step,
                (),
                arguments,
                dynamic_shapes=nested_obs({name: {0: batch} for name in inputs}),
            )
    except Exception as error:  # whatever the user's layers, or torch about them, raise
        raise unexportable("torch.export", error) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names files of this machine
    return program


def unexportable(what: str, error: Exception) -> RunFailed:
    """Return the error for a network that an exporter does not understand."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    told = f"{what} cannot follow this network, so nothing was written: {reason}"
    if has_old_exporters():
        told += f"; torch {torch.__version__} is old, and {TESTED_TORCH} exports every network"
    return RunFailed(told)


def has_old_exporters() -> bool:
    """Return whether this torch is older than the one that exports every network: to ONNX, recurrent cores need that."""
    return TorchVersion(torch.__version__) < TorchVersion(TESTED_TORCH)


def program_bytes(step: OneStep, description: dict[str, Any]) -> bytes:
    """Return a torch program's archive, with the description in it as gossamer.json."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(
            make_program(step), file, extra_files={f"{KEY}.json": json.dumps(description)}
        )
    return file.getvalue()


def program_step(data: bytes) -> Callable[[Arrays], Arrays]:
    """Return what takes steps with an archive of our own making."""
    with quiet():
        return module_step(torch.export.load(io.BytesIO(data)).module())


def module_step(module: torch.nn.Module) -> Callable[[Arrays], Arrays]:
    """Return what takes steps with a module."""

    def step(inputs: Arrays) -> Arrays:
        with torch.no_grad(), threads(1):
            said = module(**nested_obs({name: torch.tensor(x) for name, x in inputs.items()}))
        return {name: x.numpy() for name, x in said.items()}

    return step
