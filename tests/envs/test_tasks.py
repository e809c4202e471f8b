import gymnasium
import numpy as np
import pytest
from rolling import Rolling, assert_resumes, random_actions

from gossamer.config import make_config
from gossamer.envs import multitask
from gossamer.envs.registry import known_ids, make_vec_env, read_spec
from gossamer.envs.seeding import Tasks
from gossamer.envs.settings import EnvConfig
from gossamer.trials import build_trials, training_tasks
from gossamer.types import ConfigError

multitask.register()


def of(env_id, num_envs=4, workers=None, **tasks):
    given = Tasks(**{"seed": 3, "count": 100, **tasks})
    return make_vec_env(
        env_id, num_envs=num_envs, seed=7, settings=EnvConfig(workers=workers), tasks=given
    )


def told(envs):
    return [envs.episode_info(i) for i in range(envs.num_envs)]


def test_extreme_acrobots_have_extreme_links_for_good():
    env = gymnasium.make("RandomExtremeAcrobot-v1").unwrapped
    seen = []
    for seed in range(2_000):
        env.set_task(seed)
        first = env.episode_info
        env.reset(seed=1)
        assert env.episode_info == first
        assert env.LINK_MASS_1 == env.LINK_MASS_2 == first["mass"]
        assert env.LINK_LENGTH_1 == env.LINK_LENGTH_2 == first["length"]
        assert first["inertia"] == env.LINK_MOI
        seen.append([first["mass"], first["length"], first["inertia"]])
    drawn = np.array(seen)
    assert (((drawn >= 0.5) & (drawn < 0.75)) | ((drawn >= 1.25) & (drawn <= 1.5))).all()
    # Uniform: mean 1, standard deviation 0.382, half below 1; independent of each other.
    np.testing.assert_allclose(drawn.mean(0), 1.0, atol=0.04)
    np.testing.assert_allclose(drawn.std(0), 0.382, atol=0.01)
    assert (abs(np.corrcoef(drawn.T) - np.eye(3)) < 0.08).all()


def test_normal_acrobots_are_drawn_for_every_episode_from_its_seed():
    env = gymnasium.make("RandomNormalAcrobot-v1").unwrapped
    drawn = []
    for seed in range(500):
        env.reset(seed=seed)
        drawn.append([env.LINK_MASS_1, env.LINK_LENGTH_2, env.LINK_MOI])
    env.reset(seed=0)
    assert drawn[0] == [env.LINK_MASS_2, env.LINK_LENGTH_1, env.LINK_MOI]
    drawn = np.array(drawn)
    assert (drawn >= 0.75).all()
    assert (drawn < 1.25).all()
    np.testing.assert_allclose(drawn.mean(0), 1.0, atol=0.03)
    assert len(np.unique(drawn)) == 1_500


def test_an_acrobots_physics_are_gymnasiums_with_its_links():
    from gymnasium.envs.classic_control.acrobot import AcrobotEnv

    env, plain = gymnasium.make("RandomExtremeAcrobot-v1").unwrapped, AcrobotEnv()
    env.set_task(5)
    info = env.episode_info
    plain.LINK_MASS_1 = plain.LINK_MASS_2 = info["mass"]
    plain.LINK_LENGTH_1 = plain.LINK_LENGTH_2 = info["length"]
    plain.LINK_MOI = info["inertia"]
    env.reset(seed=2)
    plain.reset(seed=2)
    for action in (0, 1, 2, 2, 0, 0, 2):
        np.testing.assert_array_equal(env.step(action)[0], plain.step(action)[0])
    assert gymnasium.spec("RandomExtremeAcrobot-v1").max_episode_steps == 500


@pytest.mark.parametrize(("before", "success"), [(89, 1.0), (90, 0.0)])
def test_success_is_to_be_up_within_90_steps(before, success):
    env = gymnasium.make("RandomExtremeAcrobot-v1").unwrapped
    env.set_task(1)
    env.reset(seed=1)
    for _ in range(before):
        env.state = np.zeros(4)
        assert env.step(1)[4]["success"] == 0.0
    env.state = np.array([np.pi, 0.0, 0.0, 0.0])
    _, _, terminated, _, info = env.step(1)
    assert terminated
    assert info["success"] == env.episode_info["success"] == success


@pytest.mark.parametrize("prefix", multitask.MUJOCO_PREFIXES)
def test_mujoco_tasks(prefix):
    pytest.importorskip("mujoco")
    wind, mass = multitask.MUJOCO_PREFIXES[prefix]
    env = gymnasium.make(f"{prefix}Hopper-v5")
    plain = gymnasium.make("Hopper-v5").unwrapped.model
    model = env.unwrapped.model
    assert (model.opt.viscosity, model.opt.density) == (0.0002, 1.2)
    assert plain.opt.density == 0.0
    assert env.has_wrapper_attr("set_task") == (wind or mass)
    if not (wind or mass):
        np.testing.assert_array_equal(model.body_mass, plain.body_mass)
        return
    set_task, rows = env.get_wrapper_attr("set_task"), []
    for seed in range(600):
        set_task(seed)
        info = env.get_wrapper_attr("episode_info")
        assert list(info) == ["wind_x", "wind_y"] * wind + ["mass_factor"] * mass
        if wind:
            assert model.opt.wind.tolist() == [info["wind_x"], info["wind_y"], 0.0]
        if mass:  # from the stored originals, however often
            np.testing.assert_allclose(model.body_mass, plain.body_mass * info["mass_factor"])
            assert model.body_subtreemass[0] == pytest.approx(model.body_mass.sum())
        rows.append(list(info.values()))
    drawn = np.array(rows)
    set_task(0)
    np.testing.assert_array_equal(list(env.get_wrapper_attr("episode_info").values()), drawn[0])
    if wind:  # standard deviations of Beta(a, a) are sqrt(1 / (4 (2 a + 1)))
        assert (abs(drawn[:, :2]) <= 15.0).all()
        np.testing.assert_allclose(drawn[:, :2].std(0), 30 * np.sqrt(1 / (4 * 1.8)), rtol=0.05)
        np.testing.assert_allclose(drawn[:, :2].mean(0), 0.0, atol=1.5)
    if mass:
        assert (drawn[:, -1] >= 0.05).all()
        assert (drawn[:, -1] <= 1.95).all()
        assert drawn[:, -1].std() == pytest.approx(1.9 * np.sqrt(1 / (4 * 1.2)), rel=0.05)


def test_wind_is_felt():
    pytest.importorskip("mujoco")
    ends = []
    for seed in (1, 2):
        env = gymnasium.make("RandomWindMuJoCoHalfCheetah-v5")
        env.get_wrapper_attr("set_task")(seed)
        env.reset(seed=1)
        for _ in range(20):
            obs = env.step(np.zeros(6, np.float32))[0]
        ends.append(obs)
    assert not np.allclose(*ends)


def test_families_of_every_robot_are_known():
    known = set(known_ids())
    assert {"RandomExtremeAcrobot-v1", "RandomNormalAcrobot-v1"} <= known
    robots = [name for name in known if name.startswith("RandomMuJoCo")]
    assert {"RandomMuJoCoHopper-v5", "RandomMuJoCoHalfCheetah-v5"} <= set(robots)
    for name in robots:
        plain = gymnasium.spec(name.removeprefix("RandomMuJoCo"))
        assert gymnasium.spec(name).max_episode_steps == plain.max_episode_steps


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("env_id", ["RandomExtremeAcrobot-v1", "task_envs:Paying"])
def test_environments_keep_their_task_and_tell_of_it(env_id, workers):
    envs = of(env_id, workers=workers, first_env=4, envs_per_task=2)
    rolling = Rolling(envs).start()
    assert envs.spec.family
    assert envs.tasks().tolist() == [2, 2, 3, 3]
    began = told(envs)
    assert began[0] == began[1] != began[2] == began[3]
    for action in random_actions(envs, 12):
        rolling.step(action)
    assert envs.tasks().tolist() == [2, 2, 3, 3]
    assert told(envs) == began
    envs.close()


def test_evaluation_goes_through_all_tasks():
    envs = of("task_envs:Paying", num_envs=2, count=3, stride=2)
    rolling, seen = Rolling(envs).start(), []
    for action in random_actions(envs, 8):
        row = rolling.step(action)
        if row.ended.any():
            assert row.reward.tolist() == [x["pays"] for x in told(envs)]
            seen += envs.tasks().tolist()
    assert seen == [0, 1, 2, 0, 1, 2]
    envs.close()


@pytest.mark.parametrize("stride", [0, 2])
def test_a_restored_environment_has_its_task(stride):
    assert_resumes(lambda: of("task_envs:Paying", stride=stride), 7, 9)


def test_seeds_of_tasks():
    training, held_out = Tasks(seed=1, count=50), Tasks(seed=1, count=50, held_out=True)
    other = Tasks(seed=2, count=50)
    seeds = [tasks.seed_of(i) for tasks in (training, held_out, other) for i in range(50)]
    assert len(set(seeds)) == 150
    assert training.part(4).number(1, 9) == 5


LAYOUTS = [
    # learners, environments each, tasks per learner -> tasks of all environments
    (2, 3, None, [0, 1, 2, 3, 4, 5]),
    (3, 2, 1, [0, 0, 1, 1, 2, 2]),
    (2, 4, 2, [0, 0, 1, 1, 2, 2, 3, 3]),
]


@pytest.mark.parametrize(("learners", "envs", "per_learner", "expected"), LAYOUTS)
def test_layouts(learners, envs, per_learner, expected):
    config = make_config(
        "RandomExtremeAcrobot-v1",
        {
            "num_learners": learners,
            "num_envs": envs,
            "algorithm.num_minibatches": 1,
            "env.tasks_per_learner": per_learner,
            "evaluation.held_out_tasks": 5,
        },
    )
    spec = read_spec(config.env_id, config.env)
    found = [
        training_tasks(config, spec, rank).number(env, episode)
        for rank in range(learners)
        for env in range(envs)
        for episode in (0,)
    ]
    assert found == expected
    second = training_tasks(config, spec, learners - 1, first_env=1)  # a group's first is env 1
    assert second.number(0, 3) == expected[(learners - 1) * envs + 1]
    training, held_out = build_trials(config, spec, episodes=7, seed=1, num_threads=1)
    tasks = max(expected) + 1
    assert training.episodes == -(-7 // tasks) * tasks
    assert held_out.episodes == 10
    trained = {training_tasks(config, spec).seed_of(task) for task in expected}
    for trial, count in ((training, tasks), (held_out, 5)):
        made = trial.make_envs(3)
        made.start(np.array([0, 0, 0]))
        assert made.tasks().tolist() == [i % count for i in range(3)]
        links = [tuple(x.values()) for x in told(made)]
        made.close()
        again = make_vec_env(
            config.env_id, num_envs=3, seed=9, settings=config.env,
            tasks=training_tasks(config, spec) if count == tasks else Tasks(1, 5, held_out=True),
        )  # fmt: skip
        if per_learner is None or count != tasks:
            again.start(np.array([0, 0, 0]))
            assert [tuple(x.values()) for x in told(again)] == links
        again.close()
    assert not trained & {Tasks(1, 5, held_out=True).seed_of(i) for i in range(5)}


def test_a_task_seed_keeps_tasks_when_the_seed_changes():
    spec = read_spec("RandomExtremeAcrobot-v1", EnvConfig())

    def seed_of(**settings):
        return training_tasks(make_config("RandomExtremeAcrobot-v1", settings), spec).seed_of(0)

    assert seed_of(seed=1) != seed_of(seed=2)
    kept = {"env.task_seed": 1}
    assert seed_of(seed=2, **kept) == seed_of(seed=1) == seed_of(seed=1, **kept)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "RandomNormalAcrobot-v1"])
def test_settings_of_families_are_refused_elsewhere(env_id):
    for settings in (EnvConfig(tasks_per_learner=1), EnvConfig(task_seed=1)):
        with pytest.raises(
            ConfigError, match=r"does not apply .* no family of tasks; leave it out"
        ):
            read_spec(env_id, settings)
