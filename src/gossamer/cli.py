"""The `gossamer` command: words -> settings -> one function call.

Importing this imports no torch and no simulator: help and listings answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import faulthandler
import gc
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from msgspec import Meta

from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import allow_open_files, install_command
from gossamer.system.beginning import Beginning
from gossamer.system.commands import REQUIRED, Command, Word
from gossamer.system.cores import num_cores
from gossamer.system.gpus import visible_gpus
from gossamer.system.ranges import CountToMillion, Number, Seed, UpToMillion
from gossamer.system.reading import clipped, visible
from gossamer.system.signals import Signalled
from gossamer.system.streams import Streams, show_result

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from gossamer.config import Arguments

OVERVIEW = """\
gossamer: deep reinforcement learning with many actors and many learners

  gossamer train CartPole-v1                            learn something in under a minute
  gossamer train PongNoFrameskip-v4 --config pong       learn Pong in minutes
  gossamer eval last --episodes 30                      play the newest run's policy

commands:
{commands}

gossamer COMMAND --help prints more; --version prints the version.
"""

MAX_WORD = 200
"""Characters of a word in an error; nobody reads more. A path, which may be part of a command, stays whole."""

MAX_LINE = 10_000
"""Characters of an error; a path has at most 4,095."""

TELLS = {"-h", "--help", "--help-all", "--show-config"}
"""Flags of commands that only tell something."""

INTERRUPTED = 128 + 2
"""Exit code of a command that Ctrl-C has ended before it had anything to save."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 the run failed, 2 user's mistake."""
    if argv is not None:
        return _main(list(argv))
    # Before numpy is imported: simulators that use it would otherwise start a thread for each core in every operation.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    allow_open_files()
    words = sys.argv[1:]
    # For hours, whoever reads on.
    trains = words[:1] in (["train"], ["sweep"]) and TELLS.isdisjoint(words)
    streams = Streams(breaks=not trains, results_alone="--json" in words)
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # standard error is closed
        faulthandler.enable()  # a simulator's native code may end the process: where, is told
    code = _main(words)
    if code > 128:
        # Libraries complain, as the interpreter ends, of objects that were still being made.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if code > 128 and code != INTERRUPTED:  # whoever has started us sees which signal it was
        signal.signal(code - 128, signal.SIG_DFL)
        signal.raise_signal(code - 128)
    if (lost := streams.lost()) and code == 0 and not (trains and "--json" not in words):
        print(f"gossamer: standard output could not be written: {lost}", file=sys.stderr)
        return 1
    return code


def _main(words: list[str]) -> int:
    try:
        with _told_exits():
            code = _dispatch(words)
        sys.stdout.flush()
    except ConfigError as error:
        _complain(error)
        return 2
    except RunFailed as error:
        _complain(error)
        return 1
    except PermissionError as error:
        if error.filename is None:
            raise
        _complain(ConfigError(f"{error.filename} cannot be read or written: {error.strerror}"))
        return 2
    except KeyboardInterrupt as error:  # outside training, which has a handler of its own
        print("gossamer: interrupted", file=sys.stderr)
        return 128 + error.number if isinstance(error, Signalled) else INTERRUPTED
    except BrokenPipeError:
        # `gossamer list | head`: nobody reads on. The interpreter must not flush again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


@contextlib.contextmanager
def _told_exits() -> Generator[None]:
    """Context in which `os._exit`, as an environment may call it, is told, and does not look like a run that is done."""
    ends, process = os._exit, os.getpid()

    def end(code: int) -> NoReturn:
        if os.getpid() == process:  # a forked child may end as it likes
            text = (
                f"gossamer: the process was ended from within, by os._exit({code}), as by an environment; "
                "nothing was saved since the last checkpoint\n"
            )
            with contextlib.suppress(OSError):
                os.write(2, text.encode())
            code = code or 1
        ends(code)

    end.__wrapped__ = ends  # type: ignore[attr-defined]  # for gossamer's own
    os._exit = end
    try:
        yield
    finally:
        os._exit = ends


def _whole_if_path(word: str) -> str:
    """Return a long word of a complaint: paths that exist stay whole, so that they can be copied."""
    return word if os.path.lexists(word.strip("'\"(),;:")) else clipped(word, MAX_WORD)


def _complain(error: Exception) -> None:
    line = re.sub(r"\s*[\n\r\t]\s*", " ", str(error).strip())
    line = re.sub(r"[^\s/]+", lambda word: clipped(word[0], MAX_WORD), line)
    line = re.sub(r"\S{1000,}", lambda word: _whole_if_path(word[0]), line)
    print(f"gossamer: {visible(clipped(line, MAX_LINE))}", file=sys.stderr)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        listed = (f"  {command.head:<14}{command.summary}" for command in COMMANDS.values())
        print(OVERVIEW.format(commands="\n".join(listed)), end="")
        return 0
    if words[0] == "--version":
        import gossamer

        print(f"gossamer {gossamer.__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean gossamer {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        raise ConfigError(f"{words[0]} is not a command; {hint}")
    return command.run(words[1:])


@contextlib.contextmanager
def _importing() -> Generator[None]:
    """Let the collector rest while torch is imported, a tenth of that time, and never look at its modules again."""
    first = "torch" not in sys.modules and gc.isenabled()
    if first:
        gc.disable()
    try:
        yield
    finally:
        if first:
            gc.freeze()
            gc.enable()


def _refuse_no_run(run: str) -> None:
    """Refuse a run that is not there before torch is imported, which takes seconds."""
    from gossamer.record.folder import RunFolder  # loads what --help does not need

    RunFolder.open(run)


def _typed(name: str, value: str) -> str:
    """Return what names the code of a setting on the command line; quoted, as names are a stranger's."""
    section = name.removesuffix(".name")
    if name == "env_id":
        return shlex.quote(value)
    if section in ("algorithm", "topology"):
        return shlex.quote(f"{section}:{value}")
    return f"--{name} {shlex.quote(value)}"


@Command(
    "train", "train a policy; resume a run with --resume RUN", "", Word("ENV", ""), reads=False
)
def _train(words: list[str]) -> int | None:
    from gossamer.config import explicit, parse_train, resolve, saved_settings, show_config
    from gossamer.config.cores import actors_for

    asked = parse_train(words)
    if asked.wants_help:
        return _help_to_train(asked)
    resume = None
    if asked.resume is not None:
        from gossamer.record.folder import RunFolder  # loads what --help does not need

        # Once: what is "last" now may not be so any more when everything is imported.
        resume = Path(RunFolder.open(asked.resume).shown)
    saved = saved_settings(
        resume,
        given=asked.settings,
        configs=asked.config,
        trust=asked.trust,
        how=lambda name, value: (
            f"gossamer train {_typed(name, value)} --resume {shlex.quote(str(resume))}, or add --trust"
        ),
    )
    config, layers = resolve(
        asked.settings,
        configs=asked.config,
        resumed=saved,
        machine="tuned" if asked.seeds is None else "",
    )
    each = max(num_cores() // config.num_learners, 1)
    actors = 0 if asked.seeds else actors_for(config, each, gpu=bool(visible_gpus()))
    if asked.show_config:
        from gossamer.envs.settings import suite_of

        # The others' ids are known by their form, without Gymnasium.
        if suite_of(config.env_id) == "other":
            from gossamer.envs.making import refuse_unknown

            refuse_unknown(config.env_id)
        if actors and config.actors_per_learner is None:
            layers["actors_per_learner"] += f", {actors} here"
        print(show_config(config, layers))
        return None
    if asked.seeds is None and config.placement == "local" and (actors or config.num_learners > 1):
        from gossamer.run.placements.fork_server import fork_server

        fork_server()  # imports while we do
    watched = None
    if asked.watch:
        from gossamer.dashboard.beside import folder_of, start_beside

        watched = start_beside(folder_of(resume or Path(config.run_folder or "runs")))
    if asked.seeds is not None:
        from gossamer.sweep.seeds import train_seeds

        return train_seeds(config, layers, asked.seeds, words=words, watched=watched)
    beginning = Beginning(time.time())
    beginning.at("importing PyTorch", everywhere=False)
    with _importing():
        from gossamer.run.train import train_command

    if watched is not None:
        print(watched(), flush=True)
    train_command(
        config,
        layers=layers,
        argv=["gossamer", "train", *words],
        resume=resume,
        config_given=explicit(layers),
        beginning=beginning,
    )
    return None


def _help_to_train(asked: Arguments) -> None:
    from gossamer.config import gather_layers, merge_layers, train_help

    known = asked.config or "env_id" in asked.settings
    layers = gather_layers(asked.settings, configs=asked.config)
    config = merge_layers(layers)[0] if known else None
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    bold = bold and os.environ.get("TERM", "dumb") != "dumb"
    chosen = asked.parts()
    print(train_help(every=asked.wants_all, chosen=chosen, config=config, width=width, color=bold))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _reads(annotation: Any) -> Callable[[str], Any]:
    """Return what reads a number as a setting of that kind is read."""

    def read(text: str) -> Any:
        from gossamer.config.values import read_value

        try:
            return read_value(text, annotation, typed=True)
        except ValueError as error:
            told = f"it is {clipped(text)!r}; it must be {error}"
            raise argparse.ArgumentTypeError(told) from None

    return read


def _checkpoint(text: str) -> str | int:
    if text in ("last", "best", "candidate"):
        return text
    if text.isdecimal() and len(text) < 20:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"it is {clipped(text)!r}; allowed: last, best, candidate or a number of updates"
    )


CHECKPOINT = "last: the newest policy; best: the best policy; candidate: a policy that scored higher than the best, but is not confirmed yet; N: the policy after N updates"
NAMED_AGAIN = (
    Word(
        "--env ENV",
        "name the run's environment again, so that a run from another machine or user may import its module:function; or its new name, if the module was renamed",
        default="",
        dest="env_id",
    ),
    Word(
        "--trust",
        "allow a run from another machine or user to import its environment and parts, such as module:function",
    ),
)
JSON = Word("--json", "print only JSON on standard output")
RUN = Word("RUN", "a run folder, part of its name, or last")


@Command(
    "eval",
    "play full episodes with a trained policy",
    "Play full episodes with a trained policy, on seeds that training does not use.",
    RUN,
    Word(
        "--episodes N",
        "episodes to play; for a family of up to 100 tasks, at least one per task",
        _reads(CountToMillion),
        30,
    ),
    Word("--checkpoint last|best|candidate|N", CHECKPOINT, _checkpoint, "last"),
    Word(
        "--learner R",
        "play the policy of learner R; default: the run's policy, which for gossip and diffusion is the average of all "
        "learners",
        _reads(Seed),
    ),
    *NAMED_AGAIN,
    Word("--sample", "sample actions instead of taking the likeliest"),
    Word("--seed N", "seed of the episodes", _reads(Seed), 1),
    Word(
        "--device auto|cpu|cuda",
        "device of the policy; auto: the GPU if there is one",
        default="auto",
    ),
    JSON,
    Word(
        "--video FILE",
        "write the first episode as .mp4 or .gif; with --sample, another one with its seed",
    ),
    Word("--render", "show an episode in a window, if there is a display"),
)
def _eval(**asked: Any) -> None:
    _refuse_no_run(asked["run"])
    with _importing():
        from gossamer.run.evaluate import evaluate_run

    evaluate_run(**asked)


@Command(
    "export",
    "write a trained policy as an ONNX file, a torch program, or a folder for Hugging Face's Hub",
    "Write a trained policy for other programs, as one step from an observation to the greedy action and the value. Nothing is\n"
    "written unless the export repeats recorded steps of the run's environment to within 1e-5.",
    RUN,
    Word(
        "--format onnx|pt2|hub",
        "onnx: a file for ONNX Runtime; pt2: a file for torch.export.load; hub: a folder with config.json, model.safetensors "
        "and a model card for Hugging Face's Hub",
        default=REQUIRED,
    ),
    Word(
        "--output PATH",
        "file or folder to write, which must not exist yet",
        shown="ENV-ALGORITHM, in this folder",
    ),
    Word("--checkpoint last|best|candidate|N", "as for gossamer eval", _checkpoint, "last"),
    Word(
        "--learner R",
        "the policy of learner R; default: the run's policy, as for gossamer eval",
        _reads(Seed),
    ),
    *NAMED_AGAIN,
    Word(
        "--episodes N",
        "hub: episodes to play for the model card; 0: none",
        _reads(UpToMillion),
        shown="30",
    ),
    Word("--seed N", "hub: seed of the model card's episodes", _reads(Seed), shown="1"),
    JSON,
)
def _export(**asked: Any) -> None:
    _refuse_no_run(asked["run"])
    with _importing():
        from gossamer.export.command import export_run

    show_result(export_run(**asked, say=_say))


@Command(
    "bench",
    "measure this machine's limits and how close training comes to them",
    "Measure stepping, inference, learning and training on this machine.",
    JSON,
    Word(
        "--seconds S",
        "seconds for all measurements, at least 20",
        _reads(Annotated[float, Meta(ge=20, le=10**9)]),
        80.0,
    ),
)
def _bench(**asked: Any) -> None:
    from gossamer.tools.bench import main as bench

    bench(**asked)


@Command(
    "sweep",
    "search settings: many runs from one file",
    "Search settings: train many ordinary runs from one file, several at a time, and say which settings were best.\n"
    "The same command resumes a sweep that was stopped or killed.",
    Word("FILE", "a .toml file (docs/sweep.md)"),
    Word(
        "--jobs N",
        "number of runs that train in parallel",
        _reads(Annotated[int, Meta(ge=1, le=10_000)]),
        0,
        "as many as fit the cores",
    ),
    Word(
        "--placement local|cluster",
        "local: processes of this machine; cluster: tasks on a Ray cluster",
        default="local",
    ),
    Word("--folder PATH", "folder of the sweep", default="", shown="runs/sweeps/<name of FILE>"),
    Word(
        "--trials N",
        "number of trials, in place of FILE's number; a larger number than before adds trials",
        _reads(Annotated[int, Meta(ge=1, le=100_000)]),
    ),
    JSON._replace(dest="as_json"),
)
def _sweep(**asked: Any) -> int:
    from gossamer.sweep.sweep import main as sweep

    return sweep(**asked)


@Command(
    "tune",
    "find the fastest settings for this machine",
    "Find the fastest settings for this machine, and write them as a preset. Later runs use its numbers of learners, threads\n"
    "and groups, unless they set what may change the fastest settings: in a comparison, give every run --num-learners.",
    Word("ENV", "the environment to train on", dest="env_id"),
    Word(
        "--seconds S",
        "seconds for all measurements",
        _reads(Annotated[float, Meta(gt=0, le=10**9)]),
        80.0,
    ),
    Word("--output FILE", "preset file to write", default="tuned.toml"),
)
def _tune(**asked: Any) -> None:
    if not asked["output"].endswith(".toml"):
        raise ConfigError(f"--output is {asked['output']}; a preset file ends in .toml: tuned.toml")
    from gossamer.tools.tune import main as tune

    tune(**asked)


@Command(
    "list",
    "list algorithms, topologies, replays, environments and presets",
    "List algorithms, topologies, replays, environments and presets.",
    JSON,
)
def _list(**asked: Any) -> None:
    from gossamer.config import kinds, preset_names, preset_summary
    from gossamer.envs.settings import EXAMPLES

    catalog = {
        "algorithms": kinds("algorithm"),
        "topologies": kinds("topology"),
        "replays": kinds("replays"),
        "environments": {
            name: text + _unless_installed(module) for name, (text, module) in EXAMPLES.items()
        },
        "presets": {name: preset_summary(name) for name in preset_names()},
    }
    if asked["json"]:
        show_result(json.dumps(catalog, indent=1))
        return
    width = max(len(name) for entries in catalog.values() for name in entries) + 2
    for title, entries in catalog.items():
        print(f"{title}:")
        for name, meaning in entries.items():
            print(f"  {name:<{width}}{meaning}")
        print()
    print("gossamer train --help explains how to choose them.")


def _unless_installed(module: str) -> str:
    """Return how a module that an environment needs is installed; nothing if it is there."""
    if not module or importlib.util.find_spec(module) is not None:
        return ""
    extra = {"ale_py": "atari", "Box2D": "box2d"}.get(module, module)
    return f" (not installed: {install_command(extra)})"


@Command(
    "runs",
    "list past runs and their results",
    "List runs and their results.",
    Word(
        "[RUN]",
        "a folder of runs, a run folder, part of the names of runs in the folder 'runs', or a pattern such as 'ppo-*'",
        default="runs",
    ),
    JSON,
)
def _runs(**asked: Any) -> None:
    from gossamer.record.runs import list_runs, runs_text

    show_result(runs_text(list_runs(asked["run"]), root=asked["run"], as_json=asked["json"]))


@Command(
    "compare",
    "compare runs: groups of seeds, intervals, verdicts",
    "Compare runs: group their seeds by the settings that differ; report scores, intervals and which group is better.",
    Word(
        "RUN ...",
        "run folders, folders of runs, parts of their names, patterns such as 'ppo-*', or last",
    ),
    Word(
        "--by SETTING",
        "group runs by this setting alone, even if other settings differ; may be given several times",
        default=[],
        shown="settings that differ",
    ),
    Word(
        "--score evaluation|training",
        "score of a run: the mean return of the last policy's last evaluation, or of the last 100 training episodes",
        shown="evaluation, if all runs have one",
        dest="source",
    ),
    Word(
        "--threshold RETURN",
        "also report the env steps and seconds until the mean return of 100 training episodes reaches RETURN",
        _reads(Number),
    ),
    Word(
        "--x env_steps|seconds", "horizontal axis of the curves", default="env_steps", dest="axis"
    ),
    Word("--plot FILE", "draw curves, scores and performance profile as .png, .svg or .pdf"),
    JSON._replace(dest="as_json"),
    Word("--markdown", "print Markdown"),
)
def _compare(run: list[str], *, as_json: bool, markdown: bool, **asked: Any) -> None:
    if as_json and markdown:
        raise ConfigError("--json and --markdown are both given; leave one out")
    from gossamer.compare.command import compare

    form = "json" if as_json else "markdown" if markdown else "text"
    show_result(compare(run, **asked, form=form, say=lambda text: _say(visible(text))))


@Command(
    "watch",
    "show runs in a browser, live",
    "Show runs in a browser, live: curves, bottlenecks, learners, replays, videos; stop, save, evaluate and resume runs.",
    Word("[FOLDER]", "a folder of runs, or one run", default="runs"),
    Word(
        "--port N",
        "port to listen on, or the next free port if this one is taken; 0: any free port",
        _reads(Annotated[int, Meta(ge=0, le=65535)]),
        8765,
    ),
    Word(
        "--host ADDRESS",
        "address to listen on; with any but 127.0.0.1, other machines can see and control the runs",
        default="127.0.0.1",
    ),
    Word("--no-browser", "open no browser"),
    # The process of a run that it is started with, by `train --watch`.
    Word("--beside PID", "", _reads(Seed)),
)
def _watch(*, no_browser: bool, **asked: Any) -> None:
    from gossamer.dashboard.server import watch

    watch(browser=not no_browser, **asked)


@Command(
    "cluster",
    "look at a Ray cluster (check)",
    "check: list the machines of a Ray cluster, measure the network between them, and report problems.",
    Word("check|hosts", "", dest="verb"),
    Word("[FILE]", "", default=""),
    Word(
        "--address HOST:PORT",
        "address of the cluster; default: RAY_ADDRESS, or the cluster that this machine belongs to",
        default="",
    ),
    JSON,
    usage="gossamer cluster check [--address HOST:PORT] [--json]",
)
def _cluster(**asked: Any) -> int:
    if asked["verb"] == "hosts":
        file = shlex.quote(asked["file"] or "workers.csv")
        raise ConfigError(
            f"cluster hosts is a script of gossamer's repository; type there: python scripts/ray_hosts.py {file} > hosts.yaml"
        )
    if asked["file"]:
        raise ConfigError(f"{asked['file']} is not understood; gossamer cluster --help prints more")
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"cluster check needs Ray: {install_command('cluster')}")
    from gossamer.run.placements.cluster.check import check_cluster

    text, fine = check_cluster(asked["address"], as_json=asked["json"], say=_say)
    show_result(text)
    return 0 if fine else 1


COMMANDS = {
    x.name: x
    for x in (
        _train,
        _eval,
        _export,
        _bench,
        _sweep,
        _tune,
        _list,
        _runs,
        _compare,
        _watch,
        _cluster,
    )
}
"""Every command by its name, in the order in which they are listed."""
