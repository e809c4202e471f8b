"""Everything a training run can be told: `TrainConfig` and the section of settings it owns."""

from dataclasses import dataclass, field, replace
from typing import Literal

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.envs.settings import EnvConfig
from gossamer.optimizers import OptimizerConfig
from gossamer.policies.settings import PolicyConfig
from gossamer.replay.settings import QueueSettings, ReplaySettings
from gossamer.topology import AllReduce, Diffusion, Gossip, Single

PER_LEARNER = ("optimizer.learning_rate", "algorithm.entropy_cost")
"""Settings of which there is one value, or one per learner."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Full episodes played beside training, with seeds that neither training nor `gossamer eval` has."""

    episodes: int = 5
    """Episodes of one evaluation, >= 1. Of a family of tasks as many or more of each set, training tasks
    and held-out ones, each task's share alike; of a set of more than 100 tasks and more than this, one
    episode each of 100 tasks, or of as many as this, evenly spaced."""
    every_seconds: float = 60.0
    """Seconds between evaluations, >= 0; 0 turns evaluation off. Learners that mix parameters have turns:
    their average, which is the run's policy, counts as best and is printed, then one of them, and so on;
    those that never talk are evaluated one after the other."""
    confirm_episodes: int = 20
    """Episodes by which a new best policy is confirmed, >= 1, and at least as many as an evaluation has. A policy
    that is evaluated higher than the best's score is a candidate. Both then play that many new episodes, the
    same for both; the better one is kept as the best, and its mean is its score."""
    max_time_fraction: float = 0.03
    """Largest share of the run's time that evaluations and confirmations may take, in (0, 1]; they wait
    otherwise. What is left to confirm when a run is done is confirmed then."""
    greedy: bool = False
    """Take the most likely action instead of sampling one."""
    held_out_tasks: int | None = None
    """Families of tasks: that many tasks which training does not see are scored too, >= 0. Default: 10."""


@dataclass(frozen=True)
class TrainConfig:
    """A training run. 0 and "auto" are resolved from the environment and the machine at start."""

    env_id: str = ""
    """Environment, by the name people know it: PongNoFrameskip-v4, ALE/Pong-v5, CartPole-v1,
    HalfCheetah-v5, envpool:Ant-v5, module:function. On the command line it has no flag."""
    algorithm: A2C | VTrace | Laser | PPO | Impact = field(default_factory=VTrace)
    """The loss: a2c, vtrace, laser, ppo or impact."""
    topology: Single | AllReduce | Gossip | Diffusion = field(default_factory=Single)
    """How learners mix: single, allreduce, gossip or diffusion."""
    replays: tuple[ReplaySettings, ...] = (QueueSettings(),)
    """What a batch is made of: a queue, which is entry 0 by default, and replays; fractions sum to 1."""
    replay_ratio: float = 0.0
    """Columns replayed for each online one, >= 0: stands for the fractions of a queue and of one replay, which is
    uniform unless --replays.1.name says otherwise."""
    replay_burn_in: int = 0
    """Recurrent policies: rows at the start of replayed columns that only bring the stored recurrent state up
    to date and are not learnt, in [0, unroll_length)."""
    prefetch_batches: int = 1
    """Batches that are picked from replays ahead, beside learning, in [0, 64]. Inline nothing runs beside
    learning; they are picked as far ahead all the same, so that a run is the same wherever its parts are."""
    checkpoint_replay: bool = False
    """Save what replays hold with every checkpoint: resuming is exact at lag 0 and 1, and checkpoints are as large; not exact
    where learners in processes of their own share one. Without it, or resumed without it, a run's replays begin
    empty and its episodes anew, annealing and random streams where they were; until replays are as full as they were,
    only some batches have replayed columns."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How a gradient becomes a step."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The network."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """How the environment is set up."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Episodes played beside training."""

    seed: int = 1
    """Seed of everything random in the run, >= 0."""
    total_env_steps: int = 10_000_000
    """Env steps (decisions) to train for, summed over learners, >= 1; rounded up to whole batches.
    Schedules end here."""
    stop_after_seconds: float = 0.0
    """Stop after this much wall time, summed over resumed sittings, >= 0; 0: never."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 training episodes, of several learners as many of each,
    reaches this; none: never."""
    stop_within_seconds: float = 30.0
    """Longest time from a stop that was asked for (Ctrl-C, SIGTERM, a closed terminal, --stop-after-seconds) to the
    end of the batch that is being learnt, >= 0. A batch that needs longer is left unlearnt, and the run can be
    resumed from its last checkpoint. Twice what the longest checkpoint took is added for saving."""
    patience_seconds: float = 300.0
    """Longest time, >= 0, in which a role that others wait for shows no sign of life (no env step ends, no
    micro-batch is learnt, no message comes); then the run is given up as stuck. Ten times the longest such pause
    so far, if that is longer; an environment that is being made has 300 at least. 0: it is waited for without end."""
    run_folder: str = ""
    """Folder of the run, exactly here; empty: runs/<env>/<algorithm>-<topology>/<time>-s<seed>."""
    init_from: str = ""
    """Run whose policy parameters and moments to start from; empty: fresh ones."""
    checkpoint_every_seconds: float = 30.0
    """Seconds between checkpoints, >= 0; a killed run goes on from the last one. 0: only at the end."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept beside the best one, >= 0; 0 keeps all."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run folder."""
    wandb: bool = False
    """Also log to Weights & Biases; needs the extra gossamer[wandb]."""

    placement: Literal["inline", "local", "cluster"] = "local"
    """Where roles run: inline is one role at a time, local overlaps them on this machine."""
    lag: Literal["auto", "0", "1", "free"] = "auto"
    """Versions by which acting may trail learning. 0: actors wait for the update. 1: overlapped and
    reproducible. free: bounded queue, fastest. auto: 1 where the algorithm corrects, else 0."""
    num_envs: int = 0
    """Environments per learner, >= 0; 0: auto."""
    num_learners: int = 1
    """Learners, in [1, 65536], each with its own environments, streams and optimizer."""
    learners_per_process: int = 0
    """Learners that share a process and take turns there, >= 0; 0: auto, 1 until there are more than
    two processes a core."""
    same_start: bool = True
    """All learners begin with the same weights; otherwise each draws its own."""
    actors_per_learner: int = 0
    """Actor processes per learner, >= 0; 0: the learner's own process steps the environments."""
    unroll_length: int = 16
    """Rows of one trajectory, >= 1: env steps, and the resets between episodes."""
    max_episode_steps: int = 0
    """Longer episodes are truncated, in env steps, >= 0; 0: 27,000 for Atari, 1,000 for other
    environments without a limit, otherwise the environment's own."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy lives; auto: the GPU where there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the network; auto: bf16 where the hardware has it, else fp32."""
    deterministic: bool = False
    """On a GPU use operations that sum in a fixed order, which are slower: a run is the same every time and
    resumes exactly, as on a CPU it does without."""
    compile: bool = False
    """Compile the policy on a GPU; slower to start, faster to run."""
    micro_batch_rows: int = 0
    """Rows per forward and backward pass, >= 0; gradients accumulate to the same result.
    0: auto, what fits the cache on a CPU and everything on a GPU."""
    learner_threads: int = 0
    """Micro-batches that the learner works on at a time, each on one thread, >= 0; 0: auto."""
    actor_threads: int = 0
    """Parts of a group's environments that are acted for side by side, each on one thread, >= 0; 0: auto."""
    env_threads: int = 0
    """Threads that step environments, >= 0; 0: auto."""
    env_groups: int = 0
    """Parts an actor's environments are cut into, >= 0: while one is stepped, another is acted for.
    0: auto, 1 on few cores, where larger inference batches are worth more."""

    @property
    def queue(self) -> QueueSettings:
        """The one queue among the replays."""
        return next(x for x in self.replays if isinstance(x, QueueSettings))

    def of_learner(self, rank: int) -> "TrainConfig":
        """Return the settings as learner `rank` has them: of one value per learner, its own."""
        config = self
        for name in PER_LEARNER:
            section, _, setting = name.partition(".")
            held = getattr(config, section)
            values = getattr(held, setting)
            own = replace(held, **{setting: (values[rank % len(values)],)})
            config = replace(config, **{section: own})
        return config

    def differing(self, rank: int) -> dict[str, float]:
        """Return by name the settings that learners have different values of, as `rank` has them."""
        found: dict[str, float] = {}
        for name in PER_LEARNER:
            section, _, setting = name.partition(".")
            values = getattr(getattr(self, section), setting)
            if len(set(values)) > 1:
                found[setting] = values[rank]
        return found
