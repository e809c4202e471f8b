"""Seeds of episodes: a stateless function of where an episode stands, so that any can be rebuilt."""

from __future__ import annotations

from dataclasses import dataclass

_MASK = (1 << 64) - 1
EVALUATION_RANK = -1
"""The rank whose seeds evaluation uses; no learner has it."""


def episode_seed(run_seed: int, rank: int, env_index: int, episode: int) -> int:
    """Return the seed of one episode, in [1, 2**31), well mixed in all four arguments.

    0 is left out because simulators read it as "unseeded".

    Source: the finaliser of SplitMix64, Steele, Lea and Flood 2014, "Fast splittable pseudorandom
    number generators", applied once per argument.
    """
    state = 0
    for value in (run_seed, rank, env_index, episode):
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return 1 + state % (2**31 - 1)


@dataclass(frozen=True, slots=True)
class SeedStream:
    """The episode seeds of a group of environments."""

    run_seed: int
    rank: int
    first_env: int
    """Index, among the run's environments, of the group's first."""

    def seed(self, env: int, episode: int) -> int:
        """Return the seed of an episode of the group's environment number `env`."""
        return episode_seed(self.run_seed, self.rank, self.first_env + env, episode)

    def part(self, first: int) -> SeedStream:
        """Return the stream of the environments from number `first` of the group on."""
        return SeedStream(self.run_seed, self.rank, self.first_env + first)
