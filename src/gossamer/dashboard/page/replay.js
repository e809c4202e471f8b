// The view Replay: what a run's replays hold and give: ages, reuse, rejected and chosen distances, ratio.

import { numeric, remember, text } from "./address.js";
import { get, metricsOf } from "./api.js";
import { el, nothing, paced } from "./dom.js";
import { Linked, readView, writeView } from "./linked.js";
import { Panels } from "./panels.js";
import { headOf, usualRun } from "./runhead.js";
import { store } from "./store.js";

const PACE_MS = 900;

const COMMON = [
  { key: "ratio", title: "Ratio", help: "replayed columns learnt per online column: how often a column is reused", metrics: [{ name: "replay/ratio", label: "replayed per online column" }] },
  { key: "age", title: "Age", metrics: [{ name: "replay/age_updates", label: "replayed minus online columns" }] },
  { key: "rejected", title: "Rejected rows", metrics: [{ name: "learner/rejected_fraction", label: "rejected by the trust region" }] },
  { key: "kl", title: "KL of behavior and policy", metrics: [{ name: "learner/mean_kl_nats", label: "KL" }] },
  { key: "time", title: "Time for the replay", metrics: [{ name: "share/replay", label: "storing and choosing" }, { name: "share/wait_replay", label: "the learner waits" }] },
  { key: "nonfinite", title: "Columns that are not finite", metrics: [{ name: "replay/nonfinite_columns", label: "columns" }] },
];
const TOLD = new Set(COMMON.flatMap((panel) => panel.metrics.map((metric) => metric.name)));

// What a metric of one replay is about, behind the replay's name: distance_p10, distance_chosen, columns.
function part(replay, metric) {
  const name = metric.replace(/^replay\//, "");
  return name.startsWith(`${replay}_`) ? name.slice(replay.length + 1) : name;
}

function panelOf(metric, about) {
  const label = about.replaceAll("_", " ");
  const title = label.charAt(0).toUpperCase() + label.slice(1);
  // The unit of columns is columns.
  return { key: metric, ...(about === "columns" ? { title: "Columns held", unit: "" } : { title }), metrics: [{ name: metric, label }] };
}

function panelsOf({ name, metrics }) {
  const own = metrics.filter((metric) => !TOLD.has(metric));
  const distances = own.filter((metric) => part(name, metric).startsWith("distance_"));
  const words = { distance_p10: "10 % of candidates are below", distance_p50: "half are below", distance_p90: "90 % are below", distance_chosen: "the chosen ones, mean" };
  const panels = own
    .filter((metric) => !distances.includes(metric))
    .map((metric) => panelOf(metric, part(name, metric)));
  if (distances.length) {
    const ordered = ["distance_chosen", "distance_p10", "distance_p50", "distance_p90"];
    const lines = distances.toSorted((a, b) => ordered.indexOf(part(name, a)) - ordered.indexOf(part(name, b)));
    panels.unshift({
      key: `${name}/distances`,
      title: "Distances of candidates and of the chosen",
      metrics: lines.map((metric) => ({ name: metric, label: words[part(name, metric)] ?? part(name, metric) })),
    });
  }
  return panels.map((panel) => ({ ...panel, replay: name }));
}

/** The view Replay. */
export class Replay {
  #id;
  #learner;
  #head = null;
  #linked = null;
  #panels;
  #grids = new Map();
  #content = el("div", {});
  #abort = new AbortController();

  constructor(root, params) {
    this.root = root;
    this.refresh = paced(PACE_MS, () => this.#load());
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    this.#abort.abort();
    this.#linked?.remove();
    this.#id = text(params, "run") || usualRun();
    this.#learner = numeric(params, "learner");
    this.#linked = new Linked(readView(params), (view, fresh) => {
      remember("replay", { run: this.#id, learner: this.#learner, ...writeView(view) });
      if (fresh) this.#load();
    });
    this.#draw();
  }

  #draw() {
    const run = store.runs.get(this.#id);
    document.title = run ? `Replay of ${run.name} \u00b7 gossamer` : "Replay \u00b7 gossamer";
    this.#head = headOf("replay", this.#id, this.root);
    if (!this.#head) return;
    this.#panels = new Panels(this.#linked, this.#id);
    this.#grids.clear();
    this.#content.replaceChildren(el("p", { class: "loading" }, "Loading\u2026"));
    this.root.replaceChildren(this.#head.node, this.#content);
    this.#load();
  }

  #grid(name, title) {
    if (!this.#grids.has(name)) {
      const grid = el("div", { class: "charts" });
      this.#grids.set(name, grid);
      this.#linked.node.append(el("section", { class: "chart-group" }, el("h2", {}, title), grid));
    }
    return this.#grids.get(name);
  }

  async #load() {
    if (!store.runs.has(this.#id)) return;
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    try {
      const [{ replays }, metrics] = await Promise.all([get("api/replay", { run: this.#id }, signal), metricsOf(this.#id)]);
      if (signal.aborted) return;
      if (!replays.length) {
        this.#content.replaceChildren(
          nothing("No replay", "This run learns from new data alone. Replays are a setting; a preset that learns seven replayed steps for each new one:", el("pre", {}, "gossamer train --config laser_pong")),
        );
        return;
      }
      if (!this.#linked.node.isConnected) {
        this.#linked.node.className = "";
        this.#content.replaceChildren(el("div", { class: "toolbar" }, this.#linked.controls()), this.#linked.node);
      }
      const panels = [...COMMON, ...replays.flatMap(panelsOf)];
      await this.#panels.load(panels, metrics, this.#learner, signal, (panel) => (panel.replay ? this.#grid(panel.replay, `Replay ${panel.replay}`) : this.#grid("", "All replays")));
    } catch (error) {
      if (!signal.aborted && !this.#linked.node.isConnected) this.#content.replaceChildren(nothing("The replay cannot be read", error.message));
    }
  }

  /** New rows of a run (null: of any). */
  onRows(run) {
    if (run === null || run === this.#id) this.refresh();
  }

  /** Runs changed. */
  onRuns({ all }) {
    if (!this.#id) this.#id = usualRun();
    const run = store.runs.get(this.#id);
    if (!this.#head || !run) {
      if (all) this.#draw();
      return;
    }
    this.#head.draw(run);
  }

  /** The colours changed. */
  onTheme() {
    this.#linked.recolor();
  }

  /** The view is left. */
  leave() {
    this.refresh.stop();
    this.#abort.abort();
    this.#linked.remove();
  }
}
