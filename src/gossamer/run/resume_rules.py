"""What a resumed run keeps, what was changed, and whether there is anything left to do."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gossamer.build.auto import make_plan
from gossamer.build.auto import why_not_exact as why_not_in_plan
from gossamer.build.replays import capacity_of, form_of, kept_replays
from gossamer.errors import ConfigError
from gossamer.record.checkpoint import CANDIDATE
from gossamer.replay.replay import columns_lost
from gossamer.replay.selectors.base import Selector
from gossamer.run.recorder import Window
from gossamer.run.stopping import end_of
from gossamer.system.prefixes import without_prefix

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from gossamer.build.auto import Plan
    from gossamer.config import TrainConfig
    from gossamer.machine import Machine
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import Score
    from gossamer.record.exits import Exit
    from gossamer.record.folder import RunFolder
    from gossamer.run.state import RunState
    from gossamer.types import EnvSpec

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


def known_to_differ(folder: RunFolder) -> str | None:
    """Return why a run's environments do not come back, as was found before; empty: they do, None: not known."""
    with suppress(ConfigError):  # a damaged file
        meta: Any = folder.read_json("meta.json")
        found = meta.get("env_differs") if isinstance(meta, dict) else None
        return found if isinstance(found, str) else None
    return None


def why_not_exact(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    state: RunState,
    before: Mapping[str, Any] | None = None,
) -> list[str]:
    """Say why a run does not go on as if it had never stopped; nothing where it does.

    Args:
        config: settings to continue with.
        spec: of the environment.
        plan: to continue with.
        state: of the run, to continue from.
        before: the run's settings until then.
    """
    why, saved = why_not_in_plan(config, spec, plan), state.plan
    changed = [x for x in SUMS if getattr(saved, x) != getattr(plan, x)]
    if "device" in changed:  # the others follow
        changed = ["device"]
    elsewhere = [] if "device" in changed else arithmetic_changed(saved, plan)
    why += [*(f"{x} {getattr(saved, x)} -> {getattr(plan, x)}" for x in changed), *elsewhere]
    if config.checkpoint_replay and begins_empty(config, state):
        why.append("replays are empty, the checkpoint was written without --checkpoint-replay")
    if plan.device != "cpu" and not config.deterministic:
        why.append("a GPU sums in no fixed order without --deterministic")
    had = config.actors_per_learner if before is None else before.get("actors_per_learner", 0)
    if plan.device != "cpu" and bool(had) != bool(config.actors_per_learner):
        why.append("actions are computed on " + ("the GPU now" if had else "CPUs now"))
    if not why and not state.exact:
        why.append("the checkpoint is not an exact one")
    return why


def begins_empty(config: TrainConfig, state: RunState) -> bool:
    """Return whether there are replays, and what they held is not in a run's state or not wanted."""
    saved = any(name.endswith(".stored") for learner in state.learners for name in learner.numbers)
    return len(config.replays) > 1 and not (config.checkpoint_replay and saved)


def rows_to_fill(config: TrainConfig, plan: Plan, state: RunState | None) -> int:
    """Return the rows of all learners until replays that begin empty are as full as they are to be.

    Args:
        config: of the run.
        plan: likewise.
        state: that it goes on from; None: it begins with the policy of another run.
    """
    numbers = {} if state is None else state.learners[0].numbers
    most = 0
    for i, settings in enumerate(kept_replays(config)):
        held = without_prefix(numbers, f"learner.replay.{i}.")
        capacity = capacity_of(settings, config.unroll_length)
        most = max(most, columns_lost(held, settings, capacity, config.unroll_length))
    trajectories = -(-most // plan.num_envs)
    return trajectories * plan.num_envs * config.unroll_length * config.num_learners


def finished(
    config: TrainConfig, folder: RunFolder, state: RunState
) -> tuple[Exit | None, dict[str, Any]]:
    """Return why a run has nothing left to do, and its summary; None if it has something to do.

    A run killed between its last checkpoint and its summary gets the summary now.
    """
    record, window = state.recorder, Window(config.num_learners)
    window.load(record.window)
    env_steps, updates, mean = state.env_steps, state.updates[0], window.mean()
    ended = end_of(
        config,
        env_steps=env_steps,
        seconds=record.seconds,
        mean_return=mean if window.full else None,
    )
    if ended is None:
        return None, {}
    summary: dict[str, Any] = {}
    with suppress(ConfigError):
        found: Any = folder.read_json("summary.json")
        summary = found if isinstance(found, dict) else {}
    told = isinstance(summary.get("seconds"), int | float)
    if not told or summary.get("updates") != updates:
        (steps, seconds), store = record.paced, folder.checkpoints()
        summary = summary_of(
            env_steps=env_steps,
            updates=updates,
            restarts=0,
            seconds=record.seconds,
            steps_per_second=steps / seconds if seconds and steps else None,
            mean_return=mean,
            best=store.score(),
            candidate=store.score(CANDIDATE),
            best_learner=state.policies.best_learner,
            ended=ended,
        )
        folder.write_json("summary.json", summary)
    return ended, summary


def raised(config: TrainConfig, ended: Exit, seconds: float) -> str:
    """Return what to type so that a finished run, which has trained for so many seconds, goes on."""
    if ended.cause == "total_env_steps":
        return f"--total-env-steps {2 * config.total_env_steps:_}"
    if ended.cause == "stop_after_seconds":
        return f"--stop-after-seconds {2 * max(config.stop_after_seconds, math.ceil(seconds)):g}"
    return "--stop-at-return none"


def summary_of(
    *,
    env_steps: int,
    updates: int,
    restarts: int,
    seconds: float,
    steps_per_second: float | None,
    mean_return: float | None,
    best: Score | None,
    candidate: Score | None,
    best_learner: int | None,
    ended: Exit | None,
) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "env_steps": env_steps,
        "updates": updates,
        "restarts": restarts,
        "seconds": round(seconds, 3),
        "steps_per_second": steps_per_second,
        "mean_return_last_100": mean_return,
        "best_evaluation": None if best is None else best.mean,
        "best_evaluation_episodes": None if best is None else best.episodes,
        "candidate_evaluation": None if candidate is None else candidate.mean,
        "best_learner": best_learner,
        "exit_reason": "" if ended is None else str(ended),
        "exit": None if ended is None else asdict(ended),
    }


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
    config = replace(config, **{name: x for name, x in freed.items() if name not in given})
    if not machine.gpus and "replays" not in given:
        replays = [
            replace(x, device="auto")
            if isinstance(x, Selector) and x.device == "cuda" and f"replays.{i}.device" not in given
            else x
            for i, x in enumerate(config.replays)
        ]
        config = replace(config, replays=tuple(replays))
    transport = getattr(config.topology, "transport", "auto")
    if transport == "nccl" and not machine.gpus and "topology.transport" not in given:
        config = replace(config, topology=replace(config.topology, transport="auto"))
    return config


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
    if dict(_flat(before)).get("algorithm.name") != config.algorithm.name:
        given = {*given, "lag"}  # a lag that one algorithm corrects may mislead another
    kept = {name: getattr(saved, name) for name in RUNS_OWN if name not in given}
    if "lag" in kept:
        kept["lag"] = "free" if saved.lag is None else str(saved.lag)
    fresh = make_plan(replace(config, **kept), spec, machine)
    for name in KEPT_PLAN:
        _refuse(name, getattr(saved, name), getattr(fresh, name))
    if not _computes_alike(saved, fresh, given):
        return fresh, ""
    plan = replace(fresh, **{x: getattr(saved, x) for x in SUMS if x not in given})
    return plan, _more_threads(saved, plan, fresh)


def _computes_alike(saved: Plan, fresh: Plan, given: set[str]) -> bool:
    """Return whether sums can come out here, to the last bit, as they did where a plan was saved."""
    if saved.device != fresh.device or arithmetic_changed(saved, fresh):
        return False
    if saved.precision == "bf16" != fresh.precision and "precision" not in given:
        return False  # of an older checkpoint, from a processor that has it
    needed = max(saved.learner_threads, saved.actor_threads)
    return not fresh.cores < min(needed, saved.cores)


def arithmetic_changed(saved: Plan, plan: Plan) -> list[str]:
    """Say what else computes than where a plan was saved, as far as that is known."""
    changed = [(getattr(saved, name), getattr(plan, name), name) for name in ("hardware", "torch")]
    return [f"{name} {old} -> {new}" for old, new, name in changed if old and old != new]


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


def refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse settings that a run's checkpoints cannot follow."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for name in KEPT:
        _refuse(name, old.get(name), new.get(name))
    kinds = [x.get("topology.name", "single") for x in (old, new)]
    if kinds[0] != kinds[1] and "allreduce" in kinds and new.get("num_learners", 1) > 1:
        _refuse("topology.name", *kinds)  # learners that are alike, and those that are not


def refuse_replays(config: TrainConfig, plan: Plan, policy: ActorCritic, state: RunState) -> None:
    """Refuse a state whose replay data, of any learner, does not fit the settings that want it."""
    if not config.checkpoint_replay:
        return
    form = form_of(config, policy, num_envs=plan.num_envs)
    try:
        for learner in state.learners:
            form.refuse(learner.part("learner.replay."))
    except ConfigError as error:
        raise ConfigError(f"{state.folder}: {error}") from None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Generator[tuple[str, Any, Any]]:
    """Yield (setting, old value, new value) of what differs."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _refuse(name: str, old: Any, new: Any) -> None:
    if old != new:
        old, new = ("none" if x is None else x for x in (old, new))
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
