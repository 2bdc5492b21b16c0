"use strict";
// The runs of a folder, and what one of them, an evaluation, a comparison or a data check says.

async function folderView(query) {
  const found = await load("folder"), { runs, evaluations, comparisons, checks } = found;
  if (![runs, evaluations, comparisons, checks].some((list) => list.length)) {
    return empty(`No run, evaluation, comparison or data check is in ${found.path}.`,
      "vlmrl train RECIPE writes a run; vlmrl init writes a recipe.");
  }
  const list = (title, items, text) => (items.length ? el("section", {}, el("h2", {}, title),
    el("div", { class: "cards" }, items.map((one) =>
    el("a", { class: "card", href: link(one.address.split("/")) }, el("h3", {}, one.name), aside(text(one)),
      one.primary ? el("p", {}, estimate(one.primary), ` ${one.primary.label}`) : null)))) : null);
  return [el("h1", {}, found.name), runs.length ? runTable(found, query) : null, armsTable(found.arms),
    list("Evaluations", evaluations, (one) => [one.model, one.suite].filter(Boolean).join(", ")),
    list("Comparisons", comparisons, (one) => one.verdict),
    list("Data checks", checks, (one) => `${count(one.good, "good row")}, ${one.rejected} refused`)];
}

function runTable(found, query) {
  const several = found.runs.length > 1, chosen = new Set((query.with ?? "").split(",").filter(Boolean)), [first, ...others] = chosen;
  const flip = (id) => { if (!chosen.delete(id)) chosen.add(id); choose({ with: [...chosen].join(",") }, true); };
  const row = (run) => {
    const words = [run.folder.replace(`${found.path}/`, ""), typeof run.seed === "number" ? `seed ${run.seed}`
      : ""].filter(Boolean).join(", ");
    const where = run.where === run.status ? null : el("small", {}, run.where), asked = run.primary;
    const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.id),
      onchange: () => flip(run.id) });
    return el("tr", {}, several ? el("td", {}, box) : null, el("th", {}, el("a", { href: link(["run", run.id]) }, run.name),
      el("small", {}, words)),
      el("td", {}, state(run), where, problems([run.problem].filter(Boolean))),
      el("td", {}, asked ? [estimate(asked), el("small", {}, `${asked.label} ${asked.stage}, ${count(asked.n, "question")}`)]
        : "no evaluation yet"),
      el("td", {}, run.model ?? "–"), el("td", { class: "dim" }, run.ago ?? "–"));
  };
  const button = (href, text) => el("a", { class: "button", href }, text), curves = link(["curves", first], { with: others.join(",") });
  const bar = el("div", { class: "bar" },
    chosen.size ? button(curves, `Curves of ${count(chosen.size, "chosen run")}`) : el("span", { class: "note" },
      "Choose runs to draw their curves in one plot."),
    button(link(["curves", "arms"]), "Mean and band over seeds"), found.questions ? button(link(["questions", "all"]),
      "Questions of all runs") : null);
  const head = [several ? "" : null, "run", "where it is", "held-out", "model", "last written"].filter((one) => one !== null);
  return [several ? bar : null, el("div", { class: "card scroll", tabindex: 0 }, el("table", { class: "runs" },
    el("thead", {}, el("tr", {}, head.map((name) => el("th", {}, name)))), el("tbody", {}, found.runs.map(row))))];
}

function state(run) { return el("span", { class: `state ${run.status}` }, run.status); }

function armsTable(arms) {
  if (!arms.some((one) => one.runs.length > 1)) return null;
  const held = ({ primary }) => (primary ? { text: `${primary.text} ${primary.label}`,
    small: [primary.interval, primary.note].filter(Boolean).join(", ") } : "–");
  return grid({ title: "Over seeds", note: "Runs whose recipes differ in nothing but the seed are one arm.",
    header: ["arm", "runs", "seeds", "held-out", "differs in"],
    rows: arms.map((one) => [one.name, String(one.runs.length), one.seeds.join(", "), held(one), one.differs?.join("; ") || "–"]) });
}

// One number after each stage, as dots with intervals.
function stageCard(title, text, stages, below, kind = "") {
  const rows = stages.map((stage, n) => ({ ...stage, name: stage.words, colour: stageColour(n, stages.length) }));
  return el("div", { class: `card ${kind}` }, el("h3", {}, title[0].toUpperCase() + title.slice(1)), text ? aside(text) : null, dots(rows),
    below ? aside(below) : null);
}

// What was there before training is grey.
function stageColour(n, total) { return total < 2 ? 0 : n ? n - 1 : "grey"; }

function copier(command) {
  const code = el("code", {}, command), copy = async (event) => {
    const button = event.target;
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
    }
  };
  return el("p", { class: "command" }, code, el("button", { type: "button", onclick: copy }, "copy"));
}

function rewardParts(parts) {
  if (!parts?.length) return null;
  const top = Math.max(1e-9, ...parts.flatMap((one) => [Math.abs(one.first ?? 0), Math.abs(one.last ?? 0)]));
  const bar = (value, kind) => el("i", { class: kind, style: { width: `${(100 * Math.max(0, value ?? 0)) / top}%` } });
  const weight = (one) => (one === 1 || one === null ? null : el("small", {}, ` × ${num(one)}`));
  return el("div", { class: "card" }, el("h3", {}, "Parts of the reward"),
    aside("Mean over sampled answers, first and last tenth of the RL steps."),
    el("div", { class: "rewards" }, parts.map((one) => [el("span", {}, one.name, weight(one.weight)),
      el("span", { class: "bars" }, bar(one.first, "grey"), bar(one.last, "c0")),
        el("span", {}, num(one.first), " → ", el("b", {}, num(one.last)))])));
}

async function runView(query, id) {
  const run = await load(`run/${id}`), { primary } = run, first = "95% intervals over questions of this run; seeds are not compared here.";
  const held = primary ? stageCard(`${primary.label} on ${count(primary.n, "held-out question")}`, null, primary.stages, first, "wide")
    : empty("No held-out evaluation yet.", "With eval.source in the recipe, questions are asked before training and after each stage.");
  const cards = run.cards.filter((one) => one.label !== primary?.label).map((one) => stageCard(one.title, one.label, one.stages, one.note));
  const next = run.next.map((one) => [el("p", {}, one.text,
    one.where ? [" ", el("a", { href: link(["questions", id], { filter: one.where }) }, "Show them.")] : null),
    one.command ? copier(one.command) : null]);
  return [el("h1", {}, run.name), run.state.where === run.state.status ? null : aside(run.state.where),
    said([...run.happened, ...(run.detail ?? [])]),
    problems(run.warnings), el("div", { class: "cards" }, held, rewardParts(run.rewards), cards),
    run.unmoved?.length ? aside(`As before: ${run.unmoved.join("; ")}.`) : null,
    next.length ? el("section", {}, el("h2", {}, "What to do next"), el("div", { class: "card" }, next)) : null, run.tables.map(grid),
      details(run)];
}

function details(one) {
  const recipe = one.config ? el("details", {}, el("summary", {}, "Resolved recipe"), el("pre", {}, one.config)) : null;
  return one.facts?.length || recipe ? el("section", {}, el("h2", {}, "How it was made"),
    el("div", { class: "card" }, facts(one.facts ?? []), recipe)) : null;
}

async function evaluationView(query, id) {
  const one = await load(`evaluation/${id}`),
    tasks = (one.primary?.tasks ?? []).map((task) => ({ ...task, name: `${task.task}, ${task.label}, n ${task.n}`, colour: 0 }));
  return [el("h1", {}, one.name), aside([one.model, one.suite].filter(Boolean).join(", ")), said(one.headline),
    tasks.length ? el("div", { class: "card wide" }, el("h3", {}, "Scores by task"), dots(tasks)) : null, questionsButton(one),
      one.tables.map(grid), details(one)];
}

function questionsButton(one) {
  return one.questions ? el("p", {}, el("a", { class: "button", href: link(one.questions.split("/")) }, "Questions and answers")) : null;
}

async function comparisonView(query, id) {
  const one = await load(`comparison/${id}`), flips = one.flips ?? [], [a, b] = one.models ?? [];
  const row = (flip) => [flip.question ? { text: flip.sample, href: link(["question", flip.question], { of: id }) } : flip.sample,
    flip.task, num(flip.a),
    { text: num(flip.b), kind: flip.b > flip.a ? "better" : "worse" }, flip.texts_a?.join(" / "), flip.texts_b?.join(" / ")];
  const changed = { title: "Questions that changed", note: flips.length > 500 ? `500 of ${flips.length}.` : `${flips.length} of them.`,
    header: ["question", "task", a, b, `${a} said`, `${b} said`], rows: flips.slice(0, 500).map(row) };
  return [el("h1", {}, b ? `${b} against ${a}` : one.name), said(one.headline), problems(one.warnings), questionsButton(one),
    one.tables.map(grid),
    flips.length ? grid(changed) : null, details(one)];
}

async function checkView(query, id) {
  const check = await load(`check/${id}`), flag = query.flag ?? "", page = Number(query.page ?? 0), size = 20;
  const rows = check.rows.filter((row) => !flag || row.flags.includes(flag)),
    of = (name) => check.rows.filter((row) => row.flags.includes(name)).length;
  const chips = Object.entries(check.flags).filter(([name]) => of(name)).map(([name, words]) =>
    press(`${words} (${of(name)})`, flag === name, () => choose({ flag: name, page: "" })));
  const sources = check.sources.map((one) => [one.name, String(one.good), { text: String(one.rejected), kind: one.rejected ? "worse" : "" },
    `${one.shown_good} good, ${one.shown_rejected} refused`]);
  return [el("h1", {}, check.name), grid({ header: ["rows of", "good", "refused", "shown here"], rows: sources }),
    el("div", { class: "bar" }, press(`all (${check.rows.length})`, !flag, () => choose({ flag: "", page: "" })), chips),
    aside(`${count(rows.length, "row")}, the worst first.`),
      rows.slice(page * size, page * size + size).map((row) => checkedRow(row, check.flags)),
    pager(page, Math.ceil(rows.length / size))];
}

function checkedRow(row, flags) {
  const layers = [{ id: "gold", name: "gold", kind: "gold", marks: row.marks, on: true }];
  return el("article", { class: "card asked" }, el("div", {}, (row.media ?? []).map((one) => player(one, layers))),
    el("div", {}, el("h3", {}, row.question || row.id || row.place), aside([row.place, row.id, row.type].filter(Boolean).join(", ")),
      row.answer ? el("p", {}, "gold: ", el("b", {}, row.answer)) : null,
      problems([row.reason ? `${row.reason}: ${row.message.replace(`${row.reason}: `, "")}` : "",
        ...(row.marks?.problems ?? [])].filter(Boolean)),
      row.flags.map((name) => el("span", { class: "tag warn" }, flags[name] ?? name)), aside(row.facts.join("; "))));
}

function pager(page, pages) {
  const turn = (to, text) => el("button", { type: "button", disabled: to < 0 || to >= pages, onclick: () => choose({ page: to || "" }) },
    text);
  return pages > 1 ? el("div", { class: "bar pages" }, turn(page - 1, "Before"), `page ${page + 1} of ${pages}`, turn(page + 1, "Next"))
    : null;
}
