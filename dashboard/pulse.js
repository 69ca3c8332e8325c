// Asks how a run stands, and has a part of the page drawn again when that has changed.
//
// All listeners of a page share one question; a hidden tab asks nothing. A listener is told once of
// each change, and then waits until its part has been drawn: a slow page is never asked to begin anew
// before it has reached its end.

const GIVEN_UP_MS = 15_000;  // a drawing that was asked for so long ago got lost
const questions = new Map();

class Question {
  constructor(address) {
    this.address = address;
    this.listeners = new Set();
    this.timer = 0;
    this.isAsking = false;
  }

  plan() {
    clearTimeout(this.timer);
    if (this.listeners.size && !document.hidden) {
      const every = Math.min(...[...this.listeners].map((one) => one.every));
      this.timer = setTimeout(() => this.ask(), 1000 * every);
    }
  }

  async ask() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const answer = await fetch(this.address, { cache: "no-store" });
      if (answer.ok) {
        const pulse = await answer.json();
        for (const one of this.listeners) one.hear(pulse);
      }
    } catch {
      // The server is away; Streamlit says so on the page, and comes back by itself.
    } finally {
      this.isAsking = false;
      this.plan();
    }
  }
}

class Listener {
  take({ address, seen, every, patience }, tell) {
    Object.assign(this, { seen, every, patience, tell });
    this.toldAt = this.waited = null;
    if (this.question?.address !== address) {
      this.leave();
      if (!questions.has(address)) questions.set(address, new Question(address));
      this.question = questions.get(address);
      this.question.listeners.add(this);
      this.question.plan();
    }
  }

  hear(pulse) {
    const names = Object.keys(this.seen);
    if (names.every((name) => pulse[name] === this.seen[name])) {
      this.toldAt = this.waited = null;
      return;
    }
    this.waited = (this.waited ?? -1) + 1;
    if (this.waited < this.patience) return;
    const now = performance.now();
    if (this.toldAt !== null && now < this.toldAt + GIVEN_UP_MS) return;
    this.toldAt = now;
    this.tell("news", true);
  }

  leave() {
    if (!this.question) return;
    this.question.listeners.delete(this);
    if (!this.question.listeners.size) {
      clearTimeout(this.question.timer);
      questions.delete(this.question.address);
    }
    this.question = null;
  }
}

document.addEventListener("visibilitychange", () => {
  for (const question of questions.values()) document.hidden ? question.plan() : question.ask();
});

const places = new WeakMap();

export default function listen({ data, parentElement, setTriggerValue }) {
  if (!places.has(parentElement)) places.set(parentElement, new Listener());
  const listener = places.get(parentElement);
  const ticket = listener.ticket = (listener.ticket ?? 0) + 1;
  listener.take(JSON.parse(data), setTriggerValue);
  return () => {
    // Streamlit also ends a call that a later one has overtaken.
    setTimeout(() => { if (ticket === listener.ticket) listener.leave(); });
  };
}
