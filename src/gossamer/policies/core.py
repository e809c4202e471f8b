"""The optional recurrent layer between torso and heads, its state cleared where episodes start.

Shapes: R rows, B columns, S numbers of state a column, L layers, H units.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
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
        """Run [R * B, input_size] through the rows of starts [R, B] from state [S, B]."""
        if self.rnn is None:
            return x, state
        r, b = starts.shape
        x = x.view(r, b, -1)
        # One call a stretch without starts: cheap where episodes are long, exact everywhere.
        cuts = [0, *(starts[1:].any(dim=1).nonzero().flatten() + 1).tolist(), r]
        outputs: list[Tensor] = []
        for first, last in itertools.pairwise(cuts):
            going_on = (~starts[first]).to(state.dtype)
            output, state = self._run(x[first:last], state * going_on)
            outputs.append(output)
        return torch.cat(outputs).flatten(0, 1), state

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        assert self.rnn is not None
        b = x.shape[1]
        parts = state.view(self.num_parts, self.layers, self.units, b).transpose(2, 3).contiguous()
        if self.num_parts == 2:
            output, (hidden, cell) = self.rnn(x, (parts[0], parts[1]))
            after = torch.stack([hidden, cell])
        else:
            output, hidden = self.rnn(x, parts[0])
            after = hidden[None]
        return output, after.transpose(2, 3).reshape(self.state_size, b)
