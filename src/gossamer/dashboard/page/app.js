// Begins the page: the views and the way between them, the connection's sign, the keys.

import { follow, address, go, read, text } from "./address.js";
import { loadPlotly } from "./api.js";
import { el } from "./dom.js";
import { savedViews } from "./saved.js";
import { store } from "./store.js";

// Each view comes with its modules when it is first seen, or once the first one is there.
const VIEWS = {
  runs: async () => (await import("./runs.js")).Runs,
  curves: async () => (await import("./curves.js")).Curves,
  compare: async () => (await import("./compare.js")).Compare,
  sweep: async () => (await import("./sweep.js")).SweepView,
  run: async () => (await import("./run.js")).Run,
  learners: async () => (await import("./learners.js")).Learners,
  replay: async () => (await import("./replay.js")).Replay,
};
const OF_ONE_RUN = ["run", "learners", "replay"];
const CONNECTION = {
  connecting: "connecting",
  live: "live",
  lost: "connection lost, trying again",
};
const KEYS = [
  ["1 \u2026 7", "Runs, Curves, Compare, Sweep, Run, Learners, Replay"],
  ["/", "search"],
  ["j  k  or arrows", "next and previous run of the table"],
  ["Enter", "open the run"],
  ["x", "select the run"],
  ["e", "give the run a name, tags or a note"],
  ["c", "curves of the selected runs"],
  ["b", "which of the selected runs are better"],
  ["+  \u2212  \u2190  \u2192  0", "zoom, move and reset the chart that has the focus"],
  ["v", "saved views"],
  ["t", "dark or light"],
  ["?", "these keys"],
  ["Esc", "close"],
];

let view = null;
let name = "";

function links() {
  const { params } = read();
  const run = text(params, "run");
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.dataset.view;
    if (target === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    // On a narrow screen the links are a strip that scrolls.
    if (target === name) link.scrollIntoView({ block: "nearest", inline: "nearest" });
    // A view of one run leads to the views of the same run.
    if (run && OF_ONE_RUN.includes(target)) link.href = address(target, { run });
  }
}

async function route() {
  const { view: wanted } = read();
  const next = Object.hasOwn(VIEWS, wanted) ? wanted : "runs";
  let View;
  try {
    View = await VIEWS[next]();
  } catch {
    document.querySelector("main").replaceChildren(el("p", { class: "loading" }, "This view cannot be loaded: the server does not answer."));
    return;
  }
  if (read().view !== wanted) return; // somebody went on meanwhile, and that is shown instead
  const asked = follow();
  if (next === name) {
    view.update(asked.params);
  } else {
    const root = document.querySelector("main");
    view?.leave();
    name = next;
    root.dataset.view = name;
    view = new View(root, asked.params);
    scrollTo(0, 0);
  }
  links();
}

function showConnection() {
  const sign = document.querySelector("#connection");
  sign.dataset.state = store.connection;
  sign.querySelector("span").textContent = CONNECTION[store.connection];
  document.querySelector("#lost").hidden = store.connection !== "lost";
}

function help() {
  const dialog = el(
    "dialog",
    { class: "dialog", "aria-labelledby": "keys" },
    el("h2", { id: "keys" }, "Keys"),
    el("dl", { class: "keys" }, KEYS.map(([keys, meaning]) => [el("dt", {}, keys.split("  ").map((key) => (key.startsWith("or ") ? key : el("kbd", {}, key)))), el("dd", {}, meaning)])),
    el("p", { class: "quiet" }, "Drag over a chart to zoom all charts; a double click shows everything. The address holds the whole view: send it, and others see the same."),
    el("form", { method: "dialog", class: "dialog-buttons" }, el("button", { class: "button primary" }, "Close")),
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function themed() {
  globalThis.gossamerTheme.toggle();
  view?.onTheme?.();
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  if (event.key === "Escape") for (const open of document.querySelectorAll("details.popover[open]")) open.open = false;
  if (typing) return;
  const views = Object.keys(VIEWS);
  const search = document.querySelector("main .search");
  if (event.key >= "1" && event.key <= String(views.length)) document.querySelector(`nav a[data-view=${views[event.key - 1]}]`).click();
  else if (event.key === "/" && search) search.focus();
  else if (event.key === "v") document.querySelector("#saved > details").show();
  else if (event.key === "t") themed();
  else if (event.key === "?") help();
  else if (event.key === "c" && store.plottable().length) go("curves", { runs: store.plottable() });
  else if (event.key === "b" && store.plottable().length) go("compare", { runs: store.plottable() });
  else if (view?.focusFirst && ["j", "ArrowDown"].includes(event.key) && !event.target.closest?.("tr, .picture")) view.focusFirst();
  else return;
  event.preventDefault();
}

function begin() {
  const menus = (event) => {
    for (const open of document.querySelectorAll("details.popover[open]")) if (!open.contains(event.target)) open.open = false;
  };
  addEventListener("hashchange", route);
  addEventListener("keydown", key);
  addEventListener("pointerdown", menus);
  document.querySelector("#theme").addEventListener("click", themed);
  document.querySelector("#help").addEventListener("click", help);
  document.querySelector("#saved").replaceChildren(savedViews());
  globalThis.gossamerTheme.follow(() => view?.onTheme?.());
  store.addEventListener("runs", ({ detail }) => {
    document.querySelector("#root").textContent = `\u200e${store.root}`; // a mark, as the beginning of a long path is cut off
    view?.onRuns?.(detail);
  });
  store.addEventListener("rows", ({ detail }) => view?.onRows?.(detail.run));
  store.addEventListener("selected", () => view?.onSelected?.());
  store.addEventListener("connection", showConnection);
  route();
  showConnection();
  store.load().then(() => {
    store.listen();
    // Charts are wanted next: their library and the other views are fetched while the table is read.
    const soon = globalThis.requestIdleCallback ?? setTimeout;
    soon(() => {
      loadPlotly().catch(() => {});
      for (const load of Object.values(VIEWS)) load().catch(() => {});
    });
  });
}

begin();
