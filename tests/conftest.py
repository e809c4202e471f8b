"""What every test shares: GPU tests skipped where there is no GPU, and random examples that are new every day and can be drawn again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# What tests share, environments such as "broken_envs:Raises" among it, is imported by its bare name, also in the
# processes that tests start.
sys.path.insert(0, str(Path(__file__).parent / "support"))
# Benchmarks share a module, as they do when one is started.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# Who starts the tests with `nohup`, or behind a script, has turned these off for them and for what they start.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)

SEED_VARIABLE = "GOSSAMER_TEST_SEED"

# A shared machine makes single examples slow now and then. Nothing is kept between two runs of the tests: a failure depends
# on its seed alone, and stays as an `@example` of its test.
settings.register_profile("gossamer", deadline=None, database=None)
settings.load_profile("gossamer")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the examples of hypothesis anew each day, before hypothesis reads its own option."""
    # Processes of pytest-xdist are handed the seed of the one that started them, also at midnight.
    if config.option.hypothesis_seed is None:
        today = datetime.now(UTC).strftime("%Y%m%d")
        config.option.hypothesis_seed = os.environ.get(SEED_VARIABLE) or today


def pytest_report_header(config: pytest.Config) -> str:
    return how_to_draw_again(config)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell the seed beside failures too: `-q` has no header."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(how_to_draw_again(config))


def how_to_draw_again(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"random examples: seed {seed}; to draw them again: {SEED_VARIABLE}={seed}"


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The token by which runs are known, and what is known of the machine, is a test's own, not the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    # Runs are the same on every machine.
    os.environ["GOSSAMER_MACHINE"] = "plain"


@pytest.fixture(autouse=True)
def priority() -> Iterator[None]:
    """No test lowers the priority of the thread that runs the others: they would wait for whatever else the machine does."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
