"""Whoever plays an exported policy cuts an episode without rewards where training has cut it."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from gossamer.envs.interface import Interface, read_interface
from gossamer.envs.settings import EnvConfig
from gossamer.export import hub
from gossamer.export.card import model_card

RUN = {
    "name": "r", "algorithm": "ppo", "topology": "single", "seed": 1, "num_learners": 1, "checkpoint": "last",
    "learner": None, "absent_learners": [], "updates": 1, "env_steps": 1, "best_evaluation": None,
}  # fmt: skip


@pytest.mark.parametrize("stuck_steps", [None, 0, 5])
def test_the_program_of_a_card_cuts_an_episode_that_is_stuck(
    stuck_steps: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = EnvConfig(stuck_steps=stuck_steps)
    _, interface = read_interface("counting_envs:Silent", settings, max_episode_steps=12)
    seen = steps_of_a_card(interface, monkeypatch, capsys)
    assert seen == [*range(stuck_steps or 12)], "of an environment that never pays"


def test_the_program_of_a_card_makes_an_id_without_a_time_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "WithoutAnyLimit-v0"
    registered = gymnasium.envs.registration.EnvSpec(
        name, "counting_envs:Silent", max_episode_steps=-1
    )
    monkeypatch.setitem(gymnasium.registry, name, registered)
    spec, interface = read_interface(name, EnvConfig(stuck_steps=5))
    assert spec.protocol == f"{name}: Gymnasium, without a time limit"
    assert steps_of_a_card(interface, monkeypatch, capsys) == [*range(5)]


def steps_of_a_card(
    interface: Interface, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[float]:
    """Return what the policy was asked about as a card's program played an episode."""
    description = {
        "env_id": "any", "gossamer": "1", "protocol": "any", "inputs": {"obs": {}},
        "environment": interface.environment, "run": RUN,
    }  # fmt: skip
    seen: list[float] = []

    class Policy:
        """Counts what it is asked."""

        def act(self, obs: Any, state: Any) -> tuple[int, None]:
            seen.append(float(obs[0]))
            return 0, None

    monkeypatch.setattr(hub, "load_hub", lambda *_, **__: Policy())
    card = model_card(description, {}, None, seed=1, video=False)
    exec(card.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out == "0.0\n"
    return seen


def test_games_tell_it_too() -> None:
    pytest.importorskip("ale_py")
    pong = "PongNoFrameskip-v4"
    assert read_interface(pong, EnvConfig(stuck_steps=7))[1].environment["stuck_steps"] == 7
    assert "stuck_steps" not in read_interface(pong, EnvConfig())[1].environment
