// Menus of a view of several runs: which runs it shows, and by which settings they are grouped.

import { checklist, el, popover } from "./dom.js";
import { isOffered } from "./states.js";
import { store } from "./store.js";

/** Return the menu of runs; `state.runs` are shown now, `change` is called with the ids that are ticked. */
export function runsMenu(state, change) {
  return popover(
    "Runs",
    () => {
      const items = [...store.runs.values()]
        .filter((run) => isOffered(run) || state.runs.includes(run.id))
        .map((run) => ({ key: run.id, text: run.name, note: `${run.env_id} ${run.algorithm}-${run.topology}`, on: state.runs.includes(run.id) }))
        .sort((a, b) => Number(b.on) - Number(a.on));
      return checklist(items, "Search runs", change);
    },
    { "data-menu": "runs" },
  );
}

/** Return the menu of settings to group by, but `others`; `state.by` are ticked now, `change` is called with those that are. */
export function byMenu(state, others, change) {
  const name = (by) => (by.length ? `Group by ${by.length === 1 ? by[0] : `${by.length} settings`}` : "Group: seeds");
  const menu = popover(
    name(state.by),
    () => {
      const names = new Set([...state.by, ...store.differing(state.runs)]);
      const items = [...names].filter((each) => !others.includes(each)).map((each) => ({ key: each, text: each, on: state.by.includes(each) }));
      return el(
        "div",
        {},
        el("p", { class: "quiet" }, "With nothing ticked, runs whose settings differ in the seed alone are one group."),
        checklist(items, "Search settings", (by) => {
          menu.rename(name(by));
          change(by);
        }),
      );
    },
    { "data-menu": "by" },
  );
  return menu;
}
