// What is wrong with how the page that is open can be read: a list of sentences. Called by quality.py.
//
// quality(): all that does not depend on the width or the colours
// quality.width(14): at the width that the window has, with letters of at least so many pixels
// quality.contrast(): in the colours that the page has
const quality = (() => {
  const text = (e) => e.textContent.trim().replace(/\s+/g, " ").slice(0, 60);
  const name = (e) => {
    const classes = (e.getAttribute("class") || "").trim().split(/\s+/).filter(Boolean);
    return [e.localName, ...classes.slice(0, 2)].join(".") + ` ${JSON.stringify(text(e))}`;
  };
  // One of each kind, with how many there are: they differ in the words that they quote alone.
  function once(sentences) {
    const kinds = new Map();
    for (const sentence of sentences) {
      const kind = sentence.replace(/ "(\\.|[^"])*"$/, "");
      kinds.set(kind, [...(kinds.get(kind) || []), sentence]);
    }
    return [...kinds.values()].map((all) => (all.length > 1 ? `${all[0]} and ${all.length - 1} more` : all[0]));
  }

  // Elements that have words of their own and are seen.
  function* written() {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = new Set();
    while (walker.nextNode()) {
      const e = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || seen.has(e)) continue;
      seen.add(e);
      if (e.closest("script, style, title, desc, template, noscript, option, annotation, .visually-hidden")) continue;
      if (!e.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
      const box = e.getBoundingClientRect();
      if (box.width > 1 && box.height > 1) yield e;
    }
  }

  function headings() {
    const found = [];
    const all = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((e) => e.checkVisibility());
    const first = all.filter((e) => e.localName === "h1").length;
    if (first !== 1) found.push(`${first} headings of the first level`);
    let last = 0;
    for (const e of all) {
      const level = +e.localName[1];
      if (level > last + 1) found.push(`after a heading of level ${last} comes ${name(e)}`);
      last = level;
    }
    return found;
  }

  function words() {
    const found = [];
    for (const e of document.querySelectorAll("img, svg[role=img], canvas, input:not([type=hidden]), select, button")) {
      if (e.closest("[aria-hidden=true]") || !e.checkVisibility()) continue;
      const said = e.getAttribute("alt") || e.getAttribute("aria-label") || e.getAttribute("title") || e.labels?.length
        || (e.localName === "button" && text(e)) || e.querySelector(":scope > title");
      if (!said) found.push(`no words for ${e.outerHTML.slice(0, 80)}`);
    }
    const titles = document.head.querySelectorAll("title");
    if (titles.length !== 1 || !titles[0].textContent.trim()) found.push(`${titles.length} titles`);
    if (!document.documentElement.lang) found.push("the page does not say its language");
    return found;
  }

  // least: pixels of the smallest letters
  function width(least) {
    const found = [];
    const most = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > most) {
      found.push(`the page is ${document.documentElement.scrollWidth} wide, and the window ${most}`);
      for (const e of document.querySelectorAll("main *")) {
        let box = e;
        while (box && getComputedStyle(box).overflowX === "visible") box = box.parentElement;
        if (box && box !== document.documentElement && box !== document.body) continue;
        if (e.getBoundingClientRect().right > most + 1 && found.length < 4) found.push(`too wide: ${name(e)}`);
      }
    }
    for (const e of written()) {
      if (e.closest("svg")) continue; // drawn letters have a rule of their own: tests/repository/test_figures.py
      if (e.closest("sup, sub, math")) continue; // as small as their place in a line or a formula makes them
      const size = parseFloat(getComputedStyle(e).fontSize);
      if (size < least - 0.01) found.push(`letters of ${size} pixels: ${name(e)}`);
    }
    return once(found);
  }

  // ------------------------------------------------------------------------------------------------------ contrast
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map();
  function rgba(color) {
    if (!known.has(color)) {
      const numbers = /^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/.exec(color);
      if (numbers) known.set(color, [+numbers[1], +numbers[2], +numbers[3], numbers[4] === undefined ? 1 : +numbers[4]]);
      else {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = color;
        pen.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
        known.set(color, [r, g, b, a / 255]);
      }
    }
    return known.get(color);
  }
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat([1]);
  const channel = (c) => (c <= 10.31475 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);

  // What lies behind an element of HTML: the backgrounds of all that it stands in.
  function behind(e) {
    const layers = [];
    for (; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color[3]) layers.push(color);
      if (color[3] === 1) break;
    }
    const sheet = rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark") ? "#121212" : "#fff");
    return layers.reverse().reduce((below, top) => over(top, below), sheet);
  }

  // What a drawing has painted behind the middle of one of its words.
  function painted(word) {
    const svg = word.ownerSVGElement;
    const box = word.getBoundingClientRect();
    let below = behind(svg);
    for (const e of svg.querySelectorAll("rect, path, circle, ellipse, polygon, text")) {
      if (e === word || e.contains(word)) break;
      if (e.localName === "text" || e.closest("defs, marker, clipPath, pattern")) continue;
      const style = getComputedStyle(e);
      if (style.fill === "none" || style.fill.startsWith("url")) continue;
      const frame = e.getBoundingClientRect();
      const x = box.x + box.width / 2, y = box.y + box.height / 2;
      if (x < frame.left || x > frame.right || y < frame.top || y > frame.bottom) continue;
      const point = new DOMPoint(x, y).matrixTransform(e.getScreenCTM().inverse());
      if (!e.isPointInFill(point)) continue;
      const [r, g, b, a] = rgba(style.fill);
      below = over([r, g, b, a * style.fillOpacity * opacity(e)], below);
    }
    return below;
  }

  function opacity(e) {
    let product = 1;
    for (; e; e = e.parentElement) product *= getComputedStyle(e).opacity;
    return product;
  }

  function contrast() {
    const found = [];
    const least = 4.5;
    for (const e of written()) {
      const style = getComputedStyle(e);
      const drawn = e.ownerSVGElement;
      const below = drawn ? painted(e) : behind(e);
      const [r, g, b, a] = rgba(drawn ? style.fill : style.color);
      const light = luminance(over([r, g, b, a * (drawn ? style.fillOpacity : 1) * opacity(e)], below));
      const ground = luminance(below);
      const ratio = (Math.max(light, ground) + 0.05) / (Math.min(light, ground) + 0.05);
      if (ratio < least) {
        found.push(`contrast ${ratio.toFixed(2)}, ${style[drawn ? "fill" : "color"]} on ${below.slice(0, 3).map(Math.round)}: ${name(e)}`);
      }
    }
    return once(found);
  }

  return Object.assign(() => [...headings(), ...words()], { width, contrast });
})();
