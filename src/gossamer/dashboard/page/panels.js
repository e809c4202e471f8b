// Panels of charts for one run: which metrics share a chart, and reading them.

import { pointsFor, seriesLine } from "./lines.js";
import { url } from "./api.js";

/** Fill a grid of linked charts for one run. `panels`: {key, title, help, metrics: [{name, label, markers, band}]}. */
export class Panels {
  #linked;
  #run;
  #known = new Map();

  constructor(linked, run) {
    this.#linked = linked;
    this.#run = run;
  }

  /** Read and draw: those of `panels` whose metrics the run has; returns how many. */
  async load(panels, metrics, learner, signal, parentOf = () => this.#linked.node) {
    this.#known = new Map(metrics.map((metric) => [metric.name, metric]));
    const drawn = panels
      .map((panel) => ({ ...panel, metrics: panel.metrics.filter((metric) => this.#known.has(metric.name)) }))
      .filter((panel) => panel.metrics.length);
    this.#linked.keep(drawn.map((panel) => panel.key));
    await Promise.all(drawn.map((panel) => this.#one(panel, learner, signal, parentOf(panel))));
    return drawn.length;
  }

  async #one(panel, learner, signal, parent) {
    const first = this.#known.get(panel.metrics[0].name);
    const chart = this.#linked.chart(
      panel.key,
      {
        title: panel.title,
        help: panel.help ?? first.meaning,
        unit: first.unit === "1" ? "" : first.unit,
        file: panel.key.replaceAll("/", "-"),
        legend: panel.metrics.length > 1,
        csv: () => url("api/export.csv", { runs: [this.#run], metric: panel.metrics.map((metric) => metric.name), x: this.#linked.view.xKind }),
      },
      parent,
    );
    try {
      const points = pointsFor(panel.metrics.length * 12);
      const lines = await Promise.all(
        panel.metrics.map(({ name, label, ...rest }, n) => {
          const learners = this.#known.get(name).learners ?? [];
          const of = learner !== null && learners.includes(learner) ? learner : null;
          return seriesLine({ run: this.#run, metric: name, label: label ?? name, n, learner: of, points, view: this.#linked.view, ...rest }, signal);
        }),
      );
      if (!signal.aborted) this.#linked.show(panel.key, lines);
    } catch (error) {
      if (!signal.aborted) chart.failed(error.message);
    }
  }
}
