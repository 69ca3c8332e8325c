// Scrolls the conversation of the page to its chosen turn, once for each `data`, which names both.

const PATIENCE_MS = 10000; // the conversation itself may come later than this is called
let newest = "";

export default function ({ data }) {
  const end = performance.now() + PATIENCE_MS;
  newest = data;
  const look = () => {
    const box = document.querySelector(".es-talk");
    const turn = box && box.querySelector(".es-turn.es-now");
    if (turn && box.shown !== data) {
      box.shown = data;
      scroll(box, turn);
    }
    if (newest === data && performance.now() < end) setTimeout(look, 100);
  };
  look();
}

function scroll(box, turn) {
  const reply = turn.querySelector(".es-reply") || turn, room = box.clientHeight - 16;
  const end = reply.offsetTop + reply.offsetHeight;
  // The whole turn if it fits, else its response, else the beginning of its response.
  const top = end - turn.offsetTop <= room ? turn.offsetTop - 8 : end - room;
  box.scrollTop = Math.min(top, reply.offsetTop - 24);
}
