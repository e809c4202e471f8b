"""LSTM and GRU rows against torch's own layers, which run one row at a time from a state cleared by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gossamer.ops.recurrence import gru_rows, lstm_rows

ROWS, COLUMNS, UNITS, INPUTS = 5, 4, 3, 2


def slow_rows(layer, x, keep, state):
    """Outputs and last state of a layer of torch's, called a row at a time; state: (hidden, cells) or (hidden,)."""
    outputs = []
    for t in range(len(x)):
        state = tuple(s * keep[t] for s in state)
        given = tuple(s[None] for s in state)
        output, after = layer(x[t : t + 1], given if len(given) == 2 else given[0])
        state = tuple(s[0] for s in (after if isinstance(after, tuple) else (after,)))
        outputs.append(output[0])
    return torch.stack(outputs), state


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_rows_and_their_gradients_equal_torchs_layer(kind, rows, share):
    torch.manual_seed(1)
    layer = (nn.LSTM if kind == "lstm" else nn.GRU)(INPUTS, UNITS).double()
    x = torch.randn(rows, COLUMNS, INPUTS, dtype=torch.float64, requires_grad=True)
    keep = (torch.rand(rows, COLUMNS, 1) >= share).double()
    state = [torch.randn(COLUMNS, UNITS, dtype=torch.float64, requires_grad=True)
             for _ in range(2 if kind == "lstm" else 1)]  # fmt: skip

    def ours():
        of_input, of_state, first, second = layer.all_weights[0]
        if kind == "lstm":
            given = nn.functional.linear(x, of_input, first + second)
            outputs, cell = lstm_rows(given, keep, torch.stack(state), of_state)
            return outputs, (outputs[-1], cell)
        given = nn.functional.linear(x, of_input, first)
        outputs = gru_rows(given, keep, *state, of_state, second)
        return outputs, (outputs[-1],)

    weights = torch.randn(rows + 2, COLUMNS, UNITS, dtype=torch.float64)
    found = []
    for run in (ours, lambda: slow_rows(layer, x, keep, state)):
        outputs, after = run()
        loss = (outputs * weights[:rows]).sum()
        loss = loss + sum((s * w).sum() for s, w in zip(after, weights[rows:], strict=False))
        grads = torch.autograd.grad(loss, [x, *state, *layer.parameters()])
        found.append([outputs, *after, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
