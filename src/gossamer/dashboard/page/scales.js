// Axes that are drawn by hand: where a value stands between 0 and 1, and what is written beside it.

import { number, setting, shortSetting } from "./format.js";

const MINUS = "\u2212";
const MARGIN = 0.04;

/** Write a tick's number: round ones in few digits, very large and small ones by their power of ten. */
export function tickText(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return value.toExponential().replace("e+", "e").replace(/-/g, MINUS);
  return Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 }).replace("-", MINUS);
}

function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((each) => each * power >= rough * 0.999) ?? 10);
}

/** Return round numbers from low to high, about `count` of them. */
export function linearTicks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, count);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// Numbers of one axis are written in one way: by powers of ten where one of them is.
function tickTexts(values) {
  const texts = values.map(tickText);
  return texts.some((text) => text.includes("e")) ? values.map((value) => (value === 0 ? "0" : value.toExponential().replace("e+", "e").replace(/-/g, MINUS))) : texts;
}

/** Return powers of ten from low to high; where these are few, their multiples by 2 and 5 as well. */
export function logTicks(low, high) {
  const found = [];
  const within = (value) => value >= low * 0.999999 && value <= high * 1.000001;
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const each of [1, 2, 5]) {
      const value = Number(`${each}e${power}`);
      if (within(value)) found.push(value);
    }
  }
  const powers = found.filter((value) => Number.isInteger(Number(Math.log10(value).toFixed(9))));
  if (powers.length >= 2) return powers;
  return found.length ? found : [low];
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Return an axis of numbers: {place(value): a share or null, ticks: [{at, text, full}]}; `log` needs positive ones. */
export function numericAxis(values, log = false, margin = MARGIN) {
  const known = values.filter((value) => isNumber(value) && (!log || value > 0));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const to = log ? Math.log10 : (value) => value;
  const span = to(high) - to(low);
  const place = (value) => {
    if (!isNumber(value) || (log && value <= 0) || !known.length) return null;
    return span > 0 ? margin + ((1 - 2 * margin) * (to(value) - to(low))) / span : 0.5;
  };
  const round = !known.length ? [] : log ? logTicks(low, high) : linearTicks(low, high);
  const texts = tickTexts(round);
  return { log, categories: null, place, ticks: round.map((value, at) => ({ at: place(value), text: texts[at], full: number(value) })) };
}

/** Return an axis with a place for each value, in their order. */
export function categoryAxis(values) {
  const keys = [...new Set(values.map((value) => JSON.stringify(value ?? null)))];
  const at = (index) => (index + 0.5) / keys.length;
  return {
    log: false,
    categories: keys.length,
    place: (value) => {
      const index = keys.indexOf(JSON.stringify(value ?? null));
      return index < 0 ? null : at(index);
    },
    ticks: keys.map((key, index) => {
      const value = JSON.parse(key);
      return { at: at(index), text: shortSetting(value), full: setting(value) };
    }),
  };
}

/** Return the axis of a setting of a sweep, {name, kind, values}, over the values that its trials have. */
export function settingAxis({ kind, values }, tried) {
  if (kind === "category") return categoryAxis([...values, ...tried.filter((value) => value !== undefined)]);
  return numericAxis(tried, kind === "log");
}
