"""What a sweep's file may say, and the one line about what it may not; nothing is made before."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_runs

from gossamer import cli
from gossamer.errors import ConfigError
from gossamer.sweep.file import read_sweep
from gossamer.sweep.space import Choices, Range, grid_choice, grid_size, random_choice, read_space

GOOD = """
method = "random"
trials = 3
[settings]
env_id = "CartPole-v1"
[search]
optimizer.learning_rate = { min = 1e-4, max = 1e-2, log = true }
"algorithm.passes" = [2, 4]
"""


def write(folder: Path, text: str, name: str = "lr.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_says_what_is_tried(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path, GOOD))
    assert (sweep.options.method, sweep.trials, sweep.options.seeds) == ("random", 3, 1)
    assert sweep.space == {
        "optimizer.learning_rate": Range(1e-4, 1e-2, log=True),
        "algorithm.passes": Choices((2, 4)),
    }
    text, config = sweep.preset({"optimizer.learning_rate": 0.002, "algorithm.passes": 4})
    assert (config.optimizer.learning_rate, config.algorithm.passes) == ((0.002,), 4)
    assert "env_id" in text


TOGETHER = """
method = "METHOD"
trials = 6
[settings]
env_id = "CartPole-v1"
[search]
algorithm = ALGORITHMS
lag = LAGS
"""


@pytest.mark.parametrize("algorithms", [["vtrace", "a2c"], ["a2c", "vtrace"]])
@pytest.mark.parametrize("lags", [["0", "1"], ["1", "0"]])
def test_values_of_a_random_search_need_not_go_with_the_first_of_all_others(
    tmp_path: Path, algorithms: list[str], lags: list[str]
) -> None:
    """A2C bears no lag: such trials are skipped once they are drawn."""
    text = TOGETHER.replace("ALGORITHMS", json.dumps(algorithms)).replace("LAGS", json.dumps(lags))
    sweep = read_sweep(write(tmp_path, text.replace("METHOD", "random")))
    sweep.preset(sweep.first_choice())
    with pytest.raises(ConfigError, match="lag"):
        sweep.preset({"algorithm": "a2c", "lag": "1"})
    with pytest.raises(ConfigError, match="lag"):
        read_sweep(write(tmp_path, text.replace("METHOD", "grid").replace("trials = 6", "")))
    text = text.replace("METHOD", "random").replace('"a2c"', '"a3x"')
    with pytest.raises(ConfigError, match='algorithm = "a3x"'):
        read_sweep(write(tmp_path, text))


def test_a_policys_run_is_named_so_that_all_trials_mean_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = made_runs(tmp_path / "runs", 1, 4)
    named = GOOD.replace("[search]", 'init_from = "SOURCE"\n[search]')
    with pytest.raises(ConfigError, match="init_from last may mean another run"):
        read_sweep(write(tmp_path, named.replace("SOURCE", "last")))
    assert read_sweep(write(tmp_path, named.replace("SOURCE", str(source)))).trials == 3


def test_presets_lie_below_settings(tmp_path: Path) -> None:
    text = 'config = "debug"\n' + GOOD.replace("[search]", "num_envs = 6\n[search]")
    config = read_sweep(write(tmp_path, text)).preset({"algorithm.passes": 2})[1]
    assert (config.num_envs, config.unroll_length) == (6, 8)  # ours; the preset's


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


LIST = """
method = "list"
[settings]
env_id = "CartPole-v1"
num_envs = 8
[[experiments]]
algorithm.passes = 4
[[experiments]]
"algorithm.passes" = 8
[experiments.optimizer]
learning_rate = 1e-3
"""


def test_a_list_is_tried_in_turn(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path, LIST))
    assert sweep.trials == 2
    assert sweep.choice(1) == {"algorithm.passes": 8, "optimizer.learning_rate": 1e-3}
    assert list(sweep.space) == ["algorithm.passes", "optimizer.learning_rate"]
    one, two = (sweep.preset(sweep.choice(i))[1] for i in range(2))
    assert (one.num_envs, one.algorithm.passes, two.algorithm.passes) == (8, 4, 8)
    assert two.optimizer.learning_rate == (1e-3,)
    assert sweep.allows(1, sweep.choice(1))
    assert not sweep.allows(0, sweep.choice(1))


def test_experiments_of_a_list_may_have_seeds_and_environments_of_their_own(tmp_path: Path) -> None:
    own = LIST.replace("passes = 4", 'passes = 4\nseed = 7\nenv_id = "Acrobot-v1"')
    sweep = read_sweep(write(tmp_path, own))
    one, two = (sweep.preset(sweep.choice(i))[1] for i in range(2))
    assert (one.env_id, one.seed) == ("Acrobot-v1", 7)
    assert (two.env_id, two.seed) == ("CartPole-v1", 1)


BAD = {
    "unknown key": ("sedes = 3\n" + GOOD, "sedes is not known in a sweep's file; did you mean seeds?"),
    "a setting outside": ("num_envs = 3\n" + GOOD, "num_envs is a setting of training; put it into [settings]"),
    "unknown method": (changed('"random"', '"rand"'), "method is \"rand\"; it must be one of grid, random, tpe, list"),
    "no trials": (changed("trials = 3", ""), "trials is missing"),
    "trials of a wrong kind": (changed("trials = 3", 'trials = "x"'), "trials is \"x\"; it must be"),
    "seeds": ("seeds = 0\n" + GOOD, "seeds is 0; it must be in [1, 1000]"),
    "no environment": (changed('env_id = "CartPole-v1"', ""), "no environment given; add env_id"),
    "nothing to search": (GOOD.split("[search]")[0], "[search] is empty"),
    "empty list": (changed("[2, 4]", "[]"), "search.algorithm.passes is an empty list"),
    "empty range": (changed("min = 1e-4", "min = 0.1"), "is empty: min 0.1 is more than max 0.01"),
    "no maximum": (changed("max = 1e-2, ", ""), "has no max"),
    "unknown key in a range": (changed("log = true", "lg = true"), "lg is not known in a range; did you mean log?"),
    "logarithm of zero": (changed("min = 1e-4", "min = 0"), "a logarithmic range begins above 0"),
    "a setting twice": (
        changed("[2, 4]", "[2, 4]\noptimizer.learning-rate = [0.1]"),
        "search.optimizer.learning_rate is given twice; leave one of them out",
    ),
    "twice": (changed("[2, 4]", "[2, 2]"), "has 2 twice"),
    "single value": (changed("[2, 4]", "2"), "is 2, a single value"),
    "unknown setting": (changed("learning_rate", "learning_rat"), "did you mean optimizer.learning_rate?"),
    "refused value": (changed("[2, 4]", "[2, 0]"), "search.algorithm.passes = 0: algorithm.passes is 0; it must be >= 1"),
    "refused end of a range": (
        changed("max = 1e-2", "max = 1e6"),
        "search.optimizer.learning_rate = 1000000.0",
    ),
    "range of words": (
        changed("[2, 4]", "[2, 4]\noptimizer.name = {min = 1, max = 2}"),
        "is a range, but optimizer.name takes no numbers",
    ),
    "fractions of a whole number": (changed("[2, 4]", "{min = 1.5, max = 3}"), "takes whole numbers alone"),
    "refused setting": (
        changed("[search]", "num_envs = -1\n[search]"),
        "lr.toml: num_envs is -1; it must be",
    ),
    "setting of a value": (
        changed("[search]", 'seed = 1\n"seed.x" = 2\n[search]'),
        "lr.toml: seed.x goes into seed, which holds a plain value",
    ),
    "unknown preset": ('config = "nosuch"\n' + GOOD, "lr.toml: --config nosuch: no such preset"),
    "seed": (changed("[2, 4]", "[2, 4]\nseed = [1, 2]"), "seed is set by the sweep for each of its runs; say seeds = N"),
    "run folder": (changed("[search]", 'run_folder = "x"\n[search]'), "run_folder is set by the sweep"),
    "environments": (changed("[2, 4]", '[2, 4]\nenv_id = ["a", "b"]'), "cannot be compared"),
    "unknown objective": ('objective = "retrun"\n' + GOOD, "objective is \"retrun\"; it must be one of return,"),
    "three objectives": ('objective = ["return", "area", "evaluation"]\n' + GOOD, "it must be one objective, or two"),
    "score without use": ("score = 3\n" + GOOD, "score is 3, but nothing waits for it"),
    "no score": ('objective = "seconds_to_score"\n' + GOOD, "needs a score to reach: score = 475"),
    "pruner of two": ('pruner = "median"\nobjective = ["return", "area"]\n' + GOOD, "compares trials by one objective"),
    "pruner without evaluations": (
        'pruner = "median"\n' + changed("[search]", "evaluation.every_seconds = 0\n[search]"),
        "needs evaluations, but evaluation.every_seconds is 0",
    ),
    "grid of a range": (changed('"random"\ntrials = 3', '"grid"'), "is a range, and a grid needs single values"),
    "trials of a grid": (
        changed('"random"', '"grid"').replace("log = true", "log = true, num = 3"),
        "trials is 3, but the grid has 6 combinations",
    ),
    "values that do not fit together": (
        'method = "grid"\n[settings]\nenv_id = "CartPole-v1"\npolicy.core = "lstm"\n[search]\n'
        "num_envs = [4, 8]\nalgorithm.num_minibatches = [4, 8]\n",
        "algorithm.num_minibatches is 8",
    ),
    "no TOML": ("method = ", "not valid TOML"),
    "a list of nothing": (changed('"random"', '"list"'), 'method = "list" tries [[experiments]]'),
    "experiments of a search": (GOOD + "[[experiments]]\n", "and no other method has them"),
    "a list beside a search": (LIST + "[search]\nseed = [1]\n", "a list of experiments searches nothing"),
    "no table": ('method = "list"\nexperiments = [1]\n', "experiments holds 1; each must be a table"),
    "experiments are no list": ('method = "list"\nexperiments = 1\n', 'method = "list" tries [[experiments]]'),
    "trials of a list": ("trials = 3\n" + LIST, "trials is 3, but there are 2 experiments"),
    "a folder of a list": (LIST.replace("passes = 4", 'passes = 4\nrun_folder = "x"'), "run_folder is set by the sweep"),
    "a mistake in a list": (LIST.replace("passes = 4", "passes = -1"), "experiment 1: algorithm.passes is -1"),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the line with which `gossamer sweep` refuses what is typed beside one file; nothing is made."""
    assert cli.main(["sweep", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gossamer: ")
    assert err.count("\n") == 1
    assert [x.name for x in Path().iterdir()] == ["lr.toml"]
    return err


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, told = BAD[name]
    write(here, text)
    line = refused(capsys, "lr.toml")
    assert "lr.toml: " in line
    assert told in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.toml"], "there is no such file"),
        (["none.yaml"], "it ends in .toml\n"),
        ([""], "it ends in .toml\n"),
        (["none.json"], "type: python scripts/from_elite_platform.py none.json --output none.toml"),
        (["lr.toml", "--jobs", "0"], "--jobs"),
        (["lr.toml", "--placement", "moon"], "--placement"),
        (["lr.toml", "--job", "2"], "did you mean --jobs?"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, GOOD)
    assert told in refused(capsys, *words)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.sweep.file.find_spec", lambda _: None)
    read_sweep(write(tmp_path, GOOD))
    with pytest.raises(ConfigError, match=r"method tpe needs Optuna.*\[sweep\]"):
        read_sweep(write(tmp_path, changed('"random"', '"tpe"')))


@st.composite
def domains(draw: st.DrawFn) -> Choices | Range:
    if draw(st.booleans()):
        return Choices(tuple(draw(st.lists(st.integers(), min_size=1, max_size=5, unique=True))))
    whole, log = draw(st.booleans()), draw(st.booleans())
    if whole:
        low = draw(st.integers(1 if log else -50, 50))
        high: float = low + draw(st.integers(0, 100))
        step = None if log else draw(st.none() | st.integers(1, 7))
        return Range(low, high, log=log, step=step, whole=True)
    begin = draw(st.floats(1e-6 if log else -100, 100))
    num = draw(st.none() | st.integers(2, 9))
    return Range(begin, begin * 2 if log else begin + draw(st.floats(0.1, 10)), log=log, num=num)


@given(domain=domains(), share=st.floats(0, 1, exclude_max=True))
def test_every_value_that_is_drawn_may_be_tried(domain: Choices | Range, share: float) -> None:
    value = domain.at(share)
    assert domain.holds(value)
    if isinstance(domain, Range) and domain.whole:
        assert type(value) is int
    if isinstance(domain, Range) and domain.num is not None:
        assert value in domain.grid()
    if isinstance(domain, Range) and domain.step is not None:
        assert (value - domain.low) % domain.step == 0


@given(st.lists(domains(), min_size=1, max_size=3), st.integers(0, 2**40), st.integers(0, 500))
def test_a_random_trial_depends_on_its_number_alone(
    found: list[Choices | Range], seed: int, number: int
) -> None:
    space = {f"x{i}": x for i, x in enumerate(found)}
    one = random_choice(space, number, seed)
    random_choice(space, number + 1, seed)
    assert random_choice(space, number, seed) == one
    assert set(one) == set(space)


def test_a_whole_range_is_drawn_evenly() -> None:
    counts = dict.fromkeys(range(2, 7), 0)
    for i in range(1000):
        counts[int(Range(2, 6, whole=True).at(i / 1000))] += 1
    assert all(abs(x - 200) <= 1 for x in counts.values())  # rounding at the borders


def test_a_logarithmic_range_has_as_many_of_each_power() -> None:
    drawn = [Range(1e-4, 1e-1, log=True).at((i + 0.5) / 999) for i in range(999)]
    for low in (1e-4, 1e-3, 1e-2):
        assert abs(sum(low <= x < 10 * low for x in drawn) - 333) <= 1


def test_a_grid_has_every_combination_once() -> None:
    space: dict[str, Choices | Range] = {
        "a": Choices(("x", "y")),
        "b": Range(0.0, 1.0, step=0.5),
        "c": Range(1e-3, 1e-1, log=True, num=3),
    }
    assert grid_size(space) == 18
    tried = [tuple(grid_choice(space, i).values()) for i in range(18)]
    assert len(set(tried)) == 18
    assert tried[:4] == [("x", 0.0, 0.001), ("x", 0.0, 0.01), ("x", 0.0, 0.1), ("x", 0.5, 0.001)]


def test_steps_are_as_they_are_written() -> None:
    assert Range(0.1, 0.7, step=0.1).grid() == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    assert all(math.isfinite(x) for x in Range(1, 100, log=True, num=5, whole=True).grid())


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5),
                    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(
                        ["min", "max", "log", "step", "num"]), x, max_size=4), max_leaves=8))  # fmt: skip
def test_whatever_a_search_holds_is_read_or_refused(value: Any) -> None:
    refusal = ""
    try:
        read_space({"optimizer.learning_rate": value})
    except ConfigError as error:
        refusal = str(error)
    assert refusal == "" or refusal.startswith(("search.", "[search] "))
