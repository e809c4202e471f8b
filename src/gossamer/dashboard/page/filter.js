// The words typed into the search of runs: plain words, and comparisons such as lr>0.001 or seed=3.

const FIELDS = {
  env: "env_id", algo: "algorithm", return: "mean_return", best: "best_evaluation", steps: "env_steps",
  speed: "steps_per_second", learners: "num_learners", machine: "where",
};
const COMPARISON = /^([^<>=!]+)(>=|<=|!=|=|>|<)(.*)$/;

/** Return the value of a run's field or setting, by its name or the end of its dotted name; undefined: none has it. */
export function valueOf(run, name) {
  const field = FIELDS[name] ?? name;
  if (field in run && typeof run[field] !== "object") return run[field];
  const settings = run.settings ?? {};
  if (name in settings) return settings[name];
  const found = Object.keys(settings).find((each) => each.endsWith(`.${name}`));
  return found === undefined ? undefined : settings[found];
}

function compares(run, name, sign, wanted) {
  const value = valueOf(run, name);
  if (value === undefined || value === null) return false;
  const [a, b] = [Number(Array.isArray(value) ? value[0] : value), Number(wanted)];
  const numbers = wanted !== "" && Number.isFinite(a) && Number.isFinite(b);
  const same = numbers ? a === b : String(value).toLowerCase().includes(wanted.toLowerCase());
  if (sign === "=") return same;
  if (sign === "!=") return !same;
  if (!numbers) return false;
  return { ">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b }[sign];
}

/** Return a function that says whether a run fits what was typed. */
export function filterOf(typed) {
  const tests = typed
    .trim()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
      if (name) return (run) => compares(run, name, sign, wanted);
      const plain = word.toLowerCase();
      return (run) =>
        [run.id, run.name, run.env_id, run.algorithm, run.topology, run.state, run.where, run.exit_reason]
          .some((text) => String(text ?? "").toLowerCase().includes(plain));
    });
  return (run) => tests.every((test) => test(run));
}
