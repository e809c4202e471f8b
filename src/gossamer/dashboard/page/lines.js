// Reads curves from the server as lines that a chart draws.

import { get } from "./api.js";
import { groupLabels } from "./labels.js";
import { line } from "./palette.js";

const POINTS = 24_000;
const MOST = 1500;
const LEAST = 200;

/** Return how many points a line gets in a chart of so many lines: all lines together stay quick to draw. */
export function pointsFor(lines) {
  return Math.max(LEAST, Math.min(MOST, Math.floor(POINTS / Math.max(1, lines))));
}

// Around what is seen a little more is read, so that a line leaves the chart at its edge.
function around(zoom) {
  if (!zoom) return {};
  const edge = (zoom[1] - zoom[0]) * 0.1;
  return { from: zoom[0] - edge, to: zoom[1] + edge };
}

/** Return one run's metric as a line: {key, label, n, color, dash, x, y, low, high, rows}. */
export async function seriesLine({ run, metric, label, n, key, learner, points, view, markers, band }, signal) {
  const asked = { run, metric, x: view.xKind, points, learner, ...around(view.zoom) };
  const { x, y, low, high, rows, exact, not_positive_rows: notPositive } = await get("api/series", asked, signal);
  return { key: key ?? metric, metric, label, n, ...line(n), x, y, low, high, rows, exact, notPositive, markers, band };
}

function keyOf(group) {
  return group.runs.join("\n");
}

/** Return the groups that runs are in, {key, label, full, runs}: seeds of equal settings, or runs alike in `by`. */
export async function groupsOf({ runs, by }, signal) {
  const { groups } = await get("api/groups", { runs, by }, signal);
  const labels = groupLabels(groups);
  return groups.map((group, n) => ({ key: keyOf(group), label: labels[n], full: group.label, runs: group.runs }));
}

/** Return groups of runs as lines, in the server's order: {..., runs, count, interval}. */
export async function groupLines({ runs, metric, view, statistic, by, points }, signal) {
  const asked = { runs, metric, x: view.xKind, points, statistic, by };
  const { groups } = await get("api/curves", asked, signal);
  const labels = groupLabels(groups);
  return groups.map((group, n) => ({
    key: keyOf(group),
    metric,
    label: labels[n],
    full: group.label,
    n,
    ...line(n),
    x: group.x,
    y: group.y,
    low: group.low?.length ? group.low : null,
    high: group.high?.length ? group.high : null,
    runs: group.runs,
    count: group.n,
    counts: group.counts,
    exact: group.exact,
    notPositive: group.not_positive_rows,
    interval: group.interval,
  }));
}
