"use strict";
// Elements, numbers, the address and the documents. A text of a run is only ever a text node, so nothing in it becomes markup, and here its
// invisible characters are spelled out.

const V = { kept: new Map(), waiting: new Map(), mode: document.documentElement.dataset.mode };

function el(name, attributes = {}, ...children) { return fill(document.createElement(name), attributes, children); }

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

const SHOWN = new Set(["title", "aria-label"]);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([name, one]) => node.style.setProperty(name, one));
    else node.setAttribute(key, value === true ? "" : SHOWN.has(key) ? visible(String(value)) : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
  return node;
}

// Control characters and signs that turn text around are spelled out; line breaks and tabs stay.
function visible(text) {
  return text.replace(/(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
}

// At most four significant digits; a dash for what is not known.
function num(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace(/^-/, "−").replace("e+", "e");
  return String(Number(Number(value.toPrecision(4)).toFixed(3))).replace("-", "−");
}

function signed(value) { return value > 0 ? `+${num(value)}` : num(value); }

function estimate(one) { return [el("b", {}, one.text), one.interval ? note(` ${one.interval}`) : null]; }

function mean(values) {
  const known = values.filter((one) => typeof one === "number");
  return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : null;
}

function count(n, word) { return `${n} ${word}${n === 1 ? "" : "s"}`; }

// ---- documents: answers of the server, scripts of a saved site, or data blocks of a saved page

function vlmrlDocument(address, value) {
  V.kept.set(address, value);
  V.waiting.get(address)?.();
}

async function load(address) {
  if (V.kept.has(address)) return V.kept.get(address);
  if (V.mode === "live") {
    const answer = await fetch(`api/${address}`, { credentials: "same-origin" });
    const value = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : {};
    if (!answer.ok) throw new Error(value.error ?? (answer.status === 403 ? "refused: open the address that vlmrl view printed"
      : `HTTP ${answer.status}`));
    vlmrlDocument(address, value);
    return value;
  }
  const lacks = new Error("This was not saved in this copy: vlmrl view FOLDER shows it.");
  if (V.mode === "site") {
    await new Promise((done, failed) => {
      V.waiting.set(address, done);
      document.head.append(el("script", { src: `data/${address}.js`, onerror: () => failed(lacks) }));
    });
  } else {
    const block = document.querySelector(`script[data-address="${CSS.escape(address)}"]`);
    if (!block) throw lacks;
    vlmrlDocument(address, JSON.parse(block.textContent));
  }
  return V.kept.get(address);
}

// ---- the address behind #: a path, and what is chosen on it

function place() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return { path: (path || "/").split("/").slice(1).map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(given).toString();
  return `#/${path.map((one) => encodeURIComponent(one)).join("/")}${text ? `?${text}` : ""}`;
}

// Change what is chosen here. `quiet`: without another entry in the history, for sliders and typing.
function choose(changes, quiet = false) {
  const { path, query } = place(), to = link(path, { ...query, ...changes });
  if (quiet) { history.replaceState(null, "", to); dispatchEvent(new HashChangeEvent("hashchange")); } else location.hash = to;
}

// ---- small parts that every view has

function tip(event, text) {
  const node = document.getElementById("tip");
  node.hidden = !text;
  if (!text) return;
  node.textContent = visible(text);
  const box = node.getBoundingClientRect(), below = event.clientY + 18;
  node.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6))}px`;
  node.style.top = `${below + box.height > innerHeight ? event.clientY - box.height - 10 : below}px`;
}

function note(text) { return el("span", { class: "note" }, text); }

function bar(...children) { return el("div", { class: "bar" }, children); }

function button(text, act, more = {}) { return el("button", { type: "button", onclick: act, ...more }, text); }

function press(text, on, act, more = {}) { return button(text, act, { "aria-pressed": String(on), ...more }); }

// A link that looks like a button; without an address it is off. `key`: the key that follows it.
function to(href, text, key = null) {
  return href === null ? el("span", { class: "button off" }, text) : el("a", { class: "button", href, "data-key": key }, text);
}

// The entries before and after one in a list; the arrow keys go there.
function stepper(list, here, at, words) {
  const n = list.indexOf(here), href = (k) => (list[k] === undefined ? null : at(list[k]));
  return n < 0 ? null : el("div", { class: "bar stepper" }, to(href(n - 1), "← Before", "ArrowLeft"),
    words ?? note(`${n + 1} of ${list.length}`), to(href(n + 1), "Next →", "ArrowRight"));
}

function pager(page, pages) {
  const turn = (n, text) => button(text, () => choose({ page: n || "" }), { disabled: n < 0 || n >= pages });
  return pages > 1 ? bar(turn(page - 1, "Before"), `page ${page + 1} of ${pages}`, turn(page + 1, "Next")) : null;
}

function pick(label, options, value, act) {
  const entries = options.map(([key, text]) => el("option", { value: key, selected: key === value }, text));
  return el("label", {}, label, el("select", { onchange: (event) => act(event.target.value) }, entries));
}

function empty(what, how) { return el("div", { class: "card empty" }, el("p", {}, what), how ? aside(how) : null); }

function cell(one, tag = "td") {
  const it = one !== null && typeof one === "object" ? one : { text: one };
  return el(tag, { class: [it.dim ? "dim" : "", it.kind ?? ""].join(" ").trim() || null }, it.href ? el("a", { href: it.href }, it.text)
    : it.text ?? "–", it.small ? el("small", {}, it.small) : null);
}

function grid(one) {
  const rows = one.rows.map((row) => el("tr", {}, row.map((item, n) => cell(item, n ? "td" : "th"))));
  return el("section", {}, one.title ? el("h2", {}, one.title) : null, one.note ? aside(one.note) : null, sheetOf(one.header, rows));
}

function sheetOf(header, rows, kind = null) {
  return el("div", { class: "card scroll", tabindex: 0 }, el("table", { class: kind },
    el("thead", {}, el("tr", {}, header.map((name) => cell(name, "th")))), el("tbody", {}, rows)));
}

function said(sentences) {
  const told = sentences.map((text, n) => el("p", { class: n ? "note" : null }, text));
  return told.length ? el("div", { class: "card lead" }, told) : null;
}

function swatch(colour) { return el("i", { class: `key c${colour}` }); }

function aside(...children) { return el("p", { class: "note" }, ...children); }

function facts(pairs) {
  const known = pairs.filter(([, value]) => (value ?? "") !== "");
  return el("dl", {}, known.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function problems(texts) { return [...new Set(texts)].filter(Boolean).map((text) => el("p", { class: "problem" }, text)); }

// Equal answers together, the most frequent first: [[answer, how many, mean reward, places]].
function folded(answers, key = (one) => one.answer ?? one.text) {
  const found = new Map();
  answers.forEach((one, n) => {
    const at = String(key(one) ?? "");
    found.set(at, [...(found.get(at) ?? []), n]);
  });
  const folds = [...found].map(([text, places]) => [text, places.length, mean(places.map((n) => answers[n].reward)), places]);
  return folds.sort((a, b) => b[1] - a[1]);
}

function shade(value, low = 0, high = 1) {
  return typeof value !== "number" ? null : Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
}

function drawable(marks) { return Boolean(marks?.shapes?.length || marks?.spans?.length); }

// The first entry with the least distance.
function closest(list, distance) { return list.reduce((best, one) => (distance(one) < distance(best) ? one : best), list[0]); }
