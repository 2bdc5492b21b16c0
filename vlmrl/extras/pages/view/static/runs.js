"use strict";
// The runs of a folder, and what one of them, an evaluation, a comparison, a study or a data check says.

const LISTS = { evaluation: "Evaluations", comparison: "Comparisons", check: "Data checks" };

async function folderView(query) {
  const found = await load("folder"), { runs, others, study } = found;
  const line = (one) => el("a", { class: "card", href: link(one.address.split("/")) }, el("h3", {}, one.name), aside(one.text),
    one.primary ? el("p", {}, estimate(one.primary), ` ${one.primary.label}`) : null, problems([one.problem]));
  const lists = Object.entries(LISTS).map(([kind, title]) => [title, others.filter((one) => one.kind === kind)]);
  return [el("h1", {}, found.name), problems(found.problems),
    study ? [el("h2", {}, `Study ${study.name}`), study.about ? aside(study.about) : null, reportParts(study)] : null,
    runs.length ? runTable(found, query) : null, found.arms ? grid(found.arms) : null,
    lists.map(([title, items]) => (items.length ? [el("h2", {}, title), el("div", { class: "cards" }, items.map(line))] : null))];
}

function runTable(found, query) {
  const several = found.runs.length > 1, chosen = new Set((query.with ?? "").split(",").filter(Boolean)), [first, ...others] = chosen;
  const flip = (id) => { if (!chosen.delete(id)) chosen.add(id); choose({ with: [...chosen].join(",") }, true); };
  const row = (run) => {
    const asked = run.primary, words = `${run.folder.replace(`${found.path}/`, "")}${run.seed === undefined ? "" : `, seed ${run.seed}`}`;
    const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.id),
      onchange: () => flip(run.id) });
    return el("tr", {}, several ? el("td", {}, box) : null,
      el("th", {}, el("a", { href: link(["run", run.id]) }, run.name), el("small", {}, words)),
      el("td", {}, state(run), run.where === run.status ? null : el("small", {}, run.where), problems([run.problem])),
      el("td", {}, asked ? [estimate(asked), el("small", {}, `${asked.label} ${asked.stage}, ${count(asked.n, "question")}`)]
        : "no evaluation yet"),
      el("td", {}, run.model ?? "–"), el("td", { class: "dim" }, run.wall ? when(run.wall) : "–"));
  };
  const curves = link(["curves", first], { with: others.join(",") });
  const head = [...(several ? [""] : []), "run", "where it is", "held-out", "model", "last written"];
  return [several ? bar(chosen.size ? to(curves, `Curves of ${count(chosen.size, "chosen run")}`)
    : note("Choose runs to draw their curves in one plot."), to(link(["curves", "arms"]), "Mean and band over seeds"),
  to(link(["questions", "all"]), "Questions of all runs")) : null, sheetOf(head, found.runs.map(row), "runs")];
}

function when(wall) { return new Date(1000 * wall).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }); }

function state(run) { return el("span", { class: `state ${run.status}` }, run.status); }

async function reportView(query, id) {
  const [kind] = place().path, one = await load(`${kind}/${id}`);
  return [el("h1", {}, one.name), one.about ? aside(one.about) : null, reportParts(one, id)];
}

// What a report says, in its order. `id`: of the run whose questions a next step shows.
function reportParts(one, id = "") {
  const next = one.next.map(({ text, where, command }) => [
    el("p", {}, text, where ? [" ", el("a", { href: link(["questions", id], { filter: where }) }, "Show them.")] : null),
    command ? el("p", { class: "command" }, el("code", {}, command)) : null]);
  const cards = one.cards.map((card) => el("div", { class: card.wide ? "card wide" : "card" }, el("h3", {}, card.title),
    card.text ? aside(card.text) : null, dots(card.rows), card.note ? aside(card.note) : null));
  const recipe = one.config ? el("details", {}, el("summary", {}, "Resolved recipe"), el("pre", {}, one.config)) : null;
  return [said(one.said), problems(one.warnings), el("div", { class: "cards" }, cards),
    one.unmoved.length ? aside(`As before: ${one.unmoved.join("; ")}.`) : null,
    next.length ? el("section", {}, el("h2", {}, "What to do next"), el("div", { class: "card" }, next)) : null,
    one.questions ? el("p", {}, to(link(one.questions.split("/")), "Questions and answers")) : null, one.tables.map(grid),
    one.facts.length || recipe ? el("section", {}, el("h2", {}, "How it was made"), el("div", { class: "card" }, facts(one.facts), recipe))
      : null];
}

// What was there before training is grey.
function stageColour(n, total) { return total < 2 ? 0 : n ? n - 1 : "grey"; }

async function checkView(query, id) {
  const check = await load(`check/${id}`), flag = query.flag ?? "", page = Number(query.page ?? 0), size = 20;
  const has = (name) => check.rows.filter((row) => !name || row.flags.includes(name)), rows = has(flag);
  const flags = [["", "all"], ...Object.entries(check.flags)].map(([name, words]) =>
    press(`${words} (${has(name).length})`, flag === name, () => choose({ flag: name, page: "" })));
  const sources = check.sources.map((one) => [one.name, String(one.good), { text: String(one.rejected), kind: one.rejected ? "worse" : "" },
    `${one.shown_good} good, ${one.shown_rejected} refused`]);
  return [el("h1", {}, check.name), grid({ header: ["rows of", "good", "refused", "shown here"], rows: sources }), bar(flags),
    aside(`${count(rows.length, "row")}, the worst first.`),
    rows.slice(page * size, page * size + size).map((row) => checkedRow(row, check.flags)), pager(page, Math.ceil(rows.length / size))];
}

function checkedRow(row, flags) {
  const layers = [{ id: "gold", name: "gold", kind: "gold", marks: row.marks, on: true }];
  return el("article", { class: "card asked" }, el("div", {}, row.media.map((one) => player(one, layers))),
    el("div", {}, el("h3", {}, row.question || row.id || row.place), aside([row.place, row.id, row.type].filter(Boolean).join(", ")),
      row.answer ? el("p", {}, "gold: ", el("b", {}, row.answer)) : null,
      problems([row.reason ? `${row.reason}: ${row.message}` : "", ...row.marks.problems]),
      row.flags.map((name) => el("span", { class: "tag warn" }, flags[name])), aside(row.facts.join("; "))));
}
