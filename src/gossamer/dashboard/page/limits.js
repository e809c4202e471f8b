// What limits a run: each role's time as a bar, and the sentence that sums it up.

import { el, unbroken } from "./dom.js";
import { percent } from "./format.js";
import { inkOn, line } from "./palette.js";

const IDLE = /wait|idle|turn|blocked/;

function byRole(shares) {
  const roles = new Map();
  for (const share of shares) {
    if (typeof share.share !== "number") continue;
    if (!roles.has(share.role)) roles.set(share.role, []);
    roles.get(share.role).push(share);
  }
  return roles;
}

/** Return the picture of a run's limits, {shares: [{role, doing, share}], sentence}. */
export function limitsCard(limits) {
  const roles = byRole(limits?.shares ?? []);
  const busy = [...new Set((limits?.shares ?? []).map((share) => share.doing).filter((doing) => !IDLE.test(doing)))];
  const look = (doing) => {
    if (IDLE.test(doing)) return { class: "segment idle" };
    const { color } = line(busy.indexOf(doing));
    return { class: "segment", css: { "--color": color, "--on-color": inkOn(color) } };
  };
  const bars = [...roles].map(([role, shares]) => {
    const told = shares.map(({ doing, share }) => `${doing} ${percent(share)}`).join(", ");
    return el(
      "div",
      { class: "limit" },
      el("span", { class: "limit-role" }, role),
      el(
        "div",
        { class: "limit-bar", role: "img", "aria-label": `${role}: ${told}` },
        shares.map(({ doing, share }) => {
          const { class: name, css } = look(doing);
          const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
          return el("span", { class: name, css: { ...css, width }, title: `${doing} ${percent(share)}` }, el("span", {}, percent(share)));
        }),
      ),
      el(
        "ul",
        { class: "legend" },
        shares.map(({ doing, share }) => {
          const { class: name, css } = look(doing);
          return el("li", {}, el("span", { class: `${name} key`, css }), `${doing} `, el("b", {}, percent(share)));
        }),
      ),
    );
  });
  return el(
    "section",
    { class: "card limits", "aria-label": "What limits it" },
    el("h2", {}, "What limits it"),
    el("p", { class: "sentence" }, unbroken(limits?.sentence || "Nothing is known yet: the first rows tell where the time goes.")),
    bars,
  );
}
