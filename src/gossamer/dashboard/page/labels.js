// Short names of lines: of runs without what all share, of groups by the fewest settings that tell them apart.

import { shortSettings } from "./format.js";
import { store } from "./store.js";

const FIRST = ["env_id", "algorithm", "algorithm.name", "topology", "topology.name", "num_learners", "optimizer.learning_rate"];
const PLAIN = /^(env_id|algorithm|topology)(\.name)?$/;

/** Return the names of runs as a legend tells them, without what all of them share. */
export function runLabels(ids) {
  const parts = ids.map((id) => {
    const run = store.runs.get(id);
    return run ? [run.env_id, `${run.algorithm}-${run.topology}`, run.name] : [null, null, id];
  });
  const shared = (at) => parts.every((each) => each[at] === parts[0][at]);
  return parts.map((each) => each.filter((part, at) => part && (at === 2 || !shared(at))).join(" \u00b7 "));
}

function written(name, text) {
  return PLAIN.test(name) ? text : `${name.split(".").at(-1)} ${text}`;
}

/**
 * Return a short label for each group, {label, settings}.
 *
 * Environment, algorithm and topology are told wherever they differ, as what somebody has varied. Algorithms differ in a
 * dozen settings at once: the others are taken in their order, each that tells more groups apart, until no two look alike.
 */
export function groupLabels(groups) {
  const names = [...new Set(groups.flatMap((group) => Object.keys(group.settings ?? {})))];
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  names.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const kinds = (chosen) => new Set(groups.map((group) => JSON.stringify(chosen.map((name) => group.settings[name] ?? null)))).size;
  const chosen = names.filter((name) => PLAIN.test(name) && kinds([name]) > 1);
  for (const name of names) {
    if (kinds(chosen) === groups.length) break;
    if (kinds([...chosen, name]) > kinds(chosen)) chosen.push(name);
  }
  chosen.sort((a, b) => names.indexOf(a) - names.indexOf(b));
  const texts = new Map(chosen.map((name) => [name, shortSettings(groups.map((group) => group.settings[name]))]));
  const labels = groups.map((_, at) => chosen.map((name) => written(name, texts.get(name)[at])).join(" \u00b7 "));
  const alike = new Set(labels).size < labels.length || labels.some((label) => !label);
  return alike ? groups.map((group) => ownLabel(group, groups)) : labels;
}

// Settings do not tell them apart, as with one group alone.
function ownLabel(group, groups) {
  const run = store.runs.get(group.runs?.[0]);
  return groups.length === 1 && run ? `${run.env_id} \u00b7 ${run.algorithm}-${run.topology}` : group.label;
}
