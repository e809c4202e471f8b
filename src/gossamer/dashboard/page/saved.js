// The menu of saved views in the head of the page: addresses under a name, kept by the server for whoever opens the page.

import { get, post } from "./api.js";
import { el, popover, refill } from "./dom.js";
import { say } from "./acts.js";

function here() {
  return location.hash || "#/runs";
}

// Only places in this page are gone to, whatever the file of views holds.
function within(address) {
  return address.startsWith("#/") ? address : "#/runs";
}

/** Return the menu. */
export function savedViews() {
  let views = [];
  let reading;
  const list = el("ul", { class: "saved-list", "aria-label": "Saved views" });
  const name = el("input", { type: "text", class: "input", placeholder: "Name of what you see now", "aria-label": "Name of the view" });
  const save = el("button", { type: "submit", class: "button primary" }, "Save");
  const form = el("form", { method: "dialog", class: "saved-form" }, name, save);
  const problem = el("p", { class: "problem", role: "alert", hidden: true });

  const told = (error) => {
    problem.textContent = error?.message ?? "";
    problem.hidden = !error;
  };
  const renamed = () => (save.textContent = views.some((view) => view.name === name.value.trim()) ? "Replace" : "Save");
  const draw = () => {
    refill(
      list,
      ...views.map((view) =>
        el(
          "li",
          {},
          el("a", { href: within(view.address), "aria-current": view.address === here() ? "true" : null, on: { click: () => (menu.open = false) } }, view.name),
          remover(view),
        ),
      ),
    );
    if (!views.length) refill(list, el("li", { class: "quiet" }, "None yet. A view is an address: search, filters, columns, charts and zoom."));
    renamed();
  };

  // The first press asks, the second one deletes.
  const remover = (view) => {
    const label = (sure) => (sure ? "Delete" : "\u00d7");
    let sure = false;
    const asks = (on) => {
      sure = on;
      node.textContent = label(on);
      node.className = on ? "button deletes" : "icon";
    };
    const node = el(
      "button",
      {
        type: "button",
        class: "icon",
        "aria-label": `Delete the view ${view.name}`,
        on: {
          click: async () => {
            if (!sure) return asks(true);
            const at = [...list.children].indexOf(node.parentNode);
            await change("delete", { name: view.name });
            (list.children[Math.min(at, list.children.length - 1)]?.querySelector("a") ?? name).focus();
          },
          blur: () => asks(false),
        },
      },
      label(false),
    );
    return node;
  };

  const change = async (act, body) => {
    try {
      const answer = await post("api/views", { act }, body);
      // What is still being read may be older than this change.
      reading?.abort();
      views = answer.views;
      told(null);
      say(answer.said);
      draw();
      return true;
    } catch (error) {
      told(error);
      return false;
    }
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const saved = name.value;
    if (!saved.trim()) return name.focus();
    // Another name may have been typed since.
    if ((await change("save", { name: saved, address: here() })) && name.value === saved) name.value = "";
    renamed();
  });
  name.addEventListener("input", renamed);

  const menu = popover(
    "Views",
    () => {
      told(null);
      name.value = "";
      draw();
      reading?.abort();
      reading = new AbortController();
      get("api/views", {}, reading.signal).then(
        (answer) => {
          // What was asked of a view that is about to be deleted holds on.
          if (JSON.stringify(answer.views) === JSON.stringify(views)) return;
          views = answer.views;
          draw();
        },
        (error) => error.name === "AbortError" || told(error),
      );
      return el("div", {}, form, problem, list);
    },
    { class: "popover saved" },
  );
  menu.querySelector("summary").setAttribute("aria-label", "Saved views");
  menu.querySelector("summary").title = "Saved views (v)";
  return menu;
}
