"""The CSV of workers of multi-learner IMPALA becomes a configuration for `ray up`, and a password in it is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from script_runs import run_script

from gossamer.cli import main

HEAD = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username\n"
TWO = (
    HEAD
    + 'learner,10.0.0.1,8001,0,22,ada\nlearner,10.0.0.2,8001,"0,1",22,ada\n'
    + "actor,10.0.0.3,9001,,22,ada\nactor,10.0.0.3,9002,,22,ada\n"
)


def configuration(folder: Path, text: str) -> str:
    """Return what the script prints for a CSV."""
    (folder / "workers.csv").write_text(text)
    done = run_script("ray_hosts.py", folder / "workers.csv")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refusal(*words: str | Path) -> str:
    """Return the one line in which the script refuses."""
    done = run_script("ray_hosts.py", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_hosts_become_a_configuration_that_ray_up_reads(tmp_path: Path) -> None:
    text = configuration(tmp_path, TWO)
    made = yaml.safe_load(text)
    assert made["provider"] == {
        "type": "local",
        "head_ip": "10.0.0.1",
        "worker_ips": ["10.0.0.2", "10.0.0.3"],
    }
    assert made["auth"] == {"ssh_user": "ada", "ssh_private_key": "~/.ssh/id_ed25519"}
    (install,) = made["setup_commands"]
    assert install.startswith("cd ~/gossamer && ")
    assert install.endswith('.venv/bin/pip install -c constraints.txt -e ".[atari,cluster]"')
    started = made["head_start_ray_commands"] + made["worker_start_ray_commands"]
    assert all(x.startswith("~/gossamer/.venv/bin/ray ") for x in started)
    assert made["max_workers"] == made["min_workers"] == 2
    (command,) = [x for x in text.splitlines() if "gossamer train" in x]
    assert "--num-learners 2 --actors-per-learner 1" in command
    assert "topology:allreduce" in command
    assert "--cluster.gpus-per-learner 1" in command
    words = command.partition("gossamer ")[2].split()
    assert main([*words, "--show-config"]) == 0


def test_rows_of_this_machine_alone_need_no_configuration(tmp_path: Path) -> None:
    rows = HEAD + "learner,localhost,1,,,\nactor,localhost,2,,,\n"
    assert yaml.safe_load(configuration(tmp_path, rows)) is None


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
    (tmp_path / "workers.csv").write_text(text)
    assert says in refusal(tmp_path / "workers.csv")


def test_a_password_is_refused_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "workers.csv"
    path.write_text("job,ip,ssh_password\nlearner,10.0.0.1,geheim\n")
    told = refusal(path)
    assert "line 2 has a password in column ssh_password" in told
    assert "geheim" not in told


def test_a_column_for_passwords_may_be_there_and_empty(tmp_path: Path) -> None:
    text = "job,ip,ssh_password\nlearner,10.0.0.1,\nactor,10.0.0.2, \n"
    assert "head_ip: " in configuration(tmp_path, text)


def test_files_that_cannot_be_read_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "l.csv").write_bytes(b"x" * (2 << 20))
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "b.csv", tmp_path / "l.csv"):
        assert "cannot be read" in refusal(path)
