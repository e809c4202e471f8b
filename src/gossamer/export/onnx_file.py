"""A policy's step as an ONNX file, and steps taken with it by ONNX Runtime."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import torch

from gossamer.export.metadata import KEY
from gossamer.export.program import make_program, quiet, unexportable
from gossamer.machine import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.export.recording import Arrays
    from gossamer.export.step import OneStep

OPSET = 18
"""Version of ONNX's operators: of 2022, which runtimes of all platforms know."""
_NEEDED = ("onnx", "onnxruntime", "onnxscript")


def refuse_without_onnx() -> None:
    """Raise ConfigError where a package that ONNX files need is not installed."""
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"--format onnx needs {name}", "export")


def onnx_bytes(step: OneStep, description: dict[str, Any]) -> bytes:
    """Return an ONNX file, with the description in its metadata under `gossamer`."""
    program = make_program(step)
    try:
        with quiet():
            made: Any = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(description["inputs"]),
                output_names=list(description["outputs"]),
                verbose=False,
            )
        model: Any = made.model_proto
        _tidy(model)
        model.producer_name = "gossamer"
        model.producer_version = description["gossamer"]
        entry = model.metadata_props.add()
        entry.key, entry.value = KEY, json.dumps(description)
        return model.SerializeToString()
    except Exception as error:  # whatever torch or protobuf, of more than 2 GiB, raise
        raise unexportable("torch.onnx.export", error) from error


def _tidy(model: Any) -> None:
    """Call the first dimension by its name, and take out where on this machine each line of code lies."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        dims[0].ClearField("dim_value")
        dims[0].dim_param = "batch"
        del value.metadata_props[:]
    del graph.value_info[:]
    del graph.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for tensor in graph.initializer:
        del tensor.metadata_props[:]
    del model.metadata_props[:]


def onnx_step(data: bytes) -> Callable[[Arrays], Arrays]:
    """Return what takes steps with an ONNX file."""
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]

    def step(inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return step
