"use strict";
// Kept groups of training: prompts by steps, rewards by step, lists, and one group with its tokens in colour.

const COLOURS = { none: "no colour", logp: "log-prob", policy_logp: "log-prob in the update", entropy: "entropy", advantage: "advantage" };
const ENDS = { logp: ["certain", "unlikely"], policy_logp: ["certain", "unlikely"], entropy: ["0 nats", "3 nats"],
  advantage: ["negative", "positive"] };
const SORTS = { "-surprise": "most surprising", "-global": "newest", global: "oldest", "-reward": "best reward", reward: "worst reward",
  "-spread": "most different", "-tokens": "longest" };
const KEPT = ["reward", "best", "spread", "surprise", "expected", "tokens", "cut", "used", "answers", "help", "global", "step"];
const READY = [["with signal", "spread > 0"], ["all alike", "spread == 0"], ["cut off", "cut > 0"], ["with help", "help"],
  ["not all trained", "used < answers"]];
const PAGE = 24, MOST_ROWS = 300;

// The kept groups of one run: numbers into the columns of `kept`, the steps that have some, and what a filter may ask of them.
async function keptOf(id) {
  const table = await questionTable(id), { kept, questions, runs } = table.doc;
  const all = [...kept.q.keys()].filter((n) => runs[kept.run[n]] === id);
  const get = (n, name) => {
    if (KEPT.includes(name)) return kept[name][n];
    return name === "said" ? kept.said[n].map(([text]) => text).join(" ") : table.get(kept.q[n], name);
  };
  const steps = [...new Set(all.map((n) => kept.global[n]))].sort((a, b) => a - b);
  return { id, table, kept, questions, all, steps, get, known: [...KEPT, "said", "text", "gold", "task", "difficulty", "never", "lost",
    "learnt"] };
}

async function groupsView(query, id) {
  const found = await keptOf(id), view = query.view ?? (query.step ? "list" : "map");
  if (!found.all.length) {
    return [el("h1", {}, "Groups of training"), empty("No group of this run was kept.",
      "keep.groups_per_step says how many of each RL step are (8 unless it is set); a run without an RL stage has none.")];
  }
  const tabs = [["map", "prompts × steps"], ["rewards", "rewards by step"], ["list", "list"]].map(([name, text]) =>
    press(text, view === name, () => choose({ view: name, filter: "", page: "" })));
  return [el("h1", {}, "Groups of training"), bar(tabs), { map: mapView, rewards: rewardsView, list: listView }[view]?.(found, query)];
}

function groupLink(address, query = {}) { return link(["group", ...address.split("/")], query); }

function mapView(found, query) {
  const { all, kept, table } = found, { states, groups } = table, rank = (q) => (Object.keys(STATES).indexOf(states[q]) + 4) % 4;
  const asked = [...new Set(all.map((n) => kept.q[n]))];
  asked.sort((a, b) => rank(a) - rank(b) || groups[b].length - groups[a].length || a - b);
  const { list, filter } = selected(table, query, asked), drawn = list.slice(0, Number(query.most ?? MOST_ROWS));
  const ready = [...readyFilters(table, true), ["kept twice or more", "kept.times > 1"]];
  const more = button(`Show all ${list.length} questions`, () => choose({ most: list.length }));
  const known = all.map((n) => kept.reward[n]).filter((one) => one !== null);
  const ends = [Math.min(0, ...known), Math.max(table.solved, ...known)];
  return [filterBar(query, table.known, ready, filter, asked.length, list.length),
    aside("A row is a question, a column a step with kept groups, a cell the mean reward of its group. ",
      "Rows: never solved first, then lost again, learnt, others.",
      el("span", { class: "keyline" }, num(ends[0]), el("span", { class: "ramp map" }), num(ends[1]))),
    list.length ? el("div", { class: "card" }, rewardField(found, drawn, ends)) : empty("No question fits the filter."),
    list.length > drawn.length ? more : null];
}

function rewardField({ id, all, kept, questions, steps, table }, rows, [low, high]) {
  const at = new Map(all.map((n) => [`${kept.q[n]} ${kept.global[n]}`, n])), group = (q, step) => at.get(`${q} ${step}`);
  const text = table.label, tail = (q) => [STATES[table.states[q]], text(q)].filter(Boolean).join(": ").slice(0, 90);
  const say = (q, step) => {
    const n = group(q, step), folds = (kept.said[n] ?? []).map(([said, many]) => `${many} × ${said || "no answer"}`).join(", ");
    return `${text(q)}\nstep ${step}: ${n === undefined ? "not kept" : `reward ${num(kept.reward[n])}; ${folds}`}`;
  };
  const open = (q, step) => {
    const n = group(q, step);
    location.hash = n === undefined ? link(["question", questions.id[q]], { of: id }) : groupLink(kept.address[n]);
  };
  return field({ rows, columns: steps, scale: "map", label: "Mean reward by question and step", say, open, tail,
    value: (q, step) => shade(kept.reward[group(q, step)], low, high) });
}

function rewardsView({ id, all, kept, steps }) {
  const given = all.flatMap((n) => kept.rewards[n].map((one) => [kept.global[n], one]));
  const values = [...new Set(given.map(([, one]) => one))].filter((one) => one !== null).sort((a, b) => b - a);
  if (!values.length) return empty("No answer of a kept group was judged.");
  const [high, low] = [values[0], values.at(-1)], few = values.length <= 12, worth = (n) => low + ((high - low) * n) / 10;
  const bin = (one) => (few ? one : worth(Math.round(10 * shade(one, low, high))));
  const bins = few ? values : Array.from({ length: 11 }, (_, n) => worth(10 - n));
  const counts = new Map(), add = (name) => counts.set(name, (counts.get(name) ?? 0) + 1);
  const of = (step, what) => counts.get(`${step} ${what}`) ?? 0;
  for (const [step, one] of given) {
    add(`${step} ${one === null ? "none" : bin(one)}`);
    if (one !== null) add(`${step} all`);
  }
  const unjudged = (step) => (of(step, "none") ? `, ${of(step, "none")} not judged` : "");
  const about = few ? "" : "about ", share = (one, step) => `${of(step, one)} of ${of(step, "all")} answers`;
  const say = (one, step) => `step ${step}, reward ${about}${num(one)}: ${share(one, step)}${unjudged(step)}`;
  return [aside("Rewards of the answers in kept groups: a column is a step, a row a reward, darker where more of its answers are. ",
    "Half of a step's kept groups are its most surprising ones."),
    el("div", { class: "card" }, field({ rows: bins, columns: steps, label: "Share of answers by reward and step", high: 22, name: num, say,
      value: (one, step) => (of(step, one) ? Math.sqrt(of(step, one) / of(step, "all")) : null),
      open: (one, step) => { location.hash = link(["groups", id], { step }); } }))];
}

// The groups that a list shows by the address, in their order; of a step without kept groups, those of the nearest.
function listed(found, query) {
  const { all, kept, steps } = found, step = query.step ? closest(steps, (one) => Math.abs(one - Number(query.step))) : null;
  const sort = query.sort in SORTS ? query.sort : "-surprise", those = all.filter((n) => step === null || kept.global[n] === step);
  return { step, sort, total: those.length, ...selected(found, { ...query, sort }, those) };
}

function listView(found, query) {
  const { id, steps, known, all } = found, { step, sort, filter, list, total } = listed(found, query), page = Number(query.page ?? 0);
  const ready = READY.filter(([, text]) => all.some((n) => readFilter(text, known).test((name) => found.get(n, name))));
  const words = [el("b", {}, `step ${step}`), step === Number(query.step) ? null : note(`nearest to ${query.step} with kept groups`)];
  return [step === null ? null : [stepper(steps, step, (one) => link(["groups", id], { ...query, step: one, page: "" }), words),
    el("p", {}, el("a", { href: link(["groups", id], { view: "list" }) }, "all steps"))],
  filterBar(query, known, ready, filter, total, list.length),
  bar(pick("order", Object.entries(SORTS), sort, (value) => choose({ sort: value, page: "" }))),
  list.length ? el("div", { class: "groups" }, list.slice(page * PAGE, page * PAGE + PAGE).map((n) => groupCard(n, found, query)))
    : empty("No group fits.", "Take the filter or the step away."),
  pager(page, Math.ceil(list.length / PAGE))];
}

function groupCard(n, { id, kept, questions, table }, query) {
  const q = kept.q[n], src = questions.src[q], href = groupLink(kept.address[n], { ...query, of: id, page: "" });
  const tags = [kept.cut[n] ? `${kept.cut[n]} cut off` : "", kept.help[n] ? "with help" : "",
    kept.used[n] < kept.answers[n] ? `${kept.used[n]} of ${kept.answers[n]} trained` : ""];
  return el("a", { class: "card group", href }, src ? el("img", { class: "thumb", loading: "lazy", alt: "", src })
    : el("span", { class: "thumb" }),
    el("div", {}, el("div", { class: "q" }, table.label(q)),
      el("div", {}, kept.said[n].map(([text, times, reward]) => chip(text, times, reward))),
      aside(`step ${kept.global[n]}, reward ${num(kept.reward[n])}, expected ${num(kept.expected[n])}, surprise ${num(kept.surprise[n])}`),
      warnings(tags)));
}

function warnings(texts) { return texts.filter(Boolean).map((text) => el("span", { class: "tag warn" }, text)); }

async function groupView(query, run, at) {
  const address = `${run}/${at}`, one = await load(`group/${address}`), { record } = one, colour = query.colour ?? "logp";
  const found = await keptOf(run), asked = query.of ? query : { step: record.global_step };
  const list = listed(found, asked).list.map((n) => found.kept.address[n]);
  const answers = one.answers.map((item, n) => ({ ...item, n }));
  const folds = folded(answers, (item) => item.text).sort((a, b) => (b[2] ?? -Infinity) - (a[2] ?? -Infinity));
  const chosen = Number(query.draw ?? folds[0]?.[3][0] ?? 0);
  const layers = [{ id: "gold", name: "gold", kind: "gold", marks: one.marks },
    { id: "chosen", name: `answer ${chosen + 1}`, kind: "chosen", marks: answers[chosen]?.marks }];
  const there = Object.entries(COLOURS).filter(([name]) => ["none", "advantage"].includes(name) || answers.some((item) => item[name]));
  const known = [["gold", el("b", { class: "goldtext" }, record.gold)],
    ["answers", folded(answers).map(([text, times, reward]) => chip(text, times, reward))],
    ["step", `${one.words} (step ${record.global_step} of the run)`], ["task", `${record.task}, ${record.answer_type}`],
    ["expected", record.expected === null ? "never asked before" : num(record.expected)], ["surprise", num(record.surprise)],
    ...Object.entries(record.reasons).map(([reason, n]) => [reason, count(n, "answer")])];
  const ends = ENDS[colour] ? el("span", { class: "keyline" }, ENDS[colour][0],
    el("span", { class: `ramp ${colour === "advantage" ? "sign" : "hot"}` }), ENDS[colour][1]) : null;
  return [stepper(list, address, (next) => groupLink(next, { ...query, draw: "" })), el("h1", { class: "question" }, record.question),
    drawnBeside(one.media, layers, facts(known), problems([...one.marks.problems, ...Object.values(record.lost_media ?? {})]),
      aside(el("a", { href: link(["question", one.question], { of: run }) }, "This question over stages, steps and runs"))),
    bar(note("Tokens by"), there.map(([name, text]) => press(text, name === colour, () => choose({ colour: name }, true))), ends),
    folds.map(([, times, , places]) => answerCard(answers[places[0]], times, places, one, colour, chosen))];
}

function answerCard(one, times, places, { record, turns }, colour, chosen) {
  const own = one.media?.filter((mine) => !record.media.some((other) => other.key === mine.key)).at(-1), medium = own && turns[own.key];
  const parts = record.columns.map((name, k) => [name, num(one.rewards[k]), record.weights[k] === 1 ? "" : `× ${num(record.weights[k])}`]);
  const tags = [one.provenance === "policy" ? "" : one.provenance, one.finish === "length" ? "cut off" : "", one.used ? "" : "not trained",
    one.turn ? `attempt ${one.turn.attempt + 1}, turn ${one.turn.turn + 1}, world gave ${num(one.turn.reward)}` : "",
    one.format_ok ? "" : `format: ${one.errors.join(", ") || "not as asked"}`];
  const which = times > 1 ? `answers ${places.map((n) => n + 1).join(", ")}` : `answer ${one.n + 1}`;
  return el("article", { class: `card tokens ${one.advantage > 0 ? "up" : one.advantage < 0 ? "down" : ""}` }, el("header", {},
    el("b", {}, times > 1 ? `${times} × ` : "", one.answer || "no answer"), el("span", {}, "reward ", el("b", {}, num(one.reward))),
    parts.length > 1 || record.weights[0] !== 1 ? parts.map((words) => note(words.join(" ").trim())) : null,
    el("span", {}, "advantage ", el("b", {}, signed(one.advantage))), note(`${count(one.tokens.length, "token")}, ${which}`),
    drawable(one.marks) ? press("draw", places.includes(chosen), () => choose({ draw: one.n }, true)) : null, warnings(tags)),
  one.question && one.question !== record.question ? aside(one.question) : null,
  one.guidance ? aside(`Asked with a hint of tier ${one.guidance.tier}: ${one.guidance.question}`) : null,
  medium ? player(medium, []) : null, tokensOf(one, colour));
}

// Colours by fixed scales, so that two steps can be compared: 5 nats of log-prob, 3 nats of entropy; advantages by the largest here.
function tokensOf(one, colour) {
  const values = colour === "advantage" ? one.advantages ?? one.tokens.map(() => one.advantage) : one[colour] ?? [];
  const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)), 1e-9), by = { advantage: largest, entropy: 3 }[colour] ?? -5;
  const most = colour === "advantage" ? 0.35 : 0.7;
  const ground = (value) => {
    if (typeof value !== "number" || colour === "none") return {};
    const share = value / by, ink = colour !== "advantage" ? "--hot" : share > 0 ? "--pos" : "--neg";
    return { background: `rgba(var(${ink}), ${(Math.min(1, Math.abs(share)) * most).toFixed(3)})` };
  };
  const say = (event) => {
    const t = event.target.dataset?.t, lines = [["log-prob", one.logp[t]], ["in the update", one.policy_logp?.[t]],
      ["entropy", one.entropy?.[t]], ["advantage", one.advantages?.[t] ?? one.advantage]];
    tip(event, t === undefined ? "" : [`token ${Number(t) + 1} ${JSON.stringify(one.tokens[t])}`,
      ...lines.filter(([, value]) => value !== undefined).map(([name, value]) => `${name} ${num(value)}`)].join("\n"));
  };
  return el("pre", { class: "answer", onmousemove: say, onmouseleave: () => tip(null, "") },
    one.tokens.map((text, t) => el("span", { "data-t": t, style: ground(values[t]) }, text)));
}
