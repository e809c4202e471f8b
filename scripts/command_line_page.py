"""docs/command-line.md, written from the declarations of the commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gossamer.cli import COMMANDS
from gossamer.config import kinds
from gossamer.config.help import option_rows
from gossamer.config.names import flag
from gossamer.config.shown_defaults import default_algorithm
from gossamer.system.commands import REQUIRED
from gossamer.topology.base import Topology

if TYPE_CHECKING:
    from gossamer.system.commands import Command, Word

INTRO = """\
# The command line

<!-- Written by scripts/gen_docs.py from the declarations of the commands; edit those. -->

`gossamer COMMAND --help` prints what this page says about a command. In flags, hyphens and underscores mean the same. `gossamer --version`
prints the version. To name a run, type its folder, part of its folder's name, or `last` (the newest run below `runs`).

| command | |
|---|---|
"""
TRAIN = """\
Train a policy on ENV, or resume a run with `--resume RUN`. Arguments may stand in any order. Every
[setting](settings.md) but ENV has a flag; the flags below are not settings. With ENV,
`--help` and `--help-all` show the values for this environment.

If several sources give a setting, the first of these wins: the command line, later `--config` files, earlier ones, the resumed
run, the settings that `gossamer tune` found, the suite's defaults, the general defaults.
"""
EXITS = {
    "0": "The command is done; or one signal (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1), `--stop-after-seconds` or `gossamer watch` stopped a "
    "training, which has saved its last checkpoint.",
    "1": "A run failed: its environment raised an exception or is stuck, or the disk is full. The last line on standard error "
    "says why. A sweep or `--seeds`: at least one run failed. `gossamer cluster check`: a problem was found. Any command: its "
    "output could not be written.",
    "2": "A mistake in the command, in a setting or in a file, or a run that cannot be read. Nothing was created. One line on "
    "standard error says what is allowed.",
    "130": "Ctrl-C ended the command, or a second Ctrl-C ended a training at once, without a checkpoint. `gossamer sweep` and `gossamer train "
    "--seeds` also return 130 if a signal stopped them before all runs were done.",
    "128 + N": "A second signal N ended a training at once: 143 for SIGTERM.",
}
"""What each exit code means."""
VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "GPUs that a run may use, in CUDA's format; empty: none.",
    "CUBLAS_WORKSPACE_CONFIG": "Set to `:4096:8` by `--deterministic`, unless it is set already.",
    "DISPLAY, WAYLAND_DISPLAY": "`gossamer watch` opens a browser, and `gossamer eval --render` a window, only if one of these variables is set (Linux).",
    "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME": "Network interface for gradients between machines (`--topology.transport`). Set by a run "
    "on a cluster, unless it is set already.",
    "GOSSAMER_MACHINE": "`plain`: settings do not depend on the machine: `--num-learners auto` is one learner, "
    "no actor process is chosen, and results of `gossamer tune` are not used. Sweeps and `--seeds` set `plain` for their runs.",
    "NO_COLOR": "If set, the help of `gossamer train` has no bold titles.",
    "RAY_ADDRESS": "Address of the Ray cluster for `--placement cluster`, if `--cluster.address` is empty.",
    "SDL_VIDEODRIVER": "`gossamer eval --video` sets it to `dummy`, unless it is set already; `--render` accepts it in place of a display.",
    "SSH_CONNECTION, SSH_TTY": "If one is set, as in an SSH session, `gossamer watch` opens no browser.",
    "TERM": "`dumb`: plain lines in place of a live panel, and no bold titles.",
    "WANDB_PROJECT": "Project of a new run with `--wandb`. Default: `gossamer`.",
    "XDG_STATE_HOME": "Folder whose subfolder `gossamer/` contains the token that marks your own runs, and the results of `gossamer tune`. Default: "
    "`~/.local/state`.",
}
"""Environment variables that gossamer reads or sets, and what for."""


def command_line_page() -> str:
    """Return docs/command-line.md."""
    listed = "\n".join(
        f"| [`gossamer {x.head}`](#gossamer-{x.name}) | {_cell(x.summary)} |"
        for x in COMMANDS.values()
    )
    parts = [INTRO + listed, *map(_command, COMMANDS.values())]
    parts.append(_table("## Exit codes", ("exit code", "meaning"), EXITS))
    parts.append(_table("## Environment variables", ("variable", "meaning"), VARIABLES))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Return text for a cell, where < outside code would be taken for HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda x: x[1] or "&lt;", text).replace("|", "\\|")


def _table(title: str, head: tuple[str, str], rows: dict[str, str]) -> str:
    lines = [title, "", f"| {head[0]} | {head[1]} |", "|---|---|"]
    for names, meaning in rows.items():
        typed = ", ".join(f"`{name}`" for name in names.split(", "))
        lines.append(f"| {typed} | {_cell(meaning)} |")
    return "\n".join(lines)


def _command(command: Command) -> str:
    """Return the section of a command."""
    title = f"## gossamer {command.name}"
    if command.name == "train":
        return _train(title)
    about = " ".join(command.about.split())
    lines = [title, "", _cell(about), "", "```text", command.usage, "```"]
    if told := [x for x in command.words if x.meaning]:
        lines += ["", "| argument | default | meaning |", "|---|---|---|", *map(_argument, told)]
    return "\n".join(lines)


def _argument(word: Word) -> str:
    typed = word.typed.strip("[]").replace("|", "\\|")
    default = word.default_shown
    if word.default is REQUIRED:
        default = "required"
    elif default:
        default = f"`{default}`" if " " not in default else _cell(default)
    return f"| `{typed}` | {default} | {_cell(word.meaning)} |"


def _train(title: str) -> str:
    usage = "gossamer train ENV [--config NAME ...] [--resume RUN] [settings]"
    lines = [title, "", TRAIN, "```text", usage, "```", ""]
    lines += ["| argument | default | meaning |", "|---|---|---|"]
    lines.append(
        "| `ENV` |  | the environment's id, such as `CartPole-v1`, `PongNoFrameskip-v4`, `envpool:Ant-v5`, or a function of yours as "
        "`module:function`; not needed with `--resume` or a preset that names one |"
    )
    for section, default in (
        ("algorithm", default_algorithm()),
        ("topology", Topology.default_kind),
    ):
        names = ", ".join(f"`{name}`" for name in kinds(section))
        lines.append(
            f"| `{section}:NAME` | `{default}` | {names}, or a class of yours as `module:Class` |"
        )
    lines.append("| `--SECTION.SETTING VALUE` |  | change a [setting](settings.md) |")
    lines.append("| `--no-SECTION.SETTING` |  | turn off a setting that is on or off |")
    for row in option_rows():
        typed = f"{flag(row.name)} {row.values}".strip().replace("|", "\\|")
        lines.append(f"| `{typed}` |  | {_cell(row.meaning)} |")
    lines.append("| `-h`, `--help` |  | print the settings that most people use |")
    lines.append("| `--help-all` |  | print all settings |")
    return "\n".join(lines)
