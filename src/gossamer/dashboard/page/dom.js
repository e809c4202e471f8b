// Makes elements. Text is always text: names of runs come from folders, and nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (name === "css") {
      // Through the object model: the page's policy forbids style attributes.
      for (const [property, set] of Object.entries(value)) node.style.setProperty(property, set);
    } else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") {
      node[name] = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** Return a new HTML element; `on` holds event handlers, `css` style properties, `null` leaves an attribute out. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return a new SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Return a text that may go on in a new line at places within its words: in names of settings behind a dot or an underscore. */
export function breakable(text, places = /(?<=[._])(?=[a-z])/) {
  return text.split(places).flatMap((part, at) => (at ? [el("wbr", {}), part] : [part]));
}

/** Return a sentence whose options of commands are not broken: a hyphen is where browsers break lines. */
export function unbroken(sentence) {
  return sentence.split(/(--[\w.-]+)/).map((part, n) => (n % 2 ? el("span", { class: "unbroken" }, part) : part));
}

/** Return a button; `label` is its text. */
export function button(label, click, attributes = {}) {
  return el("button", { type: "button", class: "button", ...attributes, on: { click } }, label);
}

/** Return a labelled select; options are [value, text] pairs. */
export function select(label, options, value, change, attributes = {}) {
  const node = el(
    "select",
    { ...attributes, on: { change: (event) => change(event.target.value) } },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
  );
  return el("label", { class: "field" }, el("span", { class: "field-name" }, label), node);
}

/** Return a group of buttons of which one is pressed; options are [value, text] pairs, `name` is what is read out. */
export function choice(label, options, value, change, name = label) {
  const buttons = options.map(([key, text]) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(key === value),
        on: {
          click: () => {
            for (const each of buttons) each.setAttribute("aria-pressed", String(each === buttons[at(key)]));
            change(key);
          },
        },
      },
      text,
    ),
  );
  const at = (key) => options.findIndex(([name]) => name === key);
  return el(
    "div",
    { class: "field" },
    label && el("span", { class: "field-name" }, label),
    el("div", { class: "choice", role: "group", "aria-label": name }, buttons),
  );
}

/** Return a button that opens a panel below itself, as its `show()` does; `build` makes what is in it each time it opens. */
export function popover(label, build, attributes = {}) {
  const panel = el("div", { class: "popover-panel" });
  const text = el("span", {}, label);
  const summary = el("summary", { class: "button" }, text, el("span", { class: "caret", "aria-hidden": "true" }));
  const details = el("details", { class: "popover", ...attributes }, summary, panel);
  // A toggle event comes later: what is typed or pressed before it would be lost.
  details.show = () => {
    details.open = true;
    panel.replaceChildren(build());
    // Near the right edge it opens to the left.
    panel.classList.remove("leftwards");
    panel.classList.toggle("leftwards", panel.getBoundingClientRect().right > document.documentElement.clientWidth);
    panel.querySelector("input, button, select")?.focus();
  };
  summary.addEventListener("click", (event) => {
    event.preventDefault();
    if (details.open) details.open = false;
    else details.show();
  });
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !details.open) return;
    event.stopPropagation();
    details.open = false;
    summary.focus();
  });
  details.rename = (name) => (text.textContent = name);
  return details;
}

/** Return a list of boxes to tick, with a field that searches it; items are {key, text, note, on}. */
export function checklist(items, placeholder, change) {
  const list = el("div", { class: "checklist", role: "group", "aria-label": placeholder });
  const draw = (word) => {
    const words = word.toLowerCase().split(/\s+/);
    const found = items.filter((item) => {
      const text = `${item.text} ${item.note ?? ""}`.toLowerCase();
      return words.every((each) => text.includes(each));
    });
    list.replaceChildren(
      ...found.slice(0, 200).map((item) =>
        el(
          "label",
          { class: "check" },
          el("input", {
            type: "checkbox",
            checked: item.on,
            on: {
              change: (event) => {
                item.on = event.target.checked;
                change(items.filter((each) => each.on).map((each) => each.key), item);
              },
            },
          }),
          el("span", { class: "check-text" }, item.text, item.note && el("small", {}, item.note)),
        ),
      ),
      found.length === 0 ? el("p", { class: "quiet" }, "Nothing fits.") : "",
      found.length > 200 ? el("p", { class: "quiet" }, `and ${found.length - 200} more: search for them`) : "",
    );
  };
  draw("");
  return el(
    "div",
    {},
    el("input", {
      type: "search",
      placeholder,
      "aria-label": placeholder,
      on: {
        input: (event) => draw(event.target.value),
        // Enter takes the first that fits.
        keydown: (event) => {
          if (event.key !== "Enter") return;
          event.preventDefault();
          list.querySelector("input")?.click();
        },
      },
    }),
    list,
  );
}

/** Return what stands where there is nothing to show: a heading, and lines that say what to do. */
export function nothing(title, ...lines) {
  return el(
    "div",
    { class: "nothing" },
    el("h2", {}, title),
    lines.map((line) => (typeof line === "string" ? el("p", {}, line) : line)),
  );
}

/** Return names with what is told of each, [name, content] pairs. */
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, content]) => [el("dt", {}, name), el("dd", {}, content)]));
}

/** Return a bar of colours with its name and the meanings of its ends; `color` returns that of a share in [0, 1]. */
export function colorBar(name, low, high, color) {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => color(share));
  return el(
    "div",
    { class: "scale" },
    el("span", { class: "scale-name" }, name),
    el("span", { class: "scale-ends" }, low),
    el("span", { class: "scale-bar", css: { background: `linear-gradient(90deg, ${stops.join(", ")})` } }),
    el("span", { class: "scale-ends" }, high),
  );
}

const LONGEST_PRESS_MS = 2000; // a menu of the browser's own may keep to itself that the pointer was let go

// What the pointer is pressed on, since when, and what is to be done once it is let go.
let pressed = null;
let since = 0;
const waiting = new Map();

function letGo() {
  // After the click, which comes next.
  setTimeout(() => {
    pressed = null;
    for (const work of waiting.values()) work();
    waiting.clear();
  });
}

addEventListener(
  "pointerdown",
  (event) => {
    if (event.button !== 0) return;
    pressed = event.target;
    since = Date.now();
  },
  true,
);
addEventListener("pointerup", letGo, true);
addEventListener("pointercancel", letGo, true);

/** Change what is in a node, or, while something in it is being pressed, do so once that is let go: no click comes of another one in its place. */
export function whenLetGo(node, work) {
  if (pressed && Date.now() - since < LONGEST_PRESS_MS && node !== pressed && node.contains(pressed)) {
    waiting.set(node, work);
    return;
  }
  waiting.delete(node);
  work();
}

function controls(node) {
  return [...node.querySelectorAll("a, button, input")];
}

/** Put another node in the place of one; the control that has the focus keeps it. */
export function exchange(node, other) {
  const place = controls(node).indexOf(document.activeElement);
  node.replaceWith(other);
  if (place >= 0) (controls(other)[place] ?? controls(other)[0])?.focus();
}

/** Fill a list anew with what an answer tells. The focus keeps its place, and so does a control that is being pressed. */
export function refill(node, ...children) {
  whenLetGo(node, () => {
    const place = controls(node).indexOf(document.activeElement);
    node.replaceChildren(...children);
    if (place >= 0) controls(node)[place]?.focus();
  });
}

/** Return a function that calls `work` once, `wait` ms after its last call; after `stop()` not for the calls before. */
export function later(wait, work) {
  let timer = 0;
  const call = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
  call.stop = () => clearTimeout(timer);
  return call;
}

/** Return a function that does `work` at once, never twice at a time, and again if it was called meanwhile; after `stop()` not at all. */
export function paced(wait, work) {
  let busy = false;
  let again = false;
  let stopped = false;
  const run = async () => {
    if (stopped) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await work();
    } finally {
      setTimeout(() => {
        busy = false;
        if (again) {
          again = false;
          run();
        }
      }, wait);
    }
  };
  run.stop = () => (stopped = true);
  return run;
}
