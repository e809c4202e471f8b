"""A policy as a folder that Hugging Face's Hub shows: config.json, model.safetensors and a model card.

Nothing is sent anywhere. `load_hub` reads such a folder back; it trusts nothing in it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gossamer.build.roles import build_trained_policy
from gossamer.config import check_ranges, code_in, from_dict
from gossamer.envs.interface import MOST_NUMBERS, interface_from
from gossamer.errors import ConfigError
from gossamer.record.files import write_hashed
from gossamer.record.metrics import plain
from gossamer.record.safetensors import read_safetensors, safetensors_chunks
from gossamer.run.checkpoint_contents import SavedPolicy
from gossamer.run.load_policy import put_weights, refuse_misfit
from gossamer.spec import EnvSpec, Leaf
from gossamer.system.devices import cpu_by_default
from gossamer.system.reading import expand, open_plain, parse_json, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from gossamer.roles.policy import Policy


CONFIG, WEIGHTS, CARD, VIDEO = "config.json", "model.safetensors", "README.md", "replay.mp4"
"""Names that the Hub looks for."""


def write_policy(folder: Path, policy: Policy, description: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors into a folder.

    Args:
        folder: exists.
        policy: what is written.
        description: what else config.json holds.
    """
    content = {
        "library_name": "gossamer",
        "model_type": "actor-critic",
        **description,
        "policy": asdict(policy.config),
        "value_norm": policy.value_norm,
        "spec": asdict(policy.spec),
    }
    text = json.dumps(plain(content), indent=1) + "\n"
    write_hashed(folder / CONFIG, [text.encode()])
    write_hashed(folder / WEIGHTS, safetensors_chunks(policy.state_dict()))


@cpu_by_default()
def load_hub(
    folder: str | Path, *, torso: torch.nn.Module | None = None, trust: bool = False
) -> Policy:
    """Load a policy that was exported with `--format hub`, ready to act, in float32 on the CPU.

    `action, state = policy.act(obs, state)` takes the environment's own observations; a policy that was trained with a mask
    of actions takes that too, as `mask=info["action_mask"]`, unless an observation holds it.

    Args:
        folder: what was written, or what was downloaded from the Hub.
        torso: the feature layers of your own that it was trained with.
        trust: import layers of your own by the names that the folder has for them; without this nothing is imported.

    Raises:
        ConfigError: the folder holds no such policy, or is damaged.
    """
    path = expand(folder)
    try:
        content: Any = parse_json(read_plain(path / CONFIG))
        spec = _spec(content["spec"])
        interface = interface_from(spec.env_id, content, spec)
        masks = () if interface.mask is None else (interface.mask.leaf,)
        leaves = (*interface.obs_format.leaves, *masks)
        seen = tuple((x.name, x.kind, x.shape, x.sizes) for x in leaves)
        if any(x.tiles and not _is_grid(x) for x in spec.leaves):
            raise ValueError("its tiles are no equal parts")
        known = tuple((x.name, x.kind, x.shape, x.sizes) for x in spec.leaves)
        if (seen, interface.action_format.spec) != (known, spec.action):
            raise ValueError("its environment's spaces are not those of the policy")
        config = from_dict(
            {
                "env_id": spec.env_id,
                "policy": content["policy"],
                "algorithm": {"name": "vtrace", "value_norm": content["value_norm"]},
            }
        )
        check_ranges(config)
        with open_plain(path / WEIGHTS) as file:
            tensors = read_safetensors(file, lambda _: True)
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{path} is no folder of an exported policy that can be read: {reason}"
        ) from None
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ConfigError(f"{path} is no folder of an exported policy: {reason}") from None
    own = code_in({"policy": content["policy"]})
    if torso is None and own and not trust:
        alone = " (or make it, and give it: torso=...)" if "policy.torso" in own else ""
        raise ConfigError(
            f"{path} is of a network with layers of its own; load_hub(..., trust=True) imports {', '.join(own.values())}{alone}"
        )
    saved = SavedPolicy(tensors, str(path))
    refuse_misfit(config, spec, saved, torso)
    policy = build_trained_policy(config, spec, interface, torso)
    put_weights(policy, saved)
    return policy.requires_grad_(False).eval()


def _spec(content: Any) -> EnvSpec:
    held = cast("dict[str, Any]", dict(content))
    if "obs_shape" in held:  # of before observations could hold several arrays
        shape = tuple(int(n) for n in held.pop("obs_shape"))
        stack = {name: held.pop(name) for name in ("frame_stack", "stack_padding") if name in held}
        leaf = {"name": "", "kind": held.pop("obs_kind"), "shape": shape, **stack}
        held["leaves"] = [leaf]
    found = msgspec.convert({**held, "action": _action(held["action"])}, EnvSpec)
    each = found.action.each
    sizes = [n for x in found.leaves for n in (*x.shape, *x.sizes)]
    sizes += [n for part in each for n in part.sizes]
    there_are = each and all(part.sizes for part in each) and min(sizes) >= 1
    numbers = found.obs_numbers + sum(n for x in found.leaves for n in x.sizes)
    if not there_are or numbers + found.action.num_params > MOST_NUMBERS:
        raise ValueError("its spec has sizes that cannot be")
    return found


def _is_grid(leaf: Leaf) -> bool:
    return leaf.kind == "vector" and leaf.tiles > 0 and leaf.shape[0] % leaf.tiles == 0


def _action(content: Any, *, whole: bool = True) -> dict[str, Any]:
    held: dict[str, Any] = dict(content)
    for name, endless in (("low", -math.inf), ("high", math.inf)):  # which JSON has not got
        held[name] = [endless if x is None else float(x) for x in held[name]]
    if parts := held.pop("parts", []):
        if not whole:
            raise ValueError("a part of its actions has parts")
        held["parts"] = [(name, _action(part, whole=False)) for name, part in parts]
    return held
