// How numbers, times and sizes are written. `null` is what the server sends for a number that is not finite.

const NONE = "\u2013";
const COUNT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Write a measured number with three or four digits. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e9 || size < 1e-4) return value.toExponential(2).replace("-", "\u2212").replace("e+", "e");
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 2 - Math.floor(Math.log10(size));
  return value
    .toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    .replace("-", "\u2212");
}

/** Write of how many training episodes a run's return is the mean. */
export function meanOf({ mean_return: mean, mean_return_episodes: episodes }) {
  if (typeof mean !== "number") return "no episode yet";
  if (typeof episodes !== "number") return "mean of 100 episodes at most";
  return episodes === 1 ? "of one episode" : `mean of ${count(episodes)} episodes`;
}

/** Write a whole number in full. */
export function count(value) {
  return typeof value === "number" && Number.isFinite(value) ? COUNT.format(value) : NONE;
}

/** Write a large whole number in three digits: 1.25M. */
export function short(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** Write a share in [0, 1] as per cent. */
export function percent(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  return `${Math.round(value * 100)}\u00a0%`;
}

/** Write seconds as the two largest units. */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NONE;
  const whole = Math.round(Math.abs(seconds));
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0\u00a0s";
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount}\u00a0${unit}`)
    .join(" ");
}

/** Write how long ago a moment (unix seconds) was. */
export function ago(time, now = Date.now() / 1000) {
  if (typeof time !== "number" || !Number.isFinite(time)) return NONE;
  const seconds = Math.max(0, Math.round(now - time)); // as `duration` rounds
  if (seconds < 5) return "now";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)}\u00a0${unit}`;
  }
  return "now";
}

/** Write when a moment (unix seconds) was, as a sentence ends: "5 min ago", or "now". */
export function agoInWords(time) {
  const told = ago(time);
  return told === "now" || told === NONE ? told : `${told} ago`;
}

/** Write a moment (unix seconds) as local date and time. */
export function moment(time) {
  if (typeof time !== "number" || !Number.isFinite(time)) return NONE;
  const date = new Date(time * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Write a size in bytes. */
export function bytes(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}\u00a0${unit}`;
  }
  return `${value}\u00a0B`;
}

// A number in so many digits; whole ones, such as env steps, in full.
function rounded(value, digits) {
  if (Array.isArray(value)) return value.map((each) => rounded(each, digits));
  if (typeof value !== "number" || !Number.isFinite(value) || Number.isInteger(value)) return value;
  return Math.abs(value) >= 10 ** (digits - 1) ? Math.round(value) : Number(value.toPrecision(digits));
}

/** Write a setting's value to be read: its numbers in four digits or as many, a list of one as what is in it. */
export function shortSetting(value, digits = 4) {
  const single = Array.isArray(value) && value.length === 1 && typeof value[0] !== "object";
  return setting(rounded(single ? value[0] : value, digits));
}

/** Write the values of one setting, in as few digits as tell them apart, but four at least. */
export function shortSettings(values) {
  const kinds = new Set(values.map(setting)).size;
  for (const digits of [4, 6, 9]) {
    const texts = values.map((value) => shortSetting(value, digits));
    if (new Set(texts).size === kinds) return texts;
  }
  return values.map(setting);
}

/** Write a setting's value: as it stands in a settings file. */
export function setting(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "boolean") return value ? "on" : "off";
  if (typeof value === "object") return JSON.stringify(value);
  return String(value) === "" ? "\u201c\u201d" : String(value);
}
