// Asks how a run stands: parts of the page that follow it are told when that has changed.
//
// All who follow a run share one question; a hidden tab asks nothing, or rarely where an alarm has to
// be heard there, too. Lines of text (`line`) say what
// the answer has for them. A part that Streamlit draws (`listen`) is told once of each change, and
// then left in peace until it has been drawn: a slow page is never asked to begin anew before it has
// reached its end.

const GIVEN_UP_MS = 15_000;  // an answer or a drawing that was asked for so long ago got lost
const APART_MS = 300;
const HIDDEN_MS = 15_000;  // between two questions of a hidden tab that waits for alarms
const questions = new Map();
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

class Question {
  constructor(address) {
    this.address = address;
    this.followers = new Set();
    this.timer = 0;
    this.isAsking = false;
  }

  get listeners() {
    return [...this.followers].filter((one) => one.always || !document.hidden);
  }

  plan() {
    clearTimeout(this.timer);
    const listeners = this.listeners;
    if (!listeners.length) return;
    const every = 1000 * Math.min(...listeners.map((one) => one.every));
    this.timer = setTimeout(() => this.ask(), document.hidden ? Math.max(HIDDEN_MS, every) : every);
  }

  async ask() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const signal = AbortSignal.timeout(GIVEN_UP_MS);
      const answer = await fetch(this.address, { cache: "no-store", signal });
      if (answer.status === 401) location.reload();  // the time of the password is over
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

document.addEventListener("visibilitychange", () => {
  for (const question of questions.values()) document.hidden ? question.plan() : question.ask();
});

// Calls `hear(pulse)` every so many seconds, until the function that it returns is called; `always`:
// also in a hidden tab, a few times a minute.

export function follow(address, every, hear, always = false) {
  if (!questions.has(address)) questions.set(address, new Question(address));
  const question = questions.get(address), follower = { every, hear, always };
  question.followers.add(follower);
  question.plan();
  return () => {
    question.followers.delete(follower);
    if (question.followers.size) return;
    clearTimeout(question.timer);
    if (questions.get(address) === question) questions.delete(address);
  };
}

// What Streamlit places on the page: it calls again whenever the data or the theme change, and also
// ends a call that a later one has overtaken.

//
// Returns what `begin` made for the place when it was first seen, whose `hear` is called with every
// pulse, and the function that ends the call. Without an address no pulse is asked for.

const places = new WeakMap();

export function place(parentElement, begin, { address, every, always }) {
  const here = places.get(parentElement) ?? { ticket: 0, stop: null, state: begin() };
  places.set(parentElement, here);
  const ticket = ++here.ticket;
  here.stop?.();
  const hear = (pulse) => here.state.hear(pulse);
  here.stop = address ? follow(address, every, hear, always) : null;
  return [here.state, () => {
    setTimeout(() => {
      if (ticket !== here.ticket) return;
      here.stop?.();
      here.stop = null;
      here.state.leave?.();
    });
  }];
}

// Parts are drawn one after the other: Streamlit removes what a part no longer shows at its end, and
// forgets to where the next part begins at once.

let turn = Promise.resolve();

class Listener {
  take({ seen, every }, tell) {
    Object.assign(this, { seen, tell, toldAt: null, restUntil: performance.now() + 1000 * every });
    this.drawn?.();
  }

  hear(pulse) {
    if (Object.entries(this.seen).every(([name, value]) => pulse[name] === value)) {
      this.toldAt = null;
      return;
    }
    const now = performance.now();
    if (now < this.restUntil) return;
    if (this.toldAt !== null && now < this.toldAt + GIVEN_UP_MS) return;
    this.toldAt = now;
    turn = turn.then(() => this.askToBeDrawn());
  }

  async askToBeDrawn() {
    if (this.toldAt === null) return;  // drawn or gone meanwhile
    const isDrawn = new Promise((done) => { this.drawn = done; });
    this.toldAt = performance.now();
    this.tell("news", true);
    await Promise.race([isDrawn, pause(GIVEN_UP_MS)]);
    await pause(APART_MS);
  }

  leave() {
    this.toldAt = null;
    this.drawn?.();
  }
}

export function listen({ data, parentElement, setTriggerValue }) {
  const given = JSON.parse(data);
  const [listener, end] = place(parentElement, () => new Listener(), given);
  listener.take(given, setTriggerValue);
  return end;
}

// A line of text about the run, as a badge or a caption.

const LOOKS = {
  badge: "width:fit-content;padding:0.05rem 0.4rem;border-radius:0.5rem;font-size:0.875rem",
  caption: "font-size:0.875rem;opacity:0.6",
};

class Line {
  constructor(parent, kind) {
    this.words = document.createElement("div");
    this.words.className = `es-line es-line-${kind}`;
    this.words.style.cssText = LOOKS[kind];
    this.kind = kind;
    parent.append(this.words);
  }

  take(name, line) {
    this.name = name;
    this.say(line);
  }

  hear(pulse) {
    if (pulse.lines?.[this.name]) this.say(pulse.lines[this.name]);
  }

  say({ text, colour }) {
    if (this.words.textContent !== text) this.words.textContent = text;
    if (this.kind === "badge") {
      this.words.style.color = `var(--st-${colour}-text-color)`;
      this.words.style.background = `var(--st-${colour}-background-color)`;
    }
  }
}

export function line({ data, parentElement }) {
  const given = JSON.parse(data);
  const [shown, end] = place(parentElement, () => new Line(parentElement, given.kind), given);
  shown.take(given.name, given.line);
  return end;
}

// Streamlit leaves a page by a link in two steps: it writes the link's query to the address of the
// page that is left, and then the new address. The first one would be where Back leads to, without
// the filters that were there.

const PATIENCE_MS = 10_000;
let leftAt = -Infinity;
const push = history.pushState.bind(history);
history.pushState = (state, unused, url) => {
  const isLeaving = performance.now() - leftAt < PATIENCE_MS;
  const isHere = new URL(url ?? "", location.href).pathname === location.pathname;
  if (isLeaving && isHere) return;
  leftAt = -Infinity;
  push(state, unused, url);
};
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-testid='stPageLink-NavLink']");
  const isElsewhere = link && new URL(link.href).pathname !== location.pathname;
  const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
  if (isElsewhere && isPlain) leftAt = performance.now();
}, true);
