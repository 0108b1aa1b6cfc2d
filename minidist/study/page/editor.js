"use strict";
// A schedule that the reader changes: by typing the list of a stage, by dragging an action, or with the arrow keys.
// After each change rules.js says whether it still is one.

const element = (id) => document.getElementById(id);
const svg = document.querySelector("svg");
const ROW = 34, LEFT = 58, TOP = 18, LEAST = 24; // CSS pixels; LEAST for a unit of time
const RIGHT = "This is a schedule: all work is there, once, and no stage waits forever.";
let lists, chosen = null, unit = LEAST; // chosen: [stage, position]

function make(tag, attributes = {}, ...children) {
  const drawn = ["g", "rect", "text", "line"].includes(tag);
  const made = drawn ? document.createElementNS(svg.namespaceURI, tag) : document.createElement(tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  made.append(...children);
  return made;
}

const input = (stage) => element(`stage${stage}`);
const text = (actions) => actions.map(written).join(" ");

// ------------------------------------------------------------------ what is shown
// Where each action is drawn: when it runs, or for want of that behind each other, as they are listed.
function placed(spans) {
  return lists.map((actions, stage) => {
    let end = Math.max(0, ...spans.flat().map((span) => span.end));
    return actions.map((action, position) => {
      if (position < spans[stage].length) return { ...spans[stage][position], waits: false };
      const start = end;
      end += Math.max(run.times[action.kind], 1);
      return { action, start, end, waits: true };
    });
  });
}

function box(stage, position, { action, start, end, waits }, wrong) {
  const [color, ink] = run.colors[action.kind], x = LEFT + start * unit, y = TOP + stage * ROW;
  const wide = Math.max((end - start) * unit, 8) - 2;
  const name = `stage ${stage}, ${written(action)}` + (waits ? ", does not run" : `, from ${start} to ${end}`);
  const group = make("g", { tabindex: 0, role: "button", "aria-label": name, "data-at": `${stage} ${position}` });
  group.append(make("rect", { x: x + 1, y: y + 3, width: wide, height: ROW - 6, rx: 3, fill: color }));
  const label = make("text", { x: x + 1 + wide / 2, y: y + ROW / 2 + 4 }, written(action));
  label.style.fill = ink;
  group.append(label);
  const isChosen = chosen && chosen.join() === `${stage},${position}`;
  group.setAttribute("class", [waits && "waits", wrong && "wrong", isChosen && "chosen"].filter(Boolean).join(" "));
  return group;
}

function draw(error) {
  const rows = placed(simulate(lists)), end = Math.max(1, ...rows.flat().map((each) => each.end));
  const room = element("chart").clientWidth - LEFT - 8;
  unit = Math.max(LEAST, room / end);
  svg.setAttribute("width", LEFT + end * unit + 8);
  svg.setAttribute("height", TOP + S * ROW + 4);
  svg.replaceChildren();
  for (let time = 0; time <= end; time += end > 40 ? 10 : 5) {
    const x = LEFT + time * unit;
    svg.append(make("line", { class: "grid", x1: x, x2: x, y1: TOP - 3, y2: TOP + S * ROW }), make("text", { x, y: 11 }, String(time)));
  }
  rows.forEach((row, stage) => {
    svg.append(make("text", { x: 0, y: TOP + stage * ROW + ROW / 2 + 4 }, `stage ${stage}`));
    const wrong = error && error.stage === stage ? error.position : null;
    row.forEach((each, position) => svg.append(box(stage, position, each, position === wrong)));
  });
  if (chosen) svg.querySelector(`[data-at="${chosen.join(" ")}"]`)?.focus();
}

function readouts(error) {
  const { time, bubble } = error ? {} : summary(simulate(lists));
  const kept = lists.map(inFlight).join(", ");
  const values = error ? ["no", "–", "–", "–"] : ["yes", time, `${(100 * bubble).toFixed(1)} %`, kept];
  const items = ["valid", "time", "bubble", "activations at most, by stage"].map((name, k) => [name, values[k]]);
  element("readouts").replaceChildren(...items.map(([name, value]) => make("li", {}, name, make("b", {}, String(value)))));
}

// Draw all of it; typed: the stage whose field the reader is typing in, which stays as it is.
function show(typed = null) {
  const error = validate(lists, element("comm").value);
  element("verdict").textContent = error ? `stage ${error.stage}, position ${error.position}, ${error.action}: ${error.why}` : RIGHT;
  element("verdict").className = error ? "wrong" : "";
  lists.forEach((actions, stage) => {
    if (stage !== typed) input(stage).value = text(actions);
    input(stage).setAttribute("aria-invalid", String(Boolean(error && error.stage === stage)));
  });
  readouts(error);
  draw(error);
  const shape = `S=${S}, M=${M}` + (v > 1 ? `, v=${v}, place="${place}"` : "") + `, comm="${element("comm").value}"`;
  element("python").textContent = `${run.imports}\n\nvalidate(parse_lists("""\n${lists.map(text).join("\n")}\n"""), ${shape})`;
}

// ------------------------------------------------------------------ changes
function begin() {
  lists = run.schedules[element("from").value].map(parse);
  chosen = null;
  show();
}

function type(stage) {
  chosen = null;
  try {
    lists[stage] = parse(input(stage).value);
  } catch (error) {
    element("verdict").textContent = `stage ${stage}: ${error.message}`;
    element("verdict").className = "wrong";
    input(stage).setAttribute("aria-invalid", "true");
    return;
  }
  show(stage);
}

// Move the chosen action to another position of its list.
function move(to) {
  const [stage, from] = chosen;
  if (to < 0 || to >= lists[stage].length || to === from) return;
  lists[stage].splice(to, 0, ...lists[stage].splice(from, 1));
  chosen = [stage, to];
  show();
}

const under = (x, y) => document.elementsFromPoint(x, y).map((each) => each.closest("g")).find((group) => group && group.dataset.at);
const placeOf = (group) => group.dataset.at.split(" ").map(Number);

svg.addEventListener("pointerdown", (event) => {
  const group = under(event.clientX, event.clientY);
  chosen = group ? placeOf(group) : null;
  if (!group) return show();
  event.preventDefault();
  svg.setPointerCapture(event.pointerId);
  show();
});
svg.addEventListener("pointermove", (event) => {
  if (!event.buttons || !chosen) return;
  // the height of its own row, wherever the hand is
  const group = under(event.clientX, svg.getBoundingClientRect().top + TOP + (chosen[0] + 0.5) * ROW);
  if (group) move(placeOf(group)[1]);
});
svg.addEventListener("focusin", (event) => {
  const group = event.target.closest("g");
  if (group && (!chosen || chosen.join(" ") !== group.dataset.at)) {
    svg.querySelector(".chosen")?.classList.remove("chosen");
    chosen = placeOf(group);
    group.classList.add("chosen");
  }
});
svg.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !chosen) return;
  event.preventDefault();
  move(chosen[1] + by);
});

// ------------------------------------------------------------------ fields and choices
Object.keys(run.schedules).forEach((name) => element("from").append(new Option(name, name)));
range(S).forEach((stage) => {
  const field = make("input", { id: `stage${stage}`, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  field.addEventListener("input", () => type(stage));
  element("rows").append(make("label", { for: field.id }, `stage ${stage}`, field));
});
for (const kind of kinds) {
  const sample = make("i");
  sample.style.setProperty("--color", run.colors[kind][0]);
  element("legend").append(make("span", {}, sample, `${kind} ${nouns[kind]}`));
}
element("comm").value = run.comm;
element("comm").addEventListener("change", () => show());
element("from").addEventListener("change", begin);
element("reset").addEventListener("click", begin);
new ResizeObserver(() => draw(validate(lists, element("comm").value))).observe(document.body);
begin();
