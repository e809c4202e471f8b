"""Policies that observe several arrays or may not take every action are exported whole, with their mask."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import masked_envs
import nested_envs
import numpy as np
import pytest
import torch
from gymnasium import spaces
from playing import play, returns_told
from sessions import slow

import gossamer
from gossamer import cli
from gossamer.build.roles import build_trained_policy
from gossamer.config import make_config
from gossamer.envs.interface import interface_from, interface_of, read_interface
from gossamer.envs.registry import make_vec_env, masked_as, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.envs.spaces import draw_actions
from gossamer.errors import ConfigError, RunFailed
from gossamer.export.hub import load_hub, write_policy
from gossamer.export.metadata import describe, output_meaning
from gossamer.export.onnx_file import onnx_bytes, onnx_step
from gossamer.export.program import (
    has_old_exporters,
    module_step,
    program_bytes,
    program_step,
)
from gossamer.export.recording import TOLERANCE, Choices, check, record
from gossamer.export.step import OneStep, outputs_of
from gossamer.spec import ActionSpec

# One process imports what exports to ONNX, which takes seconds.
pytestmark = pytest.mark.xdist_group("export")

PAST = {"last_action": True, "last_reward": True}
EVERYTHING = ["obs/image", "obs/pair/0", "obs/pair/1", "obs/switches", "obs/type"]
CASES: list[Any] = [
    ("nested_envs:Everything", {}, EVERYTHING),
    ("nested_envs:Vectors", {"core": "gru", **PAST}, ["obs/state/position", "obs/state/speed", "obs/time"]),
    ("masked_envs:Forbids", {"core": "lstm", **PAST}, ["obs", "mask"]),
    ("masked_envs:Observed", {"core": "gru"}, ["obs/observation", "mask"]),
    ("masked_envs:Parts", {"last_action": True}, ["obs", "mask"]),
    ("masked_envs:Combined", {}, ["obs", "mask"]),
    ("masked_envs:Grid", {}, ["obs", "mask"]),
    ("joint_envs:Joint", {"core": "lstm", "squash": True, **PAST}, ["obs", "start", "state"]),
    ("joint_envs:Pair", {"last_action": True}, ["obs", "start", "last_action"]),
    ("joint_envs:Forbidding", {"scale_actions": True, **PAST}, ["obs", "mask"]),
    ("joint_envs:ObservedParts", {"core": "gru"}, ["obs/observation", "mask"]),
    ("minigrid_envs:door_key", {"tile_size": 4, "core": "lstm"}, ["obs/direction", "obs/image", "start"]),
]  # fmt: skip
QUICK = [f"masked_envs:{x}" for x in ("Forbids", "Parts", "Grid")] + ["joint_envs:Forbidding"]
"""Those of which a torch program is made in every run of the tests; files for ONNX Runtime take three times as long."""


PARTS = ["action/aim", "action/legs/move", "action/switches", "action/0", "action/1", "action/2"]


def cases() -> list[Any]:
    every = [(kind, *case) for kind in ("pt2", "onnx") for case in CASES]
    return [
        case if case[:2] in [("pt2", name) for name in QUICK] else pytest.param(*case, marks=pytest.mark.slow)
        for case in every
    ]  # fmt: skip


def settings_of(env_id: str) -> EnvConfig:
    """Return what a run of the environment keeps of where its mask is."""
    auto = EnvConfig(mask="auto")
    return masked_as(auto, read_spec(env_id, auto))


def make_policy(env_id: str, network: dict[str, Any]) -> Any:
    spec, interface = read_interface(env_id, settings_of(env_id))
    sizes = {"hidden_sizes": [12], "fc_size": 24, "core_size": 6}
    config = make_config("CartPole-v1", {"policy": {**sizes, **network}})
    policy = build_trained_policy(config, spec, interface).requires_grad_(False).eval()
    gen = torch.Generator().manual_seed(1)
    for x in policy.parameters():  # biases, which begin at 0, have to be exported too
        x.add_(0.05 * torch.randn(x.shape, generator=gen))
    policy.action_head.weight.mul_(30.0)  # so that every action is the likeliest now and then
    return policy


def recorded(policy: Any, steps: int = 30) -> Any:
    env_id = policy.spec.env_id
    settings = settings_of(env_id)
    with closing(
        make_vec_env(env_id, num_envs=4, seed=3, settings=settings, training=False)
    ) as envs:
        return record(policy, envs, steps=steps)


def step_of(policy: Any) -> OneStep:
    return OneStep(policy, policy.interface.action).eval()


@pytest.mark.parametrize(("kind", "env_id", "network", "inputs"), cases())
def test_a_file_answers_as_the_policy_does(
    kind: str, env_id: str, network: dict[str, Any], inputs: list[str]
) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        if "core" in network and has_old_exporters():
            pytest.skip("an older torch exports no recurrent core to ONNX")
    make, take = {"onnx": (onnx_bytes, onnx_step), "pt2": (program_bytes, program_step)}[kind]
    policy = make_policy(env_id, network)
    step, recording = step_of(policy), recorded(policy)
    description = describe(step, policy.interface, {})
    assert description["format"] == 2
    assert list(description["inputs"])[: len(inputs)] == inputs
    taken = [name for name in description["outputs"] if name in ("action", *PARTS)]
    assert len(taken) == (3 if env_id.startswith("joint") else 1)
    for name in taken:
        chosen = recording.outputs[name].reshape(120, -1)
        assert len(np.unique(chosen, axis=0)) > 1, "the policy does choose"
    agreement = check(take(make(step, description)), description["inputs"], recording)
    assert set(agreement.largest) >= {"value", "action_params"}
    assert max(agreement.largest.values()) <= TOLERANCE


@pytest.mark.parametrize(("env_id", "network", "inputs"), CASES)
def test_a_folder_of_it_loads_again(
    env_id: str, network: dict[str, Any], inputs: list[str], tmp_path: Path
) -> None:
    policy = make_policy(env_id, network)
    step, recording = step_of(policy), recorded(policy)
    description = describe(step, policy.interface, {})
    write_policy(tmp_path, policy, description)
    again = load_hub(tmp_path)
    agreement = check(module_step(step_of(again)), description["inputs"], recording)
    assert max(agreement.largest.values()) <= TOLERANCE
    told = json.loads(json.dumps(describe(step_of(again), again.interface, {})))
    assert told == json.loads(json.dumps(description))


@pytest.mark.parametrize("name", ["Observed", "Combined"])
def test_a_folder_that_was_tampered_with_is_refused(name: str, tmp_path: Path) -> None:
    policy = make_policy(f"masked_envs:{name}", {})
    write_policy(tmp_path, policy, describe(step_of(policy), policy.interface, {}))
    path = tmp_path / "config.json"
    held = path.read_text()
    wrong: list[Any] = [
        lambda x: x["spec"].update(mask_from=""),
        lambda x: x["spec"].update(mask_form="parts" if name == "Combined" else "joint"),
        lambda x: x["spec"]["leaves"][-1].update(shape=[3]),
        lambda x: x["spec"]["leaves"][-1].update(name="other"),
        lambda x: x["spec"]["leaves"].pop(),
    ]
    if name == "Observed":
        (leaf,) = json.loads(held)["observation"]["leaves"]
        several = [["a"] * 1_000, [], [-1], [10**9], [True], [[]], ["x", 0, "y"], "ab", None, 3]
        wrong += [
            lambda x, y=keys: x["observation"]["leaves"][0].update(keys=y) for keys in several
        ]
        wrong += [
            lambda x: x["observation"]["leaves"].append(leaf),
            lambda x: x["observation"]["leaves"].append({**leaf, "keys": [0]}),
            lambda x: x["observation"].update(leaves=[]),
            lambda x: x["observation"]["leaves"][0].update(shape=[2**15, 2**15, 2]),
        ]  # fmt: skip
    wrong += [lambda x, y=n: x["spec"]["leaves"][-1].update(tiles=y) for n in (-1, 2)]
    for i, change in enumerate(wrong):
        content = json.loads(held)
        change(content)
        path.write_text(json.dumps(content))
        if name == "Observed" and i == 1:  # of a single choice both forms tell the same
            load_hub(tmp_path)
            continue
        with pytest.raises(ConfigError):
            load_hub(tmp_path)


@pytest.mark.parametrize("name", ["nested_envs:Everything", "masked_envs:Observed"])
def test_an_interface_is_read_back_from_its_description(name: str) -> None:
    spec, found = read_interface(name, settings_of(name))
    told = {x: getattr(found, x) for x in ("environment", "observation", "action")}
    again = interface_from(name, json.loads(json.dumps(told)), spec)
    assert (again.observation, again.action) == (found.observation, found.action)
    assert again.obs_format.leaves == found.obs_format.leaves
    assert (again.mask is None) == (found.mask is None)


def as_read_back(observation: Any, action: Any) -> tuple[Any, Any]:
    found = interface_of("Any-v0", {}, observation, action)
    told = {x: getattr(found, x) for x in ("environment", "observation", "action")}
    return found, interface_from("Any-v0", json.loads(json.dumps(told)))


@pytest.mark.parametrize(
    "box",
    [
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Box(-128, 127, (1,), np.int8),
        spaces.Box(0, 3, (), np.int32),
        spaces.Box(-3, 4, (2, 2), np.int64),
    ],
)
def test_a_box_of_whole_numbers_is_read_back(box: Any) -> None:
    for action in (box, spaces.Dict({"a": box, "b": spaces.Discrete(3, start=2)})):
        found, again = as_read_back(spaces.Box(-1, 1, (2,)), action)
        assert again.action_format.spec == found.action_format.spec
        assert again.action_space == action
        rows = draw_actions(found.action_format.spec, 3, np.random.default_rng(0))
        for one, other in zip(*(x.action_format.decode(rows) for x in (found, again)), strict=True):
            assert not box.shape or action.contains(one), "Gymnasium wants an array of no dimension"
            np.testing.assert_equal(one, other)


def test_braces_in_a_name_are_letters() -> None:
    parts = ActionSpec("joint", parts=(("a{b}", ActionSpec("categorical", (2,))),))
    assert outputs_of(parts)[0][0] == "action/a{b}"
    assert "a{b}: greedy action" in output_meaning("action/a{b}", "logits")


def test_large_observations_of_several_arrays_load_again(tmp_path: Path) -> None:
    policy = make_policy("nested_envs:Eyes", {"torso": "a3c"})
    write_policy(tmp_path, policy, describe(step_of(policy), policy.interface, {}))
    assert load_hub(tmp_path).spec == policy.spec


def test_what_a_tuple_holds_keeps_its_place() -> None:
    held = [
        spaces.Text(3),
        spaces.Box(-1, 1, (2,)),
        spaces.Dict(b=spaces.Discrete(2), a=spaces.Text(2)),
    ]
    env_id, action = "Any-v0", spaces.Discrete(2)
    found = interface_of(env_id, {}, spaces.Tuple(held), action)
    told = {"environment": {}, "observation": found.observation, "action": found.action}
    again = interface_from(env_id, told)
    assert [leaf.name for leaf in again.obs_format.leaves] == ["1", "2/b"]
    assert again.obs_format.leaves == found.obs_format.leaves
    batch: Any = again.obs_format.empty(1)
    again.obs_format.write(batch, 0, ("x", np.float32([0.5, 1.0]), {"a": "y", "b": 1}))
    assert (batch["1"].tolist(), batch["2/b"].tolist()) == ([[0.5, 1.0]], [[1]])


@pytest.mark.parametrize("name", ["Forbids", "Parts", "Combined"])
def test_an_answer_that_is_slightly_off_or_forbidden_is_refused(name: str) -> None:
    """Beside the parameter of a forbidden action, -1e9, every other one would be close enough."""
    policy = make_policy(f"masked_envs:{name}", {})
    recording = recorded(policy, steps=8)
    step = module_step(step_of(policy))
    given = step_of(policy).inputs(1)
    check(step, given, recording)

    def off(inputs: Any) -> Any:
        said = step(inputs)
        params = said["action_params"]
        return {**said, "action_params": np.where(inputs["mask"], params + 1e-2, params)}

    with pytest.raises(RunFailed, match=r"action_params at step 1 is off by 0\.01"):
        check(off, given, recording)

    def forbidden(inputs: Any) -> Any:
        choice = np.argmin(inputs["mask"][:, : policy.spec.action.sizes[0]], axis=1)
        said = step(inputs)
        if name == "Parts":
            chosen = said["action"].copy()
            chosen[:, 0] = choice
        else:
            chosen = np.stack(list(policy.interface.action_format.decode(choice)))
        return {**said, "action": chosen}

    with pytest.raises(RunFailed, match=r"action at step \d is another one"):
        check(forbidden, given, recording)
    # Not even where the likeliest allowed ones are as good as each other.
    (part,) = recording.chosen.values()
    tie = part._replace(margin=np.zeros_like(part.margin))
    tied = recording._replace(chosen={"action": tie})
    with pytest.raises(RunFailed, match=r"action at step \d is forbidden"):
        check(forbidden, given, tied)


def test_a_part_that_is_another_one_or_forbidden_is_refused() -> None:
    policy = make_policy("joint_envs:Forbidding", {"last_action": True})
    recording = recorded(policy, steps=8)
    step, given = module_step(step_of(policy)), step_of(policy).inputs(1)
    check(step, given, recording)

    def changed(output: str, by: Any, column: int = -1) -> Any:
        def answer(inputs: Any) -> Any:
            said = step(inputs)
            x = said[output].copy()
            view = x if column < 0 else x[:, column]
            view += by
            return {**said, output: x}

        return answer

    for output, by, column, wrong in (
        ("action/legs/move", 1, -1, "another one"),
        ("action/switches", 1, 0, "another one"),
        ("action/aim", 1e-2, 1, "off by 0.01"),
        ("next_last_action", 1e-2, 0, "off by 0.01"),
        ("next_last_action", 1, 2, "another one"),
    ):
        with pytest.raises(RunFailed, match=f"{output} at step \\d is {wrong}"):
            check(changed(output, by, column), given, recording)
    move = recording.chosen["action/legs/move"]
    tie = move._replace(margin=np.zeros_like(move.margin))
    tied = recording._replace(chosen={**recording.chosen, "action/legs/move": tie})
    with pytest.raises(RunFailed, match=r"action/legs/move at step \d is forbidden"):
        check(changed("action/legs/move", 1), given, tied)


def test_choices_of_actions_are_found_again() -> None:
    combined = Choices((12,), (0, 7), (4, 3))
    actions = np.array([[0, 7], [3, 9], [2, 8], [4, 7], [0, 6]])
    assert combined.of("action", actions).ravel().tolist() == [0, 11, 7, -1, -1]
    parts = Choices((3, 2), (5, 0))
    mask = np.array([[1, 0, 1, 1, 0]], bool)
    assert parts.of("action", np.array([[7, 1]])).tolist() == [[2, 1]]
    for values, allowed in (([2, 0], True), ([1, 0], False), ([2, 1], False), ([3, 0], False)):
        assert parts.are_allowed(np.array([values]), mask) == allowed
    assert not parts.are_allowed(np.array([[-1, 0]]), mask)


TINY: dict[str, Any] = {
    "placement": "inline",
    "evaluation.every_seconds": 0,
    "num_envs": 4,
    "unroll_length": 16,
    "total_env_steps": 256,
    "policy.hidden_sizes": [16],
    "policy.fc_size": 16,
    "algorithm": {"name": "a2c"},
}


def trained(env_id: str, folder: Path, **settings: Any) -> str:
    run = gossamer.train(env_id, run_folder=str(folder), quiet=True, **{**TINY, **settings})
    return str(run.folder)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def greedy_returns(run: str, env: Any, seeds: list[int]) -> list[float]:
    policy = gossamer.load_policy(run)
    scores: list[float] = []
    for seed in seeds:
        (obs, info), state, score, ended = env.reset(seed=seed), None, 0.0, False
        while not ended:
            given = {"mask": info["action_mask"]} if "action_mask" in info else {}
            action, state = policy.act(obs, state, **given)
            obs, reward, terminated, truncated, info = env.step(action)
            score, ended = score + float(reward), terminated or truncated
        scores.append(score)
    return scores


@pytest.mark.parametrize(
    ("env_id", "settings", "inputs"),
    [
        ("registered_envs:Everything-v0", {}, ", ".join(EVERYTHING)),
        ("registered_envs:Combined-v0", {}, "obs, mask"),
        slow("registered_envs:Observed-v0", {"policy.core": "lstm"}, "obs/observation, mask, start, state"),
        slow("registered_envs:Forbidding-v0", {}, "obs, mask"),
        slow("registered_envs:ObservedParts-v0", {}, "obs/observation, mask"),
        slow("Taxi-v4", {"max_episode_steps": 30}, "obs, mask"),
    ],
)  # fmt: skip
def test_an_onnx_file_plays_from_what_it_says_of_itself(
    env_id: str,
    settings: dict[str, Any],
    inputs: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    if "policy.core" in settings and has_old_exporters():
        pytest.skip("an older torch exports no recurrent core to ONNX")
    run = trained(env_id, here / "run", **settings)
    assert cli.main(["export", run, "--format", "onnx", "--output", "a.onnx"]) == 0
    assert f"a.onnx: {inputs} -> action" in capsys.readouterr().out
    limit = settings.get("max_episode_steps")
    env = gymnasium.make(env_id, max_episode_steps=limit, disable_env_checker=True)
    wanted = greedy_returns(run, env, [7, 8, 9])
    said = play("a.onnx", "--episodes", "3", "--seed", "7")
    assert returns_told(said) == pytest.approx(wanted, rel=1e-4)


def test_a_torch_program_takes_a_dict(here: Path) -> None:
    run = trained("nested_envs:Everything", here / "run")
    assert cli.main(["export", run, "--format", "pt2", "--output", "a.pt2"]) == 0
    held = {"gossamer.json": ""}
    program = torch.export.load("a.pt2", extra_files=held).module()
    about = json.loads(held["gossamer.json"])
    obs = {
        name.removeprefix("obs/"): torch.ones((5, *x["shape"][1:]), dtype=getattr(torch, x["dtype"]))
        for name, x in about["inputs"].items()
    }  # fmt: skip
    assert obs["image"].dtype == torch.uint8
    assert obs["pair/1"].dtype == torch.int64
    said = program(obs=obs)
    assert said["action"].shape == (5,)
    other = program(obs=dict(reversed(obs.items())))
    assert torch.equal(other["action_params"], said["action_params"])


@pytest.mark.parametrize(
    "env_id",
    [
        "nested_envs:Everything",
        "masked_envs:Forbids",
        "masked_envs:Observed",
        "masked_envs:Combined",
    ],
)
def test_a_hub_folder_plays_by_its_card(
    env_id: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(env_id, here / "run")
    words = ["export", run, "--format", "hub", "--output", "out", "--episodes", "2"]
    assert cli.main(words) == 0
    shutil.rmtree(run)
    monkeypatch.chdir("out")
    capsys.readouterr()
    program = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(program, {})
    assert np.isfinite(float(capsys.readouterr().out))
    assert ("mask=" in program) == (env_id.endswith(("Forbids", "Combined")))
    policy = load_hub(".")
    if env_id == "masked_envs:Forbids":
        obs, info = masked_envs.Forbids().reset(seed=1)
        with pytest.raises(ValueError, match="trained with a mask of actions"):
            policy.act(obs)
        assert info["action_mask"][policy.act(obs, mask=info["action_mask"])[0]]
    if env_id == "nested_envs:Everything":
        obs, _ = nested_envs.Everything().reset(seed=1)
        assert policy.act(obs)[0] in range(3)


@pytest.mark.parametrize(
    ("mask", "inputs", "number"), [("off", "obs", 1), ("info", "obs, mask", 2)]
)
def test_taxi_is_exported_with_its_mask_and_without(
    mask: str, inputs: str, number: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("Taxi-v4", here / "run", max_episode_steps=30, **{"env.mask": mask})
    assert cli.main(["export", run, "--format", "pt2", "--output", "a.pt2"]) == 0
    assert f"a.pt2: {inputs} -> action, value" in capsys.readouterr().out
    held = {"gossamer.json": ""}
    torch.export.load("a.pt2", extra_files=held)
    about = json.loads(held["gossamer.json"])
    assert about["format"] == number
    told = {"input": "mask", "from": "info", "key": "action_mask", "form": "parts", "sizes": [6]}
    assert about.get("mask", {}).items() >= (told if mask == "info" else {}).items()
