"""The optional recurrent layer between torso and heads, its state cleared where episodes start.

Shapes: R rows, B columns, S numbers of state a column, L layers, H units.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from gossamer.system import devices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gossamer.policies.settings import PolicyConfig


class Core(nn.Module):
    """LSTM, GRU or nothing, over rows of several columns."""

    def __init__(self, config: PolicyConfig, input_size: int):
        super().__init__()
        self.num_parts = {"none": 0, "gru": 1, "lstm": 2}[config.core]
        self.layers, self.units = config.core_layers, config.core_size
        self.state_size = self.num_parts * self.layers * self.units
        self.output_size = self.units if self.num_parts else input_size
        self.rnn: nn.LSTM | nn.GRU | None = None
        if self.num_parts:
            kind = nn.LSTM if config.core == "lstm" else nn.GRU
            self.rnn = kind(input_size, self.units, self.layers)
            for name, x in self.rnn.named_parameters():
                (nn.init.zeros_ if "bias" in name else nn.init.orthogonal_)(x)

    def forward(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run [R * B, input_size] through the rows of starts [R, B] from state [S, B].

        Several rows of starts are looked at, so they are best on the CPU, wherever the rest is.
        """
        if self.rnn is None:
            return x, state
        r, b = starts.shape
        if r > 1:
            starts = starts.cpu()
        if r == 1 or not starts[1:].any():
            return self._run_stretch(x.view(r, b, -1), starts, state)
        if devices.is_gpu(x.device):
            return self._run_packed(x, starts, state)
        x = x.view(r, b, -1)
        # One call a stretch without starts: cheap where episodes are long, exact everywhere.
        cuts = [0, *(starts[1:].any(dim=1).nonzero().flatten() + 1).tolist(), r]
        outputs: list[Tensor] = []
        for first, last in itertools.pairwise(cuts):
            output, state = self._run_stretch(x[first:last], starts[first:last], state)
            outputs.append(output)
        return torch.cat(outputs), state

    def _run_stretch(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run rows [R, B, input_size] of which none but the first starts an episode."""
        assert self.rnn is not None
        going_on = devices.send(~starts[0], state.device)
        parts = self._parts(state * going_on.to(state.dtype))
        output, after = self.rnn(x, (parts[0], parts[1]) if self.num_parts == 2 else parts[0])
        return output.flatten(0, 1), self._joined(after)

    def _run_packed(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run every episode's rows as a sequence of its own, all in one call that waits for nothing."""
        assert self.rnn is not None
        r, b = starts.shape
        packing = _packing(starts.numpy())
        sent = devices.send(torch.from_numpy(packing.indices), x.device)
        rows, back, columns, last = sent.split([r * b, r * b, packing.num, b])
        parts = self._parts(state)
        # Behind the columns of the state one of zeros, for sequences that begin with an episode.
        parts = torch.cat([parts, parts.new_zeros(*parts.shape[:2], 1, self.units)], dim=2)
        parts = parts.index_select(2, columns)
        packed = PackedSequence(x.index_select(0, rows), torch.from_numpy(packing.sizes))
        begin = (parts[0], parts[1]) if self.num_parts == 2 else parts[0]
        output, after = self.rnn(packed, begin)
        after = self._joined(after).index_select(1, last)
        return output.data.index_select(0, back), after

    def _parts(self, state: Tensor) -> Tensor:
        """[S, B] -> [parts, layers, B, units]."""
        b = state.shape[1]
        return state.view(self.num_parts, self.layers, self.units, b).transpose(2, 3).contiguous()

    def _joined(self, after: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Parts [layers, B, units] -> [S, B]."""
        parts = torch.stack(after) if isinstance(after, tuple) else after[None]
        return parts.transpose(2, 3).reshape(self.state_size, parts.shape[2])


class _Packing(NamedTuple):
    """How rows of columns become sequences, the longest first, and back; N sequences."""

    indices: NDArray[np.int64]
    """One behind the other: rows as sequences want them [R * B], the places they come back from [R * B],
    the column whose state each sequence begins with [N] (B: zeros), each column's last sequence [B]."""
    sizes: NDArray[np.int64]
    """How many sequences have a first row, a second, and so on."""
    num: int
    """N."""


def _packing(starts: NDArray[np.bool_]) -> _Packing:
    """Cut the columns of starts [R, B] into sequences where episodes start."""
    r, b = starts.shape
    begins = starts.copy()
    begins[0] = True
    column, row = np.nonzero(begins.T)  # by column, then by row
    ends = np.append(row[1:], 0)
    ends[np.append(column[1:] != column[:-1], True)] = r
    order = np.argsort(row - ends, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    # Which sequence each row is in, by column; and how far into it.
    own = np.cumsum(begins.T.ravel()) - 1
    depth = np.arange(r * b) - (column * r + row)[own]
    place = np.lexsort((number[own], depth))  # of column-major rows
    rows = place % r * b + place // r
    back = np.empty(r * b, dtype=np.int64)
    back[rows] = np.arange(r * b)
    carried = np.where(starts[row, column], b, column)[order]
    last = number[np.flatnonzero(ends == r)]
    indices = np.concatenate([rows, back, carried, last])
    return _Packing(indices, np.bincount(depth), len(order))
