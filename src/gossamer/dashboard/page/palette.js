// Colours that people with any colour vision tell apart: eight hues, of such lightness that also without red, green or blue
// no two look alike, and that each is three times as light or dark as the card. Lighter where the page is dark.

const LIGHT = ["#1f5fbf", "#d2691e", "#15491b", "#821474", "#6d5e0c", "#319da6", "#9171e5", "#c72a66"];
const DARK = ["#5ab4fe", "#f28c3c", "#bcffae", "#c389b2", "#fbc910", "#21edfe", "#a64dcb", "#dd3b54"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

/** Whether the page is dark now. */
export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** Return {color, dash} of the n-th line: after eight colours the same colours come dashed. */
export function line(n) {
  const colors = isDark() ? DARK : LIGHT;
  return { color: colors[n % colors.length], dash: DASHES[Math.floor(n / colors.length) % DASHES.length] };
}

/** Return a colour of the style sheet, by the name of its variable. */
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// The relative luminance of WCAG 2.
function luminance(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = parseInt(hex.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

const DARK_INK = "#000000"; // against any ground one of the two has a contrast of 4.5
const LIGHT_INK = "#ffffff";

/** Return the ink that is read best on a ground. */
export function inkOn(ground) {
  const [dark, light, own] = [DARK_INK, LIGHT_INK, ground].map(luminance);
  return (light + 0.05) / (own + 0.05) >= (own + 0.05) / (dark + 0.05) ? LIGHT_INK : DARK_INK;
}

/** Return a colour with an opacity. */
export function faded(hex, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// Steps of cividis, which is read the same with and without red-green vision.
const CIVIDIS = ["#00336f", "#39486b", "#575c6d", "#707173", "#8a8779", "#a69d75", "#c4b56c", "#e4cf5b", "#fee838"];
const STALE_LIGHT = ["#b9bec9", "#d0a24f", "#c94f00"];
const STALE_DARK = ["#596070", "#b98a3c", "#ff9457"];

function between(steps, share) {
  const place = Math.min(1, Math.max(0, share)) * (steps.length - 1);
  const at = Math.min(steps.length - 2, Math.floor(place));
  const mix = [1, 3, 5].map((from) => {
    const [a, b] = [steps[at], steps[at + 1]].map((hex) => parseInt(hex.slice(from, from + 2), 16));
    return Math.round(a + (b - a) * (place - at))
      .toString(16)
      .padStart(2, "0");
  });
  return `#${mix.join("")}`;
}

/** Return the colour of a value in [low, high], dark for low. */
export function scale(value, low, high) {
  if (value === null || value === undefined) return themed("line");
  return between(CIVIDIS, high > low ? (value - low) / (high - low) : 0.7);
}

// From what is hardly seen to what is seen best, on a light and on a dark ground; read the same with and without red-green vision.
const MERIT_LIGHT = ["#c3cbd9", "#9db4d3", "#5f93c9", "#22699f", "#00335f"];
const MERIT_DARK = ["#4a566f", "#56709a", "#8d8d78", "#cbb765", "#ffe45c"];

/** Return the colour of what is worth a share in [0, 1] of the best. */
export function merit(share) {
  return between(isDark() ? MERIT_DARK : MERIT_LIGHT, share);
}

/** Return the colour of a link by its staleness in [0, high]: grey is fresh, orange is stale. */
export function staleness(value, high) {
  return between(isDark() ? STALE_DARK : STALE_LIGHT, high > 0 && value !== null ? value / high : 0);
}
