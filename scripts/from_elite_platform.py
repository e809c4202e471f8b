"""Translate experiments of the elite replay platform into settings for `gossamer train`, or a sweep for `gossamer sweep`.

    python scripts/from_elite_platform.py options_flags.json --output published.toml
    python scripts/from_elite_platform.py multi_train.json --output sweep.toml
    python scripts/from_elite_platform.py random_search.json --trials 20 --output sweep.toml

The file holds what the platform's `multi_train` was given, or what it saved: one object of flags, without hyphens in front, or a list
of such objects. One object becomes a file for `gossamer train --config`. A list becomes a file for `gossamer sweep` that tries them in
turn. An object in which flags have lists is the platform's random search: `--trials` of its combinations are drawn and become such a
list.
"""

from __future__ import annotations

import argparse
import ast
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gossamer.config import resolve
from gossamer.config.names import nested
from gossamer.config.suggestions import did_you_mean
from gossamer.config.values import shown
from gossamer.errors import ConfigError
from gossamer.sweep.presets import toml_of
from gossamer.sweep.space import MAX_CHOICES, Choices, Space, random_choice
from gossamer.system.reading import expand, parse_json, quoted, read_plain, visible

UPDATES = 10_000
"""Updates, one a batch, over which the platform annealed, times its alfa_annealing_factor."""
_RENAMED = {
    "env": "env_id",
    "seed": "seed",
    "r_f_steps": "unroll_length",
    "environment_max_steps": "total_env_steps",
    "lr": "optimizer.learning_rate",
    "gamma": "algorithm.discount",
    "gradient_clip_by_norm_threshold": "optimizer.max_grad_norm",
    "value_loss_weight": "algorithm.value_cost",
    "entropy_loss_weight": "algorithm.entropy_cost",
    "rho_const": "algorithm.clip_rho",
    # So it was called there; it is the cap of the policy gradient.
    "c_const": "algorithm.clip_pg_rho",
    "skipped_frames": "env.frame_skip",
    "frames_stacked": "env.frame_stack",
    "noop_threshold": "env.noop_max",
}
_SWITCHES = {"grayscaling_frames": "env.grayscale", "episodic_life": "env.life_loss_terminal"}
_CLIPS = {"abs_one_sign": "sign", "abs_one_clamp": "clamp", "soft_asymmetric": "soft_asymmetric"}
_SPECIAL = (
    "batch_size",
    "clip_rewards",
    "reward_clipping_method",
    "frame_scale_resolution",
    "lr_end_value",
    "lr_scheduler_steps",
    "optimizer",
    "rmsprop_eps",
    "replay_parameters",
    "training_fill_in_factor",
    "policy_gradient_loss_weight",
    "use_policy_cloning_loss",
    "policy_cloning_loss_weight",
    "use_value_cloning_loss",
    "value_cloning_loss_weight",
    "use_kl_mask",
    "kl_div_threshold",
    "op_mode",
)
_LEFT_OUT = (
    *("learner_thread_count", "worker_count", "envs_per_worker", "multiprocessing_backend"),
    *("shared_queue_size", "replay_writer_queue_size", "discarding_strategy", "reproducible"),
    *("use_replay_compression", "lz4_compression_level", "caching", "caching_threads"),
    *("cache_sample_size", "cache_output_buffer_size", "replay_out_cache_size", "avg_buff_size"),
    *("verbose_worker_out_int", "verbose_learner_out_int", "basic_verbose", "worker_verbose"),
    *("background_save", "test_episode_count", "render", "debug", "save_model_period"),
    *("load_model_url", "load_optimizer_save", "actions_count", "observation_shape"),
    *("feature_out_layer_size", "use_additional_scaling_FC_layer", "mini_batch_multiplier", "p"),
)
"""Flags that change how the platform ran, or nothing; what is learnt does not depend on them here."""
_REPLAYS = {"queue": "queue", "standard": "uniform", "custom": "elite"}
_OF_REPLAYS = {
    "capacity": "capacity",
    "sample_ratio": "fraction",
    "p": "norm_order",
    "lambda_batch_multiplier": "candidate_multiplier",
    "elite_batch_size": "elite_batch",
}
_WORDS_OF_REPLAYS: dict[str, tuple[str, dict[str, str]]] = {
    "dist_function": ("distance", {"ln_norm": "lp", "cos_dist": "cosine", "kl_div": "kl"}),
    "sample_strategy": ("name", {"elite_sampling": "elite", "attentive_sampling": "attentive"}),
    "elite_sampling_strategy": (
        "strategy",
        {
            "strategy1": "nearest",
            "strategy2": "stratified",
            "strategy3": "least_used",
            "strategy4": "stratified_least_used",
        },
    ),
    "insert_strategy": ("insert", {"elite_insertion": "elite"}),
}
_DEFAULTS: dict[str, Any] = {
    "env": "AtlantisNoFrameskip-v4",
    "batch_size": 100,
    "r_f_steps": 10,
    "environment_max_steps": 15_000_000,
    "lr": 8e-4,
    "gradient_clip_by_norm_threshold": 40.0,
    "lr_end_value": 1e-5,
    "optimizer": "rmsprop",
    "rmsprop_eps": 0.01,
    "lr_scheduler_steps": UPDATES,
    "clip_rewards": True,
    "reward_clipping_method": "abs_one_sign",
    "policy_gradient_loss_weight": 1,
    "use_policy_cloning_loss": True,
    "policy_cloning_loss_weight": 0.05,
    "use_value_cloning_loss": True,
    "value_cloning_loss_weight": 0.005,
    "use_kl_mask": False,
    "kl_div_threshold": 0.3,
    "replay_parameters": [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "standard", "capacity": 1000, "sample_ratio": 0.5},
    ],
}
_FIXED: dict[str, Any] = {
    "algorithm.reduction": "sum",
    "algorithm.normalize_advantage": False,
    "algorithm.value_norm": False,
    "algorithm.trace_lambda": 1.0,
    "algorithm.num_minibatches": 1,
    "algorithm.passes": 1,
    "optimizer.schedule": "polynomial",
    "optimizer.schedule_power": 2.0,
    "optimizer.learn_start": 0,
    "policy.torso": "elite",
    "policy.normalize_obs": False,
}
"""Settings that were not flags there, and have other defaults here."""


def main() -> int:
    """Translate a file; return the exit code: 2, and one line, for one that cannot be."""
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE.json", help="experiments, as the platform has them")
    parser.add_argument("--output", metavar="FILE.toml", help="file to write; else it is printed")
    parser.add_argument("--trials", type=int, metavar="N", help="draws of a random search")
    asked = parser.parse_args()
    try:
        text, verb = translated(asked.file, asked.trials)
        if asked.output is None:
            print(text, end="")
            return 0
        Path(asked.output).write_text(text, encoding="utf-8")
    except (ConfigError, OSError) as error:
        print(f"{parser.prog}: {visible(str(error))}", file=sys.stderr)
        return 2
    print(f"type: {verb} {quoted(asked.output)}", file=sys.stderr)
    return 0


def translated(path: str, trials: int | None) -> tuple[str, str]:
    """Return the text of a file of ours, and the command that takes it.

    Raises:
        ConfigError: it cannot be read, or holds a flag or a value that the platform does not know.
    """
    written = read_experiments(path)
    given = [_named(x, path) for x in (written if isinstance(written, list) else [written])]
    comments = list(_comments(path, given))
    if not isinstance(written, list) and (space := _space(given[0], path)):
        if trials is None or trials < 1:
            raise ConfigError(
                f"{path}: a random search over {', '.join(space)} needs a number of trials: --trials 20"
            )
        comments.append(f"{trials} draws of a random search over {', '.join(space)}.")
        given = [{**given[0], **random_choice(space, i, seed=1)} for i in range(trials)]
    elif trials is not None:
        raise ConfigError(f"--trials is {trials}, but {path} holds no random search; leave it out")
    settings: list[dict[str, Any]] = []
    for i, one in enumerate(given):
        try:
            settings.append(_checked(one, f"{path}: {'draw' if trials else 'experiment'} {i + 1}"))
        except ConfigError as error:
            # Of a random search some combinations may not work.
            if not trials or (i + 1 == len(given) and not settings):
                raise
            comments.append(f"Left out: {str(error).removeprefix(f'{path}: ')}.")
    if len(settings) == 1:
        tree, verb = nested(settings[0]), "gossamer train --config"
    else:
        common = {x: y for x, y in settings[0].items() if all(o.get(x) == y for o in settings)}
        others = [nested({x: y for x, y in o.items() if x not in common}) for o in settings]
        tree = {"method": "list", "settings": nested(common), "experiments": others}
        verb = "gossamer sweep"
    wrapped = [line for one in comments for line in textwrap.wrap(one, 118)]
    return "".join(f"# {line}\n" for line in wrapped) + "\n" + toml_of(tree), verb


def read_experiments(path: str) -> dict[str, Any] | list[dict[str, Any]]:
    """Return one object of flags, or a list of them, none of them empty."""
    try:
        written: Any = parse_json(read_plain(expand(path)))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}: not a file of experiments: {reason}") from None
    listed = cast("list[Any]", written) if isinstance(written, list) else [written]
    if not listed or not all(isinstance(x, dict) and x for x in listed):
        raise ConfigError(
            f"{path} must hold a list of experiments, each an object of flags: "
            '[{"env": "PongNoFrameskip-v4", "lr": 0.0008}]'
        )
    return written


def _comments(path: str, given: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{visible(Path(path).name)} of the elite replay platform, translated."
    if left_out := sorted({name for one in given for name in one if name in _LEFT_OUT}):
        yield (
            f"Left out, as they change how the platform ran and not what is learnt: {', '.join(left_out)}."
        )
    if any("lr_scheduler_steps" in one for one in given):
        yield (
            "The learning rate ends with the run here, not after lr_scheduler_steps; the annealing of replays does end with "
            "them."
        )


def _checked(flags: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of an experiment, by dotted name, once they are known to work together."""
    settings = translate(flags, where)
    try:
        resolve(given=nested(settings), machine="")
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error).removeprefix('settings: ')}") from None
    return settings


def _named(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an experiment with underscores for hyphens, and only flags that the platform has."""
    made = {name.lstrip("-").replace("-", "_"): value for name, value in given.items()}
    known = (*_RENAMED, *_SWITCHES, *_SPECIAL, *_LEFT_OUT)
    for name in made:
        if name not in known:
            hint = did_you_mean(name, known, "; docs/coming-from/papers.md lists them")
            raise ConfigError(f"{where}: {name} is not a flag of the elite platform{hint}")
    return made


def _space(given: Mapping[str, Any], path: str) -> Space:
    """Return the flags that have lists of choices."""
    space: Space = {}
    for name, value in given.items():
        plain = name == "observation_shape" or (
            name == "frame_scale_resolution" and _is_size(value)
        )
        if not isinstance(value, list) or plain:
            continue
        values = cast("list[Any]", value)
        if name == "replay_parameters" and not all(isinstance(x, (str, list)) for x in values):
            continue  # one list of replays
        if not 0 < len(values) <= MAX_CHOICES:
            raise ConfigError(f"{path}: {name} is an empty list; give at least one value")
        space[name] = Choices(tuple(values))
    return space


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(x) is int for x in value)


def translate(flags: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings that an experiment of the platform's stands for, by dotted name.

    Args:
        flags: by name, with underscores.
        where: begins an error.

    Raises:
        ConfigError: a value that it did not take, or that cannot be had here.
    """
    asked = {**_DEFAULTS, **flags}
    made = dict(_FIXED)
    for name, ours in _RENAMED.items():
        if name in asked:
            made[ours] = asked[name]
    for name, ours in _SWITCHES.items():
        if name in asked:
            made[ours] = _switch(asked, name, where)
    if asked.get("op_mode", "train") != "train":
        raise ConfigError(
            f"{where}: op_mode is {shown(asked['op_mode'])}; what is written here trains; use gossamer eval, or gossamer train --resume"
        )
    if _number(asked, "policy_gradient_loss_weight", where) != 1:
        raise ConfigError(
            f"{where}: policy_gradient_loss_weight is {shown(asked['policy_gradient_loss_weight'])}; here it is 1: divide the "
            "other weights by it, and multiply the learning rate"
        )
    clip = _one_of(asked, "reward_clipping_method", _CLIPS, where)
    made["algorithm.reward_clip"] = clip if _switch(asked, "clip_rewards", where) else "none"
    made["optimizer.name"] = _one_of(
        asked, "optimizer", {"rmsprop": "rmsprop", "adam": "adam"}, where
    )
    # Adam had torch's own.
    rms = made["optimizer.name"] == "rmsprop"
    made["optimizer.epsilon"] = _number(asked, "rmsprop_eps", where) if rms else 1e-8
    rate = _number(asked, "lr", where)
    made["optimizer.schedule_end"] = _number(asked, "lr_end_value", where) / rate if rate else 0.0
    masked = _switch(asked, "use_kl_mask", where)
    made["algorithm.name"] = "laser" if masked else "vtrace"
    if masked:
        made["algorithm.kl"] = "pi_mu"
        made["algorithm.max_kl_nats"] = _number(asked, "kl_div_threshold", where)
    for what in ("policy", "value"):
        used = _switch(asked, f"use_{what}_cloning_loss", where)
        weight = _number(asked, f"{what}_cloning_loss_weight", where)
        made[f"algorithm.{what}_cloning_cost"] = weight if used else 0.0
    if "frame_scale_resolution" in asked:
        made["env.size"] = _size(asked["frame_scale_resolution"], where)
    replays = _replays(asked, where)
    made["replays"] = replays
    queue = sum(x.get("fraction", 0) for x in replays if x["name"] == "queue")
    envs = _number(asked, "batch_size", where) * queue
    if abs(envs - round(envs)) > 1e-6 or envs < 1:
        raise ConfigError(
            f"{where}: batch_size is {shown(asked['batch_size'])}, of which the queue's {queue:g} is no whole number of "
            "unrolls; use another batch_size"
        )
    made["num_envs"] = round(envs)
    return made


def _replays(asked: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    given = asked["replay_parameters"]
    if isinstance(given, str):
        try:
            given = ast.literal_eval(given)  # as there: single quotes are allowed
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ConfigError(
                f"{where}: replay_parameters is {shown(given)}, not a list of replays"
            ) from None
    if not isinstance(given, list) or not all(isinstance(x, dict) for x in given):
        raise ConfigError(f"{where}: replay_parameters is {shown(given)}, not a list of replays")
    made: list[dict[str, Any]] = []
    for one in cast("Sequence[dict[str, Any]]", given):
        entry = _replay(one, where)
        if "anneal_updates" in entry:
            steps = _number(asked, "lr_scheduler_steps", where)
            entry["anneal_updates"] = round(entry["anneal_updates"] * steps / UPDATES)
        if "training_fill_in_factor" in asked and entry["name"] != "queue":
            share = _number(asked, "training_fill_in_factor", where)
            rows = _number(asked, "r_f_steps", where) * entry.get("capacity", 0)
            entry["learn_start"] = round(share * rows)
        made.append(entry)
    return made


def _replay(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an entry of `replays` for one of the platform's."""
    at = f"{where}: replay_parameters"
    kind = _one_of(given, "type", _REPLAYS, at)
    made: dict[str, Any] = {"name": kind}
    if kind == "elite":
        # Without a way to sample it only inserted by distance.
        made |= {"candidate_multiplier": 1.0, "anneal_updates": UPDATES, "strategy": "least_used"}
    for key in given:
        if key in _OF_REPLAYS:
            made[_OF_REPLAYS[key]] = _number(given, key, at)
        elif key in _WORDS_OF_REPLAYS:
            name, words = _WORDS_OF_REPLAYS[key]
            made[name] = _one_of(given, key, words, at)
        elif key == "alfa_annealing_factor":
            made["anneal_updates"] = round(UPDATES * _number(given, key, at))
        elif key != "type":
            known = ("type", *_OF_REPLAYS, *_WORDS_OF_REPLAYS, "alfa_annealing_factor")
            raise ConfigError(f"{at}: {key!r} beside a type; it must be one of {', '.join(known)}")
    extra = [x for x in given if x not in ("type", "capacity", "sample_ratio")]
    if kind != "elite" and extra:
        raise ConfigError(
            f"{at}: {extra[0]!r} beside type {given['type']}, which is for type custom alone"
        )
    if kind == "elite" and "sample_strategy" not in given:
        made["candidate_multiplier"] = 1.0  # whatever was given: it was not used
    return made


def _one_of(asked: Mapping[str, Any], name: str, allowed: Mapping[str, str], where: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(
            f"{where}: {name} is {shown(value)}; it must be one of {', '.join(allowed)}"
        )
    return allowed[value]


def _switch(asked: Mapping[str, Any], name: str, where: str) -> bool:
    value = asked[name]
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ConfigError(f"{where}: {name} is {shown(value)}; it must be true or false")


def _number(asked: Mapping[str, Any], name: str, where: str) -> float:
    value = asked[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}: {name} is {shown(value)}; it must be a number")
    return value


def _size(value: Any, where: str) -> int:
    sides = value.split(",") if isinstance(value, str) else value
    try:
        height, width = (int(x) for x in sides)
    except (TypeError, ValueError):
        height, width = 0, 1
    if height != width:
        raise ConfigError(
            f"{where}: frame_scale_resolution is {shown(value)}; it must be a square, such as 84,84"
        )
    return height


if __name__ == "__main__":
    sys.exit(main())
