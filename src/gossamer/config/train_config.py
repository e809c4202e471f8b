"""Everything a training run can be told: `TrainConfig` and the section of settings it owns."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.vtrace import VTrace
from gossamer.envs.settings import EnvConfig
from gossamer.policies.settings import PolicyConfig
from gossamer.replay.settings import QueueSettings, ReplaySettings
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.system.ranges import (
    Amount,
    Count,
    CountToMillion,
    Number,
    Positive,
    Seconds,
    Seed,
    Share,
    Threads,
    UpToBillion,
    UpToMillion,
    Whole,
)
from gossamer.topology.base import Topology
from gossamer.topology.single import Single

PER_LEARNER = ("optimizer.learning_rate", "algorithm.entropy_cost")
"""Settings of which there is one value, or one per learner."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation during training, in full episodes with seeds that neither training nor `gossamer eval` uses."""

    episodes: CountToMillion = 5
    """Episodes per evaluation, >= 1. For a family of tasks: this many on the training tasks, and again on the held-out
    tasks, each time rounded up so that all tasks are played equally often. If a set has more than N = max(100,
    evaluation.episodes) tasks, N evenly spaced ones are played once each."""
    every_seconds: Seconds = 60.0
    """Seconds between evaluations, >= 0. 0: no evaluation. If learners mix parameters, evaluations alternate
    between their average, which is the run's policy, and single learners in turn. Independent learners are
    evaluated in turn."""
    confirm_episodes: Count = 20
    """Episodes that confirm a new best policy, >= 1, and at least evaluation.episodes. A policy that scores higher
    than the best policy is the best at once if their 95 % intervals do not overlap; otherwise it becomes a candidate.
    Candidate and best policy then play this many new episodes with the same seeds, fewer (at least 6) if evaluations
    are slow and the difference is soon clear. The policy with the higher mean is kept as the best, with that mean as its score."""
    max_time_fraction: Share = 0.03
    """Largest share of the run's time for evaluations and confirmations, in (0, 1], in processor time of the
    evaluating thread (with env.workers, wall time); evaluations are postponed to stay below it. If this leaves fewer
    than 20 evaluations in a run, they have three episodes each and may take 3.3 times this share, up to a tenth."""
    greedy: bool = False
    """Take the likeliest action, as `gossamer eval` does. Off: sample, as training does."""
    held_out_tasks: UpToMillion | None = None
    """Families of tasks: number of tasks, unused in training, on which evaluations also play, >= 0. Default: 10."""
    video: bool = False
    """Record an episode of every new best policy, always with the same seed, as videos/best-ENV_STEPS.mp4 in the run
    folder; needs the extra gossamer[video]. Recording time counts toward evaluation.max_time_fraction."""


@dataclass(frozen=True)
class ClusterConfig:
    """For placement cluster: the Ray cluster, and the resources of each learner."""

    address: str = ""
    """Address of a Ray cluster, host:port. Empty: the address in RAY_ADDRESS, or the cluster that this machine
    belongs to. If there is no cluster, a cluster of this machine alone is started for the run."""
    cpus_per_learner: Threads = 0
    """Processor cores for each learner with its actors, >= 0; with two or more cores, acting and learning overlap.
    0: auto, which is this machine's cores divided by the number of learners, at least 1."""
    cpus_per_actor: Threads = 1
    """Processor cores for each actor of --actors-per-learner, >= 0; the actor runs on any machine. 0: actors run
    beside their learner, on its cores."""
    gpus_per_learner: Annotated[float, Meta(ge=0, le=1024)] = 0.0
    """GPUs for each learner, >= 0; with a fraction, learners share a GPU."""
    min_learners: Whole = 0
    """Fewest learners to train with, in [0, num_learners]. The run begins when this many learners have a place. The
    other learners start later, when machines join, from the average of the learners whose messages they mix. 0: the run
    begins with all learners. Topology allreduce always needs all learners, as do learners in lock-step that share
    processes."""
    wait_seconds: Positive = 120.0
    """Longest time to wait until min_learners learners have a place, > 0. Then the run fails and reports the missing
    resources."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run. Environment and machine decide "auto" (0 where the text says "0: auto") when the run starts."""

    env_id: str = ""
    """Id of the environment, such as PongNoFrameskip-v4, ALE/Pong-v5, CartPole-v1, HalfCheetah-v5, envpool:Ant-v5,
    or your own as module:function. It has no flag on the command line."""
    algorithm: Algorithm = field(default_factory=VTrace)
    """The loss: one of the classes in algorithms/, or your own as module:Class."""
    topology: Topology = field(default_factory=Single)
    """How learners mix: one of the classes in topology/, or your own as module:Class."""
    replays: tuple[ReplaySettings, ...] = (QueueSettings(),)
    """Sources of a batch: a queue (entry 0 by default) and replays. Their fractions sum to 1."""
    replay_ratio: Annotated[float, Meta(ge=0, le=10_000)] = 0.0
    """Replayed columns per online column, >= 0. A value above 0 sets up a queue and one replay with
    matching fractions; the replay is uniform unless --replays.1.name names another kind."""
    replay_burn_in: Whole = 0
    """Recurrent policies: rows at the start of each replayed column that only refresh the recurrent state and are not
    trained on, in [0, unroll_length)."""
    prefetch_batches: Annotated[int, Meta(ge=0, le=64)] = 1
    """Batches to sample from replays ahead of the learner, in [0, 64], also inline, so that results do not depend on the
    placement."""
    checkpoint_replay: bool = False
    """Save the contents of replays in every checkpoint. Resuming is then exact at lag 0 and 1 (except if learner
    processes share a replay), and checkpoints grow by the size of the replay. Off: a resumed run starts with empty
    replays and new episodes, and replays fewer columns until its replays are as full as before."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer and its learning rate."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The network."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """How the environment is set up."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Episodes played beside training."""

    seed: Seed = 1
    """Seed of everything random in the run, >= 0."""
    total_env_steps: Count = 10_000_000
    """Env steps (decisions) to train for, summed over learners, >= 1; rounded up to whole batches. Schedules reach
    their end value after these steps."""
    stop_after_seconds: Seconds = 0.0
    """Stop after this much wall time, >= 0, summed over all sessions, without what a killed session lost after its last
    checkpoint. 0: no limit."""
    stop_at_return: Number | None = None
    """Stop when the mean return of the last 100 training episodes (the same number from each
    learner) reaches this value. none: no target."""
    stop_within_seconds: Amount = 30.0
    """Time allowed for the current batch to finish after a request to stop (Ctrl-C, SIGTERM, a closed terminal,
    --stop-after-seconds), >= 0. A batch that takes longer is dropped, and the run can be resumed from its last
    checkpoint. Saving the last checkpoint may take up to twice as long as the slowest checkpoint so far."""
    patience_seconds: Amount = 300.0
    """Time without progress after which a run is stopped as stuck, >= 0. Progress is an env step, a trained micro-batch
    or a message, and is checked for each role that another role waits for. The limit rises to ten times the longest
    pause so far, and is at least 300 while environments are created. 0: no limit."""
    run_folder: str = ""
    """Folder of the run. Empty: runs/<env>/<algorithm>-<topology>/<time>-s<seed>."""
    init_from: str = ""
    """Run whose policy (parameters and normalisation statistics) the new run starts with. Empty: a new policy."""
    checkpoint_every_seconds: Seconds = 30.0
    """Seconds between checkpoints, >= 0. A killed run resumes from its last checkpoint. 0: checkpoints only at the
    start and at the end."""
    keep_checkpoints: Whole = 3
    """Newest checkpoints to keep besides the best one, >= 0. 0: keep all."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run folder."""
    wandb: bool = False
    """Also log to Weights & Biases; needs the extra gossamer[wandb]."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where learners run with placement cluster."""

    placement: Literal["inline", "local", "cluster"] = "local"
    """Where roles (actors, learners) run. inline: one role at a time, in one thread. local: roles overlap on this
    machine. cluster: each learner runs on a machine of a Ray cluster."""
    lag: Literal["auto", "0", "1", "free"] = "auto"
    """Policy versions by which actors may be behind the learner. 0: actors wait until their data is learnt. 1: acting
    and learning overlap, reproducibly. free: actors wait only if the queue is full; fastest. auto: 1 for algorithms
    that correct for lag, else 0."""
    num_envs: UpToMillion = 0
    """Environments per learner, >= 0. 0: auto, which is 64 for images (128 on a GPU), otherwise 16. Most suites
    set a number."""
    num_learners: Annotated[int, Meta(ge=1, le=65536)] = 1
    """Number of learners, in [1, 65536], each with its own environments, random streams and optimizer. auto: with at
    least four cores, one learner for every two cores, at most 16; they mix by gossip unless you choose a topology. auto
    means one learner if the run uses a GPU, replays or a placement other than local, if total_env_steps is below
    200,000, or if you set a number of threads, groups or actors."""
    learners_per_process: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Learners per process, >= 0; the learners of one process take turns. 0: auto, which is one, or several if there
    are more than two learners per core."""
    same_start: bool = True
    """Start all learners with the same weights. Off: each learner draws its own weights."""
    actors_per_learner: Threads | None = None
    """Actor processes per learner, >= 0; a learner's environments are divided among its actors. 0: the learner's
    process also steps the environments. none: 0, but the command `gossamer train` uses 1 if acting and learning overlap
    (lag 1) on a CPU with two cores per learner, the simulators run in Python (not Atari, not EnvPool), and
    total_env_steps is at least 200,000. With placement inline, actors take turns in one process."""
    unroll_length: CountToMillion = 16
    """Rows per trajectory, >= 1. A row is an env step or a reset between episodes."""
    max_episode_steps: UpToBillion = 0
    """Env steps after which an episode is truncated, >= 0. 0: 27,000 for Atari; otherwise the environment's
    own limit, or 1,000 if it has none."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the policy. auto: the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the feature layers. auto: bf16 for images if the hardware supports it, else fp32. Parameters,
    optimizer, recurrent layers, heads and losses are always fp32."""
    deterministic: bool = False
    """Use deterministic GPU operations, which are slower: runs at lag 0 and 1 are then reproducible and resume
    exactly. CPU runs need no such setting."""
    micro_batch_rows: UpToBillion = 0
    """Rows per forward and backward pass, >= 0; gradients are accumulated, so the result is the
    same. 0: auto, which fits the cache for images on a CPU and otherwise takes whole minibatches."""
    learner_threads: Threads = 0
    """Learner threads, >= 0; each works on its own micro-batches. 0: auto."""
    actor_threads: Threads = 0
    """Actor threads for inference, >= 0; each computes actions for its own share of the
    environments. 0: auto."""
    env_threads: Threads = 0
    """Threads that step environments, >= 0. 0: auto."""
    env_groups: Threads = 0
    """Groups that an actor's environments are split into, >= 0: one group is stepped while actions are computed for
    another. 0: auto, which is 1 on few cores, where larger inference batches save more time than this overlap."""

    @property
    def queue(self) -> QueueSettings:
        """The one queue among the replays."""
        return next(x for x in self.replays if isinstance(x, QueueSettings))

    @property
    def known_lag(self) -> Literal["0", "1", "free"]:
        """`lag`, where auto is what the algorithm takes."""
        return self.lag if self.lag != "auto" else "1" if self.algorithm.corrects else "0"

    @property
    def shares_replay(self) -> bool:
        """Whether all learners read a replay."""
        return any(getattr(x, "shared", False) for x in self.replays)

    def of_learner(self, rank: int) -> "TrainConfig":
        """Return the settings of learner `rank`: only its own value of each setting that has one value per learner."""
        config = self
        for section, setting, values in self.per_learner():
            own = replace(getattr(config, section), **{setting: (values[rank % len(values)],)})
            config = replace(config, **{section: own})
        return config

    def differing(self, rank: int) -> dict[str, float]:
        """Return learner `rank`'s values of the settings that differ between learners, by name."""
        listed = self.per_learner()
        return {setting: values[rank] for _, setting, values in listed if len(set(values)) > 1}

    def per_learner(self) -> list[tuple[str, str, Any]]:
        """Return section, name and values of each setting that may have one value per learner."""
        names = (name.split(".") for name in PER_LEARNER)
        return [(x, setting, getattr(getattr(self, x), setting)) for x, setting in names]
