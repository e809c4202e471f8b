"""Settings of what batches are made of: a queue, and replays that keep what was collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class QueueSettings:
    """Each trajectory is used once, in the order it arrives; a full queue holds the actors back."""

    name: ClassVar[str] = "queue"

    fraction: float = 1.0
    """Share of a batch's columns, in (0, 1]; the fractions of all replays sum to 1."""
    capacity: int = 1
    """Trajectories that may wait beyond the one being learnt, >= 1; binds at lag free."""


@dataclass(frozen=True)
class UniformSettings:
    """The newest columns of all trajectories, each as likely as any other."""

    name: ClassVar[str] = "uniform"

    fraction: float = 0.5
    """Share of a batch's columns, in (0, 1); the fractions of all replays sum to 1."""
    capacity: int | None = None
    """Columns of trajectories that are kept, at least as many as a batch has. Default: by capacity_steps."""
    capacity_steps: int = 100_000
    """Env steps that are kept, >= 1, where capacity is not given."""
    learn_start: int = 0
    """Env steps to be stored before any is replayed, >= 0; until then batches have online columns only.
    0: as soon as there are enough columns for a batch."""
    path: str = ""
    """Folder of the file that holds the columns, for replays larger than memory; empty: memory."""
    insert: Literal["fifo", "elite"] = "fifo"
    """What is overwritten when it is full. fifo: the oldest. elite: of elite_batch random columns the one
    whose features have moved most (elite and attentive only)."""


@dataclass(frozen=True)
class EliteSettings(UniformSettings):
    """More columns are drawn than wanted; kept are those whose features the policy has moved least from.

    Every batch runs the policy over its candidates once more.
    """

    name: ClassVar[str] = "elite"

    strategy: Literal["nearest", "stratified", "least_used", "stratified_least_used"] = "least_used"
    """nearest: the smallest distances. least_used: the least often sampled, then the nearest. stratified,
    stratified_least_used: the same of each of as many segments, by distance, as are wanted."""
    candidate_multiplier: float = 2.0
    """Candidates drawn for each column wanted, >= 1; falls linearly to 1, which is uniform."""
    anneal_updates: int = 10_000
    """Batches until candidate_multiplier has fallen to 1, >= 0."""
    distance: Literal["lp", "cosine", "kl"] = "lp"
    """Between features now and when they were stored: the norm of their difference, 1 - their cosine
    similarity, or the KL divergence between them, softmaxed."""
    norm_order: float = 2.0
    """Order p of the norm lp, > 0."""
    elite_batch: int = 20
    """Columns looked at to find the one to overwrite, >= 1; with insert elite."""


@dataclass(frozen=True)
class AttentiveSettings(EliteSettings):
    """As elite, but near to the newest state: attentive experience replay (Sun et al. 2020)."""

    name: ClassVar[str] = "attentive"


ReplaySettings = QueueSettings | UniformSettings | EliteSettings | AttentiveSettings
