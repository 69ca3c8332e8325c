// The tiles at the top of the Live page: a number, its change and its course, each a button that
// scrolls to its chart. The tiles of a live run fetch themselves anew when the run has moved. Texts
// are put in as text; nothing here reads HTML.

import { place } from "./pulse.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100, HEIGHT = 22;

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function spark(values) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  if (values.length < 2) return picture;
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((value, at) => {
    const x = (WIDTH * at) / (values.length - 1);
    return `${x.toFixed(1)},${(HEIGHT - 2 - ((HEIGHT - 4) * (value - low)) / span).toFixed(1)}`;
  });
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", points.join(" "));
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", "currentColor");
  line.setAttribute("stroke-width", "1.5");
  line.setAttribute("vector-effect", "non-scaling-stroke");
  picture.append(line);
  return picture;
}

class Tiles {
  constructor(parent) {
    this.root = element("div", "es-tiles");
    parent.append(this.root);
  }

  show({ tiles, position }) {
    this.position = position;
    const buttons = tiles.map((tile) => {
      const button = element("button", "es-tile");
      button.type = "button";
      button.title = tile.help;
      button.setAttribute("aria-label", `${tile.name}: ${tile.value}, ${tile.change}`);
      button.append(
        element("span", "es-name", tile.name), element("span", "es-value", tile.value),
        element("span", "es-change", tile.change), spark(tile.spark),
      );
      button.addEventListener("click", () => {
        const chart = document.querySelector(`.st-key-chart_${tile.chart}`);
        chart?.scrollIntoView({ behavior: "smooth", block: "center" });
      });
      return button;
    });
    this.root.replaceChildren(...buttons);
  }

  async hear({ position }) {
    if (position === this.position || this.isFetching) return;
    this.isFetching = true;
    try {
      const signal = AbortSignal.timeout(15_000);
      const answer = await fetch(this.source, { cache: "no-store", signal });
      if (answer.ok) this.show(await answer.json());
    } catch {
      // The server is away; the next pulse asks again.
    } finally {
      this.isFetching = false;
    }
  }
}

// Streamlit calls this for the place on the page, and again whenever its data change.

export default function show({ data, parentElement }) {
  const given = JSON.parse(data);
  const [tiles, end] = place(
    parentElement, () => new Tiles(parentElement), { address: given.pulse, every: given.every },
  );
  tiles.source = given.source;
  tiles.show(given);
  return end;
}
