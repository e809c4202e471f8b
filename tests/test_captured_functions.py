"""Captured functions: warm-up, capture, replay, what cannot be captured; and the recorder that stands in for a GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from recorder import Frozen, Recorder, recording

from gossamer.system import devices
from gossamer.system.graphs import WARM_UP, CaptureError, Graphs

CPU = torch.device("cpu")


class Noted:
    """An engine that notes what it is asked for."""

    def __init__(self, told, refuses=""):
        self.told, self.refuses = told, refuses

    def capture(self, work):
        if self.refuses:
            raise CaptureError(self.refuses)
        self.told.append("capture")

    def replay(self):
        self.told.append("replay")


def test_a_function_warms_up_then_is_captured_once_then_replayed():
    told = []
    graph = Graphs(CPU, engine=lambda static, pinned: Noted(told)).graph(
        "work", lambda: told.append("call"), list
    )
    for _ in range(WARM_UP + 3):
        graph()
    assert told == ["call"] * WARM_UP + ["capture", "replay", "replay"]


def test_on_a_cpu_a_function_is_called():
    told = []
    graph = Graphs(CPU).graph("work", lambda: told.append("call"), list)
    for _ in range(5):
        graph()
    assert told == ["call"] * 5


def test_what_cannot_be_captured_is_called_and_said_once():
    told, said = [], []
    graphs = Graphs(CPU, engine=lambda static, pinned: Noted(told, "it looks"), tell=said.append)
    works = [graphs.graph(name, lambda: told.append("call"), list) for name in ("one", "two")]
    for _ in range(5):
        for work in works:
            work()
    assert told == ["call"] * 10
    assert said == [
        "one cannot be captured as a CUDA graph and is run step by step, which is slower: it looks"
    ]


def test_one_function_at_a_time_is_captured():
    inside, most = [], []

    class Slow(Noted):
        def capture(self, work):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.02)
            inside.pop()

    graphs = Graphs(CPU, engine=lambda static, pinned: Slow([]))
    works = [graphs.graph("work", lambda: None, list) for _ in range(4)]

    def run(work):
        for _ in range(WARM_UP + 1):
            work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_what_is_recorded_is_repeated_on_other_data():
    x, total, count = torch.ones(3), torch.zeros(3), [0]

    def work():
        count[0] += 1  # frozen, as all that is Python's
        total.add_(x * 2.0)

    graph = recording().graph("work", work, lambda: [x, total])
    for i in range(6):
        x.fill_(float(i))
        graph()
    assert total.tolist() == [2.0 * sum(range(6))] * 3
    assert count == [WARM_UP + 1]


MISTAKES = {
    "reads a tensor back": lambda x, g: x.sum().item(),
    "reads a tensor back to Python": lambda x, g: x.tolist(),
    "depends on the data": lambda x, g: x[x > 0.0],
    "draws random numbers": lambda x, g: x.add_(torch.randn(3, generator=g)),
    "numbers of Python": lambda x, g: x.add_(torch.tensor([1.0, 2.0, 3.0])),
    "gives a tensor other memory": lambda x, g: x.set_(torch.zeros(3)),
    "not among the static tensors": lambda x, g: x.add_(OUTSIDE),
}
OUTSIDE = torch.ones(3)


@pytest.mark.parametrize("said", MISTAKES)
def test_what_a_graph_would_freeze_is_refused(said):
    x, generator = torch.ones(3), torch.Generator().manual_seed(1)
    recorder = Recorder(lambda: [x])
    with pytest.raises(Frozen, match=said):
        recorder.capture(lambda: MISTAKES[said](x, generator))


def test_a_static_tensor_that_was_replaced_is_noticed():
    held = [torch.ones(3)]
    recorder = Recorder(lambda: held)
    recorder.capture(lambda: held[0].add_(1.0))
    recorder.replay()
    assert held[0].tolist() == [3.0] * 3
    held[0] = torch.ones(3)
    with pytest.raises(Frozen, match="was replaced"):
        recorder.replay()


def test_host_memory_is_copied_from_and_to_and_no_more():
    host, x = torch.ones(3), torch.zeros(3)
    recorder = Recorder(lambda: [x], pinned=[host])
    recorder.capture(lambda: x.copy_(host))
    host.fill_(5.0)
    recorder.replay()
    assert x.tolist() == [5.0] * 3
    with pytest.raises(Frozen, match="takes a tensor of the host"):
        Recorder(lambda: [x], pinned=[host]).capture(lambda: x.add_(host))


class Stream(str):
    """A stream by its name."""

    cuda_stream = property(hash)
    device = torch.device("cuda", 0)


class FakeCuda:
    """In place of torch.cuda: graphs note what they do, and a capture that fails leaves its stream current, as torch's does."""

    def __init__(self, monkeypatch, fails=0):
        self.told, self.current, self.fails, self.streams = [], "mine", fails, 0
        cuda = self

        class Graph:
            def replay(self):
                cuda.told.append(("replay", cuda.current))

        class Capturing:
            def __init__(self, graph, *, pool, stream, capture_error_mode):
                assert capture_error_mode == "thread_local"
                self.stream = stream
                cuda.told.append(("capture", pool))

            def __enter__(self):
                cuda.current = self.stream

            def __exit__(self, *error):
                cuda.fails -= 1
                if cuda.fails >= 0:
                    raise RuntimeError("operation not permitted\n when stream is capturing")
                cuda.current = "mine"

        class Current:
            def __init__(self, stream):
                pass

            def __enter__(self):
                pass

            def __exit__(self, *error):
                cuda.current = "mine"

        for name, x in {
            "CUDAGraph": Graph, "graph": Capturing, "stream": Current, "Stream": self.stream_made,
            "current_stream": lambda device: cuda.current, "set_stream": self.set_stream,
            "synchronize": lambda device: None, "graph_pool_handle": lambda: "pool",
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, x)

    def set_stream(self, stream):
        self.current = stream

    def stream_made(self, device, priority):
        self.streams += 1
        return Stream(f"capture {self.streams}")


def test_cuda_graphs_share_memory_and_one_stream_to_capture_on(monkeypatch):
    cuda, calls = FakeCuda(monkeypatch), []
    graphs = Graphs(torch.device("cuda", 7))
    works = [
        graphs.graph(name, lambda: calls.append(cuda.current), list) for name in ("one", "two")
    ]
    for _ in range(WARM_UP + 2):
        for work in works:
            work()
    assert cuda.streams == 1
    assert calls == ["mine"] * 2 * WARM_UP + ["capture 1"] * 2
    assert cuda.told == [("capture", "pool"), ("replay", "mine")] * 2 + [("replay", "mine")] * 2


@pytest.mark.parametrize("fails", [1, 2])
def test_a_capture_that_fails_is_tried_again_on_the_stream_it_was_asked_on(monkeypatch, fails):
    cuda, calls, said = FakeCuda(monkeypatch, fails), [], []
    graphs = Graphs(torch.device("cuda", 6), tell=said.append)
    work = graphs.graph("work", lambda: calls.append(cuda.current), list)
    for _ in range(WARM_UP + 4):
        work()
        assert cuda.current == "mine"
    # Each failed capture has called it in vain, and then it was done.
    done = [stream for stream in calls if stream == "mine"]
    replays = cuda.told.count(("replay", "mine"))
    assert len(done) + replays == WARM_UP + 4
    assert bool(said) == (fails == 2)
    assert replays == (3 if fails == 1 else 0)


class FewStreams:
    """Torch's streams: of a device there are few, handed out in turn."""

    def __init__(self, monkeypatch):
        self.given = 0
        monkeypatch.setattr(torch.cuda, "Stream", self)
        for name in ("STREAMS_IN_USE", "CAPTURE_STREAMS"):
            monkeypatch.setattr(devices, name, set())

    def __call__(self, device, priority=0):
        self.given += 1
        handle = self.given % devices.STREAMS + (100 if priority else 0)
        return SimpleNamespace(device=device, cuda_stream=handle)


def test_nobody_works_on_the_stream_of_captures(monkeypatch):
    FewStreams(monkeypatch)
    device = torch.device("cuda", 0)
    captures = devices.new_stream(device, captures=True).cuda_stream
    held = [devices.new_stream(device).cuda_stream for _ in range(devices.STREAMS - 1)]
    assert len({captures, *held}) == devices.STREAMS, "as long as there are others, none is shared"
    more = [devices.new_stream(device).cuda_stream for _ in range(3 * devices.STREAMS)]
    assert captures not in more
    assert devices.new_stream(device, first=True).cuda_stream >= 100


def test_a_stream_that_was_given_back_is_given_out_again(monkeypatch):
    FewStreams(monkeypatch)
    device = torch.device("cuda", 0)
    beside = [devices.SideStream(device) for _ in range(devices.STREAMS)]
    assert len(devices.STREAMS_IN_USE) == devices.STREAMS
    for one in beside:
        one.close()
        one.close()
    assert set() == devices.STREAMS_IN_USE
