"use strict";
// Questions: one table over held-out and kept rows with a filter in the address, and one question with all that was answered to it.

const ROW = 36, MOST_STEPS = 60, FIXED = ["text", "gold", "task", "difficulty", "category", "sample", "held", "never", "lost", "learnt",
  "kept.first", "kept.last", "kept.best", "kept.times"];
const STATES = { never: "never solved", lost: "lost again", learnt: "learnt" };
const tables = new WeakMap();

// The questions of a document as rows with `get(name)`, and the names that a filter may use.
async function questionTable(id) {
  const doc = await load(`questions/${id}`);
  if (tables.has(doc)) return tables.get(doc);
  const { questions, held, kept, columns } = doc, total = questions.id.length;
  const cells = Array.from({ length: total }, () => new Map()), groups = Array.from({ length: total }, () => []);
  held.q.forEach((q, n) => cells[q].set(columns[held.c[n]].name, n));
  kept.q.forEach((q, n) => groups[q].push(n));
  for (const list of groups) list.sort((a, b) => kept.global[a] - kept.global[b]);
  const steps = [...new Set(kept.global)].sort((a, b) => a - b);
  const of = (q, column) => groups[q].map((n) => column[n]).filter((one) => one !== null);
  // runs that kept groups before `right` was written have the sum of all rewards alone
  const right = kept.best.map((best, n) => kept.right[n] ?? best);
  const solved = right.reduce((most, one) => Math.max(most, one ?? most), -Infinity);
  const states = groups.map((_, q) => became(of(q, right), solved));
  const ofKept = { first: (q) => of(q, kept.reward)[0], last: (q) => of(q, kept.reward).at(-1),
    best: (q) => (of(q, kept.best).length ? Math.max(...of(q, kept.best)) : null), times: (q) => groups[q].length };
  const ofHeld = { reward: held.score, score: held.score, thinks: held.thinks, tokens: held.tokens, answer: held.said };
  const names = new Set(columns.map((one) => one.name));
  const get = (q, name) => {
    const dot = name.indexOf("."), head = name.slice(0, dot), rest = name.slice(dot + 1);
    if (STATES[name]) return states[q] === name;
    if (dot < 0) return questions[name]?.[q] ?? null;
    if (head === "kept") return ofKept[rest](q) ?? null;
    if (names.has(rest)) return ofHeld[head][cells[q].get(rest)] ?? null;
    return mean(groups[q].filter((n) => kept.global[n] === Number(rest.slice(4))).map((n) => kept.reward[n]));
  };
  const known = [...Object.keys(ofHeld).flatMap((head) => columns.map((one) => `${head}.${one.name}`)), ...FIXED,
    ...steps.map((step) => `reward.step${step}`)];
  const made = { doc, columns, steps, groups, solved, states, get, total, known, label: (q) => questions.text[q] || questions.sample[q] };
  tables.set(doc, made);
  return made;
}

// What became of a question that was kept at several steps, by the first reward of the best answer of each: `lost` was solved and is not in
// the last one, `learnt` is solved there and was not in the first.
function became(best, solved) {
  const right = best.map((one) => one >= solved - 1e-9);
  if (!right.includes(true)) return right.length ? "never" : null;
  if (!right.at(-1)) return "lost";
  return right[0] ? null : "learnt";
}

// What a table shows by the address: numbers of those of its rows that the filter lets through in their order, and the filter.
function selected(table, query, rows = [...Array(table.total).keys()]) {
  const filter = readFilter(query.filter ?? "", table.known), name = (query.sort ?? "").replace(/^-/, "");
  const list = rows.filter((q) => !filter.test || filter.test((one) => table.get(q, one)));
  if (table.known.includes(name)) {
    const values = new Map(list.map((q) => [q, table.get(q, name)])), way = query.sort.startsWith("-") ? -1 : 1;
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(String(b)) : a - b);
    list.sort((p, q) => {
      const [a, b] = [values.get(p), values.get(q)];
      return (a === null || b === null ? Number(a === null) - Number(b === null) : way * order(a, b)) || p - q;
    });
  }
  return { list, filter };
}

// A field for a filter expression with ready ones, and what is wrong with it, in words and at its place.
function filterBar(query, known, ready, { error, at }, total, shown) {
  const set = (text) => choose({ filter: text, page: "" }), text = query.filter ?? "";
  const field = el("input", { type: "search", name: "filter", id: "filter", maxlength: 1000, value: text, spellcheck: "false",
    placeholder: ready[0]?.[1] ?? 'text contains "cup"', "aria-label": "Filter expression", autocomplete: "off",
    "aria-invalid": error ? "true" : null });
  const send = (event) => { event.preventDefault(); set(field.value.trim()); };
  const signs = "Compare with < <= > >= == != in (…) contains; join with and, or, not, parentheses; texts in quotes; none: not known.";
  return el("div", { class: "filter" }, el("form", { class: "bar", onsubmit: send }, field, el("button", {}, "Filter"),
    text ? button("Clear", () => set("")) : null, el("span", { class: "note", id: "count" }, `${shown} of ${total}`)),
  error ? el("div", { class: "problem", role: "alert" }, `At ${at + 1}: ${error}.`, el("pre", {}, `${text}\n${" ".repeat(at)}^`)) : null,
  bar(ready.map(([name, filter]) => press(name, text === filter, () => set(text === filter ? "" : filter))),
    el("details", { class: "names" }, el("summary", {}, "names and signs"), aside(signs),
      el("p", {}, known.slice(0, 120).map((name) => [el("code", {}, name), " "])))));
}

async function questionsView(query, id) {
  const table = await questionTable(id), { doc, columns, steps, total, known } = table, { list, filter } = selected(table, query);
  if (!total) {
    return [el("h1", {}, "Questions"), empty("No question was asked yet.",
      "Held-out questions come from eval.source of a recipe, training groups from keep.groups_per_step (8 unless it is set).")];
  }
  const last = new Map(columns.map((one) => [one.run, one])), several = last.size > 1;
  const ways = [["stages", columns.length], ["runs", several], ["steps", steps.length]].filter(([, there]) => there).map(([way]) => [way,
    way]);
  const by = ways.some(([way]) => way === query.by) ? query.by : ways[0][0], show = by === "steps" ? "reward" : query.show ?? "reward";
  const shown = { stages: columns, runs: [...last.values()],
    steps: steps.slice(-MOST_STEPS).map((step) => ({ name: `step${step}`, words: String(step) })) }[by];
  const cells = ["reward", "answer", "thinks", "tokens"].map((one) => [one, one]);
  const href = (q) => link(["question", doc.questions.id[q]], { of: id, filter: query.filter, sort: query.sort });
  return [el("h1", {}, "Questions"),
    aside("A row is a question: the same media, prompt and gold, whichever run, stage or step asked it. ",
      "Cells equal to the one before are dimmed."),
    filterBar(query, known, readyFilters(table, several), filter, total, list.length),
    bar(pick("columns", ways, by, (value) => choose({ by: value, sort: "" })),
      by === "steps" ? null : pick("cells", cells, show, (value) => choose({ show: value })),
      by === "steps" && steps.length > MOST_STEPS ? note(`the last ${MOST_STEPS} of ${steps.length} steps with kept groups`) : null),
    list.length ? sheet(sheetHead(table, shown, show, several, query.sort ?? ""), list, (q) => sheetRow(table, q, shown, show, href(q)),
      by === "steps" ? "steps" : "") : null,
    list.length || filter.error ? null : empty("No question fits the filter.", button("Show all", () => choose({ filter: "" })))];
}

function readyFilters({ states, columns }, several) {
  const [first, last] = [columns[0], columns.at(-1)], changed = several || columns.length < 2 ? [] : [["better", ">"], ["worse", "<"]];
  const counted = Object.entries(STATES).map(([state, words]) => [words, state, states.filter((one) => one === state).length]);
  const there = counted.filter(([, , n]) => n).map(([words, state, n]) => [`${words} (${n})`, state]);
  return [...changed.map(([word, sign]) => [word, `reward.${last.name} ${sign} reward.${first.name}`]), ...there];
}

function sheetHead(table, shown, show, several, sort) {
  const header = (text, name) => {
    const up = sort === name, down = sort === `-${name}`, way = up ? "ascending" : down ? "descending" : null;
    const next = up ? `-${name}` : down ? "" : name, arrow = up ? " ↑" : down ? " ↓" : null;
    return el("th", { "aria-sort": way }, button([text, arrow], () => choose({ sort: next })));
  };
  const words = (one) => (several && one.run && one.run !== one.words ? [one.run, el("small", {}, one.words)] : one.words);
  return el("thead", {}, el("tr", {}, header("question", "text"), header("gold", "gold"),
    shown.map((one) => header(words(one), `${show}.${one.name}`)),
    table.steps.length ? header("times kept", "kept.times") : null));
}

function sheetRow(table, q, shown, show, href) {
  const { questions } = table.doc, text = table.label(q), src = questions.src[q];
  let before;
  const cells = shown.map((column) => {
    const value = table.get(q, `${show}.${column.name}`), equal = value !== null && value === before, words = typeof value === "string";
    if (value !== null) before = value;
    const ground = show === "tokens" ? null : level(show === "answer" ? table.get(q, `reward.${column.name}`) : value);
    return el("td", { class: `${words ? "said" : "number"}${equal ? " same" : ""}`, title: words ? value : null, "data-level": ground },
      words || value === null ? value : num(value));
  });
  return el("tr", {}, el("th", {}, el("a", { href, title: text }, src ? el("img", { src, alt: "", loading: "lazy" }) : null, text)),
    el("td", { class: "gold" }, questions.gold[q]),
    cells, table.steps.length ? el("td", { class: "number dim" }, table.groups[q].length || "") : null);
}

// From 0 (bad) to 4 (good), for the ground of a cell; what is beyond 1 counts as 1.
function level(value) { return typeof value === "number" ? Math.round(4 * Math.max(0, Math.min(1, value))) : null; }

// A table of which only the rows in sight exist.
function sheet(head, list, row, kind = "") {
  const body = el("tbody"), box = el("div", { class: `card sheet ${kind}`, tabindex: 0 }, el("table", {}, head, body));
  const gap = (rows) => el("tr", { class: "gap", style: { height: `${rows * ROW}px` } });
  let from = -1;
  const fill = () => {
    const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW) - 6, list.length - 1)), start = first - (first % 6);
    if (start === from) return;
    from = start;
    const stop = Math.min(list.length, start + Math.ceil((box.clientHeight || 640) / ROW) + 20);
    body.replaceChildren(gap(start), ...list.slice(start, stop).map(row), gap(list.length - stop));
  };
  box.addEventListener("scroll", fill, { passive: true });
  fill();
  return box;
}

async function questionView(query, id) {
  const one = await load(`question/${id}`), table = query.of ? await questionTable(query.of).catch(() => null) : null;
  const around = table ? stepper(selected(table, query).list.map((q) => table.doc.questions.id[q]), id,
    (next) => link(["question", next], { ...query, draw: "" })) : null;
  const answers = one.answers.map((item, n) => ({ ...item, n, reward: item.score }));
  const mine = answers.filter((item) => item.run === query.of);
  const own = mine.length && query.runs !== "all" ? mine : answers, several = new Set(own.map((item) => item.run)).size > 1;
  const parts = new Map();
  for (const item of own) {
    const at = several ? `${item.run}: ${item.where}` : item.where;
    parts.set(at, [...(parts.get(at) ?? []), item]);
  }
  const held = [...parts.keys()].filter((name) => parts.get(name)[0].kind === "held").slice(0, 8), chosen = answers[Number(query.draw)];
  const colour = (name) => (held.includes(name) ? stageColour(held.indexOf(name), held.length) : null);
  const layers = [{ id: "gold", name: "gold", kind: "gold", marks: one.marks },
    ...held.map((name, n) => ({ id: `a${n}`, name, kind: `c${colour(name)}`, marks: parts.get(name)[0].marks }))];
  if (chosen) layers.push({ id: "chosen", name: `chosen: ${chosen.answer}`, kind: "chosen", marks: chosen.marks });
  const more = query.runs === "all" ? "" : "all";
  return [around, el("h1", { class: "question" }, one.text || one.sample), drawnBeside(one.media, layers,
    facts([["gold", el("b", { class: "goldtext" }, one.gold)], ["task", one.task], ["answer", one.type], ["difficulty", one.difficulty],
      ["category", one.category], ["id", one.sample]]),
    problems([one, ...own].flatMap((item) => item.marks?.problems ?? [])),
    mine.length && mine.length < answers.length ? bar(press("answers of all runs", !more, () => choose({ runs: more }))) : null,
    [...parts].map(([name, list]) => foldCard(name, list, colour(name), chosen))),
  one.steps ? grid(one.steps) : null, one.prompts.map(promptCard)];
}

// The answers of a stage or of a group, equal ones together, whole texts behind a click.
function foldCard(name, list, colour, chosen) {
  const { group } = list[0], tokens = group ? el("a", { href: groupLink(group) }, "tokens and advantages") : null;
  const rows = folded(list).map(([text, times, reward, places]) => {
    const first = list[places[0]];
    const words = [reward === null ? "not judged" : `${first.kind === "held" ? "score" : "reward"} ${num(reward)}`, first.status,
      first.tokens ? `${first.tokens} tokens` : ""];
    return el("details", {}, el("summary", {}, chip(text, list.length > 1 ? times : 0, reward), note(words.filter(Boolean).join(", "))),
      drawable(first.marks) && colour === null ? press("draw", first === chosen, () => choose({ draw: first.n }, true)) : null,
      folded(places.map((place) => list[place]), (item) => item.text).map(([whole, again]) =>
        el("pre", { class: "answer" }, again > 1 ? el("span", { class: "times" }, `${again} × `) : null, tagged(whole))));
  });
  return el("article", { class: "card fold" }, el("header", {}, colour === null ? null : swatch(colour), el("b", {}, name), tokens), rows);
}

function chip(text, times, reward) {
  return el("span", { class: "chip", "data-level": level(reward) }, times ? `${times} × ` : "", el("b", {}, text || "no answer"));
}

// Thoughts pale, answers strong.
function tagged(text) {
  const parts = text.split(/(<think(?:ing)?>[^]*?(?:<\/think(?:ing)?>|$)|<answer>[^]*?(?:<\/answer>|$))/i).filter(Boolean);
  return parts.map((part) => el("span", { class: /^<think/i.test(part) ? "thought" : /^<answer/i.test(part) ? "final" : "" }, part));
}

function promptCard(prompt) {
  return el("details", { class: "card" }, el("summary", {}, `The prompt as the model saw it${prompt.who ? ` (${prompt.who})` : ""}`),
    el("pre", { class: "answer" }, prompt.pieces.map(([text, times]) => (times > 1 ? el("mark", {}, `${text} × ${times}`) : text))));
}
