"use strict";
// The live bytes of one rank, its categories stacked, or the sums of all ranks as lines, under the rows.

const ALL = "all"; // look.rank: every rank's sum
const LINES = 64;

const seriesOf = (rank) => memory.series[rank];
const shownSeries = () => (look.rank === ALL ? Object.values(memory.series).slice(0, LINES) : [seriesOf(look.rank)]);
const on = (k) => !look.off.has(memory.categories[k][0]);
const height = (moment) => moment.live.reduce((sum, bytes, k) => (on(k) ? sum + bytes : sum), 0);

// The moment that holds at `time`, or null before the first.
function momentAt(series, time) {
  const i = firstFrom(series.times, time + 1e-9);
  return i ? series.moments[i - 1] : null;
}

// The moments on show, [pixel, moment] each: of those in one pixel the highest, and after it the last.
function outline(series) {
  const out = [], { moments, times } = series;
  const first = Math.max(0, firstFrom(times, look.from) - 1);
  let high = null; // [pixel, highest moment, last moment] of the pixel at hand
  const leave = (until) => {
    out.push([high[0], high[1]]);
    if (high[2] !== high[1]) out.push([Math.min(high[0] + 1, until), high[2]]);
  };
  for (let i = first; i < moments.length && times[i] <= look.to; i++) {
    const at = Math.max(box.left, Math.floor(x(times[i])));
    if (high && at === high[0]) {
      if (height(moments[i]) >= height(high[1])) high[1] = moments[i];
      high[2] = moments[i];
    } else {
      if (high) leave(at);
      high = [at, moments[i], moments[i]];
    }
  }
  if (high) leave(box.right);
  return out;
}

function frame() {
  const top = box.height - box.memory - 2, bottom = box.height - 6;
  const most = Math.max(1, ...shownSeries().flatMap((s) => (s ? s.moments.map(height) : [])));
  return { top: top + 8, bottom, most, y: (bytes) => bottom - (bytes / most) * (bottom - top - 18) };
}

// The stairs of one category: along its upper edge, and back along the edge below it.
function area(stairs, upper, lower, y) {
  pen.beginPath();
  for (let i = 0; i < stairs.length; i++) {
    const next = i + 1 < stairs.length ? stairs[i + 1][0] : box.right;
    pen.lineTo(stairs[i][0], y(upper[i]));
    pen.lineTo(next, y(upper[i]));
  }
  for (let i = stairs.length - 1; i >= 0; i--) {
    const next = i + 1 < stairs.length ? stairs[i + 1][0] : box.right;
    pen.lineTo(next, y(lower[i]));
    pen.lineTo(stairs[i][0], y(lower[i]));
  }
}

function stack(series, y) {
  const stairs = outline(series);
  let lower = stairs.map(() => 0);
  memory.categories.forEach(([, color], k) => {
    if (!on(k)) return;
    const upper = stairs.map(([, moment], i) => lower[i] + moment.live[k]);
    area(stairs, upper, lower, y);
    Object.assign(pen, { fillStyle: color, globalAlpha: 0.85 });
    pen.fill();
    pen.globalAlpha = 1;
    lower = upper;
  });
}

function sums(series, y) {
  const stairs = outline(series);
  pen.beginPath();
  stairs.forEach(([at, moment], i) => {
    const level = y(height(moment));
    pen.lineTo(at, level);
    pen.lineTo(i + 1 < stairs.length ? stairs[i + 1][0] : box.right, level);
  });
  Object.assign(pen, { strokeStyle: ink.ink, lineWidth: 1, globalAlpha: 0.55 });
  pen.stroke();
  pen.globalAlpha = 1;
}

function scale({ top, bottom, most, y }) {
  const base = [1e12, 1e9, 1e6, 1e3, 1].find((s) => most >= s) || 1, each = step(most / base, bottom - top, 28) * base;
  Object.assign(pen, { font: `11px ${FONT}`, textAlign: "right", textBaseline: "middle", strokeStyle: ink.faint, lineWidth: 1 });
  for (let bytes = 0; bytes <= most; bytes += each) {
    pen.beginPath();
    pen.moveTo(box.left, Math.round(y(bytes)) + 0.5);
    pen.lineTo(box.right, Math.round(y(bytes)) + 0.5);
    pen.stroke();
    pen.fillStyle = ink.muted;
    pen.fillText(bytes ? bytesWords(bytes) : "0", box.left - 10, y(bytes));
  }
}

function paintMemory() {
  const here = frame();
  pen.fillStyle = ink.card;
  pen.fillRect(0, box.bottom + 3, box.width, box.height - box.bottom - 3);
  scale(here);
  pen.save();
  pen.beginPath();
  pen.rect(box.left, here.top - 10, box.right - box.left, here.bottom - here.top + 12);
  pen.clip();
  for (const series of shownSeries()) if (series) (look.rank === ALL ? sums : stack)(series, here.y);
  pen.restore();
  if (look.rank !== ALL && seriesOf(look.rank)) peak(seriesOf(look.rank), here);
}

// A mark at the highest moment, with its bytes as the meter counted them.
function peak(series, { y }) {
  const top = series.moments.reduce((best, m) => (m.total > best.total ? m : best));
  const at = x(top.time);
  if (at < box.left || at > box.right || !memory.categories.every((_, k) => on(k))) return;
  Object.assign(pen, { fillStyle: ink.ink, font: `600 11px ${FONT}`, textBaseline: "middle" });
  pen.beginPath();
  pen.arc(at, y(top.total), 2.5, 0, 7);
  pen.fill();
  const word = `peak ${bytesWords(series.peak)}`, left = at + 8 + pen.measureText(word).width < box.right;
  pen.textAlign = left ? "left" : "right";
  Object.assign(pen, { strokeStyle: ink.card, lineWidth: 3 });
  pen.strokeText(word, at + (left ? 7 : -7), y(top.total) - 7);
  pen.fillText(word, at + (left ? 7 : -7), y(top.total) - 7);
}

// What the tooltip says over the memory.
function memoryWords(time) {
  if (look.rank === ALL) return ["memory of each rank", timeWords(time)];
  const moment = seriesOf(look.rank) && momentAt(seriesOf(look.rank), time);
  if (!moment) return null;
  const held = memory.categories.map(([name], k) => [name, moment.live[k]]).filter(([, bytes]) => bytes);
  return [`rank ${look.rank} holds ${exactBytes(moment.total)}`, `at ${timeWords(time)}`,
    ...held.map(([name, bytes]) => `${name}: ${exactBytes(bytes)}`)];
}
