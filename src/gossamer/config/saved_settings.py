"""Settings of a run that is resumed or evaluated, and whether the code that they name may be imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from gossamer.config import own_parts
from gossamer.config.files import config_layer
from gossamer.config.names import entries_of, nested
from gossamer.config.suggestions import REMOVED
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import fields_of, member_name, members, to_tree
from gossamer.config.values import is_list, is_mapping
from gossamer.errors import ConfigError
from gossamer.policies.settings import LIKE, PolicyConfig
from gossamer.record.origin import began_here, is_found
from gossamer.system.reading import clipped, mapping

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from gossamer.config.tree import Tree
    from gossamer.record.folder import RunFolder


def in_python(name: str, value: str) -> str:
    """Say what to write in Python so that the code of this setting is used."""
    return f"env_id={value!r}, or trust=True" if name == "env_id" else "trust=True"


def saved_settings(
    run: str | os.PathLike[str] | None,
    *,
    given: Tree | None = None,
    configs: Sequence[str] = (),
    trust: bool = False,
    how: Callable[[str, str], str] = in_python,
) -> dict[str, Any] | None:
    """Return what a run was trained with; None for no run.

    Args:
        run: which.
        given: settings given beside it; code they name may be imported.
        configs: files and presets given beside it; likewise.
        trust: import whatever the run names.
        how: what to type, for the error, so that the code of a setting is used, by its dotted name and value.

    Raises:
        ConfigError: there is no such run, its settings are damaged, or they would import code and nothing shows that
            the run began here.
    """
    if run is None:
        return None
    from gossamer.record.folder import RunFolder  # loads what --help does not need

    folder = RunFolder.open(run)
    saved = folder.read_settings()
    code = code_in(saved)
    named = [given or {}, *(config_layer(name).settings for name in configs)]
    again = {value for tree in named for value in code_in(tree).values()}
    foreign = [item for item in code.items() if item[1] not in again and is_found(item[1])]
    try:
        trust = trust or not foreign or began_here(folder.read_json("meta.json"), code.values())
    except ConfigError:  # nothing shows it
        trust = False
    if trust:
        return saved
    name, value = foreign[0]
    others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
    raise ConfigError(
        f"{folder.path} would import and call {clipped(value)}{others} ({name} in its config.json), and nothing shows "
        f"that you began this run on this machine; if you trust it, type {how(name, value)}"
    )


def settings_of_policy(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings without which a run's parameters would be those of another function.

    Code that they name is left out: a new run imports only what it is itself told to.

    Raises:
        ConfigError: there is no such run, or its settings are damaged.
    """
    from gossamer.record.folder import RunFolder  # loads what --help does not need

    saved = learnt_with(RunFolder.open(run))
    policy, code = entries_of(saved.get("policy")), code_in({"policy": saved.get("policy")})
    if any(name.startswith("policy.encoders") for name in code):
        policy.pop("encoders", None)
    if "policy.torso" in code:
        policy.pop("torso", None)
    # One that the run's version did not have yet is as it was before: the suite's may be newer.
    policy = {**to_tree(PolicyConfig()), **policy}
    # Values would be predicted in other units if only one of the two runs normalised them.
    normed = entries_of(saved.get("algorithm")).get("value_norm") is True
    return {"policy": policy, "algorithm": {"value_norm": normed}}


def learnt_with(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of a run under which its last checkpoint was saved: a later session may have saved none."""
    try:
        state = folder.checkpoints().load("last", lambda _: False).state
    except ConfigError:  # told by whoever needs its parameters
        state = {}
    return {**mapping(state.get("settings"))} or folder.read_settings()


def completed(saved: Tree) -> dict[str, Any]:
    """Return saved settings in the form of today's version: one that their version did not have is as it was before.

    Nothing is imported, and what is damaged stays as it is.
    """
    known = {name: x for name, x in saved.items() if name not in REMOVED}
    return _completed((TrainConfig,), known)


def _completed(kinds: Sequence[type], section: Any) -> Any:
    """Return a section with the settings that its kind has by default; of a class of the user's as it is."""
    if not isinstance(section, Mapping):
        return section
    found = dict(cast("Tree", section))
    kind = next((x for x in kinds if member_name(x) in (None, found.get("name"))), None)
    if kind is None or not own_parts.is_ours(kind):
        return found
    for name, field in fields_of(kind).items():
        below, value = members(field.annotation), found.get(name)
        if name not in found:
            found[name] = to_tree(field.default)
        elif is_list(field.annotation) and isinstance(value, list):
            found[name] = (
                [_completed(below, x) for x in cast("list[Any]", value)] if below else value
            )
        elif is_mapping(field.annotation) and isinstance(value, Mapping):
            entries = cast("Tree", value).items()
            found[name] = {x: _completed(below, entry) for x, entry in entries}
        elif below:
            found[name] = _completed(below, value)
    return found


def code_in(settings: Tree) -> dict[str, str]:
    """Return, by dotted name, what settings would have imported: an environment or a part, as module:NAME.

    This depends on the settings alone, not on which classes are known already.
    """
    tree = nested(settings)
    named = {name: tree.get(name) for name in ("env_id", "algorithm", "topology")}
    policy = entries_of(tree.get("policy"))
    named["policy.torso"] = policy.get("torso")
    encoders = entries_of(policy.get("encoders"))
    named |= {f"policy.encoders.{name}": encoder for name, encoder in encoders.items()}
    named |= {f"replays.{key}": replay for key, replay in entries_of(tree.get("replays")).items()}
    found: dict[str, str] = {}
    for path, value in named.items():
        if isinstance(value, Mapping):
            path, value = f"{path}.name", nested(cast("Tree", value)).get("name")
        # An encoder that is like another leaf's is no code.
        is_like = path.startswith("policy.encoders.") and str(value).startswith(LIKE)
        if isinstance(value, str) and ":" in value and not is_like:
            found[path] = value
    if found.get("env_id", "").startswith("envpool:"):
        del found["env_id"]
    return found
