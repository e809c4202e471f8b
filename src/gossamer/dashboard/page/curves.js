// The view Curves: metrics of several runs side by side, seeds grouped.

import { go, list, one, remember, text } from "./address.js";
import { metricsOf, url } from "./api.js";
import { breakable, button, checklist, choice, el, nothing, paced, popover, refill } from "./dom.js";
import { count } from "./format.js";
import { goneNote, present } from "./gone.js";
import { runLabels } from "./labels.js";
import { groupLines, groupsOf, pointsFor, seriesLine } from "./lines.js";
import { Linked, readView, writeView } from "./linked.js";
import { byMenu, runsMenu } from "./menus.js";
import { line } from "./palette.js";
import { store } from "./store.js";
import { titleOf, unitOf } from "./titles.js";

const STATISTICS = [["mean", "Mean"], ["median", "Median"], ["iqm", "IQM"], ["runs", "Each run"]];
const USUAL = ["return_mean_100", "evaluation/mean"];
const FAILED = Symbol("failed"); // among the groups that are told of: some chart has no answer
const SEED_OPACITY = [1, 0.8, 0.62]; // in turn, so that the seeds of one colour can be told apart where they cross
const PACE_MS = 900;

// Runs that were set up alike have the same metrics: one of each kind is asked.
function kinds(ids) {
  const found = new Map();
  for (const id of ids) {
    const run = store.runs.get(id);
    const kind = run ? `${run.env_id}|${run.algorithm}|${run.topology}|${run.num_learners}` : id;
    if (!found.has(kind)) found.set(kind, id);
  }
  return [...found.values()].slice(0, 12);
}

/** The view Curves. */
export class Curves {
  #state;
  #linked;
  #metrics = [];
  #legend = el("div", { class: "groups", "aria-label": "Groups of runs" });
  #body = el("div", { class: "curves-body" });
  #abort = new AbortController();
  #seen = new Set(); // keys of the groups that the last answers told of
  #groups = new Map();
  #gone = el("div", {});
  #there = ""; // the runs that are drawn
  #menu;

  constructor(root, params) {
    this.root = root;
    this.refresh = paced(PACE_MS, () => this.#load());
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    this.#linked?.remove();
    this.#groups.clear();
    this.#state = {
      runs: list(params, "runs"),
      metrics: list(params, "metrics"),
      statistic: one(params, "stat", STATISTICS.map(([key]) => key)),
      by: list(params, "by"),
      hidden: new Set(list(params, "hide")),
    };
    if (text(params, "runs") === "" && store.selected.size) this.#state.runs = store.plottable();
    this.#linked = new Linked(readView(params), (_, fresh) => {
      this.#remember();
      if (fresh) this.#load();
    });
    this.#draw();
  }

  #remember() {
    const { runs, metrics, statistic, by, hidden } = this.#state;
    remember("curves", {
      runs,
      metrics,
      stat: statistic === "mean" ? null : statistic,
      by,
      hide: [...hidden],
      ...writeView(this.#linked.view),
    });
  }

  #draw() {
    document.title = "Curves \u00b7 gossamer";
    this.root.replaceChildren(
      el("h1", { class: "sr" }, "Curves"),
      el("div", { class: "toolbar" }, (this.#menu = runsMenu(this.#state, (ids) => this.#setRuns(ids))), this.#metricsMenu(), byMenu(this.#state, ["seed"], (by) => this.#change({ by })), this.#statistics(), this.#linked.controls(), this.#verdicts()),
      this.#gone,
      this.#body,
    );
    this.#show();
  }

  #show() {
    const there = this.#runs;
    this.#there = there.join("\n");
    this.#gone.replaceChildren(goneNote(this.#state.runs));
    this.#menu.rename(`Runs (${there.length})`);
    const charts = el("div", { class: "curves" }, this.#legend, this.#linked.node);
    this.#body.replaceChildren(there.length ? charts : this.#invitation());
    this.#load();
  }

  // Those that are there; the address keeps the others, which may come back.
  get #runs() {
    return present(this.#state.runs);
  }

  #invitation() {
    const runs = store.offered();
    const pick = (name, chosen) => chosen.length > 0 && button(`${name} (${chosen.length})`, () => {
        this.#setRuns(chosen.map((run) => run.id));
        this.#draw();
      });
    const newest = runs[0];
    return nothing(
      "Which runs?",
      "Tick runs in the table of runs and press c, open the menu Runs above, or begin with",
      el(
        "p",
        { class: "picks" },
        pick("the running ones", runs.filter((run) => run.state === "running").slice(0, 20)),
        pick("the newest five", runs.slice(0, 5)),
        newest && pick(`all of ${newest.env_id}`, runs.filter((run) => run.env_id === newest.env_id).slice(0, 40)),
      ),
    );
  }

  #setRuns(ids) {
    this.#state.runs = ids;
    store.selected = new Set(ids);
    this.#groups.clear();
    this.#remember();
    this.#show();
  }

  #metricsMenu() {
    const menu = popover("Metrics", () => {
      const items = this.#metrics.map((metric) => ({
        key: metric.name,
        text: metric.name,
        note: metric.meaning,
        on: this.#state.metrics.includes(metric.name),
      }));
      return checklist(items, "Search metrics", (_, item) => {
        const { metrics } = this.#state;
        this.#state.metrics = item.on ? [...metrics, item.key] : metrics.filter((name) => name !== item.key);
        this.#remember();
        this.#load();
      });
    });
    menu.dataset.menu = "metrics";
    return menu;
  }

  #change(change) {
    Object.assign(this.#state, change);
    this.#groups.clear();
    this.#remember();
    this.#load();
  }

  #statistics() {
    return choice("", STATISTICS, this.#state.statistic, (statistic) => this.#change({ statistic }), "Statistic of the seeds");
  }

  #verdicts() {
    return button("Compare", () => go("compare", { runs: this.#runs, by: this.#state.by }), { title: "Scores with intervals, and verdicts" });
  }

  async #findMetrics(signal) {
    const answers = await Promise.allSettled(kinds(this.#runs).map((id) => metricsOf(id)));
    if (signal.aborted) return;
    const found = new Map();
    for (const { value } of answers) for (const metric of value ?? []) if (!found.has(metric.name)) found.set(metric.name, metric);
    this.#metrics = [...found.values()];
    if (!this.#metrics.length) throw answers.find((each) => each.reason)?.reason ?? new Error("These runs have no rows yet.");
    if (!this.#state.metrics.length) {
      const usual = USUAL.filter((name) => found.has(name));
      this.#state.metrics = usual.length ? usual : [this.#metrics[0].name];
      this.#remember();
    }
  }

  async #load() {
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    if (!this.#runs.length) return;
    try {
      const described = this.#findMetrics(signal);
      // What the address names is drawn without waiting for what there is.
      if (!this.#state.metrics.length) await described;
      if (signal.aborted) return;
      const { metrics } = this.#state;
      this.#linked.keep(metrics);
      this.#seen = new Set();
      await Promise.all([described, ...metrics.map((metric) => this.#loadChart(metric, signal))]);
      // A run that goes on with another setting may leave its group, and nobody is in it any more.
      const gone = signal.aborted || this.#seen.has(FAILED) ? [] : [...this.#groups.keys()].filter((key) => !this.#seen.has(key));
      for (const key of gone) this.#groups.delete(key);
      if (gone.length) this.#drawLegend();
      for (const metric of signal.aborted ? [] : this.#metrics) {
        if (metrics.includes(metric.name)) this.#linked.chart(metric.name, {}).describe(metric.meaning, unitOf(metric));
      }
    } catch (error) {
      if (!signal.aborted && !this.#groups.size) this.#legend.replaceChildren(el("p", { class: "quiet" }, error.message));
    }
  }

  async #loadChart(metric, signal) {
    const { title, name } = titleOf(metric);
    const chart = this.#linked.chart(metric, {
      title,
      metric: name,
      file: metric.replaceAll("/", "-"),
      csv: () => this.#csv(metric),
    });
    try {
      const lines = await this.#lines(metric, signal);
      if (signal.aborted) return;
      for (const { group } of lines) {
        this.#seen.add(group.key);
        const taken = new Set([...this.#groups.values()].map(({ n }) => n));
        let free = 0;
        while (taken.has(free)) free += 1;
        const { n = free, told = new Map() } = this.#groups.get(group.key) ?? {};
        this.#groups.set(group.key, { ...group, n, told: told.set(metric, group) });
      }
      const shown = lines
        .filter(({ group }) => !this.#state.hidden.has(group.label))
        .map((each) => {
          const { n } = this.#groups.get(each.group.key);
          return { ...each, group: each.group.key, n, ...line(n) };
        });
      this.#linked.show(metric, shown);
      if (lines.length && !shown.length) chart.note("All groups are hidden.");
      this.#drawLegend();
    } catch (error) {
      if (signal.aborted) return;
      this.#seen.add(FAILED);
      chart.failed(error.message);
    }
  }

  // Seeds that train one after another have no moment of the clock in common, so there each run is drawn for itself.
  #statistic() {
    return this.#linked.view.xKind === "time" ? "runs" : this.#state.statistic;
  }

  // A grouped chart is saved as it is drawn, each run's own rows as they are.
  #csv(metric) {
    const { by } = this.#state;
    const statistic = this.#statistic();
    const runs = this.#runs;
    const grouped = statistic === "runs" ? {} : { statistic, by, points: pointsFor(runs.length) };
    return url("api/export.csv", { runs, metric, x: this.#linked.view.xKind, ...grouped });
  }

  async #lines(metric, signal) {
    const { by } = this.#state;
    const statistic = this.#statistic();
    const runs = this.#runs;
    const { view } = this.#linked;
    const points = pointsFor(runs.length);
    if (statistic !== "runs") {
      const lines = await groupLines({ runs, metric, view, statistic, by, points }, signal);
      return lines.map((each) => ({ ...each, group: each }));
    }
    const labels = runLabels(runs);
    const [groups, ...answers] = await Promise.all([
      groupsOf({ runs, by }, signal),
      ...runs.map((run, n) => seriesLine({ run, metric, label: labels[n], n, key: run, points, view }, signal).catch((error) => ({ error }))),
    ]);
    const lines = answers.filter((each) => !each.error);
    if (!lines.length) throw answers[0].error;
    // Group by group, so that the first group has the first colour; seeds have the colour of their group.
    return groups.flatMap((group) =>
      group.runs.map((run, seed) => {
        const own = lines.find((each) => each.key === run);
        const opacity = SEED_OPACITY[seed % SEED_OPACITY.length];
        return own && { ...own, group: { ...group, count: group.runs.length }, thin: group.runs.length > 1, opacity };
      }),
    ).filter(Boolean);
  }

  #drawLegend() {
    const { hidden, metrics } = this.#state;
    const statistic = this.#statistic();
    // Not every chart has a value of every seed: a run without evaluations has a return.
    const toldBy = (group) => [...group.told].filter(([metric]) => metrics.includes(metric)).map(([, told]) => told);
    const rows = [...this.#groups.values()].map((group) => {
      const look = line(group.n);
      const off = hidden.has(group.label);
      return el(
        "button",
        {
          type: "button",
          class: "group",
          "aria-pressed": String(!off),
          title: off ? "Show" : "Hide",
          on: {
            click: () => {
              if (off) hidden.delete(group.label);
              else hidden.add(group.label);
              this.#remember();
              this.#load();
              this.#drawLegend();
            },
            mouseenter: () => this.#linked.emphasise(group.key),
            mouseleave: () => this.#linked.emphasise(null),
            focus: () => this.#linked.emphasise(group.key),
            blur: () => this.#linked.emphasise(null),
          },
        },
        el("span", { class: `swatch ${look.dash}`, css: { "--color": look.color } }),
        el("span", { class: "group-label", title: group.full }, breakable(group.label)),
        el("span", { class: "group-n" }, `n\u00a0=\u00a0${count(Math.max(...toldBy(group).map((told) => told.count)))}`),
      );
    });
    const interval = [...this.#groups.values()].flatMap(toldBy).find((told) => told.interval?.startsWith("95"))?.interval;
    const words = { mean: "mean", median: "median", iqm: "interquartile mean" };
    const clock = statistic === this.#state.statistic ? "" : `Seeds that train at different times have no ${words[this.#state.statistic]} over the wall clock. `;
    const alone = [...this.#groups.values()].flatMap(toldBy).some((told) => told.count === 1) ? " A shade of one run spans the rows behind a point." : "";
    const note =
      statistic === "runs"
        ? `${clock}Each line is one run; seeds of one group have one colour. A shade spans the rows behind a point.`
        : `Lines are the ${words[statistic]} of n seeds${interval ? `, shades the ${interval} interval` : "; fewer than three seeds have no interval"}.${alone}`;
    refill(this.#legend, el("div", { class: "group-list" }, rows), el("p", { class: "quiet" }, note));
  }

  /** New rows of a run (null: of any). */
  onRows(run) {
    if (run === null || this.#state.runs.includes(run)) this.refresh();
  }

  /** The table of runs changed. */
  onRuns() {
    if (!store.loaded) return;
    if (this.#runs.join("\n") !== this.#there) {
      this.#groups.clear();
      this.#show();
    } else if (!this.#there) {
      this.#body.replaceChildren(this.#invitation());
    }
  }

  /** The colours changed. */
  onTheme() {
    this.#linked.recolor();
    this.#drawLegend();
  }

  /** The view is left. */
  leave() {
    this.refresh.stop();
    this.#abort.abort();
    this.#linked.remove();
  }
}
