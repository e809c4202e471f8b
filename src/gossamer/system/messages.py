"""Typed messages: JSON by their types, and beside it the tensors and arrays in them, as memory.

They are what processes and machines tell each other, whatever carries them: a socket with descriptors (`channel`), a
connection (`wire`), or Ray. Nothing that is read can execute code. Floats come back bit for bit, NaN included, and whole
numbers of any size.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

import msgspec
import numpy as np
import torch
from torch import Tensor

from gossamer.system.blocks import Place, aligned, view

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

_LENGTH_BYTES = 8
"""At the beginning of a message in one piece: how long its head is."""


class Message(msgspec.Struct, frozen=True, tag_field="type", eq=False):
    """Base of the messages; the name of its class travels with each, so that a reader may expect one of several."""


class Packed(NamedTuple):
    """A message as it travels."""

    head: bytes
    """JSON of the message, and where its tensors lie in the memory beside."""
    nbytes: int
    """Size of that memory."""
    places: list[Place]
    tensors: list[Tensor]

    def write(self, memory: Any) -> None:
        """Copy the tensors into the memory beside."""
        for place, x in zip(self.places, self.tensors, strict=True):
            view(memory, place).copy_(x)

    @property
    def whole_nbytes(self) -> int:
        """Size of the message in one piece."""
        return aligned(_LENGTH_BYTES + len(self.head)) + self.nbytes

    def write_whole(self, memory: Any) -> None:
        """Write the message in one piece: the length of the head, the head, and the memory beside."""
        begin, length = aligned(_LENGTH_BYTES + len(self.head)), len(self.head)
        block = memoryview(memory)
        block[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "little")
        block[_LENGTH_BYTES : _LENGTH_BYTES + length] = self.head
        self.write(block[begin:])

    def chunks(self) -> Iterator[memoryview | bytes]:
        """Yield the memory beside piece by piece, from where the tensors lie."""
        end = 0
        for place, x in zip(self.places, self.tensors, strict=True):
            if x.numel():
                yield bytes(place.offset - end)
                end = place.offset + x.nbytes
                yield _bytes_of(x, tuple(place.stride))
        yield bytes(self.nbytes - end)


def pack(message: Any) -> Packed:
    """Encode a message, or a named tuple of plain data, tensors and arrays; its tensors are not copied yet.

    Raises:
        TypeError: it holds what is neither plain data nor a tensor.
    """
    places: list[Place] = []
    tensors: list[Tensor] = []
    offset = 0

    def set_aside(x: object) -> object:
        nonlocal offset
        if isinstance(x, msgspec.Struct):
            tag = {"type": x.__struct_config__.tag} if isinstance(x, Message) else {}
            return tag | {name: getattr(x, name) for name in x.__struct_fields__}
        if dataclasses.is_dataclass(x):
            return {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(x)
        if not isinstance(x, Tensor):
            raise TypeError(f"a {type(x).__name__} cannot be told to another process")
        # A change of memory order costs more than a copy.
        dense = x.is_contiguous() or not x.numel()
        stride = x.stride() if dense else torch.empty_like(x, device="meta").stride()
        dtype = str(x.dtype).removeprefix("torch.")
        places.append(Place("", dtype, list(x.shape), list(stride), offset))
        tensors.append(x.detach())
        offset += aligned(x.nbytes)
        return {"tensor": len(tensors) - 1}

    text = json.dumps(message, default=set_aside)
    told = json.dumps({"nbytes": offset, "places": [x[1:] for x in places]})
    return Packed(f'{told[:-1]}, "message": {text}}}'.encode(), offset, places, tensors)


class _Told(msgspec.Struct):
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    places: list[tuple[str, list[int], list[int], Annotated[int, msgspec.Meta(ge=0)]]]
    message: Any


class Head:
    """The head of a message, from which the memory beside it follows, and with that the message.

    Args:
        head: of a `Packed`.

    Raises:
        ValueError: it is no head.
    """

    def __init__(self, head: bytes | bytearray | memoryview):
        try:
            told = msgspec.convert(json.loads(bytes(head)), _Told)
        except RecursionError as error:
            raise ValueError("a message is nested too deeply") from error
        self._plain, self._places = told.message, told.places
        tag = told.message.get("type") if isinstance(told.message, dict) else None
        self._tag = tag if isinstance(tag, str) else ""
        self.nbytes = told.nbytes
        """Size of the memory beside it."""

    def is_a(self, kinds: tuple[type[Message], ...]) -> bool:
        """Return whether the message is of one of these classes."""
        return any(kind.__struct_config__.tag == self._tag for kind in kinds)

    def unpack(self, expected: Any, memory: Any = None) -> Any:
        """Return the message.

        Args:
            expected: its class, or a union of messages' classes.
            memory: what came beside it, in which its tensors are views; None: nothing did.

        Raises:
            ValueError: it is of no such class, or tensors stand where the class has none.
        """
        taken: set[int] = set()

        def take_back(wanted: Any, index: Any) -> Any:
            at = index.get("tensor") if isinstance(index, dict) else None
            if type(at) is not int or not 0 <= at < len(self._places):
                raise ValueError("a tensor is told that did not come")
            taken.add(at)
            try:
                x = view(memory, Place("", *self._places[at]))
            except (TypeError, RuntimeError, AttributeError, AssertionError) as error:
                raise ValueError(f"a tensor does not fit its memory: {error}") from None
            return x if wanted is Tensor else _array(x, wanted)

        known = _by_tag(expected).get(self._tag, expected)
        found = msgspec.convert(self._plain, known, dec_hook=take_back, str_keys=True)
        if len(taken) < len(self._places):
            raise ValueError(f"a {type(found).__name__} holds a tensor where none is told of")
        return found


def to_array(message: Any) -> NDArray[np.uint8]:
    """Return a message in one array of bytes."""
    packed = pack(message)
    array = np.empty(packed.whole_nbytes, np.uint8)
    packed.write_whole(array)
    return array


def from_whole(block: Any, expected: Any) -> Any:
    """Return the message that lies in one piece in a block; its tensors are views there.

    Args:
        block: anything with a buffer.
        expected: its class, or a union of messages' classes.

    Raises:
        ValueError: it is of no such class.
    """
    memory = memoryview(block)
    length = int.from_bytes(memory[:_LENGTH_BYTES], "little")
    head = Head(memory[_LENGTH_BYTES : _LENGTH_BYTES + length])
    begin = aligned(_LENGTH_BYTES + length)
    return head.unpack(expected, memory[begin : begin + head.nbytes] if head.nbytes else None)


@functools.cache
def _by_tag(expected: Any) -> Mapping[Any, type]:
    """Return the classes of a union by the name that travels with them: a union as a whole takes longer to decode."""
    kinds = [x for x in get_args(expected) if issubclass(x, Message)]
    return {kind.__struct_config__.tag: kind for kind in kinds}


def _array(x: Tensor, wanted: Any) -> NDArray[Any]:
    array = x.numpy()
    if get_origin(wanted) is np.ndarray:
        (dtype,) = get_args(get_args(wanted)[1])
        if array.dtype != dtype:
            raise ValueError(
                f"an array of {array.dtype} stands where one of {dtype.__name__} belongs"
            )
    return array


def _bytes_of(x: Tensor, stride: tuple[int, ...]) -> memoryview:
    """Return the bytes of a tensor in this memory order; not copied if it has that order already."""
    if x.stride() != stride:
        x = torch.empty_strided(x.shape, stride, dtype=x.dtype).copy_(x)
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy().data
