"""The graph of a run's learners at some moment: who hears whom, how well each does, and what happened to it.

Rows are found by time in the file itself, which is sorted by it, so that a slider costs no memory.
"""

from __future__ import annotations

import calendar
import math
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import psutil

from gossamer.dashboard.extremes import APART, LINK, OF_THE_RUN, OWN
from gossamer.dashboard.series import run_seconds, sessions_of
from gossamer.dashboard.values import word
from gossamer.record.files import LOCK
from gossamer.record.metrics import MAX_ROW_BYTES, parse_row, rows_of, tells_of_run
from gossamer.record.objectives import RETURN_OF
from gossamer.record.readers import table_in, tail, value_in
from gossamer.system.reading import listed, mapping, number, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.dashboard.root import RunFiles
    from gossamer.dashboard.series import Session

MAX_NODES = 256
"""Learners that are drawn; of more the first."""
WINDOW_BYTES = (256 << 10, 4 << 20)
"""Read before a moment; more of them until every learner has told of itself twice."""
PROBE_BYTES = 16 << 10
OWNER_BYTES = 64
SILENT_SECONDS = 45.0
"""A learner that has told nothing for so long is not there; each tells of itself every ten seconds."""
STEPS = 200
"""Places of the slider."""
MAX_EVENTS = 200
LOG_BYTES = 256 << 10
_EVENT = re.compile(r"learner|group starts again|resumed|machine|host", re.IGNORECASE)
_PLAIN = re.compile(r"envs each|threads:|learners, |independent learners|\bdone: |next: gossamer")
_RANK = re.compile(r"\blearner (\d+)")
_DIED = re.compile(
    r"Learners? (\d+)(?:-(\d+))? died|process of learner (\d+)(?: to (\d+))? has died"
)
"""Also as older runs say it."""


@dataclass
class _Told:
    """What the newest rows say of a learner."""

    row: Mapping[str, Any]
    before: Mapping[str, Any] | None = None
    links: dict[int, float] = field(default_factory=dict[int, float])


def graph(files: RunFiles, run: Mapping[str, Any], at: float | None = None) -> dict[str, Any]:
    """Return the learners of a run and their links.

    Args:
        files: of the run.
        run: as the listing tells it.
        at: seconds of the run; None: the newest.
    """
    size = min(int(run["num_learners"]), MAX_NODES)
    sessions, running = sessions_of(files), run["state"] == "running"
    live = next(x for x in reversed(sessions) if not x.goes_on)
    first, last = _span(files)
    # A run that trains goes on behind its last row: what its log tells then has a place on the slider, too.
    end = max(run_seconds(sessions, time.time()), last) if running else last
    newest = at is None or at >= end
    moment = end if newest else max(at or 0.0, first)
    rows = _rows_before(files, moment, size)
    events = [event for event in log_events(files, sessions) if event["seconds"] <= moment]
    topology = mapping(table_in(files, "config.json").get("topology"))
    counter = "version" if topology.get("every") == "versions" else "updates"
    edges = _edges(rows, mixing(files, size), size, moment, counter)
    ends = {(x["from"], x["to"]) for x in edges}
    return {
        "times": [first, end, max((end - first) / STEPS, 1.0)],
        "at": moment,
        "directed": any((reader, peer) not in ends for peer, reader in ends),
        "nodes": _nodes(
            files, rows, run, size, moment, events, live if newest and running else None
        ),
        "edges": edges,
        "events": events[-MAX_EVENTS:],
    }


def mixing(files: RunFiles, size: int) -> dict[int, dict[int, float]]:
    """Return by reader the weights of those it hears, itself left out, means over the matrices taken in turn.

    Args:
        files: of the run; an older one has no mixing.json, and then there are no weights.
        size: learners that count.
    """
    turns = listed(table_in(files, "mixing.json").get("turns"))
    found: dict[int, dict[int, float]] = {}
    for matrix in turns:
        for reader, row in enumerate(listed(matrix)[:size]):
            for pair in listed(row):
                peer, weight = (
                    (whole(pair[0]), number(pair[1])) if len(listed(pair)) == 2 else (None, None)
                )
                if peer is None or weight is None or peer == reader or not 0 <= peer < size:
                    continue
                own = found.setdefault(reader, {})
                own[peer] = own.get(peer, 0.0) + weight / len(turns)
    return found


def log_events(files: RunFiles, sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """Return what log.txt tells of learners: deaths, replacements, who came, a resume."""
    found: list[dict[str, Any]] = []
    for line in tail(files, "log.txt", LOG_BYTES).decode(errors="replace").splitlines():
        stamp, text = line[:19], line[20:]
        if not _EVENT.search(text) or _PLAIN.search(text):
            continue
        try:
            unix = _unix(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"), sessions)
        except (ValueError, OverflowError):
            continue
        rank = _RANK.search(text)
        found.append(
            {
                "seconds": run_seconds(list(sessions), unix),
                "text": word(text),
                "rank": int(rank[1]) if rank and len(rank[1]) < 7 else None,
            }
        )
    return found


def _unix(told: time.struct_time, sessions: Sequence[Session]) -> float:
    """Return the Unix time of a clock's, that of the machine on which the session ran; it may be in another time zone."""
    unix = time.mktime(told)
    for session in reversed(sessions):
        offset, here = session.utc_offset, time.localtime(session.began).tm_gmtoff
        unix = time.mktime(told)
        if offset is not None and offset != here:
            unix = calendar.timegm(told) - offset
        if unix >= session.began - 1.0:  # stamps are whole seconds
            break
    return unix


def _span(files: RunFiles) -> tuple[float, float]:
    """Return the seconds of the first and of the last row; zeros without one."""
    try:
        with files.open("metrics.jsonl") as file:
            size = file.seek(0, os.SEEK_END)
            head = _row_at(file, 0)
            rows = _rows_in(file, max(size - WINDOW_BYTES[0], 0), size)
    except (OSError, ValueError):
        return 0.0, 0.0
    first = number((head or {}).get("time_s")) or 0.0
    last = next(
        (x for row in reversed(rows) if (x := number(row.get("time_s"))) is not None), first
    )
    return first, max(first, last)


def _rows_before(files: RunFiles, moment: float, size: int) -> dict[int, _Told]:
    """Return the newest row of every learner up to a moment, and the one before it."""
    found: dict[int, _Told] = {}
    try:
        with files.open("metrics.jsonl") as file:
            end = _end_of(file, moment)
            for num_bytes in WINDOW_BYTES:
                found = _newest_of(_rows_in(file, max(end - num_bytes, 0), end), size)
                whole_file = num_bytes >= end
                if whole_file or (len(found) == size and all(x.before for x in found.values())):
                    break
    except (OSError, ValueError):
        pass
    return found


def _newest_of(rows: list[dict[str, Any]], size: int) -> dict[int, _Told]:
    found: dict[int, _Told] = {}
    for row in reversed(rows):
        rank = whole(row.get("learner", 0))
        if rank is None or not 0 <= rank < size:
            continue
        if rank not in found:
            found[rank] = _Told(row)
            for name, value in row.items():
                peer, stale = name.removeprefix(LINK), number(value)
                if (
                    name.startswith(LINK)
                    and peer.isdecimal()
                    and len(peer) < 7
                    and stale is not None
                ):
                    found[rank].links[int(peer)] = stale
        elif found[rank].before is None:
            found[rank].before = row
    return found


def _end_of(file: BinaryIO, moment: float) -> int:
    """Return where the rows up to a moment end, by bisection."""
    size = file.seek(0, os.SEEK_END)
    low, high = 0, size
    while high - low > PROBE_BYTES:
        middle = (low + high) // 2
        row = _row_at(file, middle)
        at = number(row.get("time_s")) if row else None
        if at is None or at > moment:
            high = middle
        else:
            low = middle
    file.seek(low)
    end = low
    if low:
        end += len(file.readline(MAX_ROW_BYTES))
    while end < size and (line := file.readline(MAX_ROW_BYTES)):
        row = parse_row(line)
        if row is not None and (number(row.get("time_s")) or 0.0) > moment:
            break
        end += len(line)
    return end


def _row_at(file: BinaryIO, offset: int) -> dict[str, Any] | None:
    """Return the first whole row behind a place in a file."""
    file.seek(offset)
    if offset:
        file.readline(MAX_ROW_BYTES)
    return next(rows_of(file), None)


def _rows_in(file: BinaryIO, begin: int, end: int) -> list[dict[str, Any]]:
    file.seek(begin)
    lines = file.read(end - begin).splitlines(keepends=True)
    return [row for x in lines[bool(begin) :] if (row := parse_row(x)) is not None]


def _nodes(
    files: RunFiles,
    rows: Mapping[int, _Told],
    run: Mapping[str, Any],
    size: int,
    moment: float,
    events: list[dict[str, Any]],
    live: Session | None,
) -> list[dict[str, Any]]:
    """Return the learners at a moment; `live` is the session that trains now, where the moment is now."""
    started = _learner_processes(files) if live else {}
    processes = started or {}
    # What was told before a resume says nothing of the learners that are started by it.
    since = -math.inf if live is None else math.inf if started is None else live.seconds_before
    died = _died(events, size)
    died_since = _died([event for event in events if event["seconds"] > since], size)
    newest_first = sorted(
        (x.row for x in rows.values()), key=lambda row: -(number(row.get("time_s")) or 0.0)
    )
    apart = next(filter(tells_of_run, newest_first), {})
    times = {rank: number(told.row.get("time_s")) for rank, told in rows.items()}
    newest = max((x for x in times.values() if x is not None), default=0.0)
    nodes: list[dict[str, Any]] = []
    for rank in range(size):
        told, process = rows.get(rank), mapping(processes.get(rank))
        row = told.row if told else {}
        told_at = number(row.get("time_s"))
        begun = told_at is not None and told_at > since
        there = told_at is not None and begun and moment - told_at <= SILENT_SECONDS
        if live and (process_alive := alive(process)) is not None:
            begun, there = True, process_alive
        # All at one moment, and of the episodes that the run's return is of; older runs tell it in each learner's rows.
        own = apart.get(f"{RETURN_OF}{rank}", row.get(OWN))
        nodes.append(
            {
                "rank": rank,
                "return": number(row.get(OF_THE_RUN) if own is None and size == 1 else own),
                "disagreement": number(apart.get(f"{APART}{rank}")),
                "restarts": (whole(process.get("restarts")) or 0) if live else died.count(rank),
                "host": word(process.get("machine") or run["where"]),
                "begun": begun or rank in died_since,
                "alive": there,
                "updates": whole(row.get("updates")),
                # A row without it tells the run's, which is a learner's own where there is one.
                "env_steps": whole(
                    row.get("learner/env_steps", row.get("env_steps") if size == 1 else None)
                ),
                # Learners but the first tell of themselves every ten seconds.
                "told_seconds_before": None if told_at is None else newest - told_at,
            }
        )
    return nodes


def _died(events: Sequence[Mapping[str, Any]], size: int) -> list[int]:
    """Return the rank of every learner that events tell to have died, as often as they do."""
    deaths = [match for event in events if (match := _DIED.search(event["text"]))]
    spans = [(int(x[1] or x[3]), int(x[2] or x[4] or x[1] or x[3])) for x in deaths]
    return [rank for low, high in spans for rank in range(low, min(high, size) + 1)]


def _learner_processes(files: RunFiles) -> dict[int | None, dict[str, Any]] | None:
    """Return the rows of learners in processes.json by rank; None while they are those of an earlier session.

    A resume takes the lock, which tells its process, long before it starts its learners and writes them down.
    """
    rows = [mapping(x) for x in listed(value_in(files, "processes.json"))]
    owner = tail(files, LOCK, OWNER_BYTES).decode(errors="replace").strip()
    supervisors = [str(whole(x.get("pid"))) for x in rows if x.get("role") == "supervisor"]
    if owner.isdecimal() and supervisors and owner not in supervisors:
        return None
    return {whole(x.get("rank")): x for x in rows if x.get("role") == "learner"}


def alive(process: Mapping[str, Any]) -> bool | None:
    """Return whether a process of processes.json is there; None if that cannot be known from this machine."""
    pid = whole(process.get("pid"))
    if pid is None or pid <= 0 or process.get("machine"):
        return None
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _edges(
    rows: Mapping[int, _Told],
    weights: Mapping[int, Mapping[int, float]],
    size: int,
    moment: float,
    counter: str,
) -> list[dict[str, Any]]:
    """Return a link for each peer that a learner hears, by mixing.json and by what its rows tell.

    `counter` is what rows call the number of mixings.
    """
    edges: list[dict[str, Any]] = []
    for reader in range(size):
        told = rows.get(reader)
        links = told.links if told else {}
        own = weights.get(reader, {})
        for peer in sorted(own.keys() | {x for x in links if x < size and x != reader}):
            stale = links.get(peer)
            edges.append(
                {
                    "from": peer,
                    "to": reader,
                    "weight": own.get(peer),
                    "staleness_updates": stale,
                    "seconds_since": _seconds_since(told, peer, moment, counter) if told else None,
                }
            )
    return edges


def _seconds_since(told: _Told, peer: int, moment: float, counter: str) -> float | None:
    """Return about how long ago a message was mixed: when the row was written, unless none came since the row before."""
    at = number(told.row.get("time_s"))
    if at is None:
        return None
    since = max(moment - at, 0.0)
    before = told.before or {}
    ends = [number(row.get(name)) for name in (counter, "time_s") for row in (told.row, before)]
    mixings, mixings_before, _, at_before = ends
    stale = told.links.get(peer)
    if stale is None or mixings is None or mixings_before is None or at_before is None:
        return since
    done, took = mixings - mixings_before, at - at_before
    # A learner that is quicker than its peer counts further, whether it hears of it or not.
    grew = stale - (number(before.get(f"{LINK}{peer}")) or 0.0)
    # Unless a message came it says how many mixings ago the last one was.
    return since + stale * took / done if 0 < done <= grew else since
