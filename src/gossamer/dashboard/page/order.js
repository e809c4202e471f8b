// The order of what tables show.

/** Return whether there is no value, as of a number that a run has not told. */
export function missing(value) {
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
