// The view Run: one run's curves, limits, settings, difference to another, log, checkpoints and videos.

import { address, numeric, one, remember, text } from "./address.js";
import { get, metricsOf, url } from "./api.js";
import { el, facts, later, nothing, paced, refill, select } from "./dom.js";
import { agoInWords, bytes, count, duration, moment, meanOf, number, setting, shortSetting, shortSettings } from "./format.js";
import { Helps } from "./helps.js";
import { limitsCard } from "./limits.js";
import { Linked, readView, writeView } from "./linked.js";
import { Panels } from "./panels.js";
import { headOf, runMenu, tile, usualRun } from "./runhead.js";
import { isReadable } from "./states.js";
import { store } from "./store.js";

const PACE_MS = 900;
const DETAIL_MS = 3000;
const SECTIONS = [["overview", "Overview"], ["settings", "Settings"], ["difference", "Difference"], ["log", "Log"], ["checkpoints", "Checkpoints"], ["videos", "Videos"]];

// The first is what people come for: it stands above all else, and has no heading but its own.
const LOG_LINES = 200; // that the server tells
const FACTS = { memory_bytes: "memory", changed: "changed since that commit" };
const LEAD = "Return";
const PANELS = {
  [LEAD]: [
    {
      key: "return",
      title: "Return",
      unit: "",
      metrics: [
        { name: "return_mean_100", label: "training, mean of 100 at most" },
        { name: "evaluation/mean", label: "evaluation", markers: true, band: false },
      ],
    },
  ],
  Episodes: [
    { key: "episodes", title: "Training episodes", metrics: [{ name: "episode/return", label: "return of an episode" }] },
    { key: "length", title: "Episode length", metrics: [{ name: "length_mean_100", label: "length" }] },
  ],
  Learning: [
    { key: "loss", title: "Loss", metrics: [{ name: "learner/loss", label: "loss" }, { name: "learner/policy_loss", label: "policy" }] },
    { key: "value_loss", title: "Value loss", metrics: [{ name: "learner/value_loss", label: "value loss" }] },
    { key: "entropy", title: "Entropy", metrics: [{ name: "learner/entropy_nats", label: "entropy" }] },
    { key: "kl", title: "KL of behavior and policy", metrics: [{ name: "learner/mean_kl_nats", label: "KL" }] },
    { key: "lag", title: "Lag", metrics: [{ name: "lag_versions_mean", label: "mean" }, { name: "lag_versions_max", label: "largest" }] },
    { key: "grad_norm", title: "Gradient norm", metrics: [{ name: "learner/grad_norm", label: "gradient norm" }] },
    { key: "explained", title: "Explained variance", metrics: [{ name: "learner/explained_variance", label: "explained variance" }] },
    { key: "clip", title: "Clipped and rejected rows", metrics: [{ name: "learner/clip_fraction", label: "clipped" }, { name: "learner/rejected_fraction", label: "rejected" }] },
    { key: "learning_rate", title: "Learning rate", metrics: [{ name: "learner/learning_rate", label: "learning rate" }] },
    { key: "disagreement", title: "Disagreement of learners", metrics: [{ name: "topology/disagreement", label: "disagreement" }] },
  ],
  Machine: [
    { key: "speed", title: "Speed since the first update", metrics: [{ name: "steps_per_second", label: "steps/s" }] },
    { key: "cpu", title: "Processor", unit: "percent of one core", metrics: [{ name: "cpu_percent", label: "all processes" }] },
    { key: "memory", title: "Memory", metrics: [{ name: "memory_bytes", label: "resident" }] },
    { key: "gpu", title: "GPU", metrics: [{ name: "gpu_percent", label: "utilisation" }] },
    { key: "gpu_memory", title: "GPU memory", metrics: [{ name: "gpu_memory_bytes", label: "held" }] },
  ],
};

// A table that is stacked has a block for each row on a narrow screen.
function table(head, rows, label, { stacked = false } = {}) {
  const titles = head.map((name) => name.text ?? name);
  for (const row of stacked ? rows : []) {
    for (const [at, cell] of [...row.children].entries()) if (titles[at]) cell.dataset.label = titles[at];
  }
  return el(
    "div",
    { class: "table-frame" },
    el(
      "table",
      { "aria-label": label, class: stacked ? "stacked" : null },
      el("thead", {}, el("tr", {}, head.map((name, at) => el("th", { scope: "col", class: name.right ? "right" : null }, titles[at])))),
      el("tbody", {}, rows),
    ),
  );
}

function cell(content, right = false) {
  return el("td", { class: right ? "right" : null }, content);
}

function settingCode(value, text = shortSetting(value)) {
  return el("code", { class: "value", title: text === setting(value) ? null : setting(value) }, text);
}

function evaluationNote({ last_evaluation: last, candidate_evaluation: candidate }) {
  const parts = [];
  if (typeof last === "number") parts.push(`last ${number(last)}`);
  if (typeof candidate === "number") parts.push(candidate === last ? "to be confirmed" : `${number(candidate)} to be confirmed`);
  return parts.join(", ");
}

function shapeOf(run) {
  return run && `${isReadable(run)} ${run.problem ?? ""}`;
}

/** The view Run. */
export class Run {
  #id;
  #section;
  #with;
  #search;
  #changedOnly;
  #learner;
  #head;
  #linked;
  #panels;
  #detail = null;
  #content = el("div", { class: "run-content", role: "tabpanel" });
  #tiles = el("div", { class: "tiles" });
  #limits = el("div", {});
  #lead = el("div", { class: "charts lead" });
  #machine = el("div", {});
  #groups = {};
  #abort = new AbortController();
  #chartAbort = new AbortController();
  #read = 0;
  #timer = 0;
  #shape = ""; // what is drawn around the section
  #state = "";
  #built = null;

  constructor(root, params) {
    this.root = root;
    this.refresh = paced(PACE_MS, () => this.#load());
    this.update(params);
  }

  /** Show what the address says. */
  update(params) {
    this.#abort.abort();
    this.#chartAbort.abort();
    this.#linked?.remove();
    this.#id = text(params, "run") || usualRun();
    this.#section = one(params, "section", SECTIONS.map(([key]) => key));
    this.#with = text(params, "with");
    this.#search = text(params, "find");
    this.#changedOnly = text(params, "changed") === "1";
    this.#learner = numeric(params, "learner");
    this.#detail = null;
    this.#built = null;
    this.#linked = new Linked(readView(params), (_, fresh) => {
      this.#remember();
      if (fresh) this.#loadCharts();
    });
    this.#draw();
  }

  #params() {
    const common = { run: this.#id, section: this.#section === "overview" ? null : this.#section };
    if (this.#section === "overview") return { ...common, learner: this.#learner, ...writeView(this.#linked.view) };
    if (this.#section === "difference") return { ...common, with: this.#with };
    if (this.#section === "settings") return { ...common, find: this.#search, changed: this.#changedOnly };
    return this.#section === "log" ? { ...common, find: this.#search } : common;
  }

  #remember() {
    remember("run", this.#params());
  }

  #draw() {
    const run = store.runs.get(this.#id);
    document.title = run ? `${run.name} \u00b7 gossamer` : "Run \u00b7 gossamer";
    this.#shape = shapeOf(run);
    this.#state = run?.state;
    this.#built = null;
    this.#head = headOf("run", this.#id, this.root);
    if (!this.#head) return;
    this.#panels = new Panels(this.#linked, this.#id);
    const tabs = SECTIONS.map(([key, name]) =>
      el(
        "a",
        {
          class: "tab",
          role: "tab",
          id: `tab-${key}`,
          href: address("run", { run: this.#id, section: key === "overview" ? null : key }),
          "aria-selected": String(key === this.#section),
          tabindex: key === this.#section ? "0" : "-1",
        },
        name,
      ),
    );
    const strip = el("div", { class: "tabs", role: "tablist", "aria-label": "Parts of a run" }, tabs);
    strip.addEventListener("keydown", (event) => {
      if (event.key === " ") {
        document.activeElement.click();
        event.preventDefault();
      }
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
      next.focus();
      event.preventDefault();
    });
    this.#content.setAttribute("aria-labelledby", `tab-${this.#section}`);
    // A tab that was opened by a key keeps the focus.
    const onTab = document.activeElement?.getAttribute("role") === "tab" && this.root.contains(document.activeElement);
    this.root.replaceChildren(this.#head.node, run.problem ? el("p", { class: "banner" }, run.problem) : "", strip, this.#content);
    // On a narrow screen the strip is longer than the screen is wide.
    if (onTab) strip.querySelector("[aria-selected=true]").focus();
    strip.querySelector("[aria-selected=true]").scrollIntoView({ block: "nearest", inline: "nearest" });
    this.#content.replaceChildren(el("p", { class: "loading" }, "Loading\u2026"));
    if (this.#section === "overview") this.#buildOverview();
    this.#load();
  }

  async #load() {
    clearTimeout(this.#timer);
    if (!store.runs.has(this.#id)) return;
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    const charts = this.#section === "overview" ? this.#loadCharts() : null;
    // Beside the charts the rest of the overview changes slowly.
    const age = Date.now() - this.#read;
    if (charts && this.#detail && age < DETAIL_MS) {
      this.#timer = setTimeout(() => this.refresh(), DETAIL_MS - age); // unless it is read again before
      await charts;
      return;
    }
    try {
      this.#read = Date.now();
      this.#detail = await get("api/run", { run: this.#id }, signal);
      if (signal.aborted) return;
      this.#fill();
    } catch (error) {
      if (!signal.aborted && !this.#detail) {
        const note = nothing("This run cannot be read", error.message);
        if (this.#section === "overview") this.#limits.replaceChildren(note);
        else this.#content.replaceChildren(note);
      }
    }
    await charts;
  }

  #fill() {
    if (this.#section === "overview") {
      this.#fillOverview();
      return;
    }
    const build = { settings: () => this.#settings(), difference: () => this.#difference(), log: () => this.#log(), checkpoints: () => this.#checkpoints(), videos: () => this.#videos() };
    build[this.#section]();
  }

  #buildOverview() {
    this.controls = el("div", { class: "toolbar" });
    this.learnerField = el("span", {});
    this.controls.append(...this.#linked.controls(), this.learnerField);
    this.#linked.node.replaceChildren();
    this.#linked.node.className = "";
    const loading = () => el("p", { class: "loading" }, "Loading\u2026");
    this.#lead.replaceChildren(loading());
    this.#limits.replaceChildren(loading());
    this.#machine.replaceChildren();
    this.#groups = { [LEAD]: this.#lead };
    for (const name of Object.keys(PANELS).filter((each) => each !== LEAD)) {
      const grid = el("div", { class: "charts" });
      this.#groups[name] = grid;
      this.#linked.node.append(el("section", { class: "chart-group", "aria-label": name, hidden: true }, el("h2", {}, name), grid));
    }
    this.#tiles.hidden = this.#limits.hidden = !isReadable(store.runs.get(this.#id));
    this.#content.replaceChildren(this.#tiles, this.controls, el("section", { "aria-label": LEAD }, this.#lead), this.#limits, this.#linked.node, this.#machine);
    this.#fillTiles();
  }

  #fillTiles() {
    const run = store.runs.get(this.#id);
    if (!run) return;
    this.#tiles.replaceChildren(
      tile("Return", run.mean_return, meanOf(run)),
      tile("Best evaluation", run.best_evaluation, evaluationNote(run)),
      tile("Env steps", count(run.env_steps), run.total_env_steps ? `of ${count(run.total_env_steps)}` : ""),
      tile("Steps/s", count(run.steps_per_second), "since the first update"),
      tile("Training time", duration(run.seconds), run.started ? `started ${agoInWords(run.started)}` : ""),
    );
  }

  #fillOverview() {
    const { limits, processes, machine, environment } = this.#detail;
    this.#limits.replaceChildren(limitsCard(limits));
    const known = Object.entries(machine ?? {}).filter(([, value]) => value !== null && value !== "");
    const asText = (name, value) => {
      if (/bytes|memory/.test(name) && typeof value === "number" && value > 1e6) return bytes(value);
      if (name === "command") return el("code", {}, Array.isArray(value) ? value.join(" ") : String(value));
      if (Array.isArray(value)) return value.map((each) => (typeof each === "object" ? Object.values(each).join(" ") : each)).join(", ") || "none";
      return typeof value === "object" ? Object.entries(value).map((pair) => pair.join(" ")).join(", ") : setting(value);
    };
    const machines = (processes ?? []).some((each) => each.machine); // of a run on this one nothing is told
    this.#machine.replaceChildren(
      el(
        "div",
        { class: "two" },
        el(
          "section",
          { class: "card" },
          el("h2", {}, "Processes"),
          processes?.length
            ? table(
                ["Role", { text: "Process", right: true }, ...(machines ? ["Machine"] : []), { text: "Restarts", right: true }, "State"],
                processes.map((each) =>
                  el("tr", {}, cell(each.rank === null || each.rank === undefined ? each.role : `${each.role} ${each.rank}`), cell(each.pid ?? "\u2013", true), machines && cell(each.machine || "\u2013"), cell(count(each.restarts), true), cell(each.alive === null || each.alive === undefined ? "not known" : each.alive ? "running" : "ended")),
                ),
                "Processes",
              )
            : el("p", { class: "quiet" }, "None is known."),
          Object.keys(environment ?? {}).length > 0 && [
            el("h2", {}, "Environment"),
            facts(Object.entries(environment).map(([name, value]) => [name, Array.isArray(value) ? value.map((each) => el("div", {}, each)) : value])),
          ],
        ),
        el(
          "section",
          { class: "card" },
          el("h2", {}, "Machine"),
          known.length
            ? facts(known.map(([name, value]) => [FACTS[name] ?? name.replaceAll("_", " "), asText(name, value)]))
            : el("p", { class: "quiet" }, "Nothing is known."),
        ),
      ),
    );
  }

  async #loadCharts() {
    this.#chartAbort.abort();
    this.#chartAbort = new AbortController();
    const { signal } = this.#chartAbort;
    try {
      const metrics = await metricsOf(this.#id);
      if (signal.aborted) return;
      this.#fillLearners(metrics);
      const panels = Object.values(PANELS).flat();
      const groupOf = (panel) => this.#groups[Object.keys(PANELS).find((name) => PANELS[name].some((each) => each.key === panel.key))];
      this.#lead.querySelector(".loading")?.remove();
      const drawn = this.#panels.load(panels, metrics, this.#learner, signal, groupOf);
      this.#showGroups();
      await drawn;
      this.#showGroups();
      this.controls.hidden = !this.#content.querySelector(".chart");
    } catch (error) {
      if (!signal.aborted) this.#lead.replaceChildren(el("p", { class: "quiet" }, error.message));
    }
  }

  // A heading comes with its first chart.
  #showGroups() {
    for (const grid of Object.values(this.#groups)) grid.parentNode.hidden = !grid.children.length;
  }

  #fillLearners(metrics) {
    const learners = [...new Set(metrics.flatMap((metric) => metric.learners ?? []))].sort((a, b) => a - b);
    if (learners.length < 2 || this.learnerField.children.length) return;
    const options = [["", "the run's rows"], ...learners.map((rank) => [String(rank), `learner ${rank}`])];
    this.learnerField.replaceChildren(
      select("Rows of", options, this.#learner === null ? "" : String(this.#learner), (value) => {
        this.#learner = value === "" ? null : Number(value);
        this.#remember();
        this.#loadCharts();
      }),
    );
  }

  async #settings() {
    if (this.#built === "settings") return;
    this.#built = "settings";
    if (!this.#detail.settings.length) {
      this.#content.replaceChildren(nothing("The settings cannot be read", store.runs.get(this.#id)?.problem || "This run's folder tells none."));
      return;
    }
    const helps = await this.#meanings();
    if (this.#built !== "settings") return; // another part of the run was opened meanwhile
    const body = el("div", {});
    const layers = [...new Set(this.#detail.settings.map((each) => each.layer))];
    const draw = () => {
      const words = this.#search.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = this.#detail.settings.filter((each) => {
        const line = `${each.name} ${setting(each.value)} ${shortSetting(each.value)} ${each.layer}`.toLowerCase();
        return words.every((word) => line.includes(word)) && !(this.#changedOnly && /^default/.test(each.layer ?? ""));
      });
      helps.hide();
      body.replaceChildren(
        rows.length
          ? table(["Setting", "Value", "Set by"], rows.map((each) => el("tr", {}, cell(helps.name(each.name)), cell(settingCode(each.value)), cell(el("span", { class: /^default/.test(each.layer ?? "") ? "layer" : "layer set" }, each.layer)))), "Settings")
          : el("p", { class: "quiet" }, "No setting fits."),
      );
    };
    this.#content.replaceChildren(
      el(
        "div",
        { class: "toolbar" },
        el("input", {
          type: "search",
          class: "search",
          placeholder: "Search: a name, a value or a layer",
          "aria-label": "Search settings",
          value: this.#search,
          on: {
            input: (event) => {
              this.#search = event.target.value;
              this.#remember();
              draw();
            },
          },
        }),
        el(
          "label",
          { class: "check" },
          el("input", {
            type: "checkbox",
            checked: this.#changedOnly,
            on: {
              change: (event) => {
                this.#changedOnly = event.target.checked;
                this.#remember();
                draw();
              },
            },
          }),
          "without defaults",
        ),
        el("span", { class: "quiet" }, `Layers: ${layers.join(", ")}${helps.some ? ". Point at a name for its help." : ""}`),
      ),
      body,
    );
    draw();
  }

  // The meanings come once; without them names stand alone.
  async #meanings() {
    try {
      const { meanings } = await get("api/meanings", { run: this.#id });
      return new Helps(meanings);
    } catch {
      return new Helps({});
    }
  }

  async #difference() {
    if (this.#built === `difference ${this.#with}`) return;
    this.#built = `difference ${this.#with}`;
    const other = store.runs.get(this.#with);
    const body = el("div", {});
    const menu = runMenu(other?.name ?? "Choose a run", (run) => {
      this.#with = run;
      this.#remember();
      this.#difference();
    });
    this.#content.replaceChildren(el("div", { class: "toolbar" }, el("span", { class: "field-name" }, "Settings of this run against"), menu), body);
    if (!this.#with) {
      body.replaceChildren(nothing("Against which run?", "Choose one above; settings that differ are listed with the layer that set each."));
      return;
    }
    try {
      const [{ settings }, helps] = await Promise.all([get("api/difference", { a: this.#id, b: this.#with }), this.#meanings()]);
      const names = [store.runs.get(this.#id)?.name ?? this.#id, other?.name ?? this.#with];
      body.replaceChildren(
        settings.length
          ? table(
              ["Setting", `This run (${names[0]})`, names[1]],
              settings.map((each) => {
                const sides = [[each.a, each.layer_a], [each.b, each.layer_b]];
                // A setting that nobody has set is none of the run's, as its algorithm is another.
                const texts = shortSettings(sides.filter(([, layer]) => typeof layer === "string").map(([value]) => value));
                const cells = sides.map(([value, layer]) =>
                  typeof layer === "string"
                    ? cell([settingCode(value, texts.shift()), el("small", { class: "quiet" }, ` ${layer}`)])
                    : cell(el("span", { class: "quiet", title: "not a setting of this run" }, "\u2013")),
                );
                return el("tr", {}, cell(helps.name(each.name)), cells);
              }),
              "Settings that differ",
            )
          : nothing("No difference", "Both runs have the same settings."),
      );
    } catch (error) {
      body.replaceChildren(nothing("The runs cannot be compared", error.message));
    }
  }

  #log() {
    const lines = this.#detail.log ?? [];
    if (this.#built !== "log") {
      this.#built = "log";
      this.pre = el("pre", { class: "log", tabindex: "0", "aria-label": "Log" });
      const filter = later(80, (word) => {
        this.#search = word;
        this.#remember();
        this.#log();
      });
      this.#content.replaceChildren(
        el("div", { class: "toolbar" }, el("input", { type: "search", class: "search", placeholder: "Search the log", "aria-label": "Search the log", value: this.#search, on: { input: (event) => filter(event.target.value) } }), (this.shownOf = el("span", { class: "quiet" }))),
        this.pre,
      );
    }
    const atEnd = this.pre.scrollHeight - this.pre.scrollTop - this.pre.clientHeight < 40;
    this.shownOf.textContent = lines.length < LOG_LINES ? "log.txt" : `The last ${LOG_LINES} lines of log.txt`;
    const shown = lines.filter((each) => each.toLowerCase().includes(this.#search.toLowerCase()));
    this.pre.textContent = shown.join("\n") || (lines.length ? "No line fits." : "The log is empty.");
    if (atEnd) this.pre.scrollTop = this.pre.scrollHeight;
  }

  #checkpoints() {
    const { checkpoints, evaluations } = this.#detail;
    const saved = checkpoints?.length
      ? table(
          [{ text: "Updates", right: true }, "Kind", { text: "Score", right: true }, { text: "Size", right: true }, { text: "Env steps", right: true }, "Saved", ""],
          checkpoints.toReversed().map((each) => el("tr", {}, cell(count(each.updates), true), cell((each.kinds ?? []).map((kind) => el("span", { class: "layer set" }, kind))), cell(number(each.score), true), cell(bytes(each.bytes), true), cell(count(each.env_steps), true), cell(moment(each.time)), el("td", { class: "stay" }, this.#download(each)))),
          "Checkpoints",
          { stacked: true },
        )
      : el("p", { class: "quiet" }, "None yet.");
    const played = (evaluations ?? []).toReversed();
    const several = store.runs.get(this.#id)?.num_learners > 1;
    refill(
      this.#content,
      el(
        "div",
        { class: "two wide" },
        el("section", { class: "card" }, el("h2", {}, "Checkpoints"), saved),
        el(
          "section",
          { class: "card" },
          el("h2", {}, "Evaluations"),
          played.length
            ? table(
                [{ text: "Env steps", right: true }, ...(several ? ["Policy"] : []), { text: "Mean return", right: true }, { text: "\u00b1 s.e.", right: true }, { text: "Episodes", right: true }, ""],
                played.map((each) =>
                  el("tr", {}, cell(count(each.env_steps), true), several ? cell(each.learner === "average" ? "average" : `learner ${each.learner ?? 0}`) : "", cell(number(each.mean), true), cell(number(each.standard_error), true), cell(count(each.returns?.length ?? each.episodes), true), cell(each.confirmation ? (each.wins ? "new best" : "not confirmed") : "")),
                ),
                "Evaluations",
                { stacked: true },
              )
            : el("p", { class: "quiet" }, "None yet."),
        ),
      ),
    );
  }

  #download({ name, kinds, updates }) {
    const which = name === String(updates) ? `checkpoint of ${count(updates)} updates` : `${kinds?.[0] ?? name} checkpoint`;
    return el("a", { class: "link", href: url("checkpoint", { run: this.#id, name }), download: "", "aria-label": `Download the ${which}` }, "download");
  }

  #videos() {
    const videos = this.#detail.videos ?? [];
    const key = `videos ${videos.map((each) => each.name).join("\n")}`;
    if (this.#built === key) return; // a video that plays goes on playing
    this.#built = key;
    if (!videos.length) {
      this.#content.replaceChildren(nothing("No videos", "A run records an evaluation episode beside each new best when it is started with", el("pre", {}, "gossamer train ... --evaluation.video")));
      return;
    }
    this.#content.replaceChildren(
      el(
        "div",
        { class: "videos" },
        videos.toReversed().map((each) =>
          el(
            "figure",
            { class: "card" },
            el("video", { src: url("video", { run: this.#id, name: each.name }), controls: true, loop: true, muted: true, playsinline: true, preload: "metadata" }),
            el("figcaption", {}, el("b", {}, `return ${number(each.return)}`), el("span", { class: "quiet" }, `${count(each.env_steps)} env steps \u00b7 ${moment(each.time)}`)),
          ),
        ),
      ),
    );
  }

  /** New rows of a run (null: of any). */
  onRows(run) {
    if (run === null || run === this.#id) this.refresh();
  }

  /** Runs changed. */
  onRuns({ all }) {
    if (!this.#id) this.#id = usualRun();
    const run = store.runs.get(this.#id);
    if (!this.#head || !run) {
      if (all) this.#draw();
      return;
    }
    if (shapeOf(run) !== this.#shape) {
      this.#draw();
      return;
    }
    this.#head.draw(run);
    if (this.#section === "overview") this.#fillTiles();
    if (run.state === this.#state) return;
    this.#state = run.state; // its log and its processes say more than its last row, which came before
    this.#read = 0;
    this.refresh();
    this.#timer = setTimeout(() => this.refresh(), DETAIL_MS); // the end of a run is told in several files
  }

  /** The colours changed. */
  onTheme() {
    this.#linked.recolor();
    if (this.#section === "overview" && this.#detail) this.#fillOverview();
  }

  /** The view is left. */
  leave() {
    clearTimeout(this.#timer);
    this.refresh.stop();
    this.#abort.abort();
    this.#chartAbort.abort();
    this.#linked.remove();
  }
}
