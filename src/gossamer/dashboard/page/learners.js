// The view Learners: the graph of a run's learners and their links, live and back in time.

import { numeric, remember, text } from "./address.js";
import { get } from "./api.js";
import { button, colorBar, el, facts, later, nothing, paced, refill, unbroken } from "./dom.js";
import { count, duration, number } from "./format.js";
import { Graph, linkFacts, ranges } from "./graph.js";
import { scale, staleness } from "./palette.js";
import { headOf, usualRun } from "./runhead.js";
import { store } from "./store.js";

const PACE_MS = 900;
const OLD_SECONDS = 2; // of what a learner has told before the newest row
const HEADS = ["Learner", "Return", "Disagreement", "Restarts", "Host", "State", "Updates", "Env steps"];
const WORDS = ["Host", "State"]; // columns that hold no numbers

/** The view Learners. */
export class Learners {
  #id;
  #at; // seconds of the run; null: the newest
  #head = null;
  #graph;
  #answer = null;
  #abort = new AbortController();
  #frame = el("div", { class: "graph-frame" });
  #details = el("div", { class: "graph-details", "aria-live": "polite" });
  #legend = el("div", { class: "graph-legend" });
  #slider;
  #moment = el("output", { class: "slider-value" });
  #live;
  #events = el("ol", { class: "events" });
  #rows = el("tbody", {});

  constructor(root, params) {
    this.root = root;
    this.refresh = paced(PACE_MS, () => this.#load());
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    this.#id = text(params, "run") || usualRun();
    this.#at = numeric(params, "at");
    this.#answer = null;
    this.#draw();
  }

  #draw() {
    const run = store.runs.get(this.#id);
    document.title = run ? `Learners of ${run.name} \u00b7 gossamer` : "Learners \u00b7 gossamer";
    this.#head = headOf("learners", this.#id, this.root);
    if (!this.#head) return;
    this.#graph = new Graph((what) => this.#tell(what), (node) => this.#state(node));
    this.#frame.replaceChildren(el("p", { class: "loading" }, "Loading\u2026"));
    this.#rows.replaceChildren(el("tr", {}, el("td", { colspan: "8", class: "quiet" }, "Loading\u2026")));
    this.#legend.replaceChildren();
    this.#events.replaceChildren();
    const seek = later(60, () => this.#load());
    this.#slider = el("input", {
      type: "range",
      min: "0",
      max: "1",
      value: "1",
      "aria-label": "Time in the run",
      on: {
        input: (event) => {
          const [first, last] = this.#answer?.times ?? [0, 0];
          const share = Number(event.target.value) / Number(event.target.max);
          this.#seek(share >= 1 ? null : Number((first + share * (last - first)).toFixed(3)));
          seek();
        },
      },
    });
    this.#live = button("Live", () => {
      this.#seek(null);
      this.#load();
    }, { class: "button live" });
    this.root.replaceChildren(
      this.#head.node,
      el(
        "div",
        { class: "learners" },
        el(
          "section",
          { class: "card graph-card", "aria-label": "Graph" },
          this.#legend,
          this.#frame,
          el("div", { class: "timeline" }, this.#live, this.#slider, this.#moment),
        ),
        el(
          "section",
          { class: "card learners-card" },
          el("h2", {}, "Learners"),
          el(
            "div",
            { class: "table-frame" },
            el("table", { "aria-label": "Learners", class: "stacked" }, el("thead", {}, el("tr", {}, HEADS.map((name) => el("th", { scope: "col", class: WORDS.includes(name) ? null : "right" }, name)))), this.#rows),
          ),
        ),
        el(
          "aside",
          { class: "graph-side" },
          el("section", { class: "card" }, el("h2", {}, "Details"), this.#details),
          el("section", { class: "card" }, el("h2", {}, "Events"), this.#events),
        ),
      ),
    );
    this.#tell(null);
    this.#load();
  }

  #seek(at) {
    this.#at = at;
    remember("learners", { run: this.#id, at });
    this.#time();
  }

  async #load() {
    if (!store.runs.has(this.#id)) return;
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    try {
      const answer = await get("api/graph", { run: this.#id, at: this.#at }, signal);
      if (signal.aborted) return;
      this.#answer = answer;
      this.#fill();
    } catch (error) {
      if (!signal.aborted && !this.#answer) this.#frame.replaceChildren(nothing("The graph cannot be read", error.message));
    }
  }

  #fill() {
    const { nodes, events } = this.#answer;
    if (!this.#graph.node.isConnected) this.#frame.replaceChildren(this.#graph.node);
    if (!nodes.length) {
      this.#rows.replaceChildren();
      this.#frame.replaceChildren(nothing("No learner yet", "The first rows of this run tell which learners there are."));
      return;
    }
    this.#graph.draw(this.#answer);
    this.#time();
    this.#legends();
    const until = this.#at ?? Infinity;
    const past = (events ?? []).filter((event) => event.seconds <= until).toReversed();
    refill(
      this.#events,
      ...past.slice(0, 60).map((event) =>
        el(
          "li",
          {},
          button(duration(event.seconds), () => {
            this.#seek(event.seconds);
            this.#load();
          }, { class: "link", title: "Show the graph at that moment" }),
          el("span", {}, event.text),
        ),
      ),
      past.length ? "" : el("li", { class: "quiet" }, "None so far."),
    );
    this.#fillRows();
  }

  #fillRows() {
    this.#rows.replaceChildren(
      ...this.#answer.nodes.map((node) => {
        const old = node.told_seconds_before >= OLD_SECONDS ? el("small", {}, `${duration(node.told_seconds_before)} before`) : null;
        const told = (value) => (old ? el("span", { class: "quiet", title: "Learners but the first tell this every ten seconds" }, count(value), " ", old.cloneNode(true)) : count(value));
        const cells = [
          String(node.rank), number(node.return), number(node.disagreement), count(node.restarts ?? 0),
          node.host ?? "\u2013", this.#state(node), told(node.updates), told(node.env_steps),
        ];
        return el(
          "tr",
          { class: node.alive ? null : "dead" },
          cells.map((content, at) => el("td", { class: WORDS.includes(HEADS[at]) ? null : "right", "data-label": HEADS[at] }, content)),
        );
      }),
    );
  }

  // Of the moment that is shown. At the end of a run that is over no learner runs, and none will begin after it.
  #state(node) {
    const running = store.runs.get(this.#id)?.state === "running";
    if (!node.begun && (running || this.#at !== null)) return "not begun yet";
    if (this.#at !== null && !running) return node.alive ? "running then" : "ended";
    return node.alive && running ? "running" : "ended";
  }

  #time() {
    const [first, last, step] = this.#answer?.times ?? [0, 0, 1];
    // It counts places, of which the last is the end: steps in seconds would stop short of it.
    const places = Math.max(1, Math.round((last - first) / (step || 1)));
    const share = this.#at === null || !(last > first) ? 1 : (this.#at - first) / (last - first);
    this.#slider.max = String(places);
    this.#slider.value = String(Math.round(share * places));
    this.#slider.disabled = !(last > first);
    const running = store.runs.get(this.#id)?.state === "running";
    this.#moment.textContent = this.#at === null ? `${running ? "now" : "end"}, ${duration(last)}` : `${duration(Math.max(this.#at, first))} of ${duration(last)}`;
    this.#slider.setAttribute("aria-valuetext", this.#moment.textContent);
    this.#live.textContent = running ? "Live" : "End";
    this.#live.setAttribute("aria-pressed", String(this.#at === null));
  }

  #legends() {
    const meaning = ranges(this.#answer);
    const many = this.#answer.edges.length > 0;
    this.#legend.replaceChildren(
      colorBar("Return", number(meaning.low), number(meaning.high), (share) => scale(share, 0, 1)),
      ...(many
        ? [
            colorBar("Staleness of a link", "0", `${count(meaning.stale)} mixings`, (share) => staleness(share, 1)),
            el("span", { class: "quiet" }, `Width of a link: weight. Rim of a learner: disagreement${meaning.disagreement > 0 ? `, full at ${number(meaning.disagreement)}` : ""}.`),
          ]
        : [el("span", { class: "quiet" }, unbroken("This run has no links. Learners that talk: gossamer train CartPole-v1 topology:gossip --num-learners 4"))]),
    );
  }

  #tell(what) {
    if (what?.node) {
      const { node } = what;
      this.#details.replaceChildren(
        el("h3", {}, `Learner ${node.rank}, ${this.#state(node)}`),
        facts([
          ["Return", number(node.return)],
          ["Disagreement", number(node.disagreement)],
          ["Restarts", count(node.restarts ?? 0)],
          ["Host", node.host ?? "\u2013"],
          ["Updates", count(node.updates)],
          ["Env steps", count(node.env_steps)],
        ]),
      );
    } else if (what?.edge) {
      const { title, facts: pairs } = linkFacts(what.edge, this.#answer.directed);
      this.#details.replaceChildren(el("h3", {}, title), facts(pairs));
    } else {
      this.#details.replaceChildren(el("p", { class: "quiet" }, "Point at a learner or a link, or reach a learner with Tab and its links with the arrow keys."));
    }
  }

  /** New rows of a run (null: of any). */
  onRows(run) {
    if ((run === null || run === this.#id) && this.#at === null) this.refresh();
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
    if (this.#answer) this.#fillRows(); // states change with the run's
  }

  /** The colours changed. */
  onTheme() {
    if (this.#answer) this.#fill();
  }

  /** The view is left. */
  leave() {
    this.refresh.stop();
    this.#abort.abort();
  }
}
