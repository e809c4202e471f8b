"""Dotted names of settings: flags, trees spelt by them, and the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gossamer.errors import ConfigError


def flag(name: str) -> str:
    """Return the command-line flag of a dotted setting name."""
    return "--" + name.replace("_", "-")


class Entries(dict[str, Any]):
    """A whole list, by index: `--replays '[...]' --replays.0.fraction 1` changes the list given before."""

    @classmethod
    def of(cls, entries: Iterable[Any]) -> Entries:
        """Return a list by index."""
        return cls({str(i): one for i, one in enumerate(entries)})


def entries_of(value: Any) -> dict[str, Any]:
    """Return what lies below a name: the settings of a table, or the entries of a list by index; nothing below a plain value."""
    if isinstance(value, (list, tuple)):
        return Entries.of(cast("Sequence[Any]", value))
    return nested(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def place(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in a nested tree; the last mention of a setting wins.

    Raises:
        ConfigError: part of the name holds a plain value.
    """
    *path, last = name.split(".")
    for position, part in enumerate(path):
        below: Any = tree.get(part, {})
        if isinstance(below, str):
            below = {"name": below}
        if isinstance(below, (list, tuple)):
            below = Entries.of(cast("list[Any]", below))
        if not isinstance(below, Mapping):
            section = ".".join(path[: position + 1])
            raise ConfigError(
                f"{name} goes into {section}, which holds a plain value; leave one of the two out"
            )
        # A copy: what is placed must not change what the user holds.
        tree[part] = tree = _copy(cast("Mapping[str, Any]", below))
    before = tree.get(last)
    if isinstance(before, dict) and isinstance(value, str):
        value = {"name": value}
    if isinstance(before, dict) and isinstance(value, Mapping):
        value = nested(cast("Mapping[str, Any]", value), below=cast("dict[str, Any]", before))
    tree[last] = value


def nested(above: Mapping[str, Any], below: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a tree, over another, whose dotted names are nested, with underscores for hyphens."""
    found = _copy(below or {})
    for name, value in above.items():
        place(found, str(name).replace("-", "_"), value)
    return found


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return Entries(tree) if isinstance(tree, Entries) else dict(tree)


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
