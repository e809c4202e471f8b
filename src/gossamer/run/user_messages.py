"""What a run says as it begins, as it stops and once it has ended: lines for the user, or an error with whose fault it is."""

from __future__ import annotations

import errno
import math
import sys
import traceback
from contextlib import suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import UnreadableError
from gossamer.record.exits import exit_of
from gossamer.record.runs import VIDEOS
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.snapshot import LOST
from gossamer.system.reading import in_a_line, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gossamer.config import TrainConfig
    from gossamer.record.folder import RunFolder
    from gossamer.spec import ActionSpec, EnvSpec

STOPPING = (
    "Saving a checkpoint, then stopping, within {} s. Press Ctrl-C again to quit without saving."
)
ENDED_AT_ONCE = "Ended without saving. The run can be resumed from its last checkpoint."
_TALKING = "topology:gossip, topology:allreduce or topology:diffusion"
_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE}
MAX_ITEMS_TOLD = 12
"""Most arrays of an observation, or parts of an action, to list."""
MAX_LEARNERS_TOLD = 16
"""Most independent learners to list; of more, the best are listed."""


def env_facts(spec: EnvSpec) -> dict[str, Any]:
    """Return how an environment was set up, what a policy sees and does there, and what is known about resuming it.

    As meta.json holds it.
    """
    parts = spec.action.parts or (("", spec.action),)
    differs = "" if spec.differs == LOST else spec.differs
    return {
        "protocol": spec.protocol,
        "observes": [
            {"name": x.name, "kind": x.kind, "shape": list(x.shape)} for x in spec.observed
        ],
        "acts": [
            {
                "name": name,
                "kind": part.kind,
                "sizes": list(part.sizes),
                "masked": spec.mask is not None and bool(part.choices),
            }
            for name, part in parts
        ],
        "env_comes_back": not differs,
        "env_differs": differs,
    }


def seen_and_done(spec: EnvSpec) -> str:
    """Say what is observed and how the run acts; empty where that is one array, and one action that is never masked."""
    if spec.sees_one and not spec.action.parts and spec.mask is None:
        return ""
    combined = spec.mask_form == "joint"
    acts = _acted(spec.action, combined=combined) + " actions" * bool(spec.action.choices)
    if spec.action.parts:
        acts = in_a_line(
            [f"{name} ({_acted(part)})" for name, part in spec.action.parts], MAX_ITEMS_TOLD
        )
    if spec.mask is not None:
        by = "infos" if spec.mask_from == "info" else "the observation"
        acts += f", {'choices ' * bool(spec.action.parts)}masked by {by}"
    return f"observes {in_a_line(spec.observes, MAX_ITEMS_TOLD)}; acts with {acts}"


def _acted(action: ActionSpec, *, combined: bool = False) -> str:
    """Say how an action that has no parts is chosen; `combined`: its choices are combinations of several."""
    count = action.length
    if action.kind in ("categorical", "multi_categorical") and count == 1:
        return f"one of {action.sizes[0]}" + " combinations of" * combined
    if action.kind == "multi_categorical":
        return f"one each of {in_a_line(action.sizes, MAX_ITEMS_TOLD)}"
    what = "switch" if action.kind == "bernoulli" else "real number"
    plural = "es" if action.kind == "bernoulli" else "s"
    return f"{count} {what}{plural * (count != 1)}"


def new_episodes_in_words(spec: EnvSpec) -> str:
    """Say that a run will be resumed with new episodes, and why; empty where its environments come back."""
    return f"{spec.env_id} resumes with new episodes: {spec.differs}" if spec.differs else ""


def dropped_in_words(score: float | None, why: list[str]) -> str:
    """Say that the best policy so far, of a score unless it was a candidate only, is dropped, and why."""
    scored = "" if score is None else f" (score {score:.1f})"
    return f"the best policy so far{scored} is dropped, because scores no longer compare: {', '.join(why)}"


def making_in_words(config: TrainConfig, num_envs: int, *, resumed: bool = False) -> str:
    """Say what keeps a run from learning while it begins.

    Args:
        config: of the run.
        num_envs: of each learner.
        resumed: its environments are brought back.
    """
    envs = f"{num_envs * config.num_learners:,} environments"
    if resumed:
        return f"bringing {envs} back to where they were, by replaying their episodes"
    layout = layout_of(config)
    return f"making {envs}" + f" in {layout}" * (layout is not None)


def resumed_in_words(
    *,
    new_episodes: bool,
    why: list[str],
    env_steps: int,
    updates: int,
    seconds: float,
    lost: int = 0,
) -> str:
    """Say from where a run goes on, and why that is not exactly so where it is not.

    Args:
        new_episodes: its environments are not where they were.
        why: what keeps it from going on as if it had never stopped.
        env_steps: of the run's checkpoint.
        updates: likewise.
        seconds: that restoring took; 0: not known.
        lost: env steps that came after the checkpoint.
    """
    how = "with new episodes " * new_episodes
    how = f"{how}(not exactly: {'; '.join(why)})" if why or new_episodes else "exactly"
    took = f"; restoring took {seconds:.1f} s" if seconds else ""
    more = f"; {lost:,} env steps came after this checkpoint and are lost" if lost else ""
    return f"resumed {how} at {env_steps:,} env steps, update {updates:,}{more}{took}"


def filling_in_words(rows: int) -> str:
    """Say what replays do that begin empty with a policy that has learnt something."""
    return (
        f"replays fill during the next {rows:,} rows of trajectories; until then only some batches hold "
        "replayed columns, the more the fuller the replays are"
    )


def mixing_in_words(config: TrainConfig, facts: Mapping[str, float]) -> str:
    """Say who the learners are and what a round of mixing does, by its facts; empty for one on its own."""
    topology, size = config.topology, config.num_learners
    if size == 1:
        return "one learner has nobody to talk to: --num-learners 4" if topology.talks else ""
    text = f"{size} learners, {topology.name}"
    if not topology.talks:
        text = f"{size} independent learners (to let them mix: {_TALKING})"
        if config.shares_replay:
            text = f"{size} learners that share a replay, and no parameters"
    if (layout := layout_of(config)) is not None:
        text += f", in {layout}"
    if facts:
        # A message may be missing unless everyone waits for it; a silent link is known to both its ends.
        arriving = "if every message arrives, " * (topology.staleness != 0)
        arriving += "on average " * (getattr(topology, "link_drop", 0.0) > 0.0)
        left, gap = facts["contraction"], facts["spectral_gap"]
        text += f": {arriving}a round of mixing leaves {left:.3f} of their disagreement (spectral gap {gap:.3f})"
        if (outer := facts.get("outer_contraction")) is not None:
            text += f", a version with its outer step {outer:.3f}"
            # An outer rate of 2 turns disagreement over, and rounding decides.
            if outer > 1.0 - 1e-9:
                text += (
                    ", so that they drift apart: lower --optimizer.outer-momentum or --optimizer.outer-rate, or use a "
                    "graph whose links go both ways"
                )
    return text


def learners_in_words(
    config: TrainConfig,
    scores: Mapping[int, float],
    mean_return: Callable[[int], float | None],
    best: int | None,
) -> list[str]:
    """Say of each independent learner what sets it apart and what it earned, the best of many.

    Args:
        config: of the run.
        scores: by learner, its evaluation, where there is one.
        mean_return: tells that of a learner's own training episodes.
        best: whose policy is the run's.
    """
    size = config.num_learners
    if size == 1 or config.topology.run_policy != "best":
        return []

    kind, found = "evaluation", dict(scores)
    if len(scores) < size:  # as the best is chosen
        means = {rank: mean_return(rank) for rank in range(size)}
        kind, found = "return", {rank: x for rank, x in means.items() if x is not None}

    def line(rank: int) -> str:
        parts = [f"{name} {value:g}" for name, value in config.differing(rank).items()]
        if rank in found:
            parts.append(f"{kind} {found[rank]:.4g}")
        if parts and rank == best:
            parts[-1] += " (best)"
        return f"learner {rank}: {', '.join(parts) or 'no episode has ended'}"

    first = sorted(range(size), key=lambda rank: -found.get(rank, -math.inf))[:MAX_LEARNERS_TOLD]
    return [line(rank) for rank in sorted(first)]


def raise_failure(failure: BaseException, folder: RunFolder) -> None:
    """Raise what ends the run as one line, with what to type next, after the traceback of whose fault it is."""
    if isinstance(failure, (ConfigError, KeyboardInterrupt)):
        raise failure
    resumes = _may_resume(folder)
    again = f"gossamer train --resume {quoted(folder.shown)}"
    hint = f"; next: {again}" if resumes else ""
    if isinstance(failure, RunFailed):
        _, _, details = str(failure).strip().partition("\n")
        if details:
            print(details, file=sys.stderr)
            # What has raised it will do so again.
            hint = hint and f"; once this is repaired or caught: {again}"
        raise RunFailed(headline(failure) + hint) from failure
    if isinstance(failure, OSError) and failure.errno == errno.EBADF:
        raise RunFailed(
            "other code in this process, perhaps the environment's, closed files of the run"
            f"{'; the last checkpoint is kept' * resumes}{hint}"
        ) from failure
    if isinstance(failure, OSError) and _is_of_the_folder(failure):
        raise RunFailed(
            f"could not write to the run folder: {failure.strerror or failure}; the last checkpoint "
            f"is kept, resume from it once there is room{hint}"
        ) from failure
    traceback.print_exception(failure)
    raise RunFailed(headline(failure) + hint) from failure


def _may_resume(folder: RunFolder) -> bool:
    """Whether a run has a checkpoint, or may have one on a disk that does not answer: what has ended it is told all the same."""
    try:
        return bool(folder.checkpoints().list())
    except UnreadableError:
        return True


def _is_of_the_folder(failure: OSError) -> bool:
    """Whether an error is a disk's, or was raised where a run's files are written, and not in a function of the user's."""
    if failure.errno in _OF_DISKS:
        return True
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(failure.__traceback__)]
    own = [x for x in frames if x.startswith("gossamer.")]
    return bool(own) and own[-1].startswith("gossamer.record.")


def not_saved(error: OSError, *, kept: bool) -> str:
    """Say that a checkpoint could not be written, and whether there is one before it."""
    before = "the one before it is kept" if kept else "there is none yet"
    why = error.strerror or error
    return f"a checkpoint could not be written ({why}); {before}, and the run ends if the next one cannot be written either"


def headline(error: BaseException) -> str:
    """Say in one line what failed; a RunFailed of several lines holds a traceback after the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, RunFailed):
        return lines[0] if lines[0].endswith(lines[-1]) else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {' '.join(lines)}"


def ending(summary: Mapping[str, Any], folder: RunFolder) -> str:
    """Say in one line what came of a run, and what to type next."""
    ended = exit_of(summary)
    kind = "" if ended is None else ended.kind
    failed = kind == "failed"
    # Why is said once, by the error that follows.
    parts = [f"{'failed' if failed else ended or 'killed'}: {summary['env_steps']:,} env steps"]
    parts.append(f"{summary['seconds']:.0f} s")
    if summary["steps_per_second"]:
        parts.append(f"{summary['steps_per_second']:,.0f} steps/s")
    if summary["mean_return_last_100"] is not None:
        parts.append(f"return {summary['mean_return_last_100']:.4g}")
    if summary["best_evaluation"] is not None:
        over = summary.get("best_evaluation_episodes")  # not told by older runs
        best = f"best evaluation {summary['best_evaluation']:.4g}"
        parts.append(best + (f" over {over} episode{'s' * (over > 1)}" if over else ""))
    if summary.get("candidate_evaluation") is not None:
        parts.append(f"{summary['candidate_evaluation']:.4g} to be confirmed")
    if failed:
        return ", ".join(parts)
    with suppress(OSError):  # of a disk that does not answer
        if any((folder.path / VIDEOS).glob("*.mp4")):
            parts.append(f"videos in {folder.shown}/{VIDEOS}")
    learnt = summary["env_steps"] > 0
    verb = "eval" if kind == "done" and learnt else "train --resume"
    if kind != "done" and not _may_resume(folder):
        return ", ".join(parts) + "; nothing was saved that could be resumed"
    return ", ".join(parts) + f"; next: gossamer {verb} {quoted(folder.shown)}"
