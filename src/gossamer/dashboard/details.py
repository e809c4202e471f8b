"""Everything about one run: settings and who set them, checkpoints, videos, processes, log, evaluations, its machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gossamer.dashboard.checkpoint_tar import CHECKPOINTS
from gossamer.dashboard.graph import alive
from gossamer.dashboard.limits import limits
from gossamer.dashboard.listing import TAIL_BYTES, env_steps_of
from gossamer.dashboard.root import signature_of
from gossamer.dashboard.values import flat, shown, word
from gossamer.record.checkpoint import MANIFEST, is_checkpoint
from gossamer.record.metrics import METRICS, name_in_table, parse_row
from gossamer.record.readers import last_session, sessions_in, table_in, tail, value_in
from gossamer.record.runs import VIDEOS
from gossamer.system.reading import listed, mapping, number, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.dashboard.listing import ListedRun
    from gossamer.dashboard.root import RunFiles

LOG_LINES, LOG_BYTES = 200, 256 << 10
EVALUATIONS = 50
MAX_PROCESSES = 1000
VIDEO_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MOST_LEAVES = 100
"""Most parts of an observation or an action that are told."""
MOST_CHECKPOINTS = 20_000
"""Checkpoints of which what their files tell is kept: a run may keep all of its own, and is asked about every second."""
_CHECKPOINTS: dict[tuple[int, ...], dict[str, Any]] = {}
_STEPS = re.compile(r"(\d+)")


def details(files: RunFiles, run: ListedRun) -> dict[str, Any]:
    """Return what the page shows of one run.

    Args:
        files: of the run.
        run: as the listing tells it.
    """
    config, meta = table_in(files, "config.json"), table_in(files, "meta.json")
    machine = mapping(last_session(meta).get("machine"))
    return {
        "run": run,
        "settings": settings_of(files),
        "checkpoints": checkpoints(files),
        "videos": videos(files),
        "processes": processes(files, running=run["state"] == "running"),
        "log": tail(files, "log.txt", LOG_BYTES).decode(errors="replace").splitlines()[-LOG_LINES:],
        "evaluations": evaluations(files),
        "limits": limits(files, config, machine, ended=run["state"] != "running"),
        "machine": machine_of(meta),
        "environment": environment_of(meta),
    }


_ACTS = {
    "categorical": "one of {}",
    "multi_categorical": "one each of {}",
    "bernoulli": "{} switches",
    "gaussian": "{} real numbers",
}


def environment_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run's environment was set up, what its policy observes and how it acts, in words, where that is known."""
    observes, acts = (list(map(mapping, listed(meta.get(x)))) for x in ("observes", "acts"))
    told = {
        "protocol": word(meta.get("protocol", "")),
        "observes": [_of_leaf(x) for x in observes[:MOST_LEAVES]],
        "acts": [_of_action(x) for x in acts[:MOST_LEAVES]],
    }
    return {name: x for name, x in told.items() if x}


def _of_leaf(leaf: Mapping[str, Any]) -> str:
    shape = " x ".join(str(whole(n)) for n in listed(leaf.get("shape"))[:9])
    return word(" ".join(filter(None, (_name_of(leaf), word(leaf.get("kind", "")), shape))))


def _of_action(part: Mapping[str, Any]) -> str:
    sizes = ", ".join(str(whole(n)) for n in listed(part.get("sizes"))[:99])
    kind = word(part.get("kind", ""))
    acts = _ACTS[kind].format(sizes) if kind in _ACTS else f"{kind} {sizes}".strip()
    masked = "(some may be forbidden)" if part.get("masked") else ""
    return word(" ".join(filter(None, (_name_of(part), acts, masked))))


def _name_of(part: Mapping[str, Any]) -> str:
    return f"{word(part['name'])}:" if part.get("name") else ""


def machine_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the last session tells of its machine, without what is not known."""
    session = last_session(meta)
    told = {
        **mapping(session.get("machine")),
        "versions": mapping(session.get("versions")),
        "git": mapping(session.get("git")),
        "command": listed(session.get("argv")),
        "sessions": len(sessions_in(meta)),
    }
    return shown({name: x for name, x in told.items() if x})


def settings_of(files: RunFiles) -> list[dict[str, Any]]:
    """Return every setting with the layer that set it."""
    layers = table_in(files, "layers.json")

    def layer(name: str) -> str:
        """Return who set a setting, or the section that it is in."""
        while name and name not in layers:
            name = name.rpartition(".")[0]
        return word(layers[name]) if name else ""

    settings = flat(table_in(files, "config.json"))
    if layer("replay_ratio") == "in the fractions":
        settings["replay_ratio"] = _ratio_in_fractions(settings)
    return [
        {"name": name, "value": value, "layer": layer(name)} for name, value in settings.items()
    ]


def _ratio_in_fractions(settings: Mapping[str, Any]) -> float | None:
    """Return the replayed rows for each fresh one that fractions of replays come to; None: they tell none."""
    new = old = 0.0
    for name, value in settings.items():
        if name.startswith("replays.") and name.endswith(".fraction"):
            share = number(value) or 0.0
            is_queue = settings.get(name.replace(".fraction", ".name")) == "queue"
            new, old = new + share * is_queue, old + share * (not is_queue)
    return float(f"{old / new:.6g}") if new else None


def difference(a: RunFiles, b: RunFiles) -> list[dict[str, Any]]:
    """Return the settings that two runs do not have alike, None where one has no such setting."""
    of_a, of_b = ({x["name"]: x for x in settings_of(files)} for files in (a, b))
    found: list[dict[str, Any]] = []
    for name in [*of_a, *(x for x in of_b if x not in of_a)]:
        one, other = of_a.get(name, {}), of_b.get(name, {})
        if one.get("value") != other.get("value"):
            found.append(
                {
                    "name": name,
                    "a": one.get("value"),
                    "b": other.get("value"),
                    "layer_a": one.get("layer"),
                    "layer_b": other.get("layer"),
                }
            )
    return found


def checkpoints(files: RunFiles) -> list[dict[str, Any]]:
    """Return the checkpoints on disk, by updates; those that are the last, the best or the candidate say so."""
    names = [x for x in files.names(CHECKPOINTS) if is_checkpoint(x)]
    last = max((int(x) for x in names if x.isdecimal()), default=None)
    found: list[dict[str, Any]] = []
    for name in names:
        if facts := _facts_of(files, name):
            kinds = ["last"] * (name == str(last)) + [name] * (not name.isdecimal())
            found.append({"name": name, "kinds": kinds, **facts})
    return sorted(found, key=lambda x: (x["updates"] or 0, x["kinds"]))


def _facts_of(files: RunFiles, checkpoint: str) -> dict[str, Any]:
    """Return what a checkpoint's files tell of it, which never changes; empty without a manifest, for then it is none."""
    status = files.stat(f"{CHECKPOINTS}/{checkpoint}/{MANIFEST}")
    if status is None:
        return {}
    key = status.st_dev, *(signature_of(status) or ())
    if (known := _CHECKPOINTS.get(key)) is not None:
        return known
    manifest = table_in(files, f"{CHECKPOINTS}/{checkpoint}/{MANIFEST}")
    if not manifest:
        return {}
    sizes = (number(mapping(x).get("bytes")) for x in mapping(manifest.get("files")).values())
    found = {
        "updates": whole(manifest.get("updates")),
        "env_steps": env_steps_of(files, checkpoint),
        "time": status.st_mtime,
        "bytes": sum(x for x in sizes if x is not None),
        "score": number(manifest.get("score")),
    }
    if len(_CHECKPOINTS) >= MOST_CHECKPOINTS:
        _CHECKPOINTS.clear()
    _CHECKPOINTS[key] = found
    return found


def videos(files: RunFiles) -> list[dict[str, Any]]:
    """Return the videos of evaluation episodes, the oldest first; facts are in a JSON file beside each."""
    found: list[dict[str, Any]] = []
    for name in files.names(VIDEOS):
        stem, dot, ending = name.rpartition(".")
        status = files.stat(f"{VIDEOS}/{name}")
        if dot + ending.lower() not in VIDEO_TYPES or status is None:
            continue
        facts = table_in(files, f"{VIDEOS}/{stem}.json")
        steps = whole(facts.get("env_steps"))
        if steps is None and (told := _STEPS.search(stem)) and len(told[1]) < 16:
            steps = int(told[1])
        found.append(
            {
                "name": name,
                "env_steps": steps,
                "return": number(facts.get("return")),
                "time": status.st_mtime,
            }
        )
    return sorted(found, key=lambda x: (x["time"], x["name"]))


def processes(files: RunFiles, *, running: bool) -> list[dict[str, Any]]:
    """Return the processes of the last session; `alive` is None for those on other machines."""
    rows = map(mapping, listed(value_in(files, "processes.json"))[:MAX_PROCESSES])
    return [
        {
            "role": word(x.get("role", "")),
            "rank": whole(x.get("rank")),
            "pid": whole(x.get("pid")),
            "machine": word(x.get("machine") or ""),
            "restarts": whole(x.get("restarts")) or 0,
            "alive": alive(x) if running else False,
        }
        for x in rows
    ]


def evaluations(files: RunFiles) -> list[dict[str, Any]]:
    """Return the last evaluations, the newest last."""
    lines = tail(files, "evaluation.jsonl", 4 * TAIL_BYTES).splitlines(keepends=True)
    rows = [row for line in lines[-EVALUATIONS:] if (row := parse_row(line)) is not None]
    return [shown(row) for row in rows]


def replays(files: RunFiles, metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the replays of a run, with the metrics that tell of each.

    Args:
        files: of the run.
        metrics: as `metrics_of` returns them.
    """
    names = [x["name"] for x in metrics if x["name"].startswith("replay/")]
    names += [x["name"] for x in metrics if x["name"] == "learner/rejected_fraction"]
    shared = [x for x in names if name_in_table(x) in METRICS and _owner(x) == ""]
    kinds = [mapping(x).get("name") for x in listed(table_in(files, "config.json").get("replays"))]
    found: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for kind in map(word, kinds):
        if kind == "queue":
            continue
        seen[kind] = seen.get(kind, 0) + 1
        name = kind if seen[kind] == 1 else f"{kind}_{seen[kind]}"
        own = [x for x in names if _owner(x) == name]
        found.append({"name": name, "metrics": [*shared, *own]})
    return found


def _owner(metric: str) -> str:
    """Return the replay that a metric tells of: "elite_2" of "replay/elite_2_columns"; empty: all of them."""
    match = re.match(r"replay/([a-z]+(?:_\d+)?)_(?:columns|distance_\w+)$", metric)
    return match[1] if match and match[1] != "nonfinite" else ""
