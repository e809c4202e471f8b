// The view Compare: what `gossamer compare` says of some runs: scores with intervals, verdicts, and why there is none.

import { address, list, numeric, one, remember, text } from "./address.js";
import { Asking } from "./asking.js";
import { breakable, button, choice, el, later, nothing, select, svg } from "./dom.js";
import { count, number } from "./format.js";
import { goneNote, present } from "./gone.js";
import { byMenu, runsMenu } from "./menus.js";
import { line } from "./palette.js";
import { store } from "./store.js";

const PACE_MS = 3000;
const TYPED_MS = 500;
const PAIRS = 15;
const SCORES = [["auto", "as all runs have"], ["evaluation", "last evaluation"], ["training", "training returns"]];
const AXES = [["env_steps", "Env steps"], ["seconds", "Seconds"]];
const PARTS = /(?<=\.)(?=[a-z])/; // of a dotted name, none of which is broken
const STRIP = "seeds, and the interval of the IQM";
const LANES = 60; // places that dots of a strip can be told apart at
const LANE = 26; // per cent of its height between dots at one place
const EDGE = 3; // per cent of a strip beside its outermost dots

/** The view Compare. */
export class Compare {
  #state;
  #answer = null;
  #body = el("div", { class: "comparisons" });
  #asking;
  #there = ""; // the runs that were asked about
  #states = ""; // that they are in
  #typed = later(0, () => {});
  #gone = el("div", {});
  #menu;
  #all = false; // whether every pair is shown

  constructor(root, params) {
    this.root = root;
    this.#asking = new Asking(PACE_MS, (ask) => this.#load(ask));
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    this.#state = {
      runs: list(params, "runs"),
      by: list(params, "by"),
      axis: one(params, "x", AXES.map(([key]) => key)),
      score: one(params, "score", SCORES.map(([key]) => key)),
      threshold: numeric(params, "reach"),
    };
    if (text(params, "runs") === "" && store.selected.size) this.#state.runs = store.plottable();
    this.#answer = null;
    document.title = "Compare \u00b7 gossamer";
    this.#draw();
  }

  #change(change) {
    Object.assign(this.#state, change);
    const { runs, by, axis, score, threshold } = this.#state;
    remember("compare", { runs, by, x: axis === "env_steps" ? null : axis, score: score === "auto" ? null : score, reach: threshold });
    this.#answer = null;
    this.#show();
  }

  #draw() {
    this.#typed.stop();
    this.#typed = later(TYPED_MS, (value) => this.#change({ threshold: value === "" || !Number.isFinite(Number(value)) ? null : Number(value) }));
    const reach = el("input", {
      type: "number",
      step: "any",
      class: "reach",
      value: this.#state.threshold ?? "",
      title: "A return: when do the runs first reach it?",
      on: { input: (event) => this.#typed(event.target.value) },
    });
    this.root.replaceChildren(
      el("h1", { class: "sr" }, "Compare"),
      el(
        "div",
        { class: "toolbar" },
        (this.#menu = runsMenu(this.#state, (runs) => this.#select(runs))),
        byMenu(this.#state, ["seed", "env_id"], (by) => this.#change({ by })),
        select("Score", SCORES, this.#state.score, (score) => this.#change({ score })),
        choice("Over", AXES, this.#state.axis, (axis) => this.#change({ axis })),
        el("label", { class: "field" }, el("span", { class: "field-name" }, "When is a return reached?"), reach),
        (this.curves = el("a", { class: "link" }, "In Curves")),
      ),
      this.#gone,
      this.#body,
    );
    this.#show();
  }

  #show() {
    const { by } = this.#state;
    const there = present(this.#state.runs);
    this.#there = there.join("\n");
    this.#gone.replaceChildren(goneNote(this.#state.runs));
    this.#menu.rename(`Runs (${there.length})`);
    this.curves.href = address("curves", { runs: there, by });
    this.curves.hidden = !there.length;
    if (!there.length) {
      this.#body.replaceChildren(this.#invitation());
      return;
    }
    if (!this.#answer) this.#body.replaceChildren(el("p", { class: "loading" }, "Comparing\u2026"));
    this.#asking.now();
  }

  #invitation() {
    const runs = store.offered();
    const [newest] = runs;
    const alike = newest ? runs.filter((run) => run.env_id === newest.env_id).slice(0, 40) : [];
    return nothing(
      "Which runs?",
      "Tick runs in the table of runs and press b, open the menu Runs above, or begin with",
      alike.length ? el("p", { class: "picks" }, button(`all of ${newest.env_id} (${alike.length})`, () => {
        this.#select(alike.map((run) => run.id));
        this.#draw();
      })) : el("pre", {}, "gossamer train CartPole-v1 --seeds 3"),
    );
  }

  #select(runs) {
    store.selected = new Set(runs);
    this.#change({ runs });
  }

  async #load(ask) {
    const { by, axis, score, threshold } = this.#state;
    const runs = present(this.#state.runs);
    if (!runs.length) return;
    try {
      const answer = await ask("api/compare", { runs, by, x: axis, score, threshold });
      const same = JSON.stringify(answer) === JSON.stringify(this.#answer);
      this.#answer = answer;
      if (!same) this.#fill();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#answer = null;
      this.#body.replaceChildren(nothing("These runs cannot be compared", error.message));
    }
  }

  #fill() {
    const { comparisons, said } = this.#answer;
    const focused = this.#body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    this.#body.replaceChildren(
      said.length ? el("ul", { class: "banner" }, said.map((each) => el("li", {}, each))) : "",
      ...comparisons.map((comparison) => this.#comparison(comparison)),
    );
    if (focused) this.#body.querySelector(`[data-focus="${focused}"]`)?.focus();
  }

  #comparison(comparison) {
    const { heading, tables, tasks, notes } = comparison;
    const [what, ...how] = heading;
    const scores = tables.filter((table) => table.scores_of);
    const others = tables.filter((table) => !table.scores_of);
    return el(
      "section",
      { class: "comparison", "aria-label": `Comparison in ${tasks.join(", ")}` },
      el("div", { class: "comparison-head" }, el("h2", {}, what), el("ul", { class: "quiet" }, how.map((each) => el("li", {}, each)))),
      scores.map((table) => this.#table(table, comparison)),
      this.#verdicts(comparison),
      others.map((table) => this.#table(table, comparison)),
      notes.length ? el("section", { class: "card", "aria-label": "Notes" }, el("h2", {}, "Notes"), el("ul", { class: "notes" }, notes.map((each) => el("li", {}, each)))) : "",
    );
  }

  #verdicts({ verdicts, remarks }) {
    // Those that say something come first.
    const ordered = [...verdicts].sort((a, b) => Number(a.open) - Number(b.open));
    const shown = this.#all ? ordered : ordered.slice(0, PAIRS);
    return el(
      "section",
      { class: "card", "aria-label": "Verdicts" },
      el("h2", {}, "Verdicts"),
      el(
        "ul",
        { class: "verdicts" },
        shown.map(({ found, verdict, open }) => el("li", { class: open ? "open" : null }, verdict && el("b", {}, verdict), el("span", {}, found))),
        remarks.map((each) => el("li", { class: "quiet" }, each)),
      ),
      ordered.length > shown.length
        ? button(`Show all ${count(ordered.length)} pairs`, () => {
            this.#all = true;
            this.#fill();
          }, { class: "link", "data-focus": "all" })
        : "",
    );
  }

  #table({ title, head, rows, scores_of: task }, { groups, tasks }) {
    const groupOf = (name) => groups.findIndex(({ letter }) => name === letter || name.startsWith(`${letter} `));
    const span = task ? spanOf(groups, task) : null;
    return el(
      "section",
      { class: "card", "aria-label": title },
      el("h2", {}, capital(title, tasks)),
      el(
        "div",
        { class: "table-frame" },
        el(
          "table",
          { class: "compared stacked" },
          el("thead", {}, el("tr", {}, head.map((each) => el("th", { scope: "col" }, each)), task && el("th", { scope: "col", class: "strip-head" }, STRIP, el("span", { class: "strip-ends" }, span.map((end) => el("span", {}, number(end))))))),
          el(
            "tbody",
            {},
            rows.map(([name, ...cells]) => {
              const at = groupOf(name);
              return el(
                "tr",
                {},
                this.#groupCell(name, groups[at], at),
                cells.map((each, n) => el("td", { "data-label": head[n + 1] }, each)),
                task && el("td", { class: "strip-cell", "data-label": `${STRIP}; from ${number(span[0])} to ${number(span[1])}` }, strip(groups[at]?.scores[task], span, line(Math.max(0, at)).color)),
              );
            }),
          ),
        ),
      ),
    );
  }

  #groupCell(name, group, at) {
    if (!group) return el("th", { scope: "row" }, name);
    const look = line(at);
    return el(
      "th",
      { scope: "row" },
      el("span", { class: "bead", css: { "--color": look.color } }),
      el("b", {}, group.letter),
      el("a", { href: address("curves", { runs: group.runs }), title: `Curves of these ${group.runs.length} runs` }, breakable(group.label, PARTS)),
    );
  }

  /** New rows of a run (null: of any). */
  onRows(run) {
    if (run === null || this.#state.runs.includes(run)) this.#asking.soon();
  }

  /** The table of runs changed. */
  onRuns() {
    if (!store.loaded) return;
    const there = present(this.#state.runs);
    const states = there.map((id) => store.runs.get(id).state).join();
    if (there.join("\n") !== this.#there) this.#show();
    else if (!this.#there) this.#body.replaceChildren(this.#invitation());
    else if (states !== this.#states) this.#asking.soon();
    this.#states = states;
  }

  /** The colours changed. */
  onTheme() {
    if (this.#answer) this.#fill();
  }

  /** The view is left. */
  leave() {
    this.#typed.stop();
    this.#asking.stop();
  }
}

// A title with a capital, unless it begins with the name of an environment.
function capital(title, tasks) {
  return tasks.some((task) => title.startsWith(`${task}:`)) ? title : title.charAt(0).toUpperCase() + title.slice(1);
}

// What strips of an environment span: all scores and intervals, but three times the scores' range at most, as intervals of few
// seeds are huge.
function spanOf(groups, task) {
  const found = groups.map(({ scores }) => scores[task]).filter(Boolean);
  const scores = found.flatMap(({ runs }) => runs.map(({ score }) => score));
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const range = high - low || Math.abs(high) || 1;
  const ends = found.flatMap(({ iqm }) => [iqm.low, iqm.high]).filter((value) => typeof value === "number");
  return [Math.max(low - range, Math.min(low, ...ends)), Math.min(high + range, Math.max(high, ...ends))];
}

// The seeds of a group as dots, its IQM as a bar with its interval.
function strip(found, [low, high], color) {
  if (!found) return "";
  const at = (value) => `${EDGE + ((100 - 2 * EDGE) * Math.min(1, Math.max(0, (value - low) / (high - low || 1))))}%`;
  const { iqm, runs } = found;
  const seeds = runs.map(({ score }) => number(score)).join(", ");
  const known = typeof iqm.low === "number" && typeof iqm.high === "number";
  // Seeds at one place stand above each other.
  const places = runs.map(({ score }) => Math.round((LANES * (score - low)) / (high - low || 1)));
  const lane = (n) => {
    const many = Math.min(3, places.filter((place) => place === places[n]).length);
    const before = places.slice(0, n).filter((place) => place === places[n]).length;
    return `${50 + LANE * ((before % 3) - (many - 1) / 2)}%`;
  };
  return svg(
    "svg",
    { class: "strip", role: "img", "aria-label": `scores of seeds: ${seeds}`, css: { "--color": color } },
    svg("title", {}, `seeds: ${seeds}`),
    known && svg("line", { x1: at(iqm.low), x2: at(iqm.high), y1: "50%", y2: "50%", class: "interval" }),
    known && iqm.low < low && svg("text", { x: 0, y: "50%", class: "cut" }, svg("title", {}, `the interval begins at ${number(iqm.low)}`), "\u25c2"),
    known && iqm.high > high && svg("text", { x: "100%", y: "50%", class: "cut right" }, svg("title", {}, `the interval ends at ${number(iqm.high)}`), "\u25b8"),
    runs.map(({ score }, n) => svg("circle", { cx: at(score), cy: lane(n), r: 3.5 })),
    typeof iqm.value === "number" && svg("line", { x1: at(iqm.value), x2: at(iqm.value), y1: "20%", y2: "80%", class: "middle" }),
  );
}
