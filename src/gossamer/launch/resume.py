"""What a resumed run keeps, what was changed, and whether there is anything left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossamer.batches import form_of
from gossamer.build import plan_from
from gossamer.launch.control import best_saved_in, end_of
from gossamer.launch.recorder import Window
from gossamer.launch.snapshot import held_of, progress_of
from gossamer.replay.segments import part_of
from gossamer.types import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from gossamer.build import Plan
    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.record.folder import RunFolder

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
"""Of the plan likewise."""


def finished(
    config: TrainConfig, folder: RunFolder, checkpoint: Checkpoint
) -> tuple[str, dict[str, Any]]:
    """Return why a run has nothing left to do, and its summary; empty if it has something to do.

    A run killed between its last checkpoint and its summary gets the summary now.
    """
    record, env_steps = checkpoint.state["recorder"], progress_of(checkpoint)[1]
    window = Window.of(record, config.num_learners)
    mean = window.mean()
    reason = end_of(
        config,
        env_steps=env_steps,
        seconds=record["seconds"],
        mean_return=mean if window.full else None,
    )
    if not reason:
        return "", {}
    try:
        summary = folder.read_json("summary.json")
    except ConfigError:
        summary = {}
    if summary.get("updates") != checkpoint.updates:
        (steps, seconds), best = record["paced"], folder.checkpoints().best_score()
        summary = summary_of(
            env_steps=env_steps,
            updates=checkpoint.updates,
            restarts=0,
            seconds=record["seconds"],
            steps_per_second=steps / seconds if seconds and steps else None,
            mean_return=mean,
            best_evaluation=record["best_evaluation"] if best is None else best,
            best_learner=best_saved_in(checkpoint.state),
            exit_reason=reason,
        )
        folder.write_json("summary.json", summary)
    return reason, summary


def raised(config: TrainConfig, reason: str) -> str:
    """Return what to type so that a finished run goes on."""
    if "total_env_steps" in reason:
        return f"--total-env-steps {2 * config.total_env_steps:_}"
    if "stop_after_seconds" in reason:
        return f"--stop-after-seconds {2 * config.stop_after_seconds:g}"
    return "--stop-at-return none"


def summary_of(
    *,
    env_steps: int,
    updates: int,
    restarts: int,
    seconds: float,
    steps_per_second: float | None,
    mean_return: float | None,
    best_evaluation: float | None,
    best_learner: int | None,
    exit_reason: str,
) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "env_steps": env_steps,
        "updates": updates,
        "restarts": restarts,
        "seconds": round(seconds, 3),
        "steps_per_second": steps_per_second,
        "mean_return_last_100": mean_return,
        "best_evaluation": best_evaluation,
        "best_learner": best_learner,
        "exit_reason": exit_reason,
    }


def resumed_plan(
    checkpoint: Checkpoint,
    fresh: Plan,
    given: set[str],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> Plan:
    """Return the plan of a resumed run; refuse changes that its checkpoint cannot follow.

    Args:
        checkpoint: to continue from.
        fresh: what a new run would do here.
        given: names of settings asked for anew.
        before: the run's settings.
        after: the settings it is to continue with.
    """
    old, new = dict(_flat(before)), dict(_flat(after))
    if old.get("algorithm.name") != new.get("algorithm.name"):
        given = {*given, "lag"}  # a lag that one algorithm corrects may mislead another
    plan = plan_from(checkpoint.state["plan"], fresh, given)
    for name in KEPT_PLAN:
        _refuse(name, checkpoint.state["plan"].get(name), getattr(plan, name))
    return plan


def refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse settings that a run's checkpoints cannot follow."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for name in KEPT:
        _refuse(name, old.get(name), new.get(name))
    kinds = [x.get("topology.name", "single") for x in (old, new)]
    if kinds[0] != kinds[1] and "allreduce" in kinds and new.get("num_learners", 1) > 1:
        _refuse("topology.name", *kinds)  # learners that are alike, and those that are not


def refuse_replays(
    config: TrainConfig, plan: Plan, policy: ActorCritic, checkpoint: Checkpoint
) -> None:
    """Refuse what a checkpoint has kept of any learner's replays if it does not fit the settings that want it."""
    if not config.checkpoint_replay:
        return
    form = form_of(config, policy, num_envs=plan.num_envs)
    try:
        for rank in range(config.num_learners):
            form.refuse(part_of(held_of(checkpoint, rank), "learner.replay."))
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path}: {error}") from None


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
