"""Run folders whose files were damaged or made to harm, their hashes made to fit: one line, exit code 2, little memory."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import refusals
from peak_memory import CLEAR, grows_by_less_than
from sessions import QUICK

from gossamer import cli
from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.run.train import train

ROOM_KIB = 100_000
"""By which the process may grow over a refusal: it loads libraries, and no more than files are long."""
DEEP = "[" * 10_000 + "]" * 10_000
RESUME = "train --resume run --total-env-steps 512"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", "CartPole-v1", "--run-folder", str(folder), "--total-env-steps", "128"]
    words += ["--keep-checkpoints", "1", "--lag", "1"]
    assert cli.main([*words, *QUICK]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    return tmp_path / "run"


def refused(words: str, capsys: Any, says: str = "") -> None:
    with grows_by_less_than(ROOM_KIB):
        refusals.refused(words, capsys, says)


@pytest.mark.skipif(not CLEAR.exists(), reason="peaks are told on Linux alone")
def test_a_peak_shows_after_a_higher_one() -> None:
    def take(kib: int) -> None:
        with mmap.mmap(
            -1, 1024 * kib
        ) as taken:  # the allocator may keep what is freed, and hand it out again
            for page in range(0, len(taken), mmap.PAGESIZE):
                taken[page] = 1  # pages count once they are written

    take(300_000)
    with pytest.raises(pytest.fail.Exception, match="at its peak"), grows_by_less_than(50_000):
        take(100_000)
    with grows_by_less_than(50_000):
        take(1_000)


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))


def rehash(folder: Path) -> None:
    """Make the manifest fit what the files hold by now."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        facts["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def edit_header(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = newest(run) / "tensors.safetensors"
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    edit(header)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + content[8 + length :])
    rehash(path.parent)


def entry_of(header: dict[str, Any]) -> dict[str, Any]:
    return next(x for name, x in header.items() if "policy" in name and len(x["shape"]) == 2)


def drop_a_tensor(header: dict[str, Any]) -> None:
    del header[next(name for name in header if "policy.action_head" in name)]


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "terabytes": lambda h: entry_of(h).update(shape=[10**6, 10**6]),
    "terabytes of nothing": lambda h: entry_of(h).update(shape=[10**6, 10**6], data_offsets=[0, 0]),
    "negative": lambda h: entry_of(h).update(shape=[-4, -64]),
    "negative offset": lambda h: entry_of(h).update(data_offsets=[-256, 0]),
    "misaligned": lambda h: entry_of(h).update(
        data_offsets=[1, entry_of(h)["data_offsets"][1] + 1]
    ),
    "beyond the end": lambda h: entry_of(h).update(data_offsets=[10**12, 10**12 + 1024]),
    "all the same bytes": lambda h: [x.update(data_offsets=[0, 1024]) for x in h.values()],
    "a float": lambda h: entry_of(h).update(shape=[64.0, 4]),
    "true": lambda h: entry_of(h).update(shape=[True, 256]),
    "words": lambda h: entry_of(h).update(shape="64x4"),
    "many dimensions": lambda h: entry_of(h).update(shape=[1] * 1000 + [256]),
    "another type": lambda h: entry_of(h).update(dtype="F8_E4M3"),
    "a list as type": lambda h: entry_of(h).update(dtype=["F32"]),
    "no offsets": lambda h: entry_of(h).pop("data_offsets"),
    "numbers of 400 digits": lambda h: entry_of(h).update(shape=[10**400]),
    "not an entry": lambda h: h.update(other=3),
    "a tensor is missing": drop_a_tensor,
    "none at all": lambda h: h.clear(),
    "empty and large": lambda h: h.update(
        x={"dtype": "F32", "shape": [0, 2**62, 8], "data_offsets": [0, 0]}
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_tensors(name: str, run: Path, capsys: Any) -> None:
    edit_header(run, HEADERS[name])
    refused("eval run", capsys)
    refused(RESUME, capsys)


@pytest.mark.parametrize(
    "content",
    [b"", b"short", struct.pack("<Q", 2**63), struct.pack("<Q", 2**64 - 1) + b"{}", struct.pack("<Q", 2) + b"[]",
     struct.pack("<Q", 20_000) + DEEP.encode()],
)  # fmt: skip
def test_files_that_hold_no_tensors(content: bytes, run: Path, capsys: Any) -> None:
    (newest(run) / "tensors.safetensors").write_bytes(content)
    rehash(newest(run))
    refused("eval run", capsys, "no intact checkpoint")
    refused(RESUME, capsys, "no intact checkpoint")


@pytest.mark.parametrize(
    "content", ["", "[]", "3", "null", '"text"', "{", DEEP, "9" * 400, "9" * 5000]
)
def test_states_that_are_none(content: str, run: Path, capsys: Any) -> None:
    (newest(run) / "state.json").write_text(content)
    rehash(newest(run))
    refused("eval run", capsys, "state.json")
    refused(RESUME, capsys, "state.json")


STATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "empty": lambda s: s.clear(),
    "held": lambda s: s.update(held=[]),
    "an update": lambda s: s["held"].update({"learner.update": "many"}),
    "plan": lambda s: s.update(plan=3),
    "environments": lambda s: s["plan"].update(num_envs=10**12),
    "recorder": lambda s: s.update(recorder=[]),
    "a score of the average": lambda s: s.update(scores=[["average", 1.0]]),
    "hardware": lambda s: s["plan"].update(hardware="\x1b]52;c;b3duZWQ=\x07"),
    "much hardware": lambda s: s["plan"].update(hardware="x" * 10**6),
    "scores": lambda s: s.update(scores=[3]),
    "learners": lambda s: s.update(num_learners=10**30),
    "two learners": lambda s: s.update(num_learners=2),
    "whose": lambda s: s.update(policy_of="nobody"),
}


@pytest.mark.parametrize("name", STATES)
def test_states_that_nobody_wrote(name: str, run: Path, capsys: Any) -> None:
    path = newest(run) / "state.json"
    state = json.loads(path.read_text())
    STATES[name](state)
    path.write_text(json.dumps(state))
    rehash(path.parent)
    # What else may be wrong there: test_checkpoint_contents.
    refused(RESUME, capsys, "state.json is damaged")
    code = cli.main(["eval", "run", "--episodes", "1"])
    assert code in (0, 2), "it needs the policy alone"
    assert capsys.readouterr().err.count("\n") <= 1


@pytest.mark.parametrize(
    "tensor", ["actor.0.obs", "actor.0.episodes", "queue.0.reward", "learner.optimizer.0.exp_avg"]
)
def test_what_only_resuming_needs(tensor: str, run: Path, capsys: Any) -> None:
    edit_header(run, lambda h: h.update(other=h.pop(tensor)))
    refused(RESUME, capsys)
    assert cli.main(["eval", "run", "--episodes", "1"]) == 0


@pytest.mark.parametrize("content", ["[]", "{}", '{"version": [], "learner": {}}'])
def test_the_best_policys_state(content: str, run: Path, capsys: Any) -> None:
    best = run / "checkpoints" / "best"
    shutil.copytree(newest(run), best)
    (best / "state.json").write_text(content)
    rehash(best)
    assert cli.main(RESUME.split()) == (0 if content == "[]" else 2), (
        "a damaged one is done without"
    )
    assert cli.main(["eval", "run", "--episodes", "1", "--checkpoint", "best"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{}", '{"seconds": [], "updates": 0}', DEEP])
def test_a_finished_runs_summary(content: str, run: Path) -> None:
    (run / "summary.json").write_text(content)
    assert cli.main(["train", "--resume", "run"]) == 0
    assert json.loads((run / "summary.json").read_text())["env_steps"] >= 128


MANIFESTS = ["", "[]", "3", DEEP, '{"files": []}', '{"format": 1, "files": {}}', '{"format": [], "files": {}}',
             '{"format": 1, "files": {}, "updates": []}', '{"format": 1, "files": {}, "updates": 1e999}']  # fmt: skip


@pytest.mark.parametrize("content", MANIFESTS)
def test_manifests(content: str, run: Path, capsys: Any) -> None:
    for path in (run / "checkpoints").glob("*/manifest.json"):
        path.write_text(content)
    refused("eval run", capsys, "no intact checkpoint")
    refused(RESUME, capsys, "no intact checkpoint")


CONFIGS: dict[str, dict[str, Any]] = {
    "billions of units": {"policy": {"hidden_sizes": [10**9, 10**9]}},
    "many units": {"policy": {"hidden_sizes": [60_000] * 60}},
    "many layers": {"policy": {"hidden_sizes": [8] * 100_000}},
    "large core": {"policy": {"core": "lstm", "core_size": 60_000, "core_layers": 60}},
    "400 digits": {"seed": 10**400},
    "an id of none": {"env_id": ""},
    "a number as id": {"env_id": 3},
    "nonsense": {"nonsense": 1},
    "an id with NUL": {"env_id": "Cart\0Pole"},
    "a lone surrogate": {"env_id": "\ud800"},
    "an odd module": {"env_id": "..:x"},
    "a folder": {"run_folder": "a\0b"},
    "a long name": {"init_from": "x" * 300},
    "nobody": {"run_folder": "~no-such-user/x"},
    "settings of settings": {"env": {"env": {}}},
    "threads": {"actor_threads": 10**12},
    "endless": {"algorithm": {"clip_rho": 1e300}},
    "infinite": {"stop_after_seconds": float("inf")},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_settings_of_a_run(name: str, run: Path, capsys: Any) -> None:
    config = json.loads((run / "config.json").read_text())
    for key, value in CONFIGS[name].items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    (run / "config.json").write_text(json.dumps(config))
    refused("eval run", capsys)
    refused(RESUME, capsys)
    assert cli.main(["runs", "."]) == 0
    assert capsys.readouterr().out.isascii()


@pytest.mark.parametrize("content", [DEEP, '{"a":' * 10_000, "[1,", b"\xff\xfe", "9" * 5000, "[1]"])
def test_settings_that_are_none(content: str | bytes, run: Path, capsys: Any) -> None:
    (run / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused("eval run", capsys, "config.json is damaged")
    refused(RESUME, capsys, "config.json is damaged")
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        train(make_config("CartPole-v1", {}), resume=str(run))
    assert cli.main(["runs", "."]) == 0


@pytest.mark.parametrize(
    "name", ["config.json", "meta.json", "summary.json", "metrics.jsonl", "log.txt", ".lock"]
)
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(name: str, run: Path, capsys: Any) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    assert cli.main(["runs", "."]) == 0
    capsys.readouterr()
    assert cli.main(RESUME.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "manifest.json"])
def test_nor_in_a_checkpoint(name: str, run: Path, capsys: Any) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert cli.main(["eval", "run"]) == 2
    assert cli.main(RESUME.split()) == 2
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize(
    "name",
    [
        "log.txt",
        "metrics.jsonl",
        ".lock",
        "config.json.partial",
        "monitor/0.monitor.csv",
        "checkpoints",
    ],
)
def test_a_link_does_not_carry_what_is_written_elsewhere(name: str, run: Path, capsys: Any) -> None:
    victim = Path("victim")
    if (run / name).is_dir():
        victim.mkdir()
        (victim / "2019").mkdir()
        shutil.rmtree(run / name)
    else:
        victim.write_text("mine")
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim.absolute())
    refused(RESUME, capsys, name)
    assert (victim / "2019").is_dir() or victim.read_text() == "mine"


ROWS = ['{"env_steps": "x"}', '{"env_steps": 1e999}', '{"env_steps": ' + "9" * 400 + "}", DEEP, '{"learner": []}',
        '{"learner": [], "updates": 1}',
        '{"env": [], "return": 1}', '{"env": 0, "return": 1, "length": 2, "info": 3}', '{"mean": {}}', '{"mean": 1e999}',
        '{"time_s": NaN, "steps_per_second": "fast", "return_mean_100": []}', "\ud800", '"' + "x" * 10**6 + '"']  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_rows_that_nobody_wrote(row: str, run: Path, capsys: Any) -> None:
    for name in ("metrics.jsonl", "episodes.jsonl", "evaluation.jsonl"):
        with (run / name).open("ab") as file:
            file.write(f"{row}\n".encode(errors="replace") * 3)
    for name in ("summary.json", "meta.json"):
        (run / name).write_text(row.encode(errors="replace").decode())
    assert cli.main(["runs", "."]) == 0
    assert cli.main(["runs", ".", "--json"]) == 0
    assert cli.main(RESUME.split()) == 0, capsys.readouterr().err
    assert "Traceback" not in capsys.readouterr().err


def test_escapes_do_not_reach_the_terminal(run: Path, capsys: Any) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "env_id": "\x1b[2J\x1b]0;owned\x07"}))
    assert cli.main(["runs", "."]) == 0
    refused("eval run", capsys)
    refused("train --config run/config.json --show-config", capsys)
