// What the server answers. Every address is relative to the page, so that it may stand behind a proxy's prefix.

/** The server's one line about what went wrong, or ours when it did not answer. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Return the address of an answer; lists are encoded item by item and joined by commas. */
export function url(path, params = {}) {
  const parts = Object.entries(params)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => {
      const values = Array.isArray(value) ? value : [value];
      return `${name}=${values.map(encodeURIComponent).join(",")}`;
    });
  return parts.length ? `${path}?${parts.join("&")}` : path;
}

// The answer that ahead.js asked for, once.
function ahead(address) {
  const asked = address === "api/runs" ? globalThis.gossamerAhead : undefined;
  if (asked) globalThis.gossamerAhead = undefined;
  return asked;
}

async function answer(address, options) {
  let response;
  try {
    response = await (ahead(address) ?? fetch(address, { credentials: "same-origin", ...options }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer; is gossamer watch still running?", 0);
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(`The server's answer could not be read (status ${response.status}).`, response.status);
  }
  if (!response.ok) throw new Refused(body?.error ?? `The server refused (status ${response.status}).`, response.status);
  return body;
}

/** Return what GET answers; `signal` gives it up. */
export function get(path, params, signal) {
  return answer(url(path, params), { signal, cache: "no-store" });
}

/** Return what POST answers: only this page has the token that the server wants; `body` is sent along as JSON. */
export function post(path, params, body) {
  const token = document.querySelector("meta[name=gossamer-token]")?.content ?? "";
  const headers = { "X-Gossamer-Token": token };
  return answer(url(path, params), { method: "POST", headers, body: body && JSON.stringify(body) });
}

let metrics = new Map();

/** Return the metrics that a run has, remembered until `forgetMetrics`. */
export function metricsOf(run) {
  if (!metrics.has(run)) {
    const asked = get("api/metrics", { run }).then((found) => found.metrics);
    asked.catch(() => metrics.delete(run));
    metrics.set(run, asked);
  }
  return metrics.get(run);
}

/** Ask for a run's metrics anew next time: it has new rows. Null: for those of every run. */
export function forgetMetrics(run) {
  if (run === null) metrics.clear();
  else metrics.delete(run);
}

let plotly = null;

/** Return Plotly, which is loaded when a chart first needs it or the page has nothing else to do. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "plotly.js";
    script.addEventListener("load", () => resolve(globalThis.Plotly));
    script.addEventListener("error", () => {
      plotly = null;
      script.remove();
      reject(new Refused("Charts cannot be drawn: the server does not send plotly.js.", 0));
    });
    document.head.append(script);
  });
  return plotly;
}
