"""What `gossamer cluster` says of machines; without Ray."""

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
from gossamer.run.cluster_findings import Joined, Seen, described, findings, remarks

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
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


def test_a_machine_without_cpus_is_a_fault_only_where_no_other_offers_any() -> None:
    head = dataclasses.replace(FINE, address="10.0.0.2", cpus=0.0)
    assert list(findings([FINE, head])) == []
    (note,) = remarks([FINE, head])
    assert note.startswith("10.0.0.2 offers no CPU")
    silent = dataclasses.replace(FINE, address="10.0.0.3", silent="nothing for 60 s")
    _, wrong = findings([head, silent])
    assert wrong.startswith("10.0.0.2 offers no CPU")
    assert list(remarks([head, silent])) == []


def test_a_machine_that_has_no_dev_shm_needs_no_room_there() -> None:
    mac = dataclasses.replace(FINE, address="10.0.0.2", cpus=0.0, shared_bytes=None)
    assert list(findings([FINE, mac])) == []
    assert json.loads(json.dumps(dataclasses.asdict(mac)))["shared_bytes"] is None


@pytest.mark.parametrize(("platform", "has"), [("linux", True), ("darwin", False)])
def test_only_linux_is_asked_for_dev_shm(
    platform: str, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = pytest.importorskip("gossamer.run.placements.cluster.check")
    monkeypatch.setattr(check.sys, "platform", platform)
    assert (check.shared_bytes() is not None) == has


@pytest.mark.parametrize(
    ("words", "file"), [([], "workers.csv"), (["my hosts.csv"], "'my hosts.csv'")]
)
def test_who_gives_a_list_of_hosts_is_told_the_script(
    words: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "hosts", *words]) == 2
    told = capsys.readouterr().err
    assert f"python scripts/ray_hosts.py {file} > hosts.yaml" in told
    assert told.count("\n") == 1


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_slurm_template_is_a_script_whose_options_ray_knows() -> None:
    (script,) = [x for x in blocks("text") if "SBATCH" in x]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    words = shlex.split(script.partition("srun")[2].replace("\\\n", " "))
    ray, ours = words[words.index("symmetric-run") :], words[words.index("gossamer") + 1 :]
    assert main([*ours, "--show-config"]) == 0
    scripts = pytest.importorskip("ray.scripts.symmetric_run")
    known = {x for option in scripts.symmetric_run.params for x in option.opts}
    start = pytest.importorskip("ray.scripts.scripts").start
    known |= {x for option in start.params for x in option.opts}
    asked = {x.partition("=")[0] for x in ray[: ray.index("--")] if x.startswith("--")}
    assert asked <= known


def test_the_kubernetes_file_has_what_kuberay_wants() -> None:
    """A cluster that stays, with the run's folder on a volume, and the command that is run in its head."""
    (text,) = blocks("yaml")
    volume, cluster = yaml.safe_load_all(text)
    assert volume["kind"] == "PersistentVolumeClaim"
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name", "image", "resources"} <= container.keys()
    pod = spec["headGroupSpec"]["template"]["spec"]
    (kept,) = pod["volumes"]
    assert kept["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    (mounted,) = pod["containers"][0]["volumeMounts"]
    assert mounted["name"] == kept["name"]
    (command,) = [
        x
        for block in blocks("text")
        for x in block.replace("\\\n", " ").splitlines()
        if "kubectl exec" in x
    ]
    words = shlex.split(command.partition(" -- ")[2])
    assert words[0] == "gossamer"
    assert words[words.index("--run-folder") + 1].startswith(mounted["mountPath"])
    assert main([*words[1:], "--show-config"]) == 0
