"""Logs: known names only, strict JSON, whole lines, and the Monitor format."""

from __future__ import annotations

import csv
import json
import resource
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from gossamer.errors import RunFailed
from gossamer.record import metrics as metrics_module
from gossamer.record.metrics import (
    METRICS,
    EpisodeLog,
    JsonLog,
    MetricLog,
    read_rows,
)
from gossamer.record.readers import NEWEST_BYTES, FolderReader, newest_row

if TYPE_CHECKING:
    from pathlib import Path


def test_an_unknown_metric_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "metrics.jsonl")
    for name, hint in (("learner/los", "; did you mean learner/loss?"), ("weight", "")):
        with pytest.raises(RunFailed) as failure:
            log.write({"env_steps": 1, name: 1.0})
        assert (
            str(failure.value) == f"{name} is no metric of gossamer's{hint}; "
            f"names of your own metrics begin with own/, as own/{name}"
        )
    log.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_what_an_environment_tells_of_episodes_is_a_metric(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "metrics.jsonl")
    log.write({"info/arm/success": 0.5})
    log.close()


def test_every_metric_has_a_unit_and_a_meaning() -> None:
    for name, metric in METRICS.items():
        assert metric.unit, name
        assert len(metric.meaning) > 8, name
        assert name.isascii()
        assert name == name.lower()


def test_rows_are_strict_json_at_once(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "metrics.jsonl")
    log.write(
        {
            "learner/loss": float("nan"),
            "learner/grad_norm": torch.tensor(float("inf")),
            "learner/value_mean": torch.tensor(0.5),
            "env_steps": np.int64(7),
            "return_mean_100": np.float32(0.25),
        }
    )
    text = (tmp_path / "metrics.jsonl").read_text()  # not closed yet
    row = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert row == {
        "learner/loss": None,
        "learner/grad_norm": None,
        "learner/value_mean": 0.5,
        "env_steps": 7,
        "return_mean_100": 0.25,
    }
    log.close()


def test_what_is_not_a_number_is_named(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "metrics.jsonl")
    with pytest.raises(TypeError, match="object does not fit into JSON"):
        log.write({"env_steps": object()})
    log.close()


def test_a_resumed_log_isolates_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"env_steps": 1}\n{"env_st')
    assert newest_row(FolderReader(tmp_path)) == {"env_steps": 1}
    log = MetricLog(path)
    log.write({"env_steps": 3})
    log.close()
    assert [row["env_steps"] for row in read_rows(path)] == [1, 3]
    assert newest_row(FolderReader(tmp_path)) == {"env_steps": 3}


def test_a_full_disk_raises_and_the_log_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricLog(path)
    log.write({"env_steps": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            log.write({"env_steps": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.close()
    log = MetricLog(path)
    log.write({"env_steps": 3})
    log.close()
    assert [row["env_steps"] for row in read_rows(path)] == [1, 3]


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    assert list(read_rows(tmp_path / "none")) == []
    assert newest_row(FolderReader(tmp_path / "none")) == {}


def test_the_last_row_of_a_long_file_is_found_in_its_tail(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"i": {i}}}\n' for i in range(20_000)))
    assert path.stat().st_size > 2 * NEWEST_BYTES[0]
    assert newest_row(FolderReader(tmp_path)) == {"i": 19_999}


def test_the_last_row_is_one_that_tells_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"learner": 0, "i": 1}\n{"learner": 1, "i": 2}\n{"learner": 2, "i": 3}\n')
    assert newest_row(FolderReader(tmp_path)) == {"learner": 0, "i": 1}
    with path.open("a") as file:
        file.writelines(f'{{"learner": {i % 500 + 1}, "i": 3}}\n' for i in range(20_000))
    assert newest_row(FolderReader(tmp_path)) == {"learner": 0, "i": 1}, (
        "however many others tell of themselves"
    )
    with path.open("a") as file:  # on a cluster the first may have left
        file.write('{"learner": 1, "episodes": 7, "i": 4}\n{"learner": 2, "i": 5}\n')
    assert newest_row(FolderReader(tmp_path)) == {"learner": 1, "episodes": 7, "i": 4}


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "x.jsonl")
    threads = [
        threading.Thread(target=lambda n=n: [log.write({"n": n, "i": i}) for i in range(200)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert len(list(read_rows(tmp_path / "x.jsonl"))) == 800


def read_monitor(path: Path) -> tuple[dict[str, object], list[dict[str, str]]]:
    """Read as the Baselines family's load_results does."""
    with path.open() as file:
        first = file.readline()
        assert first[0] == "#"
        return json.loads(first[1:]), list(csv.DictReader(file))


def test_monitor_files_have_the_known_format(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, 1234.5, "ALE/Pong-v5")
    log.write(env=3, episode_return=-20.0, length=812, env_steps=900, time_s=3.21987, learner=0)
    log.write(env=0, episode_return=1 / 3, length=5, env_steps=950, time_s=4, truncated=True)
    header, rows = read_monitor(tmp_path / "monitor" / "3.monitor.csv")  # flushed: not closed yet
    assert header == {"t_start": 1234.5, "env_id": "ALE/Pong-v5"}
    assert rows == [{"r": "-20.0", "l": "812", "t": "3.22"}]
    assert read_monitor(tmp_path / "monitor" / "0.monitor.csv")[1][0]["r"] == "0.333333"
    log.close()
    episodes = list(read_rows(tmp_path / "episodes.jsonl"))
    assert [(e["env"], e["length"], e["truncated"]) for e in episodes] == [
        (3, 812, False),
        (0, 5, True),
    ]
    assert episodes[1]["return"] == 1 / 3


def test_what_environments_tell_has_columns_of_its_own(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, 0.0, "RandomExtremeAcrobot-v1")
    told = {"mass": 0.7, "success": 1.0}
    log.write(env=0, episode_return=-80, length=81, env_steps=1, time_s=2, task=4, info=told)
    log.write(
        env=0,
        episode_return=-9,
        length=9,
        env_steps=2,
        time_s=3,
        info={"mass": float("nan"), "success": 0.0},
    )
    log.close()
    first, second = read_rows(tmp_path / "episodes.jsonl")
    assert (first["task"], first["info"]) == (4, told)
    assert second["info"]["mass"] is None
    _, rows = read_monitor(tmp_path / "monitor" / "0.monitor.csv")
    assert rows[0] == {"r": "-80", "l": "81", "t": "2", "mass": "0.7", "success": "1.0"}
    assert rows[1]["mass"] == "nan"


def test_columns_are_those_of_the_first_episode_whatever_comes_later(tmp_path: Path) -> None:
    told = [{"mass": 1.0, "wind": 2.0}, {"wind": 3.0, "new": 9.0}, None, {"wind": 5.0, "mass": 4.0}]
    for i, info in enumerate(told):
        log = EpisodeLog(tmp_path, 0.0, "mine")  # every session reads the header that is there
        log.write(env=0, episode_return=i, length=1, env_steps=i, time_s=i, info=info)
        log.close()
    _, rows = read_monitor(tmp_path / "monitor" / "0.monitor.csv")
    assert [(row["mass"], row["wind"]) for row in rows] == [
        ("1.0", "2.0"),
        ("nan", "3.0"),
        ("nan", "nan"),
        ("4.0", "5.0"),
    ]
    assert all(len(row) == 5 for row in rows)
    assert [row.get("info") for row in read_rows(tmp_path / "episodes.jsonl")] == told


def test_monitor_files_go_on_after_a_resume(tmp_path: Path) -> None:
    for session in range(2):
        log = EpisodeLog(tmp_path, 1234.5 + session, "Pong")
        assert log.count == session
        log.write(env=0, episode_return=session, length=1, env_steps=1, time_s=1.0)
        log.close()
    header, rows = read_monitor(tmp_path / "monitor" / "0.monitor.csv")
    assert header["t_start"] == 1234.5
    assert [row["r"] for row in rows] == ["0", "1"]


def test_more_envs_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_OPEN_MONITORS", 2)
    log = EpisodeLog(tmp_path, 0.0, "Pong")
    for i in range(12):
        log.write(env=i % 4, episode_return=i, length=1, env_steps=i, time_s=i)
    log.close()
    for env in range(4):
        _, rows = read_monitor(tmp_path / "monitor" / f"{env}.monitor.csv")
        assert [int(row["r"]) for row in rows] == [env, env + 4, env + 8]


def test_lines_that_waited_when_a_run_was_killed_are_written_by_the_next_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_OPEN_MONITORS", 2)
    killed = EpisodeLog(tmp_path, 0.0, "Pong")
    for i in range(8):
        killed.write(
            env=i % 4, episode_return=i, length=1, env_steps=i, time_s=i, info={"mass": i / 2}
        )
    assert len(list((tmp_path / "monitor").iterdir())) == 2
    log = EpisodeLog(tmp_path, 0.0, "Pong")
    assert log.count == 8
    log.write(env=3, episode_return=9, length=1, env_steps=9, time_s=9, info={"mass": 4.5})
    log.close()
    for env in range(4):
        _, rows = read_monitor(tmp_path / "monitor" / f"{env}.monitor.csv")
        returns = [env, env + 4, *([9] if env == 3 else [])]
        assert [int(row["r"]) for row in rows] == returns
        assert [float(row["mass"]) for row in rows] == [x / 2 for x in returns]
    killed.close()
