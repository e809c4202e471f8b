"""Optimizers against plain loops of the published formulas; schedules."""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch

from gossamer.roles.optimizers import OptimizerConfig, make_optimizer, scheduled

FLAT = OptimizerConfig(learning_rate=(0.1,), schedule="constant", epsilon=0.01, decay=0.9)


def walk(config, *, steps=6, **options):
    """Take steps on two parameters; return where they are and the gradients they were given."""
    gen = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(3, 2, generator=gen)),
        torch.nn.Parameter(torch.ones(4)),
    ]
    unused = torch.nn.Parameter(torch.ones(2))
    first = [p.detach().double().numpy().copy() for p in params]
    optimizer = make_optimizer(config, [*params, unused], **options)
    grads = []
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=gen)
        grads.append([p.grad.double().numpy().copy() for p in params])
        optimizer.step()
    assert torch.equal(unused, torch.ones(2)), "a parameter without gradient stays"
    return first, grads, [p.detach().double().numpy() for p in params]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_rmsprop_tf_is_tensorflows_formula(momentum, weight_decay):
    """ms <- d ms + (1 - d) g^2; mom <- m mom + lr g / sqrt(ms + eps); var <- var - mom; ms_0 = 1."""
    config = dataclasses.replace(
        FLAT, name="rmsprop_tf", momentum=momentum, weight_decay=weight_decay
    )
    first, grads, got = walk(config)
    for i, var in enumerate(first):
        ms, mom = np.ones_like(var), np.zeros_like(var)
        for step in grads:
            g = step[i] + weight_decay * var
            ms = 0.9 * ms + 0.1 * g * g
            mom = momentum * mom + 0.1 * g / np.sqrt(ms + 0.01)
            var = var - mom
        np.testing.assert_allclose(got[i], var, rtol=1e-5, atol=1e-6)


def test_rmsprop_is_pytorchs_formula():
    """Epsilon outside the root, mean square starting at 0."""
    first, grads, got = walk(dataclasses.replace(FLAT, name="rmsprop"))
    for i, var in enumerate(first):
        ms = np.zeros_like(var)
        for step in grads:
            ms = 0.9 * ms + 0.1 * step[i] ** 2
            var = var - 0.1 * step[i] / (np.sqrt(ms) + 0.01)
        np.testing.assert_allclose(got[i], var, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW")])
def test_steps_that_sort_nothing_are_torchs_to_the_bit(name, kind, weight_decay, monkeypatch):
    config = dataclasses.replace(FLAT, name=name, weight_decay=weight_decay)
    gen = torch.Generator().manual_seed(0)
    ours, theirs = (
        [torch.nn.Parameter(torch.ones(shape)) for shape in ((33, 7), (5,), (0,), ())]
        for _ in range(2)
    )
    given = {"betas": (config.beta1, config.beta2), "eps": config.epsilon, "fused": True}
    made = [
        make_optimizer(config, ours),
        getattr(torch.optim, kind)(theirs, lr=0.1, weight_decay=weight_decay, **given),
    ]
    for step in range(6):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=gen)
            q.grad = p.grad.clone()
        for optimizer in made:
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            with monkeypatch.context() as patch:
                if optimizer is made[0] and step:  # what sorts is for the first step
                    patch.setattr(sys.modules["torch.optim.adam"], "adam", None)
                optimizer.step()
    held = [list(optimizer.state_dict()["state"].values()) for optimizer in made]
    for one, other in zip(*held, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("step", "exp_avg", "exp_avg_sq"))
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_and_adamw_are_their_papers(name):
    config = dataclasses.replace(FLAT, name=name, beta1=0.8, beta2=0.95, weight_decay=0.1)
    first, grads, got = walk(config)
    for i, var in enumerate(first):
        m, v = np.zeros_like(var), np.zeros_like(var)
        for t, step in enumerate(grads, start=1):
            g = step[i]
            if name == "adam":
                g = g + 0.1 * var
            else:
                var = var * (1.0 - 0.1 * 0.1)
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
            var = var - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 0.01)
        np.testing.assert_allclose(got[i], var, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "end", "at"),
    [
        ("constant", 0.5, {-1.0: 8.0, 0.0: 8.0, 0.5: 8.0, 1.0: 8.0, 2.0: 8.0}),
        ("linear", 0.0, {-1.0: 8.0, 0.0: 8.0, 0.25: 6.0, 1.0: 0.0, 2.0: 0.0}),
        ("linear", 0.5, {0.0: 8.0, 0.5: 6.0, 1.0: 4.0, 2.0: 4.0}),
        ("polynomial", 0.0, {0.0: 8.0, 0.5: 1.0, 1.0: 0.0}),
        ("polynomial", 0.5, {0.0: 8.0, 0.5: 4.5, 1.0: 4.0}),
    ],
)
def test_schedules_by_hand(schedule, end, at):
    config = OptimizerConfig(schedule=schedule, schedule_end=end, schedule_power=3.0)
    for progress, expected in at.items():
        assert math.isclose(scheduled(config, 8.0, progress), expected, abs_tol=1e-12), progress
