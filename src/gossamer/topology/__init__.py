"""How learners mix: mixing matrices over graphs, one file a kind."""
