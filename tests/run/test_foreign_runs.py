"""What a run folder from elsewhere names is not imported until the user names it, or trusts the run."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import refusals
import torch
from runs import state_of
from sessions import QUICK

import gossamer
from gossamer import cli
from gossamer.config import code_in
from gossamer.errors import ConfigError
from gossamer.record.origin import began_here, mark

MODULE = """
from pathlib import Path
import gymnasium
Path(__file__).with_name("sprung").touch()
def make():
    return gymnasium.make("CartPole-v1")
"""
TINY = ["--total-env-steps", "64", *QUICK]


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of the user's own, and a run of its environment that began there."""
    folder = tmp_path_factory.mktemp("began")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setattr(sys, "path", list(sys.path))
        patch.chdir(folder)
        (folder / "trap.py").write_text(MODULE)
        assert cli.main(["train", "trap:make", "--run-folder", "run", *TINY]) == 0
        forget(folder)
    shutil.copytree(folder, kept(folder))
    return folder


def kept(folder: Path) -> Path:
    return folder.with_name(f"{folder.name} as it was")


@pytest.fixture
def here(began: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as it was: a run's mark is of the place that its code is in."""
    shutil.rmtree(began)
    shutil.copytree(kept(began), began)
    monkeypatch.setenv("XDG_STATE_HOME", str(began / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(began)
    forget(began)  # of the test before
    return began


def forget(folder: Path) -> None:
    """As if nothing had been imported yet."""
    sys.modules.pop("trap", None)
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    (folder / "sprung").unlink(missing_ok=True)


def come_from_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "another"))


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(words: str, here: Path, capsys: Any, *says: str) -> None:
    refusals.refused(words, capsys, *says)
    assert not (here / "sprung").exists(), "nothing was imported"


def test_a_run_that_began_here_is_played_and_continued(here: Path) -> None:
    token = here / "state" / "gossamer" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert cli.main(["eval", "run", "--episodes", "1"]) == 0
    forget(here)
    assert cli.main(["train", "--resume", "run", "--total-env-steps", "128"]) == 0
    forget(here)
    shutil.move("run", "moved")
    assert cli.main(["eval", "moved", "--episodes", "1"]) == 0, "sealed again when it was continued"
    assert (here / "sprung").exists()


def test_an_encoder_from_elsewhere_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    come_from_elsewhere(here, monkeypatch)
    policy = json.loads(Path("run/config.json").read_text())["policy"]
    encoders = {"a": {"name": "like:b"}, "b": {"name": "trap:Net"}}
    rewrite(Path("run/config.json"), env_id="CartPole-v1", policy={**policy, "encoders": encoders})
    for words in ("eval run", "train --resume run --total-env-steps 128"):
        refused(words, here, capsys, "import and call trap:Net (policy.encoders.b.name", "--trust")


def test_one_from_elsewhere_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    come_from_elsewhere(here, monkeypatch)
    refused(
        "eval run",
        here,
        capsys,
        "import and call trap:make",
        "gossamer eval run --env trap:make",
        "--trust",
    )
    resume = "train --resume run --total-env-steps 128"
    refused(resume, here, capsys, "gossamer train trap:make --resume run", "--trust")
    refused("eval run --env CartPole-v1", here, capsys, "import and call trap:make")
    shutil.copytree("run", "{a};b")
    rewrite(Path("{a};b/config.json"), env_id="trap:make;c")
    refused("eval {a};b", here, capsys, "gossamer eval '{a};b' --env 'trap:make;c'")
    refused("train --resume {a};b", here, capsys, "gossamer train 'trap:make;c' --resume '{a};b'")
    for call in (
        gossamer.load_policy,
        gossamer.evaluate,
        lambda run: gossamer.make_config(resume=run),
    ):
        with pytest.raises(ConfigError, match=r"trap:make .*env_id='trap:make', or trust=True"):
            call("run")
    assert not (here / "sprung").exists()


@pytest.mark.parametrize(
    "words",
    [
        "eval run --episodes 1 --env trap:make",
        "eval run --episodes 1 --trust",
        "train trap:make --resume run --total-env-steps 128",
        "train --trust --resume run --total-env-steps 128",
        "train --config again.json --resume run --total-env-steps 128",
    ],
)
def test_named_again_or_trusted_it_is_used(
    words: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    come_from_elsewhere(here, monkeypatch)
    (here / "again.json").write_text('{"env_id": "trap:make"}')
    assert cli.main(words.split()) == 0
    assert (here / "sprung").exists()


def test_an_environment_whose_module_has_another_name_now_is_played_by_it(
    here: Path, capsys: Any
) -> None:
    shutil.copy("trap.py", "renamed.py")
    refused(
        "eval run --env renamed:make", here, capsys, "trained in trap:make, not in renamed:make"
    )
    Path("trap.py").unlink()
    assert cli.main(["eval", "run", "--episodes", "1", "--env", "renamed:make"]) == 0
    assert cli.main(["eval", "run", "--episodes", "1", "--env", "MountainCar-v0"]) == 2


def test_a_module_with_a_colon_in_its_name_is_no_way_around(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (here / "nowhere:trap.py").write_text(MODULE)
    rewrite(here / "run" / "config.json", env_id="nowhere:trap:make")
    come_from_elsewhere(here, monkeypatch)
    for words in ("eval run --episodes 1", "train --resume run --total-env-steps 128"):
        refused(words, here, capsys, "would import and call nowhere:trap:make")


def test_the_same_in_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    come_from_elsewhere(here, monkeypatch)
    assert gossamer.load_policy("run", env_id="trap:make").spec.env_id == "trap:make"
    assert gossamer.evaluate("run", episodes=1, trust=True).returns
    assert gossamer.make_config("trap:make", resume="run").env_id == "trap:make"
    assert gossamer.make_config(resume="run", trust=True).env_id == "trap:make"


@pytest.mark.parametrize("name", ["os:abort", "trap.sub:make", "__main__:x", "posix:abort"])
def test_another_runs_mark_is_good_for_nothing(name: str, here: Path, capsys: Any) -> None:
    """The folder of a good run, of which only the settings were changed."""
    rewrite(here / "run" / "config.json", env_id=name)
    refused("eval run", here, capsys, f"import and call {name}")
    refused("train --resume run --total-env-steps 128", here, capsys, f"import and call {name}")


def test_nor_for_a_module_of_that_name_in_another_place(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shutil.copytree("run", "sent/run")
    shutil.copy("trap.py", "sent/trap.py")
    monkeypatch.chdir(here / "sent")
    refused("eval run", here / "sent", capsys, "import and call trap:make")


def test_a_network_begins_with_anyones_parameters(here: Path) -> None:
    """Only the parameters of --init-from are read: its environment is the new run's."""
    assert cli.main(["train", "CartPole-v1", "--run-folder", "good", *TINY]) == 0
    rewrite(here / "good" / "config.json", env_id="os:abort")
    words = ["train", "CartPole-v1", "--run-folder", "new", "--init-from", "good", "--seed", "7"]
    # Nothing is learnt, so that what it begins with is what it ends with.
    assert cli.main([*words, *TINY, "--optimizer.learning-rate", "1e-30"]) == 0
    theirs, own = (state_of(here / name) for name in ("good", "new"))
    networks = [name for name in theirs if re.match(r"learner\.policy\..*(weight|bias)$", name)]
    assert networks
    assert all(torch.equal(theirs[name], own[name]) for name in networks)


@pytest.mark.parametrize("broken", ["a file", "unreadable", "no home"])
def test_without_a_token_a_run_goes_on_and_is_named_again(
    broken: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    capsys.readouterr()
    if broken == "a file":
        monkeypatch.setenv("XDG_STATE_HOME", str(here / "trap.py"))
    elif broken == "unreadable":
        (here / "state" / "gossamer" / "token").chmod(0o644)
    else:
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "nowhere")
    words = ["train", "trap:make", "--run-folder", "new", *TINY]
    assert cli.main(words) == 0
    err = capsys.readouterr().err
    assert "trap:make must be named again when this run is resumed or evaluated" in err
    forget(here)
    refused("eval new", here, capsys, "--env trap:make")
    assert cli.main(["eval", "new", "--env", "trap:make", "--episodes", "1"]) == 0


def test_trust_is_for_a_run_that_is_continued(here: Path, capsys: Any) -> None:
    refused("train CartPole-v1 --trust", here, capsys, "--resume RUN")
    assert cli.main(["train", "--resume", "run", "--show-config"]) == 0, "looking imports nothing"
    assert not (here / "sprung").exists()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"env_id": "a:b"}, ["env_id"]),
        ({"env-id": "a.b:c-v0"}, ["env_id"]),
        ({"env_id": "envpool:Ant-v5"}, []),
        ({"env_id": "ALE/Pong-v5"}, []),
        ({"algorithm": "a:b"}, ["algorithm"]),
        ({"algorithm": {"name": "a:b"}}, ["algorithm.name"]),
        ({"algorithm.name": "a:b"}, ["algorithm.name"]),
        ({"replays": [{"name": "queue"}, {"name": "a:b"}]}, ["replays.1.name"]),
        ({"replays": ["queue", "a:b"]}, ["replays.1"]),
        ({"run_folder": "C:/x", "init_from": "a:b"}, []),
        ({"replays": [{"name": "uniform", "path": "a:b"}]}, []),
        ({"topology": {"name": "gossip", "graph": "a:b"}}, []),
    ],
)
def test_what_settings_would_import(settings: dict[str, Any], names: list[str]) -> None:
    assert sorted(code_in(settings)) == names


@pytest.mark.parametrize(
    "meta", [None, [], {}, {"origin": 3}, {"origin": {"run": [], "digest": {}}}]
)
def test_a_damaged_meta_shows_nothing(meta: Any) -> None:
    mark(["os:abort"])
    assert not began_here(meta, ["os:abort"])


def test_a_mark_is_for_its_run_and_code() -> None:
    origin = mark(["os:abort"])
    assert began_here({"origin": origin}, ["os:abort"])
    assert not began_here({"origin": origin}, ["os:_exit"])
    assert not began_here({"origin": origin}, ["os:abort", "os:_exit"])
    assert not began_here({"origin": {**origin, "run": "other"}}, ["os:abort"])
