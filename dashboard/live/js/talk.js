// Scrolls the conversation of the page to its chosen turn, once for each `data`, which names both.

export default function ({ data }) {
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
