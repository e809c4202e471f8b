"""Losses written row by row from their definitions, with log-probabilities from first principles."""

from __future__ import annotations

import math

import slow_returns
import torch


def log_prob(spec, params, action):
    if spec.kind == "categorical":
        return params[action] - params.exp().sum().log()
    total = 0.0
    for mean, log_std, a in zip(*params.split(spec.sizes[0]), action, strict=True):
        total = total - 0.5 * ((a - mean) / log_std.exp()) ** 2 - log_std
        total = total - 0.5 * math.log(2.0 * math.pi)
    return total


def entropy(spec, params):
    if spec.kind == "categorical":
        p = params.exp() / params.exp().sum()
        return -(p * p.log()).sum()
    return sum(0.5 * math.log(2.0 * math.pi * math.e) + x for x in params[spec.sizes[0] :])


def squashed(reward, kind):
    if kind == "clamp":
        return min(max(reward, -1.0), 1.0)
    if kind == "sign":
        return float((reward > 0) - (reward < 0))
    if kind == "soft_asymmetric":
        return 5.0 * math.tanh(reward / 5.0) * (0.3 if reward < 0 else 1.0)
    return reward


def all_log_rho(policy, batch):
    spec, t, b = policy.spec.action, batch.unroll_length, batch.num_columns
    with torch.no_grad():
        rows = [
            [
                log_prob(spec, policy.params[s, i], batch.action[s, i])
                - log_prob(spec, batch.behavior[s, i], batch.action[s, i])
                for i in range(b)
            ]
            for s in range(t)
        ]
    return torch.tensor(rows, dtype=torch.float64)


def all_targets(algorithm, policy, batch):
    """{(row, column): (target, advantage)} of the valid rows, normalised if asked for."""
    corrects = algorithm.name == "vtrace"
    value = policy.value.detach()
    if algorithm.name == "ppo":  # the values that the actor recorded; only the last is recomputed
        value = torch.cat([batch.value, value[-1:]])
    log_rho = all_log_rho(policy, batch) if corrects else None
    found, weights = {}, {}
    for i, column in enumerate(slow_returns.columns_of(batch, value, log_rho)):
        column = column._replace(reward=[squashed(r, algorithm.reward_clip) for r in column.reward])
        for s in range(len(column.reward)):
            if not column.valid[s]:
                continue
            if corrects:
                a = algorithm
                caps = {"clip_rho": a.clip_rho, "clip_c": a.clip_c}
                common = (column, s, a.discount, a.trace_lambda)
                target = slow_returns.vtrace_target(*common, **caps)
                advantage = slow_returns.vtrace_advantage(
                    *common, **caps, clip_pg_rho=a.clip_pg_rho
                )
            else:
                discount, gae_lambda = algorithm.discount, algorithm.trace_lambda
                advantage = slow_returns.gae(column, s, discount, gae_lambda)
                target = column.value[s] + advantage
            found[s, i] = (target, advantage)
            if corrects:
                weights[s, i] = min(algorithm.clip_pg_rho, math.exp(column.log_rho[s]))
    if algorithm.scale_rewards:
        found = {k: (v, x / policy.scale) for k, (v, x) in found.items()}
    if algorithm.normalize_advantage:
        found = weighted_normal(found, weights)
    return found


def weighted_normal(found, weights):
    """Advantages w A become w (A - mean) / std, where mean and std are of A."""
    plain = {k: x / weights.get(k, 1.0) for k, (_, x) in found.items()}
    mean = sum(plain.values()) / len(plain)
    std = math.sqrt(sum((x - mean) ** 2 for x in plain.values()) / len(plain))
    return {
        k: (v, weights.get(k, 1.0) * (plain[k] - mean) / (std + 1e-8))
        for k, (v, _) in found.items()
    }


def slow_loss(algorithm, policy, batch):
    """The loss of a whole batch as the learner minimises it, divided by its valid rows (or by 1)."""
    spec, total = policy.spec.action, torch.zeros((), dtype=torch.float64)
    targets = all_targets(algorithm, policy, batch)
    for (s, i), (target, advantage) in targets.items():
        params, value = policy.params[s, i], policy.value[s, i]
        now = log_prob(spec, params, batch.action[s, i])
        error = (target - value) ** 2
        if algorithm.name == "ppo":
            ratio = (now - log_prob(spec, batch.behavior[s, i], batch.action[s, i])).exp()
            low, high = 1.0 - algorithm.clip_ratio, 1.0 + algorithm.clip_ratio
            inside = ratio if low <= ratio <= high else (low if ratio < low else high)
            gain = ratio * advantage
            if inside * advantage < gain:
                gain = torch.as_tensor(inside * advantage, dtype=torch.float64)
            if algorithm.clip_value:
                recorded, reach = batch.value[s, i], algorithm.clip_value
                moved = recorded + min(max(value - recorded, -reach), reach)
                error = max(error, (target - moved) ** 2)
        else:
            gain = now * advantage
        total = total - gain
        total = total + algorithm.value_cost * 0.5 * error / policy.scale**2
        total = total - algorithm.entropy_cost[0] * entropy(spec, params)
    return total / (1.0 if algorithm.reduction == "sum" else len(targets))
