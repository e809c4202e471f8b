// Pictures of a sweep's trials: all settings at once, and the score against each of them. Drawn as SVG, so that a line can be
// pointed at, pressed and coloured by the theme.

import { colorBar, el, svg } from "./dom.js";
import { number, shortSetting } from "./format.js";
import { merit } from "./palette.js";
import { numericAxis, settingAxis } from "./scales.js";

const AXIS_WIDTH = 128;
const PARALLEL = { height: 300, top: 34, bottom: 16, left: 74, right: 72 };
const SCATTER = { height: 220, top: 26, bottom: 38, left: 54, right: 16 };
const LONGEST = 15;

/** Return short names of settings: the last part where that tells them apart. */
export function shortNames(settings) {
  const last = settings.map(({ name }) => name.split(".").at(-1));
  return settings.map(({ name }, at) => (last.filter((each) => each === last[at]).length === 1 ? last[at] : name));
}

function clipped(text, most = LONGEST) {
  return text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
}

// Labels of an axis, of which those that would cover the one before are left out; the first and the last stay.
function thinned(ticks, length, room) {
  const found = [];
  for (const tick of ticks) {
    if (!found.length || Math.abs(tick.at - found.at(-1).at) * length >= room) found.push(tick);
  }
  return found;
}

/** What a trial is worth by an objective, as a share in [0, 1] of all that are worth something: 1 is the best. */
export function meritsOf(trials, at, greater) {
  const known = trials.map((trial) => trial.values[at]).filter((value) => typeof value === "number");
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return new Map(
    trials
      .filter((trial) => typeof trial.values[at] === "number")
      .map((trial) => {
        const share = high > low ? (trial.values[at] - low) / (high - low) : 1;
        return [trial.trial, greater ? share : 1 - share];
      }),
  );
}

/** Draws trials and tells which one is pointed at. `links`: point(trial or null), open(trial). */
export class TrialPictures {
  #links;
  #told = null;
  #parallel = el("div", { class: "picture-frame scrolled" });
  #legend = el("div", { class: "graph-legend" });
  #parts = new Map(); // by trial, what is drawn of it
  #pointed = null; // number of the trial that stands out
  #watching;
  #drawing = false;
  #width = 0;

  constructor(links) {
    this.#links = links;
    this.card = el(
      "section",
      { class: "card parallel", "aria-label": "All settings at once" },
      el("header", {}, el("h2", {}, "All settings at once"), this.#legend),
      this.#parallel,
    );
    this.scatters = el("div", { class: "charts scatters" });
    this.#watching = new ResizeObserver(() => {
      if (this.#told && this.#parallel.clientWidth !== this.#width) this.draw(this.#told);
    });
    this.#watching.observe(this.#parallel);
  }

  /** Show trials: {settings, trials, objective: {name, greater}, at: its index, best: [numbers], importance: {name: share}}. */
  draw(told) {
    this.#told = told;
    this.#parts.clear();
    const { trials, at, objective, settings } = told;
    const merits = meritsOf(trials, at, objective.greater);
    const some = merits.size > 0 && settings.length > 0;
    this.card.hidden = !some;
    this.scatters.hidden = !some;
    if (!some) return;
    this.#width = this.#parallel.clientWidth;
    const focused = this.#focused();
    const names = shortNames(settings);
    this.#drawLegend(trials, at, objective);
    // A picture that has the focus loses it when it is replaced; nobody has gone away from it.
    this.#drawing = true;
    this.#parallel.replaceChildren(this.#lines(told, names, merits));
    this.scatters.replaceChildren(...settings.map((setting, n) => this.#scatter(told, setting, names[n], merits)));
    this.#drawing = false;
    if (focused) document.querySelector(`[data-picture="${CSS.escape(focused)}"]`)?.focus();
  }

  #focused() {
    const node = document.activeElement;
    return node && (this.card.contains(node) || this.scatters.contains(node)) ? node.dataset.picture : null;
  }

  #drawLegend(trials, at, { name, greater }) {
    const known = trials.map((trial) => trial.values[at]).filter((value) => typeof value === "number");
    const ends = [Math.min(...known), Math.max(...known)];
    if (!greater) ends.reverse();
    const never = trials.filter((trial) => trial.state === "done" && trial.values[at] === null).length;
    this.#legend.replaceChildren(
      colorBar(name, number(ends[0]), `${number(ends[1])} (best)`, merit),
      never ? el("span", { class: "quiet" }, `${never} ${never === 1 ? "trial" : "trials"} never reached the score`) : "",
    );
  }

  // Trials without a score lie below the others, the best on top.
  #ordered({ trials }, merits) {
    return [...trials].sort((a, b) => (merits.get(a.trial) ?? -1) - (merits.get(b.trial) ?? -1));
  }

  #lines(told, names, merits) {
    const { settings, trials, objective, at } = told;
    const { height, top, bottom, left, right } = PARALLEL;
    const count = settings.length + 1;
    const width = Math.max(this.#width, left + right + (count - 1) * AXIS_WIDTH);
    const x = (n) => left + ((width - left - right) * n) / (count - 1);
    const y = (share) => top + (height - top - bottom) * (1 - share);
    const axes = settings.map((setting) => settingAxis(setting, trials.map((trial) => trial.settings[setting.name])));
    axes.push(numericAxis(trials.map((trial) => trial.values[at])));
    const titles = [...names, objective.name];
    const lines = this.#ordered(told, merits).map((trial) => {
      const shares = settings.map((setting, n) => axes[n].place(trial.settings[setting.name]));
      shares.push(axes.at(-1).place(trial.values[at]));
      const points = shares.map((share, n) => (share === null ? null : `${x(n).toFixed(1)},${y(share).toFixed(1)}`)).filter(Boolean);
      return this.#part(trial, merits, svg("polyline", { points: points.join(" "), class: "trial-line" }), svg("polyline", { points: points.join(" "), class: "hit" }));
    });
    const drawn = axes.map((axis, n) =>
      svg(
        "g",
        { class: "axis" },
        svg("line", { x1: x(n), x2: x(n), y1: top, y2: height - bottom }),
        svg("text", { x: x(n), y: 14, class: "axis-title" }, svg("title", {}, settings[n]?.name ?? objective.name), clipped(titles[n], 18)),
        thinned(axis.ticks, height - top - bottom, 15).map((tick) => [
          svg("line", { x1: x(n) - (n < settings.length ? 4 : -4), x2: x(n), y1: y(tick.at), y2: y(tick.at) }),
          // Where lines meet, a little higher than its place; of the first axis and the last one, where no line is.
          n < settings.length
            ? svg("text", { x: x(n) - 7, y: y(tick.at) - (n ? 5 : 0), class: "axis-tick" }, svg("title", {}, tick.full), clipped(tick.text, 12))
            : svg("text", { x: x(n) + 8, y: y(tick.at), class: "axis-tick last" }, svg("title", {}, tick.full), clipped(tick.text, 9)),
        ]),
      ),
    );
    const label = `Parallel coordinates of ${merits.size} trials over ${names.join(", ")} and ${objective.name}`;
    return this.#picture("parallel", width, height, label, [lines, drawn]);
  }

  #scatter(told, setting, name, merits) {
    const { trials, objective, at, importance, best } = told;
    const { height, top, bottom, left, right } = SCATTER;
    // Columns of the grid are as wide as the style sheet says; the picture is scaled by a few per cent at most.
    const width = Math.max(260, this.#columnWidth());
    const tried = trials.map((trial) => trial.settings[setting.name]);
    const across = settingAxis(setting, tried);
    const up = numericAxis(trials.flatMap((trial) => [trial.values[at], ...trial.of_seeds.map((each) => each[at])]));
    const x = (share) => left + (width - left - right) * share;
    const y = (share) => top + (height - top - bottom) * (1 - share);
    // Numbers look as if they stood on a scale: their trials stay near.
    const spread = tried.every((value) => value === undefined || typeof value === "number") ? 0.15 : 0.5;
    const band = across.categories ? (spread * (width - left - right)) / across.categories : 0;
    const points = this.#ordered(told, merits)
      .filter((trial) => merits.has(trial.trial) && across.place(trial.settings[setting.name]) !== null)
      .map((trial) => {
        // Trials of one choice would cover each other: they stand beside one another, always in the same way.
        const aside = (((trial.trial * 0.618034) % 1) - 0.5) * band;
        const cx = (x(across.place(trial.settings[setting.name])) + aside).toFixed(1);
        const seeds = trial.of_seeds.map((each) => each[at]).filter((value) => typeof value === "number");
        const ends = [Math.min(...seeds), Math.max(...seeds)].map((value) => up.place(value));
        return this.#part(
          trial,
          merits,
          seeds.length > 1 ? svg("line", { x1: cx, x2: cx, y1: y(ends[0]).toFixed(1), y2: y(ends[1]).toFixed(1), class: "trial-seeds" }) : null,
          svg("circle", { cx, cy: y(up.place(trial.values[at])).toFixed(1), r: best.includes(trial.trial) ? 6 : 4.5, class: best.includes(trial.trial) ? "trial-point best" : "trial-point" }),
        );
      });
    const room = across.categories ? (width - left - right) / across.categories : 60;
    const most = Math.max(3, Math.floor(room / 7));
    const axes = svg(
      "g",
      { class: "axis" },
      svg("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
      thinned(up.ticks, height - top - bottom, 22).map((tick) => [
        svg("line", { x1: left, x2: width - right, y1: y(tick.at), y2: y(tick.at), class: "axis-grid" }),
        svg("text", { x: left - 8, y: y(tick.at), class: "axis-tick" }, tick.text),
      ]),
      thinned(across.ticks, width - left - right, across.categories ? 24 : 48).map((tick) =>
        svg("text", { x: x(tick.at), y: height - bottom + 16, class: "axis-tick middle" }, svg("title", {}, tick.full), clipped(tick.text, most)),
      ),
      svg("text", { x: 2, y: 9, class: "axis-tick last" }, clipped(objective.name, 40)),
      across.log && svg("text", { x: x(0.5), y: height - 6, class: "axis-tick middle" }, "logarithmic"),
    );
    const share = importance[setting.name];
    const label = `${objective.name} of ${points.length} trials against ${setting.name}`;
    return el(
      "article",
      { class: "card chart", "data-setting": setting.name },
      el(
        "header",
        {},
        el("h3", { title: setting.name }, name),
        typeof share === "number" && el("small", { title: "Share of the variance of ranks that goes with this setting alone, as the sweep has told at its end" }, `importance ${share.toFixed(2)}`),
      ),
      el("div", { class: "picture-frame" }, this.#picture(setting.name, width, height, label, [axes, points])),
    );
  }

  #columnWidth() {
    const columns = getComputedStyle(this.scatters).gridTemplateColumns.split(" ");
    const width = Number.parseFloat(columns[0]);
    return Number.isFinite(width) ? Math.round(width) - 30 : 400;
  }

  // Of a trial: a group that knows it, in its colour.
  #part(trial, merits, ...drawn) {
    const share = merits.get(trial.trial);
    const group = svg(
      "g",
      {
        class: share === undefined ? `trial unknown ${trial.state}` : "trial",
        "data-trial": trial.trial,
        css: share === undefined ? {} : { "--color": merit(share) },
        on: {
          mouseenter: () => this.#links.point(trial),
          mouseleave: () => this.#links.point(null),
          click: () => this.#links.open(trial),
        },
      },
      drawn,
    );
    if (!this.#parts.has(trial.trial)) this.#parts.set(trial.trial, []);
    this.#parts.get(trial.trial).push(group);
    return group;
  }

  #picture(key, width, height, label, parts) {
    return svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        class: "picture",
        role: "img",
        tabindex: "0",
        "aria-label": `${label}. Arrow keys go from trial to trial, Enter opens the trial's run.`,
        "data-picture": key,
        on: { keydown: (event) => this.#key(event), blur: () => this.#drawing || this.#links.point(null) },
      },
      parts,
    );
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { trials, at, objective } = this.#told;
    const merits = meritsOf(trials, at, objective.greater);
    const order = this.#ordered(this.#told, merits).filter((trial) => merits.has(trial.trial)).reverse();
    const here = order.findIndex((trial) => trial.trial === this.#pointed);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) this.#links.point(order[here < 0 ? 0 : Math.min(order.length - 1, Math.max(0, here + step))]);
    else if (event.key === "Enter" && here >= 0) this.#links.open(order[here]);
    else if (event.key === "Escape" && here >= 0) this.#links.point(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Let one trial stand out, by its number, or none (null). */
  emphasise(trial) {
    for (const part of this.#parts.get(this.#pointed) ?? []) part.classList.remove("on");
    this.#pointed = trial;
    const parts = this.#parts.get(trial) ?? [];
    for (const picture of [this.#parallel, this.scatters]) picture.classList.toggle("pointed", parts.length > 0);
    for (const part of parts) part.classList.add("on");
  }

  /** Draw anew in the colours of the theme. */
  recolor() {
    if (this.#told) this.draw(this.#told);
  }

  /** Give back what the pictures hold. */
  remove() {
    this.#watching.disconnect();
  }
}

/** Return a trial's settings in words. */
export function settingsText(trial, settings) {
  const names = shortNames(settings);
  return settings
    .map(({ name }, at) => (trial.settings[name] === undefined ? null : `${names[at]} ${shortSetting(trial.settings[name])}`))
    .filter(Boolean)
    .join(", ");
}
