"use strict";
// Filter expressions: `reward.sft < 0.5 and (reward.rl == 1 or text contains "cup")`. Read to a tree, then asked of each row; nothing is
// evaluated.

const WORDS = new Set(["and", "or", "not", "in", "contains", "true", "false", "none"]);
const KINDS = { number: /-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?![\w.])/, text: /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/,
  name: /[A-Za-z_][\w/-]*(?:\.(?:[\w/-]+|"[^"]*"))*/, sign: /<=|>=|==|!=|[<>=(),]/ };
const SIGN = new RegExp(`\\s*(?:${Object.entries(KINDS).map(([kind, one]) => `(?<${kind}>${one.source})`).join("|")})`, "y");

class FilterError extends Error {
  constructor(message, at) { super(message); this.at = at; }
}

function signs(text) {
  const out = [];
  SIGN.lastIndex = 0;
  while (text.slice(SIGN.lastIndex).trim()) {
    const from = SIGN.lastIndex + text.slice(SIGN.lastIndex).search(/\S/), found = SIGN.exec(text);
    if (!found) throw new FilterError(/["']/.test(text[from]) ? "this quotation mark is not closed"
      : `${text[from]} is not understood here`, from);
    const g = found.groups, kind = Object.keys(g).find((key) => g[key] !== undefined), lower = g.name?.toLowerCase();
    out.push({ kind: WORDS.has(lower) ? lower : g.sign ?? kind, text: g[kind], at: from });
  }
  return [...out, { kind: "end", text: "the end", at: text.length }];
}

// The tree of an expression. `known`: the names that a row has.
function parseFilter(text, known) {
  const all = signs(text);
  let n = 0;
  const at = () => all[n], take = (...kinds) => (kinds.includes(all[n].kind) ? all[n++] : null);
  const wrong = (wanted) => { throw new FilterError(`${wanted} is wanted here, not ${at().kind === "end" ? "the end" : `"${at().text}"`}`,
    at().at); };

  function joined(kind, part) {
    const parts = [part()];
    while (take(kind)) parts.push(part());
    return parts.length > 1 ? { kind, parts } : parts[0];
  }
  function either() { return joined("or", () => joined("and", negated)); }
  function negated() { return take("not") ? { kind: "not", part: negated() } : compared(); }
  function compared() {
    if (take("(")) {
      const inner = either();
      if (!take(")")) wrong("a closing parenthesis");
      return inner;
    }
    let left = value();
    const parts = [];
    for (;;) {
      const sign = take("<", "<=", ">", ">=", "==", "=", "!=", "contains", "in", "not");
      if (!sign) break;
      const not = sign.kind === "not", kind = not ? take("in", "contains")?.kind ?? wrong("'in' or 'contains'") : sign.kind === "=" ? "=="
        : sign.kind;
      const right = kind === "in" ? list() : value();
      const one = { kind, left, right };
      parts.push(not ? { kind: "not", part: one } : one);
      left = right;
    }
    return parts.length > 1 ? { kind: "and", parts } : parts[0] ?? { kind: "holds", left };
  }
  function list() {
    if (!take("(")) wrong("a list in parentheses");
    const items = [value()];
    while (take(",")) items.push(value());
    if (!take(")")) wrong("a comma or a closing parenthesis");
    return { kind: "list", items };
  }
  function value() {
    const one = take("number", "text", "name", "true", "false", "none");
    if (!one) wrong("a name, a number or a quoted text");
    if (one.kind === "number") return { kind: "fixed", value: Number(one.text) };
    if (one.kind === "text") return { kind: "fixed", value: one.text.slice(1, -1).replace(/\\(.)/g, "$1") };
    if (one.kind !== "name") return { kind: "fixed", value: { true: true, false: false, none: null }[one.kind] };
    const name = one.text.replaceAll('"', "");
    if (!known.includes(name)) throw new FilterError(`no column is called ${name}; ${nearest(name, known)}`, one.at);
    return { kind: "name", name };
  }
  const tree = at().kind === "end" ? { kind: "fixed", value: true } : either();
  if (at().kind !== "end") wrong("'and' or 'or'");
  return tree;
}

function nearest(name, known) {
  const close = known.filter((one) => one.startsWith(name.split(".")[0]) || one.endsWith(name.split(".").at(-1)));
  return `${close.length ? "near it" : "known"}: ${(close.length ? close : known).slice(0, 8).join(", ")}`;
}

const ORDER = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };

// What a tree says of a row. What is not known is neither less nor more nor equal to anything but `none`.
function holds(tree, row) {
  const get = (one) => (one.kind === "name" ? row(one.name) : one.value), same = (a, b) => (a ?? null) === (b ?? null);
  const { kind } = tree;
  if (kind === "and") return tree.parts.every((one) => holds(one, row));
  if (kind === "or") return tree.parts.some((one) => holds(one, row));
  if (kind === "not") return !holds(tree.part, row);
  if (kind === "fixed") return Boolean(tree.value);
  if (kind === "holds") return Boolean(get(tree.left));
  const left = get(tree.left);
  if (kind === "in") return tree.right.items.some((one) => same(left, get(one)));
  const right = get(tree.right);
  if (kind === "==") return same(left, right);
  if (kind === "!=") return !same(left, right);
  if (kind === "contains") return left !== null && left !== undefined && String(left).toLowerCase().includes(String(right).toLowerCase());
  return typeof left === typeof right && left !== null && ORDER[kind](left, right);
}

// A function of a row, or what is wrong and where.
function readFilter(text, known) {
  try {
    const tree = parseFilter(text, known);
    return { test: (row) => holds(tree, row) };
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    return { error: error.message, at: error.at };
  }
}
