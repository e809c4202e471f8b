// Runs that an address names and that are not there any more: a view shows the others, and says which are gone.

import { el } from "./dom.js";
import { store } from "./store.js";

const NAMED = 10;

/** Return the ids of runs that are there; before the runs are known, all. */
export function present(ids) {
  return store.loaded ? ids.filter((id) => store.runs.has(id)) : ids;
}

/** Return a line that names those of some runs that are gone, or "" if all are there. */
export function goneNote(ids) {
  const there = new Set(present(ids));
  const gone = ids.filter((id) => !there.has(id));
  if (!gone.length) return "";
  const others = gone.length > NAMED ? ` and ${gone.length - NAMED} more` : "";
  return el("p", { class: "banner gone" }, `${gone.length} of these ${ids.length} runs ${gone.length === 1 ? "is" : "are"} no longer there: ${gone.slice(0, NAMED).join(", ")}${others}`);
}
