// The address bar: everything after # says what is seen, so that a view can be sent.
//   #/curves?runs=a/b,c/d&metrics=learner/loss&zoom=0,20000

const SAFE = { "%2F": "/", "%3A": ":", "%40": "@", "%20": "+" };

function encode(text) {
  return encodeURIComponent(text).replace(/%2F|%3A|%40|%20/g, (found) => SAFE[found]);
}

function decode(text) {
  try {
    return decodeURIComponent(text.replace(/\+/g, "%20"));
  } catch {
    return text; // cut off in the midst of a character, as mail programs do
  }
}

/** Return {view, params}: params map each name to its text as it stands in the address. */
export function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const params = {};
  for (const part of query.split("&")) {
    const [name, value = ""] = part.split(/=(.*)/s);
    if (name) params[name] = value;
  }
  return { view: path || "runs", params };
}

/** Return the address (beginning with #) of a view; params hold text, numbers or lists; empty ones are left out. */
export function address(view, params = {}) {
  const parts = [];
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === "" || value === false) continue;
    if (Array.isArray(value)) {
      if (value.length) parts.push(`${name}=${value.map((each) => encode(String(each))).join(",")}`);
    } else {
      parts.push(`${name}=${encode(value === true ? "1" : String(value))}`);
    }
  }
  return `#/${view}${parts.length ? `?${parts.join("&")}` : ""}`;
}

// The address that the view on the page was last shown, or has written.
let shown = null;

/** Return what the address says to the view that shows it from now on. */
export function follow() {
  shown = location.hash;
  return read();
}

/** Return one text of the address, or `otherwise`. */
export function text(params, name, otherwise = "") {
  return params[name] === undefined ? otherwise : decode(params[name]);
}

/** Return a list of the address; its items may hold commas, which are encoded. */
export function list(params, name, otherwise = []) {
  if (params[name] === undefined) return otherwise;
  return params[name].split(",").filter(Boolean).map(decode);
}

/** Return a finite number of the address, or `otherwise`. */
export function numeric(params, name, otherwise = null) {
  const value = Number(text(params, name, "x"));
  return Number.isFinite(value) ? value : otherwise;
}

/** Return a range "low,high" of the address, or null. */
export function range(params, name) {
  const [low, high] = list(params, name).map(Number);
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
}

/** Return the one of `allowed` that the address names, or the first. */
export function one(params, name, allowed) {
  const value = text(params, name);
  return allowed.includes(value) ? value : allowed[0];
}

/** Go to a view; the way back leads here. */
export function go(view, params) {
  location.hash = address(view, params);
}

/** Say the same view's new state in the address, without a step in the history; somebody who goes elsewhere is let go. */
export function remember(view, params) {
  if (location.hash !== shown) return;
  history.replaceState(null, "", address(view, params));
  shown = location.hash;
}
