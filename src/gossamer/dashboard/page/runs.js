// The view Runs: a live table of all runs; searched, filtered, sorted, grouped; ticked runs go to Curves.

import { describe, tagsOf } from "./about.js";
import { actOnRuns } from "./acts.js";
import { address, go, list, one, remember, text } from "./address.js";
import { button, checklist, el, exchange, nothing, popover, select, svg, whenLetGo } from "./dom.js";
import { filterOf, strangers, valueOf } from "./filter.js";
import { ago, count, meanOf, moment, number, setting, short, shortSetting, shortSettings } from "./format.js";
import { byValue, compare } from "./order.js";
import { filedUnder, progressBar, stateMark, STATES } from "./states.js";
import { store } from "./store.js";

const ROWS = 400;
const FIRST = 60; // on the screen before the others
const TAGS = 5; // of a run in the table
const NONE = "not known";
const ATTENTION = ["failed", "killed", "damaged", "empty"];

const COLUMNS = {
  state: { title: "State", value: (run) => Object.keys(STATES).indexOf(run.state), cell: stateCell },
  name: { title: "Run", value: (run) => run.name, cell: nameCell },
  env_id: { title: "Environment", value: (run) => run.env_id, cell: (run) => run.env_id || "\u2013" },
  algorithm: { title: "Algorithm", value: (run) => run.algorithm, cell: (run) => run.algorithm || "\u2013" },
  topology: { title: "Topology", value: (run) => run.topology, cell: topologyText },
  seed: { title: "Seed", value: (run) => run.seed, cell: (run) => run.seed ?? "\u2013", right: true },
  progress: { title: "Progress", value: (run) => run.progress, cell: progressCell },
  mean_return: { title: "Return", help: "mean of the last training episodes, 100 at most", value: (run) => run.mean_return, cell: (run) => el("span", { title: meanOf(run) }, number(run.mean_return)), right: true },
  best_evaluation: { title: "Best eval.", help: "mean return of the best policy so far", value: (run) => run.best_evaluation, cell: (run) => number(run.best_evaluation), right: true },
  steps_per_second: { title: "Steps/s", help: "env steps per second since the first update", value: (run) => run.steps_per_second, cell: (run) => count(run.steps_per_second), right: true },
  where: { title: "Where", value: (run) => run.where, cell: (run) => run.where ?? "\u2013" },
  started: { title: "Age", help: "time since the run was started", value: (run) => -(run.started ?? 0), cell: ageCell, right: true },
};

const ALWAYS = ["name"]; // columns that cannot be hidden

function stateCell(run) {
  return [stateMark(run.state), run.archived && el("span", { class: "under-state" }, stateMark("archived"))];
}

function pencil() {
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: "M3 13l.7-3L11 2.7l2.3 2.3L6 12.3z", fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-linejoin": "round" }));
}

// Names that begin alike end in their seed: where one has too little room its middle is left out.
function inTwo(name) {
  return name.length > 24 ? [el("span", { class: "name-head" }, name.slice(0, -8)), el("span", { class: "name-tail" }, name.slice(-8))] : name;
}

function nameCell(run) {
  return [
    el(
      "span",
      { class: "run-line" },
      el("a", { href: address("run", { run: run.id }), class: "run-name", title: run.name === run.folder_name ? run.id : `${run.name}\n${run.id}` }, inTwo(run.name)),
      button(pencil(), () => describe(store.runs.get(run.id) ?? run), { class: "icon edit", "aria-label": `Name, tags and note of ${run.name}`, title: "Name, tags and note (e)" }),
    ),
    (run.tags?.length > 0 || run.note) && el("span", { class: "about" }, tagsOf(run, TAGS), run.note && el("span", { class: "note", title: run.note }, run.note.split("\n")[0])),
    el("span", { class: "under" }, [run.env_id, run.algorithm && `${run.algorithm}-${run.topology}`].filter(Boolean).join(" \u00b7 ")),
    run.problem && el("span", { class: "problem" }, run.problem),
  ];
}

function topologyText(run) {
  if (!run.topology) return "\u2013";
  return run.num_learners > 1 ? `${run.topology} \u00d7\u2009${run.num_learners}` : run.topology;
}

function progressCell(run) {
  return el(
    "span",
    { class: run.state === "running" ? "progress-cell" : "progress-cell over", title: `${count(run.env_steps)} of ${count(run.total_env_steps)} env steps` },
    progressBar(run.progress, `Progress of ${run.name}`),
    el("span", { class: "progress-text" }, short(run.env_steps)),
  );
}

function ageCell(run) {
  return el("span", { title: `started ${moment(run.started)}, changed ${moment(run.changed)}` }, ago(run.started));
}

// What a row shows: two runs of one mark are drawn alike, so that a row is made anew when it must.
function markOf(run, columns) {
  return JSON.stringify([
    run.state, run.archived, run.name, run.tags, run.note, run.env_id, run.algorithm, run.topology, run.num_learners, run.seed, run.progress, run.env_steps,
    run.mean_return, run.mean_return_episodes, run.best_evaluation, run.steps_per_second, run.where, run.problem, ago(run.started),
    columns.map((name) => run.settings?.[name]),
  ]);
}

/** The view Runs. */
export class Runs {
  #state;
  #rows = new Map();
  #table = el("div", { class: "table-frame" });
  #chips = el("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  #bar = el("div", { class: "selection", hidden: true });
  #said = el("p", { class: "sr", "aria-live": "polite" });
  #body = null;
  #head = null;
  #last = null;
  #shownBar = "";
  #limit = FIRST;
  #clock;

  constructor(root, params) {
    this.root = root;
    this.#clock = setInterval(() => this.onRuns({ all: false }), 10_000);
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    this.#state = {
      search: text(params, "search"),
      states: new Set(list(params, "state")),
      sort: text(params, "sort", "started"),
      down: text(params, "down") === "1",
      group: text(params, "group"),
      closed: new Set(list(params, "closed")),
      columns: list(params, "columns"),
      hidden: new Set(list(params, "hidden").filter((name) => COLUMNS[name] && !ALWAYS.includes(name))),
    };
    this.#head = null; // the address may have brought other columns
    this.#draw();
  }

  #remember() {
    const { search, states, sort, down, group, closed, columns, hidden } = this.#state;
    const params = { search, state: [...states], sort: sort === "started" ? null : sort, down, group, closed: [...closed], columns, hidden: [...hidden] };
    remember("runs", params);
  }

  #change(change) {
    Object.assign(this.#state, change);
    this.#remember();
    this.#fill();
  }

  #draw() {
    document.title = "Runs \u00b7 gossamer";
    this.search = el("input", {
      type: "search",
      class: "search",
      placeholder: "Search: pong seed=2 return>15 tag=baseline",
      title: "Words, also of notes and tags, or comparisons of any column or setting: env=pong, seed=2, learning_rate<0.001, return>15, tag=baseline",
      "aria-label": "Search runs",
      value: this.#state.search,
      on: { input: (event) => this.#change({ search: event.target.value }) },
    });
    this.groupField = el("span", {});
    this.columnField = el("span", { class: "column-field" });
    this.root.replaceChildren(
      el("h1", { class: "sr" }, "Runs"),
      el("div", { class: "toolbar" }, this.search, this.#chips, el("span", { class: "spacer" }), el("span", { class: "table-fields" }, this.groupField, this.columnField)),
      this.#table,
      this.#bar,
      this.#said,
    );
    this.#menus();
    this.#fill();
    this.#drawSelection();
  }

  #menus() {
    const differing = store.differing();
    const key = differing.join("\n");
    if (this.groupField.dataset.key === key) return;
    this.groupField.dataset.key = key;
    const settings = differing.filter((name) => !["env_id", "algorithm.name", "topology.name"].includes(name));
    const groups = [["", "nothing"], ["env_id", "environment"], ["algorithm", "algorithm"], ["topology", "topology"], ...settings.map((name) => [name, name])];
    if (this.#state.group && !groups.some(([name]) => name === this.#state.group)) groups.push([this.#state.group, this.#state.group]);
    this.groupField.replaceChildren(select("Group by", groups, this.#state.group, (group) => this.#change({ group, closed: new Set() })));
    this.columnField.replaceChildren(
      popover("Columns", () => {
        const usual = Object.entries(COLUMNS).filter(([name]) => !ALWAYS.includes(name));
        const items = [
          ...usual.map(([name, { title, help }]) => ({ key: name, text: title, note: help, on: !this.#state.hidden.has(name) })),
          ...store.differing().map((name) => ({ key: name, text: name, on: this.#state.columns.includes(name) })),
        ];
        return el(
          "div",
          {},
          el("p", { class: "quiet" }, "Columns, and below them settings that differ among these runs."),
          checklist(items, "Search columns", (chosen) => {
            this.#state.columns = chosen.filter((name) => !COLUMNS[name]);
            this.#state.hidden = new Set(usual.map(([name]) => name).filter((name) => !chosen.includes(name)));
            this.#head = null;
            this.#remember();
            this.#fill();
            this.#drawSelection();
          }),
        );
      }),
    );
  }

  #found() {
    const { search, states, sort, down } = this.#state;
    const fits = filterOf(search);
    const chosen = (run) => (states.size ? states.has(filedUnder(run)) : filedUnder(run) !== "archived");
    const runs = [...store.runs.values()].filter((run) => fits(run) && chosen(run));
    const value = COLUMNS[sort]?.value ?? ((run) => run.settings?.[sort]);
    const order = byValue(value, down);
    return runs.sort((a, b) => order(a, b) || compare(a.id, b.id));
  }

  #fill() {
    this.#drawChips();
    if (!store.loaded) {
      this.#table.replaceChildren(store.problem ? nothing("The runs cannot be read", store.problem) : el("p", { class: "loading" }, "Loading runs\u2026"));
      return;
    }
    if (!store.runs.size) {
      this.#head = null;
      this.#table.replaceChildren(
        nothing("No runs yet", `Nothing below ${store.root} is a run. This one takes ten seconds, and appears here while it trains:`, el("pre", {}, "gossamer train CartPole-v1")),
      );
      return;
    }
    const found = this.#found();
    this.#said.textContent = found.length === 1 ? "1 run" : `${count(found.length)} runs`;
    if (!this.#head) this.#frame();
    this.#marks();
    const { group } = this.#state;
    const rows = group ? this.#grouped(found) : this.#plain(found);
    if (!found.length) rows.push(el("tr", {}, el("td", { colspan: "30", class: "none" }, "No run fits. ", this.#unknown(), button("Show all runs", () => this.#clear(), { class: "link" }))));
    this.#place(rows);
  }

  // A comparison of what no run has finds nothing, however its sign stands.
  #unknown() {
    return strangers(this.#state.search, [...store.runs.values()]).map(({ name, near }) =>
      el("p", {}, `No column is called ${name}, nor a setting that differs among these runs${near ? `; try ${near}` : ""}.`),
    );
  }

  // Rows that stay where they are are not touched: a table of hundreds is updated every second.
  #place(rows) {
    const focused = document.activeElement;
    const group = focused?.closest(".group-row")?.dataset.group;
    const stay = new Set(rows);
    for (const row of [...this.#body.children]) if (!stay.has(row)) row.remove();
    let at = this.#body.firstChild;
    for (const row of rows) {
      if (row === at) at = at.nextSibling;
      else this.#body.insertBefore(row, at);
    }
    if (document.activeElement === focused) return;
    if (focused.isConnected) focused.focus();
    else if (group !== undefined) rows.find((row) => row.dataset.group === group)?.querySelector(focused.tagName)?.focus();
  }

  #clear() {
    this.search.value = "";
    this.#change({ search: "", states: new Set() });
  }

  #names() {
    return [...Object.keys(COLUMNS).filter((name) => !this.#state.hidden.has(name)), ...this.#state.columns];
  }

  #frame() {
    const heads = this.#names().map((name) => {
      const column = COLUMNS[name] ?? { title: name };
      return el(
        "th",
        { scope: "col", class: `c-${COLUMNS[name] ? name : "setting"}${column.right ? " right" : ""}`, "data-column": name },
        el("button", { type: "button", title: column.help, on: { click: () => this.#sortBy(name) } }, column.title),
      );
    });
    this.all = el("input", { type: "checkbox", "aria-label": "Select all runs that are shown", on: { change: (event) => store.select(this.#ids(this.#found()), event.target.checked) } });
    this.#body = el("tbody", {});
    this.#head = el("tr", {}, el("th", { scope: "col", class: "c-tick" }, this.all), heads);
    this.#rows.clear();
    this.#table.replaceChildren(el("table", { class: "runs", "aria-label": "Runs" }, el("thead", {}, this.#head), this.#body));
    this.#body.addEventListener("keydown", (event) => this.#key(event));
  }

  #marks() {
    const { sort, down } = this.#state;
    for (const head of this.#head.querySelectorAll("th[data-column]")) {
      const sorted = head.dataset.column === sort;
      head.setAttribute("aria-sort", sorted ? (down ? "descending" : "ascending") : "none");
    }
  }

  #sortBy(name) {
    const { sort, down } = this.#state;
    // Numbers are mostly looked at from the largest.
    const first = COLUMNS[name]?.right === true && name !== "started" && name !== "seed";
    this.#change({ sort: name, down: sort === name ? !down : first });
  }

  #plain(found) {
    const rows = found.slice(0, this.#limit).map((run) => this.#row(run));
    if (found.length > this.#limit && this.#limit === FIRST) {
      requestAnimationFrame(() => setTimeout(() => this.#show(ROWS)));
    } else if (found.length > this.#limit) {
      const more = button(`Show all ${count(found.length)} runs`, () => this.#show(Infinity));
      rows.push(el("tr", {}, el("td", { colspan: "30", class: "none" }, more)));
    }
    return rows;
  }

  #show(limit) {
    this.#limit = limit;
    if (this.#table.isConnected) this.#fill();
    this.#drawSelection();
  }

  #grouped(found) {
    const { group, closed } = this.#state;
    const groups = new Map();
    for (const run of found) {
      const value = valueOf(run, group);
      const key = value === undefined || value === null ? NONE : setting(value);
      if (!groups.has(key)) groups.set(key, { value: value ?? null, runs: [] });
      groups.get(key).runs.push(run);
    }
    const ordered = [...groups].sort(([, a], [, b]) => compare(a.value, b.value));
    const titles = shortSettings(ordered.map(([, { value }]) => value));
    return ordered.flatMap(([key, { value, runs }], at) => {
      const isClosed = closed.has(key);
      return [this.#groupRow(key, value === null ? NONE : titles[at], runs, isClosed), ...(isClosed ? [] : this.#plain(runs))];
    });
  }

  #groupRow(key, title, runs, isClosed) {
    const ids = this.#ids(runs);
    const ticked = ids.filter((id) => store.selected.has(id)).length;
    const returns = runs.map((run) => run.mean_return).filter((value) => typeof value === "number");
    // Returns of different environments have no mean, and none is the best.
    const alike = new Set(runs.map((run) => run.env_id)).size === 1;
    const mean = returns.length && alike ? returns.reduce((sum, value) => sum + value, 0) / returns.length : null;
    const best = Math.max(...runs.map((run) => run.best_evaluation ?? -Infinity));
    const box = el("input", {
      type: "checkbox",
      checked: ticked > 0 && ticked === ids.length,
      "aria-label": `Select the ${ids.length} runs of ${title}`,
      on: { change: (event) => store.select(ids, event.target.checked) },
    });
    box.indeterminate = ticked > 0 && ticked < ids.length;
    const toggle = el(
      "button",
      {
        type: "button",
        class: "group-toggle",
        title: title === key ? null : key,
        "aria-expanded": String(!isClosed),
        on: {
          click: () => {
            const { closed } = this.#state;
            if (isClosed) closed.delete(key);
            else closed.add(key);
            this.#change({ closed });
          },
        },
      },
      el("span", { class: "caret", "aria-hidden": "true" }),
      title,
      el("small", {}, `${count(runs.length)} ${runs.length === 1 ? "run" : "runs"}`),
    );
    const facts = [
      mean !== null && `mean return ${number(mean)}`,
      Number.isFinite(best) && alike && `best evaluation ${number(best)}`,
    ].filter(Boolean);
    return el("tr", { class: "group-row", "data-group": key }, el("td", { class: "c-tick" }, box), el("th", { scope: "rowgroup", colspan: "30" }, toggle, el("span", { class: "quiet" }, facts.join(" \u00b7 "))));
  }

  #row(run) {
    const known = this.#rows.get(run.id);
    const mark = markOf(run, this.#state.columns);
    if (known?.mark === mark) return known.row;
    const cells = this.#names().map((name) => {
      const column = COLUMNS[name];
      const value = run.settings?.[name];
      const content = column ? column.cell(run) : shortSetting(value);
      return el("td", { class: `c-${column ? name : "setting"}${column?.right ? " right" : ""}`, title: column ? null : setting(value) }, content);
    });
    const box = el("input", {
      type: "checkbox",
      checked: store.selected.has(run.id),
      "aria-label": `Select ${run.name}`,
      on: { click: (event) => this.#tick(run.id, event) },
    });
    const row = el(
      "tr",
      { "data-run": run.id, class: store.selected.has(run.id) ? "selected" : null, on: { click: (event) => this.#open(run.id, event) } },
      el("td", { class: "c-tick" }, box),
      cells,
    );
    if (known) {
      const moved = known.run.mean_return !== run.mean_return || known.run.env_steps !== run.env_steps;
      if (moved && run.state === "running") row.classList.add("fresh");
      exchange(known.row, row);
    }
    this.#rows.set(run.id, { row, mark, run });
    return row;
  }

  #tick(id, event) {
    event.stopPropagation();
    const shown = [...this.#body.querySelectorAll("tr[data-run]")].map((row) => row.dataset.run);
    const on = event.target.checked;
    if (event.shiftKey && this.#last) {
      const [from, to] = [shown.indexOf(this.#last), shown.indexOf(id)].sort((a, b) => a - b);
      if (from >= 0) store.select(shown.slice(from, to + 1), on);
    } else {
      store.select([id], on);
    }
    this.#last = id;
  }

  #ids(runs) {
    return runs.map((run) => run.id);
  }

  #open(id, event) {
    if (event.target.closest("a, input, button") || getSelection().toString()) return;
    go("run", { run: id });
  }

  #key(event) {
    const row = event.target.closest("tr[data-run]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = [...this.#body.querySelectorAll("tr[data-run]")];
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (step) {
      rows[rows.indexOf(row) + step]?.querySelector(".run-name").focus();
    } else if (event.key === "e") {
      describe(store.runs.get(row.dataset.run));
    } else if (event.key === "x") {
      store.select([row.dataset.run], !store.selected.has(row.dataset.run));
    } else {
      return;
    }
    event.preventDefault();
  }

  #drawChips() {
    const counts = {};
    for (const run of store.runs.values()) counts[filedUnder(run)] = (counts[filedUnder(run)] ?? 0) + 1;
    const { states } = this.#state;
    const chip = (label, on, click, classes = "") =>
      el("button", { type: "button", class: `chip ${classes}`, "aria-pressed": String(on), on: { click } }, label);
    const toggle = (name) => {
      const next = new Set(states);
      if (next.has(name)) next.delete(name);
      else next.add(name);
      this.#change({ states: next });
    };
    const focused = [...this.#chips.children].indexOf(document.activeElement);
    this.#chips.replaceChildren(
      chip(["All ", el("b", {}, count(store.runs.size - (counts.archived ?? 0)))], !states.size, () => this.#change({ states: new Set() })),
      ...Object.keys(STATES)
        .filter((name) => counts[name] || states.has(name))
        .map((name) => chip([stateMark(name), " ", el("b", {}, count(counts[name] ?? 0))], states.has(name), () => toggle(name), ATTENTION.includes(name) ? "attention" : "")),
    );
    if (focused >= 0) this.#chips.children[focused]?.focus();
  }

  /** The selection changed. */
  onSelected() {
    if (this.#state.group && this.#body) this.#fill();
    this.#drawSelection();
  }

  #drawSelection() {
    const ids = [...store.selected];
    for (const [id, { row }] of this.#rows) {
      const on = store.selected.has(id);
      row.classList.toggle("selected", on);
      row.querySelector("input").checked = on;
    }
    if (this.all) {
      const found = this.#ids(this.#found());
      const ticked = found.filter((id) => store.selected.has(id)).length;
      this.all.checked = ticked > 0 && ticked === found.length;
      this.all.indeterminate = ticked > 0 && ticked < found.length;
    }
    const plottable = store.plottable();
    const away = ids.every((id) => store.runs.get(id)?.archived) ? "restore" : "archive";
    this.#bar.hidden = !ids.length;
    // Made anew only when it must: a button that has the focus keeps it while runs train.
    const shown = JSON.stringify([ids, plottable, away]);
    if (shown === this.#shownBar) return;
    this.#shownBar = shown;
    this.#bar.replaceChildren(
      el("b", {}, `${count(ids.length)} selected`),
      plottable.length ? el("a", { class: "button primary", href: address("curves", { runs: plottable }) }, "Curves") : "",
      plottable.length ? el("a", { class: "button", href: address("compare", { runs: plottable }) }, "Compare") : "",
      ids.length === 2 && plottable.length === 2 ? el("a", { class: "button", href: address("run", { run: ids[0], section: "difference", with: ids[1] }) }, "Difference") : "",
      ids.length === 1 ? button("Name and tags", () => describe(store.runs.get(ids[0])), { "data-act": "describe" }) : "",
      button(away === "restore" ? "Restore" : "Archive", () => actOnRuns(away, ids), { "data-act": away }),
      button("Delete", () => actOnRuns("delete", ids), { "data-act": "delete", class: "button danger" }),
      button("Clear", () => store.select(ids, false), { class: "link" }),
    );
  }

  /** Runs changed. */
  onRuns() {
    whenLetGo(this.root, () => {
      if (this.groupField) this.#menus();
      this.#fill();
      this.#drawSelection();
    });
  }

  /** Put the focus on the first run. */
  focusFirst() {
    this.#body?.querySelector(".run-name")?.focus();
  }

  /** The view is left. */
  leave() {
    clearInterval(this.#clock);
  }
}
