// On a page without a kernel: a field for the guess before each folded answer of study.reveal. What the reader writes
// there is shown on the fold, and this browser keeps it. Without this script the fold works too.
"use strict";

(() => {
  const PREFIXES = { B: "kB, MB, GB", s: "µs, ms, s", FLOP: "GFLOP, TFLOP" };
  const PLACES = new Map(); // answer → how many folds have had it: equal ones are told apart

  // What this browser keeps of earlier visits; nothing where it may not keep anything.
  function recall(key) {
    try { return JSON.parse(localStorage.getItem(key)) || {}; } catch { return {}; }
  }

  function keep(key, guess) {
    try { localStorage.setItem(key, JSON.stringify(guess)); } catch { /* it is gone with the page */ }
  }

  function element(tag, attributes, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }

  // The field for the value called `name` ("" where there is only one), with its label.
  function field(fold, name, unit) {
    const label = element("label", { style: "display: block; margin: 4px 0" }, name || "Your guess", " ");
    if (fold.dataset.kind === "choice") {
      const choices = JSON.parse(fold.dataset.options).map(word => element("option", {}, word));
      label.append(element("select", { name }, element("option", { value: "" }, "choose"), ...choices));
    } else {
      const number = fold.dataset.kind !== "word";
      const hint = PREFIXES[unit] ? `a number of ${PREFIXES[unit]} …` : number ? "a number" : "a word";
      label.append(element("input", { name, placeholder: hint, size: 24, autocomplete: "off" }));
      if (number && unit && !PREFIXES[unit]) label.append(" ", unit);
    }
    return label;
  }

  function set(fold) {
    const answer = fold.dataset.answer;
    const place = PLACES.get(answer) || 0;
    PLACES.set(answer, place + 1);
    const key = `minidist guess ${location.pathname} ${answer} ${place}`;
    const several = fold.dataset.kind === "numbers";
    const names = several ? Object.keys(JSON.parse(answer)) : [""];
    const units = JSON.parse(fold.dataset.unit || "null");
    const unitOf = name => (units && typeof units === "object" ? units[name] : units);
    const form = element("form", { class: "minidist-guess" });
    form.append(...names.map(name => field(fold, name, unitOf(name))));
    const fields = [...form.querySelectorAll("input, select")];
    const guess = recall(key);
    for (const each of fields) each.value = guess[each.name] || "";

    function show() {
      const said = [];
      fields.forEach((each, row) => {
        const unit = unitOf(each.name), word = each.value.trim();
        const behind = each.tagName === "INPUT" && unit && !PREFIXES[unit] ? ` ${unit}` : "";
        if (word) said.push(`${each.name} ${word}${behind}`.trim());
        // the table has a row for each name: name, guess, answer
        if (several) fold.querySelectorAll("tbody tr")[row].children[1].textContent = word ? word + behind : "–";
      });
      const head = said.length ? `Your guess: ${said.join(", ")}` : "You have not guessed yet";
      fold.querySelector("summary").textContent = `${head}. Show the answer`;
    }

    form.addEventListener("input", () => {
      keep(key, Object.fromEntries(fields.map(each => [each.name, each.value])));
      show();
    });
    form.addEventListener("submit", event => { // Enter in a field
      event.preventDefault();
      fold.open = true;
    });
    show();
    fold.before(form);
  }

  const start = () => document.querySelectorAll("details.minidist-answer").forEach(set);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
