"""LSTM and GRU, row after row, with state that is cleared at given rows: the same work whatever the data are.

torch's own layers take no clearing within a call, so its callers look at the rows where episodes start, which a
captured step cannot. Here a mask clears the state. Gradients are derived by hand: what depends on one row alone is
computed for all rows at once, which leaves six kernels a row for an LSTM and four for a GRU.

Shapes: R rows, B columns, H units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def lstm_rows(given: Tensor, keep: Tensor, state: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Run an LSTM layer; return its outputs [R, B, H] and the cells [B, H] after the last row.

    Args:
        given: [R, B, 4 H] product of the inputs, both biases included; input, forget, cell and output gate.
        keep: [R, B, 1] float32, 0 where the state is cleared before the row, else 1.
        state: [2, B, H] outputs and cells before row 0.
        weight: [4 H, H] of the state.

    Source: Hochreiter and Schmidhuber 1997 with forget gates, Gers et al. 2000; the equations of `torch.nn.LSTM`.
    """
    return _LSTMRows.apply(given, keep, state, weight)  # type: ignore[no-any-return]


def gru_rows(given: Tensor, keep: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Run a GRU layer; return its outputs [R, B, H].

    Args:
        given: [R, B, 3 H] product of the inputs, their bias included; reset gate, update gate and candidate.
        keep: [R, B, 1] float32, 0 where the state is cleared before the row, else 1.
        hidden: [B, H] output before row 0.
        weight: [3 H, H] of the state.
        bias: [3 H] of the state.

    Source: Cho et al. 2014 (arXiv:1406.1078); the equations of `torch.nn.GRU`, whose reset gate comes after the product.
    """
    return _GRURows.apply(given, keep, hidden, weight, bias)  # type: ignore[no-any-return]


class _LSTMRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, keep: Tensor, state: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, columns, units = *given.shape[:2], state.shape[-1]
        size = (rows, columns, units)
        # [R, B, 4 H], activated but for the cell gate, which is in candidate.
        gates = torch.empty_like(given)
        candidate, squashed = given.new_empty(size), given.new_empty(size)  # tanh of gate and cell
        before, after = (given.new_empty(2, *size) for _ in range(2))  # hidden, cells
        past = state
        transposed = weight.t()
        for t in range(rows):
            torch.mul(past, keep[t], out=before[:, t])
            torch.addmm(given[t], before[0, t], transposed, out=gates[t])
            i, f, g, o = gates[t].chunk(4, dim=-1)
            torch.tanh(g, out=candidate[t])
            gates[t].sigmoid_()
            cells = torch.mul(i, candidate[t], out=after[1, t]).addcmul_(f, before[1, t])
            torch.tanh(cells, out=squashed[t])
            torch.mul(o, squashed[t], out=after[0, t])
            past = after[:, t]
        ctx.save_for_backward(keep, weight, gates, candidate, squashed, before)
        return after[0], after[1, -1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, of_cell: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        keep, weight, gates, candidate, squashed, before = ctx.saved_tensors
        rows, columns, units = candidate.shape
        i, f, _, o = gates.chunk(4, dim=-1)
        # Derivatives by the gates' sums, for a gradient of 1 by the cell (three of them) or the output.
        factors = torch.addcmul(gates, gates, gates, value=-1.0).view(rows, columns, 4, units)
        factors[:, :, 0].mul_(candidate)
        factors[:, :, 1].mul_(before[1])
        torch.addcmul(i, i, candidate.square(), value=-1.0, out=factors[:, :, 2])
        factors[:, :, 3].mul_(squashed)
        by_output = torch.addcmul(o, o, squashed.square(), value=-1.0)  # of the cell
        kept = f * keep
        of_gates = torch.empty_like(factors)
        of_hidden = of_outputs[-1]
        for t in reversed(range(rows)):
            of_cell = torch.addcmul(of_cell, of_hidden, by_output[t])
            torch.mul(of_cell.unsqueeze(1), factors[t, :, :3], out=of_gates[t, :, :3])
            torch.mul(of_hidden, factors[t, :, 3], out=of_gates[t, :, 3])
            of_cell = of_cell * kept[t]
            back = of_gates[t].view(columns, -1) @ weight
            of_hidden = torch.addcmul(of_outputs[t - 1], back, keep[t]) if t else back * keep[0]
        flat = of_gates.view(rows * columns, -1)
        of_weight = flat.t() @ before[0].reshape(rows * columns, units)
        return of_gates.view_as(gates), None, torch.stack([of_hidden, of_cell]), of_weight


class _GRURows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, keep: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        rows, columns, units = *given.shape[:2], hidden.shape[-1]
        size = (rows, columns, units)
        before, after, candidate = (given.new_empty(size) for _ in range(3))
        gates = given.new_empty(rows, columns, 2 * units)  # reset, update
        own = torch.empty_like(given)  # the state's product
        transposed = weight.t()
        for t in range(rows):
            torch.mul(after[t - 1] if t else hidden, keep[t], out=before[t])
            torch.addmm(bias, before[t], transposed, out=own[t])
            torch.add(given[t, :, : 2 * units], own[t, :, : 2 * units], out=gates[t]).sigmoid_()
            reset, update = gates[t].chunk(2, dim=-1)
            new = torch.addcmul(given[t, :, 2 * units :], reset, own[t, :, 2 * units :])
            torch.tanh(new, out=candidate[t])
            torch.lerp(candidate[t], before[t], update, out=after[t])
        ctx.save_for_backward(keep, weight, gates, candidate, before, own[:, :, 2 * units :])
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        keep, weight, gates, candidate, before, own = ctx.saved_tensors
        rows, columns, units = candidate.shape
        reset, update = gates.chunk(2, dim=-1)
        # Derivatives by the sums of reset gate, update gate and the state's part of the candidate.
        factors = gates.new_empty(rows, columns, 3, units)
        slopes = torch.addcmul(gates, gates, gates, value=-1.0)
        by_candidate = (1.0 - update) * torch.addcmul(
            torch.ones_like(candidate), candidate, candidate, value=-1.0
        )
        torch.mul(by_candidate * own, slopes[:, :, :units], out=factors[:, :, 0])
        torch.mul(before - candidate, slopes[:, :, units:], out=factors[:, :, 1])
        torch.mul(by_candidate, reset, out=factors[:, :, 2])
        of_own = torch.empty_like(factors)
        of_hidden = torch.empty_like(of_outputs)
        of_row = of_outputs[-1]
        for t in reversed(range(rows)):
            of_hidden[t] = of_row
            torch.mul(of_row.unsqueeze(1), factors[t], out=of_own[t])
            back = torch.addcmul(of_own[t].view(columns, -1) @ weight, of_row, update[t])
            of_row = torch.addcmul(of_outputs[t - 1], back, keep[t]) if t else back * keep[0]
        of_given = of_own.clone()
        torch.mul(of_hidden, by_candidate, out=of_given[:, :, 2])
        flat = of_own.view(rows * columns, -1)
        of_weight = flat.t() @ before.view(rows * columns, units)
        return of_given.view(rows, columns, -1), None, of_row, of_weight, flat.sum(0)
