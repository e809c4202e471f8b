"""`gossamer watch` as a process: where it listens, what it says, how it ends, and that a new row comes by itself."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from made_runs import made_runs, row_of

pytest.importorskip("starlette", reason="needs the extra dashboard")
pytest.importorskip("uvicorn", reason="needs the extra dashboard")
import numpy as np

from gossamer import cli

WAIT_SECONDS = 30.0


@contextmanager
def watching(*words: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A server; its process, address and what it said before."""
    command = [sys.executable, "-m", "gossamer", "watch", *words, "--no-browser"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout
    said = ""
    try:
        for line in child.stdout:
            said += line
            if found := re.search(r"^watching .* at (http://\S+)", line):
                yield child, found[1], said
                return
        pytest.fail(f"it does not watch: {said}")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_it_says_where_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    made_runs(tmp_path, 1, 5)
    with watching(str(tmp_path), "--port", "0") as (child, address, said):
        assert "no runs" not in said
        with urllib.request.urlopen(address + "api/runs", timeout=WAIT_SECONDS) as answer:
            assert len(json.load(answer)["runs"]) == 1
        child.send_signal(signal.SIGINT)
        assert child.wait(WAIT_SECONDS) == 0


def test_a_port_that_is_taken_is_said_and_the_next_one_used(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with watching(str(tmp_path), "--port", str(port)) as (_, address, said):
            found = int(address.rstrip("/").rpartition(":")[2])
            assert found > port
            assert f"port {port} is taken; {found} is free" in said
            assert f"no runs in {tmp_path}" in said
            assert "gossamer train CartPole-v1" in said


def test_a_chart_may_name_a_thousand_runs(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 5)
    run = quote(str(folder.relative_to(tmp_path)), safe="")
    query = f"runs={','.join([run] * 1000)}&metric=learner%2Floss"
    with watching(str(tmp_path), "--port", "0") as (_, address, _said):
        place = address.removeprefix("http://").rstrip("/")
        host, _, port = place.rpartition(":")
        request = f"GET /api/curves?{query} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n"
        assert len(request) > 40_000
        with socket.create_connection((host, int(port)), WAIT_SECONDS) as line:
            line.sendall(request[:40_000].encode())
            # As through a tunnel, where the rest comes later.
            assert not select.select([line], [], [], 0.5)[0], line.recv(4096)
            line.sendall(request[40_000:].encode())
            with line.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_new_row_is_told_of(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 5)
    run = str(folder.relative_to(tmp_path))
    with (
        watching(str(tmp_path), "--port", "0") as (_, address, _said),
        urllib.request.urlopen(address + "events", timeout=WAIT_SECONDS) as events,
    ):
        lines = [events.readline().strip() for _ in range(3)]
        assert lines[1] == b"event: version"
        assert int(lines[2].removeprefix(b"data: ")) >= 0
        # The first look tells of the run; what comes after it is a new row.
        while events.readline().strip() != b"event: runs":
            pass
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row_of(5, 0, np.random.default_rng(0), 1)) + "\n")
        kind, told = "", {}
        while not told:
            line = events.readline().decode().strip()
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
            if kind == "rows" and line.startswith("data: "):
                told = json.loads(line.removeprefix("data: "))
        assert told["run"] == run


def test_beside_a_run_it_ends_with_it(tmp_path: Path) -> None:
    code = (
        "from gossamer.dashboard.beside import start_beside\n"
        f"print(start_beside({str(tmp_path)!r})(), flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin
    assert parent.stdout
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", parent.stdout.readline())
    assert found
    place = ("127.0.0.1", int(found[1]))
    socket.create_connection(place, WAIT_SECONDS).close()
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        try:
            socket.create_connection(place, 1).close()
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail("the server outlives the run that it was started with, though nobody looks")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "folder nowhere does not exist; name one that holds runs"),
        (["--port", "70000"], "--port: it is '70000'; it must be in [0, 65535]"),
        (["--port", "http"], "--port: it is 'http'; it must be a whole number"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid is no address"),
        (["--host", "8.8.8.8"], "--host 8.8.8.8 cannot be listened on"),
        (["a", "b"], "b is not understood"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["watch", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert os.listdir() == []  # noqa: PTH208
