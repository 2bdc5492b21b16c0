"use strict";
// Curves of one run, of several in one plot, or the means and bands of arms over their seeds.

const AXES = { step: "step", samples: "answers seen", seconds: "seconds" }, MOST_CHARTS = 40;

async function curvesView(query, id) {
  const { runs } = await load("folder"), names = [...new Set([id, ...(query.with ?? "").split(",").filter(Boolean)])], arms = id === "arms";
  const x = query.x in AXES ? query.x : "step", weight = Math.max(0, Math.min(0.98, Number(query.smooth ?? 0.5) || 0));
  const wanted = (query.q ?? "").toLowerCase(), all = Boolean(query.q || query.all);
  const made = arms ? await ofArms() : await ofRuns(names, runs, all), stages = x === "step" ? made.docs[0].stages : [];
  const charts = chartsOf(made, x).filter((one) => `${one.title} ${one.keys}`.toLowerCase().includes(wanted));
  const ends = charts.flatMap((one) => one.lines.flatMap((line) => [line.x[0], line.x.at(-1)]));
  const shared = { span: ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1], axis: AXES[x], stages,
    onpick: arms || x !== "step" ? null : (step, line) => { location.hash = link(["groups", line.run], { step }); } };
  const drawn = charts.slice(0, Number(query.most ?? MOST_CHARTS)).map((one) =>
    chart({ ...one, ...shared, lines: one.lines.map((line) => smoothed(line, weight, stages)) }));
  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: weight,
    onchange: (event) => choose({ smooth: event.target.value }, true) });
  const controls = bar(el("label", {}, "smooth", slider),
    pick("x", Object.entries(AXES), x, (value) => choose({ x: value === "step" ? "" : value })),
    el("input", { type: "search", placeholder: "name of a curve", value: query.q ?? "", "aria-label": "Name of a curve",
      onchange: (event) => choose({ q: event.target.value }) }),
    arms ? null : press("all metrics", Boolean(query.all), () => choose({ all: query.all ? "" : "1" })),
    runs.length > 1 && !arms ? to(link(["curves", "arms"], { smooth: query.smooth }), "mean and band over seeds") : null);
  const nothing = wanted ? empty(`No curve is called ${query.q}.`, "Try a part of a name, such as reward, loss or time.")
    : empty("No step has been logged yet.", "Curves appear here while the run trains.");
  return [el("h1", {}, arms ? "Curves: mean and band over seeds" : "Curves"), controls, made.legend,
    made.table ? grid(made.table) : null,
    arms ? aside("Line: mean over the seeds of an arm. Band: one standard deviation over seeds to either side; one run has none.") : null,
    drawn.length ? el("div", { class: "charts" }, drawn) : nothing,
    charts.length > drawn.length ? el("p", {}, button(`Show all ${charts.length}`, () => choose({ most: charts.length }))) : null];
}

// Lines of few points are left as they are.
function smoothed(line, weight, stages) {
  if (weight < 0.01 || line.y.length <= 12) return line;
  const made = (values) => smooth(values, weight, line.x, stages.map((one) => one.from));
  return { ...line, raw: line.low ? null : line.y, y: made(line.y), low: line.low && made(line.low), high: line.high && made(line.high) };
}

async function ofRuns(names, runs, all) {
  const [id, ...more] = names, others = runs.filter((run) => run.id !== id);
  const name = (one) => runs.find((run) => run.id === one)?.name ?? one;
  const flip = (run) => choose({ with: (more.includes(run) ? more.filter((one) => one !== run) : [...more, run]).join(",") });
  const legend = others.length ? el("div", { class: "bar legend" }, el("span", { class: "tag" }, swatch(0), name(id)),
    others.slice(0, 24).map((run) => press([more.includes(run.id) ? swatch(names.indexOf(run.id) % 8) : "+ ", run.name],
      more.includes(run.id), () => flip(run.id)))) : null;
  const loaded = (kind) => Promise.all(names.map((one) => load(`${kind}/${one}`)));
  return { runs: names, names: names.map(name), docs: await loaded("curves"), metrics: all ? await loaded("metrics") : [], legend };
}

async function ofArms() {
  const { arms, table } = await load("arms");
  const tags = arms.map((one, n) => el("span", { class: "tag" }, swatch(n % 8), `${one.name}, ${count(one.runs, "run")}`));
  return { runs: [], names: arms.map((one) => one.name), docs: arms.map((one) => one.curves), metrics: [], table,
    legend: el("div", { class: "bar legend" }, tags) };
}

// Of one run a chart is a group of series; of several runs or arms a chart is one series with a line for each.
function chartsOf({ runs, names, docs, metrics }, x) {
  const charts = new Map();
  const add = (doc, r, raw) => doc.groups.forEach(({ title, note, series }) => series.forEach((one, s) => {
    const at = doc.xs[one.x][x], alone = names.length === 1 && !raw, single = series.length === 1;
    if (!at?.length) return;
    const name = alone ? title : raw ? one.name : single ? title : `${title}: ${one.name}`, more = one.n > 1 ? ` (${one.n})` : "";
    const found = charts.get(name) ?? { title: name, note: raw || !(single || alone) ? null : note, keys: "", lines: [] };
    found.keys += ` ${one.key}`;
    found.lines.push({ ...one, run: runs[r], x: at, name: alone ? one.name : names[r] + more, colour: (alone ? s : r) % 8 });
    charts.set(name, found);
  }));
  docs.forEach((doc, r) => add(doc, r, false));
  metrics.forEach((doc, r) => add(doc, r, true));
  return [...charts.values()];
}
