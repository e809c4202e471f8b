// What charts of well-known metrics are called; others go by the metric's own name.

const TITLES = {
  "return_mean_100": "Return",
  "evaluation/mean": "Evaluation return",
  "episode/return": "Training episodes",
  "length_mean_100": "Episode length",
  "learner/loss": "Loss",
  "learner/policy_loss": "Policy loss",
  "learner/value_loss": "Value loss",
  "learner/entropy_nats": "Entropy",
  "learner/mean_kl_nats": "KL of behavior and policy",
  "learner/grad_norm": "Gradient norm",
  "learner/explained_variance": "Explained variance",
  "learner/learning_rate": "Learning rate",
  "topology/disagreement": "Disagreement of learners",
  "steps_per_second": "Speed since the first update",
};

/** Return {title, name}: what a metric's chart is called, and the metric's name where it is not that. */
export function titleOf(metric) {
  const title = Object.hasOwn(TITLES, metric) ? TITLES[metric] : null;
  return title ? { title, name: metric } : { title: metric, name: "" };
}

/** Return a metric's unit as it stands beside a title; a return is a return. */
export function unitOf({ unit }) {
  return unit === "1" || unit === "return" ? "" : unit;
}
