// The words typed into the search of runs: plain words, and comparisons such as lr>0.001, seed=3 or tag="long run".

import { setting } from "./format.js";

const FIELDS = {
  env: "env_id", environment: "env_id", algo: "algorithm", return: "mean_return", best: "best_evaluation", steps: "env_steps",
  speed: "steps_per_second", "steps/s": "steps_per_second", learners: "num_learners", machine: "where", run: "name",
};
const SECONDS = { s: 1, m: 60, min: 60, h: 3600, d: 86_400 };
const MISTYPED = 2; // letters
const WORDS = /(?:[^\s"]|"[^"]*"?)+/g; // blanks between quotation marks belong to a word
const COMPARISON = /^([^<>=!]+)(>=|<=|!=|=|>|<)(.*)$/;

/** Return the value of a run's field or setting, by its name or the end of its dotted name; null: not known; undefined: it has none. */
export function valueOf(run, name) {
  if (name === "age") return run.started ? Date.now() / 1000 - run.started : undefined;
  const field = FIELDS[name] ?? name;
  if (field in run && typeof run[field] !== "object") return run[field];
  const settings = run.settings ?? {};
  if (name in settings) return settings[name];
  const found = Object.keys(settings).find((each) => each.endsWith(`.${name}`));
  return found === undefined ? (run[field] === null ? null : undefined) : settings[found];
}

function words(typed) {
  return (typed.match(WORDS) ?? []).map((word) => word.replace(/"/g, "")).filter(Boolean);
}

// A tag is a whole: baseline is not baseline-2.
function isTagged(run, wanted) {
  return (run.tags ?? []).some((tag) => tag.toLowerCase() === wanted.toLowerCase());
}

function compares(run, name, sign, wanted) {
  if (name === "tag" || name === "tags") return { "=": isTagged(run, wanted), "!=": !isTagged(run, wanted) }[sign] ?? false;
  const value = valueOf(run, name);
  if (value === undefined || (value === null && (FIELDS[name] ?? name) in run)) return false;
  const [, size, unit] = (name === "age" && /^([\d.]+)(s|m|min|h|d)$/.exec(wanted)) || [];
  const [a, b] = [Number(Array.isArray(value) ? value[0] : value), unit ? size * SECONDS[unit] : Number(wanted)];
  const numbers = value !== null && wanted !== "" && Number.isFinite(a) && Number.isFinite(b);
  const sought = wanted.toLowerCase();
  const asShown = (value === null || typeof value === "boolean") && setting(value) === sought; // on, off, none
  const same = numbers ? a === b : asShown || (value !== null && String(value).toLowerCase().includes(sought));
  if (sign === "=") return same;
  if (sign === "!=") return !same;
  if (!numbers) return false;
  return { ">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b }[sign];
}

// Levenshtein's distance: letters to insert, remove or replace.
function distance(a, b) {
  let row = [...b, ""].map((_, at) => at);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next.push(Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] !== b[j - 1])));
    row = next;
  }
  return row.at(-1);
}

// The name that was meant: of which it has the initials, a part, or all but a few letters; "" if there is none.
function nearest(name, names) {
  const wanted = name.toLowerCase().split(".").at(-1);
  const initials = (each) => each.split("_").map((part) => part[0]).join("");
  const close = (each) => distance(wanted, each);
  return (
    names.find((each) => wanted.length > 1 && initials(each) === wanted) ??
    names.find((each) => wanted.length > 2 && each.includes(wanted)) ??
    names.filter((each) => close(each) <= MISTYPED && close(each) < each.length / 2).sort((a, b) => close(a) - close(b))[0] ??
    ""
  );
}

/** Return the names in what was typed that no run has, each with the one that was probably meant, {name, near}. */
export function strangers(typed, runs) {
  const names = words(typed).map((word) => COMPARISON.exec(word)?.[1]).filter(Boolean);
  const unknown = [...new Set(names)].filter((name) => name !== "tag" && name !== "tags").filter((name) => runs.every((run) => valueOf(run, name) === undefined));
  const known = new Set([...Object.keys(FIELDS), "tag", "age"]);
  for (const run of unknown.length ? runs : []) {
    for (const each of Object.keys(run.settings ?? {})) known.add(each.split(".").at(-1));
    for (const each of Object.keys(run)) if (typeof run[each] !== "object") known.add(each);
  }
  return unknown.map((name) => ({ name, near: nearest(name, [...known].sort()) }));
}

/** Return a function that says whether a run fits what was typed. */
export function filterOf(typed) {
  const tests = words(typed).map((word) => {
    const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
    if (name) return (run) => compares(run, name, sign, wanted);
    const plain = word.toLowerCase();
    return (run) =>
      [run.id, run.name, run.note, ...(run.tags ?? []), run.env_id, run.algorithm, run.topology, run.state, run.where, run.exit_reason]
        .some((text) => String(text ?? "").toLowerCase().includes(plain));
  });
  return (run) => tests.every((test) => test(run));
}
