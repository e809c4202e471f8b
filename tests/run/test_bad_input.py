"""Bad inputs through the real command: one clear line, exit code 2, nothing created or changed."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import sys
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from refusals import refused
from sessions import QUICK, checkpoints, summary_of

from gossamer import cli
from gossamer.record.folder import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two checkpoints."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    first = ["train", "CartPole-v1", "--run-folder", str(folder), *QUICK]
    assert cli.main([*first, "--total-env-steps", "64"]) == 0
    assert cli.main(["train", "--resume", str(folder), "--total-env-steps", "128"]) == 0
    assert len(checkpoints(folder)) == 3
    return folder


@pytest.fixture
def here(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    """The folder commands are run in, with a copy of the run in it."""
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    return tmp_path


ENVIRONMENT = [
    ("train CartPol-v1", "did you mean CartPole-v1"),
    ("train CartPole-v9", "did you mean CartPole-v1"),
    ("train PongNoFrameskp-v4", "PongNoFrameskip-v4"),
    ("train PangNoFrameskip-v4", "PongNoFrameskip-v4"),
    ("train ALE/Pnog-v5", "ALE/Pong-v5"),
    pytest.param(
        "train envpool:Anr-v5",
        "envpool:Ant-v5",
        marks=pytest.mark.skipif(find_spec("envpool") is None, reason="needs envpool"),
    ),
    ("train nowhere_at_all:Env", "nowhere_at_all"),
    ("train broken_envs:Missing", "Missing"),
    ("train broken_envs:NOT_CALLABLE", "NOT_CALLABLE"),
    ("train broken_envs:nothing", "returned NoneType; it must return a gymnasium.Env\n"),
    ("train broken_envs:several", "one alone: --env.workers N steps copies of it"),
    ("train broken_envs:not_derived", "wrap it in one, whose reset(seed, options) returns"),
    ("train CartPole-v1 --env.kwargs.size 9", "functools.partial(make_maze, size=9)"),
    ("train CartPole-v1 --env-kwargs.size 9", "functools.partial(make_maze, size=9)"),
    ("train wrong_envs:the_same --num-envs 4", "returned the same environment object twice"),
    ("train wrong_envs:the_same_wrapped --num-envs 1", "returned the same environment object"),
    ("train broken_envs:DictObs", "Dict"),
    ("train broken_envs:TupleObs", "Tuple"),
    ("train broken_envs:TextObs", "Text"),
    ("train broken_envs:TextAction", "Text"),
    ("train CartPole-v1 --env.frame-skip 4", "--env.frame-skip 4 does not apply to CartPole-v1"),
    (
        "train PongNoFrameskip-v4 --env.workers 3",
        "--env.workers is 3; allowed is 0, or a divisor of the 16",
    ),
    ("train PongNoFrameskip-v4 --env.frame-skip 61", "allowed is 1 to 60"),
    ("train PongNoFrameskip-v4 --env.size 20", "allowed is 36 to 150"),
    ("train CartPole-v1 --env.workers 3 --num-envs 4", "a divisor of the 4"),
    (
        "train CartPole-v1 topology:gossip --num-learners 2 --num-envs 4 --env.workers 3",
        "a divisor of the 4",
    ),
    ("train CartPole-v1 --num-envs 4 --env-groups 2 --env.workers 4", "a divisor of the 2"),
    ("train RandomExtremAcrobot-v1", "did you mean RandomExtremeAcrobot-v1"),
    ("train CartPole-v1 --env.task-seed 1", "--env.task-seed 1 does not apply to CartPole-v1"),
    ("train CartPole-v1 --evaluation.held-out-tasks 3", "CartPole-v1 is not a family of tasks"),
    (
        "train RandomExtremeAcrobot-v1 --num-envs 4 --env.tasks-per-learner 3",
        "must divide the 4 environments of a learner: --env.tasks-per-learner 1",
    ),
    ("train RandomExtremeAcrobot-v1 --env.tasks-per-learner 0", "it must be >= 1"),
]
SETTINGS = [
    ("train", "gossamer train CartPole-v1"),
    ("train CartPole-v1 --optimizer.learning-rat 1e-3", "did you mean --optimizer.learning-rate?"),
    ("train CartPole-v1 algorithm:pop", "ppo"),
    ("train CartPole-v1 --num-envs -4", "--num-envs is -4; it must be >= 0"),
    ("train CartPole-v1 --total-env-steps 0", "it must be >= 1"),
    ("train CartPole-v1 --seed", "--seed"),
    ("train CartPole-v1 algorithm:a2c --lag 1", "use --lag 0"),
    ("train CartPole-v1 --algorithm.scale-rewards", "--algorithm.value-norm"),
    (
        "train CartPole-v1 --algorithm.deal rows --policy.core lstm",
        "can only learn from whole columns: --algorithm.deal",
    ),
    (
        "train CartPole-v1 --algorithm.deal rows --num-envs 2 --unroll-length 4 --algorithm.num-minibatches 9",
        "more than the 8 rows of a batch: --algorithm.num-minibatches 8",
    ),
    (
        "train CartPole-v1 algorithm:laser --replay-ratio 9",
        "0.1 of each batch is online; laser learns from at least 0.125",
    ),
    (
        "train CartPole-v1 --placement inline topology:diffusion --num-learners 3 --topology.adjacency [[0,1],[1,0]]",
        "topology.adjacency is 2 x 2 for 3 learner(s)",
    ),
    (
        "train CartPole-v1 --placement inline topology:diffusion --num-learners 3 --topology.link-drop 1",
        "--topology.link-drop is 1; it must be in [0, 1)",
    ),
    (
        "train CartPole-v1 --placement inline topology:allreduce --num-learners 2 --optimizer.learning-rate 1e-3 2e-3",
        "take the same steps: give one value",
    ),
    (
        "train CartPole-v1 --num-learners 3 --optimizer.learning-rate 1e-3 2e-3",
        "learning_rate has 2 values for 3 learner(s); give one value, or one per learner: "
        "--optimizer.learning-rate 0.001 0.002 0.001",
    ),
    (
        "train CartPole-v1 topology:gossip --num-learners 4 --algorithm.entropy-cost 0.01 0.02",
        "entropy_cost has 2 values for 4 learner(s); give one value, or one per learner: "
        "--algorithm.entropy-cost 0.01 0.02 0.01 0.02",
    ),
    (
        "train CartPole-v1 topology:allreduce --num-learners 2 --algorithm.entropy-cost 0.01 0.02",
        "algorithm.entropy_cost has 2 values, but learners of the allreduce topology take the same steps",
    ),
    (
        "train CartPole-v1 --num-learners 2 --algorithm.entropy-cost 0.01 -1",
        "--algorithm.entropy-cost is 0.01 -1; it must be a list, each entry >= 0: --algorithm.entropy-cost 0.01",
    ),
    (
        "train CartPole-v1 --placement inline topology:allreduce --num-learners 2 --same-start false",
        "the allreduce topology keeps all learners equal",
    ),
    (
        "train CartPole-v1 --placement inline topology:gossip --num-learners 60000",
        "GiB of memory",
    ),
    (
        "train CartPole-v1 --optimizer.momentum 0.9",
        "optimizer.momentum is 0.9, but adam knows beta1: --optimizer.beta1 0.9 --optimizer.momentum 0, or --optimizer.name rmsprop",
    ),
    ("train CartPole-v1 --num-learners 0", "--num-learners is 0; it must be in [1, 65536]"),
    ("train CartPole-v1 --num-envs 4 --actors-per-learner 5", "--actors-per-learner 4"),
    (
        "train CartPole-v1 --algorithm.num-minibatches 9 --num-envs 4 --algorithm.deal columns",
        "more than num_envs 4, and a part holds whole columns: --algorithm.num-minibatches 4, or --algorithm.deal rows",
    ),
    ("train CartPole-v1 --policy.squash", "needs continuous actions"),
    ("train CartPole-v1 --policy.torso nature", "needs images"),
    ("train CartPole-v1 --config nosuch", "nosuch"),
    ("train CartPole-v1 --config pnog", "pong"),
    ("train CartPole-v1 --config file", "file"),
]
FOLDERS = [
    ("train --resume run --total-env-steps 256 --env.episode-info", "no property episode_info"),
    ("train CartPole-v1 --run-folder run", "already holds a run; continue it with --resume run"),
    ("train CartPole-v1 --run-folder .", "--run-folder . has other runs below it, such as"),
    ("train CartPole-v1 --run-folder run/new", "--run-folder run/new is in the folder of a run,"),
    ("train CartPole-v1 --run-folder file", "cannot write run folder file"),
    ("train CartPole-v1 --run-folder file/below", "cannot write run folder file/below"),
    ("train CartPole-v1 --run-folder /dev/null/run", "cannot write run folder /dev/null/run"),
    ("train --resume nowhere", "no run 'nowhere'"),
    ("train --resume file", "no run 'file'"),
    ("train --resume .", "no run '.'"),
    ("train Acrobot-v1 --resume run", "the run to resume trains CartPole-v1, not Acrobot-v1"),
    ("train --resume run --run-folder other", "--run-folder cannot be given with --resume"),
    ("train --resume run --total-env-steps 512 --num-envs 8", "num_envs is 8"),
    ("train --resume run --total-env-steps 512 --unroll-length 4", "unroll_length is 4"),
    ("train --resume run --total-env-steps 512 --seed 2", "seed is 2"),
    ("train --resume run --total-env-steps 512 --env-groups 2", "env_groups is 2"),
    ("train --resume run --total-env-steps 512 --policy.hidden-sizes 8", "does not fit"),
    ("train --resume run --total-env-steps 512 --policy.core lstm", "does not fit"),
    ("train --resume run --total-env-steps 512 --optimizer.name rmsprop", "optimizer.name is rms"),
    ("train --resume run --total-env-steps 512 --init-from run", "--init-from cannot be given"),
    ("train CartPole-v1 --init-from nowhere", "no run 'nowhere'"),
    ("train CartPole-v1 --init-from run --policy.hidden-sizes 8 8", "does not fit this network"),
    (
        "train Acrobot-v1 --init-from run",
        "the environment has other actions than the policy learnt",
    ),
    ("train Blackjack-v1 --init-from run", "the environment's observations have another form than"),
    ("eval nowhere", "no run 'nowhere'"),
    ("eval run --checkpoint 999", "no checkpoint 999"),
    ("eval run --checkpoint best", "no checkpoint best"),
    ("eval run --video game.avi", "write .mp4 or .gif"),
    ("eval run --video nowhere/game.mp4", "the folder does not exist"),
    ("eval run --video /proc/game.mp4", "could not be written (no such file"),
    ("eval run --video /proc/game.gif", "could not be written (no such file"),
    ("eval run --episodes 0", "must be >= 1"),
    ("runs nowhere", "nowhere"),
]


@pytest.mark.parametrize(("words", "says"), [*ENVIRONMENT, *SETTINGS, *FOLDERS])
def test_refused_in_one_line(words: str, says: str, here: Path, capsys: Any) -> None:
    refused(words, capsys, says)


def test_device_cuda_without_one(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refused("train CartPole-v1 --device cuda", capsys, "use --device cpu")


@pytest.mark.parametrize(
    ("words", "module", "says"),
    [
        ("train PongNoFrameskip-v4", "ale_py", '[atari]"'),
        ("train ALE/Pong-v5", "ale_py", '[atari]"'),
        ("train HalfCheetah-v5", "mujoco", '[mujoco]"'),
        ("train LunarLander-v3", "Box2D", '[box2d]"'),
        ("train envpool:Ant-v5", "envpool", '[envpool]"'),
        ("train MiniGrid-DoorKey-5x5-v0", "minigrid", '[minigrid]"'),
        ("train VizdoomBasic-v1", "vizdoom", '[vizdoom]"'),
        ("train CartPole-v1 --tensorboard", "tensorboard", '[tensorboard]"'),
        ("train CartPole-v1 --wandb", "wandb", '[wandb]"'),
        ("train --resume run --total-env-steps 512 --wandb", "wandb", '[wandb]"'),
        ("eval run --video game.gif", "imageio", '[video]"'),
        ("eval run --video game.gif", "pygame", '[video]"'),
    ],
)
def test_missing_extras(
    words: str, module: str, says: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    hidden = [name for name in sys.modules if name.split(".")[0] == module]
    own = ("gymnasium.envs.mujoco", "gymnasium.envs.box2d")
    hidden += [name for name in sys.modules if name.startswith(own)]
    for name in hidden:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    # Where it has been imported before, its ids are known.
    for name, registered in tuple(gymnasium.registry.items()):
        if str(registered.entry_point).startswith(f"{module}."):
            monkeypatch.delitem(gymnasium.registry, name)
    refused(words, capsys, says)


def test_a_full_disk_at_the_start(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
        refused("train CartPole-v1 --run-folder new", capsys, "only 1 MiB free")
        refused("train CartPole-v1", capsys, "only 1 MiB free")
    # The file system promises room and then has none.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        for words in ("train CartPole-v1 --run-folder new", "train --resume run --seed 1"):
            code = cli.main([*words.split(), "--total-env-steps", "512"])
            err = capsys.readouterr().err
            assert (code, err.count("\n")) == (2, 1), err
            assert "File too large" in err
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (here / "new").exists()
    assert checkpoints(here / "run")
    assert json.loads((here / "run" / "config.json").read_text())["total_env_steps"] == 128


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(here: Path, capsys: Any) -> None:
    (here / "closed").mkdir(mode=0o500)
    refused("train CartPole-v1 --run-folder closed/run", capsys, "Permission denied")
    refused("train CartPole-v1 --run-folder closed", capsys, "Permission denied")


def test_no_room_in_shared_memory(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multiprocessing.context.BaseContext.RawArray", full)
    words = "train CartPole-v1 --num-envs 4 --env.workers 2"
    refused(words, capsys, "/dev/shm or the folder TMPDIR (No space left on device)")
    words = shlex.split("train CartPole-v1 --run-folder new --total-env-steps 64")
    assert cli.main([*words, *QUICK]) == 0, "without workers it is not needed"


def damage(folder: Path, number: int) -> None:
    path = folder / "checkpoints" / str(number) / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_every_checkpoint_damaged(here: Path, capsys: Any) -> None:
    for number in checkpoints(here / "run"):
        damage(here / "run", number)
    refused("train --resume run --total-env-steps 512", capsys, "no intact checkpoint")
    refused("eval run", capsys, "no intact checkpoint")
    refused(f"eval run --checkpoint {number}", capsys, "is damaged")


def test_the_newest_checkpoint_damaged(here: Path, capsys: Any) -> None:
    older, newest = checkpoints(here / "run")[-2:]
    damage(here / "run", newest)
    assert cli.main(["eval", "run", "--episodes", "1"]) == 0
    assert f"; using {older} instead" in capsys.readouterr().err.splitlines()[0]
    assert cli.main(["train", "--resume", "run", "--total-env-steps", "128"]) == 0
    err = capsys.readouterr().err
    assert f"gossamer: checkpoint {newest}" in err.splitlines()[0]
    assert f"; using {older} instead" in err.splitlines()[0]
    assert summary_of(here / "run")["env_steps"] >= 128
    assert cli.main(["eval", "run", "--episodes", "1"]) == 0, "and it is whole again"
    assert "checkpoint last, 1 episode, greedy, seed 1: return" in capsys.readouterr().out


def test_a_run_without_checkpoint(here: Path, capsys: Any) -> None:
    shutil.rmtree(here / "run" / "checkpoints")
    refused("eval run", capsys, "no checkpoint in")
    refused("train --resume run", capsys, "no checkpoint in")


def test_two_processes_in_one_folder(here: Path, capsys: Any) -> None:
    other = RunFolder(here / "run")
    other.lock()
    try:
        words = "train --resume run --total-env-steps 512"
        refused(words, capsys, f"in use by process {os.getpid()}")
    finally:
        other.unlock()
    assert cli.main(["train", "--resume", "run", "--total-env-steps", "160"]) == 0


def test_what_learners_processes_refuse_leaves_a_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "train CartPole-v1 algorithm:vtrace topology:gossip --num-learners 2 --run-folder run"
    assert cli.main([*words.split(), *QUICK, "--total-env-steps", "64"]) == 0
    capsys.readouterr()
    names = ("config.json", "layers.json", "meta.json", "mixing.json", "summary.json")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in names}
    again = "train --resume run --total-env-steps 128"
    assert cli.main([*again.split(), "algorithm:impact"]) == 2
    assert "does not fit these settings" in capsys.readouterr().err
    assert before == {name: (tmp_path / "run" / name).read_bytes() for name in names}
    assert cli.main(again.split()) == 0
    assert summary_of(tmp_path / "run")["env_steps"] >= 128
