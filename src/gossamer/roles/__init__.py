"""The roles: actors step environments, learners turn trajectories into parameters, evaluators score policies."""
