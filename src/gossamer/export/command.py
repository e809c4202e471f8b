"""What `gossamer export` does: load a run's policy, write it in a format, and refuse one that answers differently."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gossamer.build.evaluation_tasks import build_trials
from gossamer.config import code_in, explicit, to_dict
from gossamer.errors import ConfigError, RunFailed
from gossamer.export import hub
from gossamer.export.card import model_card
from gossamer.export.metadata import describe, describe_run
from gossamer.export.onnx_file import onnx_bytes, onnx_step, refuse_without_onnx
from gossamer.export.program import module_step, program_bytes, program_step
from gossamer.export.recording import ENVS, TOLERANCE, Agreement, check, record
from gossamer.export.step import OneStep
from gossamer.machine import same_folder, threads
from gossamer.record.files import sync_folder, write_whole
from gossamer.record.folder import RunFolder, file_name
from gossamer.record.metrics import plain
from gossamer.run.evaluate import play_episodes, stop_on_interrupt, watched
from gossamer.run.load_policy import config_of, policy_and_checkpoint
from gossamer.run.video_or_window import record_video
from gossamer.system.devices import cpu_by_default
from gossamer.system.reading import expand, new_file, quoted, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.export.recording import Recording
    from gossamer.roles.policy import Policy
    from gossamer.run.stopping import Watch

SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "hub": ""}
"""What the name of each format's file ends in; a folder has no such end."""
EPISODES, SEED = 30, 1
"""Episodes that a model card tells the scores of, and their seed, where no others are asked for."""
_PLACES = ("run_folder", "init_from", "cluster")
"""Settings that name places on this machine or in its network, as the `path` of a replay does."""


class _Loaded(NamedTuple):
    """A run's policy, and what is known of it."""

    folder: RunFolder
    config: TrainConfig
    policy: Policy
    step: OneStep
    description: dict[str, Any]


@cpu_by_default()
def export_run(
    run: str,
    *,
    format: str,  # noqa: A002 - the flag's name
    output: str | None,
    checkpoint: str | int,
    learner: int | None,
    env_id: str,
    trust: bool,
    episodes: int | None,
    seed: int | None,
    json: bool,
    say: Callable[[str], None],
) -> str:
    """Do what `gossamer export` promises; return what to print.

    Args:
        run: as for `load_policy`, as are the next four.
        format: "onnx", "pt2" or "hub".
        output: file or folder to write, which must not exist; None: in this folder, named after environment and
            algorithm.
        checkpoint: which.
        learner: whose.
        env_id: named again.
        trust: import what the run names.
        episodes: for a hub's card, 0 for none; None: EPISODES.
        seed: of those episodes; None: SEED.
        json: return JSON.
        say: told what is being done.

    Raises:
        ConfigError: it cannot be done; nothing was created.
        RunFailed: the network cannot be exported, or the result answers differently.
    """
    if format != "hub":
        for name, value in (("--episodes", episodes), ("--seed", seed)):
            if value is not None:
                raise ConfigError(f"{name} is for the model card of --format hub; leave it out")
    if format == "onnx":
        refuse_without_onnx()
    target = _target(output, format) if output is not None else None
    folder = RunFolder.open(run)
    config = config_of(folder, env_id, trust=trust, command="export")
    target = target or _target(_default_name(config, format), format)
    with watched(config, last_resort=True) as watch:
        loaded = _load(folder, config, checkpoint, learner)
        recording = _record(loaded, watch, say)
        if format == "hub":
            agreement = _write_hub(
                loaded,
                recording,
                target,
                watch,
                episodes=EPISODES if episodes is None else episodes,
                seed=SEED if seed is None else seed,
                say=say,
            )
        else:
            agreement = _write_file(loaded, recording, target, format, say)
    return _as_json(target, format, agreement) if json else _in_words(target, loaded, agreement)


def _target(output: str, kind: str) -> Path:
    path, suffix = expand(output, "; choose another with --output PATH"), SUFFIXES[kind]
    if suffix and path.suffix != suffix:
        raise ConfigError(
            f"--output is {output}; a file of --format {kind} ends in {suffix}: --output {quoted(path.with_suffix(suffix) if path.name else 'policy' + suffix)}"
        )
    return new_file(path)


def _default_name(config: TrainConfig, kind: str) -> str:
    return f"{file_name(config.env_id)}-{config.algorithm.name}{SUFFIXES[kind]}"


def _load(folder: RunFolder, config: TrainConfig, which: str | int, learner: int | None) -> _Loaded:
    policy, checkpoint = policy_and_checkpoint(folder, config, which, learner)
    step = OneStep(policy, policy.interface.action).eval()
    with torch.no_grad(), threads(1):
        description = describe(
            step, policy.interface, describe_run(folder, config, checkpoint, which, learner)
        )
    return _Loaded(folder, config, policy, step, description)


def _record(loaded: _Loaded, watch: Watch, say: Callable[[str], None]) -> Recording:
    trial = build_trials(loaded.config, loaded.policy.spec, episodes=ENVS, seed=SEED)[0]
    say(f"Recording {ENVS} episodes to check the export")
    with (
        threads(1),
        same_folder(),
        stop_on_interrupt(watch) as stop,
        contextlib.closing(trial.make_envs(ENVS)) as envs,
    ):
        return record(loaded.policy, envs, stop=stop)


def _write_file(
    loaded: _Loaded,
    recording: Recording,
    target: Path,
    kind: str,
    say: Callable[[str], None],
) -> Agreement:
    make, take = {"onnx": (onnx_bytes, onnx_step), "pt2": (program_bytes, program_step)}[kind]
    say(f"following the network for {target.name}")
    with threads(1):
        data = make(loaded.step, loaded.description)
        agreement = check(take(data), loaded.description["inputs"], recording)
    _refuse_new(target)
    try:
        write_whole(target, lambda file: file.write(data))
    except OSError as error:
        raise RunFailed(f"{target} cannot be written: {error.strerror}") from None
    return agreement


def _refuse_new(target: Path) -> None:
    """Refuse what has come to be there since it was looked for."""
    if os.path.lexists(target):
        raise RunFailed(f"{target} has been made by another program meanwhile; nothing was written")


def _write_hub(
    loaded: _Loaded,
    recording: Recording,
    target: Path,
    watch: Watch,
    *,
    episodes: int,
    seed: int,
    say: Callable[[str], None],
) -> Agreement:
    config, policy = loaded.config, loaded.policy
    partial = target.with_name(f".{target.name}.partial")
    scores = None
    if episodes:
        say(f"playing {episodes} episodes for the model card (--episodes N: fewer)")
        scores = play_episodes(config, policy, watch, episodes=episodes, sample=False, seed=seed)
    settings = _without_places(to_dict(config))
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
        partial.mkdir()
        hub.write_policy(partial, policy, {**loaded.description, "settings": settings})
        own = policy.torso if policy.config.has_own_code else None
        step = OneStep(hub.load_hub(partial, torso=own), policy.interface.action).eval()
        agreement = check(module_step(step), loaded.description["inputs"], recording)
        shown = _video(loaded, partial, seed, say)
        given = _given_settings(loaded.folder, settings)
        layers = [*code_in({"policy": asdict(policy.config)}).values()]
        card = model_card(loaded.description, given, scores, seed=seed, video=shown, layers=layers)
        data = card.encode("utf-8", "backslashreplace")
        write_whole(partial / hub.CARD, lambda file: file.write(data))
        _refuse_new(target)
        partial.rename(target)
        sync_folder(target.absolute().parent)
    except OSError as error:
        raise RunFailed(f"{target} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return agreement


def _video(loaded: _Loaded, folder: Path, seed: int, say: Callable[[str], None]) -> bool:
    """Record an episode if that can be done; tell in a line if it cannot."""
    path = folder / hub.VIDEO
    try:
        record_video(loaded.config, loaded.policy, path, seed=seed, greedy=True)
    except Exception as error:  # noqa: BLE001 - whatever an environment, a graphics library or an encoder raises
        path.unlink(missing_ok=True)
        say(f"no video: {visible(' '.join(str(error).split())[:300])}")
        return False
    return path.is_file()


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that may be published."""
    kept = {name: x for name, x in settings.items() if name not in _PLACES}
    replays = [{name: x for name, x in own.items() if name != "path"} for own in kept["replays"]]
    return {**kept, "replays": replays}


def _given_settings(folder: RunFolder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some settings that the user gave, by dotted name; none if the run does not say."""
    try:
        layers = folder.read_json("layers.json")
        names = sorted(explicit(layers))
    except (ConfigError, AttributeError, TypeError):
        return {}
    found: dict[str, Any] = {}
    for name in names:
        value: Any = settings
        for part in name.split("."):
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found


def _as_json(target: Path, kind: str, agreement: Agreement) -> str:
    row = {
        "path": str(target),
        "format": kind,
        "steps": agreement.steps,
        "largest_difference": agreement.largest,
    }
    return json_module.dumps(plain(row))


def _in_words(target: Path, loaded: _Loaded, agreement: Agreement) -> str:
    largest = max(agreement.largest.values())
    inputs, outputs = (", ".join(loaded.description[name]) for name in ("inputs", "outputs"))
    return (
        f"{target}: {inputs} -> {outputs}\n"
        f"{agreement.steps:,} steps replayed: same actions, largest difference {largest:.2g} (allowed: {TOLERANCE:g})"
    )
