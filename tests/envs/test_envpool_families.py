"""EnvPool's families: what a policy sees of them, which actions they allow, and that an id of each trains or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rolling import Rolling, random_actions

import gossamer
from gossamer.envs.interface import read_interface
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.envs.spaces import draw_actions
from gossamer.errors import ConfigError, RunFailed
from gossamer.spec import Leaf, leaves_of

envpool: Any = pytest.importorskip("envpool", reason="EnvPool is an optional extra")

AUTO = EnvConfig(mask="auto")
FAMILIES = {
    "atari": ("Adventure-v5", ""),
    "box2d": ("CarRacing-v3", ""),
    "classic_control": ("CartPole-v0", ""),
    "gfootball": ("gfootball/11_vs_11_competition-v1", ""),
    "highway": ("Highway-v0", ""),
    "jumanji": ("BinPack-v2", ""),
    "minigrid": ("MiniGrid-Empty-5x5-v0", ""),
    "mujoco.dmc": ("AcrobotSwingup-v1", ""),
    "mujoco.gym": ("Ant-v3", ""),
    "mujoco.metaworld": ("MetaWorld/Assembly-v3", ""),
    "mujoco.myosuite": ("MyoHandAirplaneFixed-v0", ""),
    "mujoco.playground": ("AlohaHandOver-v1", ""),
    "mujoco.robotics": ("FetchReach-v1", ""),
    "pgx": ("Go9x9-v1", "is for 2 players"),
    "procgen": ("BigfishEasy-v0", "Qt 5"),
    "toy_text": ("Catch-v0", ""),
    "vizdoom": ("D1Basic-v1", ""),
}
"""The first id of every family, and the words of its refusal; none: it trains."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ViZDoom writes its settings into a file where it runs."""
    monkeypatch.chdir(tmp_path)


def make(name: str, num_envs: int = 3, seed: int = 1, settings: EnvConfig = AUTO) -> Any:
    return make_vec_env(f"envpool:{name}", num_envs=num_envs, seed=seed, settings=settings)


def test_these_are_the_families_and_their_first_ids() -> None:
    registry = envpool.registration.registry
    first: dict[str, str] = {}
    for name in envpool.list_all_envs():
        first.setdefault(registry.specs[name][0].removeprefix("envpool."), name)
    assert first == {family: name for family, (name, _) in FAMILIES.items()}


def test_arrays_of_a_dict_are_leaves_and_a_mission_is_left_out() -> None:
    spec = read_spec("envpool:MiniGrid-Empty-5x5-v0", AUTO)
    assert spec.leaves == (
        Leaf("direction", "discrete", (1,), (4,)),
        Leaf("image", "vector", (7 * 7 * 21,), tiles=7 * 7),
    )
    assert "not observed: mission (Text)" in spec.protocol
    assert spec.remarks == ()
    goal = read_spec("envpool:FetchReach-v1", AUTO)
    assert [x.name for x in goal.leaves] == ["observation", "achieved_goal", "desired_goal"]
    nested = read_spec("envpool:Maze-v0", AUTO)
    assert [x.name for x in nested.leaves][:2] == ["agent_position/row", "agent_position/col"]


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "CarRacing-v3",
        "FrozenLake-v1",
        "Catch-v0",
        "MiniGrid-Empty-5x5-v0",
        "Tetris-v0",
        "PacMan-v1",
        "FetchReach-v1",
    ],
)
def test_batches_hold_what_is_written_row_by_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, interface = read_interface(f"envpool:{name}", AUTO)
    seen: list[Any] = []
    pool = envpool.make_gymnasium(name, num_envs=3, seed=1)
    step = pool.step

    def watched(action: Any) -> Any:
        seen.append(step(action))
        return seen[-1]

    pool.step = watched
    monkeypatch.setattr(envpool, "make_gymnasium", lambda *_, **__: pool)
    envs = make(name)
    obs = envs.start(np.zeros(3, np.int64))
    rng = np.random.default_rng(0)
    for _ in range(30):
        mask = obs["action_mask"] if envs.spec.mask else None
        envs.send(draw_actions(envs.spec.action, 3, rng, mask))
        obs = envs.recv().obs
        expected: Any = interface.obs_format.empty(3)
        interface.obs_format.write_all(expected, seen[-1][0])
        for leaf, x in leaves_of(expected).items():
            np.testing.assert_array_equal(leaves_of(obs)[leaf], x)
            assert leaves_of(obs)[leaf].dtype == x.dtype
    envs.close()


@pytest.mark.parametrize(
    ("name", "source", "form", "size"),
    [
        ("Play2048-v1", "info", "parts", 4),
        ("Game2048-v1", "observation", "parts", 4),
        ("Connector-v2", "observation", "parts", 50),
        ("Tetris-v0", "observation", "joint", 40),
    ],
)
def test_masks_are_found_and_a_row_after_the_end_has_the_next_episodes(
    name: str, source: str, form: str, size: int
) -> None:
    envs = make(name)
    assert (envs.spec.mask_from, envs.spec.mask_form) == (source, form)
    assert envs.spec.leaves[-1] == Leaf("action_mask", "mask", (size,))
    assert f"actions masked as its {source} says" in envs.spec.protocol
    rng, ends, fewer = np.random.default_rng(0), 0, 0
    obs = envs.start(np.zeros(3, np.int64))
    ended = np.zeros(3, bool)
    for _ in range(400):
        mask = obs["action_mask"]
        assert mask[ended].all()
        fewer += int((~mask).sum())
        begins = ended
        envs.send(draw_actions(envs.spec.action, 3, rng, mask))
        row = envs.recv()
        obs, ended = row.obs, row.ended
        assert not (begins & ended).any()
        ends += int(ended.sum())
    assert ends
    assert fewer
    envs.close()
    assert make(name, settings=EnvConfig(mask="off")).spec.mask is None


def test_a_mask_that_forbids_everything_says_where() -> None:
    says = (
        r"^environment \d+, episode 7, step 0: action_mask forbids every action; .*--env.mask off"
    )
    envs = make("Maze-v0", num_envs=200)  # some begin between four walls
    with pytest.raises(RunFailed, match=says):
        envs.start(np.full(200, 7))
    envs.close()


def test_vizdoom_chooses_one_combination_of_buttons() -> None:
    spec, interface = read_interface("envpool:D1Basic-v1", AUTO)
    assert (spec.action.kind, spec.action.sizes) == ("categorical", (6,))
    assert (spec.leaf.kind, spec.obs_shape) == ("pixels", (4, 84, 84))
    assert interface.environment["arguments"]["use_combined_action"] is True


def test_a_dict_is_described_leaf_by_leaf() -> None:
    spec, interface = read_interface("envpool:MiniGrid-Empty-5x5-v0", AUTO)
    told = interface.observation["leaves"]
    assert [(x["keys"], x["layout"]) for x in told] == [
        (["direction"], "from_zero"),
        (["image"], "one_hot"),
    ]
    assert tuple(x.name for x in spec.leaves) == ("direction", "image")


@pytest.mark.parametrize(
    ("name", "settings", "limit", "says"),
    [
        ("Go9x9-v1", AUTO, 0, "is for 2 players, and gossamer trains one agent"),
        ("IntersectionMultiAgent-v0", AUTO, 0, "is for 2 players"),
        ("VizdoomCustom-v1", AUTO, 0, r"cannot be made: .*\.cfg"),
        ("CartPole-v1", EnvConfig(mask="info"), 0, "has no legal_action_mask in its info"),
        ("CartPole-v1", EnvConfig(mask="observation"), 0, "observes no action_mask"),
        ("CartPole-v1", EnvConfig(mask_form="joint"), 0, "has no mask of actions"),
        ("Maze-v0", AUTO, 5, "--max-episode-steps 5 does not apply to envpool:Maze-v0"),
        ("Catch-v0", AUTO, 5, "--max-episode-steps 5 does not apply"),
    ],
)
def test_what_is_refused(name: str, settings: EnvConfig, limit: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as told:
        read_spec(f"envpool:{name}", settings, limit)
    assert "\n" not in str(told.value)


def test_time_limits_are_told_as_they_are() -> None:
    for name, says in {
        "MiniGrid-Empty-5x5-v0": "truncated after 100 steps",
        "Maze-v0": "its simulator's time limit of 100 steps",
        "Catch-v0": "without a time limit",
    }.items():
        assert says in read_spec(f"envpool:{name}", AUTO).protocol
    envs = make_vec_env(
        "envpool:FetchReach-v1", num_envs=2, seed=1, settings=AUTO, max_episode_steps=4
    )
    rolling = Rolling(envs).start()
    cut = [bool(rolling.step(action).truncated.all()) for action in random_actions(envs, 4)]
    assert cut == [False, False, False, True]
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "refusal"), FAMILIES.values(), ids=FAMILIES)
def test_the_first_id_of_a_family_trains_or_is_refused(
    tmp_path: Path, name: str, refusal: str
) -> None:
    settings = {
        "run_folder": str(tmp_path / "run"),
        "total_env_steps": 3_000,
        "num_envs": 4,
        "unroll_length": 32,
        "device": "cpu",
        "algorithm.passes": 1,
        "evaluation.every_seconds": 0,
    }
    config = gossamer.make_config(f"envpool:{name}", settings)
    if refusal == "Qt 5" and _has_qt():
        refusal = ""
    if refusal:
        with pytest.raises(ConfigError, match=refusal):
            gossamer.train(config, quiet=True)
    else:
        gossamer.train(config, quiet=True)
        assert (tmp_path / "run" / "summary.json").is_file()


def _has_qt() -> bool:
    try:
        envpool.make_spec("BigfishEasy-v0")
    except ImportError:
        return False
    return True
