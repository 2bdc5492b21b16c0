"use strict";
// Charts as inline SVG: lines with bands over a common x, dots with intervals, and fields of coloured cells.

const PLOT = { width: 400, height: 190, left: 44, right: 10, top: 18, bottom: 24 };

function range(values, room = 0.06) {
  let low = Infinity, high = -Infinity;
  for (const one of values) if (typeof one === "number") { low = Math.min(low, one); high = Math.max(high, one); }
  if (low > high) return [0, 1];
  const more = low === high ? Math.abs(low) * 0.1 || 0.5 : (high - low) * room;
  return [low - more, high + more];
}

function ticks(low, high, wanted = 4) {
  const raw = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((one) => one >= raw) ?? raw, out = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) out.push(Math.abs(at) < step * 1e-9 ? 0 : Number(at.toPrecision(10)));
  return out;
}

// Exponential mean without a bias at the start, which begins again at each of `starts`; unknown values are passed over.
function smooth(values, weight, x, starts) {
  let sum = 0, total = 0;
  return values.map((one, n) => {
    if (starts.some((start) => start <= x[n] && n > 0 && start > x[n - 1])) sum = total = 0;
    if (typeof one !== "number") return null;
    sum = weight * sum + (1 - weight) * one;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// One chart. `lines`: {name, colour, x, y, raw, low, high}. `span`: the x that all charts share. `onpick` is given the nearest step of a
// line.
function chart({ title, note, lines, span, axis = "step", stages = [], onpick }) {
  const at = scales(lines, span);
  const cursor = svg("line", { class: "cursor", y1: PLOT.top, y2: PLOT.height - PLOT.bottom, visibility: "hidden" });
  const near = (event) => {
    const x = at.back(event, picture);
    return lines.map((line) => [line, closest([...line.x.keys()], (n) => Math.abs(line.x[n] - x))]);
  };
  const point = (event) => {
    const found = near(event);
    const x = at.x(found[0][0].x[found[0][1]]);
    Object.entries({ x1: x, x2: x, visibility: "visible" }).forEach(([key, value]) => cursor.setAttribute(key, value));
    const words = found.map(([line, n]) => {
      const spread = line.low ? ` (${num(line.low[n])} to ${num(line.high[n])})` : "";
      return `${axis} ${num(line.x[n])}${lines.length > 1 ? `, ${line.name}` : ""}: ${num(line.y[n])}${spread}`;
    });
    tip(event, [...words, onpick ? "click: the groups of this step" : ""].filter(Boolean).join("\n"));
  };
  const leave = () => { tip(null, ""); cursor.setAttribute("visibility", "hidden"); };
  const take = (event) => {
    const [found] = near(event);
    leave();
    onpick?.(found[0].x[found[1]], found[0]);
  };
  const picture = svg("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "img", "aria-label": title,
    class: onpick ? "picks" : null,
    onmousemove: point, onmouseleave: leave, onclick: take }, axes(at, axis, stages), lines.map((line) => strokes(line, at)), cursor);
  const last = (line) => el("b", { class: `c${line.colour}` }, num((line.raw ?? line.y).findLast((one) => typeof one === "number")));
  const keys = lines.map((line) => el("span", {}, swatch(line.colour), line.name, " ", last(line))), alone = lines.length === 1;
  return el("figure", { class: "card chart" }, el("figcaption", {}, title, alone ? last(lines[0]) : null), note ? aside(note) : null,
    picture, alone ? null : el("div", { class: "keys" }, keys));
}

// From values to places of a plot, and from the pointer back to x.
function scales(lines, [from, to]) {
  const { width, height, left, right, top, bottom } = PLOT, [x0, x1] = from === to ? [from - 1, to + 1] : [from, to];
  const [y0, y1] = range(lines.flatMap((line) => [...line.y, ...(line.raw ?? []), ...(line.low ?? []), ...(line.high ?? [])]));
  return { x0, x1, y0, y1, x: (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right),
    y: (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom),
    back: (event, picture) => {
      const box = picture.getBoundingClientRect(), place = ((event.clientX - box.left) / box.width) * width;
      return x0 + ((place - left) / (width - left - right)) * (x1 - x0);
    } };
}

function axes(at, axis, stages) {
  const { width, height, left, right, top, bottom } = PLOT;
  const zones = stages.length < 2 ? [] : stages.map((stage, n) => {
    const a = Math.max(at.x(stage.from), left), b = Math.min(at.x(stage.to), width - right);
    return b <= a ? [] : [svg("rect", { class: n % 2 ? "zone odd" : "zone", x: a, y: top, width: b - a, height: height - top - bottom }),
      b - a > 28 ? svg("text", { class: "zone", x: a + 3, y: 12 }, stage.words) : null];
  });
  const across = ticks(at.y0, at.y1).map((y) => [svg("line", { class: "grid", x1: left, x2: width - right, y1: at.y(y), y2: at.y(y) }),
    svg("text", { x: left - 6, y: at.y(y) + 3.5, "text-anchor": "end" }, num(y))]);
  const below = ticks(at.x0, at.x1, 5).filter(Number.isInteger).map((x, n) => svg("text",
    { x: at.x(x), y: height - 8, "text-anchor": n ? "middle" : "start" }, n ? num(x) : `${axis} ${num(x)}`));
  return [zones, across, below];
}

function strokes(line, at) {
  const colour = `c${line.colour}`, points = line.x.length <= 12
    ? line.x.map((x, n) => [x, line.y[n]]).filter(([, y]) => typeof y === "number") : [];
  const back = line.low ? path([...line.x].reverse(), [...line.low].reverse(), at).replace("M", "L") : "";
  return [line.low ? svg("path", { class: `band ${colour}`, d: `${path(line.x, line.high, at)}${back}Z` }) : null,
    line.raw ? svg("path", { class: `line raw ${colour}`, d: path(line.x, line.raw, at) }) : null,
    svg("path", { class: `line ${colour}`, d: path(line.x, line.y, at) }),
    points.map(([x, y]) => svg("circle", { class: `dot ${colour}`, cx: at.x(x), cy: at.y(y), r: 2.6 }))];
}

// A path through known values; it is broken where one is not known.
function path(x, y, at) {
  let down = false;
  return x.map((one, n) => {
    const known = typeof y[n] === "number", move = down ? "L" : "M";
    down = known;
    return known ? `${move}${at.x(one).toFixed(1)} ${at.y(y[n]).toFixed(1)}` : "";
  }).join("");
}

// Means with their intervals on one axis: [{name, mean, low, high, colour}]; rows without a colour are stages.
function dots(rows) {
  const [low, high] = rows.every((one) => one.mean >= 0 && (one.high ?? one.mean) <= 1) ? [0, 1]
    : range(rows.flatMap((one) => [one.mean, one.low, one.high]));
  const at = (value) => 4 + (192 * (value - low)) / (high - low);
  const colours = rows.map((one, n) => `c${one.colour ?? stageColour(n, rows.length)}`);
  return el("div", { class: "dots" }, rows.map((one, n) => [el("span", {}, one.name),
    svg("svg", { viewBox: "0 0 200 16", preserveAspectRatio: "none", role: "img", "aria-label": `${one.name} ${one.text} ${one.interval}` },
      svg("path", { class: "axis", d: "M4 8H196" }),
      one.interval ? svg("path", { class: `whisker ${colours[n]}`, d: `M${at(one.low)} 8H${at(one.high)}` }) : null,
      typeof one.mean === "number" ? svg("path", { class: `whisker mean ${colours[n]}`, d: `M${at(one.mean)} 3V13` }) : null),
    estimate(one)[0], el("small", {}, one.interval || (one.why ? `(${one.why})` : ""))]));
}

const LEVELS = 8;

// A field of cells: `value(row, column)` from 0 to 1 or null. One path for each of a few shades, so that ten thousand cells are ten
// elements.
function field({ rows, columns, value, say, open, scale = "hot", label, name, tail, high = 14 }) {
  const wide = Math.max(5, Math.min(26, Math.floor(1000 / Math.max(1, columns.length)))), left = name ? 44 : 4;
  const tall = rows.length > 60 ? Math.max(4, high - 6) : high, height = rows.length * tall, right = left + columns.length * wide;
  const shades = Array.from({ length: LEVELS + 1 }, () => ""), each = Math.max(1, Math.ceil(44 / wide)), tails = tail && tall === high;
  rows.forEach((row, r) => columns.forEach((column, c) => {
    const one = value(row, column);
    if (typeof one === "number") shades[Math.round(one * LEVELS)] += `M${left + c * wide} ${r * tall}h${wide - 1}v${tall - 1}h${1 - wide}z`;
  }));
  const leave = () => tip(null, ""), on = (act) => (event) => {
    const box = picture.getBoundingClientRect(), row = rows[Math.floor((event.clientY - box.top) / tall)];
    const column = columns[Math.floor((event.clientX - box.left - left) / wide)];
    act(event, row === undefined || column === undefined ? null : [row, column]);
  };
  const words = (x, anchor, text) => rows.map((row, r) => svg("text", { x, y: r * tall + tall / 2 + 4, "text-anchor": anchor }, text(row)));
  const picture = svg("svg", { width: right + (tails ? 520 : 30), height: height + 18, role: "img", "aria-label": label,
    class: `field ${scale} picks`, onmouseleave: leave, onmousemove: on((event, at) => tip(event, at ? say(...at) : "")),
    onclick: on((event, at) => { leave(); if (at) open(...at); }) },
  shades.map((d, n) => (d ? svg("path", { class: `s${n}`, d }) : null)), name ? words(left - 6, "end", name) : null,
  tails ? words(right + 10, "start", tail) : null,
  columns.map((column, c) => (c % each ? null : svg("text", { x: left + c * wide, y: height + 13 }, num(column)))));
  return el("div", { class: "scroll", tabindex: 0 }, picture);
}
