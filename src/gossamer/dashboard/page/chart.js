// One chart: a card with a title, a Plotly picture, its own crosshair, and buttons that save it.

import { loadPlotly } from "./api.js";
import { button, el, refill } from "./dom.js";
import { extent, figure, fromAxis, toAxis, undrawable, X_KINDS } from "./figure.js";
import { count, duration, moment, number, short } from "./format.js";

const CONFIG = { displayModeBar: false, doubleClick: false, showTips: false, displaylogo: false, scrollZoom: false };
const SHOWN = 8;
const PATIENCE_MS = 30_000;
const HELD_UNTIL = ["pointerup", "pointercancel"];

function nearest(x, value) {
  let low = 0;
  let high = x.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= value) low = middle;
    else high = middle;
  }
  return Math.abs(x[high] - value) < Math.abs(x[low] - value) ? high : low;
}

function xText(kind, x) {
  if (kind === "time") return moment(x);
  if (kind === "seconds") return duration(x);
  return `${short(x)} ${X_KINDS[kind].title}`;
}

function download(address, name) {
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

/** A chart. `links` are called when somebody zooms it or points at it: zoom(range), yZoom(range), whole(on), cursor(x, keys). */
export class Chart {
  #lines = [];
  #view = { xKind: "env_steps" };
  #links;
  #options;
  #plot;
  #cursor;
  #readout;
  #legend;
  #note;
  #reset;
  #unit = el("small", {});
  #outliers = el("small", { class: "outliers", hidden: true });
  #far = null;
  #title;
  #sample = el("small", { class: "sample", hidden: true });
  #dropped = el("small", { hidden: true });
  #waiting = 0;
  #visible = false;
  #stale = false;
  #held = false;
  #drawing = null;
  #drawn = false;
  #watching;

  /** `options`: title, metric (its name, where the title is another), help, unit, file (a name without ending), legend (its own), csv() (an address) or null. */
  constructor(options, links) {
    this.#options = options;
    this.#links = links;
    this.#plot = el("div", { class: "plot", role: "img", tabindex: "0", "aria-label": options.title });
    this.#cursor = el("div", { class: "cursor", hidden: true });
    this.#readout = el("div", { class: "readout", hidden: true });
    this.#legend = el("ul", { class: "legend" });
    this.#note = el("p", { class: "plot-note" }, "Loading\u2026");
    this.#reset = button("Reset zoom", () => this.#links.zoom(null), { class: "link", hidden: true });
    const save = (format) => button(format.toUpperCase(), () => this.save(format), {
      class: "link",
      "aria-label": `Save ${options.title} as ${format.toUpperCase()}`,
    });
    this.#title = el("h3", {}, options.title, el("small", { class: "metric-name" }, options.metric ?? ""), this.#unit, this.#sample, this.#dropped);
    this.describe(options.help, options.unit);
    this.node = el(
      "article",
      { class: "card chart", "data-chart": options.key },
      el(
        "header",
        {},
        this.#title,
        this.#outliers,
        el("div", { class: "chart-tools" }, this.#reset, save("png"), save("svg"), options.csv && save("csv")),
      ),
      options.legend ? this.#legend : null,
      el("div", { class: "plot-frame" }, this.#plot, this.#cursor, this.#readout, this.#note),
    );
    this.#listen();
  }

  /** Say what the chart's metric means and its unit, where they are known. */
  describe(help, unit) {
    if (help) this.#title.title = help;
    this.#unit.textContent = unit ?? "";
    this.#options.unit = unit;
  }

  get lines() {
    return this.#lines;
  }

  /** Show lines in a view; drawn when the chart is on the screen. */
  show(lines, view) {
    this.#lines = lines;
    this.#view = view;
    this.#reset.hidden = !view.zoom && !view.yZoom;
    const points = lines.reduce((sum, line) => sum + line.y.filter((value) => value !== null).length, 0);
    // Rows of episodes tell env steps and seconds, and no updates.
    const untold = view.xKind === "updates" && lines.length > 0 && lines.every((line) => line.metric === "episode/return");
    this.note(points ? "" : untold ? "Episodes are not told by updates: choose another x axis." : "No rows yet.");
    this.#sampled(lines.some((line) => line.exact === false));
    const dropped = undrawable(lines, view);
    this.#dropped.hidden = dropped === 0;
    const values = dropped === null ? "Some values" : dropped === 1 ? "1 value" : `${count(dropped)} values`;
    this.#dropped.textContent = `${values} of 0 or less ${dropped === 1 ? "is" : "are"} not on a logarithmic axis`;
    this.#legend.replaceChildren(
      ...lines.map((line) =>
        el("li", {}, el("span", { class: `swatch ${line.dash ?? "solid"}${line.markers ? " points" : ""}`, css: { "--color": line.color } }), line.label),
      ),
    );
    const last = lines.map((line) => {
      const value = line.y.findLast((each) => each !== null);
      return value === undefined ? `${line.label}: none` : `${line.label}: last ${number(value)}`;
    });
    this.#plot.setAttribute(
      "aria-label",
      `${this.#options.title} over ${X_KINDS[view.xKind].title}; ${last.slice(0, 12).join("; ")}`,
    );
    this.#stale = true;
    this.#draw();
  }

  // Files too long to be held stay samples, and nobody says so: what has not come for a while is not awaited.
  #sampled(some) {
    if (some === !this.#sample.hidden) return;
    this.#sample.hidden = !some;
    clearTimeout(this.#waiting);
    if (!some) return;
    this.#sample.textContent = "reading all rows\u2026";
    this.#sample.title = "A sample of the rows; all of them are read now";
    this.#waiting = setTimeout(() => {
      this.#sample.textContent = "a sample of the rows";
      this.#sample.title = "There are too many rows to draw this from all of them";
    }, PATIENCE_MS);
  }

  /** Say something instead of the picture: "" shows the picture again. */
  note(text) {
    this.#note.textContent = text;
    this.#note.hidden = !text;
    this.#plot.classList.toggle("away", Boolean(text));
  }

  /** Say what went wrong; a picture that is there stays. */
  failed(message) {
    if (!this.#drawn) this.note(message);
    this.node.classList.add("stale");
    this.node.title = message;
  }

  #draw() {
    if (!this.#visible || !this.#stale || this.#held) return;
    this.#stale = false;
    this.node.classList.remove("stale");
    this.node.removeAttribute("title");
    const { data, layout, far } = figure(this.#lines, this.#view);
    this.#tellOutliers(far);
    layout.width = this.#plot.clientWidth;
    layout.height = this.#plot.clientHeight;
    this.#drawing = loadPlotly()
      .then((Plotly) => Plotly.react(this.#plot, data, layout, CONFIG))
      .then(() => {
        if (!this.#drawn) this.#zoomable();
        this.#drawn = true;
        this.node.dataset.drawn = String(Number(this.node.dataset.drawn ?? 0) + 1);
      })
      .catch((error) => this.failed(error.message));
  }

  // What an axis leaves out is told, with the way to see it.
  #tellOutliers(far) {
    const { whole, yZoom } = this.#view;
    const told = far > 0 && !yZoom ? `${far} ${whole}` : "";
    if (told === this.#far) return;
    this.#far = told;
    this.#outliers.hidden = !told;
    const values = `${count(far)} ${far === 1 ? "value" : "values"}`;
    refill(
      this.#outliers,
      whole ? `${values} far from the rest` : `${values} outside`,
      button(whole ? "leave out" : "show all", () => this.#links.whole(!whole), { class: "link" }),
    );
  }

  #listen() {
    this.#watching = new IntersectionObserver(
      (entries) => {
        this.#visible = entries.at(-1).isIntersecting;
        this.#draw();
      },
      { rootMargin: "300px" },
    );
    this.#watching.observe(this.node);
    this.resizing = new ResizeObserver(() => {
      if (!this.#drawing) return; // a first picture that is still on its way has the size from before
      this.#stale = true;
      this.#draw();
    });
    this.resizing.observe(this.#plot);
    // A picture that is redrawn under a drag would lose the drag.
    this.#plot.addEventListener("pointerdown", () => (this.#held = true));
    this.release = () => {
      if (!this.#held) return;
      this.#held = false;
      setTimeout(() => this.#draw(), 60);
    };
    // A finger that begins to scroll ends in a cancel.
    for (const ending of HELD_UNTIL) document.addEventListener(ending, this.release);
    this.#plot.addEventListener("mousemove", (event) => this.#point(event));
    this.#plot.addEventListener("mouseleave", () => this.#links.cursor(null, null));
    this.#plot.addEventListener("keydown", (event) => this.#key(event));
  }

  #zoomable() {
    this.#plot.on("plotly_relayout", (change) => {
      const ends = (axis) => {
        const found = change[`${axis}.range`] ?? [change[`${axis}.range[0]`], change[`${axis}.range[1]`]];
        return found[0] === undefined ? null : found;
      };
      const kind = this.#view.xKind;
      const x = ends("xaxis");
      const y = ends("yaxis");
      this.#held = false;
      if (y) this.#links.yZoom(this.#view.yLog ? y.map((value) => 10 ** value) : y.map(Number));
      if (x) {
        const log = this.#view.xLog && kind !== "time";
        this.#links.zoom(log ? x.map((value) => 10 ** value) : x.map((value) => fromAxis(kind, value)));
      }
    });
    this.#plot.on("plotly_doubleclick", () => {
      this.#held = false;
      this.#links.zoom(null);
    });
  }

  #key(event) {
    const whole = this.#view.full ?? this.#view.span ?? extent(this.#lines);
    if (!whole || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.#view.zoom ?? whole;
    const width = high - low;
    const moves = {
      "+": [low + width / 4, high - width / 4],
      "=": [low + width / 4, high - width / 4],
      "-": [Math.max(whole[0], low - width / 2), Math.min(whole[1], high + width / 2)],
      ArrowLeft: low > whole[0] ? [low - Math.min(width / 4, low - whole[0]), high - Math.min(width / 4, low - whole[0])] : null,
      ArrowRight: high < whole[1] ? [low + Math.min(width / 4, whole[1] - high), high + Math.min(width / 4, whole[1] - high)] : null,
    };
    if (event.key === "0") this.#links.zoom(null);
    else if (moves[event.key]) this.#links.zoom(moves[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #point(event) {
    const area = this.#area();
    if (!area || this.#held) return;
    const box = this.#plot.getBoundingClientRect();
    const px = event.clientX - box.left - area.l;
    const py = event.clientY - box.top - area.t;
    if (px < 0 || py < 0 || px > area.w || py > area.h) {
      this.#links.cursor(null, null);
      return;
    }
    const x = fromAxis(this.#view.xKind, area.xaxis.p2c(px));
    const near = this.#values(x)
      .map((each) => ({ ...each, far: Math.abs(area.yaxis.c2p(each.y) - py) }))
      .sort((a, b) => a.far - b.far)
      .slice(0, SHOWN);
    this.#links.cursor(x, near.map((each) => each.key));
  }

  #area() {
    const full = this.#drawn && this.#plot._fullLayout;
    return full ? { ...full._size, xaxis: full.xaxis, yaxis: full.yaxis } : null;
  }

  #values(x) {
    const found = [];
    for (const line of this.#lines) {
      const ends = [line.x[0], line.x.at(-1)];
      if (ends[0] === undefined || x < ends[0] || x > ends[1]) continue;
      const at = nearest(line.x, x);
      if (line.y[at] === null) continue;
      const low = line.low?.[at];
      const high = line.high?.[at];
      // Seeds end at different places: behind a point there may be fewer than the group has.
      const few = line.counts && line.counts[at] < line.count ? ` (n\u00a0=\u00a0${line.counts[at]})` : "";
      found.push({ key: line.key, label: line.label + few, color: line.color, y: line.y[at], low, high });
    }
    return found;
  }

  /** Draw the crosshair at x with the values of the lines that `keys` names (null: of the first ones). */
  cursor(x, keys) {
    const area = this.#area();
    const px = x !== null && area ? area.xaxis.c2p(toAxis(this.#view.xKind, x)) : -1;
    const shown = px >= 0 && area && px <= area.w;
    this.#cursor.hidden = !shown;
    this.#readout.hidden = !shown;
    if (!shown) return;
    this.#cursor.style.setProperty("transform", `translateX(${area.l + px}px)`);
    const all = this.#values(x);
    const wanted = keys && all.some((each) => keys.includes(each.key)) ? all.filter((each) => keys.includes(each.key)) : all;
    wanted.sort((a, b) => b.y - a.y);
    this.#readout.replaceChildren(
      el("div", { class: "readout-x" }, xText(this.#view.xKind, x)),
      ...wanted.slice(0, SHOWN).map((each) =>
        el(
          "div",
          { class: "readout-row" },
          el("span", { class: "bead", css: { "--color": each.color } }),
          el("span", { class: "readout-label" }, each.label),
          el("b", {}, number(each.y)),
          typeof each.low === "number" && typeof each.high === "number" && each.low < each.high
            ? el("small", {}, `${number(each.low)} \u2026 ${number(each.high)}`)
            : null,
        ),
      ),
      all.length > wanted.length ? el("div", { class: "readout-x" }, `and ${all.length - wanted.length} more`) : "",
    );
    const right = px < area.w / 2;
    this.#readout.style.setProperty("left", right ? `${area.l + px + 12}px` : "auto");
    this.#readout.style.setProperty("right", right ? "auto" : `${this.#plot.clientWidth - area.l - px + 12}px`);
  }

  /** Let the lines of one group, or one line, stand out, or none (null). */
  emphasise(key) {
    const nodes = this.#plot.querySelectorAll(".scatterlayer .trace");
    const data = this.#plot.data ?? [];
    nodes.forEach((node, at) => node.classList.toggle("faint", key !== null && data[at]?.meta !== key));
  }

  /** Save the chart as png, svg or csv. */
  async save(format) {
    const { title, file, csv } = this.#options;
    if (format === "csv") {
      download(csv(), `${file}.csv`);
      return;
    }
    try {
      const Plotly = await loadPlotly();
      const outside = this.#far && !this.#view.whole ? ` (${this.#outliers.firstChild.textContent})` : "";
      const { data, layout } = figure(this.#lines, this.#view, { title: title + outside, yTitle: this.#options.unit ?? "", legend: true });
      const image = await Plotly.toImage({ data, layout }, { format, width: 1000, height: 560, scale: format === "png" ? 2 : 1 });
      download(image, `${file}.${format}`);
    } catch (error) {
      this.failed(error.message);
    }
  }

  /** Give back what the chart holds. */
  remove() {
    clearTimeout(this.#waiting);
    this.#watching.disconnect();
    this.resizing.disconnect();
    for (const ending of HELD_UNTIL) document.removeEventListener(ending, this.release);
    if (this.#drawn) globalThis.Plotly?.purge(this.#plot);
    this.node.remove();
  }
}
