// Curves of one run or of two in one plot. X is the step of the run; beyond 400 points each is a mean.

import { el, svg, num, get, place, link, showTip, hideTip } from "./dom.js";

const W = 360, H = 170, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;
const FIRST = ["reward", "reward_std", "groups_with_signal", "loss", "kl", "entropy", "grad_norm", "clip_ratio",
  "completions/mean_length", "completions/think_rate", "completions/parse_rate", "completions/clipped_ratio", "time/step"];
const MOST = 24;

export async function curves(main, runs, alive) {
  const q = place().query;
  const names = [...new Set(runs.flatMap((run) => run.metrics))].sort();
  const text = q.get("q") ?? "";
  const chosen = text ? names.filter((name) => name.toLowerCase().includes(text.toLowerCase())) : first(names);
  const shown = chosen.slice(0, MOST);
  const found = shown.length ? await Promise.all(runs.map((_, r) => get(`/api/runs/${r}/curves`, { name: shown }))) : [];
  if (!alive()) return;
  const search = el("input", { type: "search", placeholder: "name of a curve", value: text, "aria-label": "Name of a curve",
    onchange: (event) => { location.hash = link(["curves"], { q: event.target.value }); } });
  const say = `${shown.length} of ${names.length} curves` + (chosen.length > MOST ? `; ${chosen.length} match, type more of the name` : "");
  const boxes = shown.map((name) => chart(name, found.map((one) => ({ ...one.series[name], stages: one.stages }))));
  main.replaceChildren(el("div", { class: "bar" }, search, el("span", { class: "keyline" }, say)),
    names.length ? el("div", { class: "charts" }, boxes) : el("p", { class: "note" }, "No metrics yet."));
}

function first(names) {
  const rewards = names.filter((name) => (name.startsWith("rewards/") && !name.endsWith("/judged")) || name.startsWith("eval/"));
  return [...FIRST.filter((name) => names.includes(name)), ...rewards.slice(0, 11)];
}

function chart(name, runs) {
  const drawn = runs.filter((run) => run.x?.length);
  const xs = drawn.flatMap((run) => run.x), ys = drawn.flatMap((run) => run.y);
  const [x0, x1] = range(xs), [y0, y1] = padded(...range(ys));
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const py = (y) => H - BOTTOM - ((y - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const parts = [];
  for (const y of ticks(y0, y1)) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: py(y), y2: py(y) }));
    parts.push(svg("text", { x: LEFT - 5, y: py(y) + 3.5, "text-anchor": "end" }, num(y)));
  }
  parts.push(svg("text", { x: LEFT, y: H - 5 }, `step ${num(Math.round(x0))}`));
  parts.push(svg("text", { x: W - RIGHT, y: H - 5, "text-anchor": "end" }, num(Math.round(x1))));
  for (const [stage, from] of drawn[0]?.stages ?? []) {
    if (from > x0 && from < x1) parts.push(svg("line", { class: "stage", x1: px(from), x2: px(from), y1: TOP, y2: H - BOTTOM }, svg("title", {}, stage)));
  }
  runs.forEach((run, r) => {
    if (!run.x?.length) return;
    if (run.x.length === 1) parts.push(svg("circle", { class: `r${r}`, cx: px(run.x[0]), cy: py(run.y[0]), r: 3 }));
    else parts.push(svg("path", { class: `r${r}`, d: run.x.map((x, i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(run.y[i]).toFixed(1)}`).join("") }));
  });
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": name,
    onmousemove: (event) => showTip(event, said(event, picture, runs, x0, x1)), onmouseleave: hideTip }, parts);
  const last = runs.map((run) => num(run.y?.at(-1))).join(" / ");
  return el("div", { class: "card chart" }, el("h3", {}, name, el("span", {}, last)), picture);
}

function said(event, picture, runs, x0, x1) {
  const box = picture.getBoundingClientRect();
  const x = x0 + (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT) * (x1 - x0);
  const lines = runs.filter((run) => run.x?.length).map((run) => {
    const i = run.x.reduce((best, value, n) => (Math.abs(value - x) < Math.abs(run.x[best] - x) ? n : best), 0);
    return `step ${num(Math.round(run.x[i]))}: ${num(run.y[i])}`;
  });
  return lines.join("\n");
}

function range(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [0, 1];
  return low === high ? [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)] : [low, high];
}

function padded(low, high) {
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

function ticks(low, high) {
  const raw = (high - low) / 3, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((one) => one >= raw) ?? raw;
  const out = [];
  for (let y = Math.ceil(low / step) * step; y <= high; y += step) out.push(Math.abs(y) < step * 1e-9 ? 0 : y);
  return out;
}
