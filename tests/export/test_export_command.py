"""`gossamer export` on runs: what it writes plays elsewhere, and what it refuses leaves nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from playing import play, returns_told

from gossamer import cli
from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.export.card import whose_in_words
from gossamer.export.metadata import describe_run
from gossamer.record.checkpoint import Checkpoint
from gossamer.record.folder import RunFolder
from gossamer.run.evaluate import evaluate
from gossamer.run.train import train

# One process imports what exports to ONNX, which takes seconds.
pytestmark = pytest.mark.xdist_group("export")

TINY = {"placement": "inline", "evaluation.every_seconds": 0, "num_envs": 4}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    words = ["train", "CartPole-v1", "--total-env-steps", "4096", "--run-folder", str(folder)]
    words += [f"--{name}={value}" for name, value in TINY.items()]
    assert cli.main(words) == 0
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_onnx_file_plays_without_torch(
    cartpole: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    assert cli.main(["export", str(cartpole), "--format", "onnx"]) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1-ppo.onnx: obs -> action, value" in out
    assert "steps replayed: same actions" in out
    said = play("CartPole-v1-ppo.onnx", "--episodes", "3", "--seed", "7")
    assert "CartPole-v1: Gymnasium" in said
    returns = returns_told(said)
    # The same greedy games, played by Gymnasium and gossamer's policy.
    import gymnasium

    from gossamer.run.load_policy import load_policy

    policy = load_policy(str(cartpole))
    env = gymnasium.make("CartPole-v1")
    wanted = []
    for seed in (7, 8, 9):
        obs, ended, score = env.reset(seed=seed)[0], False, 0.0
        while not ended:
            out = policy(
                torch.from_numpy(obs)[None, None],
                torch.ones(1, 1, dtype=torch.bool),
                policy.initial_state(1),
            )
            action = policy.env_action(policy.distribution(out.action_params).mode())
            obs, reward, terminated, truncated, _ = env.step(int(action.item()))
            score, ended = score + float(reward), terminated or truncated
        wanted.append(score)
    assert returns == wanted


def test_an_onnx_file_plays_pong(here: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ale_py")
    given = {**TINY, "total_env_steps": 64, "run_folder": "pong", "max_episode_steps": 400}
    given |= {"unroll_length": 16, "policy.fc_size": 16}
    train(make_config("PongNoFrameskip-v4", given), quiet=True)
    assert cli.main(["export", "pong", "--format", "onnx", "--output", "pong.onnx"]) == 0
    said = play("pong.onnx", "--episodes", "1", "--max-steps", "50")
    assert "frame skip 4" in said
    assert "episode 1: 50 steps" in said


def test_a_torch_program_answers_alike(
    cartpole: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["export", str(cartpole), "--format", "pt2", "--output", "c.pt2", "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["format"]) == ("c.pt2", "pt2")
    assert max(told["largest_difference"].values()) <= 1e-5
    program = torch.export.load("c.pt2").module()
    said = program(obs=torch.zeros(5, 4))
    assert said["action"].shape == said["value"].shape == (5,)


def test_a_hub_folder_has_a_card_and_loads_again(
    cartpole: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(cartpole), "--format", "hub", "--output", "card", "--episodes", "4"]
    assert cli.main([*words, "--seed", "3"]) == 0
    names = {"README.md", "config.json", "model.safetensors"}
    assert {x.name for x in Path("card").iterdir()} - {"replay.mp4"} == names
    card = Path("card/README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["library_name"] == "gossamer"
    (result,) = head["model-index"][0]["results"]
    scores = evaluate(str(cartpole), episodes=4, seed=3)
    assert result["metrics"][0]["value"] == f"{scores.mean:.2f} +/- {np.std(scores.returns):.2f}"
    assert "| num_envs | 4 |" in card
    assert str(cartpole.parent) not in card + Path("card/config.json").read_text()

    from gossamer.export.hub import load_hub
    from gossamer.run.load_policy import load_policy

    policy, own = load_hub("card"), load_policy(str(cartpole))
    obs, start = torch.randn(1, 8, 4), torch.ones(1, 8, dtype=torch.bool)
    one, two = (x(obs, start, x.initial_state(8)).action_params for x in (policy, own))
    assert torch.equal(one, two)
    for path in Path("card").glob("[cm]o*"):
        held = path.read_bytes()
        for damage in (b"", held[: len(held) // 2], b"[]", b"\xff" * 40):
            path.write_bytes(damage)
            with pytest.raises(ConfigError, match="is no folder of an exported policy"):
                load_hub("card")
        path.write_bytes(held)


def test_a_card_says_of_how_many_learners_a_policy_is_the_average(cartpole: Path) -> None:
    config = make_config("CartPole-v1", {"topology.name": "gossip", "num_learners": 4})
    held = {"num_learners": 4, "policy_of": None, "absent": [[1, 0], [3, 0]]}
    found = Checkpoint(1, {}, held, cartpole)
    told = describe_run(RunFolder.open(cartpole), config, found, "last", None)
    assert (told["learner"], told["absent_learners"]) == ("average", [1, 3])
    assert whose_in_words(told).endswith(", average of 2 of 4 learners")
    assert whose_in_words({**told, "absent_learners": []}).endswith(", average of 4 learners")


def test_a_file_that_answers_otherwise_is_not_written(
    cartpole: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = torch.export.export

    def wrong(module: torch.nn.Module, *args: object, **more: object) -> object:
        with torch.no_grad():
            for x in module.parameters():
                x.add_(1e-3)
        return real(module, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.export, "export", wrong)
    assert cli.main(["export", str(cartpole), "--format", "pt2", "--output", "c.pt2"]) == 1
    assert (
        "does not answer as the run's policy does, so nothing was written"
        in capsys.readouterr().err
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--format", "onnx", "--output", "there.onnx"], "there.onnx exists already; remove it, or choose another with --output"),
        (["--format", "onnx", "--output", "policy.pt"], "a file of --format onnx ends in .onnx: --output policy.onnx"),
        (["--format", "pt2", "--output", "no/policy.pt2"], "no does not exist; make it first"),
        (["--format", "hub", "--output", "there.onnx"], "there.onnx exists already"),
        (["--format", "gguf"], "gguf"),
        ([], "--format"),
        (["--format", "onnx", "--episodes", "3"], "--episodes is for the model card of --format hub; leave it out"),
        (["--format", "onnx", "--checkpoint", "999"], "999"),
        (["--format", "onnx", "--learner", "3"], "learner"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    words: list[str], told: str, cartpole: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.onnx").write_text("mine")
    assert cli.main(["export", str(cartpole), *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert os.listdir() == ["there.onnx"]  # noqa: PTH208
    assert Path("there.onnx").read_text() == "mine"


def test_a_run_that_is_not_there_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", "nowhere", "--format", "onnx"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_ordinary_physical_units_are_learnt_and_exported(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pressures of 101,325 Pa and a little more or less: bias + obs * scale would cancel in float32."""
    pytest.importorskip("onnxruntime")
    settings = {
        **TINY,
        "algorithm": "a2c",
        "num_envs": 8,
        "unroll_length": 8,
        "policy.hidden_sizes": [16],
        "optimizer.learning_rate": 3e-3,
    }
    result = train(
        "cases_envs:Pressure", total_env_steps=16_000, run_folder="run", quiet=True, **settings
    )
    assert result.summary["mean_return_last_100"] > 8.0
    assert cli.main(["export", "run", "--format", "onnx", "--output", "a.onnx"]) == 0
    assert "same actions" in capsys.readouterr().out
