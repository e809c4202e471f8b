"""Environments: any suite behind the one protocol `gossamer.types.VecEnv`."""
