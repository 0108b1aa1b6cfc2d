"use strict";
// Sliders over a table that Python has filled in: for each position of the sliders, the numbers and their words
// (minidist/study/explore.py). Here they are looked up and drawn; nothing is computed but where to draw.

const run = JSON.parse(document.getElementById("run").textContent);
const element = (id) => document.getElementById(id);
const { axes, over, series } = run;
const drawn = series.filter((each) => each.values);
const at = axes.map((axis) => axis.start); // where each slider stands
const SVG = document.querySelector("svg").namespaceURI;
const DASHES = ["", "7 3", "2 2", "7 3 2 3"]; // no line is told by its colour alone

// The number of the row of the table at these positions: the last axis is the fastest.
const row = (positions) => positions.reduce((number, position, k) => number * axes[k].words.length + position, 0);
const along = (position) => row(at.map((own, k) => (k === over ? position : own)));

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "circle"].includes(tag);
  const made = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  made.append(...children);
  return made;
}

// ------------------------------------------------------------------ numbers for the scale
// The next 1, 2 or 5 times a power of ten that is at least `value`.
function nice(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((k) => k * ten).find((round) => round >= value * (1 - 1e-9));
}

function measured(value) {
  if (!value) return "0";
  const [scale, name] = run.scales.find(([least]) => Math.abs(value) >= least * (1 - 1e-9)) || run.scales[run.scales.length - 1];
  const number = Number((value / scale).toPrecision(3)), size = Math.abs(number);
  const plain = size >= 1e-4 && size < 1e15;
  return `${plain ? number.toLocaleString("en-US", { maximumFractionDigits: 9 }) : number.toExponential()} ${name}`.trim();
}

const numbers = (each) => each.values.filter((value) => value !== null);
const all = drawn.flatMap(numbers);

// A scale from values to 0 … 1, with the values to mark. A linear one ends at a round number, so that it changes
// rarely while the reader drags; a logarithmic one has room for all that the sliders can show.
function scaleOf(values, log, within = values) {
  if (log) {
    const low = Math.log10(Math.min(...within)), high = Math.max(Math.log10(Math.max(...within)), low + 0.1);
    const every = Math.ceil((high - low) / 6) || 1, marks = [];
    for (let power = Math.ceil(low - 1e-9); power <= high + 1e-9; power += every) marks.push(10 ** power);
    return { marks: marks.length > 1 ? marks : [10 ** low, 10 ** high], place: (value) => (Math.log10(value) - low) / (high - low) };
  }
  const high = nice(Math.max(...values, 0)) || 1, low = Math.min(...values) < 0 ? -nice(-Math.min(...values)) : 0;
  const step = nice((high - low) / 5), marks = [];
  for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-9); k++) marks.push(k * step);
  return { marks, place: (value) => (value - low) / (high - low) };
}

// ------------------------------------------------------------------ lines over one axis
const box = { left: 68, right: 14, top: 20, bottom: 40 };

function places() {
  const axis = axes[over], values = axis.values, log = run.logx;
  const f = log ? Math.log : (value) => value, low = f(Math.min(...values)), high = f(Math.max(...values));
  const { width } = element("chart").getBoundingClientRect();
  return values.map((value) => box.left + (high > low ? (f(value) - low) / (high - low) : 0.5) * (width - box.left - box.right));
}

function lines() {
  const { width, height } = element("chart").getBoundingClientRect(), xs = places(), axis = axes[over];
  const shown = drawn.map((each) => axis.values.map((_, position) => each.values[along(position)]));
  const scale = scaleOf(shown.flat().filter((value) => value !== null), run.logy, all);
  const bottom = height - box.bottom, y = (value) => bottom - scale.place(value) * (bottom - box.top);
  const svg = make("svg", { "aria-hidden": "true" });
  for (const mark of scale.marks) {
    svg.append(make("line", { class: "grid", x1: box.left, x2: width - box.right, y1: y(mark), y2: y(mark) }));
    svg.append(make("text", { x: box.left - 8, y: y(mark) + 4, "text-anchor": "end" }, measured(mark)));
  }
  let free = 0; // marks of the axis are the positions of its slider, as many as there is room for
  xs.forEach((x, position) => {
    const half = axis.words[position].length * 3.3;
    if (x - half < free || x + half > width) return;
    free = x + half + 12;
    svg.append(make("text", { x, y: bottom + 17, "text-anchor": "middle" }, axis.words[position]));
  });
  svg.append(make("text", { x: (box.left + width - box.right) / 2, y: height - 6, "text-anchor": "middle" }, run.xlabel || axis.label));
  svg.append(make("text", { x: 4, y: 10 }, run.ylabel));
  svg.append(make("line", { class: "here", x1: xs[at[over]], x2: xs[at[over]], y1: box.top, y2: bottom }));
  drawn.forEach(({ color }, k) => {
    let path = "", on = false;
    shown[k].forEach((value, position) => {
      if (value !== null) path += `${on ? "L" : "M"}${xs[position].toFixed(1)} ${y(value).toFixed(1)}`;
      on = value !== null;
    });
    svg.append(make("path", { d: path, fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": DASHES[k % 4] }));
    const here = shown[k][at[over]];
    if (here !== null) svg.append(make("circle", { cx: xs[at[over]], cy: y(here), r: 4, fill: color }));
  });
  element("chart").replaceChildren(svg);
}

// ------------------------------------------------------------------ bars, and the parts of a sum
function piece(value, scale, color) {
  const bar = make("i");
  bar.style.width = `${100 * scale.place(value)}%`;
  bar.style.setProperty("--color", color);
  return bar;
}

function targetLine(scale) {
  const line = make("b", { title: run.target[1] });
  line.style.left = `${100 * scale.place(run.target[0])}%`;
  return line;
}

function stacked(parts, scale) {
  const track = make("div", { class: "track tall" }, ...parts.map((each) => piece(each.values[row(at)] || 0, scale, each.color)));
  if (run.target) track.append(targetLine(scale));
  element("chart").replaceChildren(track, ends(scale));
}

const ends = ({ marks }) => make("div", { class: "scale" }, ...[0, marks[marks.length - 1]].map((mark) => make("span", {}, measured(mark))));

// ------------------------------------------------------------------ what is shown at this position
function sample(color, k) {
  const attributes = over === null ? { d: "M0 5H16", "stroke-width": 10 } : { d: "M0 5H24", "stroke-width": 2, "stroke-dasharray": DASHES[k % 4] };
  return make("svg", { width: over === null ? 16 : 24, height: 10, "aria-hidden": "true" }, make("path", { ...attributes, stroke: color }));
}

function show() {
  const here = row(at), why = run.why[here];
  axes.forEach((axis, k) => {
    const input = element(`slider${k}`);
    input.value = at[k];
    input.setAttribute("aria-valuetext", axis.words[at[k]]);
    input.previousSibling.textContent = axis.words[at[k]];
  });
  const values = drawn.map((each) => each.values[here] || 0), target = run.target ? [run.target[0]] : [];
  const total = values.reduce((sum, value) => sum + value, 0);
  const scale = over === null && scaleOf([...(run.stack ? [total] : values), ...target], false);
  const items = series.map((each, k) => {
    const item = make("li", {}, each.name, make("output", { for: axes.map((_, i) => `slider${i}`).join(" ") }, each.words[here] || "–"));
    if (each.values && (over !== null || run.stack)) item.prepend(sample(each.color, k));
    if (each.values && over === null && !run.stack) item.append(make("div", { class: "track" }, piece(each.values[here] || 0, scale, each.color)));
    return item;
  });
  if (run.stack) items.push(make("li", {}, run.ylabel || "sum", make("output", {}, run.sums[here] || "–")));
  if (run.target) items.push(make("li", {}, `┆ ${run.target[1]}`));
  element("readouts").replaceChildren(...items);
  element("readouts").className = over === null && !run.stack ? "bars" : "";
  element("why").hidden = !why;
  element("why").textContent = why || "";
  if (over !== null) lines();
  else if (run.stack) stacked(drawn, scale);
  else element("chart").replaceChildren(ends(scale));
}

// ------------------------------------------------------------------ sliders; the axis of the lines is one too
axes.forEach((axis, k) => {
  const input = make("input", { type: "range", id: `slider${k}`, min: 0, max: axis.words.length - 1, step: 1 });
  input.disabled = axis.words.length === 1;
  input.addEventListener("input", () => {
    at[k] = Number(input.value);
    show();
  });
  element("sliders").append(make("label", {}, axis.label, make("b", { "aria-hidden": "true" }), input));
});

function point(event) {
  if (over === null || (event.type === "pointermove" && !event.buttons)) return;
  const x = event.clientX - element("chart").getBoundingClientRect().left;
  const far = places().map((place) => Math.abs(place - x));
  at[over] = far.indexOf(Math.min(...far));
  show();
}

if (over !== null) element("chart").className = "lines";
for (const kind of ["pointerdown", "pointermove"]) element("chart").addEventListener(kind, point);
new ResizeObserver(show).observe(document.body);
show();
