// What people say about a run: its name, tags and note; how they are shown, and the dialog in which they are typed.

import { post } from "./api.js";
import { button, el } from "./dom.js";
import { store } from "./store.js";

const SUGGESTED = 12;

/** Return the tags of a run as small labels, or nothing; of more than `most` a count stands for the others. */
export function tagsOf(run, most = Infinity) {
  const tags = run.tags ?? [];
  if (!tags.length) return "";
  const shown = tags.length > most ? tags.slice(0, most - 1) : tags;
  const others = tags.slice(shown.length);
  return el(
    "span",
    { class: "tags" },
    shown.map((tag) => el("span", { class: "tag" }, tag)),
    others.length > 0 && el("span", { class: "tag", title: others.join(", ") }, `+${others.length}`),
  );
}

function split(typed) {
  return typed.split(",").map((tag) => tag.trim()).filter(Boolean);
}

// The tags that other runs have, the commonest first.
function commonTags() {
  const counts = new Map();
  for (const run of store.runs.values()) for (const tag of run.tags ?? []) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  return [...counts].sort(([a, n], [b, m]) => m - n || a.localeCompare(b)).map(([tag]) => tag).slice(0, SUGGESTED);
}

function suggestions(field) {
  const tags = commonTags();
  if (!tags.length) return "";
  const add = (tag) => {
    const typed = split(field.value);
    field.value = (typed.includes(tag) ? typed.filter((each) => each !== tag) : [...typed, tag]).join(", ");
  };
  return el("div", { class: "tags", role: "group", "aria-label": "Tags of other runs" }, tags.map((tag) => el("button", { type: "button", class: "tag", on: { click: () => add(tag) } }, tag)));
}

/** Let somebody give a run a name, tags and a note. What was typed is lost by Cancel and Escape alone. */
export function describe(run) {
  const name = el("input", { type: "text", class: "input", placeholder: run.folder_name ?? run.id, value: run.name === run.folder_name ? "" : run.name });
  const tags = el("input", { type: "text", class: "input", placeholder: "baseline, wide network", value: (run.tags ?? []).join(", ") });
  const note = el("textarea", { class: "input", rows: 5, value: run.note ?? "" });
  const inputs = { name, tags, note };
  const shown = new Map(Object.values(inputs).map((input) => [input, input.value]));
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const save = el("button", { type: "submit", class: "button primary" }, "Save");
  const field = (label, input, ...more) => el("div", { class: "dialog-field" }, el("label", {}, el("span", {}, label), input), more);
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "about" }, "Name, tags and note"),
    el("p", { class: "mono quiet" }, run.id),
    field("Name", name),
    field("Tags, with commas between them", tags, suggestions(tags)),
    field("Note", note),
    problem,
    el("div", { class: "dialog-buttons" }, button("Cancel", () => dialog.close()), save),
  );
  const dialog = el("dialog", { class: "dialog", "aria-labelledby": "about" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    // What was not changed here may have been changed elsewhere meanwhile.
    const changed = Object.entries(inputs).filter(([, input]) => input.value !== shown.get(input));
    const said = changed.map(([key, { value }]) => [key, key === "tags" ? split(value) : value]);
    try {
      await post("api/act", { act: "describe", run: run.id }, Object.fromEntries(said));
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    save.disabled = false;
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
