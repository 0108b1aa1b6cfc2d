"use strict";
// The rules of minidist/parallel/validate.py (work, waits) and the clock of simulate.py. A test in a browser compares
// what they say with Python's answers, on many right and wrong schedules. Their words and kinds come from there.

const run = JSON.parse(document.getElementById("run").textContent);
const { S, M, v, place } = run.shape;
const { kinds, nouns, same, needed } = run.rules;
const last = S * v - 1; // part of the model

const written = ({ kind, micro, chunk }) => `${kind}${micro}${chunk ? `.${chunk}` : ""}`;
const range = (count) => Array.from({ length: count }, (_, i) => i);

// A stage's list from its words, or an Error.
function parse(text) {
  return text.split(/\s+/).filter(Boolean).map((word) => {
    const match = new RegExp(`^([${kinds}])([0-9]+)(?:\\.([0-9]+))?$`).exec(word);
    if (!match) throw new Error(`'${word}' is no action: ` + run.rules.form);
    return { kind: match[1], micro: Number(match[2]), chunk: Number(match[3] || 0) };
  });
}

// ------------------------------------------------------------------ what flows
const partOf = (stage, chunk) => (place === "V" && chunk ? last - stage : chunk * S + stage);
const stageOf = (part) => (place === "V" && part >= S ? last - part : part % S);
const key = ({ what, micro, part }) => `${what} ${micro} ${part}`;
const GIVES = { F: "a", B: "g", I: "g", W: "w", U: "u" };
const gives = (stage, { kind, micro, chunk }) => ({ what: GIVES[kind], micro, part: partOf(stage, chunk) });

function needs(stage, { kind, micro, chunk }) {
  const part = partOf(stage, chunk), item = (what, from) => ({ what, micro, part: from });
  if (kind === "F") return part ? [item("a", part - 1)] : [];
  if (kind === "B" || kind === "I") return [item("a", part), ...(part < last ? [item("g", part + 1)] : [])];
  return [item("g", part)];
}

function goesTo({ what, part }) {
  const next = part + (what === "a" ? 1 : -1);
  return "ag".includes(what) && next >= 0 && next <= last ? stageOf(next) : null;
}

// ------------------------------------------------------------------ 1  all work is there, once, in an order
function mistake(stage, action, done, actions) {
  const { kind, micro, chunk } = action, other = (letter, of = chunk) => written({ kind: letter, micro, chunk: of });
  if (micro >= M) return `there is no micro-batch ${micro}, only 0 to ${M - 1}`;
  if (chunk >= v) return `there is no chunk ${chunk}, only 0 to ${v - 1}`;
  for (const letter of same[kind]) if (done.has(other(letter))) return `this ${nouns[kind]} was done before, by ${other(letter)}`;
  const wanted = [[...needed[kind]].map((letter) => other(letter))];
  for (const { what, part } of needs(stage, action)) {
    const of = Math.floor(part / S);
    if (stageOf(part) === stage && of !== chunk) wanted.push([...(what === "a" ? "F" : "BI")].map((letter) => other(letter, of)));
  }
  for (const some of wanted) {
    if (!some.length || some.some((need) => done.has(need))) continue;
    const later = some.find((need) => actions.some((each) => written(each) === need));
    return later ? `it needs ${later}, which comes later in the list` : `it needs ${some[0]}, which is missing from the list`;
  }
  return null;
}

function firstWrong(stage, actions) {
  const done = new Set();
  for (const [position, action] of actions.entries()) {
    const why = mistake(stage, action, done, actions);
    if (why) return { stage, position, action: written(action), why };
    done.add(written(action));
  }
  for (const micro of range(M))
    for (const chunk of range(v)) {
      const halves = done.has(written({ kind: "I", micro, chunk }));
      for (const kind of halves ? "FIW" : "FB") {
        const lost = written({ kind, micro, chunk });
        if (!done.has(lost)) return { stage, position: actions.length, action: lost, why: `the list ends without this ${nouns[kind]}` };
      }
    }
  return null;
}

// ------------------------------------------------------------------ 2  nobody waits for each other in a circle
// A stage's sends and receives, the first one last.
function operations(stage, actions) {
  const all = [];
  actions.forEach((action, position) => {
    for (const item of needs(stage, action))
      if (stageOf(item.part) !== stage) all.push({ verb: "receive", item, peer: stageOf(item.part), position });
    const item = gives(stage, action), peer = goesTo(item);
    if (peer !== null && peer !== stage) all.push({ verb: "send", item, peer, position });
  });
  return all.reverse();
}

const front = (queue) => queue[queue.length - 1];

function waits(lists, comm) {
  const queues = lists.map((actions, stage) => operations(stage, actions));
  const sent = new Set(), free = new Set(range(S));
  while (free.size) {
    const stage = Math.min(...free), queue = queues[stage];
    free.delete(stage);
    while (queue.length) {
      const here = front(queue), there = front(queues[here.peer]);
      if (comm === "stream") {
        if (!there || there.peer !== stage || there.verb === here.verb) break;
        if (key(there.item) !== key(here.item)) return mixedUp(lists, here, there);
        queues[here.peer].pop();
      } else if (here.verb === "receive" && !sent.has(key(here.item))) break;
      queue.pop();
      sent.add(key(here.item));
      free.add(here.peer);
    }
  }
  const stuck = new Map(queues.map((queue, stage) => [stage, front(queue)]).filter(([, operation]) => operation));
  return stuck.size ? circle(lists, stuck) : null;
}

function mixedUp(lists, a, b) {
  const [send, receive] = a.verb === "send" ? [a, b] : [b, a];
  const sent = written(lists[receive.peer][send.position]), wanted = written(lists[send.peer][receive.position]);
  const why = `the next message that comes from stage ${receive.peer} is that of its ${sent}: messages arrive in the order they were sent`;
  return { stage: send.peer, position: receive.position, action: wanted, why };
}

function circle(lists, stuck) {
  const path = [];
  let stage = Math.min(...stuck.keys());
  for (; !path.includes(stage); stage = stuck.get(stage).peer) path.push(stage);
  const round = path.slice(path.indexOf(stage)), before = (a, b) => stuck.get(a).position - stuck.get(b).position || a - b;
  const first = [...round].sort(before)[0], turn = round.indexOf(first);
  const said = [...round.slice(turn), ...round.slice(0, turn)].map((each) => {
    const { verb, item, peer, position } = stuck.get(each), what = `the ${nouns[item.what]} of micro-batch ${item.micro}`;
    return verb === "send" ? `stage ${each} must send ${what} to stage ${peer}`
      : `stage ${each} waits at ${written(lists[each][position])} for ${what} from stage ${peer}`;
  });
  const { position } = stuck.get(first);
  return { stage: first, position, action: written(lists[first][position]), why: `deadlock in a circle: ${said.join("; ")}` };
}

// The first wrong action, or null.
function validate(lists, comm) {
  const wrong = lists.map((actions, stage) => firstWrong(stage, actions)).filter(Boolean);
  return wrong.sort((a, b) => a.position - b.position || a.stage - b.stage)[0] || waits(lists, comm);
}

// ------------------------------------------------------------------ the clock, and what is kept
// When each action runs: of lists that hang, those that come to run.
function simulate(lists) {
  const made = new Map(), spans = lists.map(() => []);
  for (let before = -1, done = 0; before < done; ) {
    before = done;
    lists.forEach((actions, stage) => {
      const row = spans[stage];
      for (const action of actions.slice(row.length)) {
        const come = needs(stage, action).map((item) => (made.has(key(item)) ? made.get(key(item)) : Infinity));
        const start = Math.max(row.length ? row[row.length - 1].end : 0, ...come);
        if (start === Infinity) break;
        row.push({ action, start, end: start + run.times[action.kind] });
        made.set(key(gives(stage, action)), row[row.length - 1].end);
        done += 1;
      }
    });
  }
  return spans;
}

function summary(spans) {
  const rows = spans.filter((row) => row.length);
  const time = Math.max(...rows.map((row) => row[row.length - 1].end)) - Math.min(...rows.map((row) => row[0].start));
  const busy = spans.flat().reduce((sum, { start, end }) => sum + end - start, 0);
  return { time, bubble: 1 - busy / spans.length / time };
}

// The most forwards whose backward, all of it, has not been done.
function inFlight(actions) {
  let now = 0, most = 0;
  for (const { kind } of actions) most = Math.max(most, (now += { F: 1, B: -1, I: 0, W: -1, U: 0 }[kind]));
  return most;
}
