"""What `gossamer tune` has found out about this machine: a file of the user's, plain JSON, which runs begin with.

It holds numbers and settings of a short list, and nothing that could be run. A file of another machine, or of one
with other cores, has another name.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from gossamer.machine import processor_name
from gossamer.record.files import write_text
from gossamer.record.origin import state_folder
from gossamer.system.cores import num_cores, num_cpus
from gossamer.system.gpus import visible_gpus
from gossamer.system.reading import listed, mapping, parse_json, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
MAX_BYTES = 1 << 20
TUNABLE = frozenset(
    {
        "num_learners",
        "env_groups",
        "micro_batch_rows",
        "learner_threads",
        "actor_threads",
        "env_threads",
    }
)
"""Settings that a machine may decide. Others change what is learnt, or what a batch is: those stay the user's."""


def machine_facts() -> dict[str, Any]:
    """Return what a machine is known by; a process that may use fewer cores is on another one."""
    return {
        "processor": processor_name(),
        "cores": num_cores(),
        "hardware_threads": num_cpus(),
        "gpus": len(visible_gpus()),
    }


def path_of(facts: Mapping[str, Any]) -> Path:
    """Return the file of a machine.

    Raises:
        OSError: there is no place for it.
    """
    digest = hashlib.sha256(json.dumps(sorted(facts.items())).encode()).hexdigest()
    return state_folder() / "machines" / f"{digest[:16]}.json"


def tuned_entries() -> list[dict[str, Any]]:
    """Return what was found out on this machine, as `write_tuned` takes it; empty: nothing, or nothing that can be read."""
    try:
        held = mapping(parse_json(read_plain(path_of(machine_facts()), MAX_BYTES)))
    except (OSError, ValueError):
        return []
    return [mapping(x) for x in listed(held.get("tuned"))] if held.get("format") == FORMAT else []


def tuned_settings(env_id: str, algorithm: str) -> dict[str, Any]:
    """Return the settings that were fastest on this machine; empty: nobody has looked, or the defaults were."""
    for entry in tuned_entries():
        settings = mapping(entry.get("settings"))
        same = (entry.get("env_id"), entry.get("algorithm")) == (env_id, algorithm)
        if same and TUNABLE.issuperset(settings):
            return settings
    return {}


def write_tuned(entry: Mapping[str, Any], measured: Mapping[str, Any]) -> Path:
    """Keep what was found for an environment and an algorithm, in place of what was known of these; return the file.

    Args:
        entry: with env_id, algorithm, settings (of TUNABLE), and what was measured with them.
        measured: rates of this machine.

    Raises:
        OSError: it cannot be written.
    """
    assert TUNABLE.issuperset(entry["settings"])
    facts = machine_facts()
    path = path_of(facts)
    same = (entry["env_id"], entry["algorithm"])
    kept = [x for x in tuned_entries() if (x.get("env_id"), x.get("algorithm")) != same]
    held = {
        "format": FORMAT,
        "machine": facts,
        "measured": dict(measured),
        "tuned": [*kept, dict(entry)],
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(path, json.dumps(held, indent=1))
    return path
