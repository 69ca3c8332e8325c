// Keys that Streamlit's buttons cannot have.
//
// This script has no content: it listens on the page, and presses what a mouse would. Keys that are
// typed into a field, and keys with Ctrl, Alt or Cmd, are left alone.

const FIELDS = "input, textarea, select, [contenteditable]";

// Streamlit calls this for the place on the page, with the widgets of the page by key:
// `pressed`: sign -> key of a button; `search`: key of the field that / leads to.

export default function ({ data }) {
  const { pressed, search } = JSON.parse(data);
  const listen = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    const field = event.target instanceof Element && event.target.closest(FIELDS);
    if (event.key === "Escape" && field) {
      event.preventDefault();  // a search field would empty itself
      field.blur();
      return;
    }
    if (field) return;
    if (event.key === "/") {
      const box = document.querySelector(`.st-key-${search} input`);
      if (box) { event.preventDefault(); box.focus(); box.select(); }
      return;
    }
    const key = pressed[event.key];
    const button = key && document.querySelector(`.st-key-${key} button`);
    if (button) { event.preventDefault(); button.click(); }
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}

// Scrolls the conversation of the page to its chosen turn, once for each `data`, which names both.

export function bringIntoSight({ data }) {
  const box = document.querySelector(".es-talk");
  const turn = box && box.querySelector(".es-turn.es-now");
  if (!turn || box.shown === data) return;
  box.shown = data;
  const reply = turn.querySelector(".es-reply"), room = box.clientHeight - 16;
  const end = reply.offsetTop + reply.offsetHeight;
  // The whole turn if it fits, else its response, else the beginning of its response.
  const top = end - turn.offsetTop <= room ? turn.offsetTop - 8 : end - room;
  box.scrollTop = Math.min(top, reply.offsetTop - 24);
}
