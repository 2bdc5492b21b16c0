// Elements from names and texts. Text of a run is only ever set as textContent, so nothing in it becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// At most four significant digits; a dash for what was not judged.
export function num(value) {
  if (value === null || value === undefined) return "-";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2).replace(/\.?0*e/, "e") : String(Number(value.toPrecision(4)));
}

export function signed(value) {
  return value > 0 ? `+${num(value)}` : num(value);
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== "") query.append(key, one);
  }
  const text = query.toString();
  const answer = await fetch(text ? `${path}?${text}` : path, { credentials: "same-origin" });
  const value = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : {};
  if (!answer.ok) throw new Error(value.error ?? (answer.status === 403 ? "refused: open the address that vlmrl view printed" : `HTTP ${answer.status}`));
  return value;
}

const tip = document.getElementById("tip");

export function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

export function hideTip() {
  tip.hidden = true;
}

// The part of the address behind #: a path, and what is chosen on it.
export function place() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return { path: (path || "/curves").split("/").slice(1).map(decodeURIComponent), query: new URLSearchParams(query ?? "") };
}

export function link(path, query = {}) {
  const given = Object.entries(query).flatMap(([key, value]) => (Array.isArray(value) ? value : [value]).map((one) => [key, one]));
  const text = new URLSearchParams(given.filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}
