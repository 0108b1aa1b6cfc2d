"use strict";
// What the page was given: columns of whole numbers, one row a message or a span (minidist/study/timelines.py).
// Times are counted in ticks of `run.tick` seconds.

const run = JSON.parse(document.getElementById("run").textContent);

// A column is one number that all rows have, or a list.
function column(packed, count) {
  return Float64Array.from({ length: count }, typeof packed === "number" ? () => packed : (_, i) => packed[i]);
}

function running(steps) {
  let total = 0;
  return steps.map((step) => (total += step));
}

const plus = (a, b) => a.map((value, i) => value + b[i]);

function columns(table) {
  const out = { count: table.count };
  for (const name in table) if (name !== "count") out[name] = column(table[name], table.count);
  return out;
}

const messages = columns(run.messages);
messages.start = running(messages.start);
messages.sent = plus(messages.start, messages.busy);
messages.arrived = plus(messages.sent, messages.flight);

const spans = columns(run.spans);
spans.start = running(spans.start);
spans.end = plus(spans.start, spans.long);

// ------------------------------------------------------------------ rows, and the bars in them
const DO = 0, SEND = 1, RECEIVE = 2; // the three tracks of a row: what its rank does, its wire out, its wire in
const kindOf = Object.fromEntries(run.kinds.map(([name], i) => [name, i]));
const rowOf = new Map(run.rows.map(([rank, lane], i) => [`${rank} ${lane}`, i]));
const row = (rank, lane) => rowOf.get(`${rank} ${lane}`); // undefined when its rank is not shown

const groups = []; // the bars of one row, track and kind, by start: { row, track, kind, what, id, start, end, longest }

function gather() {
  const found = new Map();
  function put(row, track, kind, start, end, what, id) {
    if (row === undefined) return;
    const key = `${row} ${track} ${kind}`;
    if (!found.has(key)) found.set(key, { row, track, kind, what, bars: [] });
    found.get(key).bars.push([start, end, id]);
  }
  for (let i = 0; i < spans.count; i++)
    put(row(spans.rank[i], spans.lane[i]), DO, spans.kind[i], spans.start[i], spans.end[i], "span", i);
  for (let i = 0; i < messages.count; i++) {
    const { src, dst, lane, start, sent, arrived, busy } = messages;
    put(row(src[i], lane[i]), SEND, kindOf.send, start[i], sent[i], "message", i);
    put(row(dst[i], lane[i]), RECEIVE, kindOf.receive, arrived[i] - busy[i], arrived[i], "message", i);
  }
  for (const { bars, ...group } of found.values()) {
    bars.sort((a, b) => a[0] - b[0]);
    const [start, end, id] = [0, 1, 2].map((k) => Float64Array.from(bars, (bar) => bar[k]));
    groups.push({ ...group, start, end, id, longest: end.reduce((most, e, i) => Math.max(most, e - start[i]), 0) });
  }
}

gather();

// The first index at which `sorted` is at least `value`.
function firstFrom(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ------------------------------------------------------------------ memory: one list of moments a rank
// Each moment has the live bytes of every category, and their sum.
function moments({ count, peak, time, live }) {
  const times = running(column(time, count)), categories = live.map((bytes) => running(column(bytes, count)));
  const out = Array.from(times, (time, i) => {
    const now = categories.map((bytes) => bytes[i]);
    return { time, live: now, total: now.reduce((a, b) => a + b, 0) };
  });
  return { moments: out, peak, times };
}

const memory = run.memory && {
  ...run.memory, series: Object.fromEntries(Object.entries(run.memory.series).map(([rank, series]) => [rank, moments(series)])),
};

// ------------------------------------------------------------------ words
const thousands = (n, decimals = 0) =>
  n.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
const DECIMALS = 3;
const timeWords = (ticks) => `${thousands((ticks * run.tick) / run.unit[1], DECIMALS)} ${run.unit[0]}`;

function bytesWords(n) {
  const [scale, name] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([s]) => n >= s) || [1, "B"];
  return `${Number((n / scale).toPrecision(3))} ${name}`;
}

const exactBytes = (n) => (n < 10000 ? `${thousands(n)} B` : `${thousands(n)} B (${bytesWords(n)})`);

// The lines that say all about a message or a span: its heading first.
function words({ what, id }) {
  if (what === "span") {
    const name = run.words[spans.name[id]], kind = run.kinds[spans.kind[id]][0];
    return [name && name !== kind ? `${kind}: ${name}` : kind, `rank ${spans.rank[id]}, ${run.lanes[spans.lane[id]]}`,
      `${timeWords(spans.start[id])} to ${timeWords(spans.end[id])}`, `for ${timeWords(spans.long[id])}`];
  }
  const m = Object.fromEntries(Object.keys(messages).map((key) => [key, messages[key][id]]));
  const lane = m.lane ? `, ${run.lanes[m.lane]}` : "";
  const rate = m.busy > 0 ? `, ${bytesWords(m.bytes / (m.busy * run.tick))}/s` : "";
  return [`rank ${m.src} → rank ${m.dst}${lane}` + (run.words[m.word] ? `: ${run.words[m.word]}` : ""),
    exactBytes(m.bytes), `starts ${timeWords(m.start)}, arrives ${timeWords(m.arrived)}`,
    `wire busy ${timeWords(m.busy)}${rate}, then ${timeWords(m.flight)} on its way`];
}
