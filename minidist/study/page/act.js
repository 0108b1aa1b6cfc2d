"use strict";
// What the reader does: zoom, move, point, click, search, show and hide.

const element = (id) => document.getElementById(id);
const framed = window.parent !== window;
const SHORTEST = 20; // ticks

// ------------------------------------------------------------------ the visible range
function show(from, to) {
  const whole = run.end - run.start, long = Math.min(whole, Math.max(Math.min(SHORTEST, whole), to - from));
  look.from = Math.min(Math.max(run.start, from), run.end - long);
  look.to = look.from + long;
  element("range").textContent = `${timeWords(look.from)} to ${timeWords(look.to)}`;
  repaint();
}

const fit = () => show(run.start, run.end);
const move = (part) => show(look.from + part * (look.to - look.from), look.to + part * (look.to - look.from));

function zoom(factor, around = (look.from + look.to) / 2) {
  const long = Math.min(run.end - run.start, (look.to - look.from) * factor);
  const share = (around - look.from) / (look.to - look.from);
  show(around - share * long, around - share * long + long);
}

// ------------------------------------------------------------------ what is under the pointer
function barAt(px, py) {
  for (const group of groups) {
    const { y, height } = track(group.row, group.track);
    if (hidden(group.kind) || py < y - 1 || py > y + height + 1) continue;
    const slack = timeAt(px + 2) - timeAt(px), time = timeAt(px);
    for (let i = firstFrom(group.start, time + slack) - 1; i >= 0 && group.start[i] >= time - group.longest - slack; i--)
      if (group.end[i] >= time - slack) return { what: group.what, id: group.id[i] };
  }
  return null;
}

function distance([ax, ay, bx, by], px, py) {
  const long = (bx - ax) ** 2 + (by - ay) ** 2;
  const t = long ? Math.min(1, Math.max(0, ((px - ax) * (bx - ax) + (py - ay) * (by - ay)) / long)) : 0;
  return Math.hypot(px - ax - t * (bx - ax), py - ay - t * (by - ay));
}

function arrowAt(px, py) {
  let best = null, near = 4;
  for (const [i, ends] of arrows()) {
    const d = distance(ends, px, py);
    if (d < near) (near = d), (best = { what: "message", id: i });
  }
  return best;
}

function eventAt(px, py) {
  if (px < box.left || px > box.right || py < box.top || py > box.bottom) return null;
  const bar = barAt(px, py);
  return bar && bar.what === "message" ? bar : arrowAt(px, py) || bar;
}

function tell(lines, px, py) {
  const tip = element("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((text, i) => Object.assign(document.createElement(i ? "div" : "b"), { textContent: text })));
  const { width, height } = tip.getBoundingClientRect(), at = canvas.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(at.left + px + 14, innerWidth - width - 6))}px`;
  const below = at.top + py + 16;
  tip.style.top = `${below + height < innerHeight - 4 ? below : Math.max(4, at.top + py - height - 12)}px`;
}

function choose(event) {
  look.chosen = event;
  element("told").textContent = event ? words(event).join(" · ") : hint;
  repaint();
}

const hint = "drag to move · " + (framed ? "click, then " : "") + "wheel to zoom · click a message to see both its ends · n next, p previous";

// ------------------------------------------------------------------ mouse, finger, pen
let drag = null;
const inside = (e) => [e.clientX - canvas.getBoundingClientRect().left, e.clientY - canvas.getBoundingClientRect().top];

canvas.addEventListener("pointerdown", (e) => {
  const [px, py] = inside(e);
  drag = { px, py, from: look.from, to: look.to, moved: false };
  canvas.setPointerCapture(e.pointerId);
});
canvas.addEventListener("pointermove", (e) => {
  const [px, py] = inside(e), inMemory = memory && py > box.bottom + 4 && px >= box.left && px <= box.right;
  if (drag && Math.abs(px - drag.px) > 3) drag.moved = true;
  if (drag && drag.moved) {
    const by = ((drag.px - px) / (box.right - box.left)) * (drag.to - drag.from);
    show(drag.from + by, drag.to + by);
  }
  look.x = px >= box.left && px <= box.right ? px : null;
  look.over = eventAt(px, py);
  tell(look.over ? words(look.over) : inMemory ? memoryWords(timeAt(px)) : null, px, py);
  repaint();
});
canvas.addEventListener("pointerup", (e) => {
  const [px, py] = inside(e);
  if (drag && !drag.moved) {
    const at = places.findIndex(({ top, height }) => py >= top && py <= top + height);
    if (px < box.left && at >= 0 && memory) remember(run.rows[at][0]);
    else choose(eventAt(px, py));
  }
  drag = null;
});
canvas.addEventListener("pointerleave", () => {
  Object.assign(look, { x: null, over: null });
  tell(null);
  repaint();
});
canvas.addEventListener("dblclick", (e) => zoom(0.4, timeAt(inside(e)[0])));
canvas.addEventListener("wheel", (e) => {
  // In a notebook the wheel scrolls the page, until the reader has clicked here or holds Ctrl.
  if (framed && document.activeElement !== canvas && !e.ctrlKey && !e.metaKey) return;
  e.preventDefault();
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) move(e.deltaX / (box.right - box.left));
  else zoom(Math.exp(Math.sign(e.deltaY) * Math.min(Math.abs(e.deltaY), 150) * 0.002), timeAt(inside(e)[0]));
}, { passive: false });

// ------------------------------------------------------------------ keyboard
function neighbour(by) {
  const fits = (i) => found("message", i) && arrow(i);
  let i = look.chosen && look.chosen.what === "message" ? look.chosen.id : by > 0 ? -1 : messages.count;
  do i += by; while (i >= 0 && i < messages.count && !fits(i));
  if (i < 0 || i >= messages.count) return;
  choose({ what: "message", id: i });
  const middle = (messages.start[i] + messages.arrived[i]) / 2, long = look.to - look.from;
  if (messages.start[i] < look.from || messages.arrived[i] > look.to) show(middle - long / 2, middle + long / 2);
}

const KEYS = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: fit, Home: fit,
  ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), n: () => neighbour(1), p: () => neighbour(-1),
  Escape: () => choose(null),
};
canvas.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || !(e.key in KEYS)) return;
  e.preventDefault();
  KEYS[e.key]();
});

// ------------------------------------------------------------------ buttons, legend, search
function toggle(name, color, parent) {
  const button = Object.assign(document.createElement("button"), { textContent: name, title: `Show or hide: ${name}` });
  button.setAttribute("aria-pressed", "true");
  button.style.setProperty("--color", color);
  button.addEventListener("click", () => {
    if (!look.off.delete(name)) look.off.add(name);
    button.setAttribute("aria-pressed", String(!look.off.has(name)));
    repaint();
  });
  parent.append(button);
}

function remember(rank) {
  look.rank = rank;
  element("of").value = rank;
  repaint();
}

function search(query) {
  const wanted = query.trim().toLowerCase().replace(/\s*(->|>|→)\s*/, " → ");
  const all = (table, text) => new Set(Array.from({ length: table.count }, (_, i) => i).filter((i) => text(i).toLowerCase().includes(wanted)));
  look.hits = wanted ? {
    message: all(messages, (i) => `${messages.src[i]} → ${messages.dst[i]} ${run.words[messages.word[i]]}`),
    span: all(spans, (i) => `${run.kinds[spans.kind[i]][0]} ${run.words[spans.name[i]]}`),
  } : null;
  const count = (what) => `${thousands(look.hits[what].size)} ${what}${look.hits[what].size === 1 ? "" : "s"}`;
  element("hits").textContent = look.hits ? `${count("message")}, ${count("span")}` : "";
  repaint();
}

run.kinds.forEach(([name, color]) => toggle(name, name === "wait" ? "var(--wait)" : color, element("legend")));
if (messages.count) toggle("arrows", "var(--ink)", element("legend"));
if (memory) {
  element("memory").hidden = false;
  const ranks = run.ranks.filter((rank) => rank in memory.series);
  look.rank = memory.rank;
  for (const rank of [...ranks, ALL]) element("of").append(new Option(rank === ALL ? "each rank, in all" : `rank ${rank}`, rank));
  element("of").addEventListener("change", (e) => remember(e.target.value === ALL ? ALL : Number(e.target.value)));
  element("of").value = memory.rank;
  memory.categories.forEach(([name, color]) => toggle(name, color, element("memory")));
}
element("in").addEventListener("click", () => zoom(0.6));
element("out").addEventListener("click", () => zoom(1 / 0.6));
element("fit").addEventListener("click", fit);
element("search").addEventListener("input", (e) => search(e.target.value));
element("search").addEventListener("keydown", (e) => e.key === "Enter" && neighbour(e.shiftKey ? -1 : 1));

const settle = () => (place(), repaint());
new ResizeObserver(settle).observe(canvas);
dark.addEventListener("change", settle);
place();
choose(null);
fit();
