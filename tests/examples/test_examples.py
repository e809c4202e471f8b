"""The programs in examples/ do what they say, shortened."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

import gossamer

# One process imports what exports to ONNX, which takes seconds.
pytestmark = pytest.mark.xdist_group("export")

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "train_and_plot.ipynb").read_text())
QUICK: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 16,
    "placement": "inline",
    "quiet": True,
    "evaluation": {"every_seconds": 0},
}


@pytest.fixture
def own_env(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("own_env")
    sys.modules.pop("own_env", None)


def test_the_own_environment_forbids_what_does_not_fit(own_env: ModuleType) -> None:
    env = own_env.make()
    rng = np.random.default_rng(1)
    for episode in range(20):
        obs, _ = env.reset(seed=episode)
        assert env.observation_space.contains(obs)
        total, earned, ended = float(obs["values"].sum()), 0.0, False
        while not ended:
            action = int(rng.choice(np.flatnonzero(obs["action_mask"])))
            obs, reward, ended, _, _ = env.step(action)
            assert env.observation_space.contains(obs)
            earned += reward
        assert 0.0 <= earned <= total + 1e-5
        assert env.room >= 0.0


def test_the_own_environment_trains_with_its_mask(
    own_env: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ast.parse((EXAMPLES / "own_env.py").read_text())
    (main,) = (x for x in source.body if isinstance(x, ast.FunctionDef) and x.name == "main")
    text = ast.unparse(main).replace("runs/packing", str(tmp_path / "run"))
    shortened = "total_env_steps=128, num_envs=4, unroll_length=16, placement='inline', quiet=True"
    text = text.replace("total_env_steps=100000", shortened)
    assert shortened in text
    names = {"make": own_env.make}
    exec(compile(text, "own_env.py", "exec"), names)
    names["main"]()
    mean, *loaded = capsys.readouterr().out.splitlines()
    assert 0.0 <= float(mean) <= 6.0
    assert all(re.fullmatch(r"parcel [0-6] \[[01 ]+\]", line) for line in loaded)
    chosen = [int(line.split()[1]) for line in loaded]
    assert len(set(chosen)) == len(chosen)
    assert chosen[-1] == 6


ONE = {"from": "info", "key": "action_mask", "form": "parts", "sizes": [2, 3]}
OF_PARTS = {**ONE, "parts": [{"keys": ["kind"], "sizes": [2]}, {"keys": ["pair", 0], "sizes": [3]}]}


def without_a_file(kind: type[Any]) -> Any:
    """Return an exported policy that knows of itself only what a test tells it."""
    return type("Told", (kind,), {"__init__": lambda self: None})()


def test_an_observation_without_an_array_is_refused_by_an_exported_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    policy = without_a_file(importlib.import_module("play_onnx").Policy)
    leaf = {"input": "obs/state/speed", "keys": ["state", "speed"], "layout": "reshape"}
    policy.about = {"observation": {"leaves": [leaf]}, "inputs": {"obs/state/speed": {}}}
    policy.reset()
    for obs in ([1.0, 2.0], {"state": {"place": 1.0}}, {}):
        with pytest.raises(ValueError, match="the observation has no state/speed; it is"):
            policy(obs, {})


@pytest.mark.parametrize(
    ("about", "mask", "says"),
    [
        (ONE, [1, 0, 0, 0, 1], [1, 0, 0, 0, 1]),
        (ONE, [[1, 0], [0, 1, 1]], [1, 0, 0, 1, 1]),
        (ONE, [1, 0, 0, 0, 0], "allows none of 3 choices"),
        (ONE, [1, 0, 1], "has 3 numbers, it must have 5"),
        ({**ONE, "form": "joint"}, [[0, 0, 0], [0, 1, 0]], [0, 0, 0, 0, 1, 0]),
        ({**ONE, "form": "joint"}, [[0, 0, 0], [0, 0, 0]], "allows none of 6 choices"),
        (OF_PARTS, {"kind": [0, 1]}, [0, 1, 1, 1, 1]),
        (OF_PARTS, {"pair": ([0, 0, 1],)}, [1, 1, 0, 0, 1]),
        (OF_PARTS, {"pair": [[0, 0, 1]]}, [1, 1, 0, 0, 1]),
        (OF_PARTS, {"kind": None, "pair": None, "free": {"a": None}}, [1, 1, 1, 1, 1]),
        (OF_PARTS, {"pair": {"x": [0, 0, 1]}}, "no part of an action"),
        (OF_PARTS, {}, [1, 1, 1, 1, 1]),
        (OF_PARTS, 1, "no part of an action"),
        (OF_PARTS, [0, 1], "no part of an action; the parts are kind, pair/0"),
        (OF_PARTS, {"kind": [0, 0]}, "allows none of 2 choices"),
        (OF_PARTS, {"knid": [0, 1]}, "no part of an action; the parts are kind, pair/0"),
        (ONE, None, r"info\['action_mask'\]"),
    ],
)
def test_masks_that_do_not_fit_an_exported_policy_are_refused(
    about: dict[str, Any], mask: Any, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    policy = without_a_file(importlib.import_module("play_onnx").Policy)
    policy.about = {"mask": about}
    info = {} if mask is None else {"action_mask": mask}
    if isinstance(says, list):
        assert policy.allowed([], info).tolist() == says
        return
    with pytest.raises(ValueError, match=says):
        policy.allowed([], info)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported policy with a memory, beside the folder of its run."""
    pytest.importorskip("onnxruntime")
    from gossamer.export.command import export_run

    folder = tmp_path_factory.mktemp("serve")
    core = {"core": "lstm", "core_size": 8, "last_action": True, "last_reward": True}
    gossamer.train(
        "CartPole-v1", total_env_steps=128, run_folder=str(folder / "run"), policy=core, **QUICK
    )
    file = folder / "policy.onnx"
    export_run(
        str(folder / "run"), format="onnx", output=str(file), checkpoint="last", learner=None, env_id="",
        trust=False, episodes=None, seed=None, json=False, say=lambda text: None,
    )  # fmt: skip
    return file


@pytest.fixture(scope="module")
def address(recurrent: Path) -> Iterator[str]:
    # It needs neither gossamer nor torch.
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['gossamer'] = None\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"sys.argv = ['serve.py', {str(recurrent)!r}, '--port', '0', '--seed', '1']\n"
        f"runpy.run_path({str(EXAMPLES / 'serve.py')!r}, run_name='__main__')\n"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        yield server.stdout.readline().split()[-1]
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_SECONDS)


def post(address: str, **asked: Any) -> dict[str, Any]:
    request = urllib.request.Request(address, json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)


def test_a_served_policy_acts_as_the_run_does(address: str, recurrent: Path) -> None:
    policy = gossamer.load_policy(recurrent.parent / "run")
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    state, reward, values = None, 0.0, []
    for t in range(8):
        action, state = policy.act(obs, state, reward=reward)
        told = post(address, session="a", obs=obs.tolist(), start=t == 0, reward=reward)
        forgets = post(address, obs=obs.tolist())
        assert told["action"] == int(action)
        values.append((told["value"], forgets["value"]))
        obs, reward, *_ = env.step(action)
    assert values[0][0] == values[0][1]
    assert values[-1][0] != values[-1][1]


def test_the_printed_client_plays_an_episode(address: str) -> None:
    page = (EXAMPLES.parent / "docs" / "export.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (program,) = [x for x in programs if "urllib" in x]
    names: dict[str, Any] = {}
    printed = "http://127.0.0.1:8000/act"
    assert printed in program
    exec(compile(program.replace(printed, address), "docs/export.md", "exec"), names)
    assert names["ended"]
    assert names["action"] in (0, 1)


def test_a_session_begins_anew_when_asked(address: str) -> None:
    first = post(address, session="b", obs=[0.1, 0, 0, 0])
    second = post(address, session="b", obs=[0.1, 0, 0, 0], reward=1)
    again = post(address, session="b", obs=[0.1, 0, 0, 0], start=True)
    assert first == again
    assert first["value"] != second["value"]


def test_actions_are_sampled_when_asked(address: str) -> None:
    drawn = [post(address, obs=[0, 0, 0, 0], sample=True)["action"] for _ in range(40)]
    assert set(drawn) == {0, 1}
    greedy = [post(address, obs=[0, 0, 0, 0])["action"] for _ in range(3)]
    assert len(set(greedy)) == 1


def test_a_wrong_request_is_told_why(address: str) -> None:
    for asked, word in (
        (b"", "bytes"),
        (b"[", "Expecting"),
        (b'{"obs": [1]}', "reshape"),
        (b'{"observation": [1]}', "a request needs obs; it has observation"),
    ):
        request = urllib.request.Request(address, asked, method="POST")
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)
        assert raised.value.code == 400
        assert word in json.load(raised.value)["error"]
        raised.value.close()
    about = address.removesuffix("act")
    with urllib.request.urlopen(about, timeout=PATIENCE_SECONDS) as answer:
        assert json.load(answer)["env_id"] == "CartPole-v1"


def test_the_notebook_is_clean() -> None:
    assert NOTEBOOK["nbformat"] == 4
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_the_cells_of_the_notebook_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(NOTEBOOK["cells"]):
        if cell["cell_type"] == "code":
            text = "".join(cell["source"]).replace("STEPS = 50_000", "STEPS = 2_000")
            exec(compile(text, f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "interrupted" in printed
    assert "stopped by SIGINT" in printed
    assert len(re.findall("done: total_env_steps reached", printed)) == 2
    import matplotlib.pyplot as plt

    assert len(plt.gcf().axes) == 2
    assert all(axes.lines for axes in plt.gcf().axes)
    plt.close("all")
