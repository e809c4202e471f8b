// The head of every view of one run: which run, its state and progress, what may be done to it.

import { describe, tagsOf } from "./about.js";
import { actButtons, actOnRuns } from "./acts.js";
import { go } from "./address.js";
import { button, checklist, el, nothing, popover } from "./dom.js";
import { count, duration, number, percent } from "./format.js";
import { filedUnder, isReadable, progressBar, stateMark } from "./states.js";
import { store } from "./store.js";

/** Return the id of the run to show where none is named: the newest that trains, or else the newest. */
export function usualRun() {
  const runs = store.offered();
  return (runs.find((run) => run.state === "running") ?? runs[0])?.id ?? null;
}

/** Return a menu of runs; `pick` is called with an id. */
export function runMenu(label, pick, attributes = {}) {
  const menu = popover(
    label,
    () => {
      const items = [...store.runs.values()]
        .filter((run) => filedUnder(run) !== "archived")
        .sort((a, b) => (b.started ?? 0) - (a.started ?? 0))
        .map((run) => ({ key: run.id, text: run.name, note: [run.tags?.join(", "), run.env_id, run.algorithm && `${run.algorithm}-${run.topology}`, run.state].filter(Boolean).join(" \u00b7 "), on: false }));
      return checklist(items, "Search runs", (_, item) => {
        menu.open = false;
        pick(item.key);
      });
    },
    { "data-menu": "run", ...attributes },
  );
  menu.classList.add("picks-one");
  return menu;
}

// What stands in a view of one run when there is none, or none of that name; null if there is one.
function withoutRun(id) {
  if (!store.loaded) return el("p", { class: "loading" }, "Loading\u2026");
  if (id && !store.runs.has(id)) return nothing("There is no such run", `${id} is not below ${store.root}; it may have been moved or deleted.`);
  return id ? null : nothing("No run yet", "Train one, and it appears here:", el("pre", {}, "gossamer train CartPole-v1"));
}

// As the command tells it: by the pace since the first update, or of what a time limit has left; null: not known.
function secondsLeft(run) {
  const steps = run.steps_per_second > 0 && run.total_env_steps ? (run.total_env_steps - run.env_steps) / run.steps_per_second : Infinity;
  const limit = run.stop_after_seconds > 0 && typeof run.seconds === "number" ? run.stop_after_seconds - run.seconds : Infinity;
  const left = Math.min(steps, limit);
  return Number.isFinite(left) && left >= 0 ? left : null;
}

// The head itself: `draw(run)` brings it up to date.
class RunHead {
  #view;
  #id;
  #acts = el("div", { class: "acts" });
  #facts = el("div", { class: "run-facts" });
  #about = el("div", { class: "run-about" });
  #menu;
  #shownActs = null;
  #shownAbout = null;

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
    this.#menu = runMenu(store.runs.get(id)?.name ?? id, (run) => go(view, { run }));
    this.node = el(
      "header",
      { class: "run-head" },
      el("div", { class: "run-title" }, el("h1", {}, this.#menu), this.#facts, this.#about),
      this.#acts,
    );
  }

  /** Show the run as it is now. */
  draw(run) {
    const left = run.progress > 0 && run.progress < 1 && run.state === "running" ? secondsLeft(run) : null;
    this.#facts.replaceChildren(
      stateMark(run.state),
      run.archived ? stateMark("archived") : "",
      run.folder_name && run.name !== run.folder_name ? el("span", { class: "mono" }, run.id) : "",
      el("span", {}, run.env_id ?? ""),
      el("span", {}, run.algorithm ? `${run.algorithm}-${run.topology}` : ""),
      run.num_learners > 1 ? el("span", {}, `${count(run.num_learners)} learners`) : "",
      el("span", {}, run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`),
      el("span", {}, run.where ?? ""),
      run.progress !== null && run.progress !== undefined
        ? el("span", { class: "run-progress" }, progressBar(run.progress, "Progress"), percent(run.progress), left !== null && el("small", {}, ` ${duration(left)} left`))
        : "",
      run.exit_reason && run.state !== "running" ? el("span", { class: "quiet" }, run.exit_reason.replace(`${run.state}: `, "").replace(`${run.state} `, "")) : "",
    );
    const about = JSON.stringify([run.name, run.tags, run.note]);
    if (about !== this.#shownAbout) {
      this.#shownAbout = about;
      this.#menu.rename(run.name);
      const scrolls = { class: "run-note", tabindex: 0, role: "note", "aria-label": "Note" };
      this.#about.replaceChildren(tagsOf(run), run.note ? el("p", scrolls, run.note) : "");
    }
    const acts = JSON.stringify([run.acts, run.state === "running", run.archived]);
    if (acts !== this.#shownActs) {
      this.#shownActs = acts;
      // "Archive" becomes "Restore": what has the focus is known by its place, too.
      const place = [...this.#acts.children].indexOf(document.activeElement);
      const focused = this.#acts.children[place]?.textContent;
      this.#acts.replaceChildren(
        ...actButtons(run),
        ...this.#onRuns(run),
        isReadable(run) ? button("In Curves", () => go("curves", { runs: [run.id] }), { class: "link" }) : "",
      );
      if (place >= 0) ([...this.#acts.children].find((each) => each.textContent === focused) ?? this.#acts.children[place])?.focus();
    }
  }

  #onRuns(run) {
    const edit = button("Name and tags", () => describe(store.runs.get(run.id) ?? run), { "data-act": "describe" });
    if (run.state === "running") return [edit];
    const away = run.archived ? "restore" : "archive";
    return [
      edit,
      button(run.archived ? "Restore" : "Archive", () => actOnRuns(away, [run.id]), { "data-act": away }),
      button("Delete", async () => (await actOnRuns("delete", [run.id])) && go("runs"), { "data-act": "delete", class: "button danger" }),
    ];
  }
}

/** Return the head of a view of one run; null if there is no such run, which is then all that the page's root says. */
export function headOf(view, id, root) {
  const instead = withoutRun(id);
  if (instead) {
    root.replaceChildren(instead);
    return null;
  }
  const head = new RunHead(view, id);
  head.draw(store.runs.get(id));
  return head;
}

/** Return a tile: a number that matters with its name. */
export function tile(name, value, note = "") {
  return el("div", { class: "tile" }, el("span", { class: "tile-name" }, name), el("b", {}, typeof value === "string" ? value : number(value)), note && el("small", {}, note));
}
