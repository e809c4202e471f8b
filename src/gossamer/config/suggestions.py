"""Suggestions for what was mistyped: the name that was probably meant, and what other trainers call our settings."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from gossamer.config.names import ANY, flag, with_any
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from gossamer.config.merging import Layer

ELSEWHERE = {
    "env_id": ("env_name", "gym_id"),
    "learning_rate": ("lr",),
    "schedule": ("lr_schedule", "lr_scheduler"),
    "epsilon": ("eps", "adam_eps", "adam_epsilon", "rms_prop_eps"),
    "beta1": ("adam_beta1",),
    "beta2": ("adam_beta2",),
    "discount": ("gamma",),
    "trace_lambda": ("lam", "lambda", "lambda_", "gae_lambda"),
    "entropy_cost": (
        *("ent_coef", "entropy_coef", "entropy_coeff", "entropy_loss_coeff", "beta"),
        "exploration_loss_coeff",
    ),
    "value_cost": ("baseline_cost",),
    "clip_ratio": ("clip_range", "clip_coef", "clip_param", "eps_clip", "ppo_clip_ratio"),
    "clip_value": ("clip_range_vf", "ppo_clip_value"),
    "clip_rho": ("vtrace_rho", "vtrace_clip_rho_threshold"),
    "clip_c": ("vtrace_c",),
    "clip_pg_rho": ("vtrace_clip_pg_rho_threshold",),
    "passes": ("epochs", "n_epochs", "num_epochs", "update_epochs", "ppo_epoch", "num_sgd_iter"),
    "num_minibatches": ("num_mini_batch", "minibatches", "nminibatches", "num_batches_per_epoch"),
    "normalize_advantage": ("norm_adv", "normalize_advantages", "advantage_normalization"),
    "reward_clip": ("clip_rewards", "clip_reward", "reward_clipping"),
    "value_norm": ("norm_reward", "normalize_reward", "normalize_rewards", "normalize_returns"),
    "target_kl_nats": ("lr_schedule_kl_threshold", "kl_threshold"),
    "unroll_length": (
        *("n_steps", "num_steps", "rollout_length", "rollout_steps", "nsteps", "rollout"),
        *("rollout_fragment_length", "horizon_length"),
    ),
    "num_envs": ("n_envs", "nenvs", "envs", "num_processes", "num_actors"),
    "total_env_steps": (
        *("total_timesteps", "timesteps", "total_steps", "steps", "num_env_steps"),
    ),
    "stop_after_seconds": ("train_for_seconds", "time_total_s", "max_time_s"),
    "stop_at_return": ("reward_threshold", "stop_reward", "score_to_win"),
    "max_grad_norm": ("grad_clip", "clip_grad", "grad_norm_clipping", "grad_norm"),
    "run_folder": (
        *("run_dir", "log_dir", "output_dir", "savedir", "outdir", "exp_name", "experiment"),
        *("experiment_name", "train_dir", "tb_log_name", "storage_path"),
    ),
    "checkpoint_every_seconds": ("save_every_sec", "save_every_secs"),
    "keep_checkpoints": ("checkpoints_to_keep", "max_checkpoints", "num_to_keep"),
    "fc_size": ("encoder_conv_mlp_layers",),
    "tensorboard": ("tensorboard_log", "tb_log", "use_tensorboard"),
    "wandb": ("track", "with_wandb", "use_wandb"),
    "episodes": ("n_eval_episodes", "num_eval_episodes", "evaluation_duration"),
    "greedy": ("eval_deterministic", "deterministic_eval"),
    "video": ("capture_video", "save_video", "record_video"),
    "num_learners": ("learners", "num_gpus", "world_size"),
    "device": ("cuda", "no_cuda", "use_cuda", "gpu", "use_gpu"),
    "deterministic": ("torch_deterministic", "cuda_deterministic", "cudnn_deterministic"),
    "precision": ("dtype", "amp", "fp16", "mixed_precision"),
    "torso": ("features_extractor_class", "encoder_conv_architecture", "feature_extractor"),
    "hidden_sizes": ("net_arch", "hidden", "layers", "fcnet_hiddens", "encoder_mlp_layers"),
    "activation": ("activation_fn", "fcnet_activation", "nonlinearity"),
    "core": ("rnn_type",),
    "core_size": ("rnn_size", "lstm_cell_size", "lstm_hidden_size", "hidden_size"),
    "core_layers": ("rnn_num_layers", "n_lstm_layers", "num_lstm_layers"),
    "head_sizes": ("decoder_mlp_layers",),
    "init_log_std": ("log_std_init",),
    "squash": ("squash_output",),
    "normalize_obs": (
        *("norm_obs", "observation_filter", "normalize_input", "normalize_observations"),
    ),
    "obs_clip": ("clip_obs", "clip_observations"),
    "frame_skip": ("frameskip", "env_frameskip"),
    "frame_stack": ("framestack", "env_framestack", "n_stack", "stack_size"),
    "sticky": ("sticky_actions", "repeat_action_probability", "action_repeat_probability"),
    "life_loss_terminal": ("terminal_on_life_loss", "episodic_life", "episode_life"),
    "max_episode_steps": ("time_limit", "horizon", "max_episode_length"),
    "workers": ("vec_env_cls", "vec_env_class", "num_env_workers"),
    "env_groups": ("worker_num_splits",),
    "actor_threads": ("policy_workers_per_policy",),
    "learners_per_process": ("num_learners_per_process",),
    "replay_ratio": ("replay_proportion",),
    "replays": ("replay_parameters",),
    "name": ("type",),
    "fraction": ("sample_ratio",),
    "capacity_steps": ("buffer_size", "replay_size", "replay_capacity", "buffer_capacity"),
    "learn_start": ("learning_starts", "training_fill_in_factor", "min_buffer_size"),
    "outer_momentum": ("slow_momentum", "slowmo_momentum", "slowmo"),
    "outer_rate": ("outer_lr", "outer_learning_rate", "slow_learning_rate", "slowmo_lr"),
    "max_kl_nats": ("kl_div_threshold", "use_kl_mask"),
    "target_every_updates": ("target_update_interval",),
}
"""Names that other trainers give our settings; only for hints."""
EXPLAINED = {
    ("batch_size", "minibatch_size", "mini_batch_size", "sgd_minibatch_size"): (
        "a minibatch has {num_envs} x {unroll_length} / {algorithm.num_minibatches} rows"
    ),
    ("train_batch_size", "train_batch_size_per_learner"): (
        "a batch has {num_envs} x {unroll_length} rows of each learner"
    ),
    ("num_workers", "num_env_runners", "num_rollout_workers"): (
        "{num_envs} counts environments, {actors_per_learner} processes that act in them, "
        "{env.workers} processes that only step them"
    ),
    ("num_envs_per_worker", "num_envs_per_env_runner", "envs_per_worker"): (
        "{num_envs} counts all environments of a learner, over all its processes"
    ),
    ("train_for_env_steps", "total_frames"): (
        "{total_env_steps} counts decisions: on Atari a quarter of the frames"
    ),
    ("total_environment_frames",): (
        "{total_env_steps} counts decisions of all learners: total_environment_frames / num_action_repeats"
    ),
    ("max_steps",): (
        "{total_env_steps} ends the run, {max_episode_steps} an episode; both count decisions"
    ),
    ("alpha",): "{optimizer.decay} is RMSProp's decay, {optimizer.learning_rate} the learning rate",
    ("vf_coef", "value_coef", "value_loss_coef", "vf_loss_coeff", "value_loss_coeff"): (
        "{algorithm.value_cost} multiplies half the squared error: if yours multiplies the whole, set twice its value"
    ),
    ("env_config", "env_kwargs", "env_args", "env.kwargs"): (
        "arguments of an environment belong into a function of a module of yours, such as "
        "make_big = functools.partial(make_maze, size=9): gossamer train module:make_big"
    ),
    ("conv_filters",): (
        "{policy.torso} is nature, impala, a3c, elite, or layers of your own: module:NAME"
    ),
    ("batch_mode", "decorrelate_experience_max_seconds", "decorrelate_envs_on_one_worker"): (
        "trajectories have {unroll_length} steps, and an episode goes on in the next one"
    ),
    ("grad_clip_by",): "gradients are clipped by their global norm, {optimizer.max_grad_norm}",
    ("evaluation_num_env_runners", "evaluation_num_workers"): (
        "evaluations are played by the run itself, in at most {evaluation.max_time_fraction} of its time"
    ),
    ("metrics_num_episodes_for_smoothing", "stats_window_size", "stats_avg"): (
        "returns are means of the last 100 episodes"
    ),
    ("batched_sampling",): (
        "all environments of a group act together; {env_groups} says how many groups"
    ),
    ("set_workers_cpu_affinity",): (
        "threads keep to the cores that the process may use: taskset -c 0-3 gossamer train ..."
    ),
    ("save_best_after", "save_best_every_sec", "save_best_metric"): (
        "the policy with the best evaluation is always kept; {evaluation.every_seconds} is the time between evaluations"
    ),
    ("exploration_loss",): "exploration is by an entropy bonus, {algorithm.entropy_cost}",
    ("progress_bar", "log_interval", "verbose"): (
        "progress is always shown, once a second in a terminal"
    ),
    ("shuffle_minibatches",): "{algorithm.deal} rows deals single env steps out to minibatches",
    ("num_gpus_per_learner",): (
        "with {device} cuda learners take GPUs in turn; on a cluster {cluster.gpus_per_learner} says how many"
    ),
    ("anneal_lr", "use_linear_lr_decay", "lr_decay"): (
        "{optimizer.schedule} linear lowers the learning rate to 0 over the run and is the default; constant keeps it"
    ),
    ("no_anneal_lr",): "{optimizer.schedule} constant keeps the learning rate",
    ("target_kl",): (
        "{algorithm.max_kl_nats} ends a batch early at this KL (in Stable-Baselines3 at 1.5 target_kl); "
        "{algorithm.target_kl_nats} adapts the learning rate to it"
    ),
    ("kl_target", "kl_coeff", "use_kl_loss", "kl_loss_coeff"): (
        "there is no KL term in the loss; {algorithm.max_kl_nats} ends a batch early, "
        "{algorithm.target_kl_nats} adapts the learning rate"
    ),
    ("clip_vloss", "no_clip_vloss", "clip_value_loss"): (
        "{algorithm.clip_value} is the range of value clipping, and 0, the default, turns it off"
    ),
    ("vf_clip_param",): (
        "no squared error is capped; {algorithm.clip_value} limits how far a value moves"
    ),
    ("value_bootstrap", "use_proper_time_limits"): (
        "a time limit is always a truncation, from which values are bootstrapped"
    ),
    ("use_gae",): "returns are always lambda-returns; without GAE is {algorithm.trace_lambda} 1",
    ("use_rnn", "use_lstm", "lstm", "gru", "rnn", "recurrent", "recurrent_policy"): (
        "{policy.core} gru and {policy.core} lstm make a policy recurrent"
    ),
    ("recurrence", "max_seq_len", "seq_len", "bptt_horizon"): (
        "gradients go back through a whole trajectory, which has {unroll_length} rows"
    ),
    ("use_sde", "sde_sample_freq"): (
        "there is no state-dependent exploration; {policy.noise_correlation} correlates the noise of successive actions"
    ),
    ("vf_share_layers", "actor_critic_share_weights"): (
        "{policy.separate_value} is the opposite: true gives the value layers of its own"
    ),
    ("share_features_extractor",): (
        "the layers of net_arch are separate in Stable-Baselines3 either way, as with {policy.separate_value} true; "
        "layers of images are shared here"
    ),
    ("target_network_update_freq",): (
        "{algorithm.target_every_updates} counts updates; RLlib's number is multiplied by "
        "circular_buffer_num_batches x circular_buffer_iterations_per_batch"
    ),
    ("ortho_init", "policy_initialization"): "weights always begin orthogonal",
    ("action_mask", "action_masks", "use_action_mask", "action_masking"): (
        "masks that are observed or in infos are read by themselves; {env.mask} says where from, or off"
    ),
    ("policy.name",): (
        "the network follows from what is observed, Dicts included; {policy.torso} and {policy.core} lstm change it"
    ),
    ("policy_kwargs", "model_config", "features_extractor_kwargs"): (
        "each part of the network has a setting, such as {policy.hidden_sizes}, {policy.activation} and {policy.torso}"
    ),
    ("initial_stddev", "adaptive_stddev"): (
        "the deviation of actions is learnt and does not depend on the observation; "
        "{policy.init_log_std} is its first natural logarithm"
    ),
    ("obs_scale", "obs_subtract_mean"): (
        "{policy.normalize_obs} normalises observations; without it, pixels are divided by 255"
    ),
    ("reward_scale",): (
        "rewards are not scaled; {algorithm.value_norm} and {algorithm.scale_rewards} adapt to their scale"
    ),
    ("optimizer_class", "opt_type", "use_rms_prop"): (
        "{optimizer.name} is adam, adamw, rmsprop or rmsprop_tf"
    ),
    ("with_vtrace", "vtrace"): (
        'choose algorithm:vtrace, or algorithm:impact, which clips like PPO; a file has algorithm = "vtrace"'
    ),
    ("async_rl",): "{lag} 0 acts and learns in turns; {lag} 1 and free overlap them",
    ("max_policy_lag", "broadcast_interval"): (
        "{lag} 0, 1 or free bounds how many versions an actor is behind; older data is not thrown away"
    ),
    ("serial_mode",): "{placement} inline runs everything in one thread",
    ("num_batches_to_accumulate", "learner_queue_size", "queue_capacity"): (
        "{replays.0.capacity} trajectories wait for the learner, with {lag} free"
    ),
    ("with_pbt",): "there is no population-based training; gossamer sweep searches settings",
    ("num_policies",): (
        "{num_learners} with topology single trains that many independent policies, without population-based training"
    ),
    ("config", "preset", "presets"): (
        "presets are named on the command line by --config NAME, in Python by presets=[NAME]"
    ),
    ("seeds", "num_seeds", "n_seeds"): "several seeds are trained by gossamer train ENV --seeds N",
    ("restart_behavior", "reset_num_timesteps", "load_checkpoint", "load", "resume_from"): (
        "{resume} RUN continues a run, up to {total_env_steps} in all; every other run needs a {run_folder} of its own"
    ),
    ("eval_freq", "evaluation_interval", "eval_interval", "eval_every"): (
        "{evaluation.every_seconds} is the time between evaluations"
    ),
    ("explore",): "training always samples; {evaluation.greedy} true does not in evaluations",
    ("callback", "callbacks"): (
        "gossamer.train takes on_row, a function that is told metrics and may stop the run; {stop_at_return}, "
        "{checkpoint_every_seconds} and {evaluation.every_seconds} do what callbacks are mostly for"
    ),
    ("save_freq", "checkpoint_freq", "checkpoint_frequency", "save_interval"): (
        "{checkpoint_every_seconds} is the time between checkpoints"
    ),
    ("save_model", "save_best"): "the newest checkpoints and the best policy are always saved",
    ("save_milestones_sec",): "{keep_checkpoints} 0 keeps every checkpoint",
    ("wandb_project", "wandb_project_name"): (
        "{wandb} logs to the project that WANDB_PROJECT names, or gossamer"
    ),
    ("wandb_user", "wandb_entity", "wandb_tags", "wandb_group"): (
        "{wandb} sends a run to Weights & Biases, which reads WANDB_ENTITY, WANDB_TAGS and WANDB_RUN_GROUP"
    ),
}
"""Names for which no setting of ours can be put, and what to do instead; a setting in braces is named as the user names settings."""
SAVED = "saved settings"
"""Layer label of a run's settings, which nobody has typed."""
REMOVED = {
    "compile": "a GPU's work is captured without it; leave it out",
}
"""Settings of older versions, and what is to be done instead; a saved run may still hold them."""
NO_WORDS = {
    "env.mask": "{env.mask} off turns masks off, {env.mask} auto, the default, looks for one",
}
"""Settings of which none stands for the default, as in files, and turns nothing off; what to write instead, as in EXPLAINED."""
KINDS_ELSEWHERE = {"gala": ("gossip", "GALA"), "diffdac": ("diffusion", "Diff-DAC")}
"""Systems by which our choices are known, without hyphens; only for hints."""


def near(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word nearest to this one, in any letter case; None if there is none near."""
    folded = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error that names the nearest known word."""
    meant = near(word, known)
    return f"; did you mean {meant}?" if meant else otherwise


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known dotted name that was probably meant, by its last part, siblings first."""
    path, _, last = name.rpartition(".")
    siblings_last = sorted(known, key=lambda one: one.rpartition(".")[0] == path)
    siblings = [one for one in siblings_last if one.rpartition(".")[0] == path]
    for among, cutoff in ((siblings_last, 1.0), (siblings, 0.65), (siblings_last, 0.75)):
        by_last = {one.rpartition(".")[2]: one for one in among}
        if meant := near(last, by_last, cutoff):
            return by_last[meant]
    return None


def unknown_setting(
    layer: Layer, name: str, known: Iterable[str], switches: Container[str] = ()
) -> ConfigError:
    """Build the error for a name that is no setting, with the nearest one.

    Args:
        layer: the source that holds the name.
        name: dotted, with underscores.
        known: names of all settings.
        switches: those of them that `--no-` turns off.
    """
    if name in REMOVED:
        return ConfigError(f"{layer.shown(name)} is no longer a setting: {REMOVED[name]}")
    names = [*known]
    path, dot, last = with_any(name, names).rpartition(".")
    refused = f"{layer.shown(name)} is not a setting"
    for others, text in EXPLAINED.items():
        if last in others or f"{name}.".startswith(tuple(f"{x}." for x in others)):
            return ConfigError(f"{refused}; {_in_names_of(layer, text)}")
    open_paths = {one.partition(f".{ANY}")[0] for one in names if f".{ANY}" in one}
    names = [one for one in names if not one.endswith(f".{ANY}")]  # which is no word
    meant = nearest(path + dot + _ours(path, last), names)
    if meant is None and (open_path := near(path, open_paths, 0.85)):
        meant = f"{open_path}.{last}"
    # Who turns a switch off under another name must not be told to turn ours on.
    if meant is None and (theirs := last.removeprefix("no_")) != (ours := _ours(path, theirs)):
        off = nearest(path + dot + ours, names)
        meant = f"no_{off}" if off and off in switches else None
    if meant and name.count(".") == meant.count("."):  # of the entry that was named
        parts = zip(name.split("."), meant.split("."), strict=True)
        meant = ".".join(x if x.isdecimal() or part == ANY else part for x, part in parts)
    # The environment has no flag of its own: it is the one positional argument.
    hint = f"did you mean {flag(meant) if layer.typed else meant}?" if meant else ""
    listed = "gossamer train --help-all lists all settings"
    if layer.label == SAVED:
        listed = "if a newer version of gossamer has saved the run, use that version"
    return ConfigError(f"{refused}; {hint or listed}")


def our_name(name: str) -> str:
    """Return the dotted name with the last part that another trainer's stands for; itself if none does."""
    path, dot, last = name.rpartition(".")
    return path + dot + _ours(path, last)


def _ours(path: str, theirs: str) -> str:
    """Return the last part of the name that another trainer's stands for; itself if none does."""
    # A type is the kind of something below which it stands.
    named = (x for x, others in ELSEWHERE.items() if theirs in others and (path or x != "name"))
    return next(named, theirs)


def in_place_of_no(layer: Layer, name: str, written: Any) -> str:
    """Return what to write instead of none, false or the like, where that would not turn a setting off; or nothing.

    Args:
        layer: the source that holds it; a file's or a saved run's none is the default, which nobody typed.
        name: of the setting, dotted.
        written: its value.
    """
    words = ("false", "no", "0", *(("none", "null") if layer.typed else ()))
    refused = name in NO_WORDS and written is not None and str(written).lower() in words
    return _in_names_of(layer, NO_WORDS[name]) if refused else ""


def _in_names_of(layer: Layer, text: str) -> str:
    """Return a text whose settings in braces are named as this source names them."""
    return re.sub(r"\{(.*?)\}", lambda x: flag(x[1]) if layer.typed else x[1], text)
