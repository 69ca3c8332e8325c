// The groups of a step as rows of cells: a cell per episode, whose shape and colour say how it
// ended. Arrow keys go from cell to cell. Texts are put in as text; nothing here reads HTML.

const strips = new WeakMap();

class Strip {
  constructor(parent) {
    this.root = document.createElement("div");
    this.root.className = "es-strip-of-groups";
    this.root.setAttribute("role", "group");
    this.root.addEventListener("click", ({ target }) => {
      const id = target.closest("button")?.dataset.episode;
      if (id) this.tell("episode", id);
    });
    this.root.addEventListener("keydown", (event) => this.move(event));
    parent.append(this.root);
  }

  show({ label, groups, now }) {
    if (groups !== this.groups) this.build(JSON.parse(groups));
    this.groups = groups;
    this.root.setAttribute("aria-label", label);
    const cells = [...this.root.querySelectorAll("button")];
    const shown = cells.find((cell) => cell.dataset.episode === now);
    this.shown?.removeAttribute("aria-current");
    this.shown = shown;
    shown?.setAttribute("aria-current", "true");
    this.reach(shown ?? cells[0]);
    if (shown) this.bringIntoSight(shown);
  }

  // The one cell to which the Tab key leads.
  reach(cell) {
    if (this.reached) this.reached.tabIndex = -1;
    if (cell) cell.tabIndex = 0;
    this.reached = cell;
  }

  // Scrolls the strip and nothing around it: the page stays where its reader is.
  bringIntoSight(cell) {
    const frame = this.root.getBoundingClientRect(), place = cell.getBoundingClientRect();
    if (place.top < frame.top) this.root.scrollTop += place.top - frame.top;
    if (place.bottom > frame.bottom) this.root.scrollTop += place.bottom - frame.bottom;
  }

  build(groups) {
    const rows = groups.map(({ name, about, cells }) => {
      const row = document.createElement("div");
      row.className = "es-episodes";
      row.setAttribute("role", "group");
      row.setAttribute("aria-label", about);
      if (name) {
        const head = document.createElement("span");
        head.textContent = name;
        head.setAttribute("aria-hidden", "true");
        head.title = about;
        row.append(head);
      }
      row.append(...cells.map(([id, look, words]) => {
        const cell = document.createElement("button");
        cell.type = "button";
        cell.tabIndex = -1;
        cell.className = `es-episode ${look}`;
        cell.dataset.episode = id;
        cell.title = words;
        cell.setAttribute("aria-label", words);
        return cell;
      }));
      return row;
    });
    this.root.replaceChildren(...rows);
  }

  // Left and right: the neighbour; up and down: the cell of the same place in the next group.
  move(event) {
    const cell = event.target.closest("button");
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!cell || !step) return;
    const cells = [...this.root.querySelectorAll("button")];
    let next = cells[cells.indexOf(cell) + step];
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const row = cell.parentElement, place = [...row.querySelectorAll("button")].indexOf(cell);
      const other = step < 0 ? row.previousElementSibling : row.nextElementSibling;
      const others = other ? [...other.querySelectorAll("button")] : [];
      next = others[Math.min(place, others.length - 1)];
    }
    if (!next) return;
    event.preventDefault();
    this.reach(next);
    next.focus();
  }
}

export default function show({ data, parentElement, setTriggerValue }) {
  if (!strips.has(parentElement)) strips.set(parentElement, new Strip(parentElement));
  const strip = strips.get(parentElement);
  strip.tell = setTriggerValue;
  strip.show(JSON.parse(data));
}
