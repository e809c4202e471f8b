"""The preset of a best trial says how many learners there are."""

from __future__ import annotations

from gossamer.sweep.presets import preset_of


def test_a_trial_with_one_learner_has_one_on_every_machine() -> None:
    """A machine with many cores would decide on more, for PPO on Atari, and the best trial would be another run."""
    text, config = preset_of({"env_id": "PongNoFrameskip-v4"})
    assert config.num_learners == 1
    assert "num_learners = 1" in text.splitlines()
