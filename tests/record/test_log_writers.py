"""TensorBoard and W&B: what is written, and one clear line when the package is missing."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from gossamer.errors import ConfigError
from gossamer.record.tensorboard import TensorboardWriter
from gossamer.record.wandb_log import WandbLog

if TYPE_CHECKING:
    from pathlib import Path


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorboardWriter(tmp_path)
    writer.write({"env_steps": 10, "learner/loss": 0.5, "learner/grad_norm": float("nan")}, 10)
    writer.write({"env_steps": 20, "learner/loss": 0.25}, 20)
    writer.close()
    resumed = TensorboardWriter(tmp_path, resumed_at=10)
    resumed.write({"learner/loss": 0.75}, 20)
    resumed.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"env_steps", "learner/loss"}
    loss = [(event.step, event.value) for event in events.Scalars("learner/loss")]
    assert loss == [(10, 0.5), (20, 0.75)]


def test_tensorboard_tells_an_evaluation_once_and_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"optimizer.learning_rate": [1e-3], "seed": 1, "env_id": "Pong", "wandb": False}
    writer = TensorboardWriter(tmp_path, settings=settings)
    told = {"evaluation_mean": 500.0, "evaluation_best": 500.0}
    for at, evaluated in ((10, None), (20, 12), (30, 12), (40, 33), (50, 33)):
        row: dict[str, float] = {"return_mean_100": float(at)}
        if evaluated is not None:
            row |= {**told, "evaluation_env_steps": evaluated}
        if at == 40:
            row["evaluation_candidate"] = 600.0
        if at == 50:
            row["evaluation_best"] = 400.0
        writer.write(row, at)
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    means = [(event.step, event.value) for event in events.Scalars("evaluation_mean")]
    assert means == [(12, 500.0), (33, 500.0)]
    best = [(event.step, event.value) for event in events.Scalars("evaluation_best")]
    assert best == [(12, 500.0), (33, 500.0), (33, 400.0)], "in episodes that confirmed it"
    assert events.Scalars("hparam/evaluation_best")[-1].value == 400.0
    assert "hparam/evaluation_candidate" not in events.Tags()["scalars"], "it was refused"
    assert len(events.Scalars("return_mean_100")) == 5
    assert "evaluation_env_steps" not in events.Tags()["scalars"]
    assert events.Scalars("hparam/return_mean_100")[-1].value == 50.0
    data = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"optimizer.learning_rate" in data


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ConfigError, match=rf"pip install .*\[{name}\]") as caught:
        TensorboardWriter(tmp_path) if name == "tensorboard" else WandbLog(tmp_path, {})
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class FakeWandb(ModuleType):
    """Keeps what it is given; the package itself wants an account."""

    class Error(Exception):
        """As the package's own."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.settings: list[dict[str, Any]] = []
        self.rows: list[tuple[dict[str, Any], int]] = []
        self.finished = 0

    def init(self, **settings: Any) -> FakeWandb:
        self.settings.append(settings)
        return self

    def log(self, row: dict[str, Any], *, step: int) -> None:
        self.rows.append((row, step))

    def finish(self) -> None:
        self.finished += 1


def test_wandb_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        log = WandbLog(tmp_path, {"seed": 1})
        log.write({"env_steps": 5, "learner/loss": float("inf")}, 5)
        log.close()
    assert fake.rows == [({"env_steps": 5}, 5)] * 2
    assert fake.finished == 2
    assert fake.settings[0]["id"] == fake.settings[1]["id"]
    assert fake.settings[0]["resume"] == "allow"
    assert json.loads((tmp_path / "wandb.json").read_text())["id"] == fake.settings[0]["id"]


def test_wandb_takes_the_project_of_its_own_variable_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    for folder, project in (("a", ""), ("b", "robots"), ("b", "")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setenv("WANDB_PROJECT", project)
        WandbLog(tmp_path / folder, {}).close()
    assert [x["project"] for x in fake.settings] == ["gossamer", "robots", "robots"]
    (tmp_path / "a" / "wandb.json").write_text('{"id": "abc"}')  # of an earlier version
    monkeypatch.setenv("WANDB_PROJECT", "robots")
    WandbLog(tmp_path / "a", {}).close()
    assert (fake.settings[-1]["id"], fake.settings[-1]["project"]) == ("abc", "gossamer")


@pytest.mark.parametrize("kind", [FakeWandb.Error, ValueError])
def test_what_wandb_refuses_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """What its own variables say, as WANDB_MODE, it refuses by an error of another package's."""
    fake = FakeWandb()

    def refuse(**_: Any) -> None:
        raise kind("api_key not configured (no-tty).\n call wandb.login")

    monkeypatch.setattr(fake, "init", refuse)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(
        ConfigError, match=r"--wandb: api_key not .*wandb\.login; type: wandb login"
    ):
        WandbLog(tmp_path, {})
