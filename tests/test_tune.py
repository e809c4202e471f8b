"""`gossamer tune`: what beats the defaults becomes a preset and is kept for the machine; nothing does, and none is written."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from gossamer.config import layers as layers_module
from gossamer.config import resolve
from gossamer.config.cores import MACHINE, row_for
from gossamer.errors import ConfigError
from gossamer.record.tuned import tuned_entries
from gossamer.tools import tune
from gossamer.tools.prediction import Rates, predicted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that may decide, of which nothing is known."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(MACHINE)


def tuned(
    monkeypatch: pytest.MonkeyPatch, target: Path, rates: dict[str, float], capsys: Any
) -> str:
    def rate(_: Any, changes: dict[str, Any], seconds: float) -> float:
        assert seconds > 0
        return 1000.0 * max((rates.get(name, 1.0) for name in changes), default=1.0)

    monkeypatch.setattr(tune, "measured_rate", rate)
    tune.main("CartPole-v1", seconds=100.0, output=str(target))
    return capsys.readouterr().out


def test_what_is_faster_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    target = tmp_path / "tuned.toml"
    text = tuned(monkeypatch, target, {"num_envs": 2.0}, capsys)
    assert tomllib.loads(target.read_text()) == {"num_envs": 16}
    assert f"wrote {target}; use it: gossamer train CartPole-v1 --config {target}" in text
    assert resolve({"env_id": "CartPole-v1"}, configs=[str(target)])[0].num_envs == 16


def test_where_nothing_is_faster_no_preset_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    target = tmp_path / "tuned.toml"
    text = tuned(monkeypatch, target, {"num_envs": 1.02, "env_threads": 2.0}, capsys)
    assert text.endswith("nothing that was tried is faster than the defaults; no preset written\n")
    assert not target.exists()
    assert "env_threads" not in text, "which changes nothing of a simulator in Python"


def test_later_runs_find_what_was_kept_for_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, machine: None
) -> None:
    before, _ = resolve({"env_id": "CartPole-v1"})
    text = tuned(monkeypatch, tmp_path / "t.toml", {"env_groups": 1.5, "num_envs": 1.2}, capsys)
    assert "env_groups; runs of CartPole-v1 use them where no setting says otherwise" in text
    (entry,) = tuned_entries()
    assert entry["settings"] == {"env_groups": 2}, "more environments change what is learnt"
    assert entry["steps_per_second"] == {"default": 1000.0, "tuned": 1500.0}
    found, origin = resolve({"env_id": "CartPole-v1"})
    assert (found.env_groups, origin["env_groups"]) == (2, "tuned on this machine")
    assert found.num_envs == before.num_envs
    # A second look begins with the defaults, and replaces the first.
    tuned(monkeypatch, tmp_path / "u.toml", {}, capsys)
    assert [x["settings"] for x in tuned_entries()] == [{}]
    assert resolve({"env_id": "CartPole-v1"})[0] == before


@pytest.mark.parametrize(
    ("worth", "learners"), [({4: 1.2, 1: 0.9}, 2), ({4: 1.4, 1: 0.9}, 4), ({4: 1.2, 1: 0.97}, 1)]
)
def test_more_learners_have_to_be_much_faster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    machine: None,
    worth: dict[int, float],
    learners: int,
) -> None:
    for module in (tune, layers_module):
        monkeypatch.setattr(module, "num_cores", lambda: 4)
    monkeypatch.setattr(layers_module, "visible_gpus", list)
    monkeypatch.setattr(tune, "core_rates", lambda *_, **__: RATES)
    monkeypatch.setattr(tune, "measured_rate", lambda _, x, __: worth.get(x.get("num_learners"), 1))
    pong = "PongNoFrameskip-v4"
    tune.main(pong, seconds=200.0, output=str(tmp_path / "tuned.toml"))
    assert resolve({"env_id": pong})[0].num_learners == learners
    told = capsys.readouterr().out
    assert "predicted, not measured: " in told
    if learners != 2:
        preset = resolve({"env_id": pong}, configs=[str(tmp_path / "tuned.toml")])[0]
        assert preset == resolve({"env_id": pong})[0]


def test_a_number_of_learners_is_compared_with_the_one_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    """On 8 cores, of which 4 learners are the default; what is tried after them fits the one that is kept."""
    for module in (tune, layers_module):
        monkeypatch.setattr(module, "num_cores", lambda: 8)
    monkeypatch.setattr(layers_module, "visible_gpus", list)
    monkeypatch.setattr(tune, "core_rates", lambda *_, **__: RATES)
    tried: list[dict[str, Any]] = []

    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        tried.append(changes)
        return {1: 1.5, 2: 1.49}.get(changes.get("num_learners", 4), 1.0)

    monkeypatch.setattr(tune, "measured_rate", rate)
    target = tmp_path / "tuned.toml"
    tune.main("PongNoFrameskip-v4", seconds=400.0, output=str(target))
    kept = tomllib.loads(target.read_text())
    assert kept["num_learners"] == 1
    assert {x["num_envs"] for x in tried if x.get("num_learners") == 1} == {16, 32, 8}
    threads = row_for(8).learner_threads
    assert {x["learner_threads"] for x in tried if "learner_threads" in x} == {4, 8} - {threads}


def test_what_was_measured_with_several_learners_is_kept_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    for module in (tune, layers_module):
        monkeypatch.setattr(module, "num_cores", lambda: 4)
    monkeypatch.setattr(layers_module, "visible_gpus", list)
    monkeypatch.setattr(tune, "core_rates", lambda *_, **__: RATES)

    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        return 2.0 if "env_groups" in changes else 0.9 if "num_learners" in changes else 1.0

    monkeypatch.setattr(tune, "measured_rate", rate)
    pong, target = {"env_id": "PongNoFrameskip-v4"}, tmp_path / "tuned.toml"
    before = resolve(pong)[0]
    tune.main(pong["env_id"], seconds=200.0, output=str(target))
    later, preset = resolve(pong)[0], resolve(pong, configs=[str(target)])[0]
    assert (later.num_learners, later.env_groups) == (before.num_learners, 2) == (2, 2)
    assert preset == later


def test_it_ends_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, machine: None
) -> None:
    seconds, text = 16.0, "cannot be measured"
    while "cannot be measured" in text and seconds < 100.0:  # it says to give it longer
        tune.main("CartPole-v1", seconds=seconds, output=str(tmp_path / "tuned.toml"))
        seconds, text = 2 * seconds, capsys.readouterr().out
    assert "steps/s with the defaults" in text
    assert "no time is left for another trial" in text


def test_too_short_a_time_is_told(tmp_path: Path, capsys: Any, machine: None) -> None:
    tune.main("CartPole-v1", seconds=1.0, output=str(tmp_path / "tuned.toml"))
    told = "the defaults cannot be measured in 1 s; give it longer: --seconds 2\n"
    assert capsys.readouterr().out.endswith(told)
    assert not tuned_entries()


RATES = Rates(stepping=2500.0, inference=15000.0, learning=4000.0, kept=0.8, cores=16)


def test_a_prediction_is_below_what_all_cores_could_do() -> None:
    for cores in (1, 2, 4, 8, 16, 32, 64):
        limit = cores / (1 / 2500 + 1 / 15000 + 1 / 4000)
        for learners in (1, 2, cores // 2, cores):
            if 1 <= learners <= cores:
                share = row_for(cores // learners)
                assert 0 < predicted(RATES, share, learners) <= limit + 1e-9


def test_predictions_know_contention_passes_and_who_waits() -> None:
    two = row_for(2)
    assert predicted(RATES, two, 1, passes=3) < predicted(RATES, two, 1)
    free = Rates(2500.0, 15000.0, 4000.0, 1.0, 16)
    assert predicted(free, two, 8) == pytest.approx(8 * 0.97 * predicted(free, two, 1))
    assert predicted(RATES, two, 8) < 0.85 * predicted(free, two, 8)
    assert RATES.beside(1) == 1.0
    assert RATES.beside(16) == pytest.approx(0.8)
    assert RATES.beside(10_000) == 0.3
    assert Rates(1.0, 1.0, 1.0, 0.5, 1).beside(8) == 1.0, "one core tells nothing of others"


def test_a_change_that_is_refused_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def rate(_: Any, changes: dict[str, Any], seconds: float) -> float:
        if changes.get("num_envs", 0) > 8:
            raise ConfigError("there is memory for 8 environments")
        return 1500.0 if "num_envs" in changes else 1000.0

    monkeypatch.setattr(tune, "measured_rate", rate)
    tune.main("CartPole-v1", seconds=100.0, output=str(tmp_path / "t.toml"))
    assert "num_envs = 16: there is memory for 8 environments" in capsys.readouterr().out
    assert tomllib.loads((tmp_path / "t.toml").read_text()) == {"num_envs": 4}
