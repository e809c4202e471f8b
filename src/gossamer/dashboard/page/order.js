// The order of what tables show.

// Whether there is no value, as of a number that a run has not told.
function missing(value) {
  return value === null || value === undefined || value === "";
}

/** Compare two values as sorting wants it: numbers by size, texts with the numbers in them, what is missing last. */
export function compare(given, other) {
  // Settings such as learning rates come as lists of one.
  const [a, b] = [given, other].map((value) => (Array.isArray(value) && value.length === 1 ? value[0] : value));
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Return what compares items by `value(item)`, `down`: the other way round; those without a value stand at the end either way. */
export function byValue(value, down) {
  const sign = down ? -1 : 1;
  return (a, b) => missing(value(a)) - missing(value(b)) || sign * compare(value(a), value(b));
}
