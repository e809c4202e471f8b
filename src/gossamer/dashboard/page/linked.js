// Charts that belong together: one horizontal axis, one zoom, one crosshair.

import { list, numeric, one, range, text } from "./address.js";
import { Chart } from "./chart.js";
import { choice, el, later, select } from "./dom.js";
import { extent, X_KINDS } from "./figure.js";
import { line } from "./palette.js";

/** Read the part of a view that all linked charts share out of an address. */
export function readView(params) {
  const yZoom = new Map();
  for (const item of list(params, "yzoom")) {
    const [low, high, ...name] = item.split("~");
    if (Number(low) < Number(high) && name.length) yZoom.set(name.join("~"), [Number(low), Number(high)]);
  }
  return {
    xKind: one(params, "x", Object.keys(X_KINDS)),
    xLog: text(params, "xlog") === "1",
    yLog: text(params, "ylog") === "1",
    smoothing: Math.min(100, Math.max(0, numeric(params, "smooth", 0))),
    zoom: range(params, "zoom"),
    yZoom,
    whole: new Set(list(params, "whole")),
  };
}

// Seconds of the clock have ten digits before the point.
function digits(value) {
  return Number(value.toPrecision(13));
}

/** Write that part back, what is as usual left out. */
export function writeView(view) {
  return {
    x: view.xKind === "env_steps" ? null : view.xKind,
    xlog: view.xLog,
    ylog: view.yLog,
    smooth: view.smoothing || null,
    zoom: view.zoom?.map(digits),
    yzoom: [...view.yZoom].map(([name, [low, high]]) => `${digits(low)}~${digits(high)}~${name}`),
    whole: [...view.whole],
  };
}

/** Several charts in a grid. `changed(view, fresh)` is called when the view changes; fresh: other data is needed. */
export class Linked {
  #charts = new Map();
  #changed;
  #kinds = new Map(); // what is x of the lines that a chart has
  #span = null;
  #full = null; // the span when nothing was zoomed: of a zoomed chart only what is seen is read
  #redrawSoon = later(40, () => this.#redraw()); // charts are read one by one, and each may make the span wider

  constructor(view, changed) {
    this.view = view;
    this.#changed = changed;
    this.node = el("div", { class: "charts" });
  }

  /** Return the chart of that key, made from `options` where it is not there yet, at the grid's end. */
  chart(key, options, parent = this.node) {
    let chart = this.#charts.get(key);
    if (!chart) {
      chart = new Chart(
        { ...options, key },
        {
          zoom: (zoom) => this.zoom(zoom),
          yZoom: (zoom) => {
            this.view.yZoom.set(key, zoom);
            this.#redraw();
            this.#changed(this.view, false);
          },
          whole: (on) => {
            if (on) this.view.whole.add(key);
            else this.view.whole.delete(key);
            this.#redraw();
            this.#changed(this.view, false);
          },
          cursor: (x, keys) => {
            for (const each of this.#charts.values()) each.cursor(x, keys);
          },
        },
      );
      this.#charts.set(key, chart);
    }
    if (chart.node.parentNode !== parent) parent.append(chart.node);
    return chart;
  }

  /** Remove every chart whose key is not among `keys`. */
  keep(keys) {
    for (const [key, chart] of this.#charts) {
      if (keys.includes(key)) continue;
      chart.remove();
      this.#charts.delete(key);
      this.#kinds.delete(key);
      this.view.yZoom.delete(key);
      this.view.whole.delete(key);
    }
  }

  /** Show lines in the chart of that key. */
  show(key, lines) {
    if (!this.#charts.has(key)) return;
    this.#kinds.set(key, this.view.xKind);
    const others = this.#current().filter(([each]) => each !== key).flatMap(([, chart]) => chart.lines);
    const before = this.#span;
    this.#span = this.#extent([...others, ...lines]);
    if (!this.view.zoom) this.#full = this.#span;
    this.#draw(key, lines);
    if (String(before) !== String(this.#span)) this.#redrawSoon();
  }

  // Charts whose lines are over the present kind of x: after a change of it they are read one by one.
  #current() {
    return [...this.#charts].filter(([key, chart]) => chart.lines.length && this.#kinds.get(key) === this.view.xKind);
  }

  // What stands above one another in the charts is at the same moment.
  #extent(lines) {
    return extent(lines, this.view.xLog && this.view.xKind !== "time");
  }

  #draw(key, lines) {
    const view = { ...this.view, span: this.#span, full: this.#full, yZoom: this.view.yZoom.get(key) ?? null, whole: this.view.whole.has(key) };
    this.#charts.get(key).show(lines, view);
  }

  #redraw() {
    const current = this.#current();
    this.#span = this.#extent(current.flatMap(([, chart]) => chart.lines));
    for (const [key, chart] of current) this.#draw(key, chart.lines);
  }

  /** Zoom all charts to a range of x; null shows everything. */
  zoom(zoom) {
    if (zoom === null) this.view.yZoom.clear();
    this.view.zoom = zoom && zoom[0] < zoom[1] ? zoom : null;
    this.#redraw();
    this.#changed(this.view, true);
  }

  /** Change the view, as by a control. */
  set(change) {
    const fresh = "xKind" in change;
    if (fresh) this.view.zoom = this.#full = null;
    if ("yLog" in change) this.view.yZoom.clear();
    Object.assign(this.view, change);
    if (!fresh) this.#redraw();
    this.#changed(this.view, fresh);
  }

  /** Draw all anew in the colours of the theme. */
  recolor() {
    for (const [key, chart] of this.#charts) {
      if (chart.lines.length) this.show(key, chart.lines.map((each) => ({ ...each, ...line(each.n) })));
    }
  }

  /** Let the lines of one group, or one line, stand out in every chart, or none (null). */
  emphasise(key) {
    for (const chart of this.#charts.values()) chart.emphasise(key);
  }

  /** Return the controls of what all charts share. */
  controls() {
    const shown = el("output", { class: "slider-value" }, String(this.view.smoothing));
    const slider = el("input", {
      type: "range",
      min: "0",
      max: "100",
      step: "1",
      "aria-label": "Smoothing",
      value: String(this.view.smoothing),
      on: {
        input: (event) => {
          shown.textContent = event.target.value;
          this.set({ smoothing: Number(event.target.value) });
        },
      },
    });
    const kinds = Object.entries(X_KINDS).map(([key, { text: name }]) => [key, name]);
    const scales = [["linear", "Linear"], ["log", "Log"]];
    const xScale = choice("", scales, this.view.xLog ? "log" : "linear", (scale) => this.set({ xLog: scale === "log" }), "x scale");
    // Moments have no logarithm.
    const scaled = () => {
      for (const each of xScale.querySelectorAll("button")) each.disabled = this.view.xKind === "time";
    };
    scaled();
    const changeX = (xKind) => {
      this.set(xKind === "time" ? { xKind, xLog: false } : { xKind });
      xScale.querySelectorAll("button").forEach((each, n) => each.setAttribute("aria-pressed", String(Boolean(n) === this.view.xLog)));
      scaled();
    };
    return [
      select("x", kinds, this.view.xKind, changeX),
      xScale,
      choice("y", scales, this.view.yLog ? "log" : "linear", (scale) => this.set({ yLog: scale === "log" }), "y scale"),
      el("label", { class: "field" }, el("span", { class: "field-name" }, "Smoothing"), el("span", { class: "slider" }, slider, shown)),
    ];
  }

  /** Give back what the charts hold. */
  remove() {
    for (const chart of this.#charts.values()) chart.remove();
    this.#charts.clear();
  }
}
