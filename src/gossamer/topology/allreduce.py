"""All learners take the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from gossamer.topology import graphs
from gossamer.topology.base import RunPolicy, Topology

if TYPE_CHECKING:
    from gossamer.topology.graphs import Weights


@dataclass(frozen=True)
class AllReduce(Topology):
    """All learners take the same step, with the mean gradient over all learners' rows."""

    name: ClassVar[str] = "allreduce"
    mixes: ClassVar[Literal["parameters", "gradients"]] = "gradients"
    run_policy: ClassVar[RunPolicy] = "first"
    on_death: ClassVar[Literal["replace", "restart_group"]] = "restart_group"

    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Factor on the learning rate for L learners. none: 1. sqrt: the square root of L. linear: L."""
    transport: Literal["auto", "memory", "nccl", "gloo"] = "auto"
    """How gradients are exchanged. memory: through shared memory, summed in rank order as in the inline
    placement. nccl: between GPUs. gloo: over sockets. auto: nccl if each learner has its own GPU, else
    memory."""

    def lr_factor(self, num_learners: int) -> float:
        """Return the factor that `lr_scaling` asks for."""
        return num_learners ** {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.lr_scaling]

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return 1 / L everywhere: sums and row counts are averaged alike, their ratio is what counts."""
        return (graphs.uniform(graphs.undirected("complete", num_learners, 0, 0)),)
