"""What every test shares: GPU tests skipped where there is no GPU, reproducible hypothesis."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# What tests share, environments such as "broken_envs:Raises" among it, is imported by its bare name, also in the
# processes that tests start.
sys.path.insert(0, str(Path(__file__).parent / "support"))
# Benchmarks share a module, as they do when one is started.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# A shared machine makes single examples slow now and then, and a random failure helps nobody.
settings.register_profile("gossamer", deadline=None, derandomize=True)
settings.load_profile("gossamer")


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The token by which runs are known, and what is known of the machine, is a test's own, not the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    # Runs are the same on every machine.
    os.environ["GOSSAMER_MACHINE"] = "plain"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
