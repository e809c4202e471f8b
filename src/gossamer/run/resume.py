"""Whether a run goes on from a checkpoint as if it had never stopped, and what its replays hold then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gossamer.build.replays import capacity_of, form_of, kept_replays
from gossamer.config import to_dict
from gossamer.errors import ConfigError
from gossamer.record.readers import FolderReader, table_in
from gossamer.replay.replay import columns_lost
from gossamer.run.resumed_settings import (
    as_computed,
    episodes_changed,
    scores_changed,
    sums_changed,
)
from gossamer.system.prefixes import without_prefix
from gossamer.system.reading import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.folder import RunFolder
    from gossamer.run.checkpoint_contents import RunState
    from gossamer.spec import EnvSpec


def known_to_differ(folder: RunFolder) -> str | None:
    """Return why a run's environments do not come back, as was found before; empty: they do, None: not known."""
    found = table_in(FolderReader(folder.path), "meta.json").get("env_differs")
    return found if isinstance(found, str) else None


def with_changes(
    state: RunState, config: TrainConfig, plan: Plan, before: Mapping[str, Any]
) -> RunState:
    """Return a run's state that says which changed settings let its episodes begin anew, without scores that compare no more.

    To play an episode again under other limits would take an environment past an end that the run knows of, or leave
    it at one that the run does not know of.

    Args:
        state: of the run, to continue from.
        config: settings to continue with.
        plan: to continue with.
        before: the run's settings until then, if the state does not say.
    """
    before, after = state.settings or before, to_dict(config)
    found = list(episodes_changed(before, after, state.plan, plan))
    policies, recorder = state.policies, state.recorder
    mixed = mapping(before.get("topology")).get("name") != config.topology.name
    if mixed or [*scores_changed(before, after, state.plan, plan)]:
        # The learner that was best under the old settings would be the run's policy until all are evaluated again.
        policies = msgspec.structs.replace(policies, scores=[], best_learner=None)
    if found:  # returns of other episodes would end the run, or choose its policy
        recorder = msgspec.structs.replace(recorder, window=[])
    return msgspec.structs.replace(state, begins_anew=found, policies=policies, recorder=recorder)


def of_before(state: RunState, loaded: RunState) -> RunState:
    """Return a state of a session that has learnt nothing: its policies are those of the checkpoint that it went on from.

    Args:
        state: to be saved.
        loaded: of that checkpoint; one of an older version does not tell its settings.
    """
    if not loaded.settings:
        return state
    found = as_computed(state.settings, loaded.settings)
    policies = state.policies if found == state.settings else loaded.policies
    return msgspec.structs.replace(state, settings=found, policies=policies)


def resumes_exactly(config: TrainConfig, spec: EnvSpec, plan: Plan) -> bool:
    """Return whether a run goes on from a checkpoint that it writes as if it had never stopped."""
    return not why_not_exact(config, spec, plan)


def why_not_exact(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    state: RunState | None = None,
    before: Mapping[str, Any] | None = None,
) -> list[str]:
    """Say why a run does not go on from a checkpoint as if it had never stopped; nothing where it does.

    Args:
        config: settings to continue with.
        spec: of the environment.
        plan: to continue with.
        state: of the run, to continue from; None: any that it writes with these settings.
        before: the run's settings until then.
    """
    why: list[str] = []
    if plan.lag is None:
        why.append("lag is free")
    if spec.differs:
        why.append(spec.differs)
    if state is not None:
        why += state.begins_anew
    if len(config.replays) > 1 and not config.checkpoint_replay:
        why.append("replays are empty, --checkpoint-replay saves what they hold")
    if config.placement != "inline" and config.num_learners > 1:
        if config.topology.staleness != 0:
            why.append("learners do not wait for each other")
        # What others have stored by now depends on who is quicker.
        if config.shares_replay:
            why.append("processes share a replay")
    if state is None:
        return why
    if None not in (state.plan.lag, plan.lag) and state.plan.lag != plan.lag:
        why.append(f"lag {state.plan.lag} -> {plan.lag}")
    why += sums_changed(state.plan, plan)
    if config.checkpoint_replay and begins_empty(config, state):
        why.append("replays are empty, the checkpoint was written without --checkpoint-replay")
    if plan.device != "cpu" and not config.deterministic:
        why.append("a GPU sums in no fixed order without --deterministic")
    had = (before or {}).get("actors_per_learner")
    had = state.plan.actors if had is None else had
    if plan.device != "cpu" and bool(had) != bool(plan.actors):
        why.append("actions are computed on " + ("the GPU now" if had else "CPUs now"))
    if not why and not state.exact:
        why.append(
            "an actor or learner had died before the checkpoint, or its settings were not exact"
        )
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
