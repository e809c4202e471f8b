"""What a run is: training and evaluation from start to end, its supervision, its checkpoints and records."""
