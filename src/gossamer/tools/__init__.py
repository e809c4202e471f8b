"""Tools around training: measure this machine, find fast settings for it."""
