// Draws plotly figures in the places that the page has for them.
//
// A chart keeps its element as long as its place is on the page: news become `Plotly.react`, so that
// zoom, legend and what the mouse points at stay. Only what is in sight, or nearly, is drawn, one
// chart a frame, the topmost first; the rest waits until somebody scrolls there or comes back to the
// tab. Texts of figures were escaped where they were made; nothing here reads HTML.

import { follow } from "./pulse.js";

// Events of charts: drawn; zoomed by the mouse, with the range or null.
export const DRAWN = "echoscope-drawn", ZOOMED = "echoscope-zoomed";
const NEAR = "15%";
// Charts that go on by themselves rest so many times what drawing them took, but not for long: a
// fast run must not keep a browser busy. Lines of text say each step at once.
const REST = 25, MAX_REST_MS = 4_000;
const CORNERS = "M0 0h360v110H110v250H0zM640 0h360v360H890V110H640zM0 640h110v250h250v110H0z" +
  "M890 640h110v360H640V890h250z";
const charts = new Map();
const decoder = new TextDecoder();

// The library, fetched once, when the first chart is to be drawn.

const LIBRARY = new URL("plotly.js", import.meta.url);
let library = null;

function plotly() {
  library ??= load().catch((error) => {
    library = null;
    throw error;
  });
  return library;
}

async function load() {
  if (!window.Plotly) {
    const script = document.createElement("script");
    script.src = LIBRARY;
    const loaded = new Promise((done, failed) => {
      script.onload = done;
      script.onerror = () => failed(new Error("plotly could not be fetched; reload the page"));
    });
    document.head.append(script);
    await loaded;
  }
  return window.Plotly;
}

// Colours and fonts of the page, for figures that name none.

function pageTheme(element) {
  const style = getComputedStyle(element);
  const [ground, font] = ["--st-background-color", "--st-font"].map((name) =>
    style.getPropertyValue(name).trim());
  const edge = style.getPropertyValue("--st-border-color").trim();
  const parts = /^#(..)(..)(..)/.exec(ground) || [];
  const [red, green, blue] = parts.slice(1).map((part) => parseInt(part, 16));
  const isDark = 0.3 * red + 0.6 * green + 0.1 * blue < 128;
  return { ground, font, edge, isDark, name: [ground, font, edge].join() };
}

function template({ ground, font, edge, isDark }) {
  const [words, strong, grid] = isDark
    ? ["#e6eaf1", "#fafafa", "#31333f"] : ["#6b6f7e", "#262730", "#e6eaf1"];
  const axis = {
    zerolinecolor: grid, gridcolor: grid, tickcolor: grid, automargin: true,
    tickfont: { color: words, size: 12 },
    title: { font: { color: words, size: 14 }, standoff: 20 },
  };
  const bar = {
    outlinewidth: 0, tickfont: { color: words, size: 12 },
    title: { font: { color: words, size: 14 } },
  };
  return {
    layout: {
      font: { color: words, family: font, size: 12, weight: 400 },
      legend: { font: { size: 12, color: strong }, borderwidth: 0 },
      paper_bgcolor: ground, plot_bgcolor: ground,
      xaxis: { ...axis, showgrid: false, zeroline: false },
      yaxis: { ...axis, title: { ...axis.title, standoff: 24 } },
      coloraxis: { colorbar: bar },
      margin: { pad: 8, l: 0, r: 0 },
      hoverlabel: {
        bgcolor: ground, bordercolor: edge, font: { color: words, family: font, size: 12 },
      },
    },
    data: { scatter: [{ marker: { line: { width: 0 } } }] },
  };
}

// Words in the colour of a curve are darker or lighter than it, so that the page's ground leaves
// them readable.
function write(data, layout, isDark) {
  const words = layout.meta?.words ?? {};
  const fonts = [...layout.annotations ?? [], ...data].map((of) => of.font ?? of.textfont);
  for (const font of fonts)
    if (font?.color in words) font.color = words[font.color][Number(isDark)];
}

// Room for a legend is left as the narrowest chart needs it: a wider one has less above its curves,
// and the title where the legend ends.
function fit(layout, width) {
  const { row, wide } = layout.meta?.legend ?? { wide: [] };
  const at = wide.findIndex((least) => width - layout.margin.l - layout.margin.r >= least);
  if (at < 0) return;
  const spare = row * (wide.length - at);
  layout.margin.t -= spare;
  layout.annotations[0].yshift -= spare;
}

// One chart.

class Chart {
  constructor(parent) {
    this.parent = parent;
    this.root = document.createElement("div");
    this.root.className = "echoscope-figure";
    this.root.style.cssText = "position:relative;width:100%;overflow:hidden";
    this.root.setAttribute("role", "figure");
    this.plot = document.createElement("div");
    this.root.append(this.plot);
    parent.append(this.root);
    this.text = "";
    this.configName = "";
    this.theme = {};
    this.width = 0;
    this.isDirty = false;
    this.isNear = false;
    this.pointer = null;
    this.isHeard = false;
    this.isHeld = false;
    this.root.addEventListener("pointerdown", () => { this.isHeld = true; }, true);
    this.ticket = 0;
    sight.observe(this.root);
    sizes.observe(this.root);
    charts.set(this.root, this);
  }

  // Takes what is to be shown: a line about the chart, and the figure below it. True if something
  // of it is to be seen, or the look of the page is another.
  take(text) {
    const theme = pageTheme(this.parent);
    if (text === this.text && theme.name === this.theme.name) return false;
    const end = text.indexOf("\n"), head = JSON.parse(text.slice(0, end));
    const { height, alt, revision, config, source } = head, spec = text.slice(end);
    const shown = JSON.stringify([height, alt, revision, config, theme.name]) + spec;
    const isNew = shown !== this.shown;
    Object.assign(this, { text, spec, shown, height, source, theme });
    this.revision = revision || "kept";
    this.configure(config);
    this.root.style.height = `${height}px`;
    this.root.style.backgroundColor = theme.ground;  // black otherwise, where it fills the screen
    if (alt) this.root.setAttribute("aria-label", alt);
    this.isDirty ||= isNew;
    return isNew;
  }

  // Asks for the run's pulse, and for itself when the run has moved: near the eye, and at rest.
  attend() {
    const pulse = this.source?.pulse;
    if (pulse === this.pulse) return;
    this.unfollow?.();
    this.pulse = pulse;
    this.unfollow = pulse && follow(pulse, this.source.every, (now) => { this.hear(now); });
  }

  async hear({ position }) {
    if (position === this.source.position || performance.now() < restUntil) return;
    if (!this.isNear || this.isHeld || this.isFetching) return;
    this.isFetching = true;
    try {
      const source = this.source;
      const signal = AbortSignal.timeout(15_000);
      const answer = await fetch(source.address, { cache: "no-store", signal });
      // Anything else is a run that has gone, or a password's time: whoever asks for pulses hears.
      if (answer.status !== 200 || source !== this.source) return;
      if (this.take(await answer.text())) drain();
      this.attend();
    } catch {
      // The server is away; the next pulse asks again.
    } finally {
      this.isFetching = false;
    }
  }

  // The same settings stay the same object: for others plotly builds a chart anew.
  configure(config) {
    const name = JSON.stringify(config);
    if (name === this.configName) return;
    this.configName = name;
    // Plotly adds no buttons to a bar that is given whole.
    const [buttons] = config.modeBarButtons;
    this.config = {
      displaylogo: false, ...config, responsive: false,
      modeBarButtons: [[...buttons, fullscreen(this)]],
    };
  }

  // How far the chart is out of sight, in pixels; how high it is on the page.
  place() {
    const { top, bottom, width } = this.root.getBoundingClientRect();
    return { away: Math.max(0, top - innerHeight, -bottom), top, width };
  }

  async draw() {
    const Plotly = await plotly();
    this.isDirty = false;
    if (!this.parent.isConnected) return;
    // Plotly keeps and changes what it is given: the text is read again for each drawing.
    const { data, layout } = JSON.parse(this.spec), began = performance.now();
    write(data, layout, this.theme.isDark);
    this.width = Math.floor(this.root.clientWidth);
    const size = { width: this.width, height: this.root.clientHeight };
    fit(layout, this.width);
    this.isFitted = Boolean(layout.meta?.legend?.wide.length);
    await Plotly.react(
      this.plot, data,
      { ...layout, ...size, uirevision: this.revision, template: template(this.theme) },
      this.config,
    );
    this.failure?.remove();
    this.listen();
    this.point(Plotly);
    document.dispatchEvent(new CustomEvent(DRAWN));
    const now = performance.now();
    restUntil = Math.min(Math.max(now, restUntil) + REST * (now - began), now + MAX_REST_MS);
  }

  resize(Plotly) {
    if (this.isFitted) return this.draw().catch((error) => this.fail(error));
    this.width = Math.floor(this.root.clientWidth);
    const size = { width: this.width, height: this.root.clientHeight };
    return Plotly.relayout(this.plot, size).catch((error) => this.fail(error));
  }

  // Hovering survives what is drawn anew under the mouse; whoever wants to know hears of zooms.
  listen() {
    if (this.isHeard) return;
    this.isHeard = true;
    this.plot.on("plotly_hover", ({ event }) => { this.pointer = event; });
    this.plot.on("plotly_unhover", () => { this.pointer = null; });
    this.plot.on("plotly_relayout", (change) => {
      const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
      const detail = change["xaxis.autorange"] ? null : [low, high];
      if (detail === null || (low !== undefined && high !== undefined))
        this.root.dispatchEvent(new CustomEvent(ZOOMED, { bubbles: true, detail }));
    });
  }

  point(Plotly) {
    if (this.pointer?.target?.isConnected) Plotly.Fx.hover(this.plot, this.pointer, "xy");
  }

  fail(error) {
    this.failure ??= document.createElement("div");
    this.failure.textContent = `This chart could not be drawn: ${error.message}`;
    this.failure.style.cssText = "position:absolute;inset:0;display:flex;align-items:center;" +
      "justify-content:center;padding:1rem;text-align:center;opacity:0.7;pointer-events:none";
    this.root.append(this.failure);
  }

  close() {
    this.unfollow?.();
    charts.delete(this.root);
    sight.unobserve(this.root);
    sizes.unobserve(this.root);
    if (this.plot._fullLayout) window.Plotly.purge(this.plot);
    this.root.remove();
  }
}

function fullscreen(chart) {
  return {
    name: "fullscreen", title: "Fullscreen",
    icon: { width: 1000, height: 1000, path: CORNERS },
    click: () => {
      if (document.fullscreenElement) document.exitFullscreen();
      else chart.root.requestFullscreen().catch((error) => chart.fail(error));
    },
  };
}

// What is drawn when: whatever is near and has news, the nearest to the eye first.

let isDrawing = false, restUntil = 0;

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

function next() {
  let best = null;
  for (const chart of charts.values()) {
    if (!chart.isDirty || !chart.isNear || chart.isHeld) continue;
    const place = chart.place();
    if (place.width < 1) continue;
    if (!best || place.away < best.away || (place.away === best.away && place.top < best.top))
      best = { chart, ...place };
  }
  return best?.chart;
}

async function drain() {
  if (isDrawing || document.hidden) return;
  isDrawing = true;
  for (let chart = next(); chart && !document.hidden; chart = next()) {
    try {
      await chart.draw();
    } catch (error) {
      chart.isDirty = false;
      chart.fail(error);
    }
    await painted();
  }
  isDrawing = false;
}

const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    if (chart) chart.isNear = entry.isIntersecting;
  }
  drain();
}, { rootMargin: NEAR, scrollMargin: NEAR });

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = charts.get(target), width = Math.floor(target.clientWidth);
    if (document.fullscreenElement === target) target.style.height = "100%";
    else if (chart) target.style.height = `${chart.height}px`;
    if (chart?.width && width > 0 && chart.plot._fullLayout) {
      const { width: drawn, height } = chart.plot._fullLayout;
      if (drawn !== width || height !== target.clientHeight) chart.resize(window.Plotly);
    }
  }
});

document.addEventListener("visibilitychange", drain);

// While the mouse holds a chart, as in a zoom, nothing is drawn under it.

function release() {
  for (const chart of charts.values()) chart.isHeld = false;
  setTimeout(drain);
}

for (const name of ["pointerup", "pointercancel"]) addEventListener(name, release, true);

// Streamlit calls this for each place on the page, and again whenever its data or the theme change.

const places = new WeakMap();

export default function show({ data, parentElement }) {
  let chart = places.get(parentElement);
  if (!chart || !charts.has(chart.root)) places.set(parentElement, (chart = new Chart(parentElement)));
  const ticket = ++chart.ticket;
  const text = decoder.decode(data);
  // What a chart has fetched since is newer than what the page still has.
  const isNew = chart.take(chart.given === text ? chart.text : text);
  chart.given = text;
  chart.attend();
  if (isNew) {
    const { away, width } = chart.place();
    chart.isNear ||= away === 0 && width > 0;
    drain();
  }
  return () => {
    // Streamlit also ends a call that a later one has overtaken: the chart goes with its place only.
    setTimeout(() => { if (ticket === chart.ticket && !parentElement.isConnected) chart.close(); });
  };
}
