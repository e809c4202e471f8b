"""The optional recurrent layer between torso and heads, its state cleared where episodes start.

Shapes: R rows, B columns, S numbers of state a column, L layers, H units.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gossamer.ops.recurrence import gru_rows, lstm_rows
from gossamer.policies.layers import recurrent
from gossamer.system import devices

if TYPE_CHECKING:
    from gossamer.policies.settings import PolicyConfig


class Core(nn.Module):
    """LSTM, GRU or nothing, over rows of several columns."""

    def __init__(
        self, config: PolicyConfig, input_size: int, generator: torch.Generator | None = None
    ):
        super().__init__()
        self.num_parts = {"none": 0, "gru": 1, "lstm": 2}[config.core]
        self.layers, self.units = config.core_layers, config.core_size
        self.state_size = self.num_parts * self.layers * self.units
        self.output_size = self.units if self.num_parts else input_size
        self.rnn: nn.LSTM | nn.GRU | None = None
        if self.num_parts:
            kind = nn.LSTM if config.core == "lstm" else nn.GRU
            sizes = input_size, self.units, self.layers
            self.rnn = recurrent(kind, *sizes, generator, config.forget_bias)

    def forward(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run [R * B, input_size] through the rows of starts [R, B] from state [S, B].

        On a CPU several rows of starts are looked at; on a GPU they are where the rest is.
        """
        if self.rnn is None:
            return x, state
        r, b = starts.shape
        x = x.view(r, b, -1)
        if devices.is_gpu(x.device):
            return self._run_rows(x, starts, state)
        if r == 1 or not starts[1:].any():
            return self._run_stretch(x, starts, state)
        # One call a stretch without starts: cheap where episodes are long, exact everywhere.
        cuts = [0, *(starts[1:].any(dim=1).nonzero().flatten() + 1).tolist(), r]
        outputs: list[Tensor] = []
        for first, last in itertools.pairwise(cuts):
            output, state = self._run_stretch(x[first:last], starts[first:last], state)
            outputs.append(output)
        return torch.cat(outputs), state

    def _run_rows(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run rows [R, B, input_size], the state cleared by a mask; what is done depends on shapes alone."""
        assert self.rnn is not None
        keep = torch.logical_not(starts, out=state.new_empty(starts.shape))
        keep = keep.unsqueeze(-1)  # [R, B, 1]
        parts = self._parts(state)
        after: list[Tensor] = []  # by part, then by layer
        cells: list[Tensor] = []
        for layer in range(self.layers):
            of_input, of_state, *biases = self.rnn.all_weights[layer]
            if self.num_parts == 2:
                given = nn.functional.linear(x, of_input, biases[0] + biases[1])
                x, cell = lstm_rows(given, keep, parts[:, layer], of_state)
                cells.append(cell)
            else:
                given = nn.functional.linear(x, of_input, biases[0])
                x = gru_rows(given, keep, parts[0, layer], of_state, biases[1])
            after.append(x[-1])
        return x.flatten(0, 1), torch.cat([held.t() for held in (*after, *cells)])  # [S, B]

    def _run_stretch(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run rows [R, B, input_size] of which none but the first starts an episode."""
        assert self.rnn is not None
        parts = self._parts(state * (~starts[0]).to(state.dtype))
        output, after = self.rnn(x, (parts[0], parts[1]) if self.num_parts == 2 else parts[0])
        return output.flatten(0, 1), self._joined(after)

    def _parts(self, state: Tensor) -> Tensor:
        """[S, B] -> [parts, layers, B, units]."""
        b = state.shape[1]
        return state.view(self.num_parts, self.layers, self.units, b).transpose(2, 3).contiguous()

    def _joined(self, after: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Parts [layers, B, units] -> [S, B]."""
        parts = torch.stack(after) if isinstance(after, tuple) else after[None]
        return parts.transpose(2, 3).reshape(self.state_size, parts.shape[2])
