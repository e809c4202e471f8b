// Turns lines and a view of them into Plotly's traces and layout. Pure: the same input draws the same picture.

import { faded, themed } from "./palette.js";
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

/** Return the lowest and highest finite x of lines, or null. */
export function extent(lines) {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of lines) {
    for (const value of x) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

function seen(lines, [from, to], log) {
  let low = Infinity;
  let high = -Infinity;
  const take = (value) => {
    if (value === null || (log && value <= 0)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const { x, y, low: lows, high: highs } of lines) {
    for (let i = 0; i < x.length; i++) {
      if (x[i] === null || x[i] < from || x[i] > to) continue;
      take(y[i]);
      if (lows) take(lows[i]);
      if (highs) take(highs[i]);
    }
  }
  if (low > high) return null;
  if (log) {
    const edge = Math.max(0.02, (Math.log10(high) - Math.log10(low)) * 0.06);
    return [Math.log10(low) - edge, Math.log10(high) + edge];
  }
  const edge = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - edge, high + edge];
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

/** Return how many values a view cannot show: on a logarithmic axis those of 0 or less. */
export function undrawable(lines, view) {
  const below = (values, log) => (log ? values.map((value) => value !== null && value <= 0) : values.map(() => false));
  return lines.reduce((sum, { x, y }) => {
    const [byX, byY] = [below(x, view.xLog && view.xKind !== "time"), below(y, view.yLog)];
    return sum + y.filter((value, i) => value !== null && (byX[i] || byY[i])).length;
  }, 0);
}

function traces(lines, view) {
  const span = view.zoom ?? extent(lines) ?? [0, 1];
  const width = ((view.smoothing ?? 0) / 100) * 0.1 * (span[1] - span[0]);
  const opacity = Math.max(MIN_BAND, 0.22 - 0.012 * lines.length);
  const bands = [];
  const raw = [];
  const main = [];
  for (const line of lines) {
    const x = view.xKind === "time" ? line.x.map((value) => toAxis("time", value)) : line.x;
    const common = { type: "scatter", name: line.label, meta: line.key, hoverinfo: "skip", connectgaps: false };
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
    const stroke = { color: line.color, width: 1.8, dash: line.dash ?? "solid" };
    if (smoothed) {
      raw.push({ ...common, x, y: line.y, mode: "lines", line: { ...stroke, width: 1 }, opacity: 0.28, showlegend: false });
    }
    const y = smoothed ? smooth(line.x, line.y, width) : line.y;
    const lonely = line.y.reduce((found, value) => found + (value !== null), 0) < 2;
    main.push({
      ...common,
      x,
      y,
      mode: line.markers || lonely ? "lines+markers" : "lines",
      line: stroke,
      marker: { color: line.color, size: 6 },
      cliponaxis: !lonely, // a point alone stands at the edge
    });
  }
  return [...bands, ...raw, ...main];
}

/**
 * Return {data, layout} for Plotly.
 *
 * `lines`: {key, label, color, dash, x, y, low, high, markers}. `view`: xKind, xLog, yLog, zoom and yZoom (ranges in
 * units of the data, or null), smoothing in [0, 100]. `title` is drawn inside, for pictures that leave the page.
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
  const whole = extent(lines);
  const span = view.zoom ?? whole;
  const xaxis = { ...axis, type: view.xKind === "time" ? "date" : xLog ? "log" : "linear", showgrid: false, ticks: "outside", ticklen: 4 };
  xaxis.title = { text: kind.title, font: { size: 11, color: quiet }, standoff: 6 };
  if (view.zoom) {
    const ends = view.zoom.map((value) => toAxis(view.xKind, value));
    xaxis.range = xLog ? ends.map((value) => Math.log10(Math.max(value, Number.MIN_VALUE))) : ends;
  } else if (whole && !xLog && whole[1] > whole[0]) {
    xaxis.range = whole.map((value) => toAxis(view.xKind, value));
  } else {
    xaxis.autorange = true;
  }
  if (view.xKind === "seconds" && !xLog && span && span[1] > span[0]) Object.assign(xaxis, timeTicks(span));
  else if (view.xKind !== "time") xaxis.tickformat = "~s";
  const yaxis = { ...axis, type: view.yLog ? "log" : "linear", nticks: 6, exponentformat: "SI", linewidth: 0 };
  if (yTitle) yaxis.title = { text: yTitle, font: { size: 11, color: quiet } };
  const fitted = view.yZoom
    ? view.yLog
      ? view.yZoom.map((value) => Math.log10(Math.max(value, Number.MIN_VALUE)))
      : view.yZoom
    : span && seen(lines, span, view.yLog);
  if (fitted) yaxis.range = fitted;
  else yaxis.autorange = true;
  const ground = legend ? themed("card") : "rgba(0,0,0,0)";
  return {
    data: traces(lines, { ...view, xLog }),
    layout: {
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: ink },
      paper_bgcolor: ground,
      plot_bgcolor: ground,
      margin: legend ? { l: 60, r: 24, t: 56, b: 48 } : { l: 44, r: 18, t: 8, b: 40 },
      xaxis,
      yaxis,
      showlegend: legend,
      legend: { orientation: "h", y: -0.16, font: { size: 11 } },
      title: title ? { text: title, font: { size: 15 }, x: 0.02, xanchor: "left" } : undefined,
      hovermode: false,
      dragmode: globalThis.matchMedia?.("(pointer: coarse)").matches ? false : "zoom",
      uirevision: "same",
    },
  };
}
