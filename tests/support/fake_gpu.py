"""A GPU's code without a GPU: the device `meta`, and a mode that lists what would wait for the device.

Tensors on `meta` have shapes and no numbers. What asks for numbers is answered with ones and listed; what
mixes devices raises, as it would on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from typing import NamedTuple

import pytest
import torch
from recorder import innermost_line
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.run.placements.host_learners import build_learners
from gossamer.system import devices

META = torch.device("meta")
aten = torch.ops.aten
COPIES = (
    aten._to_copy.default,
    aten.copy_.default,
    aten._foreach_copy_.default,
    aten.index_copy_.default,
)
INNERMOST: list[TorchFunctionMode] = []
FUSED = (aten._fused_adam_.tensor_lr, aten._fused_adamw_.tensor_lr)
MATRIX = ("linear", "conv2d")
REAL_AUTOCAST = torch.autocast


class Wait(NamedTuple):
    """Something for which the host waits for the device."""

    what: str
    line: str


class FakeGpu(TorchDispatchMode):
    """Context in which tensors on `meta` are as on a GPU; `waits` and `sent` list copies from and to it."""

    @classmethod
    def _should_skip_dynamo(cls):
        """Torch's compiler, which would be told to skip these calls, takes seconds to import."""
        return False

    def __init__(self):
        super().__init__()
        self.waits: list[Wait] = []
        self.sent: list[Wait] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is aten._local_scalar_dense.default and args[0].device == META:
            self._wait(func)
            return _answer(args[0].dtype)
        if func is aten.nonzero.default and args[0].device == META:  # of everything
            self._wait(func)
            return torch.empty((args[0].numel(), args[0].ndim), dtype=torch.int64, device=META)
        if func is aten.index.Tensor and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        ):
            self._wait(func)  # for how many rows are chosen: all
            chosen = args[1][0].ndim
            return args[0].new_empty((args[1][0].numel(), *args[0].shape[chosen:]))
        if func in COPIES:
            return self._copy(func, args, kwargs)
        inputs = _tensors((*args, *kwargs.values()))
        if any(x.device == META for x in inputs):
            mixed = [x for x in inputs if x.device != META and x.ndim]
            assert not mixed or func is aten._cudnn_rnn.default, (
                f"{func} mixes devices: {innermost_line()}"
            )
        if func in FUSED and inputs[0].device == META:  # meta knows no such kernel
            return None
        if kwargs.get("generator") is not None and inputs and inputs[0].device == META:
            kwargs["generator"] = None
        return func(*args, **kwargs)

    def _copy(self, func, args, kwargs):
        if func is aten._to_copy.default:
            source, device = args[0], kwargs.get("device") or args[0].device
            waits = not kwargs.get("non_blocking")
            if source.device == META and device.type == "cpu":
                if waits:
                    self._wait(func)
                found = torch.empty_like(source, device="cpu", dtype=kwargs.get("dtype"))
                return found.fill_(_answer(found.dtype))
            if source.device.type == "cpu" and device == META:
                self._send(func, waits)
            return func(*args, **kwargs)
        if func is aten.copy_.default:
            targets, sources = [args[0]], [args[1]]
        elif func is aten._foreach_copy_.default:
            targets, sources = args[0], args[1]
        else:
            targets, sources = [args[0]], [args[3]]
            devices_of = {x.device for x in (args[0], args[2], args[3])}
            assert len(devices_of) == 1, f"{func} mixes devices: {innermost_line()}"
        waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
        for target, source in zip(targets, sources, strict=True):
            if source.device == META and target.device.type == "cpu":
                if waits:
                    self._wait(func)
                target.fill_(_answer(target.dtype))
            elif source.device.type == "cpu" and target.device == META:
                self._send(func, waits)
            elif func is aten.index_copy_.default:
                target.index_copy_(*args[1:])
            else:
                target.copy_(source)
        return args[0] if func is not aten._foreach_copy_.default else None

    def _wait(self, func):
        self.waits.append(Wait(str(func), innermost_line()))

    def _send(self, func, waits):
        """Note a copy to the device; one that is not asked to be made in its time is waited for, too."""
        self.sent.append(Wait(str(func), innermost_line()))
        if waits:
            self._wait(f"{func} to the device")


def _tensors(values):
    """Return the tensors among values, and in lists of them; torch's own way takes several times as long."""
    found = []
    for x in values:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found += _tensors(x)
    return found


def _answer(dtype):
    """Return what a number on the device is; bytes may be of anything, even of an action."""
    return {torch.bool: True, torch.int64: 1, torch.uint8: 0}.get(dtype, 1.0)


class _Autocast(TorchFunctionMode):
    """What autocast does to matrix products; torch has none for `meta`."""

    def __init__(self, device_type, dtype=None, enabled=True):
        super().__init__()
        self.dtype, self.enabled = dtype, enabled

    def __enter__(self):
        INNERMOST.append(self)
        return super().__enter__()

    def __exit__(self, *error):
        INNERMOST.remove(self)
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if INNERMOST[-1] is self and self.enabled and getattr(func, "__name__", "") in MATRIX:
            args = [
                x.to(self.dtype) if isinstance(x, Tensor) and x.device == META else x for x in args
            ]
        return func(*args, **(kwargs or {}))


def _autocast(device_type, dtype=None, enabled=True, cache_enabled=True):
    kind = _Autocast if device_type == "meta" else REAL_AUTOCAST
    return kind(device_type, dtype=dtype, enabled=enabled)


class _Generator(torch.Generator):
    """Of the CPU, in place of one of `meta`."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, device="cpu" if torch.device(device) == META else device)


@contextlib.contextmanager
def fake_gpu():
    """Yield a mode in which a policy on `meta` acts and learns."""
    with pytest.MonkeyPatch.context() as patch, FakeGpu() as mode:
        patch.setattr(torch, "autocast", _autocast)
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(
            devices, "wait", lambda device: mode.waits.append(Wait("wait", innermost_line()))
        )
        for optimizer in ("adam", "adamw"):  # of torch 2.9 the second is made of the first
            module = importlib.import_module(f"torch.optim.{optimizer}")
            name = "_device_dtype_check_for_fused"
            patch.setattr(module, name, lambda *_: None, raising=optimizer == "adam")
        yield mode


@contextlib.contextmanager
def fake_run(env_id, **settings):
    """Yield the learners of a run whose policies are on the fake GPU, and its mode."""
    base = {"placement": "inline", "num_envs": 2, "unroll_length": 4, "device": "cpu",
            "evaluation.every_seconds": 0.0, "env_threads": 1}  # fmt: skip
    config = make_config(env_id, {**base, **settings})
    spec = read_spec(env_id, config.env, 0, tries=False)
    plan = dataclasses.replace(make_plan(config, spec), device="meta", learner_threads=1)
    with fake_gpu() as mode:
        learners = build_learners(config, spec, plan)
        try:
            learners.join()
            yield learners, mode
        finally:
            learners.close()
