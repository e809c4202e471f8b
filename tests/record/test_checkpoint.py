"""Checkpoints round-trip exactly, are verified, fall back, and are never unpickled."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import resource
import shutil
import stat
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import ConfigError
from gossamer.record.checkpoint import CheckpointStore, Score
from gossamer.record.files import SLICE_BYTES, write_bytes, write_hashed, write_whole_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=3)


def some(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3, 4), value), "steps": torch.tensor(7)}


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=6),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_every_dtype_and_shape_round_trips(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[int]], dtype: Any, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"x{i}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        for i, shape in enumerate(shapes)
    }
    tensors["odd"] = torch.arange(3, dtype=torch.uint8)
    store = CheckpointStore(tmp_path_factory.mktemp("c"), keep=1)
    path = store.save(1, tensors, {})
    loaded = store.load("last").tensors
    by_library = safetensors.torch.load_file(path / "tensors.safetensors")
    assert set(loaded) == set(by_library) == set(tensors)
    for name, x in tensors.items():
        assert loaded[name].dtype == x.dtype
        assert loaded[name].shape == x.shape
        assert torch.equal(loaded[name], x)
        assert torch.equal(by_library[name], x)


def test_bits_survive_memory_formats_sharing_and_special_values(store: CheckpointStore) -> None:
    base = torch.randn(2, 3, 5, 5)
    tensors = {
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": torch.randn(4, 6).t(),
        "strided": torch.randn(10)[::3],
        "view": base[1:],
        "same": base,
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "rng": torch.get_rng_state(),
    }
    store.save(1, tensors, {})
    loaded = store.load("last").tensors
    for name, x in tensors.items():
        a, b = x.detach().contiguous(), loaded[name]
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name
    loaded["view"].zero_()  # what is loaded may be written to, and shares nothing
    assert torch.equal(loaded["same"], base)


def test_what_is_not_wanted_takes_no_memory(store: CheckpointStore) -> None:
    large = torch.arange(300_000, dtype=torch.float32).view(300, 1000)
    tensors = {"a": large, "b": large.half(), "1/a": large + 1, "none": torch.empty(0, 3)}
    path = store.save(1, tensors, {})
    for which in ("last", 1):
        found = store.load(which, lambda name: name.startswith("1/"))
        assert [name for name, x in found.tensors.items() if not x.is_meta] == ["1/a"]
        assert torch.equal(found.tensors["1/a"], large + 1)
        assert found.tensors["b"].shape == (300, 1000)
        assert found.tensors["b"].dtype == torch.float16
        assert found.nbytes(loaded=True) == 4 * 300_000
        assert found.nbytes(loaded=False) == 10 * 300_000
    damage(path / "tensors.safetensors", "flipped")
    with pytest.raises(ConfigError, match="not the bytes"):  # of others' tensors too
        store.load("last", lambda name: False)


def test_state_is_exact(store: CheckpointStore) -> None:
    state = {"third": 1 / 3, "tiny": 5e-324, "worst": float("-inf"), "rng": 2**127 + 1, "a": [None]}
    store.save(1, {}, state)
    assert store.load("last").state == state


def test_state_that_is_not_json_fails_before_anything_is_written(store: CheckpointStore) -> None:
    with pytest.raises(TypeError):
        store.save(1, some(1), {"x": object()})
    assert not store.folder.exists()


def test_a_dtype_that_cannot_be_stored_is_named(store: CheckpointStore) -> None:
    with pytest.raises(TypeError, match="spin is complex64"):
        store.save(1, {"spin": torch.zeros(1, dtype=torch.complex64)}, {})
    assert names(store) == []


def test_keeps_the_newest_and_the_best(store: CheckpointStore) -> None:
    for updates in range(1, 8):
        store.save(updates, some(updates), {})
        if updates == 4:
            store.save_scored("best", updates, some(updates), {}, Score(0.0))
    assert store.list() == [5, 6, 7]
    assert store.load("best").updates == 4
    assert store.load("best").score == 0
    assert names(store) == ["5", "6", "7", "best"]


def test_what_cannot_be_read_for_now_is_not_damaged(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older checkpoint in its place would give up, for good, what was learnt since."""
    for updates in (1, 2):
        store.save(updates, {"x": torch.zeros(5 << 20)}, {})  # 20 MiB
    monkeypatch.setattr("gossamer.record.safetensors.free_memory", lambda: 19 << 20)
    with pytest.raises(
        ConfigError, match=r"2/tensors.safetensors cannot be read: it takes 0.0 GiB"
    ):
        store.load("last")
    assert store.load("last", lambda _: False).updates == 2
    monkeypatch.undo()
    for number, what in ((errno.EMFILE, "Too many open files"), (errno.EACCES, "Permission")):
        with monkeypatch.context() as patch:
            error = OSError(number, os.strerror(number))
            patch.setattr("mmap.mmap", Mock(side_effect=error))
            with pytest.raises(ConfigError, match=f"cannot be read: {what}"):
                store.load("last")
    assert store.load("last").updates == 2
    (store.folder / "2" / "tensors.safetensors").unlink()
    assert store.load("last").updates == 1


def test_what_is_too_old_stays_where_the_disk_does_not_answer(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is whole: a run that took it for failed would end."""
    for updates in (1, 2, 3):
        store.save(updates, {}, {})
    look, looks = type(store.folder).iterdir, iter((True, False))

    def answer_once(path: Path) -> Any:
        if next(looks):
            return look(path)
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.iterdir", answer_once)
        store.save(4, {}, {})
    assert store.list() == [1, 2, 3, 4]
    store.save(5, {}, {})
    assert store.list() == [3, 4, 5]


def test_the_bytes_written_are_counted_while_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fdatasync", raising=False)  # macOS has none
    seen: list[int] = []
    chunks = [memoryview(bytes(100)), memoryview(bytes(SLICE_BYTES + 5)), b"end"]
    told = write_hashed(tmp_path / "file", chunks, seen.append)
    assert sum(seen) == told["bytes"] == (tmp_path / "file").stat().st_size
    assert len(seen) == 2
    whole = hashlib.sha256(b"".join(chunks)).hexdigest()
    assert told["sha256"] == whole


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_folders_that_the_file_system_cannot_sync_are_left_unsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sync = os.fsync

    def of_files_alone(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    failing = number == errno.EIO
    with pytest.raises(OSError, match=r"Input/output") if failing else nullcontext():
        write_bytes(tmp_path / "file", b"x")
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match=r"Input/output") if failing else nullcontext():
        write_whole_in(folder, "file", b"y")
    os.close(folder)
    assert (tmp_path / "file").read_bytes() == b"y"


def test_keep_0_keeps_all(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=0)
    for updates in (9, 10, 11, 100):
        store.save(updates, some(updates), {})
    assert store.list() == [9, 10, 11, 100]
    assert store.load("last").updates == 100


def test_the_best_and_the_candidate_have_scores(store: CheckpointStore) -> None:
    assert store.score() is None
    store.save_scored("best", 2, some(2), {}, Score(-3.0, 5))
    store.save_scored("candidate", 4, some(4), {}, Score(-2.5, 5))
    assert (store.score(), store.score("candidate")) == (Score(-3.0, 5), Score(-2.5, 5))
    (warning,) = store.load("best").warnings
    assert "evaluated higher, -2.5 over 5 episodes" in warning
    assert store.load("candidate").updates == 4
    store.save_scored("best", 4, some(4), {}, Score(-3.5, 20))  # as it was confirmed
    store.discard("candidate")
    store.discard("candidate")
    assert (store.score(), store.score("candidate")) == (Score(-3.5, 20), None)
    assert store.load("best").updates == 4
    assert store.load("best").warnings == ()
    assert names(store) == ["best"]


def test_the_best_of_an_older_run_has_not_said_its_episodes(store: CheckpointStore) -> None:
    store.save_scored("best", 2, some(2), {}, Score(-3.0, 5))
    manifest = store.folder / "best" / "manifest.json"
    older = json.loads(manifest.read_text())
    del older["episodes"]
    manifest.write_text(json.dumps(older))
    assert store.score() == Score(-3.0, None)
    assert store.load("best").score == -3.0


def test_the_same_number_can_be_saved_again(store: CheckpointStore) -> None:
    store.save(5, some(1), {"a": 1})
    store.save(5, some(2), {"a": 2})
    assert store.load(5).state == {"a": 2}
    assert names(store) == ["5"]


@pytest.mark.parametrize("how", ["missing", "empty", "short", "flipped"])
@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_falls_back(store: CheckpointStore, file: str, how: str) -> None:
    for updates in (1, 2, 3):
        store.save(updates, some(updates), {"at": updates})
    for updates in (3, 2):
        damage(store.folder / str(updates) / file, how)
    found = store.load("last")
    assert (found.updates, found.state) == (1, {"at": 1})
    assert found.tensors["weight"][0, 0] == 1
    if (file, how) == ("manifest.json", "missing"):
        assert store.list() == [1]  # no manifest, no checkpoint: nothing to warn of
        return
    assert [line.split()[1] for line in found.warnings] == ["3", "2"]
    for line in found.warnings:
        place = re.escape(str(store.folder))
        assert re.fullmatch(
            rf"checkpoint \d in {place} is damaged \([^\n]+\); using 1 instead", line
        )
    with pytest.raises(ConfigError, match=r"checkpoint 3 in .* is damaged"):
        store.load(3)


def test_the_last_is_found_while_the_run_replaces_it(tmp_path: Path) -> None:
    """A run that keeps one checkpoint removes it as soon as there is another, also in the midst of its being read."""
    writer, reader = (CheckpointStore(tmp_path / "checkpoints", keep=1) for _ in range(2))
    writer.save(1, some(1.0), {"at": 1})

    def wanted(_: str) -> bool:
        if writer.list() == [1]:
            writer.save(2, some(2.0), {"at": 2})
        return True

    found = reader.load("last", wanted)
    assert (found.updates, found.state, found.warnings) == (2, {"at": 2}, ())


def test_none_intact_is_the_users_to_solve(store: CheckpointStore) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint in .*: the run ended before its first"):
        store.load("last")
    for updates in (1, 2):
        store.save(updates, some(updates), {})
        damage(store.folder / str(updates) / "tensors.safetensors", "flipped")
    with pytest.raises(ConfigError, match="no intact checkpoint") as caught:
        store.load("last")
    assert "\n" not in str(caught.value)
    assert "2: tensors.safetensors" in str(caught.value)


def test_a_checkpoint_under_another_number_is_damaged(store: CheckpointStore) -> None:
    store.save(1, some(1), {})
    shutil.copytree(store.folder / "1", store.folder / "9")
    assert store.load("last").updates == 1


@pytest.mark.parametrize("which", ["first", "", "-1", "1.5"])
def test_unknown_names_are_refused(store: CheckpointStore, which: str) -> None:
    with pytest.raises(ConfigError, match="last, best, candidate or a number"):
        store.load(which)


def test_a_number_that_is_not_there(store: CheckpointStore) -> None:
    store.save(12, some(1), {})
    with pytest.raises(ConfigError, match=r"no checkpoint 13 .*there: 12"):
        store.load("13")
    assert store.load("12").updates == 12
    with pytest.raises(ConfigError, match="no checkpoint best"):
        store.load("best")


def test_resuming_from_an_older_one_forgets_the_abandoned_future(store: CheckpointStore) -> None:
    for updates in (1, 2, 3):
        store.save(updates, some(updates), {})
    store.save_scored("best", 3, some(3), {}, Score(1.0))
    assert store.discard_after(1) == [2, 3]
    assert store.load("last").updates == 1
    assert store.load("best").updates == 3


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.save(1, some(1), {})
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("unpickled"))
    assert store.load("last").updates == 1
    payload = pickle.dumps(Evil(tmp_path / "broken_in"))
    for file in ("tensors.safetensors", "state.json"):
        store.save(1, some(1), {})
        (path / file).write_bytes(payload)
        manifest = json.loads((path / "manifest.json").read_bytes())
        manifest["files"][file]["sha256"] = hashlib.sha256(payload).hexdigest()
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ConfigError):
            store.load("last")
    assert not (tmp_path / "broken_in").exists()


class FileSizeLimit:
    """Let real writes beyond a size fail, as on a full disk."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.num_bytes, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


class FailingSync:
    """Let the n-th fsync find the disk full."""

    def __init__(self, n: int) -> None:
        self.n, self.calls = n, 0

    def __enter__(self) -> None:
        self.real = os.fsync
        os.fsync = self.sync

    def __exit__(self, *_: object) -> None:
        os.fsync = self.real

    def sync(self, handle: int) -> None:
        self.calls += 1
        if self.calls == self.n:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(handle)


@pytest.mark.parametrize(
    "fault",
    [FileSizeLimit(1 << 16), *(FailingSync(n) for n in (1, 2, 3, 4))],
    ids=["write", "sync tensors", "sync state", "sync manifest", "sync folder"],
)
def test_a_full_disk_leaves_the_older_ones(
    store: CheckpointStore, fault: AbstractContextManager[None]
) -> None:
    store.save(1, some(1), {})
    store.save_scored("best", 1, some(1), {}, Score(0.0))
    large = {"large": torch.zeros(1 << 20)}
    with fault, pytest.raises(OSError, match=r"No space|too large"):
        store.save(2, large, {})
    assert names(store) == ["1", "best"]
    assert store.load("last").updates == 1
    store.save(2, large, {})
    assert store.load("last").updates == 2


def test_readers_never_see_half_a_best(store: CheckpointStore) -> None:
    tensors = {"x": torch.zeros(1 << 16)}
    store.save_scored("best", 0, tensors, {"n": 0}, Score(0.0))
    done = threading.Event()

    def write() -> None:
        for n in range(1, 40):
            x = torch.full((1 << 16,), float(n))
            store.save_scored("best", n, {"x": x}, {"n": n}, Score(float(n)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set():
        try:
            found = CheckpointStore(store.folder, keep=1).load("best")
        except ConfigError:
            continue  # replaced twice during one read
        reads += 1
        assert found.tensors["x"].unique().item() == found.state["n"] == found.updates
    writer.join()
    assert reads
    assert store.load("best").updates == 39


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_60_megabytes_cost_little_cpu_on_any_thread(store: CheckpointStore) -> None:
    tensors = {f"x{i}": torch.zeros(1_250_000) for i in range(12)}
    costs: list[float] = []

    def save() -> None:
        began = time.thread_time()
        store.save(1, tensors, {})
        costs.append(time.thread_time() - began)

    for _ in range(2):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
    assert min(costs) < 0.5
