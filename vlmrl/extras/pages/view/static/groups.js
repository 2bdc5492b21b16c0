// Lists of kept groups, and the same question over steps and stages.

import { el, num, get, place, link } from "./dom.js";

export const SORTS = { surprise: "most surprising", newest: "newest", oldest: "oldest", best: "best reward", worst: "worst reward",
  spread: "most different", longest: "longest", unlikely: "least likely" };
const FILTERS = { signal: "with signal", alike: "all alike", cut: "cut off", helped: "with help", unused: "not all trained", unjudged: "not judged" };

export async function groups(main, runs, alive) {
  const q = place().query;
  const now = { sort: q.get("sort") ?? "surprise", step: q.get("step") ?? "", task: q.get("task") ?? "", q: q.get("q") ?? "",
    page: q.get("page") ?? "0", only: q.getAll("only") };
  const found = await Promise.all(runs.map((_, r) => get(`/api/runs/${r}/groups`, { ...now, size: 24 })));
  if (!alive()) return;
  const go = (changes) => { location.hash = link(["groups"], { ...now, page: "0", ...changes }); };
  const steps = [...new Map(runs.flatMap((run) => run.kept_steps.map(([whole, stage, step]) => [String(whole), `${stage} ${step} (step ${whole})`])))];
  const tasks = [...new Set(runs.flatMap((run) => run.tasks))].sort();
  const controls = el("div", { class: "bar" },
    choice("Order", Object.entries(SORTS), now.sort, (value) => go({ sort: value })),
    choice("Step", [["", "all"], ...steps.reverse()], now.step, (value) => go({ step: value })),
    tasks.length > 1 ? choice("Task", [["", "all"], ...tasks.map((one) => [one, one])], now.task, (value) => go({ task: value })) : null,
    el("input", { type: "search", placeholder: "question or id", value: now.q, "aria-label": "Question or id", onchange: (event) => go({ q: event.target.value }) }),
    Object.entries(FILTERS).map(([key, text]) => el("button", { type: "button", "aria-pressed": String(now.only.includes(key)),
      onclick: () => go({ only: now.only.includes(key) ? now.only.filter((one) => one !== key) : [...now.only, key] }) }, text)));
  const top = Math.max(...found.flatMap((one) => one.groups.map((entry) => entry.surprise ?? 0)), 1e-9);
  const columns = found.map((one, r) => el("section", {},
    el("p", { class: "note" }, runs.length > 1 ? `${runs[r].name}: ` : "", `${one.total} groups`),
    el("div", { class: "groups" }, one.groups.map((entry) => card(entry, r, top)))));
  const pages = Math.max(...found.map((one) => Math.ceil(one.total / one.size)), 1), page = Number(now.page);
  const turn = (to, text) => el("button", { type: "button", disabled: to < 0 || to >= pages, onclick: () => go({ page: String(to) }) }, text);
  main.replaceChildren(controls, el("div", { class: runs.length > 1 ? "columns two" : "columns" }, columns),
    el("div", { class: "pages" }, turn(page - 1, "Before"), `page ${page + 1} of ${pages}`, turn(page + 1, "Next")));
}

function choice(label, options, value, change) {
  const known = options.some(([key]) => key === value) ? options : [...options, [value, value]];
  return el("label", {}, label, el("select", { onchange: (event) => change(event.target.value) },
    known.map(([key, text]) => el("option", { value: key, selected: key === value }, text))));
}

export function card(entry, r, top) {
  const meter = el("i");
  meter.style.width = `${Math.min(100, (100 * (entry.surprise ?? 0)) / top)}%`;
  const tags = [entry.cut ? ["warn", `${entry.cut} cut off`] : null, entry.used < entry.answers ? ["", `${entry.used} of ${entry.answers} trained`] : null,
    ...entry.provenance.filter((one) => one !== "policy").map((one) => ["", one])].filter(Boolean);
  return el("a", { class: "card group", href: link(["group", String(r), entry.address]) },
    entry.media.length ? el("img", { class: "thumb", loading: "lazy", alt: "", src: `/api/runs/${r}/media/${encodeURIComponent(entry.media[0])}/0` }) : el("div", { class: "thumb" }),
    el("div", {}, el("div", { class: "q" }, entry.question),
      el("div", { class: "facts" }, `${entry.stage} ${entry.step}, ${entry.sample}`),
      el("div", { class: "facts" }, "reward ", el("b", {}, num(entry.reward)), `, best ${num(entry.best)}, expected ${num(entry.expected)}, surprise ${num(entry.surprise)}`),
      el("div", {}, tags.map(([kind, text]) => el("span", { class: `tag ${kind}` }, text))),
      el("div", { class: "meter", title: `surprise ${num(entry.surprise)}` }, meter)));
}

export async function same(main, runs, sample, alive) {
  const found = await Promise.all(runs.map((_, r) => get(`/api/runs/${r}/same`, { sample })));
  if (!alive()) return;
  const question = found.flatMap((one) => one.groups)[0]?.question ?? "";
  const columns = found.map((one, r) => el("section", { class: "card" },
    el("p", { class: "note" }, runs.length > 1 ? `${runs[r].name}: ` : "", `asked in ${one.total} kept steps`),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["step", "stage", "mean reward", "best", "spread", "tokens", "log-prob", "surprise"].map((name) => el("th", {}, name)))),
      el("tbody", {}, one.groups.map((entry) => el("tr", {},
        el("td", {}, el("a", { href: link(["group", String(r), entry.address]) }, String(entry.global_step))),
        [`${entry.stage} ${entry.step}`, num(entry.reward), num(entry.best), num(entry.spread), num(entry.tokens), num(entry.logp), num(entry.surprise)]
          .map((text) => el("td", {}, text)))))))));
  main.replaceChildren(el("h2", {}, question), el("p", { class: "note" }, `The same question over steps and stages (${sample})`),
    el("div", { class: runs.length > 1 ? "columns two" : "columns" }, columns));
}
