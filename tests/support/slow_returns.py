"""Learning targets as the papers write them: literal sums, one row at a time, plain floats."""

from __future__ import annotations

import math
from typing import NamedTuple


class Column(NamedTuple):
    """One column of experience: T rows, value has T + 1."""

    value: list
    reward: list
    terminated: list
    truncated: list
    valid: list
    log_rho: list


def columns_of(batch, value, log_rho=None):
    """Split tensors [T, B] into columns of floats."""
    log_rho = log_rho if log_rho is not None else 0.0 * batch.reward
    fields = (value, batch.reward, batch.terminated, batch.truncated, batch.valid, log_rho)
    return [Column(*(x[:, i].tolist() for x in fields)) for i in range(batch.num_columns)]


def ends(column, t):
    """Nothing that happened after row t is row t's business."""
    return column.terminated[t] or column.truncated[t] or t == len(column.reward) - 1


def next_value(column, t):
    return 0.0 if column.terminated[t] else column.value[t + 1]


def n_step(column, s, discount):
    """Return sum_i discount^i r_{s+i} + discount^n V(x_{s+n}), to the episode's or the column's end."""
    total, t = 0.0, s
    while True:
        total += discount ** (t - s) * column.reward[t]
        if ends(column, t):
            return total + discount ** (t - s + 1) * next_value(column, t)
        t += 1


def gae(column, s, discount, gae_lambda):
    """Return sum_l (discount lambda)^l delta_{s+l} (Schulman et al. 2016, eq. 16)."""
    total, t = 0.0, s
    while True:
        delta = column.reward[t] + discount * next_value(column, t) - column.value[t]
        total += (discount * gae_lambda) ** (t - s) * delta
        if ends(column, t):
            return total
        t += 1


def vtrace_target(column, s, discount, trace_lambda=1.0, clip_rho=1.0, clip_c=1.0):
    """Return V(x_s) + sum_t discount^{t-s} (prod_{s<=i<t} c_i) delta_t (Espeholt et al. 2018, eq. 1).

    delta_t = rho_t (r_t + discount V(x_{t+1}) - V(x_t)); c_i = lambda min(clip_c, pi / mu) (remark 2).
    """
    total = column.value[s]
    for t in range(s, len(column.reward)):
        if any(ends(column, i) for i in range(s, t)):
            break
        product = 1.0
        for i in range(s, t):
            product *= trace_lambda * min(clip_c, math.exp(column.log_rho[i]))
        rho = min(clip_rho, math.exp(column.log_rho[t]))
        delta = rho * (column.reward[t] + discount * next_value(column, t) - column.value[t])
        total += discount ** (t - s) * product * delta
    return total


def vtrace_advantage(
    column, s, discount, trace_lambda=1.0, clip_rho=1.0, clip_c=1.0, clip_pg_rho=1.0
):
    """Return rho_s (r_s + discount v_{s+1} - V(x_s)); v_{s+1} is mixed with V(x_{s+1}) by lambda."""
    following = next_value(column, s)
    if not ends(column, s):
        target = vtrace_target(column, s + 1, discount, trace_lambda, clip_rho, clip_c)
        following = (1.0 - trace_lambda) * following + trace_lambda * target
    rho = min(clip_pg_rho, math.exp(column.log_rho[s]))
    return rho * (column.reward[s] + discount * following - column.value[s])
