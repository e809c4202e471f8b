"""RMSprop with momentum and weight decay is PyTorch's, also while the learning rate falls."""

from __future__ import annotations

import pytest
import torch

from gossamer.roles.optimizers import OptimizerConfig, make_optimizer


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_rmsprop_steps_as_torchs_does(momentum, weight_decay):
    more = {"momentum": momentum, "weight_decay": weight_decay}
    config = OptimizerConfig(
        name="rmsprop", learning_rate=(0.1,), schedule="constant", epsilon=0.01, decay=0.9, **more
    )
    gen = torch.Generator().manual_seed(0)
    first = [torch.randn(3, 2, generator=gen), torch.ones(4)]
    ours, theirs = ([torch.nn.Parameter(x.clone()) for x in first] for _ in range(2))
    made = [
        make_optimizer(config, ours),
        torch.optim.RMSprop(theirs, lr=0.1, alpha=0.9, eps=0.01, **more),
    ]
    for step in range(6):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=gen)
            q.grad = p.grad.clone()
        for optimizer in made:
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q)
