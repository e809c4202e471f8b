"""What `gossamer tune` tries: each change on top of those that were kept, and against the fastest so far."""

from __future__ import annotations

import signal
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import TrainConfig, make_config
from gossamer.config.cores import MACHINE, row_for
from gossamer.errors import RunFailed
from gossamer.record.tuned import tuned_entries, write_tuned
from gossamer.run.stopping import hand_over
from gossamer.tools import tune
from gossamer.tools.prediction import Rates, predicted


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that may decide, of which nothing is known."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(MACHINE, raising=False)


def test_a_change_is_tried_with_those_kept_and_has_to_beat_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    tried: list[dict[str, Any]] = []

    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        tried.append(dict(changes))
        if "num_envs" in changes:
            return 1200.0  # faster than the defaults, and slower than what is kept by then
        return 1500.0 if "env_groups" in changes else 1000.0

    monkeypatch.setattr(tune, "measured_rate", rate)
    target = tmp_path / "t.toml"
    tune.main("CartPole-v1", seconds=100.0, output=str(target))
    assert set(tomllib.loads(target.read_text())) == {"env_groups"}
    first, second, *others = tried
    assert (first, set(second)) == ({}, {"env_groups"})
    assert any("num_envs" in changes for changes in others)
    assert all(changes["env_groups"] == second["env_groups"] for changes in others)
    (entry,) = tuned_entries()
    assert entry["steps_per_second"] == {"default": 1000.0, "tuned": 1500.0}


def test_the_rate_that_is_kept_is_that_of_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    """More environments change what is learnt: they are in the preset, and not in the machine's notes."""
    fast = {"env_groups": 1.5, "num_envs": 3.0}
    monkeypatch.setattr(
        tune,
        "measured_rate",
        lambda _, changes, __: 1000.0 * max([1.0, *(fast.get(name, 1.0) for name in changes)]),
    )
    tune.main("CartPole-v1", seconds=100.0, output=str(tmp_path / "t.toml"))
    assert tomllib.loads((tmp_path / "t.toml").read_text()).keys() == {"env_groups", "num_envs"}
    (entry,) = tuned_entries()
    assert entry["settings"].keys() == {"env_groups"}
    assert entry["steps_per_second"] == {"default": 1000.0, "tuned": 1500.0}


def test_a_change_with_which_training_fails_leaves_the_others_to_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None, capsys: Any
) -> None:
    """What was found before it is kept, and written."""

    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        if changes.get("num_envs", 0) > 8:
            raise RunFailed("an actor process was killed, as by a system short of memory")
        return 1000.0 + 500.0 * len(changes)

    monkeypatch.setattr(tune, "measured_rate", rate)
    target = tmp_path / "t.toml"
    tune.main("CartPole-v1", seconds=100.0, output=str(target))
    assert "num_envs = 16: an actor process was killed" in capsys.readouterr().out
    written = tomllib.loads(target.read_text())
    assert written["num_envs"] == 4
    assert "env_groups" in written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_though_the_run_that_it_stops_fails(
    number: int, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    """As one that cannot save does; no other change is tried then, and no folder is left."""
    folders: list[Path] = []

    def train(config: TrainConfig, **_: Any) -> None:
        folders.append(Path(config.run_folder).parent)
        hand_over(number, failed=True)
        raise RunFailed("cannot write checkpoint")

    before = signal.getsignal(number)
    monkeypatch.setattr(tune, "train", train)
    with pytest.raises(KeyboardInterrupt):
        tune.measured_rate(make_config("CartPole-v1"), {}, 1.0)
    assert signal.getsignal(number) == before
    assert not folders[0].exists()


def test_ctrl_c_keeps_what_was_found_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        if "micro_batch_rows" in changes:
            raise KeyboardInterrupt
        return 1500.0 if "env_groups" in changes else 1000.0

    monkeypatch.setattr(tune, "measured_rate", rate)
    target = tmp_path / "t.toml"
    with pytest.raises(KeyboardInterrupt):
        tune.main("CartPole-v1", seconds=100.0, output=str(target))
    assert tomllib.loads(target.read_text()).keys() == {"env_groups"}
    (entry,) = tuned_entries()
    assert entry["settings"].keys() == {"env_groups"}


@pytest.mark.parametrize("ended", [KeyboardInterrupt, RunFailed])
def test_a_look_that_has_compared_nothing_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None, ended: type[BaseException]
) -> None:
    entry = {"env_id": "CartPole-v1", "algorithm": "ppo", "settings": {"env_groups": 2}}
    write_tuned(entry, {})

    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        if changes:
            raise ended
        return 1000.0

    monkeypatch.setattr(tune, "measured_rate", rate)
    with suppress(KeyboardInterrupt):
        tune.main("CartPole-v1", seconds=100.0, output=str(tmp_path / "t.toml"))
    assert tuned_entries() == [entry]


def test_what_was_found_is_told_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    target = tmp_path / "t.toml"

    def rate(_: Any, changes: dict[str, Any], __: float) -> float:
        (tmp_path / "t.toml.partial").mkdir(exist_ok=True)  # in the way of what is written
        return 1500.0 if "env_groups" in changes else 1000.0

    monkeypatch.setattr(tune, "measured_rate", rate)
    with pytest.raises(
        RunFailed, match=r"t\.toml cannot be written: .*; it would hold env_groups = "
    ):
        tune.main("CartPole-v1", seconds=100.0, output=str(target))


@pytest.mark.parametrize(("groups", "wanted"), [(1, 450.0), (2, 900.0)])
def test_groups_let_inference_and_steps_overlap(groups: int, wanted: float) -> None:
    """One thread infers 1,000 steps a second, another one steps as many: in turn, or at once."""
    rates = Rates(stepping=1000.0, inference=1000.0, learning=1e9, kept=1.0, cores=4)
    row = replace(row_for(4), cores=4, actor_threads=1, env_threads=1, env_groups=groups)
    assert predicted(rates, row, 1) == pytest.approx(wanted, rel=1e-3)
