// What may be done to runs from here: stop, checkpoint now, evaluate, resume, archive, delete. Each is asked about first.

import { get, post } from "./api.js";
import { button, el } from "./dom.js";
import { count } from "./format.js";
import { store } from "./store.js";

const ACTS = {
  stop: {
    text: "Stop",
    ask: "Stop this run?",
    means: "It saves a checkpoint and ends. It can be resumed from that checkpoint.",
  },
  checkpoint: {
    text: "Checkpoint now",
    ask: "Save a checkpoint now?",
    means: "The run goes on while it is saved.",
  },
  evaluate: {
    text: "Evaluate",
    ask: "Evaluate the policy of this run?",
    means: "Full episodes are played on seeds that training never sees. It takes processor time from what trains on this machine.",
  },
  resume: {
    text: "Resume",
    ask: "Resume this run?",
    means: (run) => resumption(run),
  },
};

// From where a run would go on, and what it would lose.
async function resumption(run) {
  const where = "on the machine on which this dashboard's server runs";
  const { checkpoints } = await get("api/run", { run: run.id }).catch(() => ({ checkpoints: [] }));
  const steps = checkpoints.find(({ kinds }) => kinds.includes("last"))?.env_steps;
  if (typeof steps !== "number") return `Training goes on from the last checkpoint, ${where}. Rows, episodes and evaluations after it are removed.`;
  const lost = run.env_steps > steps ? ` Rows, episodes and evaluations after it, up to ${count(run.env_steps)} env steps, are removed.` : "";
  return `Training goes on from the last checkpoint, at ${count(steps)} env steps, ${where}.${lost}`;
}

// Acts on any number of runs; `count` is "3 runs", or "this run". What an act means is said of one run and of several.
const ON_RUNS = {
  archive: {
    text: (count) => `Archive ${count}`,
    one: "The table hides it, unless \u201carchived\u201d is chosen among the states. Nothing is removed, and it can be restored.",
    several: "The table hides them, unless \u201carchived\u201d is chosen among the states. Nothing is removed, and they can be restored.",
  },
  restore: {
    text: (count) => `Restore ${count}`,
    one: "The table shows it again.",
    several: "The table shows them again.",
  },
  delete: {
    text: (count) => `Delete ${count}`,
    one: "Its folder is removed from the disk, with checkpoints, rows, logs and videos. This cannot be undone.",
    several: "Their folders are removed from the disk, with checkpoints, rows, logs and videos. This cannot be undone.",
    danger: true,
  },
};

let said = null;

/** Show one line at the edge of the page for some seconds: what the server said. */
export function say(text, wrong = false) {
  said ??= document.querySelector("#said");
  const note = el("p", { class: wrong ? "toast wrong" : "toast" }, text);
  said.append(note);
  setTimeout(() => note.remove(), wrong ? 12_000 : 7_000);
}

/** Ask whether something is meant for some runs; resolves to a boolean. Escape and a click beside it mean no. */
function confirmed({ ask, means, text, danger, but }, names) {
  return new Promise((resolve) => {
    const dialog = el(
      "dialog",
      { class: "dialog", "aria-labelledby": "ask" },
      el("h2", { id: "ask" }, ask),
      el("ul", { class: "dialog-names mono", tabindex: names.length > 1 ? 0 : null, "aria-label": "Runs" }, names.map((name) => el("li", {}, name))),
      el("p", {}, means),
      but && el("p", { class: "problem" }, but),
      el(
        "div",
        { class: "dialog-buttons" },
        // What cannot be undone is not what Enter does.
        button("Cancel", () => dialog.close(""), { autofocus: danger }),
        button(text, () => dialog.close("yes"), { class: danger ? "button deletes" : "button primary", "data-confirm": true, autofocus: !danger }),
      ),
    );
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close("");
    });
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Have something done, and show what the server says of it; resolves to whether it was done.
async function done(params) {
  try {
    say((await post("api/act", params)).said);
    return true;
  } catch (error) {
    say(error.message, true);
    return false;
  }
}

/** Return the buttons of the acts that are possible for a run now. */
export function actButtons(run) {
  return (run.acts ?? [])
    .filter((name) => ACTS[name])
    .map((name) => {
      const node = button(
        ACTS[name].text,
        async () => {
          const { means } = ACTS[name];
          const now = store.runs.get(run.id) ?? run;
          if (!(await confirmed({ ...ACTS[name], means: typeof means === "function" ? await means(now) : means }, [run.id]))) return;
          node.disabled = true;
          await done({ run: run.id, act: name });
          node.disabled = false;
        },
        { "data-act": name, class: name === "stop" ? "button danger" : "button" },
      );
      return node;
    });
}

// A run's id, and the name that somebody gave it.
function called(run) {
  return run.folder_name && run.name !== run.folder_name ? `${run.name} (${run.id})` : run.id;
}

/** Ask about runs whether to archive, restore or delete them, and do so; resolves to whether it was done. */
export async function actOnRuns(name, ids) {
  const runs = ids.map((id) => store.runs.get(id)).filter(Boolean);
  // A run that trains stays, and stays in the table.
  const able = name === "restore" ? runs : runs.filter((run) => run.state !== "running");
  const left = runs.length - able.length;
  if (!able.length) {
    if (left) say(left === 1 ? "This run is running; stop it first." : `These ${left} runs are running; stop them first.`, true);
    return false;
  }
  const { text, one, several, danger } = ON_RUNS[name];
  const label = text(able.length === 1 ? "this run" : `${able.length} runs`);
  const means = able.length === 1 ? one : several;
  const but = left > 0 && `${left} of the ${runs.length} runs ${left === 1 ? "is" : "are"} running and ${left === 1 ? "stays" : "stay"} as ${left === 1 ? "it is" : "they are"}.`;
  if (!(await confirmed({ ask: `${label}?`, means, text: label, danger, but }, able.map(called)))) return false;
  if (!(await done({ act: name, runs: able.map((run) => run.id) }))) return false;
  store.select(able.map((run) => run.id), false);
  return true;
}
