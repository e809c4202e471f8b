// The view Sweep: the trials of a sweep, while it runs and afterwards; their settings against what they are worth.

import { address, go, one, remember, text } from "./address.js";
import { get } from "./api.js";
import { Asking } from "./asking.js";
import { button, checklist, choice, el, nothing, popover } from "./dom.js";
import { count, duration, number, percent, setting, shortSetting } from "./format.js";
import { byValue } from "./order.js";
import { progressBar, stateMark } from "./states.js";
import { store } from "./store.js";
import { settingsText, shortNames, TrialPictures } from "./trials.js";

const PACE_MS = 1000;
const LIVE_MS = 4000;
const BEST = 5;
// A trial's states in the signs of runs.
const SIGNS = { done: "done", running: "running", waiting: "empty", unfinished: "stopped", pruned: "stopped", failed: "failed", refused: "damaged" };
const MEANINGS = {
  done: "all of its runs reached their end",
  running: "is training now",
  waiting: "its next run begins when there is room",
  unfinished: "this trial was stopped before it was done",
  pruned: "stopped early, as others were better at that time",
  failed: "a run of it ended with an error, or does not tell what it is worth",
  refused: "left out, as its settings cannot work together",
};
const ORDER = Object.keys(MEANINGS);

/** The view Sweep. */
export class SweepView {
  #state;
  #sweeps = null;
  #answer = null;
  #mark = "";
  #body = el("div", {});
  #told = el("p", { class: "trial-told", "aria-live": "polite" });
  #head = null;
  #facts;
  #acts;
  #columns = null; // of the table
  #heads;
  #trials;
  #ended = false; // no trial is to come any more
  #next = null; // of a sweep that has more to do: what for, and the command
  #pointed = null; // number of the trial that stands out
  #rows = new Map();
  #table = el("div", { class: "table-frame" });
  #pictures;
  #asking;
  #clock = 0;

  constructor(root, params) {
    this.root = root;
    this.#asking = new Asking(PACE_MS, (ask) => this.#load(ask));
    this.#pictures = new TrialPictures({ point: (trial) => this.#point(trial), open: (trial) => this.#open(trial) });
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    const before = this.#state?.sweep;
    this.#state = { sweep: text(params, "sweep"), objective: text(params, "objective"), sort: text(params, "sort"), down: one(params, "down", ["", "1"]) === "1" };
    if (this.#state.sweep !== before || !before) this.#answer = this.#pointed = null;
    document.title = "Sweep \u00b7 gossamer";
    if (this.#answer) {
      this.#head = null; // the address may name another objective or order
      this.#draw();
    } else {
      this.root.replaceChildren(el("h1", { class: "sr" }, "Sweep"), el("p", { class: "loading" }, "Loading\u2026"));
    }
    this.#asking.now();
  }

  #remember() {
    const { sweep, objective, sort, down } = this.#state;
    remember("sweep", { sweep, objective, sort, down });
  }

  async #load(ask) {
    clearTimeout(this.#clock);
    const asked = this.#state.sweep;
    try {
      // Only the menu and the choice of a sweep need them all, and the menu asks anew when it opens.
      if (!asked || !this.#sweeps) this.#sweeps = (await ask("api/sweeps")).sweeps;
      if (!asked) this.#state.sweep = this.#sweeps[0]?.id ?? "";
      if (!this.#state.sweep) {
        this.#empty();
        return;
      }
      const answer = await ask("api/sweep", { sweep: this.#state.sweep });
      if (!asked) this.#remember();
      this.#mark = this.#runs();
      const same = JSON.stringify(answer) === JSON.stringify(this.#answer);
      this.#answer = answer;
      if (!same || !this.#body.isConnected) this.#draw();
      // Its end is told by no run.
      if (answer.live) this.#clock = setTimeout(() => this.#asking.soon(), LIVE_MS);
    } catch (error) {
      const missed = this.#state.sweep && error.status === 404;
      if (error.name === "AbortError" || (this.#answer && !missed)) return;
      this.#answer = null;
      this.#say(missed ? nothing("There is no such sweep", `${this.#state.sweep} is not below ${store.root}; it may have been moved or deleted.`, this.#others()) : nothing("The sweep cannot be read", error.message));
    }
  }

  #say(node) {
    this.root.replaceChildren(el("h1", { class: "sr" }, "Sweep"), node);
  }

  #others() {
    const newest = this.#sweeps?.find(({ id }) => id !== this.#state.sweep);
    return newest ? el("p", {}, el("a", { class: "button", href: address("sweep", { sweep: newest.id }) }, `Show ${newest.name}`)) : el("p", {});
  }

  #empty() {
    this.#answer = null;
    this.#say(
      nothing(
        "No sweep yet",
        `Nothing below ${store.root || "the folder"} is a sweep. A sweep trains an environment with many settings and says which are best; this one takes half a minute, and appears here while it runs:`,
        el("pre", {}, "gossamer sweep examples/cartpole_sweep.toml"),
      ),
    );
  }

  // What the table of runs knows of this sweep's.
  #runs() {
    const { sweep } = this.#state;
    const beginning = sweep === "." ? "" : `${sweep}/`;
    const found = [...store.runs.values()].filter((run) => run.id.startsWith(beginning));
    return found.map((run) => `${run.id} ${run.state} ${run.env_steps}`).join("\n");
  }

  get #objective() {
    const { objectives } = this.#answer;
    const at = objectives.findIndex(({ name }) => name === this.#state.objective);
    return at < 0 ? 0 : at;
  }

  #draw() {
    const { name, objectives } = this.#answer;
    document.title = `${name} \u00b7 gossamer`;
    if (!this.#head || !this.#head.isConnected || this.#head.dataset.sweep !== this.#answer.id) {
      this.#head = el("header", { class: "run-head", "data-sweep": this.#answer.id });
      this.#facts = el("div", { class: "run-facts" });
      this.#acts = el("div", { class: "acts" });
      this.#head.append(el("div", { class: "run-title" }, el("h1", {}, this.#menu()), this.#facts), this.#acts);
      this.#columns = null;
      this.root.replaceChildren(
        this.#head,
        objectives.length > 1
          ? el("div", { class: "toolbar" }, choice("Judged by", objectives.map((each) => [each.name, each.name]), objectives[this.#objective].name, (objective) => {
              this.#state.objective = objective;
              this.#remember();
              this.#fill();
            }))
          : "",
        this.#told,
        this.#body,
      );
      this.#body.replaceChildren(this.#pictures.card, this.#pictures.scatters, el("section", { class: "card", "aria-label": "Trials" }, el("h2", {}, "Trials"), this.#table));
    }
    this.#fill();
  }

  #menu() {
    const list = el("div", {});
    const fill = () => {
      const items = (this.#sweeps ?? []).map((each) => ({
        key: each.id,
        text: each.name,
        note: `${each.id} \u00b7 ${each.method}, ${count(each.begun)}${each.asked ? ` of ${count(each.asked)}` : ""} trials${each.live ? ", running" : ""}`,
        on: false,
      }));
      list.replaceChildren(
        checklist(items, "Search sweeps", (_, item) => {
          menu.open = false;
          go("sweep", { sweep: item.key });
        }),
      );
    };
    const menu = popover(this.#answer.name, () => {
      fill();
      get("api/sweeps").then(
        ({ sweeps }) => {
          const same = JSON.stringify(sweeps) === JSON.stringify(this.#sweeps);
          this.#sweeps = sweeps;
          if (same) return;
          // What was typed meanwhile stays.
          const { value } = list.querySelector("input");
          const focused = list.contains(document.activeElement);
          fill();
          const search = list.querySelector("input");
          search.value = value;
          search.dispatchEvent(new Event("input"));
          if (focused) search.focus();
        },
        () => {}, // those that are known stay; the page's head says that the server does not answer
      );
      return list;
    }, { "data-menu": "sweep" });
    menu.classList.add("picks-one");
    return menu;
  }

  #fill() {
    const { trials, settings, best, importance, objectives } = this.#answer;
    this.#drawFacts();
    const at = this.#objective;
    const objective = objectives[at];
    this.#pictures.draw({ trials: trials.filter((trial) => trial.state !== "refused"), settings, best, objective, at, importance: importance[objective.name] ?? {} });
    this.#drawTable();
    this.#point(trials.find((trial) => trial.trial === this.#pointed) ?? null);
  }

  #drawFacts() {
    const { trials, asked, live, method, seeds, file, again, more, begun } = this.#answer;
    const many = (state) => trials.filter((trial) => trial.state === state).length;
    const total = asked ?? begun;
    const done = many("done");
    const failed = many("failed");
    const over = done + failed + many("pruned") + many("refused") + more;
    const left = !live && over < total;
    this.#ended = !live && !left;
    const others = ORDER.filter((state) => !["done", "waiting"].includes(state) && many(state));
    this.#facts.replaceChildren(
      live ? stateMark("running", "running", "the sweep is at work") : stateMark(left ? "stopped" : "done", left ? "stopped" : "ended", "no process works on the sweep now"),
      el("span", { class: "run-progress" }, progressBar(total ? done / total : null, "Trials that are done"), `${count(done)} of ${count(total)} trials done`),
      ...others.map((state) => el("span", { title: MEANINGS[state] }, `${count(many(state))} ${state}`)),
      el("span", {}, ["list", "experiments"].includes(method) ? "a list of experiments" : `${method} search`),
      el("span", {}, seeds > 1 ? `${count(seeds)} seeds a trial` : ""),
      el("span", { class: "mono" }, file),
      more ? el("span", {}, `${count(more)} more trials are not shown`) : "",
    );
    const ranked = this.#ranked().slice(0, BEST);
    const runs = ranked.flatMap((trial) => trial.runs.map((run) => run.id));
    this.#acts.replaceChildren(
      ...(ranked.length ? [el("a", { class: "button", href: address("curves", { runs }) }, ranked.length > 1 ? `Curves of the best ${ranked.length}` : "Curves of the best")] : []),
      ...(typeof ranked[0]?.values[this.#objective] === "number" && ranked[0].runs.length ? [el("a", { class: "button", href: address("run", { run: ranked[0].runs[0].id }) }, "Run of the best")] : []),
    );
    const next = left ? "To go on with the sweep, type: " : failed && !live ? `${count(failed)} of ${count(total)} trials failed; to try ${failed === 1 ? "it" : "them"} again, type: ` : "";
    this.#next = next && { next, again };
  }

  // Trials that are worth something, the best first.
  #ranked() {
    const at = this.#objective;
    const { greater } = this.#answer.objectives[at];
    const known = this.#answer.trials.filter((trial) => trial.state === "done");
    const worth = (trial) => trial.values[at] ?? (greater ? -Infinity : Infinity);
    return known.sort((a, b) => (greater ? worth(b) - worth(a) : worth(a) - worth(b)) || a.trial - b.trial);
  }

  // What a column shows of a trial, and by what it is sorted.
  #allColumns() {
    const { objectives, settings, seeds } = this.#answer;
    const names = shortNames(settings);
    return [
      { key: "trial", title: "Trial", value: (trial) => trial.trial, cell: (trial) => this.#link(trial), right: true },
      ...objectives.map(({ name }, at) => ({
        key: name,
        title: name,
        value: (trial) => trial.values[at] ?? null,
        cell: (trial) => trial.shown[at] ?? "\u2013",
        right: true,
        strong: true,
      })),
      { key: "state", title: "State", value: (trial) => ORDER.indexOf(trial.state), cell: (trial) => this.#stateCell(trial) },
      ...settings.map(({ name }, at) => ({
        key: name,
        title: names[at],
        help: name,
        value: (trial) => trial.settings[name],
        cell: (trial) => (trial.settings[name] === undefined ? "\u2013" : shortSetting(trial.settings[name])),
        hint: (trial) => (trial.settings[name] === undefined ? null : setting(trial.settings[name])),
        right: typeof this.#answer.trials[0]?.settings[name] === "number",
      })),
      ...(seeds > 1 ? [{ key: "seeds", title: "Seeds", value: (trial) => trial.runs.length, cell: (trial) => this.#seeds(trial) }] : []),
      { key: "env_steps", title: "Env steps", value: (trial) => trial.env_steps, cell: (trial) => count(trial.env_steps), right: true },
      { key: "seconds", title: "Time", help: "seconds of training, all runs together", value: (trial) => trial.seconds, cell: (trial) => duration(trial.seconds), right: true },
    ];
  }

  #link(trial) {
    const [run] = trial.runs;
    if (!run) return String(trial.trial);
    const best = this.#answer.best.includes(trial.trial);
    return [
      best && el("span", { class: "layer set" }, "best"),
      el("a", { href: address("run", { run: run.id }), class: "run-name", title: run.id, "aria-label": `Trial ${trial.trial}${best ? ", the best" : ""}` }, String(trial.trial)),
    ];
  }

  #seeds(trial) {
    return trial.runs.map((run, at) => [at ? " " : "", el("a", { class: "link", href: address("run", { run: run.id }), title: `${run.id}, ${run.state}` }, String(run.seed ?? "?"))]);
  }

  #stateCell(trial) {
    const { state, reason, progress, mean_return: mean } = trial;
    return [
      stateMark(SIGNS[state] ?? "empty", state, MEANINGS[state]),
      state === "running" && el("span", { class: "trial-progress" }, progressBar(progress, `Progress of trial ${trial.trial}`), el("small", {}, `${percent(progress)}${typeof mean === "number" ? `, return ${number(mean)}` : ""}`)),
      reason && el("span", { class: "problem" }, reason),
    ];
  }

  #sorted(columns) {
    const { trials, objectives } = this.#answer;
    const column = columns.find(({ key }) => key === this.#state.sort);
    if (!column) {
      const ranked = this.#ranked();
      return [...ranked, ...trials.filter((trial) => trial.state !== "done").sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.trial - b.trial)];
    }
    const order = byValue(column.value, this.#state.down);
    return [...trials].sort((a, b) => order(a, b) || a.trial - b.trial);
  }

  #drawTable() {
    const columns = this.#allColumns();
    const focused = document.activeElement?.closest?.("[data-focus]")?.dataset.focus;
    if (this.#columns?.map(({ key }) => key).join() !== columns.map(({ key }) => key).join()) {
      this.#trials = el("tbody", { on: { keydown: (event) => this.#key(event) } });
      this.#heads = el(
        "tr",
        {},
        columns.map(({ key, title, help, right }) =>
          el("th", { scope: "col", class: right ? "right" : null, "data-column": key }, el("button", { type: "button", title: help, "data-focus": `sort ${key}`, on: { click: () => this.#sortBy(key, right) } }, title)),
        ),
      );
      this.#table.replaceChildren(el("table", { class: "sorted trials stacked", "aria-label": "Trials" }, el("thead", {}, this.#heads), this.#trials));
    }
    this.#columns = columns;
    for (const head of this.#heads.children) {
      const on = head.dataset.column === this.#state.sort;
      head.setAttribute("aria-sort", on ? (this.#state.down ? "descending" : "ascending") : "none");
    }
    this.#rows.clear();
    this.#trials.replaceChildren(
      ...this.#sorted(columns).map((trial) => {
        const row = el(
          "tr",
          {
            "data-trial": trial.trial,
            "data-focus": `trial ${trial.trial}`,
            class: trial.state === "done" || trial.state === "running" ? null : "dead",
            on: {
              mouseenter: () => this.#point(trial),
              mouseleave: () => this.#point(null),
              focusin: () => this.#point(trial),
              click: (event) => event.target.closest("a, button") || getSelection().toString() || this.#open(trial),
            },
          },
          columns.map((column) => el("td", { class: [column.right && "right", column.strong && "strong"].filter(Boolean).join(" ") || null, "data-label": column.title, title: column.hint?.(trial) }, column.cell(trial))),
        );
        this.#rows.set(trial.trial, row);
        return row;
      }),
    );
    // A table that is drawn anew keeps the focus where it was.
    const again = focused && [...this.#table.querySelectorAll("[data-focus]")].find((node) => node.dataset.focus === focused);
    (again?.querySelector?.(".run-name") ?? again)?.focus?.();
  }

  #sortBy(key, right) {
    const { sort, down } = this.#state;
    const objective = this.#answer.objectives.find(({ name }) => name === key);
    // From the best, or the largest number.
    const first = objective ? objective.greater : Boolean(right) && key !== "trial";
    Object.assign(this.#state, { sort: key, down: sort === key ? !down : first });
    this.#remember();
    this.#drawTable();
  }

  #key(event) {
    const row = event.target.closest("tr[data-trial]");
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!row || !step || event.ctrlKey || event.metaKey || event.altKey) return;
    const names = [...this.#trials.querySelectorAll(".run-name")];
    names[names.indexOf(row.querySelector(".run-name")) + step]?.focus();
    event.preventDefault();
  }

  // Let a trial stand out everywhere, and say what it is; null: say what the best is.
  #point(trial) {
    if (!this.#answer) return; // another sweep is on its way, and what was pointed at goes
    this.#rows.get(this.#pointed)?.classList.remove("on");
    this.#pointed = trial?.trial ?? null;
    this.#rows.get(this.#pointed)?.classList.add("on");
    this.#pictures.emphasise(this.#pointed);
    const { objectives, settings, trials, best } = this.#answer;
    const words = (one) => [objectives.map(({ name }, at) => `${name} ${one.shown[at] ?? "\u2013"}`).join(", "), settingsText(one, settings)].filter(Boolean).join("; ");
    const lines = trial
      ? [`Trial ${trial.trial}, ${trial.state}: ${words(trial)}`]
      : best.length === 1
        ? [`Best so far is trial ${best[0]}: ${words(trials.find((each) => each.trial === best[0]))}`]
        : best.length
          ? [`No trial beats these in one objective without losing in the other: ${best.join(", ")}`]
          : ["No trial is done yet."];
    const end = !trial && this.#ended && best.length === 1 ? lines[0].replace("Best so far is", "The best is") : lines[0];
    this.#told.replaceChildren(end, ...(!trial && this.#next ? [" ", el("span", { class: "quiet" }, this.#next.next), el("code", {}, this.#next.again)] : []));
  }

  #open(trial) {
    if (trial.runs.length) go("run", { run: trial.runs[0].id });
  }

  /** New rows of a run (null: of any). */
  onRows(run) {
    const beginning = this.#state.sweep === "." ? "" : `${this.#state.sweep}/`;
    if (run === null || run.startsWith(beginning)) this.#asking.soon();
  }

  /** Runs changed. */
  onRuns({ all }) {
    if (this.#answer ? this.#runs() !== this.#mark : all) this.#asking.soon();
  }

  /** The colours changed. */
  onTheme() {
    this.#pictures.recolor();
  }

  /** Put the focus on the first trial. */
  focusFirst() {
    this.#table.querySelector(".run-name")?.focus();
  }

  /** The view is left. */
  leave() {
    clearTimeout(this.#clock);
    this.#asking.stop();
    this.#pictures.remove();
  }
}
