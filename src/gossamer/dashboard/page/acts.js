// What may be done to a run from here: stop, checkpoint now, evaluate, resume. Each is asked about first.

import { act } from "./api.js";
import { button, el } from "./dom.js";

const ACTS = {
  stop: {
    text: "Stop",
    ask: "Stop this run?",
    means: "It saves a checkpoint and ends. It can be resumed from there, with the same results as if it had gone on.",
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
    means: "Training goes on from the last checkpoint, on the machine on which this dashboard's server runs.",
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

/** Ask whether something is meant; resolves to a boolean. Escape and a click beside it mean no. */
function confirmed({ ask, means, text }, name) {
  return new Promise((resolve) => {
    const dialog = el(
      "dialog",
      { class: "dialog", "aria-labelledby": "ask" },
      el("h2", { id: "ask" }, ask),
      el("p", { class: "mono" }, name),
      el("p", {}, means),
      el(
        "div",
        { class: "dialog-buttons" },
        button("Cancel", () => dialog.close("")),
        button(text, () => dialog.close("yes"), { class: "button primary", "data-confirm": true, autofocus: true }),
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

/** Return the buttons of the acts that are possible for a run now. */
export function actButtons(run) {
  return (run.acts ?? [])
    .filter((name) => ACTS[name])
    .map((name) => {
      const node = button(
        ACTS[name].text,
        async () => {
          if (!(await confirmed(ACTS[name], run.id))) return;
          node.disabled = true;
          try {
            say(await act(run.id, name));
          } catch (error) {
            say(error.message, true);
          }
          node.disabled = false;
        },
        { "data-act": name, class: name === "stop" ? "button danger" : "button" },
      );
      return node;
    });
}
