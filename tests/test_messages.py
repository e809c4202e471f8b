"""Typed messages: what is read is what was told, bit for bit, whatever carries it, and nothing else is read."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from gossamer.system.messages import Head, Message, from_whole, pack, to_array


class Said(Message, frozen=True):
    words: dict[str, Any]
    tensors: dict[str, Tensor] = {}
    arrays: tuple[NDArray[np.int64], ...] = ()


class Counted(Message, frozen=True):
    by_rank: dict[int, float]


KINDS = Said | Counted
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**130), 2**130) | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=10,
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
tensors = st.lists(
    st.tuples(
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 4), max_size=4),
        st.sampled_from(["as it is", "transposed", "every second", "expanded"]),
    ),
    max_size=4,
)


def made(dtype: torch.dtype, shape: list[int], form: str) -> Tensor:
    x = torch.randint(0, 2, shape).to(dtype)
    match form:
        case "transposed" if shape:
            return x.movedim(0, -1)
        case "every second" if shape:
            return x[::2]
        case "expanded":
            return x.expand(2, *shape)
        case _:
            return x


def over_a_connection(message: Message) -> Any:
    """What a `Wire` does: the head first, then the memory in pieces, into memory that holds something else."""
    packed = pack(message)
    memory = bytearray(b"".join(packed.chunks()) + b"older")
    assert len(memory) == packed.nbytes + 5
    return Head(packed.head).unpack(KINDS, memory)


def in_one_array(message: Message) -> Any:
    return from_whole(to_array(message), KINDS)


CARRIERS = pytest.mark.parametrize("carried", [over_a_connection, in_one_array])


def same(one: Any, other: Any) -> bool:
    """Whether they are equal, NaN to NaN and floats bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(x, other[k]) for k, x in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return math.isnan(one) == math.isnan(other) and (
            math.isnan(one) or struct.pack("d", one) == struct.pack("d", other)
        )
    return type(one) is type(other) and one == other


@CARRIERS
@given(words=st.dictionaries(st.text(max_size=5), plain, max_size=4), kinds=tensors)
def test_what_is_read_is_what_was_told(carried: Any, words: dict[str, Any], kinds: Any) -> None:
    told = {str(i): made(*kind) for i, kind in enumerate(kinds)}
    found = carried(Said(words, told))
    assert same(found.words, words)
    assert found.tensors.keys() == told.keys()
    for name, x in told.items():
        assert found.tensors[name].dtype == x.dtype
        assert torch.equal(found.tensors[name], x)


@CARRIERS
def test_arrays_and_numbers_of_numpy_are_told_too(carried: Any) -> None:
    arrays = np.arange(3), np.empty(0, np.int64), np.arange(6).reshape(2, 3)[:, 1]
    found = carried(Said({"mean": np.float64(0.1)}, arrays=arrays))
    assert found.words == {"mean": 0.1}
    for one, other in zip(found.arrays, arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    assert carried(Counted({3: math.inf, 12: -0.0})).by_rank == {3: math.inf, 12: 0.0}


def test_images_keep_their_memory_order() -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for carried in (over_a_connection, in_one_array):
        assert carried(Said({}, {"image": image})).tensors["image"].stride() == image.stride()


@pytest.mark.parametrize("word", [1j, {1}, b"bytes", object()])
def test_what_cannot_be_told_says_so(word: object) -> None:
    with pytest.raises(TypeError, match=f"a {type(word).__name__} cannot be told"):
        pack(Said({"x": word}))


@pytest.mark.parametrize("x", [torch.tensor(3.5), np.zeros(2), np.int64(3)])
def test_a_tensor_where_no_type_tells_of_one_is_refused(x: object) -> None:
    """Whoever reads would find a number in its place."""
    with pytest.raises((TypeError, ValueError), match=r"a tensor where none|cannot be told"):
        in_one_array(Said({"x": [x]}))


def test_arrays_are_of_the_kind_that_is_told() -> None:
    with pytest.raises(ValueError, match="an array of float32 stands where one of int64 belongs"):
        in_one_array(Said({}, arrays=(np.zeros(3, np.float32),)))  # type: ignore[arg-type]


def head(**changed: Any) -> bytes:
    plain = json.loads(pack(Said({}, {"a": torch.zeros(3)})).head)
    return json.dumps({**plain, **changed}).encode()


def said(at: Any) -> dict[str, Any]:
    return {"type": "Said", "words": {}, "tensors": {"a": at}}


@pytest.mark.parametrize(
    "hostile",
    [
        head(message={"type": "Unknown"}),
        head(message={"type": "Counted", "by_rank": "many"}),
        head(message={"type": ["Said"]}),
        head(message={"type": "Said", "words": {}}),
        head(message=7),
        *(
            head(message=said(at))
            for at in (-1, {"tensor": -1}, {"tensor": 1}, {"tensor": "a"}, {})
        ),
        head(places=[]),
        head(places={}),
        head(places=[7]),
        head(places=[["save", [3], [1], 0]]),
        head(places=[["Tensor", [3], [1], 0]]),
        head(places=[["float32", [3], [1], 1 << 40]]),
        head(places=[["float32", [3], [1], -4]]),
        head(places=[["float32", [3], [-1], 0]]),
        head(places=[["float32", [-3], [1], 0]]),
        head(places=[["float32", [3], [1 << 40], 0]]),
        head(places=[["float32", [1 << 40], [1], 0]]),
        head(nbytes=None),
        head(nbytes=-1),
        head(nbytes=math.inf),
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_nothing_but_a_message_is_read(hostile: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of which every part has its own words
        Head(hostile).unpack(KINDS, bytearray(64))
