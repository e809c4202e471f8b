import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from rolling import Rolling, assert_resumes, random_actions

from gossamer.build.evaluation_tasks import build_trials, tasks_in_words, training_tasks
from gossamer.build.plan import make_plan
from gossamer.build.roles import build_env_groups
from gossamer.config import make_config
from gossamer.envs import multitask
from gossamer.envs.making import known_ids
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.seeding import Tasks
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError

multitask.register()


def of(env_id, num_envs=4, workers=None, first_env=0, **tasks):
    given = Tasks(**{"seed": 3, "count": 100, **tasks})
    settings = EnvConfig(workers=workers, family=True)
    return make_vec_env(
        env_id, num_envs=num_envs, seed=7, settings=settings, first_env=first_env, tasks=given
    )


def infos_of(envs):
    return [envs.episode_info(i) for i in range(envs.num_envs)]


def test_threads_that_begin_together_find_every_family(monkeypatch):
    theirs = {x: y for x, y in gymnasium.registry.items() if "multitask" not in str(y.entry_point)}
    register, registered = gymnasium.register, []

    def slowly(name, **given):
        registered.append(name)
        time.sleep(0.001)  # others go on meanwhile
        register(name, **given)

    def seen(_):
        multitask.register()
        return set(theirs)

    monkeypatch.setattr(gymnasium.envs.registration, "registry", theirs)
    monkeypatch.setattr(gymnasium, "registry", theirs)
    monkeypatch.setattr(gymnasium, "register", slowly)
    with ThreadPoolExecutor(3) as threads:
        assert len({len(x) for x in threads.map(seen, range(3))}) == 1
    assert len(registered) == len(set(registered))


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
        env.step(1)
        assert env.episode_info["success"] == 0.0
    env.state = np.array([np.pi, 0.0, 0.0, 0.0])
    _, _, terminated, _, _ = env.step(1)
    assert terminated
    assert env.episode_info["success"] == success


@pytest.mark.parametrize("prefix", multitask.MUJOCO_PREFIXES)
def test_mujoco_tasks(prefix):
    pytest.importorskip("mujoco")
    wind, mass = multitask.MUJOCO_PREFIXES[prefix]
    env = gymnasium.make(f"{prefix}Hopper-v5")
    plain = gymnasium.make("Hopper-v5").unwrapped.model
    model = env.unwrapped.model
    assert (model.opt.viscosity, model.opt.density) == (0.0002, 1.2)
    assert plain.opt.density == 0.0
    swims = gymnasium.make(f"{prefix}Swimmer-v5").unwrapped.model.opt
    assert (swims.viscosity, swims.density) == (0.1, 4000.0), "what it swims in"
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
    for name, seed in (("MuJoCo", None), ("RandomWindMuJoCo", 1), ("RandomWindMuJoCo", 2)):
        env = gymnasium.make(f"{name}HalfCheetah-v5")
        if seed is not None:
            env.get_wrapper_attr("set_task")(seed)
        env.reset(seed=1)
        for _ in range(20):
            obs = env.step(np.zeros(6, np.float32))[0]
        ends.append(obs)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not np.allclose(ends[i], ends[j])


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
    began = infos_of(envs)
    assert began[0] == began[1] != began[2] == began[3]
    for action in random_actions(envs, 12):
        rolling.step(action)
    assert envs.tasks().tolist() == [2, 2, 3, 3]
    assert infos_of(envs) == began
    envs.close()


def test_evaluation_goes_through_all_tasks():
    envs = of("task_envs:Paying", num_envs=2, count=3, stride=2)
    rolling, seen = Rolling(envs).start(), []
    for action in random_actions(envs, 8):
        row = rolling.step(action)
        if row.ended.any():
            assert row.reward.tolist() == [x["pays"] for x in infos_of(envs)]
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
    assert training.number(5, 9) == 5


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
    links = links_of_seeds([Tasks(seed=1, count=100).seed_of(i) for i in range(max(expected) + 1)])
    assert len(set(links)) == max(expected) + 1
    for groups in (1, 2):
        plan = replace(make_plan(config, spec), env_groups=groups)
        tasks, infos = [], []
        for rank in range(learners):
            made, _ = build_env_groups(config, spec, plan, rank=rank)
            assert len(made) == groups
            for group in made:
                tasks += group.tasks().tolist()
                infos += infos_of(group)
                group.close()
        assert tasks == expected
        assert [links_in(info) for info in infos] == [links[task] for task in expected]
    training, held_out = build_trials(config, spec, episodes=7, seed=1, num_threads=1)
    count = max(expected) + 1
    assert training.episodes == -(-7 // count) * count
    assert held_out.episodes == 10
    unseen = links_of_seeds([Tasks(1, 5, held_out=True).seed_of(i) for i in range(5)])
    assert not set(unseen) & set(links)
    for trial, expected_links in ((training, links), (held_out, unseen)):
        made = trial.open()
        num_played = made.num_envs
        made.start(np.zeros(num_played, np.int64))
        found = [links_in(info) for info in infos_of(made)]
        assert found == [expected_links[task] for task in trial.tasks[:num_played]]
        assert set(found) == set(expected_links)
        made.close()


def links_in(info):
    return info["mass"], info["length"], info["inertia"]


def links_of_seeds(seeds):
    env = gymnasium.make("RandomExtremeAcrobot-v1").unwrapped
    found = []
    for seed in seeds:
        env.set_task(seed)
        found.append(links_in(env.episode_info))
    return found


def test_tasks_are_counted_in_words():
    settings = {"num_envs": 4, "env.tasks_per_learner": 1, "evaluation.held_out_tasks": 5}
    one = make_config("RandomExtremeAcrobot-v1", settings)
    spec = read_spec(one.env_id, one.env)
    said = "1 task drawn from seed 1, 5 held out for evaluation"
    assert tasks_in_words(one, spec) == said
    assert tasks_in_words(replace(one, num_learners=3), spec) == said.replace("1 task", "3 tasks")


def test_a_kept_number_of_environments_keeps_the_tasks():
    config = make_config("RandomExtremeAcrobot-v1", {"num_learners": 2, "num_envs": 4})
    spec = read_spec(config.env_id, config.env)
    plan = replace(make_plan(config, spec), num_envs=3, env_groups=1)
    ((envs,), _) = build_env_groups(config, spec, plan, rank=1)
    assert envs.tasks().tolist() == [3, 4, 5]
    envs.close()
    training, _ = build_trials(config, spec, episodes=1, seed=1, num_threads=1, num_envs=3)
    assert training.tasks == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("tasks", "episodes", "played", "expected"),
    [
        (25, 1, 25, 25),  # one of each
        (25, 30, 25, 50),
        (100, 7, 100, 100),
        (1_000, 7, 100, 100),
        (150, 120, 120, 120),  # as many tasks as episodes
        (150, 400, 150, 450),
    ],
)
def test_an_evaluation_has_a_size(tasks, episodes, played, expected):
    settings = {"num_envs": tasks, "evaluation.held_out_tasks": tasks}
    config = make_config("RandomExtremeAcrobot-v1", settings)
    spec = read_spec(config.env_id, config.env)
    trials = build_trials(config, spec, episodes=episodes, seed=1, num_threads=1)
    assert len(trials) == 2
    for trial in trials:
        assert trial.episodes == len(trial.tasks) == expected
        often = Counter(trial.tasks)
        assert len(often) == played
        assert set(often.values()) == {expected // played}
        assert 0 <= min(often) <= max(often) < tasks
        apart = np.diff(sorted(often))
        assert set(apart.tolist()) <= {tasks // played, -(-tasks // played)}


@pytest.mark.parametrize(("episodes", "made"), [(7, 8), (30, 16)])
def test_evaluation_has_workers_for_any_number_of_environments(episodes, made):
    settings = {
        "num_envs": 8,
        "env.workers": 4,
        "env.family": True,
        "evaluation.held_out_tasks": 3,
    }
    config = make_config("task_envs:Paying", settings)
    spec = read_spec(config.env_id, config.env)
    training, held_out = build_trials(config, spec, episodes=episodes, seed=1, num_threads=1)
    for trial, num_envs in ((training, made), (held_out, min(-(-episodes // 3) * 3, 16))):
        envs = trial.open()
        assert envs.num_envs == num_envs
        assert len(envs.processes) == np.gcd(num_envs, 4)
        rolling = Rolling(envs).start()
        paid = []
        for action in random_actions(envs, 5):
            row = rolling.step(action)
            paid += row.reward[row.ended].tolist()
        seeds = [Tasks(1, 8, held_out=trial is held_out).seed_of(i) for i in trial.tasks]
        assert paid[:episodes] == [seed % 1000 for seed in seeds][: len(paid)][:episodes]
        envs.close()


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
            ConfigError, match=r"does not apply .* not a family of tasks; leave it out"
        ):
            read_spec(env_id, settings)
