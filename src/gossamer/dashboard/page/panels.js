// Panels of charts for one run: which metrics share a chart, and reading them.

import { pointsFor, seriesLine } from "./lines.js";
import { url } from "./api.js";
import { el } from "./dom.js";

/** Fill a grid of linked charts for one run. `panels`: {key, title, help, metrics: [{name, label, markers, band}]}. */
export class Panels {
  #linked;
  #run;
  #known = new Map();
  #learner = null;

  constructor(linked, run) {
    this.#linked = linked;
    this.#run = run;
  }

  /** Read and draw: those of `panels` whose metrics the run has; returns how many. */
  async load(panels, metrics, learner, signal, parentOf = () => this.#linked.node) {
    this.#known = new Map(metrics.map((metric) => [metric.name, metric]));
    this.#learner = learner;
    const drawn = panels
      .map((panel) => ({ ...panel, metrics: panel.metrics.filter((metric) => this.#known.has(metric.name)) }))
      .filter((panel) => panel.metrics.length);
    this.#linked.keep(drawn.map((panel) => panel.key));
    await Promise.all(drawn.map((panel) => this.#one(panel, signal, parentOf(panel))));
    return drawn.length;
  }

  // The learner whose rows are asked for; null where it does not tell the metric.
  #learnerOf({ name }) {
    return this.#known.get(name)?.learners?.includes(this.#learner) ? this.#learner : null;
  }

  // A chart outlives the choice of a learner, so that its address is made when it is saved.
  #csv({ metrics }) {
    const learner = metrics.some((metric) => this.#learnerOf(metric) !== null) ? this.#learner : null;
    return url("api/export.csv", { runs: [this.#run], metric: metrics.map((metric) => metric.name), x: this.#linked.view.xKind, learner });
  }

  // Where a learner is chosen, a chart says whose rows it draws that are not this learner's.
  #tellWhose(chart, { metrics }) {
    const others = this.#learner === null ? [] : metrics.filter((metric) => this.#learnerOf(metric) === null);
    const which = others.length === metrics.length ? "" : `${others.map(({ name, label }) => label ?? name).join(", ")}: `;
    chart.node.querySelector(".whose")?.remove();
    if (others.length) chart.node.querySelector("h3").after(el("small", { class: "whose" }, `${which}the run's rows`));
  }

  async #one(panel, signal, parent) {
    const first = this.#known.get(panel.metrics[0].name);
    const chart = this.#linked.chart(
      panel.key,
      {
        title: panel.title,
        help: panel.help ?? first.meaning,
        unit: panel.unit ?? (first.unit === "1" ? "" : first.unit),
        file: panel.key.replaceAll("/", "-"),
        legend: panel.metrics.length > 1,
        csv: () => this.#csv(panel),
      },
      parent,
    );
    try {
      const points = pointsFor(panel.metrics.length * 12);
      const lines = await Promise.all(
        panel.metrics.map(({ name, label, ...rest }, n) => {
          const learner = this.#learnerOf({ name });
          return seriesLine({ run: this.#run, metric: name, label: label ?? name, n, learner, points, view: this.#linked.view, ...rest }, signal);
        }),
      );
      if (signal.aborted) return;
      this.#linked.show(panel.key, lines);
      this.#tellWhose(chart, panel);
    } catch (error) {
      if (!signal.aborted) chart.failed(error.message);
    }
  }
}
