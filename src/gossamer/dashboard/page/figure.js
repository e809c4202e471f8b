// Turns lines and a view of them into Plotly's traces and layout. Pure: the same input draws the same picture.

import { count, duration } from "./format.js";
import { faded, themed } from "./palette.js";
import { linearTicks, logTicks, tickText } from "./scales.js";
import { smooth } from "./smooth.js";

/** Ways to measure the horizontal axis: name, title, and what a reader calls it. */
export const X_KINDS = {
  env_steps: { title: "env steps", text: "Env steps" },
  updates: { title: "updates", text: "Updates" },
  seconds: { title: "seconds of the run", text: "Seconds" },
  time: { title: "wall clock", text: "Wall clock" },
};

const STEPS = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];
const MIN_BAND = 0.1;

function zoneMs(seconds) {
  return new Date(seconds * 1000).getTimezoneOffset() * 60_000;
}

/** Return x as Plotly's axis wants it: wall clock in local milliseconds, the rest as it is. */
export function toAxis(kind, x) {
  return kind === "time" && x !== null ? x * 1000 - zoneMs(x) : x;
}

/** Return what Plotly's axis says, a number or a local date, as x. */
export function fromAxis(kind, value) {
  if (kind !== "time") return Number(value);
  const local = typeof value === "number" ? value : Date.parse(`${String(value).replace(" ", "T")}Z`);
  return (local + zoneMs(local / 1000)) / 1000;
}

/** Return the lowest and highest finite x of lines, `log`: of those above 0; null without one. */
export function extent(lines, log = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of lines) {
    for (const value of x) {
      if (value === null || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

// Means of returns are a run's result: none is ever left out.
const RESULTS = new Set(["return_mean_100", "evaluation/mean"]);
const CORE = 0.02; // of the values on each side may be outliers
const SHORT = 0.005; // of the axis
const FEWEST = 50; // points of which any may be called an outlier

// Where the far outliers are cut off: all but the outermost values span a core, and what lies another core's height
// beyond it would leave nothing to be seen of the rest. A normal distribution has no such values in any number of rows.
function core(values) {
  const sorted = Float64Array.from(values).sort();
  const skip = Math.ceil(sorted.length * CORE);
  const [low, high] = [sorted[skip], sorted[sorted.length - 1 - skip]];
  const room = high - low;
  if (!(room > 0)) return [sorted[0], sorted.at(-1)]; // all are alike but a few, which are all that there is to see
  return [sorted.find((value) => value >= low - room), sorted.findLast((value) => value <= high + room)];
}

/**
 * Return {range, far} of the vertical axis: what Plotly takes, and how many points are far outliers.
 *
 * The axis spans what is seen between `from` and `to` but for far outliers, of which there are none among few points; it
 * spans all if `whole`. Without a point the range is null.
 */
function seen(lines, [from, to], log, whole) {
  const drawn = (value) => typeof value === "number" && (!log || value > 0);
  const scaled = log ? Math.log10 : Number;
  const points = [];
  const begins = []; // of each line in `points`
  for (const { x, y, low, high } of lines) {
    begins.push(points.length);
    for (let i = 0; i < x.length; i++) {
      if (x[i] === null || x[i] < from || x[i] > to || !drawn(y[i])) continue;
      const value = scaled(y[i]);
      points.push(value, low && drawn(low[i]) ? scaled(low[i]) : value, high && drawn(high[i]) ? scaled(high[i]) : value);
    }
  }
  if (!points.length) return { range: null, far: 0 };
  const all = [Infinity, -Infinity];
  for (const value of points) {
    if (value < all[0]) all[0] = value;
    if (value > all[1]) all[1] = value;
  }
  const few = points.length < 3 * FEWEST || lines.some((line) => RESULTS.has(line.metric));
  const inner = few ? all : core(points);
  // A line of which most would be cut off is no outlier: a run of few rows beside groups of many.
  for (const [n, begin] of few ? [] : begins.entries()) {
    const own = points.slice(begin, begins[n + 1]);
    if (2 * own.filter((value) => value < inner[0] || value > inner[1]).length <= own.length) continue;
    inner[0] = Math.min(inner[0], ...own);
    inner[1] = Math.max(inner[1], ...own);
  }
  const inside = (value) => value >= inner[0] && value <= inner[1];
  let far = 0;
  for (let i = 0; i < points.length; i += 3) far += !(inside(points[i]) && inside(points[i + 1]) && inside(points[i + 2]));
  const [low, high] = whole ? all : inner;
  const edge = log ? Math.max(0.02, (high - low) * 0.06) : (high - low || Math.abs(high) || 1) * 0.06;
  return { range: [low - edge, high + edge], far };
}

// A round number with its unit: 1.5k; small ones by their power of ten, as on the axes that are drawn by hand.
function roundText(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(9))}${unit}`;
  }
  return tickText(value);
}

const MOST_POWERS = 7;

// Powers of ten, all in one line; of a short stretch of the axis round numbers.
function powerTicks([low, high]) {
  let tickvals = high / low < 5 ? linearTicks(low, high, 4) : logTicks(low, high);
  const each = Math.ceil(tickvals.length / MOST_POWERS);
  tickvals = tickvals.filter((_, n) => n % each === 0);
  return { tickvals, ticktext: tickvals.map(roundText) };
}

function xTicks(kind, log, [low, high]) {
  if (kind === "time") return {};
  if (low === high) return { tickvals: [low], ticktext: [kind === "seconds" ? duration(low) : count(low)] };
  if (log) return low > 0 ? powerTicks([low, high]) : { tickformat: "~s" };
  return kind === "seconds" ? timeTicks([low, high]) : { tickformat: "~s" };
}

function timeTicks([low, high]) {
  const step = STEPS.find((each) => (high - low) / each <= 7) ?? (high - low) / 6;
  const tickvals = [];
  for (let at = Math.ceil(low / step) * step; at <= high && tickvals.length < 20; at += step) tickvals.push(at);
  const [size, unit] = step >= 86400 ? [86400, "d"] : step >= 3600 ? [3600, "h"] : step >= 60 ? [60, "min"] : [1, "s"];
  return { tickvals, ticktext: tickvals.map((at) => (at === 0 ? "0" : `${Number((at / size).toFixed(2))} ${unit}`)) };
}

// One polygon for each stretch without a hole: forward along the upper edge and back along the lower.
function band({ x, low, high }, kind, xLog, yLog) {
  const outX = [];
  const outY = [];
  const drawn = (i) =>
    x[i] !== null && low[i] !== null && high[i] !== null && (!yLog || (low[i] > 0 && high[i] > 0)) && (!xLog || x[i] > 0);
  for (let i = 0; i < x.length; i++) {
    if (!drawn(i)) continue;
    const start = i;
    while (i + 1 < x.length && drawn(i + 1)) i++;
    if (outX.length) {
      outX.push(null);
      outY.push(null);
    }
    for (let j = start; j <= i; j++) {
      outX.push(toAxis(kind, x[j]));
      outY.push(high[j]);
    }
    for (let j = i; j >= start; j--) {
      outX.push(toAxis(kind, x[j]));
      outY.push(low[j]);
    }
  }
  return { x: outX, y: outY };
}

/** Return of how many rows a view cannot show the value: on a logarithmic axis of those of 0 or less; null: of some. */
export function undrawable(lines, view) {
  let rows = 0;
  let known = true;
  for (const { x, y, rows: all, notPositive } of lines) {
    const belowX = view.xLog && view.xKind !== "time" ? y.filter((value, i) => value !== null && x[i] <= 0).length : 0;
    const belowY = view.yLog ? y.filter((value) => value !== null && value <= 0).length : 0;
    // Points are means of rows; and a row whose x and y are both 0 or less would count twice.
    known &&= !(belowX && (belowY || all !== y.length)) && !(belowY && typeof notPositive !== "number");
    rows += belowX + (view.yLog ? (notPositive ?? belowY) : 0);
  }
  return known ? rows : null;
}

// Plotly draws a line down to the edge where a value has no place on a logarithmic axis, as if that were its value.
function broken(x, y, { xLog, yLog }) {
  return xLog || yLog ? y.map((value, i) => ((yLog && value <= 0) || (xLog && x[i] <= 0) ? null : value)) : y;
}

// The sizes of markers that show only points without a neighbour, of which no line is drawn; null if there are none.
function lonelyMarkers(y) {
  const lonely = y.map((value, i) => value !== null && (y[i - 1] ?? null) === null && (y[i + 1] ?? null) === null);
  return lonely.includes(true) ? lonely.map((alone) => (alone ? 4 : 0)) : null;
}

// How far apart on the axis the first and the last point of a line are that are drawn.
function length(x, y, log) {
  const [low, high] = extent([{ x: x.filter((value, i) => y[i] !== null && (!log || value > 0)) }]) ?? [1, 1];
  return log ? Math.log10(high / low) : high - low;
}

// The interval of a point, of which no band is drawn.
function interval({ y, low, high, color }) {
  const apart = (ends, sign) => ends.map((end, i) => (end === null || y[i] === null ? 0 : sign * (end - y[i])));
  const [above, below] = [apart(high, 1), apart(low, -1)];
  const visible = [...above, ...below].some(Boolean); // of one run there is none
  return { visible, type: "data", symmetric: false, array: above, arrayminus: below, color, thickness: 1.2, width: 5 };
}

// Plotly reads <b>, <a href> and entities in texts, and names are typed by anybody.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function traces(lines, view) {
  const span = view.zoom ?? view.span ?? extent(lines) ?? [0, 1];
  const width = ((view.smoothing ?? 0) / 100) * 0.1 * (span[1] - span[0]);
  const opacity = Math.max(MIN_BAND, 0.22 - 0.012 * lines.length);
  const bands = [];
  const raw = [];
  const main = [];
  for (const line of lines) {
    const x = view.xKind === "time" ? line.x.map((value) => toAxis("time", value)) : line.x;
    const common = { type: "scatter", name: plain(line.label), meta: line.group ?? line.key, hoverinfo: "skip", connectgaps: false };
    const smoothed = width > 0 && !line.markers;
    if (line.low && line.high && line.band !== false) {
      const even = (values) => (smoothed ? smooth(line.x, values, width) : values);
      bands.push({
        ...common,
        ...band({ x: line.x, low: even(line.low), high: even(line.high) }, view.xKind, view.xLog, view.yLog),
        mode: "lines",
        fill: "toself",
        fillcolor: faded(line.color, opacity),
        line: { width: 0 },
        showlegend: false,
      });
    }
    const stroke = { color: line.color, width: line.thin ? 1.3 : 1.8, dash: line.dash ?? "solid" };
    if (smoothed) {
      raw.push({ ...common, x, y: broken(line.x, line.y, view), mode: "lines", line: { ...stroke, width: 1 }, opacity: 0.28, showlegend: false });
    }
    const y = broken(line.x, smoothed ? smooth(line.x, line.y, width) : line.y, view);
    // A line too short to be seen is a point: evaluations of seeds that ended almost at one step, for example.
    const lonely = length(line.x, line.y, view.xLog) <= SHORT * length(span, span, view.xLog);
    const marked = line.markers || lonely;
    const few = !marked && view.yLog ? lonelyMarkers(y) : null;
    main.push({
      ...common,
      x,
      y,
      mode: marked || few ? "lines+markers" : "lines",
      line: stroke,
      marker: { color: line.color, size: few ?? 6 },
      ...(lonely && line.low && line.high && line.band !== false ? { error_y: interval(line) } : {}),
      opacity: line.opacity ?? 1,
      // The first and the last point stand at the edge, and would be drawn by half.
      cliponaxis: !(lonely || (line.markers && !view.zoom && !view.yZoom)),
    });
  }
  return [...bands, ...raw, ...main];
}

/**
 * Return {data, layout} for Plotly, and `far`: how many points are far outliers, which only a `whole` view shows.
 *
 * `lines`: {key, group, metric, label, color, dash, opacity, thin, x, y, low, high, markers}. `view`: xKind, xLog, yLog,
 * span (of x of all linked charts, or null), zoom and yZoom (ranges in units of the data, or null), whole, smoothing in
 * [0, 100]. `title` is drawn inside, for
 * pictures that leave the page.
 */
export function figure(lines, view, { title = "", yTitle = "", legend = false } = {}) {
  const ink = themed("ink");
  const quiet = themed("quiet");
  const kind = X_KINDS[view.xKind];
  const xLog = view.xLog && view.xKind !== "time";
  const axis = {
    color: quiet,
    gridcolor: themed("grid"),
    zeroline: false,
    linecolor: themed("line"),
    tickfont: { size: 11 },
    automargin: true,
    fixedrange: false,
  };
  const ends = view.span ?? extent(lines, xLog);
  // A logarithmic axis has no place for 0: what is seen from there on begins with the first row.
  const zoom = xLog && ends && view.zoom?.[0] <= 0 ? [Math.min(ends[0], view.zoom[1]), view.zoom[1]] : view.zoom;
  const span = zoom ?? ends;
  const vertical = view.yZoom || !span ? { range: null, far: 0 } : seen(lines, span, view.yLog, view.whole);
  const xaxis = { ...axis, type: view.xKind === "time" ? "date" : xLog ? "log" : "linear", showgrid: false, ticks: "outside", ticklen: 4 };
  xaxis.title = { text: kind.title, font: { size: 11, color: quiet }, standoff: 6 };
  if (zoom) {
    const zoomed = zoom.map((value) => toAxis(view.xKind, value));
    xaxis.range = xLog ? zoomed.map((value) => Math.log10(Math.max(value, Number.MIN_VALUE))) : zoomed;
  } else if (ends && ends[1] > ends[0]) {
    xaxis.range = ends.map((value) => (xLog ? Math.log10(value) : toAxis(view.xKind, value)));
  } else {
    xaxis.autorange = true;
  }
  if (span) Object.assign(xaxis, xTicks(view.xKind, xLog, span));
  const yaxis = { ...axis, type: view.yLog ? "log" : "linear", nticks: 6, exponentformat: "SI", linewidth: 0 };
  if (yTitle) yaxis.title = { text: plain(yTitle), font: { size: 11, color: quiet } };
  const fitted = view.yZoom
    ? view.yLog
      ? view.yZoom.map((value) => Math.log10(Math.max(value, Number.MIN_VALUE)))
      : view.yZoom
    : vertical.range;
  if (fitted) yaxis.range = fitted;
  else yaxis.autorange = true;
  if (fitted && view.yLog) Object.assign(yaxis, powerTicks(fitted.map((value) => 10 ** value)));
  // "100\u00b5" beside "0.01" is hard to compare.
  else if (fitted && Math.max(...fitted.map(Math.abs)) < 1e-3) yaxis.exponentformat = "e";
  const ground = legend ? themed("card") : "rgba(0,0,0,0)";
  return {
    far: vertical.far,
    data: traces(lines, { ...view, zoom, xLog }),
    layout: {
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: ink },
      paper_bgcolor: ground,
      plot_bgcolor: ground,
      margin: legend ? { l: 60, r: 24, t: 56, b: 48 } : { l: 44, r: 18, t: 8, b: 40 },
      xaxis,
      yaxis,
      showlegend: legend,
      legend: { orientation: "h", y: -0.16, font: { size: 11 } },
      title: title ? { text: plain(title), font: { size: 15 }, x: 0.02, xanchor: "left" } : undefined,
      hovermode: false,
      dragmode: globalThis.matchMedia?.("(pointer: coarse)").matches ? false : "zoom",
      uirevision: "same",
    },
  };
}
