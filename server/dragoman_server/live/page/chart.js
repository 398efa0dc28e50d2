// Draws lines, or areas on top of each other, over time. A gap in what is known is a gap in the line.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 168;
const EDGE = { top: 10, right: 10, bottom: 22, left: 52 };
const HEADROOM = 1.08;

/** Makes an element of the chart. */
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Round values from 0 up to at least `most`, three to five of them. */
function ticks(most, whole) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.ceil(step));
  const found = [];
  for (let at = 0; found.length < 2 || found[found.length - 1] < most * 0.999; at += 1) found.push(at * step);
  return found;
}

export class Chart {
  /**
   * @param {HTMLElement} home where it is drawn.
   * @param {{write: (value: number) => string, stacked?: boolean, whole?: boolean, most?: number}} style how values are
   *   written; whether series add up; whether there are only whole numbers; a fixed end of the scale.
   * @param {(index: number | null) => void} point told which point of time is pointed at.
   */
  constructor(home, style, point) {
    this.home = home;
    this.style = style;
    this.svg = shape("svg", { role: "img", height: HEIGHT });
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    home.append(this.svg, this.empty);
    this.pointed = null;
    const find = (event) => point(this.nearest(event));
    this.svg.addEventListener("pointermove", find);
    this.svg.addEventListener("pointerdown", find);
    this.svg.addEventListener("pointerleave", () => point(null));
    new ResizeObserver(() => this.data && this.draw(this.data)).observe(home);
  }

  /**
   * @param {{series: {name: string, colour: string, values: (number | null)[]}[], times: number[], from: number,
   *   to: number, step: number, marks: [number, string][], empty: string, told: string}} data of the times at which
   *   something is known, `from` and `to` are the ends of the scale; points further apart than `step` are not joined.
   */
  draw(data) {
    this.data = data;
    const width = Math.max(200, Math.floor(this.home.clientWidth));
    const [left, right] = [EDGE.left, width - EDGE.right];
    const [top, bottom] = [EDGE.top, HEIGHT - EDGE.bottom];
    this.x = (time) => left + ((time - data.from) / (data.to - data.from)) * (right - left);
    const layers = this.layers(data.series);
    const known = layers.flatMap((layer) => layer.upper.filter((value) => value !== null));
    const highest = Math.max(0, ...known);
    const scale = ticks(this.style.most ?? (highest * HEADROOM || 1), this.style.whole);
    const most = scale[scale.length - 1];
    const y = (value) => bottom - (Math.min(value, most) / most) * (bottom - top);

    const parts = [];
    for (const value of scale) {
      parts.push(shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
      const text = known.length || this.style.most ? this.style.write(value) : "";
      parts.push(shape("text", { class: "label", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text));
    }
    for (const [time, text] of data.marks) {
      const x = this.x(time);
      const anchor = x > right - 20 ? "end" : x < left + 20 ? "start" : "middle";
      parts.push(shape("text", { class: "label", x, y: HEIGHT - 5, "text-anchor": anchor }, text));
    }
    // The lowest of a stack comes last: where one that is nothing lies on another, the other is seen.
    if (this.style.stacked) layers.reverse();
    for (const layer of layers) parts.push(...this.layer(layer, data, y, bottom));
    this.cross = shape("line", { class: "cross", y1: top, y2: bottom, x1: 0, x2: 0 });
    parts.push(this.cross);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", data.told);
    this.svg.replaceChildren(...parts);
    this.empty.textContent = known.length ? "" : data.empty;
    this.point(this.pointed);
  }

  /** Shows which point of time is pointed at. */
  point(index) {
    this.pointed = index;
    if (!this.cross) return;
    const time = index === null ? undefined : this.data.times[index];
    this.cross.classList.toggle("shown", time !== undefined);
    if (time !== undefined) for (const end of ["x1", "x2"]) this.cross.setAttribute(end, this.x(time));
  }

  /** The point of time next to the pointer. */
  nearest(event) {
    if (!this.data || !this.data.times.length) return null;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const distance = (index) => Math.abs(this.x(this.data.times[index]) - at);
    return this.data.times.reduce((best, _, index) => (distance(index) < distance(best) ? index : best), 0);
  }

  /** From where to where each series reaches at each time. */
  layers(series) {
    if (!this.style.stacked) return series.map((each) => ({ ...each, lower: null, upper: each.values }));
    let floor = null;
    return series.map((each) => {
      const lower = floor ?? each.values.map(() => 0);
      const upper = each.values.map((value, index) => (value === null ? null : value + (lower[index] ?? 0)));
      floor = upper;
      return { ...each, lower, upper };
    });
  }

  layer(layer, data, y, bottom) {
    const parts = [];
    const coloured = (name, attributes) => {
      const made = shape(name, attributes);
      made.style.setProperty("--colour", `var(--${layer.colour})`);
      made.dataset.series = layer.name;
      parts.push(made);
    };
    for (const run of this.runs(layer.upper, data)) {
      const place = (values, index) => `${this.x(data.times[index]).toFixed(1)} ${y(values[index]).toFixed(1)}`;
      const line = `M${run.map((index) => place(layer.upper, index)).join("L")}`;
      if (layer.lower) {
        const back = [...run].reverse().map((index) => place(layer.lower, index)).join("L");
        coloured("path", { class: "area", d: `${line}L${back}Z` });
      }
      if (run.length > 1) coloured("path", { class: "line", d: line });
      else coloured("circle", { class: "dot", cx: this.x(data.times[run[0]]), cy: y(layer.upper[run[0]]), r: 2 });
    }
    return parts;
  }

  /** Indices of points that belong together. */
  runs(values, data) {
    const runs = [];
    values.forEach((value, index) => {
      if (value === null) return;
      const before = index ? values[index - 1] : null;
      const joined = before !== null && data.times[index] - data.times[index - 1] <= data.step;
      if (joined) runs[runs.length - 1].push(index);
      else runs.push([index]);
    });
    return runs;
  }
}
