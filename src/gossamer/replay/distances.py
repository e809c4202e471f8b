"""How near stored columns are to what the policy does now: the arithmetic by which selectors pick.

Elite and attentive sampling draw more candidates than wanted, measure each, and keep some.

Shapes: m candidates, n wanted, T rows, F features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


def draw(
    rng: np.random.Generator, held: int, wanted: int, multiplier: float = 1.0
) -> NDArray[np.int64]:
    """Draw candidates among `held` entries, all different: ceil(multiplier * wanted), or all there are."""
    # A whole product may come out a rounding above itself.
    num = min(math.ceil(multiplier * wanted - 1e-9), held)
    return rng.choice(held, size=num, replace=False)


def choose(
    distance: NDArray[np.float64], uses: NDArray[np.int64], wanted: int, strategy: str
) -> NDArray[np.int64]:
    """Return which candidates [at most n] are kept; fewer only if there are fewer.

    Args:
        distance: [m] >= 0; 0 is what the present policy would do.
        uses: [m] how often each was sampled before.
        wanted: n.
        strategy: nearest: the smallest distances. stratified: sorted by distance and cut into n segments,
            the smallest of each. least_used: the fewest uses, then the smallest distances.
            stratified_least_used: the fewest uses of each segment, then the smallest distance.
    """
    wanted = min(wanted, len(distance))
    if not wanted:
        return np.empty(0, dtype=np.int64)
    if strategy == "least_used":
        return np.lexsort((distance, uses))[:wanted]
    order = np.argsort(distance, kind="stable")
    if strategy == "nearest":
        return order[:wanted]
    segments = np.array_split(order, wanted)
    if strategy == "stratified":
        return np.array([segment[0] for segment in segments], dtype=np.int64)
    assert strategy == "stratified_least_used", strategy
    # Each segment is sorted by distance, and argmin takes the first of equals.
    return np.array([segment[np.argmin(uses[segment])] for segment in segments], dtype=np.int64)


@torch.no_grad()
def distances(now: Tensor, then: Tensor, kind: str, order: float = 2.0) -> Tensor:
    """Return how far features have moved: [m] float64, 0 where they are the same.

    Args:
        now: [T, m, F] or anything that broadcasts to it.
        then: [T, m, F], as stored: now is rounded to its precision first.
        kind: lp: the norm of the difference over T and F; cosine: 1 - cosine similarity over T and F; kl:
            sum over T of KL(softmax now || softmax then).
        order: p of lp, > 0.
    """
    shape = torch.broadcast_shapes(now.shape, then.shape)
    now = now.to(then.dtype).double().expand(shape)
    then = then.double().expand(shape)
    if kind == "kl":
        p, q = F.log_softmax(now, dim=-1), F.log_softmax(then, dim=-1)
        return (p.exp() * (p - q)).sum((0, 2)).clamp(min=0.0)
    if kind == "cosine":
        dot = (now * then).sum((0, 2))
        size = (now.square().sum((0, 2)) * then.square().sum((0, 2))).sqrt()
        same = (now == then).all(2).all(0)
        return torch.where(same, 0.0, 1.0 - dot / size.clamp(min=1e-30)).clamp(min=0.0)
    assert kind == "lp", kind
    moved = now - then
    if order <= 2.0:
        return torch.linalg.vector_norm(moved, ord=order, dim=(0, 2))
    largest = moved.abs().amax((0, 2))  # high powers of anything but 1 leave the range of numbers
    scaled = moved / largest.clamp(min=1e-300).unsqueeze(-1)
    return largest * torch.linalg.vector_norm(scaled, ord=order, dim=(0, 2))
