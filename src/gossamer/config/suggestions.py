"""Suggestions for what was mistyped: the name that was probably meant, and what other trainers call our settings."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from gossamer.config.names import ANY, flag, with_any
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gossamer.config.merging import Layer

ELSEWHERE = {
    "learning_rate": ("lr", "alpha"),
    "discount": ("gamma",),
    "trace_lambda": ("lam", "lambda", "gae_lambda"),
    "entropy_cost": ("ent_coef", "entropy_coef", "entropy_coeff", "beta"),
    "value_cost": ("vf_coef", "value_coef", "value_loss_coef", "baseline_cost"),
    "clip_ratio": ("clip_range", "clip_coef", "clip_param", "eps_clip"),
    "passes": ("epochs", "n_epochs", "num_epochs", "update_epochs", "ppo_epoch", "num_sgd_iter"),
    "num_minibatches": ("num_mini_batch", "minibatches", "nminibatches"),
    "unroll_length": ("n_steps", "num_steps", "rollout_length", "rollout_steps", "nsteps"),
    "num_envs": ("n_envs", "nenvs", "envs", "num_processes", "num_actors"),
    "total_env_steps": ("total_timesteps", "timesteps", "total_steps", "max_steps", "steps"),
    "max_grad_norm": ("grad_clip", "clip_grad", "grad_norm_clipping"),
    "run_folder": ("run_dir", "log_dir", "output_dir", "savedir", "outdir"),
    "num_learners": ("learners", "num_gpus", "world_size"),
    "precision": ("dtype", "amp", "fp16"),
    "hidden_sizes": ("net_arch", "hidden", "layers"),
    "replays": ("replay_parameters",),
    "name": ("type",),
    "fraction": ("sample_ratio",),
    "capacity_steps": ("buffer_size", "replay_size", "replay_capacity", "buffer_capacity"),
    "learn_start": ("learning_starts", "training_fill_in_factor", "min_buffer_size"),
    "outer_momentum": ("slow_momentum", "slowmo_momentum", "slowmo"),
    "outer_rate": ("outer_lr", "outer_learning_rate", "slow_learning_rate", "slowmo_lr"),
    "max_kl_nats": ("kl_div_threshold", "use_kl_mask"),
    "target_every_updates": ("target_update_interval", "target_network_update_freq"),
}
"""Names that other trainers give our settings; only for hints."""
REMOVED = {
    "compile": "a GPU's work is captured without it; leave it out",
}
"""Settings of older versions, and what is to be done instead; a saved run may still hold them."""
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


def unknown_setting(layer: Layer, name: str, known: Iterable[str]) -> ConfigError:
    """Build the error for a name that is no setting, with the nearest one."""
    if name in REMOVED:
        return ConfigError(f"{layer.shown(name)} is no longer a setting: {REMOVED[name]}")
    names = [*known]
    path, dot, last = with_any(name, names).rpartition(".")
    names = [one for one in names if not one.endswith(f".{ANY}")]  # which is no word
    # A type is the kind of something below which it stands.
    ours = (x for x, others in ELSEWHERE.items() if last in others and (path or x != "name"))
    meant = nearest(path + dot + next(ours, last), names)
    if meant and name.count(".") == meant.count("."):  # of the entry that was named
        parts = zip(name.split("."), meant.split("."), strict=True)
        meant = ".".join(x if x.isdecimal() or part == ANY else part for x, part in parts)
    # The environment has no flag of its own: it is the one positional argument.
    hint = f"did you mean {flag(meant) if layer.typed else meant}?" if meant else ""
    listed = "gossamer train --help-all lists all settings"
    return ConfigError(f"{layer.shown(name)} is not a setting; {hint or listed}")
