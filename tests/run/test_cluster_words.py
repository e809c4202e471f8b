"""What `gossamer cluster` says of machines, and how it reads the hosts of multi-learner IMPALA; without Ray."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from gossamer.cli import main
from gossamer.errors import ConfigError
from gossamer.run.cluster_findings import Joined, Seen, described, findings, remarks
from gossamer.tools.ray_hosts import ray_configuration, read_hosts

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
HEAD = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username\n"
TWO = (
    HEAD
    + 'learner,10.0.0.1,8001,0,22,ada\nlearner,10.0.0.2,8001,"0,1",22,ada\n'
    + "actor,10.0.0.3,9001,,22,ada\nactor,10.0.0.3,9002,,22,ada\n"
)
FINE = Seen(
    "10.0.0.1",
    cpus=4.0,
    memory_bytes=8 << 30,
    store_bytes=1 << 30,
    shared_bytes=1 << 30,
    processor="EPYC",
    versions={"python": "3.11.7", "torch": "2.13.0", "gossamer": "0.1.0", "ray": "2.60.0"},
    extras=("ale_py",),
)


def file_of(folder: Path, text: str) -> str:
    path = folder / "workers.csv"
    path.write_text(text)
    return str(path)


def test_hosts_become_a_configuration_that_ray_up_reads(tmp_path: Path) -> None:
    text = ray_configuration(read_hosts(file_of(tmp_path, TWO)))
    made = yaml.safe_load(text)
    assert made["provider"] == {
        "type": "local",
        "head_ip": "10.0.0.1",
        "worker_ips": ["10.0.0.2", "10.0.0.3"],
    }
    assert made["auth"] == {"ssh_user": "ada", "ssh_private_key": "~/.ssh/id_ed25519"}
    assert made["max_workers"] == made["min_workers"] == 2
    (command,) = [x for x in text.splitlines() if "gossamer train" in x]
    assert "--num-learners 2 --actors-per-learner 1" in command
    assert "topology:allreduce" in command
    assert "--cluster.gpus-per-learner 1" in command
    words = command.partition("gossamer ")[2].split()
    assert main([*words, "--show-config"]) == 0


def test_rows_of_this_machine_alone_need_no_configuration(tmp_path: Path) -> None:
    rows = read_hosts(file_of(tmp_path, HEAD + "learner,localhost,1,,,\nactor,localhost,2,,,\n"))
    assert yaml.safe_load(ray_configuration(rows)) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no column job"),
        (HEAD, "names no learner"),
        (HEAD + "actor,10.0.0.1,1,,,\n", "names no learner"),
        (HEAD + "boss,10.0.0.1,1,,,\n", "line 2: job is 'boss'"),
        (HEAD + "learner,$(reboot),1,,,\n", "line 2: ip is '$(reboot)'"),
        (HEAD + "learner,10.0.0.1,1,,99999,\n", "ssh_port is '99999'"),
        (HEAD + "learner,10.0.0.1,1,,22,-oProxyCommand\n", "ssh_username is"),
        (HEAD + "learner,10.0.0.1,1,,,\nactor,10.0.0.1,1,,,\n", "stands in line 2 already"),
        (HEAD + "learner,10.0.0.1,1,,22,ada,more\n", "line 2 has more entries"),
        (HEAD + "learner,10.0.0.1,1,,22,a\nactor,10.0.0.2,1,,22,b\n", "ssh_username differs"),
        (HEAD + "learner,localhost,1,,22,a\nactor,10.0.0.2,1,,22,a\n", "cannot reach localhost"),
    ],
)
def test_what_ray_cannot_take_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ray_configuration(read_hosts(file_of(tmp_path, text)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_is_refused_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, "job,ip,ssh_password\nlearner,10.0.0.1,geheim\n")
    assert main(["cluster", "hosts", path]) == 2
    told = capsys.readouterr()
    assert "line 2 has a password in column ssh_password" in told.err
    assert "geheim" not in told.err + told.out


def test_a_column_for_passwords_may_be_there_and_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, "job,ip,ssh_password\nlearner,10.0.0.1,\nactor,10.0.0.2, \n")
    assert main(["cluster", "hosts", path]) == 0
    assert "head_ip: " in capsys.readouterr().out


def test_files_that_cannot_be_read_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    large = tmp_path / "l.csv"
    large.write_bytes(b"x" * (2 << 20))
    for path in (tmp_path / "none.csv", tmp_path, binary, large):
        assert main(["cluster", "hosts", str(path)]) == 2
        told = capsys.readouterr()
        assert told.err.startswith("gossamer: ")
        assert told.err.count("\n") == 1


def test_a_cluster_that_is_well_has_no_findings() -> None:
    other = dataclasses.replace(FINE, address="10.0.0.2")
    assert list(findings([FINE, other])) == []
    assert list(remarks([FINE, other])) == []
    assert "ale_py" in described(FINE)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"versions": {**FINE.versions, "torch": "2.12.0"}}, "torch differs"),
        ({"versions": {}}, "python differs"),
        ({"extras": ()}, "ale_py is missing on 10.0.0.2"),
        ({"cpus": 0.0}, "offers no CPU"),
        ({"shared_bytes": 0}, "/dev/shm"),
        ({"store_bytes": 0}, "object store"),
        ({"broken": {"mujoco": "ImportError: libGL"}}, "mujoco cannot be imported on"),
        ({"silent": "nothing for 60 s"}, "does not answer (nothing for 60 s)"),
    ],
)
def test_what_would_fail_names_the_machine(changes: dict[str, object], says: str) -> None:
    other = dataclasses.replace(FINE, address="10.0.0.2", **changes)  # type: ignore[arg-type]
    found = list(findings([FINE, dataclasses.replace(FINE, address="10.0.0.3"), other]))
    assert any(says in line and "10.0.0.2" in line for line in found)
    json.dumps(dataclasses.asdict(other))


def test_links_that_are_cut_and_other_versions_here_would_fail() -> None:
    cut = Joined("10.0.0.1", "10.0.0.2", 0.0, 0.0, failed="nothing arrived for 60 s")
    me = dataclasses.replace(FINE, address="this process", versions={**FINE.versions, "ray": "2.1"})
    other = dataclasses.replace(FINE, address="10.0.0.2")
    first, second = findings([FINE, other], me, [cut])
    assert first.startswith("nothing from 10.0.0.1 arrives at 10.0.0.2 (nothing arrived for 60 s)")
    assert "2.1 on this process" in second
    (note,) = remarks([FINE, other], free_cpus=3.0)
    assert note.startswith("3 of ")


def test_processors_that_differ_are_worth_a_note() -> None:
    other = dataclasses.replace(FINE, address="10.0.0.2", processor="Xeon")
    assert list(findings([FINE, other])) == []
    (note,) = remarks([FINE, other])
    assert "no run is exact" in note


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_slurm_template_is_a_script_whose_options_ray_knows() -> None:
    (script,) = [x for x in blocks("text") if "SBATCH" in x]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    words = shlex.split(script.partition("srun")[2].replace("\\\n", " "))
    ray, ours = words[words.index("symmetric-run") :], words[words.index("--") + 2 :]
    assert main([*ours, "--show-config"]) == 0
    scripts = pytest.importorskip("ray.scripts.symmetric_run")
    known = {x for option in scripts.symmetric_run.params for x in option.opts}
    start = pytest.importorskip("ray.scripts.scripts").start
    known |= {x for option in start.params for x in option.opts}
    asked = {x.partition("=")[0] for x in ray[: ray.index("--")] if x.startswith("--")}
    assert asked <= known


def test_the_rayjob_template_has_what_kuberay_wants() -> None:
    (text,) = blocks("yaml")
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name", "image", "resources"} <= container.keys()
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[0] == "gossamer"
    assert main([*words[1:], "--show-config"]) == 0
