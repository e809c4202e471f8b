"""Learners on a Ray cluster: what they compute, who dies, and how a run goes on elsewhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from runs import assert_same, pids_of, processes_of, rows_of, state_of
from sessions import env_steps_logged, slow, summary_of
from waiting import wait_for

from gossamer.config import make_config, to_dict
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.wire import Address
from gossamer.record.folder import RunFolder
from gossamer.run.train import train

ray = pytest.importorskip("ray", reason="Ray is an optional extra")
# One process has them all, and one cluster; nothing else takes as long, so it begins with them.
pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

WAIT_SECONDS = 240.0
"""Longest wait for a cluster: on a busy machine it starts a process in a minute."""
SMALL: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 8,
    "total_env_steps": 3 * 4 * 8 * 6,
    "num_learners": 3,
    "lag": "0",
    "evaluation.every_seconds": 0.0,
    "policy.hidden_sizes": [8],
    "optimizer.schedule": "constant",
    "optimizer.learn_start": 0,
    "algorithm": {"name": "ppo", "passes": 2, "num_minibatches": 2},
    "cluster.cpus_per_learner": 1,
    "cluster.wait_seconds": WAIT_SECONDS,
}
SLOW = "counting_envs:Sleeping"
"""An environment beside which a machine has time for others to start; four make a hundred steps a second."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Any:
    """Two nodes with two CPUs each, on this machine."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    support = str(Path(__file__).parents[1] / "support")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [support, path := os.environ.get("PYTHONPATH")])
    )
    args = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=args)
    made.add_node(num_cpus=2, object_store_memory=80 << 20)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path


def run(
    folder: Path, env_id: str = "CartPole-v1", *, resume: bool = False, **settings: Any
) -> Path:
    given = {**SMALL, **settings, "run_folder": str(folder)}
    train(make_config(env_id, given), quiet=True, resume=folder if resume else None)
    return folder


def run_until(happened: Callable[[], object], folder: Path, env_id: str, **settings: Any) -> None:
    """Train until what a test does meanwhile, in a thread, is done: an interrupt ends it, no number of steps."""
    failed: list[BaseException] = []
    over = threading.Event()

    def interrupt() -> None:
        try:
            happened()
        except BaseException as error:
            failed.append(error)
        finally:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(folder, env_id, **{"total_env_steps": 10_000_000, **settings})
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("topology", ["diffusion", "gossip", "allreduce"])
@pytest.mark.slow  # the next test says the same of two topologies, each in one direction
def test_in_lock_step_a_cluster_computes_what_one_process_does(
    tmp_path: Path, topology: str
) -> None:
    chosen: dict[str, Any] = {"topology.name": topology}
    if topology == "allreduce":
        chosen["num_learners"] = 2
    else:
        chosen["topology.max_staleness"] = 0
    if topology == "gossip":
        chosen["topology.every"] = "versions"
    one = run(tmp_path / "inline", **chosen, placement="inline")
    other = run(tmp_path / "cluster", **chosen, placement="cluster")
    assert_same(one, other, ordered=False)


@pytest.mark.parametrize(
    ("first", "then", "topology"),
    [("cluster", "inline", "allreduce"), ("inline", "cluster", "diffusion")],
)
def test_a_run_goes_on_from_a_cluster_and_on_one(
    tmp_path: Path, first: str, then: str, topology: str
) -> None:
    """The whole is equal only if a cluster computes what one process does."""
    two: dict[str, Any] = {"topology.name": topology, "num_learners": 2}
    whole = run(tmp_path / "whole", **two, placement="inline")
    folder = tmp_path / first
    run(folder, **two, total_env_steps=SMALL["total_env_steps"] // 2, placement=first)
    run(folder, **two, placement=then, resume=True)
    assert_same(whole, folder, ordered=False)
    told = [x["cluster/hosts"] for x in rows_of(folder) if "cluster/hosts" in x]
    assert told
    assert set(told) <= {1, 2}  # nodes of one machine have one address


@pytest.mark.slow  # beside `test_transports`, where both are on one machine
def test_gradients_may_be_averaged_by_torch_between_machines(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"topology.name": "allreduce", "num_learners": 2}
    one = state_of(run(tmp_path / "inline", **chosen, placement="inline"))
    folder = run(tmp_path / "far", **chosen, **{"topology.transport": "gloo"}, placement="cluster")
    other = state_of(folder)
    learnt = [name for name in one if ".policy." in name]
    assert learnt
    for name in learnt:  # gloo sums in an order of its own
        torch.testing.assert_close(other[name], one[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # beside its actors, below, it is one too
def test_one_learner_is_a_host_too(tmp_path: Path) -> None:
    settings = {"num_learners": 1, "checkpoint_every_seconds": 0.0}
    one = run(tmp_path / "inline", **settings, placement="inline")
    other = run(tmp_path / "cluster", **settings, placement="cluster")
    assert_same(one, other, ordered=False)


ACTING: dict[str, Any] = {
    "num_learners": 1,
    "num_envs": 6,
    "env_groups": 2,
    "lag": "1",
    "total_env_steps": 6 * 8 * 8,
    "algorithm": {"name": "vtrace"},
    "checkpoint_every_seconds": 0.0,
}


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("CartPole-v1", {"policy.core": "lstm", "policy.core_size": 4}),
        slow("PongNoFrameskip-v4", {"policy.fc_size": 16, "num_envs": 4}),
    ],
)
def test_actors_on_other_machines_collect_what_one_process_does(
    tmp_path: Path, env_id: str, settings: dict[str, Any]
) -> None:
    one = run(tmp_path / "inline", env_id, **{**ACTING, **settings}, placement="inline")
    far = {**ACTING, **settings, "actors_per_learner": 2, "placement": "cluster"}
    assert_same(one, run(tmp_path / "cluster", env_id, **far), ordered=False)
    actors = processes_of(tmp_path / "cluster", "actor")
    assert [x["actor"] for x in actors] == [0, 1]
    assert all(x["machine"] and x["pid"] for x in actors)


@pytest.mark.slow  # beside learners that die, below, and actors on this machine, in `test_actor_processes`
def test_an_actor_elsewhere_that_dies_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def pid() -> int:
        actors = processes_of(folder, "actor")
        return next(iter(x["pid"] for x in actors if x["actor"] == 1), 0)

    def kill() -> None:
        wait_until(lambda: env_steps_logged(folder) > 100 and pid())
        victim = pid()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: pid() not in (0, victim))
        steps = env_steps_logged(folder)
        wait_until(lambda: env_steps_logged(folder) > steps + 200)

    far = {**ACTING, "lag": "free", "total_env_steps": 10_000_000, "actors_per_learner": 2}
    run_until(kill, folder, SLOW, **far, placement="cluster")
    assert "actor 1 has died" in (folder / "log.txt").read_text()


@pytest.mark.slow
def test_an_actor_that_is_gone_before_it_has_called_is_placed_again(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:  # as soon as it is there, which is seconds before it knows its learner
        def found() -> bool:
            for process in psutil.process_iter(["cmdline"]):
                if (process.info["cmdline"] or [""])[0].startswith("ray::ActorHost"):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                        killed.append(process.pid)
            return bool(killed)

        wait_until(found)

    thread = threading.Thread(target=kill)
    thread.start()
    run(tmp_path / "run", **ACTING, actors_per_learner=1, placement="cluster")
    thread.join()
    assert killed
    assert env_steps_logged(tmp_path / "run") >= ACTING.get(
        "total_env_steps", SMALL["total_env_steps"]
    )


def test_whoever_dies_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed: list[str] = []

    def kill() -> None:
        """First the process of learner 1, later the agent of learner 2."""
        wait_until(lambda: running(folder) == {0, 1, 2})
        wait_until(lambda: env_steps_logged(folder) > 100)
        learners = pids_of(folder)
        os.kill(learners[1], signal.SIGKILL)
        killed.append("process")
        wait_until(lambda: restarts() == 1)
        agent = psutil.Process(learners[2]).parent()
        while agent is not None and not agent.name().startswith("ray::"):
            agent = agent.parent()
        assert agent is not None
        agent.kill()
        killed.append("agent")
        wait_until(lambda: restarts() == 2)
        wait_until(lambda: running(folder) == {0, 1, 2})
        steps = env_steps_logged(folder)
        wait_until(lambda: env_steps_logged(folder) > steps + 200)
        wait_until(lambda: any(x.get("cluster/sent_bytes_per_second") for x in rows_of(folder)))
        # Learner 1 hears learner 0.
        wait_until(lambda: any("topology/staleness_updates_of_0" in x for x in rows_of(folder)))

    def restarts() -> int:
        return sum(x["restarts"] for x in processes_of(folder, "learner"))

    run_until(kill, folder, SLOW, **{"topology.name": "gossip"}, placement="cluster")
    assert killed == ["process", "agent"]
    assert summary_of(folder)["restarts"] == 2
    log = (folder / "log.txt").read_text()
    assert "Learner 1 died (signal 9) and was restarted" in log
    assert "Learner 2 died (on " in log
    assert {x["machine"] for x in processes_of(folder, "learner")} != {""}


def test_machines_join_and_leave_while_it_trains(tmp_path: Path, cluster: Any) -> None:
    folder = tmp_path / "run"
    # A learner fills a machine, so that fewer processes have to start.
    settings: dict[str, Any] = {"topology.name": "gossip", "cluster.cpus_per_learner": 2}
    settings |= {"cluster.min_learners": 2, "checkpoint_every_seconds": 1.0}
    given = {**SMALL, **settings, "total_env_steps": 10_000_000, "run_folder": str(folder)}
    config = to_dict(make_config(SLOW, {**given, "placement": "cluster"}))
    code = "import json, signal, sys; from gossamer.config import from_dict; "
    code += "from gossamer import train; "
    # A shell that starts things in the background makes them deaf to Ctrl-C.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "train(from_dict(json.loads(sys.argv[1])))"
    trains = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(config)],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    node = None
    try:
        wait_until(lambda: env_steps_logged(folder) > 100)
        wait_until(lambda: running(folder) == {0, 1})
        node = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
        wait_until(lambda: running(folder) == {0, 1, 2})
        steps = env_steps_logged(folder)
        wait_until(lambda: env_steps_logged(folder) > steps + 200)
        cluster.remove_node(node, allow_graceful=False)
        node = None
        wait_until(lambda: running(folder) == {0, 1})
        trains.send_signal(signal.SIGINT)
        # It has saved, and the signal is Python's own again.
        assert trains.wait(WAIT_SECONDS) == -signal.SIGINT
    finally:
        trains.kill()
        trains.wait()
        if node is not None:
            cluster.remove_node(node, allow_graceful=False)
    log = (folder / "log.txt").read_text()
    assert "2 on no machine yet" in log
    assert "learner 2 has joined, on " in log
    assert "Learner 2 died (on " in log
    learnt = summary_of(folder)["env_steps"]
    (absent,) = RunFolder.open(folder).checkpoints().load().state["absent"]
    assert absent == [2, 0], "in its place, a copy"
    # Whoever was away is in the checkpoint too.
    more: dict[str, Any] = {**settings, "total_env_steps": learnt + 300}
    run(folder, SLOW, **more, placement="inline", resume=True)
    assert summary_of(folder)["env_steps"] >= learnt + 300
    assert any(name.startswith("2/learner.policy.") for name in state_of(folder))


def running(folder: Path) -> set[int]:
    return {x["rank"] for x in processes_of(folder, "learner") if x["pid"]}


def wait_until(happened: Callable[[], object]) -> None:
    wait_for(happened, "what a cluster does", seconds=WAIT_SECONDS, pause_seconds=0.05)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_is_heard_while_no_machine_has_room(tmp_path: Path) -> None:
    class Tenant:
        def here(self) -> bool:
            return True

    tenants = [ray.remote(num_cpus=2)(Tenant).remote() for _ in range(2)]
    folder = tmp_path / "run"

    def wait() -> None:
        wait_until((folder / "config.json").exists)
        time.sleep(2.0)  # nothing tells that it waits for a place

    try:
        ray.get([x.here.remote() for x in tenants], timeout=WAIT_SECONDS)
        # It would wait for longer than this test may take.
        run_until(wait, folder, SLOW, placement="cluster", **{"cluster.wait_seconds": 10_000.0})
        assert env_steps_logged(folder) == 0
        no_place = r"no place in the cluster for .*each host needs 1 CPUs, and 0 CPUs are free; "
        with pytest.raises(RunFailed, match=no_place):
            run(tmp_path / "other", placement="cluster", **{"cluster.wait_seconds": 1.0})
    finally:
        for one in tenants:
            ray.kill(one)
        wait_until(lambda: ray.available_resources().get("CPU", 0.0) >= 4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cluster.cpus_per_learner": 9}, "3 x 9 CPUs are asked for, but the cluster has 4"),
        ({"cluster.min_learners": 4}, "cluster.min_learners is 4, but there are 3 learners"),
        (
            {"cluster.min_learners": 2, "topology.name": "allreduce"},
            "with topology allreduce no learner goes on without the others",
        ),
        (
            {"cluster.min_learners": 2, "topology.max_staleness": 0, "learners_per_process": 2},
            "in lock-step learners that share a process cannot join those that run",
        ),
        ({"cluster.gpus_per_learner": 0.5}, "GPUs are asked for, but the cluster has 0"),
        (
            {"replay_ratio": 1.0, "replays.1.name": "uniform", "replays.1.shared": True},
            "no memory in common",
        ),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    if "replay_ratio" in settings:
        settings = {**settings, "algorithm": {"name": "vtrace"}}
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "run", **{"topology.name": "gossip", **settings}, placement="cluster")
    assert not (tmp_path / "run").exists()


def test_an_address_where_no_cluster_answers_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gossamer.run.placements.cluster import joining

    for address in ("127.0.0.1:1", "nowhere.invalid:6379", "localhost:99999"):
        with pytest.raises(ConnectionError, match="takes no connection at port"):
            joining.show_token_if_asked(address)
    for address in ("ray://localhost:10001", "localhost", "localhost:ray"):
        with pytest.raises(ValueError, match="it must be the host:port"):
            joining.show_token_if_asked(address)
    monkeypatch.setattr(joining, "ANSWER_SECONDS", 2.0)
    says = "does not answer as a Ray cluster does"
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ConnectionError, match=says),
    ):
        joining.show_token_if_asked(f"127.0.0.1:{silent.getsockname()[1]}")


def test_without_ray_the_command_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *x: None if name == "ray" else found(name, *x)
    )
    with pytest.raises(ConfigError, match=r"needs Ray: .*pip install .*cluster.*--placement local"):
        run(tmp_path / "run", **{"topology.name": "gossip"}, placement="cluster")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_shown_the_users(tmp_path: Path) -> None:
    """`ray start` asks for a token once the user has one, which a first run of a cluster of its own makes."""
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("0123456789abcdef" * 4)
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    program = """
import sys
from ray._private.authentication import authentication_token_setup as setup
setup.enable_token_auth_by_default()
from ray.cluster_utils import Cluster
made = Cluster(True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False})
print(made.address, flush=True)
sys.stdin.read()
made.shutdown()
"""
    words = ["train", "CartPole-v1", "--placement", "cluster", "--cluster.cpus-per-learner", "1"]
    words += ["--total-env-steps", "64", "--num-envs", "4", "--unroll-length", "8"]
    words += ["--evaluation.every-seconds", "0", "--run-folder", str(tmp_path / "run")]
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as asks:
        assert asks.stdout is not None
        address = asks.stdout.readline().strip()
        refused, done = (
            subprocess.run(
                [sys.executable, "-m", "gossamer", *words, "--cluster.address", address],
                env={**environment, **more},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            for more in ({"RAY_AUTH_TOKEN": "f" * 64}, {})
        )
        asks.communicate(timeout=60)
    assert refused.returncode == 2, refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "is not its own: copy ~/.ray/auth_token from its head" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "done: total_env_steps reached" in done.stderr


def test_check_tells_of_every_machine_and_how_they_are_joined() -> None:
    from gossamer.run.placements.cluster.check import check_cluster

    text, fine = check_cluster("", as_json=True, answer_seconds=WAIT_SECONDS)
    told = json.loads(text)
    assert [x["silent"] for x in told["machines"]] == ["", ""]
    assert fine == (not told["wrong"])
    assert all(x["versions"]["torch"] for x in told["machines"])
    assert len(told["links"]) == 2
    assert all(x["mebibytes_per_second"] > 0 for x in told["links"])


def test_check_tells_which_machine_does_not_answer_gossamers_own_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A port that is taken, so that nobody else gets it, and at which nobody listens.
    with socket.socket() as silent:
        silent.bind(("", 0))
        told_of_port(silent.getsockname()[1], monkeypatch)


def told_of_port(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.run.placements.cluster import check

    answers = check.Looker().listen()
    others = [answers, answers._replace(token="guess"), Address("127.0.0.1", port, "token")]
    failed = check.Looker().call(dict(enumerate(others)))
    assert failed.keys() == {1, 2}
    assert failed[2] == f"port {port}: [Errno 111] Connection refused"
    # As a firewall that lets Ray's ports through.
    looker, called = check.Looker, check.Looker.call

    class Behind(looker):
        def call(self, others: Any) -> dict[int, str]:
            return called(self, {x: y._replace(port=port) for x, y in others.items()})

    monkeypatch.setattr(check, "Looker", Behind)
    text, fine = check.check_cluster("", as_json=False, answer_seconds=WAIT_SECONDS)
    assert not fine
    assert "2 machines" in text
    assert text.count(f"(port {port}: [Errno 111] Connection refused)") == 2
