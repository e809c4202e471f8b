"""What limits a run: how each role spends its time, and one sentence about what to try."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.dashboard.listing import TAIL_BYTES
from gossamer.record.readers import last_rows
from gossamer.system.cores import machine_cores
from gossamer.system.reading import mapping, number, whole

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
"""Where less of a machine's cores are busy, some of them are idle."""
FEW_OTHERS = 0.1
"""Other programs that use a larger share of the cores slow a run down."""


def limits(
    files: RunFiles, config: Mapping[str, Any], machine: Mapping[str, Any], *, ended: bool
) -> dict[str, Any]:
    """Return the shares of every role's time, means over learners and their newest rows, and a sentence.

    Args:
        files: of the run.
        config: its settings.
        machine: that it runs on, as meta.json has it.
        ended: no more rows will come.
    """
    told: dict[int, list[dict[str, Any]]] = {}
    for row in last_rows(files, "metrics.jsonl", TAIL_BYTES):
        own = told.setdefault(whole(row.get("learner")) or 0, [])
        if len(own) < ROWS_OF_EACH and "share/learn" in row:
            own.append(row)
    shares = {name: share for name in SHARES if (share := _mean_of(told, name)) is not None}
    cpu, others = (_mean_of(told, name) for name in ("cpu_percent", "others_cpu_percent"))
    busy = None
    own = whole(machine.get("cores"))
    if cpu is not None and own:
        there = whole(machine.get("machine_cores"))
        if not there:  # an older run: those that it could use may be a part of them
            there = machine_cores() if machine.get("host") == platform.node() else own
        busy = Busy(max(there, own), cpu / 100, (others or 0.0) / 100, own)
    rows = [
        {"role": SHARES[name][0], "doing": SHARES[name][1], "share": min(max(share, 0.0), 1.0)}
        for name, share in shares.items()
    ]
    return {"shares": rows, "sentence": sentence(shares, config, busy, ended=ended)}


class Busy(NamedTuple):
    """What a machine's cores are at."""

    cores: int
    run: float
    """Cores that the run keeps busy."""
    others: float
    """Cores that everything else keeps busy."""
    own: int
    """Cores that the run may use: of runs that train at a time each has a part."""

    @property
    def few(self) -> bool:
        """Whether cores are idle, which a run could use."""
        used = (self.run + self.others) / self.cores
        return max(used, self.run / self.own) < FEW_CORES

    def words(self) -> str:
        """Say how many cores the run and whatever else is there use: other runs are among the other programs."""
        others = f", other programs {self.others:.1f}" if self.others >= 0.1 else ""
        return f"the run uses {self.run:.1f} of {self.cores} core{'s' * (self.cores != 1)}{others}"


def _mean_of(told: Mapping[int, list[dict[str, Any]]], name: str) -> float | None:
    means: list[float] = []
    for rows in told.values():
        found = [x for row in rows if (x := number(row.get(name))) is not None]
        if found:
            means.append(sum(found) / len(found))
    return sum(means) / len(means) if means else None


def sentence(
    shares: Mapping[str, float],
    config: Mapping[str, Any],
    cores: Busy | None = None,
    *,
    ended: bool = False,
    one_core: bool = False,
) -> str:
    """Say which role the others wait for, by what, and what to try.

    Args:
        shares: by name in SHARES, fractions of time.
        config: settings of the run.
        cores: of the machine, and who keeps them busy; None: not known.
        ended: the run, so that no more will be known.
        one_core: the run may use no more than one.
    """
    one_core = one_core or (cores is not None and cores.own < 2)
    if "share/learn" not in shares:
        come = "shares of time come with the second row of metrics"
        return (
            f"Not known: {come}, and the run ended before it" if ended else f"Not known yet: {come}"
        )

    def share(name: str) -> float:
        return shares.get(f"share/{name}", 0.0)

    busy = share("learn") + share("mix")
    waits, actors_wait = share("wait_learner"), share("wait_actor")
    facts = f"the learner works {busy:.0%} of the time, actors wait {actors_wait:.0%}"
    stepping = f"environments take {share('env'):.0%} and inference {share('inference'):.0%} of the actors' time"
    if cores is not None and cores.others > FEW_OTHERS * cores.cores:
        # Whatever else holds it back, that comes first: the shares may follow from it.
        rest = sentence(shares, config, ended=ended, one_core=cores.own < 2)
        return f"Other programs, or runs, keep this machine busy: {cores.words()}. {rest}"
    idle = f"; {cores.words()}" if cores is not None and cores.few else ""
    settings = mapping(config.get("algorithm"))
    algorithm, fewer = settings.get("name"), (whole(settings.get("passes")) or 1) > 1
    several = (whole(config.get("num_learners")) or 1) > 1
    if config.get("placement") == "inline":
        return f"One role at a time: placement inline lets nothing overlap ({facts}); try --placement local"
    if share("wait_turn") > MUCH and several:
        return (
            f"Core-bound: learners wait {share('wait_turn'):.0%} of the time for others of their process; try fewer "
            "--num-learners, or a machine with more cores"
        )
    if share("wait_peers") > MUCH:
        how = "topology:gossip, which waits for nobody"
        if mapping(config.get("topology")).get("name") in ("gossip", "diffusion"):
            how = "--topology.max-staleness never, or --topology.every versions"
        return f"Bound by the slowest learner: learners wait {share('wait_peers'):.0%} of the time for each other; try {how}"
    if share("mix") > MUCH:
        return f"Bound by mixing: learners mix {share('mix'):.0%} of the time; try --topology.every versions, or fewer links"
    if share("wait_replay") > MUCH:
        return (
            f"Replay-bound: the learner waits {share('wait_replay'):.0%} of the time for replayed columns; try a larger "
            "--prefetch-batches, or a uniform replay"
        )
    acting = share("env") + share("inference")
    if several and waits + actors_wait < MUCH and acting > MUCH and acting + busy > MOST:
        return (
            f"Core-bound: acting ({acting:.0%} of the time) and learning ({busy:.0%}) take turns on a learner's core; try "
            "a machine with more cores, or fewer --num-learners"
        )
    if waits > MUCH and actors_wait > MUCH and one_core:
        return "Acting and learning take turns, as they must on one core. With a second one --lag 1 overlaps them"
    if waits > MUCH and actors_wait > MUCH and config.get("lag") == "1":
        return (
            f"Acting and learning wait for each other: the learner {waits:.0%} of the time, actors {actors_wait:.0%}. With "
            f"--lag free nobody waits for an actor that is slow{idle}"
        )
    if waits > MUCH and actors_wait > MUCH and config.get("lag") != "free":
        how = "--lag 1"
        if algorithm == "a2c":
            how += " with algorithm:vtrace, as a2c does not correct for it"
        return f"Acting and learning take turns. Overlap them: {how}{idle}"
    if waits > MUCH:
        if share("env") >= share("inference"):
            how = "more --env-threads or cores, more --actors-per-learner, or EnvPool's environments (envpool:ID)"
            return f"Actor-bound, by environments: the learner waits {waits:.0%} of the time, {stepping}; try {how}{idle}"
        how = "a smaller network, or more --num-envs for larger batches of inference (and fewer updates)"
        return f"Actor-bound, by inference: the learner waits {waits:.0%} of the time, {stepping}; try {how}{idle}"
    if share("learn") > MOST or actors_wait > MUCH:
        how = "fewer --algorithm.passes, " * fewer + "a smaller network, or a GPU"
        if cores is not None and cores.few:
            # More threads for a small network cost more than they bring.
            more = "more --learner-threads if the network is large"
            several_words = (
                "" if several else "several learners (topology:gossip --num-learners 2) or "
            )
            how += f"; {cores.words()}: {several_words}{more}"
        elif idle:
            how += idle
        elif not several:
            how += "; with more cores, several learners (topology:gossip --num-learners 2)"
        return f"Learner-bound: {facts}; try {how}"
    return f"Balanced: {facts}, and the learner waits {waits:.0%}{idle}"
