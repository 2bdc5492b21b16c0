// One kept group: the question with its pixels and marks, and every answer with rewards, advantage and tokens.

import { el, num, signed, get, place, link, showTip, hideTip } from "./dom.js";
import { player } from "./media.js";

const COLOURS = { none: "no colour", logp: "log-prob", policy_logp: "log-prob in the update", entropy: "entropy", advantage: "advantage" };

export async function group(main, runs, r, address, alive) {
  const found = await get(`/api/runs/${r}/groups/${encodeURIComponent(address)}`);
  if (!alive()) return;
  const { record, media, marks } = found;
  const colour = place().query.get("colour") ?? "logp";
  const order = record.answers.map((_, i) => i).sort((a, b) => (record.answers[b].reward ?? -1e9) - (record.answers[a].reward ?? -1e9));
  const cards = new Map();
  const players = record.media.map((one) => player(r, one.key, media[one.key], marks, order[0] ?? 0));
  const pick = (i) => {
    for (const one of players) one.pick?.(i);
    for (const [n, node] of cards) node.classList.toggle("chosen", n === i);
  };
  for (const i of order) cards.set(i, answer(record, i, marks.read[i], colour, () => pick(i), r, media));
  const problems = [...new Set([...marks.gold.problems, ...Object.values(record.lost_media ?? {})])];
  const facts = [["step", `${record.stage} ${record.step} (step ${record.global_step} of the run)`], ["question", record.question], ["gold", record.gold],
    ["task", `${record.task}, ${record.answer_type}`], ["id", record.sample],
    ["expected", record.expected === null ? "never asked before" : num(record.expected)], ["surprise", num(record.surprise)],
    ...Object.entries(record.reasons).map(([reason, count]) => [reason, `${count} answers`])];
  const right = el("div", {}, el("dl", {}, facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
    el("p", {}, el("a", { href: link(["same", record.sample]) }, "The same question over steps and stages")),
    players.map((one) => one.lanes ?? null), problems.map((text) => el("p", { class: "problem" }, text)));
  const left = el("div", {}, players.map((one) => one.node ?? one));
  const available = Object.entries(COLOURS).filter(([key]) => key === "none" || key === "advantage" || record.answers.some((one) => one[key]));
  const bar = el("div", { class: "bar" }, el("span", { class: "keyline" }, "Tokens by"), available.map(([key, text]) => el("button", { type: "button", "aria-pressed": String(key === colour),
    onclick: () => { location.hash = link(["group", String(r), address], { colour: key }); } }, text)), legend(colour));
  main.replaceChildren(el("p", { class: "note" }, el("a", { href: "#/groups" }, "All groups"), runs.length > 1 ? ` of ${runs[r].name}` : ""),
    el("div", { class: "card player" }, record.media.length ? left : el("p", { class: "note" }, "No media."), right), bar, el("div", {}, [...cards.values()]));
  pick(order[0] ?? 0);
}

function legend(colour) {
  if (colour === "none") return null;
  const [low, high] = { logp: ["certain", "unlikely"], policy_logp: ["certain", "unlikely"], entropy: ["0 nats", "3 nats"], advantage: ["negative", "positive"] }[colour];
  return el("span", { class: "keyline" }, low, el("span", { class: `ramp ${colour === "advantage" ? "sign" : "heat"}` }), high);
}

function answer(record, i, read, colour, pick, r, media) {
  const one = record.answers[i];
  const total = record.columns.length > 1 ? [el("span", { class: "part" }, "reward ", el("b", {}, num(one.reward)))] : [];
  const parts = record.columns.map((name, k) => el("span", { class: "part" }, `${name} `, el("b", {}, num(one.rewards[k])), record.weights[k] === 1 ? "" : ` x ${num(record.weights[k])}`));
  const tags = [one.provenance === "policy" ? null : one.provenance, one.finish === "length" ? "cut off" : null, one.used ? null : "not trained",
    one.turn ? `attempt ${one.turn.attempt + 1}, turn ${one.turn.turn + 1}, world gave ${num(one.turn.reward)}` : null,
    read.format_ok ? null : `format: ${read.errors.join(", ") || "not as asked"}`].filter(Boolean);
  const own = (one.media ?? []).filter((shown) => !record.media.some((other) => other.key === shown.key)).slice(-1);
  const pictures = own.map((shown) => media[shown.key] ? el("img", { class: "thumb", alt: "Screen of this turn", src: `/api/runs/${r}/media/${encodeURIComponent(shown.key)}/0` }) : null);
  const way = one.advantage > 0 ? "up" : one.advantage < 0 ? "down" : "";
  return el("article", { class: `card answer ${way}` },
    el("header", {}, el("b", {}, `Answer ${i + 1}`), el("span", {}, `advantage ${signed(one.advantage)}`), el("span", {}, `${one.tokens.length} tokens`),
      el("button", { type: "button", onclick: pick }, "Draw"), tags.map((text) => el("span", { class: "tag warn" }, text))),
    el("div", { class: "parts" }, total, parts),
    one.question && one.question !== record.question ? el("p", { class: "note" }, one.question) : null,
    one.guidance ? el("p", { class: "note" }, `Asked with a hint of tier ${one.guidance.tier}: ${one.guidance.question}`) : null,
    pictures, tokens(one, colour));
}

// Colours by fixed scales, so that two steps can be compared: 5 nats of log-prob, 3 nats of entropy; advantages by the largest here.
function tokens(one, colour) {
  const values = colour === "advantage" ? one.advantages ?? one.tokens.map(() => one.advantage) : one[colour] ?? [];
  const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)), 1e-9);
  const spans = one.tokens.map((text, t) => {
    const span = el("span", { "data-t": t }, text);
    const value = values[t];
    if (value !== undefined && value !== null && colour !== "none") {
      const share = colour === "advantage" ? value / largest : colour === "entropy" ? value / 3 : -value / 5;
      const base = colour === "advantage" ? (share > 0 ? "--pos" : "--neg") : "--hot";
      span.style.background = `rgba(var(${base}), ${(Math.min(1, Math.abs(share)) * (colour === "advantage" ? 0.35 : 0.7)).toFixed(3)})`;
    }
    return span;
  });
  const say = (event) => {
    const t = event.target.dataset?.t;
    if (t === undefined) return hideTip();
    const lines = [["log-prob", one.logp[t]], ["in the update", one.policy_logp?.[t]], ["entropy", one.entropy?.[t]], ["advantage", one.advantages?.[t] ?? one.advantage]];
    showTip(event, [`token ${Number(t) + 1} ${JSON.stringify(one.tokens[t])}`, ...lines.filter(([, value]) => value !== undefined).map(([name, value]) => `${name} ${num(value)}`)].join("\n"));
  };
  return el("pre", { class: "tokens", onmousemove: say, onmouseleave: hideTip }, spans);
}
