// The states that a run can be in: a sign, a word and what the word means. Signs differ in shape, not in colour alone.

import { el, svg } from "./dom.js";

const SHAPES = {
  running: ["circle", { cx: 6, cy: 6, r: 4 }],
  done: ["path", { d: "M2 6.5 5 9.3 10.2 3", class: "stroke" }],
  stopped: ["rect", { x: 2.5, y: 2.5, width: 7, height: 7, rx: 1 }],
  failed: ["path", { d: "M2.5 2.5 9.5 9.5M9.5 2.5 2.5 9.5", class: "stroke" }],
  killed: ["path", { d: "M7.2.8 2.2 6.9h3L4.4 11.2 9.8 4.9H6.6Z" }],
  damaged: ["path", { d: "M6 1.2 11.4 10.8H.6Z" }],
  empty: ["circle", { cx: 6, cy: 6, r: 3.8, class: "stroke" }],
  archived: ["path", { d: "M1.8 4.2h8.4v5.6H1.8zM1 2.2h10", class: "stroke" }],
};

/** Every state in the order in which people look for them, with its meaning. */
export const STATES = {
  running: "is training now",
  done: "reached its end",
  stopped: "was stopped; it can be resumed",
  failed: "ended with an error",
  killed: "was killed, or its machine went away; it can be resumed",
  damaged: "cannot be read whole",
  empty: "a folder that holds no run yet",
  archived: "is hidden; it can be restored",
};

/** Return whether a run has anything to draw: its folder can be read, and a run has begun in it. */
export function isReadable(run) {
  return run !== undefined && run.state !== "damaged" && run.state !== "empty";
}

/** Return whether menus and suggestions offer a run: it has something to draw, and nobody has archived it. */
export function isOffered(run) {
  return isReadable(run) && filedUnder(run) !== "archived";
}

/** Return the state by which a run is filtered: archived ones are out of sight, except while they train. */
export function filedUnder(run) {
  return run.archived && run.state !== "running" ? "archived" : run.state;
}

/** Return a run's state as a sign and a word; other things than runs have words of their own. */
export function stateMark(state, word = state, meaning = STATES[state] ?? "") {
  const [shape, attributes] = SHAPES[state] ?? SHAPES.empty;
  return el(
    "span",
    { class: `state ${state}`, title: `${word}: ${meaning}` },
    svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg(shape, attributes)),
    word,
  );
}

/** Return a bar of a run's progress, a share in [0, 1] or null. */
export function progressBar(share, label) {
  if (share === null || share === undefined) return el("span", { class: "quiet" }, "\u2013");
  const bounded = Math.min(1, Math.max(0, share));
  return el(
    "span",
    { class: "progress", role: "progressbar", "aria-valuenow": Math.round(bounded * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": label },
    el("span", { css: { width: `${bounded * 100}%` } }),
  );
}
