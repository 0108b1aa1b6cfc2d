"use strict";
// Draws the rows, the bars in them, the arrows between them and the axis. What is smaller than a pixel is
// drawn together: bars as one shade of how busy that pixel is, arrows with the same two ends once.

const canvas = document.getElementById("chart"), pen = canvas.getContext("2d");
const FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const SHARES = [0.6, 0.2, 0.2]; // of a row: do, send and receive; what a lane never does takes no room
const LEAST = 0.4; // of a colour: the least that shows
const FEW_ARROWS = 160; // with a full colour; more are paler, down to 0.12
const box = { left: 84, top: 24, gap: 10 }; // where things are, in CSS pixels; place() adds the rest
const look = { from: run.start, to: run.end, off: new Set(), hits: null, chosen: null, over: null, x: null, rank: run.ranks[0] };
const dark = matchMedia("(prefers-color-scheme: dark)");
let ink = {}, places = [], names = [];

const x = (time) => box.left + ((time - look.from) / (look.to - look.from)) * (box.right - box.left);
const timeAt = (px) => look.from + ((px - box.left) / (box.right - box.left)) * (look.to - look.from);
const snap = (px) => Math.round(px * box.sharp) / box.sharp; // to a whole pixel of the screen, or bars get pale edges
const same = (a, b) => a && b && a.what === b.what && a.id === b.id;

// Fit the canvas to its element and give every row its place.
function place() {
  const { width, height } = canvas.getBoundingClientRect(), sharp = (box.sharp = devicePixelRatio || 1);
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  const style = getComputedStyle(document.documentElement);
  for (const name of ["card", "edge", "ink", "muted", "faint", "wait", "mark"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
  Object.assign(box, { width, height, right: width - 14, memory: memory ? Math.min(150, Math.max(70, height * 0.26)) : 0 });
  box.bottom = height - 4 - (box.memory ? box.memory + 14 : 0);
  const weight = ([, lane]) => (lane ? 0.7 : 1), between = ([, lane]) => (lane ? 0.06 : 0.2);
  const unit = (box.bottom - box.top) / run.rows.reduce((sum, r) => sum + weight(r) + between(r), 0.1);
  let top = box.top;
  places = run.rows.map((r) => {
    top += unit * between(r);
    const here = { top, height: unit * weight(r) };
    top += here.height;
    return here;
  });
}

// Where each lane's tracks are in a row of height 1: [top, height] of do, send, receive.
const lanes = run.lanes.map((_, lane) => {
  const used = SHARES.map((share, k) => (groups.some((g) => g.track === k && run.rows[g.row][1] === lane) ? share : 0));
  const all = used.reduce((a, b) => a + b, 0) || 1;
  return used.map((share, k) => [used.slice(0, k).reduce((a, b) => a + b, 0) / all, share / all]);
});

function track(row, which) {
  const { top, height } = places[row], [from, part] = lanes[run.rows[row][1]][which];
  const hair = part * height > 4 ? 1.5 : 0.25; // between a bar and the next track's
  return { y: top + from * height, height: Math.max(0.75, part * height - hair) };
}

const colour = (kind) => (run.kinds[kind][0] === "wait" ? ink.wait : run.kinds[kind][1]);
const inkOn = (kind) => (run.kinds[kind][0] === "wait" ? ink.muted : run.kinds[kind][2]);
const hidden = (kind) => look.off.has(run.kinds[kind][0]);
const found = (what, id) => !look.hits || look.hits[what].has(id);

function fill(px, y, width, height, alpha = 1) {
  pen.globalAlpha = alpha;
  pen.fillRect(px, y, width, height);
  pen.globalAlpha = 1;
}

function bars(group) {
  if (hidden(group.kind)) return;
  const { y, height } = track(group.row, group.track), { start, end, id } = group;
  pen.fillStyle = colour(group.kind);
  let pixel = -1, busy = 0, lit = true;
  const flush = () => pixel >= 0 && fill(pixel, y, 1, height, (lit ? 1 : 0.2) * (LEAST + (1 - LEAST) * Math.min(1, busy)));
  for (let i = firstFrom(start, look.from - group.longest); i < start.length && start[i] <= look.to; i++) {
    const from = Math.max(box.left, x(start[i])), to = Math.min(box.right, x(end[i]));
    if (to < box.left) continue;
    const bright = found(group.what, id[i]);
    if (to - from < 1) {
      if (Math.floor(from) !== pixel) flush(), (pixel = Math.floor(from)), (busy = 0), (lit = bright);
      busy += to - from;
      lit ||= bright;
      continue;
    }
    const a = snap(from), b = snap(to), hair = b - a > 6 ? snap(0.75) : 0; // of space between two bars
    fill(a, y, b - a - hair, height, bright ? 1 : 0.2);
    if (group.track === DO && height > 11 && b - a > 24) names.push([run.words[spans.name[id[i]]], group.kind, a, b, y + height / 2]);
  }
  flush();
}

// A bar's name, where it fits; over the arrows, with a halo, so that it can be read.
function named([word, kind, a, b, middle]) {
  if (!word || pen.measureText(word).width > b - a - 8) return;
  Object.assign(pen, { fillStyle: inkOn(kind), strokeStyle: colour(kind) });
  pen.strokeText(word, (a + b) / 2, middle + 0.5);
  pen.fillText(word, (a + b) / 2, middle + 0.5);
}

// Where the arrow of message i begins and ends; null where one of its ranks is not shown.
function arrow(i) {
  const from = row(messages.src[i], messages.lane[i]), to = row(messages.dst[i], messages.lane[i]);
  if (from === undefined || to === undefined) return null;
  const a = track(from, SEND), b = track(to, RECEIVE);
  return [x(messages.start[i]), a.y + a.height / 2, x(messages.arrived[i]), b.y + b.height / 2];
}

// The messages on show whose arrows differ: [index, arrow] each.
function arrows() {
  const seen = new Set(), out = [];
  if (look.off.has("arrows")) return out;
  for (let i = 0; i < messages.count && messages.start[i] <= look.to; i++) {
    if (messages.arrived[i] < look.from) continue;
    const line = arrow(i);
    if (!line) continue;
    const [a, , b] = line, lit = found("message", i) ? 1 : 0;
    if (a > box.left && b < box.right) {
      const ends = ((((a | 0) * 8192 + (b | 0)) * 256 + messages.src[i]) * 2048 + messages.dst[i]) * 2 + lit;
      if (seen.has(ends)) continue;
      seen.add(ends);
    }
    out.push([i, line]);
  }
  return out;
}

function line([ax, ay, bx, by], head) {
  pen.moveTo(ax, ay);
  pen.lineTo(bx, by);
  if (!head) return;
  const long = Math.hypot(bx - ax, by - ay) || 1, ux = (bx - ax) / long, uy = (by - ay) / long;
  for (const side of [-1, 1]) {
    pen.moveTo(bx, by);
    pen.lineTo(bx - head * (ux + side * 0.45 * uy), by - head * (uy - side * 0.45 * ux));
  }
}

function draw(list, style, width, alpha, head) {
  Object.assign(pen, { strokeStyle: style, lineWidth: width, globalAlpha: alpha });
  for (let i = 0; i < list.length; i += 500) { // a longer path takes more than its share of time
    pen.beginPath();
    for (const [, ends] of list.slice(i, i + 500)) line(ends, head);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function allArrows() {
  const list = arrows(), many = list.length;
  const alpha = Math.max(0.12, Math.min(0.75, FEW_ARROWS / many)), head = alpha > 0.3 ? 6 : 0;
  const lit = list.filter(([i]) => found("message", i));
  if (lit.length < many) draw(list.filter(([i]) => !found("message", i)), ink.muted, 0.75, alpha * 0.25, 0);
  draw(lit, look.hits ? ink.mark : ink.ink, look.hits ? 1.5 : 1, look.hits ? 0.9 : alpha, look.hits ? 6 : head);
}

// The chosen message or span, both ends of a message with the time each wire was busy.
function marked(event, width) {
  Object.assign(pen, { strokeStyle: ink.mark, fillStyle: ink.mark, lineWidth: width });
  for (const group of groups) {
    if (group.what !== event.what) continue;
    const i = group.id.indexOf(event.id);
    if (i < 0) continue;
    const { y, height } = track(group.row, group.track), a = x(group.start[i]);
    pen.strokeRect(a - 1, y - 1.5, Math.max(2, x(group.end[i]) - a) + 2, height + 3);
  }
  const ends = event.what === "message" && arrow(event.id);
  if (!ends) return;
  const wide = x(messages.sent[event.id]) - ends[0], [ax, ay, bx, by] = ends;
  pen.globalAlpha = 0.14; // the ribbon: first byte to first byte, last to last
  pen.beginPath();
  for (const [px, py] of [[ax, ay], [ax + wide, ay], [bx, by], [bx - wide, by]]) pen.lineTo(px, py);
  pen.fill();
  draw([[0, ends]], ink.mark, width + 0.5, 1, 8);
}

// A step of 1, 2 or 5 times a power of ten, so that marks are at least `apart` pixels from each other.
function step(range, pixels, apart) {
  const least = (range * apart) / pixels, ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((k) => k * ten).find((s) => s >= least);
}

function axis() {
  const scale = run.tick / run.unit[1], from = look.from * scale, to = look.to * scale;
  const each = step(to - from, box.right - box.left, 90), digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(each) + 1e-9)));
  Object.assign(pen, { font: `11px ${FONT}`, textAlign: "center", textBaseline: "middle", lineWidth: 1, strokeStyle: ink.faint });
  for (let k = Math.max(0, Math.ceil(from / each - 1e-9)); k * each <= to * (1 + 1e-12); k++) {
    const at = Math.round(x((k * each) / scale)) + 0.5;
    pen.beginPath();
    pen.moveTo(at, box.top - 4);
    pen.lineTo(at, box.height - 4);
    pen.stroke();
    pen.fillStyle = ink.muted;
    if (at < box.right - 8) pen.fillText(thousands(k * each, digits), at, 11);
  }
  pen.textAlign = "left";
  pen.fillText(`time, ${run.unit[0]}`, 8, 11);
}

function labels() {
  pen.fillStyle = ink.card;
  pen.fillRect(0, box.top, box.left - 2, box.bottom - box.top + 2);
  let free = -Infinity;
  run.rows.forEach(([rank, lane], i) => {
    const { top, height } = places[i], middle = top + height / 2;
    if (middle - free < 12 || (lane && height < 9)) return;
    free = middle;
    const on = memory && !lane && rank === look.rank;
    Object.assign(pen, { font: `${on ? "600 " : ""}11px ${FONT}`, fillStyle: lane ? ink.muted : ink.ink, textAlign: "right", textBaseline: "middle" });
    pen.fillText(lane ? run.lanes[lane] : `rank ${rank}`, box.left - 10, middle);
  });
}

function paint() {
  pen.clearRect(0, 0, box.width, box.height);
  axis();
  pen.save();
  pen.beginPath();
  pen.rect(box.left - 1, box.top - 2, box.right - box.left + 2, box.bottom - box.top + 4);
  pen.clip();
  names = [];
  groups.forEach(bars);
  allArrows();
  Object.assign(pen, { font: `11px ${FONT}`, textAlign: "center", textBaseline: "middle", lineWidth: 3, lineJoin: "round" });
  names.forEach(named);
  if (look.chosen) marked(look.chosen, 2);
  if (look.over && !same(look.over, look.chosen)) marked(look.over, 1);
  pen.restore();
  labels();
  if (memory) paintMemory();
  if (look.x !== null) {
    pen.fillStyle = ink.muted;
    fill(Math.round(look.x), box.top, 1, box.height - box.top - 4, 0.6);
  }
}

let waiting = false;
function repaint() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint();
  });
}
