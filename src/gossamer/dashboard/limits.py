"""What limits a run: how each role spends its time, and one sentence about what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossamer.dashboard.listing import TAIL_BYTES, last_rows
from gossamer.dashboard.values import mapping, number, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.dashboard.root import RunFiles

SHARES = {
    "share/env": ("actor", "env step"),
    "share/inference": ("actor", "inference"),
    "share/wait_actor": ("actor", "wait for the learner"),
    "share/learn": ("learner", "learn"),
    "share/mix": ("learner", "mix"),
    "share/checkpoint": ("learner", "checkpoint"),
    "share/wait_learner": ("learner", "wait for trajectories"),
    "share/wait_replay": ("learner", "wait for the replay"),
    "share/wait_peers": ("learner", "wait for learners"),
    "share/wait_turn": ("learner", "wait for its turn"),
    "share/replay": ("replay", "store and choose"),
    "share/evaluation": ("evaluator", "evaluate"),
}
"""By metric: whose time it is, and what it is spent on."""
ROWS_OF_EACH = 10
"""Newest rows of a learner behind its shares: one alone jumps."""
MUCH, MOST = 0.2, 0.75
FEW_CORES = 0.7
"""A run that uses less of its cores leaves some of them idle."""


def limits(files: RunFiles, config: Mapping[str, Any], cores: int | None) -> dict[str, Any]:
    """Return the shares of every role's time, means over learners and their newest rows, and a sentence.

    Args:
        files: of the run.
        config: its settings.
        cores: of the machine; None: not known.
    """
    told: dict[int, list[dict[str, Any]]] = {}
    for row in last_rows(files, TAIL_BYTES[1]):
        own = told.setdefault(whole(row.get("learner")) or 0, [])
        if len(own) < ROWS_OF_EACH and "share/learn" in row:
            own.append(row)
    shares = {name: share for name in SHARES if (share := _mean_of(told, name)) is not None}
    cpu = _mean_of(told, "cpu_percent")
    used = cpu / (100 * cores) if cpu is not None and cores else None
    rows = [
        {"role": SHARES[name][0], "doing": SHARES[name][1], "share": min(max(share, 0.0), 1.0)}
        for name, share in shares.items()
    ]
    return {"shares": rows, "sentence": sentence(shares, config, used)}


def _mean_of(told: Mapping[int, list[dict[str, Any]]], name: str) -> float | None:
    means: list[float] = []
    for rows in told.values():
        found = [x for row in rows if (x := number(row.get(name))) is not None]
        if found:
            means.append(sum(found) / len(found))
    return sum(means) / len(means) if means else None


def sentence(shares: Mapping[str, float], config: Mapping[str, Any], used: float | None) -> str:
    """Say which role the others wait for, by what, and what to try.

    Args:
        shares: by name in SHARES, fractions of time.
        config: settings of the run.
        used: fraction of the machine's cores that the run keeps busy; None: not known.
    """
    if "share/learn" not in shares:
        return "not known yet: shares of time come with the second row of metrics"

    def share(name: str) -> float:
        return shares.get(f"share/{name}", 0.0)

    busy = share("learn") + share("mix")
    waits, actors_wait = share("wait_learner"), share("wait_actor")
    facts = f"the learner is busy {busy:.0%} of the time, actors wait {actors_wait:.0%}"
    stepping = f"environments take {share('env'):.0%} and inference {share('inference'):.0%} of the actors' time"
    idle = (
        f"; {1 - used:.0%} of the cores are idle" if used is not None and used < FEW_CORES else ""
    )
    algorithm = mapping(config.get("algorithm")).get("name")
    several = (whole(config.get("num_learners")) or 1) > 1
    if config.get("placement") == "inline":
        return f"one role at a time: placement inline lets nothing overlap ({facts}); try --placement local"
    if share("wait_turn") > MUCH and several:
        return (
            f"core-bound: learners wait {share('wait_turn'):.0%} of the time for others of their process; try fewer "
            "--num-learners, or a machine with more cores"
        )
    if share("wait_peers") > MUCH:
        how = "topology:gossip, which waits for nobody"
        if mapping(config.get("topology")).get("name") in ("gossip", "diffusion"):
            how = "--topology.max-staleness never, or --topology.every versions"
        return f"bound by the slowest learner: learners wait {share('wait_peers'):.0%} of the time for each other; try {how}"
    if share("mix") > MUCH:
        return f"bound by mixing: learners mix {share('mix'):.0%} of the time; try --topology.every versions, or fewer links"
    if share("wait_replay") > MUCH:
        return (
            f"replay-bound: the learner waits {share('wait_replay'):.0%} of the time for replayed columns; try a larger "
            "--prefetch-batches, or a uniform replay"
        )
    acting = share("env") + share("inference")
    if several and waits + actors_wait < MUCH and acting > MUCH and acting + busy > MOST:
        return (
            f"core-bound: acting ({acting:.0%} of the time) and learning ({busy:.0%}) take turns on a learner's core; try "
            "a machine with more cores, or fewer --num-learners"
        )
    if waits > MUCH and actors_wait > MUCH:
        how = (
            "--lag 1 with algorithm:vtrace, as a2c does not correct for it"
            if algorithm == "a2c"
            else "--lag 1"
        )
        return (
            f"in lock-step: {facts} and the learner {waits:.0%}, for each other; try {how}, or fewer passes over larger "
            f"batches{idle}"
        )
    if waits > MUCH:
        if share("env") >= share("inference"):
            how = "more --env-threads or cores, --actors-per-learner, or EnvPool's environments (envpool:ID)"
            return f"actor-bound, by environments: the learner waits {waits:.0%} of the time, {stepping}; try {how}{idle}"
        how = "a smaller network, or more --num-envs for larger batches of inference (and fewer updates)"
        return f"actor-bound, by inference: the learner waits {waits:.0%} of the time, {stepping}; try {how}{idle}"
    if share("learn") > MOST or actors_wait > MUCH:
        how = "fewer --algorithm.passes, a smaller network, or a GPU"
        if used is not None and used < FEW_CORES:
            # More threads for a small network cost more than they bring.
            more = "more --learner-threads if the network is large"
            several_words = (
                "" if several else "several learners (topology:gossip --num-learners 2) or "
            )
            how += f"; {1 - used:.0%} of the cores are idle: {several_words}{more}"
        elif not several:
            how += "; with more cores, several learners (topology:gossip --num-learners 2)"
        return f"learner-bound: {facts}; try {how}"
    return f"balanced: {facts}, and the learner waits {waits:.0%}{idle}"
