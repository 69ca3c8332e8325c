// Scrolls the conversation of the page to its chosen turn, once for each `data`, which names both;
// and does what keys ask for that Streamlit's buttons cannot have.

const PATIENCE_MS = 30000; // the conversation itself may come, or change its size, later
// Key -> what it opens: the class that Streamlit gives to a part of the page by its key.
const OPENED = { "?": "replay_details", l: "replay_notes" };
let newest = "", tell = null, place = null;

export default function ({ data, parentElement, setTriggerValue }) {
  const end = performance.now() + PATIENCE_MS;
  [newest, tell, place] = [data, setTriggerValue, parentElement];
  const look = () => {
    const box = document.querySelector(".es-talk");
    const turn = box && box.querySelector(".es-turn.es-now");
    if (turn && isDue(box, data)) {
      scroll(box, turn);
      box.shown = { data, top: box.scrollTop, room: box.clientHeight, length: box.scrollHeight };
    }
    if (newest === data && performance.now() < end) setTimeout(look, 100);
  };
  look();
}

document.addEventListener("keydown", (event) => {
  const isText = event.target.closest?.("input, textarea, [contenteditable], [role=combobox]");
  const isPlain = !(event.ctrlKey || event.metaKey || event.altKey);
  if (isText || !isPlain || !place?.isConnected) return;
  const opened = OPENED[event.key] && document.querySelector(`.st-key-${OPENED[event.key]} button`);
  if (event.key === "[" || event.key === "]") tell("step", event.key === "[" ? -1 : 1);
  else if (event.key === "/") document.querySelector(".st-key-replay_search input")?.focus();
  else if (opened) opened.click();
  else return;
  event.preventDefault();
});

// Not yet scrolled to; or drawn anew in another size before the reader has scrolled.
function isDue(box, data) {
  const last = box.shown;
  if (!last || last.data !== data) return true;
  const isResized = last.room !== box.clientHeight || last.length !== box.scrollHeight;
  return isResized && Math.abs(box.scrollTop - last.top) < 2;
}

function scroll(box, turn) {
  const reply = turn.querySelector(".es-reply") || turn, room = box.clientHeight - 16;
  const end = reply.offsetTop + reply.offsetHeight;
  // The whole turn if it fits, else its response, else the beginning of its response.
  const top = end - turn.offsetTop <= room ? turn.offsetTop - 8 : end - room;
  box.scrollTop = Math.min(top, reply.offsetTop - 24);
}
