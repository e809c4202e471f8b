"""Settings and plan of a resumed run: what is the run's stays, the rest is asked for anew, or this machine's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gossamer.build.plan import make_plan
from gossamer.config import TrainConfig, to_dict
from gossamer.errors import ConfigError
from gossamer.replay.selectors.base import Selector
from gossamer.system.reading import mapping

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

    from gossamer.build.plan import Plan
    from gossamer.machine import Machine
    from gossamer.spec import EnvSpec

KEPT = (
    "env_id",
    "seed",
    "num_learners",
    "unroll_length",
    "optimizer.name",
    "env.task_seed",
    "env.tasks_per_learner",
)
"""Settings that a checkpoint is bound to."""
KEPT_PLAN = ("num_envs", "env_groups")
"""Values of the plan that a checkpoint is bound to."""
RUNS_OWN = (*KEPT_PLAN, "lag", "max_episode_steps")
"""Values of the plan that a run keeps on every machine, unless they are asked for anew."""
SUMS = ("device", "precision", "micro_batch_rows", "learner_threads", "actor_threads")
"""Values of the plan that follow from the machine and decide the last bits of sums."""
EPISODES = tuple(
    f"env.{x}" for x in ("frame_skip", "noop_max", "sticky", "fire_reset", "stuck_steps", "family")
)
"""Settings that decide, beside the plan's `max_episode_steps`, what becomes of an episode that is played again."""
COMPUTED = tuple(
    f"policy.{x}"
    for x in (
        "activation", "normalize_obs", "obs_clip", "pixel_std_floor", "squash", "scale_actions", "noise_correlation",
    )
)  # fmt: skip
"""Settings that decide which actions the same parameters choose."""
LEARNT_WITH = (*COMPUTED, *(f"algorithm.{x}" for x in ("value_norm", "discount", "reward_clip")))
"""Settings that decide what the same parameters compute, and what that is: every algorithm has those three."""
SCORES = (
    *EPISODES,
    *(f"env.{x}" for x in ("full_action_space", "frame_stack", "size", "grayscale")),
    *(f"evaluation.{x}" for x in ("greedy", "held_out_tasks")),
    *COMPUTED,
)
"""Settings that decide, beside the plan's `max_episode_steps`, what parameters earn, or how that is counted."""
NONE_IS_A_VALUE = {*(x for x in SCORES if x.startswith("env.")), "evaluation.held_out_tasks"}
ARITHMETIC = ("hardware", "torch")
"""Values of the plan that say what computes; empty where an older checkpoint does not say."""


def refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse settings that a run's checkpoints cannot follow."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for name in KEPT:
        _refuse(name, old.get(name), new.get(name))
    kinds = [x.get("topology.name", "single") for x in (old, new)]
    if kinds[0] != kinds[1] and "allreduce" in kinds and new.get("num_learners", 1) > 1:
        _refuse("topology.name", *kinds)  # learners that are alike, and those that are not


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Generator[tuple[str, Any, Any]]:
    """Yield (setting, old value, new value) of what differs."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def episodes_changed(
    before: Mapping[str, Any], after: Mapping[str, Any], saved: Plan, plan: Plan
) -> Generator[str]:
    """Say which settings have changed without which an episode that is played again takes another course, or another end.

    Args:
        before: settings under which episodes were begun.
        after: settings to continue with.
        saved: the plan that the run had.
        plan: to continue with.
    """
    return _in_changes(EPISODES, before, after, saved, plan)


def returns_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether settings have changed without which training returns do not compare with earlier ones."""
    return any(_changes_of((*EPISODES, "max_episode_steps"), before, after))


def scores_changed(
    before: Mapping[str, Any], after: Mapping[str, Any], saved: Plan, plan: Plan
) -> Generator[str]:
    """Say which settings have changed without which a score does not compare with an earlier one; see `episodes_changed`."""
    return _in_changes(SCORES, before, after, saved, plan)


def scored_by(settings: Mapping[str, Any], plan: Plan) -> str:
    """Return a mark that differs where scores do not compare: of the settings that decide on them, as far as they are no defaults."""
    default = dict(_flat(to_dict(TrainConfig())))
    own = {name: x for name, x in _flat(settings) if name in SCORES and x != default.get(name)}
    text = json.dumps([plan.max_episode_steps, own], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def as_computed(settings: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of before that decide what the same parameters compute."""
    sections = {name: dict(mapping(settings.get(name))) for name in ("policy", "algorithm")}
    for name in LEARNT_WITH:
        section, _, setting = name.partition(".")
        old = mapping(before.get(section))
        if setting in old and setting in sections[section]:
            sections[section][setting] = old[setting]
    return {**settings, **sections}


def policy_changed(
    before: Mapping[str, Any], after: Mapping[str, Any], idle: Collection[str] = ()
) -> Generator[str]:
    """Say which settings, but those that are idle, have changed without which a run's parameters compute something else."""
    names = [x for x in (*COMPUTED, "algorithm.value_norm") if x not in idle]
    return _changes_of(names, before, after)


def _in_changes(
    names: Sequence[str],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    saved: Plan,
    plan: Plan,
) -> Generator[str]:
    limits = saved.max_episode_steps, plan.max_episode_steps
    if limits[0] != limits[1]:
        yield f"max_episode_steps {limits[0]} -> {limits[1]}"
    yield from _changes_of(names, before, after)


def _changes_of(
    names: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Generator[str]:
    for name, old, new in changes(before, after):
        # One that the run's version did not have yet is as it was before; only of an environment none is a value.
        if name in names and (old is not None or name in NONE_IS_A_VALUE):
            yield f"{name} {_in_words(old)} -> {_in_words(new)}"


def for_this_machine(
    config: TrainConfig, machine: Machine, given: set[str], saved: Plan
) -> TrainConfig:
    """Let go of what a run was told on another machine, and not anew, where this one cannot do it.

    Args:
        config: settings to continue with.
        machine: this one.
        given: names of settings asked for anew.
        saved: the plan that the run had.
    """
    freed: dict[str, Any] = {}
    if config.device == "cuda" and not machine.gpus:
        freed["device"] = "auto"
    if machine.gpus and config.device != "cpu":
        freed |= {"learner_threads": 0, "actor_threads": 0}  # a GPU computes batches whole
    if machine.cores < saved.cores:
        names = ("learner_threads", "actor_threads", "env_threads")
        freed |= {name: 0 for name in names if getattr(config, name) > machine.cores}
    if not machine.gpus:
        freed["replays"] = tuple(
            replace(x, device="auto")
            if isinstance(x, Selector) and x.device == "cuda" and f"replays.{i}.device" not in given
            else x
            for i, x in enumerate(config.replays)
        )
        transport = getattr(config.topology, "transport", "auto")
        if transport == "nccl" and "topology.transport" not in given:
            freed["topology"] = replace(config.topology, transport="auto")
    return replace(config, **{name: x for name, x in freed.items() if name not in given})


def resumed_plan(
    saved: Plan,
    config: TrainConfig,
    spec: EnvSpec,
    machine: Machine,
    given: set[str],
    before: Mapping[str, Any],
) -> tuple[Plan, str]:
    """Return the plan of a resumed run, and a line if more of this machine could be used.

    What is the run's is kept. What is the machine's is kept too where sums come out as before, to the last
    bit; elsewhere this machine chooses.

    Args:
        saved: the plan that it had.
        config: the settings it is to continue with.
        spec: of the environment.
        machine: this one.
        given: names of settings asked for anew.
        before: the run's settings.

    Raises:
        ConfigError: what was asked for anew does not fit the checkpoint.
    """
    same = dict(_flat(before)).get("algorithm.name") == config.algorithm.name
    if not same or (saved.lag != 0 and not config.algorithm.bears_lag):
        given = {*given, "lag"}  # a lag that one algorithm corrects may mislead another
    kept = {name: getattr(saved, name) for name in RUNS_OWN if name not in given}
    if "lag" in kept:
        kept["lag"] = "free" if saved.lag is None else str(saved.lag)
    actors = config.actors_per_learner or 0
    if "env_groups" in kept and actors and saved.env_groups % actors:
        raise ConfigError(
            f"--actors-per-learner {actors}: this run was begun with env_groups {saved.env_groups}, which a resumed run keeps "
            f"and {actors} actors cannot share equally; use --actors-per-learner {saved.env_groups}, or leave it out"
        )
    fresh = make_plan(replace(config, **kept), spec, machine)
    for name in KEPT_PLAN:
        _refuse(name, getattr(saved, name), getattr(fresh, name))
    if not _computes_alike(saved, fresh, given):
        return fresh, ""
    plan = replace(fresh, **{x: getattr(saved, x) for x in SUMS if x not in given})
    return plan, _more_threads(saved, plan, fresh)


def _computes_alike(saved: Plan, fresh: Plan, given: set[str]) -> bool:
    """Return whether sums can come out here, to the last bit, as they did where a plan was saved."""
    if saved.device != fresh.device or _changed(ARITHMETIC, saved, fresh):
        return False
    if saved.precision == "bf16" != fresh.precision and "precision" not in given:
        return False  # of an older checkpoint, from a processor that has it
    needed = max(saved.learner_threads, saved.actor_threads)
    return not fresh.cores < min(needed, saved.cores)


def sums_changed(saved: Plan, plan: Plan) -> list[str]:
    """Say why sums do not come out, to the last bit, as they did under the plan that was saved."""
    if saved.device != plan.device:  # the others follow
        return _changed(("device",), saved, plan)
    return _changed((*SUMS, *ARITHMETIC), saved, plan)


def _changed(names: Iterable[str], saved: Plan, plan: Plan) -> list[str]:
    """Say which values of a plan have changed; what an older checkpoint does not say (0, "") has not."""
    values = [(name, getattr(saved, name), getattr(plan, name)) for name in names]
    return [f"{name} {old} -> {new}" for name, old, new in values if old and old != new]


def _in_words(value: Any) -> Any:
    return "none" if value is None else value


def _more_threads(saved: Plan, plan: Plan, fresh: Plan) -> str:
    names = ("learner_threads", "actor_threads")
    more = {x: getattr(fresh, x) for x in names if getattr(fresh, x) > getattr(plan, x)}
    if not more or fresh.cores <= (saved.cores or fresh.cores):
        return ""
    typed = " ".join(f"--{name.replace('_', '-')} {x}" for name, x in more.items())
    return (
        f"this machine has {fresh.cores} cores, and threads are as many as on {saved.cores}, so that the run "
        f"goes on exactly; to use more of them, not exactly: {typed}"
    )


def _refuse(name: str, old: Any, new: Any) -> None:
    if old != new:
        old, new = _in_words(old), _in_words(new)
        raise ConfigError(
            f"{name} is {new}, but this run was begun with {old}, which a resumed run keeps; leave it "
            "out, or start a new run from this one's policy with --init-from RUN"
        )


def _flat(tree: Mapping[str, Any], path: str = "") -> Generator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list) and len(value) == 1:
            # Where one value per learner is allowed, older runs have saved a plain number.
            yield path + name, value[0]
        else:
            yield path + name, value
