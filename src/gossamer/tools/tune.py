"""The fastest settings for this machine, found by trying: one change at a time, kept if it helps.

What was kept becomes a preset. Of that, what leaves alone what is learnt is also kept for this machine, where runs of the
same environment and algorithm find it (`record.tuned`).
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer import __version__
from gossamer.build.plan import make_plan
from gossamer.config import TrainConfig, nested, resolve, to_dict
from gossamer.config.cores import MAX_LEARNERS, MIXED, row_for
from gossamer.config.machine_layers import learners_layers
from gossamer.config.merging import Layer, merge
from gossamer.envs.registry import read_spec
from gossamer.envs.settings import is_native
from gossamer.errors import ConfigError, NeverBegan, RunFailed
from gossamer.machine import has_bf16, this_machine
from gossamer.record.exits import exit_of
from gossamer.record.files import write_whole
from gossamer.record.tuned import TUNABLE, write_tuned
from gossamer.run.train import train
from gossamer.system.cores import num_cores
from gossamer.system.reading import expand, new_file, quoted
from gossamer.system.signals import Signals
from gossamer.tools.bench import core_rates, interrupt
from gossamer.tools.prediction import predicted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gossamer.build.plan import Plan
    from gossamer.spec import EnvSpec
    from gossamer.tools.prediction import Rates

WORTH = 1.03
"""A change is kept if it is faster by this factor; less is noise."""
MORE_LEARNERS_WORTH, FEWER_LEARNERS_WORTH = 1.3, 0.95
TRIAL_SECONDS = 5.0
"""Training time of one trial, its start not included."""
START_SECONDS, START_SECONDS_PER_ENV = 5.0, 0.2
"""Time that the first trial is given to start; what the others need is known from it."""
ENDING_SECONDS = 3.0
RATES_FRACTION = 0.15
"""Share of the time for measuring what one core does."""
Changes = dict[str, Any]


def main(env_id: str, *, seconds: float, output: str) -> None:
    """Try settings for `seconds`, print every trial, and write what beat the defaults as a preset file."""
    target = new_file(expand(output))
    until = time.monotonic() + seconds
    config = with_number(env_id)
    spec = read_spec(env_id, config.env, config.max_episode_steps)
    plan = make_plan(config, spec, this_machine().share_of(_share(config)))
    rates = None
    if spec.has_pixels and plan.device == "cpu":
        rates = core_rates(config, seconds=RATES_FRACTION * seconds, say=_say)
        _say_predictions(rates, config)
    guess = START_SECONDS + START_SECONDS_PER_ENV * plan.num_envs
    trial = min(guess + TRIAL_SECONDS, until - time.monotonic() - ENDING_SECONDS)
    _say(f"trying the defaults for {max(trial, 0.0):.0f} s")
    began = time.monotonic()
    best: Changes = {}
    first_rate = measured_rate(config, best, trial) if trial > 0 else None
    if first_rate is None:
        _say(
            f"the defaults cannot be measured in {seconds:.0f} s; give it longer: --seconds {2 * seconds:.0f}"
        )
        return
    _say(f"{env_id} on {num_cores()} cores: {first_rate:,.0f} steps/s with the defaults")
    trial = min(time.monotonic() - began, trial)
    found = _Found(first_rate, first_rate, first_rate)
    try:
        _try_changes(config, spec, plan, found, trial=trial, until=until - ENDING_SECONDS)
    except KeyboardInterrupt:
        if found.best:  # or an earlier look may have found more
            _write(config, found, rates, target)
        raise
    _write(config, found, rates, target)


@dataclasses.dataclass
class _Found:
    """What was found so far, by steps per second."""

    default: float
    fastest: float
    kept: float
    """With the changes that are kept for this machine."""
    best: Changes = dataclasses.field(default_factory=Changes)
    compared: bool = False
    """Whether any change was measured."""


def _try_changes(
    config: TrainConfig, spec: EnvSpec, plan: Plan, found: _Found, *, trial: float, until: float
) -> None:
    """Measure one change after another, for `trial` seconds each, and keep in `found` what is faster."""
    for changes in _candidates(config, spec, plan, found):
        tried = {**found.best, **changes}
        before = found.best.get("num_envs", plan.num_envs)
        needed = trial * max(changes.get("num_envs", before) / before, 1.0)
        if time.monotonic() + needed > until:
            _say(f"no time is left for another trial of {needed:.0f} s; --seconds tries more")
            return
        first = next(iter(changes))  # what else it brings with it is in the preset
        told = f"{first} = {_toml(changes[first])}"
        try:
            rate = measured_rate(config, tried, needed)
        except (
            ConfigError,
            RunFailed,
        ) as error:  # such as more environments than there is memory for
            _say(f"{told}: {error}")
            continue
        if rate is None:
            _say(f"{told}: not measured, it began too late")
            continue
        found.compared = True
        kept = rate > found.fastest * _worth(_with(config, found.best), changes)
        _say(f"{told}: {rate:,.0f} steps/s{', added to the preset' if kept else ''}")
        if kept:
            found.best, found.fastest = tried, rate
            if first in TUNABLE:
                found.kept = rate


def _write(config: TrainConfig, found: _Found, rates: Rates | None, target: Path) -> None:
    """Keep what was found for this machine, and write it as a preset."""
    best = found.best
    if config.num_learners > 1 and not TUNABLE.isdisjoint(
        best
    ):  # or what was tried beside them would be taken for one learner's
        best = {**_as_changes(config), **best}
    if found.compared:  # else an earlier look has found more
        _keep(config, best, rates, {"default": found.default, "tuned": found.kept})
    if not best:
        _say("nothing that was tried is faster than the defaults; no preset written")
        return
    lines = [
        f"# Fastest of what was tried for {config.env_id} on {num_cores()} cores: {found.fastest:,.0f} steps/s."
    ]
    lines += [f"{name} = {_toml(value)}" for name, value in best.items()]
    text = "\n".join(lines) + "\n"
    try:
        write_whole(target, lambda file: file.write(text.encode()))
    except OSError as error:  # a full disk
        raise RunFailed(
            f"{target} cannot be written: {error.strerror or error}; it would hold {', '.join(lines[1:])}"
        ) from None
    _say(
        f"wrote {target}; use it: gossamer train {quoted(config.env_id)} --config {quoted(target)}"
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _share(config: TrainConfig) -> int:
    return max(num_cores() // config.num_learners, 1)


def _say_predictions(rates: Rates, config: TrainConfig) -> None:
    passes = float(getattr(config.algorithm, "passes", 1))
    for learners in sorted({1, config.num_learners, *_numbers_of_learners(num_cores())}):
        row = row_for(max(num_cores() // learners, 1))
        rate = predicted(rates, row, learners, passes=passes)
        several = "s" * (learners > 1)
        _say(
            f"predicted, not measured: {rate:,.0f} steps/s with {learners} learner{several} of {row.cores} cores"
        )


def _numbers_of_learners(cores: int) -> list[int]:
    """Return the numbers that share all cores out, a core each at least."""
    powers = (2**i for i in range(10))
    return [n for n in powers if n <= min(cores, MAX_LEARNERS) and cores >= 4]


def _candidates(config: TrainConfig, spec: EnvSpec, plan: Plan, found: _Found) -> Iterator[Changes]:
    """Yield changes to try: first those that are kept for the machine, which thus are measured with the usual environments."""
    pixels = spec.has_pixels and plan.device == "cpu"
    if pixels and len(config.replays) == 1:
        for learners in _numbers_of_learners(num_cores()):
            if learners != config.num_learners and 0.25 <= learners / config.num_learners <= 4:
                yield _as_changes(with_number(config.env_id, learners))
        # The others are changes of the learners that are kept.
        config = _with(config, found.best)
        plan = make_plan(config, spec, this_machine().share_of(_share(config)))
    cores = _share(config)
    yield {"env_groups": 1 if plan.env_groups > 1 else 2}
    rows = plan.num_envs * (config.unroll_length + 1)
    for micro in (plan.micro_batch_rows // 2, plan.micro_batch_rows * 2):
        if config.unroll_length < micro <= rows:
            yield {"micro_batch_rows": micro}
    if pixels:
        for threads in {max(1, cores // 2), cores} - {plan.learner_threads}:
            yield {"learner_threads": threads}
    if is_native(config.env_id):  # others are stepped by their actor
        for threads in {max(1, cores // 2), cores} - {plan.env_threads}:
            yield {"env_threads": threads}
    for factor in (2, 0.5):
        if (n := int(plan.num_envs * factor)) >= config.algorithm.num_minibatches:
            yield {"num_envs": n}
    if spec.has_pixels and has_bf16(plan.device):
        yield {"precision": "fp32" if plan.precision == "bf16" else "bf16"}
    if config.algorithm.corrects:
        yield {"lag": "free"}


def with_number(env_id: str, learners: int = 0) -> TrainConfig:
    """Return the defaults of a machine on which nobody has tuned anything; with a number of learners, if one is given."""
    config, origin = resolve(given={"env_id": env_id}, machine="" if learners else "cores")
    if not learners:
        return config
    # As if the machine had decided on it, whatever else then goes with it.
    above = learners_layers(config, origin, learners, label="", why="")
    return merge(TrainConfig, [Layer("", to_dict(config)), *above])[0]


def _as_changes(config: TrainConfig) -> Changes:
    """Return what another number of learners changes with it."""
    mixing = {"name": "single"} if config.num_learners == 1 else dict(MIXED)
    changes: Changes = {"num_learners": config.num_learners, "topology": mixing}
    rates = config.optimizer.learning_rate
    return changes | {"num_envs": config.num_envs, "optimizer.learning_rate": list(rates)}


def _worth(config: TrainConfig, changes: Changes) -> float:
    """Return how many times as fast a change has to be: more learners learn less from a step, fewer more."""
    learners = changes.get("num_learners", config.num_learners)
    if learners == config.num_learners:
        return WORTH
    return MORE_LEARNERS_WORTH if learners > config.num_learners else FEWER_LEARNERS_WORTH


def _with(config: TrainConfig, changes: Changes) -> TrainConfig:
    return merge(TrainConfig, [Layer("", to_dict(config)), Layer("", nested(changes))])[0]


def measured_rate(config: TrainConfig, changes: Changes, seconds: float) -> float | None:
    """Return the steps per second of a training run of so many seconds with some settings changed; None: it began too late.

    Raises:
        KeyboardInterrupt: a signal has stopped it, also if it has failed then.
    """
    with Signals(interrupt), tempfile.TemporaryDirectory() as folder:
        ends = {
            "run_folder": str(Path(folder) / "run"),
            "stop_after_seconds": seconds,
            "stop_within_seconds": ENDING_SECONDS,
            "checkpoint_every_seconds": 0.0,
            "evaluation.every_seconds": 0.0,
        }
        try:
            summary = train(_with(config, {**changes, **ends}), quiet=True).summary
        except NeverBegan:
            return None
    ended = exit_of(summary)
    if ended is not None and ended.kind == "stopped":
        raise KeyboardInterrupt
    return summary["steps_per_second"]


def _keep(config: TrainConfig, best: Changes, rates: Rates | None, found: dict[str, float]) -> None:
    """Keep for this machine what may decide about runs that do not ask."""
    entry = {
        "env_id": config.env_id,
        "algorithm": config.algorithm.name,
        "settings": {name: value for name, value in best.items() if name in TUNABLE},
        "steps_per_second": found,
        "gossamer": __version__,
        "when": time.strftime("%Y-%m-%d"),
    }
    try:
        path = write_tuned(entry, dataclasses.asdict(rates) if rates else {})
    except OSError as error:
        _say(f"not kept for later runs: {error.strerror or error}")
        return
    if entry["settings"]:
        names = ", ".join(entry["settings"])
        _say(
            f"kept in {path}: {names}; runs of {config.env_id} use them where no setting says otherwise"
        )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(x)}" for name, x in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
