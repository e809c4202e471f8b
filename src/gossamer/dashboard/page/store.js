// What all views share: the runs, kept current by server-sent events, which are selected, and the connection.

import { forgetMetrics, get } from "./api.js";
import { isOffered, isReadable } from "./states.js";

const HIDDEN_MS = 30_000;
const HIDDEN_TAB = "the hidden tab that listens";
const SILENT_MS = 50_000; // the server tells every fifteen seconds that it is there
const RETRY_MS = [1000, 2000, 4000, 8000];

class Store extends EventTarget {
  root = "";
  runs = new Map();
  selected = new Set();
  loaded = false;
  problem = null;
  connection = "connecting"; // or "live", "lost"
  #events = null;
  #listened = false; // a stream was opened before
  #retries = 0;
  #retry = 0;
  #silent = 0;
  #hidden = 0;
  #seen = null; // aborted when somebody looks again
  #version = -1;
  #loading = null;

  /** Return the settings that differ among the runs, or among some of them, sorted by name. */
  differing(ids = null) {
    const runs = ids ? ids.map((id) => this.runs.get(id)).filter(Boolean) : [...this.runs.values()];
    const names = new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})));
    const differs = (name) => new Set(runs.map((run) => JSON.stringify(run.settings?.[name] ?? null))).size > 1;
    return [...names].filter((name) => !ids || differs(name)).sort();
  }

  /** Return the runs that menus and suggestions offer, the newest first. */
  offered() {
    return [...this.runs.values()].filter(isOffered).sort((a, b) => (b.started ?? 0) - (a.started ?? 0));
  }

  /** Return the ids of the selected runs that have something to draw. */
  plottable() {
    return [...this.selected].filter((id) => isReadable(this.runs.get(id)));
  }

  /** Read all runs anew; calls at the same time share one answer. */
  load() {
    this.#loading ??= this.#load().finally(() => (this.#loading = null));
    return this.#loading;
  }

  async #load() {
    try {
      let answer = await get("api/runs");
      // An event that overtook the answer knows more than the answer does.
      if (answer.version < this.#version) answer = await get("api/runs");
      this.root = answer.root;
      this.#version = answer.version;
      this.runs = new Map(answer.runs.map((run) => [run.id, run]));
      for (const id of this.selected) if (!this.runs.has(id)) this.selected.delete(id);
      this.problem = null;
      this.loaded = true;
    } catch (error) {
      this.problem = error.message;
    }
    this.#tell("runs", { all: true });
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #connected(state) {
    if (this.connection === state) return;
    this.connection = state;
    this.#tell("connection");
  }

  /** Listen to the server from now on; a lost connection is sought again, and what was missed is read anew. */
  listen() {
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.#hidden);
      this.#seen?.abort();
      if (document.hidden) this.#hidden = setTimeout(() => this.#rest(), HIDDEN_MS);
      else if (!this.#events) this.#open();
    });
    this.#open();
    if (document.hidden) this.#hidden = setTimeout(() => this.#rest(), HIDDEN_MS); // opened behind another tab
  }

  // A browser allows six connections to one server: of the tabs that nobody sees all but one give theirs back. That one
  // keeps the server, which ends after the last page, from ending.
  async #rest() {
    const { locks } = navigator; // not known to pages from afar without https
    const { signal } = (this.#seen = new AbortController());
    const untilSeen = () => new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", resolve)));
    const first = await locks?.request(HIDDEN_TAB, { ifAvailable: true }, (lock) => lock && untilSeen().then(() => true));
    if (first || signal.aborted) return;
    this.#close();
    const next = () => {
      this.#open();
      return untilSeen();
    };
    await locks?.request(HIDDEN_TAB, { signal }, next).catch(() => {}); // it is seen before its turn
  }

  #close() {
    this.#events?.close();
    this.#events = null;
    clearTimeout(this.#retry);
    clearTimeout(this.#silent);
  }

  #lost() {
    this.#connected("lost");
    this.#close();
    const wait = RETRY_MS[Math.min(this.#retries++, RETRY_MS.length - 1)];
    this.#retry = setTimeout(() => this.#open(), wait);
  }

  // A tunnel may hang, as after a laptop has slept, and nobody tells the browser.
  #heard() {
    clearTimeout(this.#silent);
    this.#silent = setTimeout(() => this.#lost(), SILENT_MS);
  }

  #open() {
    this.#close();
    const events = new EventSource("events");
    this.#events = events;
    events.addEventListener("open", () => {
      // Between two streams nobody listened, be it that the connection was lost or that the tab was hidden.
      const missed = this.#listened || this.#retries > 0;
      this.#listened = true;
      this.#retries = 0;
      this.#connected("live");
      if (missed || !this.loaded || this.problem) {
        this.#version = -1; // a server that was started again counts anew
        forgetMetrics(null);
        this.load();
        this.#tell("rows", { run: null });
      }
    });
    events.addEventListener("error", () => {
      if (this.#events === events) this.#lost();
    });
    for (const name of ["open", "version", "runs", "rows", "alive"]) events.addEventListener(name, () => this.#heard());
    this.#heard();
    events.addEventListener("version", (event) => {
      // Of what came between the first answer and this stream nobody tells.
      if (this.#version >= 0 && JSON.parse(event.data) !== this.#version) this.load();
    });
    events.addEventListener("runs", (event) => this.#changed(JSON.parse(event.data)));
    events.addEventListener("rows", (event) => {
      const { run } = JSON.parse(event.data);
      forgetMetrics(run);
      this.#tell("rows", { run });
    });
  }

  #changed({ version, runs, gone }) {
    if (version <= this.#version) return;
    this.#version = version;
    const strangers = runs.some((run) => !this.runs.has(run.id));
    for (const run of runs) this.runs.set(run.id, run);
    for (const id of gone) {
      this.runs.delete(id);
      this.selected.delete(id);
    }
    this.#tell("runs", { all: strangers || gone.length > 0 });
    // With another run other settings may differ, those of runs that did not change among them.
    if (strangers || gone.length > 0) this.load();
  }

  /** Select or deselect runs. */
  select(ids, on) {
    for (const id of ids) {
      if (on) this.selected.add(id);
      else this.selected.delete(id);
    }
    this.#tell("selected");
  }
}

export const store = new Store();
