"""Optimizers and learning-rate schedules on the global count of env steps."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from gossamer.system.ranges import Amount, BelowOne, Fraction, Positive, Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate."""

    name: Literal["rmsprop", "rmsprop_tf", "adam", "adamw"] = "adam"
    """rmsprop: PyTorch's. rmsprop_tf: epsilon inside the square root, mean square starting at 1, as in TensorFlow
    and IMPALA's paper. adam, adamw: Kingma and Ba 2015, Loshchilov and Hutter 2019."""
    learning_rate: tuple[Annotated[float, Meta(gt=0, le=1000)], ...] = (5e-4,)
    """Learning rate, > 0: one value, or one per learner."""
    schedule: Literal["constant", "linear", "polynomial"] = "linear"
    """How the learning rate falls over total_env_steps."""
    schedule_end: Fraction = 0.0
    """Learning rate at the end as a fraction of the initial rate, in [0, 1]; the constant schedule
    ignores it."""
    schedule_power: Positive = 2.0
    """Exponent of the polynomial schedule, > 0; 1 is linear."""
    epsilon: Positive = 1e-5
    """Number added to the root of the mean square (inside the root for rmsprop_tf), > 0."""
    decay: BelowOne = 0.99
    """rmsprop: decay of the running mean square, in [0, 1)."""
    momentum: BelowOne = 0.0
    """rmsprop: momentum, in [0, 1)."""
    beta1: BelowOne = 0.9
    """adam, adamw: decay of the first moment, in [0, 1)."""
    beta2: BelowOne = 0.999
    """adam, adamw: decay of the second moment, in [0, 1)."""
    weight_decay: Amount = 0.0
    """adamw: decoupled weight decay, >= 0; adam and rmsprop: L2 penalty."""
    max_grad_norm: Amount = 0.5
    """Global norm to which larger gradients are scaled down. 0: no clipping."""
    outer_momentum: BelowOne = 0.0
    """Momentum of the outer step (SlowMo), in [0, 1). The outer step comes after the last update and mixing of each
    version. The version's total change of parameters is added to a running sum, which decays by this factor; the outer
    step moves the parameters that the version began with along this sum. Steps become up to 1 / (1 - outer_momentum)
    times as long as without momentum, unless outer_rate is 1 - outer_momentum. 0: no running sum."""
    outer_rate: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Factor on the outer step, in (0, 1000]. With 1 and no outer_momentum there is no outer step:
    parameters are the result of updates and mixing. With 1 - outer_momentum, steps that all point
    the same way keep their length."""
    outer_nesterov: bool = False
    """Nesterov's momentum: the outer step is this version's change plus outer_momentum times the running sum."""
    learn_start: Whole = 0
    """Env steps, summed over learners, before learning begins, in [0, total_env_steps). Earlier batches only set
    the running means and deviations of observations and values, which at first change too fast to learn from;
    parameters stay as they are. The minibatches of these batches count as updates. 0: learn from the first batch
    on."""

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


def make_optimizer(
    config: OptimizerConfig, params: Iterable[Tensor], *, captured: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer of a learner, whose learning rate is by now the only one.

    Its attribute `found_inf`, float32 and not 0 where the gradient is not finite, leaves a captured step out.

    Args:
        config: its settings.
        params: those it steps.
        captured: steps are captured and replayed: what changes from step to step is in tensors, the learning rate too.
    """
    import torch

    held = list(params)
    lr: Any = config.learning_rate[0]
    if captured:
        lr = torch.full((), lr, dtype=torch.float32, device=held[0].device)
    # The fused Adam kernel makes one pass over parameters and both moments.
    if config.name in ("adam", "adamw"):
        kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
        made = _uncompiled(kind, None if captured else partial(_known_adam_step, config.name))(
            held,
            lr=lr,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=captured,
        )
        # Its warm-up is meant: torch would warn of each optimizer that is captured and steps before.
        made._warned_capturable_if_run_uncaptured = True  # noqa: SLF001
        return made
    return _rmsprop(held, lr=lr, config=config, captured=captured)


def set_learning_rate(group: dict[str, Any], learning_rate: float) -> None:
    """Set the learning rate of a group of parameters, in its tensor if it has one."""
    import torch

    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(learning_rate)
    else:
        group["lr"] = learning_rate


def _known_adam_step(name: str, optimizer: Any) -> bool:
    """Step as Adam or AdamW does from its second step on, without sorting what is always alike; False: it is not known yet."""
    import torch

    kernel = torch._fused_adam_ if name == "adam" else torch._fused_adamw_
    every = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(p.is_cpu and p.grad is not None and optimizer.state.get(p) for p in every):
        return False
    for group in optimizer.param_groups:
        params = group["params"]
        held = [optimizer.state[p] for p in params]
        means, squares, steps = (
            [x[key] for x in held] for key in ("exp_avg", "exp_avg_sq", "step")
        )
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        kernel(
            params,
            [p.grad for p in params],
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
    return True


def _uncompiled(kind: type[Any], known_step: Callable[[Any], bool] | None = None) -> Any:
    """Return the class without the wrappers in which torch could compile it.

    Used once they import the whole compiler: more than a second of a run's start, for nothing.

    Args:
        kind: of the optimizer.
        known_step: takes a step in its place, if it can.
    """
    import torch

    plain_step = inspect.unwrap(kind.step)

    class Uncompiled(kind):
        add_param_group = inspect.unwrap(kind.add_param_group)

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            assert closure is None
            if known_step is None or not known_step(self):
                plain_step(self)

    Uncompiled.__name__ = kind.__name__
    return Uncompiled


def start_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the running averages that the first step would make, as they are before it; gradients become zero."""
    import torch

    if any(optimizer.state.values()):
        return
    params = [p for group in optimizer.param_groups for p in group["params"]]
    torch._foreach_zero_([p.grad for p in params])
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        set_learning_rate(group, 0.0)
    optimizer.step()
    for group, lr in zip(optimizer.param_groups, rates, strict=True):
        set_learning_rate(group, lr)
    for p in params:
        held = optimizer.state[p]
        for name, x in held.items():
            x.fill_(first_average(optimizer, name))


def first_average(optimizer: torch.optim.Optimizer, name: str) -> float:
    """Return the number that a running average of an optimizer begins with."""
    return 1.0 if name == "square_avg" and optimizer.param_groups[0].get("tf") else 0.0


def _rmsprop(
    params: list[Tensor], *, lr: Any, config: OptimizerConfig, captured: bool
) -> torch.optim.Optimizer:
    import torch

    class RMSprop(torch.optim.Optimizer):
        """RMSprop as torch has it, or as TensorFlow does: epsilon inside the root, the mean square starting at one.

        Source: Tieleman and Hinton 2012; TensorFlow's ApplyRMSProp, the optimizer of Espeholt et al. 2018, appendix G.
        """

        found_inf: Tensor | None = None

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            """Apply one update from the gradients held by the parameters."""
            assert closure is None
            for group in self.param_groups:
                held = [p for p in group["params"] if p.grad is not None]
                for p in held:
                    if not self.state[p]:
                        first = torch.ones_like if group["tf"] else torch.zeros_like
                        self.state[p]["square_avg"] = first(p)
                        if group["momentum"] or group["tf"]:
                            self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                self._step_group(group, held, [p.grad for p in held])

        def _step_group(self, group: dict[str, Any], held: list[Any], grads: Any) -> None:
            decay, momentum, new = group["decay"], group["momentum"], 1.0 - group["decay"]
            skips = self.found_inf  # of a captured step
            if group["weight_decay"]:
                grads = torch._foreach_add(grads, held, alpha=group["weight_decay"])
            if skips is not None:  # 0 times what is not finite would be NaN
                grads = [torch.where(skips > 0.0, 0.0, x) for x in grads]
                # A step that is left out changes no average, and moves nothing.
                decay, momentum = (torch.where(skips > 0.0, 1.0, x) for x in (decay, momentum))
            squares = [self.state[p]["square_avg"] for p in held]
            torch._foreach_mul_(squares, decay)
            torch._foreach_addcmul_(squares, grads, grads, value=new)
            if group["tf"]:
                roots = torch._foreach_add(squares, group["eps"])
                torch._foreach_sqrt_(roots)
            else:
                roots = torch._foreach_sqrt(squares)
                torch._foreach_add_(roots, group["eps"])
            if not (group["tf"] or group["momentum"] or group["captured"]):  # in one pass
                torch._foreach_addcdiv_(held, grads, roots, value=-group["lr"])
                return
            steps = torch._foreach_div(grads, roots)
            # TensorFlow scales by the learning rate before momentum, PyTorch after it.
            if group["tf"]:
                torch._foreach_mul_(steps, group["lr"])
            if group["momentum"]:
                buffers = [self.state[p]["momentum_buffer"] for p in held]
                torch._foreach_mul_(buffers, momentum)
                torch._foreach_add_(buffers, steps)
                steps = buffers
            rate = 1.0 if group["tf"] else group["lr"]
            if skips is not None:
                steps, rate = torch._foreach_mul(steps, rate * (1.0 - skips)), 1.0
            torch._foreach_sub_(held, steps, alpha=rate)

    return _uncompiled(RMSprop)(
        params,
        {
            "lr": lr,
            "eps": config.epsilon,
            "decay": config.decay,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
            "tf": config.name == "rmsprop_tf",
            "captured": captured,
        },
    )
