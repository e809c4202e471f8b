"""Where an optional package is missing, every command runs or says in one line which extra brings it."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.xdist_group("missing_extras")
ROOT = Path(__file__).parents[2]
PROBE = ROOT / "tests" / "support" / "without_packages.py"
TINY = [
    "--algorithm=a2c",
    "--total-env-steps=64",
    "--num-envs=2",
    "--unroll-length=8",
    "--placement=inline",
    "--evaluation.every-seconds=0",
]
MODULES = {
    "ale-py": "ale_py",
    "box2d": "Box2D",
    "imageio-ffmpeg": "imageio_ffmpeg",
    "pygame-ce": "pygame",
}
"""Names under which distributions are imported, where that is another one."""
NAMES = {"packaging"}
"""Brought by what everybody has."""
RUN = ["train", "CartPole-v1", *TINY, "--run-folder=run"]


def optional() -> dict[str, str]:
    """Return the extra that brings each optional package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    found: dict[str, str] = {}
    for extra, entries in extras.items():
        for entry in entries if extra != "dev" else ():
            name = re.split(r"[<>=\[ ]", entry)[0]
            found.setdefault(MODULES.get(name, name), extra)
    return {name: extra for name, extra in found.items() if name not in NAMES}


NEEDS: dict[str, list[tuple[str, list[str]]]] = {
    "ale_py": [
        ("atari", ["train", "PongNoFrameskip-v4", *TINY]),
        ("atari", ["tune", "PongNoFrameskip-v4"]),
    ],
    "Box2D": [("box2d", ["train", "LunarLander-v3", *TINY])],
    "mujoco": [("mujoco", ["train", "HalfCheetah-v5", *TINY])],
    "envpool": [("envpool", ["train", "envpool:CartPole-v1", *TINY])],
    "minigrid": [("minigrid", ["train", "MiniGrid-Empty-5x5-v0", *TINY])],
    "vizdoom": [("vizdoom", ["train", "VizdoomBasic-v1", *TINY])],
    "imageio": [
        ("video", ["eval", "run", "--episodes=1", "--video=a.mp4"]),
        ("video", ["train", "CartPole-v1", *TINY[:-1], "--evaluation.video"]),
    ],
    "imageio_ffmpeg": [("video", ["train", "CartPole-v1", *TINY[:-1], "--evaluation.video"])],
    "pygame": [("video", ["eval", "run", "--episodes=1", "--video=a.mp4"])],
    "tensorboard": [("tensorboard", ["train", "CartPole-v1", *TINY, "--tensorboard"])],
    "wandb": [("wandb", ["train", "CartPole-v1", *TINY, "--wandb"])],
    "ray": [
        ("cluster", ["train", "CartPole-v1", *TINY[:-2], "--placement=cluster"]),
        ("cluster", ["cluster", "check"]),
        ("cluster", ["sweep", "grid.toml", "--placement=cluster"]),
    ],
    "matplotlib": [("compare", ["compare", "run", "--plot=a.svg"])],
    "scipy": [("compare", ["compare", "run"])],
    "plotly": [("dashboard", ["watch"]), ("dashboard", [*RUN[:-1], "--watch"])],
    "starlette": [("dashboard", ["watch"]), ("dashboard", [*RUN[:-1], "--watch"])],
    "uvicorn": [("dashboard", ["watch"]), ("dashboard", [*RUN[:-1], "--watch"])],
    "optuna": [("sweep", ["sweep", "tpe.toml"])],
    "onnx": [("export", ["export", "run", "--format=onnx"])],
    "onnxruntime": [("export", ["export", "run", "--format=onnx"])],
    "onnxscript": [("export", ["export", "run", "--format=onnx"])],
}
"""By package: what cannot be done without it, and the extra that the line has to name."""
ALWAYS = [
    RUN,
    ["train", "CartPole-v1", *TINY, "topology:gossip", "--num-learners=2"],
    ["train", "--resume=run", "--total-env-steps=128"],
    ["eval", "run", "--episodes=2"],
    ["export", "run", "--format=pt2", "--output=a.pt2"],
    ["export", "run", "--format=hub", "--output=hub", "--episodes=1"],
    ["sweep", "grid.toml", "--jobs=1"],
    ["list"],
    ["runs"],
    ["--help"],
]
"""What needs no extra."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What commands say without any optional package, and then without each."""
    folder = tmp_path_factory.mktemp("extras")
    search = '[search]\n"optimizer.learning_rate" = [1e-3]\n'
    settings = "[settings]\n" + 'env_id = "CartPole-v1"\ntotal_env_steps = 64\nnum_envs = 2\n'
    settings += 'unroll_length = 8\nplacement = "inline"\n"evaluation.every_seconds" = 0\n'
    (folder / "grid.toml").write_text(f'method = "grid"\n{settings}{search}')
    (folder / "tpe.toml").write_text(f'method = "tpe"\ntrials = 1\n{settings}{search}')
    refused = {package: [words for _, words in needs] for package, needs in NEEDS.items()}
    asked = [[[*NEEDS], [*ALWAYS, *itertools.chain(*refused.values())]]]
    asked += [[[package], commands] for package, commands in refused.items()]
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        input=json.dumps(asked),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def test_every_optional_package_is_looked_at() -> None:
    assert set(optional()) == set(NEEDS)


@pytest.mark.parametrize("package", NEEDS)
def test_what_needs_a_package_names_the_extra(told: list[Any], package: str) -> None:
    answers = told[1 + [*NEEDS].index(package)]
    for (extra, words), (_, code, err) in zip(NEEDS[package], answers, strict=True):
        assert code == 2, (words, err)
        assert len(err.strip().splitlines()) == 1, err
        assert f"[{extra}]" in err, (words, err)
        assert "pip install" in err


def test_without_any_extra_the_rest_runs(told: list[Any]) -> None:
    for words, code, err in told[0][: len(ALWAYS)]:
        assert code == 0, (words, err)
        assert "Traceback" not in err
    for words, code, err in told[0][len(ALWAYS) :]:
        assert code == 2, (words, err)
        assert len(err.strip().splitlines()) == 1, err
        assert "pip install" in err
