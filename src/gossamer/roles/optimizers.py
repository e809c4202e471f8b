"""Optimizers and learning-rate schedules on the global count of env steps."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from gossamer.system.ranges import Amount, BelowOne, Fraction, Positive, Whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate."""

    name: Literal["rmsprop", "rmsprop_tf", "adam", "adamw"] = "adam"
    """rmsprop: PyTorch's. rmsprop_tf: epsilon inside the square root, mean square starting at 1, as
    in TensorFlow and IMPALA's paper. adam, adamw: Kingma and Ba 2015, Loshchilov and Hutter 2019."""
    learning_rate: tuple[Annotated[float, Meta(gt=0, le=1000)], ...] = (5e-4,)
    """Learning rate, > 0: one value, or one per learner."""
    schedule: Literal["constant", "linear", "polynomial"] = "linear"
    """How the learning rate falls over total_env_steps."""
    schedule_end: Fraction = 0.0
    """Learning rate at the end as a fraction of the first, in [0, 1]; constant ignores it."""
    schedule_power: Positive = 2.0
    """Exponent of the polynomial schedule, > 0; 1 is linear."""
    epsilon: Positive = 1e-5
    """Added to the root of the mean square (inside the root for rmsprop_tf), > 0."""
    decay: BelowOne = 0.99
    """rmsprop: decay of the running mean square, in [0, 1)."""
    momentum: BelowOne = 0.0
    """rmsprop: momentum, in [0, 1)."""
    beta1: BelowOne = 0.9
    """adam: decay of the first moment, in [0, 1)."""
    beta2: BelowOne = 0.999
    """adam: decay of the second moment, in [0, 1)."""
    weight_decay: Amount = 0.0
    """adamw: decoupled weight decay, >= 0; adam and rmsprop: L2 penalty."""
    max_grad_norm: Amount = 0.5
    """Gradients are scaled down to this global norm; 0 turns clipping off."""
    outer_momentum: BelowOne = 0.0
    """Momentum of the outer step, in [0, 1). Once a version, after its last update has been mixed, all that the version
    has changed is added to a running sum of such changes that decays by this factor, and the parameters of the version's
    beginning follow that sum (SlowMo). 0: they follow this version's change alone."""
    outer_rate: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Factor on the outer step, in (0, 1000]. 1 without outer_momentum: parameters are what updates and mixing make of
    them. 1 - outer_momentum keeps the length of steps that all point the same way."""
    outer_nesterov: bool = False
    """Nesterov's momentum for the outer step: it follows this version's change, and the running sum once more."""
    learn_start: Whole = 0
    """Env steps of all learners that are only observed, in [0, total_env_steps): batches that begin before set the
    running means and deviations of observations and values, which change too fast to learn from, and no parameter.
    Their minibatches count as updates. 0: learn from the first batch on."""

    @property
    def has_outer_step(self) -> bool:
        """Whether parameters become anything else than what updates and mixing make of them."""
        return self.outer_momentum > 0.0 or self.outer_rate != 1.0


def scheduled(config: OptimizerConfig, learning_rate: float, progress: float) -> float:
    """Return the learning rate at `progress` in [0, 1] of total_env_steps."""
    left = 1.0 - min(max(progress, 0.0), 1.0)
    if config.schedule == "constant":
        return learning_rate
    if config.schedule == "polynomial":
        left = left**config.schedule_power
    return learning_rate * (config.schedule_end + (1.0 - config.schedule_end) * left)


def make_optimizer(config: OptimizerConfig, params: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Build the optimizer of a learner, whose learning rate is by now the only one."""
    import torch

    (lr,) = config.learning_rate
    held = list(params)
    # foreach is the default on CUDA only; on CPU it spares a Python loop over tensors. The fused
    # Adam kernel makes one pass over parameters and both moments.
    if config.name in ("adam", "adamw"):
        kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
        return _uncompiled(kind)(
            held,
            lr=lr,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
    if config.name == "rmsprop":
        return _uncompiled(torch.optim.RMSprop)(
            held,
            lr=lr,
            alpha=config.decay,
            eps=config.epsilon,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            foreach=True,
        )
    return _rmsprop_tf(held, lr=lr, config=config)


def _uncompiled(kind: type[Any]) -> Any:
    """Return the class without the wrappers in which torch could compile it.

    Used once they import the whole compiler: more than a second of a run's start, for nothing.
    """
    import torch

    plain_step = inspect.unwrap(kind.step)

    class Uncompiled(kind):
        add_param_group = inspect.unwrap(kind.add_param_group)

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            assert closure is None
            plain_step(self)

    Uncompiled.__name__ = kind.__name__
    return Uncompiled


def start_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the running averages that the first step would make, as they are before it.

    Gradients must be zero.
    """
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, lr in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = lr
    for held in optimizer.state.values():
        for name, x in held.items():
            first = 1.0 if name == "square_avg" and type(optimizer).__name__ == "RMSpropTF" else 0.0
            held[name] = x.fill_(first) if hasattr(x, "fill_") else type(x)(first)


def is_whole(optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> bool:
    """Whether every parameter, or none, has the running averages that such an optimizer keeps."""
    import torch

    one = torch.zeros(1, requires_grad=True)
    one.grad = torch.zeros(1)
    probe = make_optimizer(config, [one])
    start_state(probe)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    held = [set(optimizer.state[p]) for p in params if p in optimizer.state]
    return not held or held == [set(probe.state[one])] * len(params)


def _rmsprop_tf(
    params: list[Tensor], *, lr: float, config: OptimizerConfig
) -> torch.optim.Optimizer:
    import torch

    class RMSpropTF(torch.optim.Optimizer):
        """RMSprop with epsilon inside the root and the mean square starting at one.

        Source: TensorFlow's ApplyRMSProp; the optimizer of Espeholt et al. 2018, appendix G.
        """

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            """Apply one update from the gradients held by the parameters."""
            assert closure is None
            for group in self.param_groups:
                held = [p for p in group["params"] if p.grad is not None]
                for p in held:
                    if not self.state[p]:
                        self.state[p]["square_avg"] = torch.ones_like(p)
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                grads = [p.grad for p in held]
                if group["weight_decay"]:
                    grads = torch._foreach_add(grads, held, alpha=group["weight_decay"])
                squares = [self.state[p]["square_avg"] for p in held]
                torch._foreach_mul_(squares, group["decay"])
                torch._foreach_addcmul_(squares, grads, grads, value=1.0 - group["decay"])
                steps = torch._foreach_add(squares, group["eps"])
                torch._foreach_sqrt_(steps)
                steps = torch._foreach_div(grads, steps)
                torch._foreach_mul_(steps, group["lr"])
                if group["momentum"]:
                    # TensorFlow scales by the learning rate before momentum, PyTorch after it.
                    buffers = [self.state[p]["momentum_buffer"] for p in held]
                    torch._foreach_mul_(buffers, group["momentum"])
                    torch._foreach_add_(buffers, steps)
                    steps = buffers
                torch._foreach_sub_(held, steps)

    return _uncompiled(RMSpropTF)(
        params,
        {
            "lr": lr,
            "eps": config.epsilon,
            "decay": config.decay,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
        },
    )
