// How often a view asks for what is costly to answer: seldom, never in a tab that nobody sees, and at once when somebody chooses.

import { get } from "./api.js";

const SHARE = 0.03; // of a core, as the server's own looking about

/** Asks one kind of question again and again. */
export class Asking {
  #leastMs;
  #work;
  #abort = null; // of what is under way
  #timer = 0;
  #wanted = false;
  #restUntil = 0;
  #seen = () => this.#plan();

  /**
   * `work(ask)` asks by `ask(path, params)`, which rejects with an AbortError when it is given up, and draws the answer.
   * Between two of them lie `leastMs` at least, and as long as keeps the answers' time to a small share.
   */
  constructor(leastMs, work) {
    this.#leastMs = leastMs;
    this.#work = work;
    document.addEventListener("visibilitychange", this.#seen);
  }

  /** Ask at once; what is under way is given up. */
  async now() {
    this.#giveUp();
    this.#wanted = false;
    const abort = new AbortController();
    const { signal } = abort;
    this.#abort = abort;
    let tookMs = 0;
    const ask = async (path, params) => {
      const began = performance.now();
      let lost = false; // a server that is not reached does nothing meanwhile
      const answer = await get(path, params, signal)
        .catch((error) => {
          lost = error.status === 0;
          throw error;
        })
        .finally(() => (tookMs += lost ? 0 : performance.now() - began));
      signal.throwIfAborted(); // nobody waits for this answer any more
      return answer;
    };
    try {
      await this.#work(ask);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    if (signal.aborted) return;
    this.#abort = null;
    this.#restUntil = performance.now() + Math.max(this.#leastMs, tookMs / SHARE);
    this.#plan();
  }

  /** Ask when it may be asked again: after a pause, and while somebody looks. */
  soon() {
    this.#wanted = true;
    this.#plan();
  }

  /** Ask no more. */
  stop() {
    document.removeEventListener("visibilitychange", this.#seen);
    this.#giveUp();
  }

  #giveUp() {
    this.#abort?.abort();
    this.#abort = null;
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  #plan() {
    if (!this.#wanted || this.#abort || this.#timer || document.hidden) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      if (!document.hidden) this.now();
    }, Math.max(0, this.#restUntil - performance.now()));
  }
}
