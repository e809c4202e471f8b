"""Every observation is compared with what its space declares, not only the first ones."""

import cases_envs
import numpy as np
import pytest
from rolling import Rolling, random_actions

from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import RunFailed

SAYS = {
    "scalar": r"it has shape \(1,\), declared is \(4,\)",
    "number": r"it has shape \(\), declared is \(4,\)",
    "words": r"it is <U1, declared is float32",
    "floats": r"it is float64, declared is uint8",
    "large": r"it holds numbers from 300 to 300, declared is uint8",
    "summed": r"it holds numbers from 300 to 300, declared is uint8",
    "upright": r"it has shape \(4, 40, 40\), declared is \(40, 40, 4\)",
    "turned": r"it has shape \(40, 40, 4\), declared is \(4, 40, 40\)",
    "symbols": r"it is float64, declared is uint8",
    "half": r"it is float64, declared is int64",
    "halves": r"it is float64, declared is int64",
    "bits": r"it has shape \(2,\), declared is \(3,\)",
}


def make(name, workers=None):
    return make_vec_env(
        f"cases_envs:{name}",
        num_envs=2,
        seed=1,
        first_env=4,
        settings=EnvConfig(workers=workers),
    )


@pytest.mark.parametrize("name", SAYS)
def test_a_later_misfit_ends_the_run_in_one_line(name):
    assert read_spec(f"cases_envs:{name}", EnvConfig(), tries=True).env_id, "the first ones fit"
    envs = make(name)
    rolling, actions = Rolling(envs).start(), random_actions(envs, 3)
    for action in actions[:2]:
        rolling.step(action)
    with pytest.raises(RunFailed, match=SAYS[name]) as caught:
        rolling.step(actions[2])
    told = str(caught.value)
    assert told.startswith("environment 4 failed in episode 0: its step returned an observation")
    assert "\n" not in told
    envs.close()


def test_workers_tell_it_too():
    envs = make("floats", workers=2)
    rolling, actions = Rolling(envs).start(), random_actions(envs, 3)
    for action in actions[:2]:
        rolling.step(action)
    with pytest.raises(RunFailed, match="it is float64, declared is uint8"):
        rolling.step(actions[2])
    envs.close()


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("wider", 1),
        ("whole", [1, 2, 3, 4]),
        ("int_pixels", 255),
        ("flags", 1),
        ("column", 1),
        ("row", 1),
    ],
)
def test_what_loses_nothing_is_taken(name, sees):
    envs = make(name)
    rolling = Rolling(envs).start()
    for action in random_actions(envs, 3):
        rolling.step(action)
    assert (rolling.obs == np.asarray(sees)).all()
    envs.close()
    assert cases_envs.PICTURE.dtype == np.uint8
