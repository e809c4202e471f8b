"""What a CUDA graph does, on a CPU: the aten calls of a function are recorded once, and only those are repeated.

    recorder = Recorder(lambda: [*policy.parameters(), batch.obs], pinned=[observations])
    recorder.capture(work)              # raises `Frozen` at what a capture would refuse, or would freeze wrongly
    ...                                 # write other data into the static tensors
    recorder.replay()

What a graph would freeze stays as it was here too: numbers of Python, shapes, the work of the host. It does not see other
threads but for what they write, work without a `device=` that would have been on a CPU, kernels that CUDA has in place of
several calls (recurrent layers, one_hot), nor how a pool of memory is used again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import gossamer
from gossamer.system.graphs import Graphs

SOURCES = Path(gossamer.__file__).parent
READS = {"tolist", "numpy", "__array__", "__dlpack__", "cpu", "item",
         "__bool__", "__int__", "__float__", "__index__"}  # fmt: skip
MADE_ON_HOST = {"from_numpy", "frombuffer", "tensor", "as_tensor", "pin_memory"}
REBINDS = {"aten::set_", "aten::resize_", "aten::set_data"}
COPIES = {"aten::copy_", "aten::_to_copy", "aten::clone"}


class Frozen(RuntimeError):
    """Something that a graph would refuse, or freeze wrongly."""


@dataclass
class Call:
    """An aten call to be repeated."""

    function: Any
    args: Any
    kwargs: Any
    outputs: list[tuple[int, Tensor]]
    """Tensors that it made, by their place among what it returned: they are written again."""
    line: str
    """Of the package, where it was asked for."""

    @property
    def name(self) -> str:
        return str(self.function)


class Recorder(TorchDispatchMode):
    """Records and repeats one function.

    Args:
        static: names the tensors that have been there before; asked again at each replay, as one that was replaced since
            would not be seen.
        pinned: tensors that would be in the host's memory: they may only be copied from and to.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        """Torch's compiler, which would be told to skip these calls, takes seconds to import."""
        return False

    def __init__(self, static, pinned=()):
        super().__init__()
        self._name_static = static
        self._static = _with_numbers(static())
        self._addresses = {id(x): x.data_ptr() for x in self._static}
        self._pinned = {_memory(x): x for x in pinned}
        self._known = {
            _memory(x): x for x in self._static
        }  # static, or made by a call that is repeated
        self._on_host = dict(self._pinned)  # and what was made of them
        self._versions: dict[int, int] = {}
        self._counts_apart: set[int] = set()
        self._blind = 0
        self.calls: list[Call] = []

    @property
    def kernels(self):
        """Names of the calls that a GPU would compute something for."""
        return [call.name for call in self.calls if "empty" not in call.name]

    def capture(self, work):
        with _Methods(self), self:
            work()

    @torch.no_grad()
    def replay(self):
        found = {id(x): x.data_ptr() for x in _with_numbers(self._name_static())}
        for x in self._static:
            if found.get(id(x)) != self._addresses[id(x)]:
                raise Frozen(f"a static tensor {tuple(x.shape)} has moved, or was replaced")
        for call in self.calls:
            made = [
                x
                for x in tree_leaves(call.function(*call.args, **call.kwargs))
                if isinstance(x, Tensor)
            ]
            for place, x in call.outputs:
                x.copy_(made[place])

    def is_on_host(self, x):
        return _memory(x) in self._on_host

    def refuse(self, what):
        raise Frozen(f"{_line()}: {what}")

    def unseen(self, function, args, kwargs):
        """Call what on a CPU looks at tensors, and on a GPU does not."""
        self._blind += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._blind -= 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        base = func.name().split(".")[0]
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        inputs = _with_numbers(given)
        if not self._blind:
            self._judge(func, base, args, kwargs, inputs)
        for x in inputs:
            known = self._versions.setdefault(_memory(x), x._version)
            if x._version > known and _memory(x) not in self._counts_apart:
                self.refuse(
                    f"{base} of {tuple(x.shape)}, which was written unseen by another thread"
                )
            self._known.setdefault(_memory(x), x.detach())
        before = {_memory(x) for x in given}
        found = func(*args, **kwargs)
        for x in _written(func, args, kwargs):
            self._versions[_memory(x)] = x._version + 1
        outputs = [x for x in tree_leaves(found) if isinstance(x, Tensor)]
        if inputs and all(self.is_on_host(x) for x in inputs) and base != "aten::copy_":
            self._on_host |= {_memory(x): x.detach() for x in outputs if not self.is_on_host(x)}
            return found
        if base.startswith("aten::unsafe_"):  # its parts count their versions apart
            self._counts_apart |= {_memory(x) for x in outputs}
        new = [(i, x.detach()) for i, x in enumerate(outputs) if _memory(x) not in before]
        for _, x in new:
            self._known[_memory(x)] = x
            self._versions[_memory(x)] = x._version
        if new or func._schema.is_mutable:  # not a view
            args, kwargs = tree_map_only(Tensor, lambda x: x.detach(), (args, kwargs))
            self.calls.append(Call(func, args, kwargs, new, _line()))
        return found

    def _judge(self, func, base, args, kwargs, inputs):
        leaves = tree_leaves((args, kwargs))
        host = [x for x in inputs if self.is_on_host(x)]
        if inputs and len(host) == len(inputs):
            looks = torch.Tag.data_dependent_output in func.tags or func._schema.is_mutable
            if looks and base != "aten::copy_":
                self.refuse(f"{base} of a tensor of the host would be frozen")
            return
        if host:
            if base not in COPIES:
                self.refuse(f"{base} takes a tensor of the host")
            if any(_memory(x) not in self._pinned for x in host):
                self.refuse(f"{base} from memory of the host that is another each time")
        if torch.Tag.data_dependent_output in func.tags:
            self.refuse(f"{base} reads a tensor back to Python")
        by_booleans = any(
            isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in leaves[1:]
        )
        shape = torch.Tag.dynamic_output_shape in func.tags
        if shape and (by_booleans or not base.startswith("aten::index")):
            self.refuse(f"{base} has a shape that depends on the data")
        if base.startswith("aten::index_put") and inputs[-1].numel() > 1 and by_booleans:
            self.refuse(f"{base} at booleans")
        if torch.Tag.nondeterministic_seeded in func.tags or any(
            isinstance(x, torch.Generator) for x in leaves
        ):
            self.refuse(f"{base} draws random numbers")
        if base in REBINDS:
            self.refuse(f"{base} gives a tensor other memory")
        if base in ("aten::lift_fresh", "aten::lift_fresh_copy"):
            self.refuse(f"{base} makes a tensor of numbers of Python")
        for x in inputs:
            if _memory(x) not in self._known and _memory(x) not in self._on_host:
                self.refuse(
                    f"{base} of {tuple(x.shape)} {x.dtype}, which is not among the static tensors"
                )


class _Methods(TorchFunctionMode):
    """Sees calls that never reach the dispatcher."""

    def __init__(self, recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, recorder = getattr(func, "__name__", ""), self._recorder
        if (
            name in READS
            and args
            and isinstance(args[0], Tensor)
            and not recorder.is_on_host(args[0])
        ):
            recorder.refuse(f"Tensor.{name}() reads a tensor back to Python")
        if name in MADE_ON_HOST:
            recorder.refuse(f"torch.{name} makes a tensor of numbers of Python")
        if name == "one_hot" or (
            name == "__setitem__" and not isinstance(args[2], (Tensor, list, tuple))
        ):
            return recorder.unseen(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class Called:
    """An engine that calls the function each time: what is replayed has to equal it."""

    def __init__(self, static, pinned):
        self._work = None

    def capture(self, work):
        self._work = work
        work()

    def replay(self):
        self._work()


def calling():
    """Return what makes captured functions that are called each time."""
    return Graphs(torch.device("cpu"), engine=Called)


def recording(recorders=None):
    """Return what makes captured functions of recorders, which are appended to a list if there is one."""

    def make(static, pinned):
        recorder = Recorder(static, pinned)
        if recorders is not None:
            recorders.append(recorder)
        return recorder

    return Graphs(torch.device("cpu"), engine=make)


def _with_numbers(tensors):
    return [x for x in tensors if x.numel()]


def _memory(x):
    return x.untyped_storage()._cdata


def _written(func, args, kwargs):
    found = []
    for i, x in enumerate(func._schema.arguments):
        if x.alias_info is not None and x.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(x.name)
            found += [y for y in tree_leaves(given) if isinstance(y, Tensor)]
    return found


def _line():
    node = torch._C._current_autograd_node()
    return f"{innermost_line()} [backward of {node.name()}]" if node else innermost_line()


def innermost_line() -> str:
    """Return the innermost line of the package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCES):
            return f"{path.relative_to(SOURCES)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "a test"
