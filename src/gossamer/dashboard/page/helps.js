// Names of settings with their help: shown where one points or the focus is, and read out with the name.

import { breakable, el } from "./dom.js";

const EDGE = 12;

/** The help of one table's settings; `meanings` maps names to texts. */
export class Helps {
  #meanings;
  #tip = el("div", { class: "tip", role: "tooltip", hidden: true });
  #shown = null;

  constructor(meanings) {
    this.#meanings = meanings;
    // A tip that the pointer moves onto stays, so that its text can be selected.
    this.#tip.addEventListener("pointerleave", () => this.hide());
  }

  /** Whether any setting has a help. */
  get some() {
    return Object.keys(this.#meanings).length > 0;
  }

  /** Return a setting's name, which tells its help. */
  name(name) {
    const meaning = this.#meanings[name];
    if (!meaning) return el("code", {}, breakable(name));
    const id = `help-${name.replaceAll(/[^\w]/g, "-")}`;
    const node = el(
      "button",
      {
        type: "button",
        class: "helped",
        "aria-describedby": id,
        on: {
          pointerenter: () => this.#show(node, meaning),
          pointerleave: (event) => this.#tip.contains(event.relatedTarget) || this.hide(),
          focus: () => this.#show(node, meaning),
          blur: () => this.hide(),
          click: () => this.#show(node, meaning), // a finger does not hover
          keydown: (event) => {
            if (event.key !== "Escape" || this.#tip.hidden) return;
            event.stopPropagation();
            this.hide();
          },
        },
      },
      el("code", {}, breakable(name)),
    );
    return [node, el("span", { id, hidden: true }, meaning)];
  }

  #show(node, meaning) {
    if (this.#shown === node && !this.#tip.hidden) return;
    this.#shown = node;
    this.#tip.textContent = meaning;
    this.#tip.hidden = false;
    // Beside the table it would be cut off by the table's frame.
    document.querySelector("main").append(this.#tip);
    const at = node.getBoundingClientRect();
    const { width, height } = this.#tip.getBoundingClientRect();
    const page = document.documentElement;
    const below = at.bottom + height + EDGE < page.clientHeight;
    const left = Math.max(EDGE, Math.min(at.left, page.clientWidth - width - EDGE));
    const top = below ? at.bottom : at.top - height;
    this.#tip.style.setProperty("left", `${left + scrollX}px`);
    this.#tip.style.setProperty("top", `${top + scrollY}px`);
  }

  /** Show no help. */
  hide() {
    this.#tip.hidden = true;
    this.#tip.remove();
    this.#shown = null;
  }
}
