"use strict";
// Curves of one run, of several in one plot, or the means and bands of arms over their seeds.

const AXES = { step: "step", samples: "answers seen", seconds: "seconds" }, MOST_CHARTS = 40;

async function curvesView(query, id) {
  const { runs, several } = await load("folder"), names = [...new Set([id, ...(query.with ?? "").split(",").filter(Boolean)])],
    arms = id === "arms";
  const x = query.x in AXES ? query.x : "step", weight = Math.max(0, Math.min(0.98, Number(query.smooth ?? 0.5) || 0));
  const made = arms ? await armCharts(x) : await runCharts(names, runs, x, Boolean(query.q || query.all)),
    wanted = (query.q ?? "").toLowerCase();
  const charts = made.charts.filter((one) => one.lines.length && `${one.title} ${one.keys}`.toLowerCase().includes(wanted));
  const ends = charts.flatMap((one) => one.lines.flatMap((line) => [line.x[0], line.x.at(-1)])), stages = x === "step" ? made.stages : [];
  const shared = { span: ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1], axis: AXES[x], stages,
    onpick: arms || x !== "step" ? null : (step, line) => { location.hash = link(["groups", line.run], { step }); } };
  const drawn = charts.slice(0,
    Number(query.most ?? MOST_CHARTS)).map((one) => chart({ ...one, ...shared,
    lines: one.lines.map((line) => smoothed(line, weight, stages)) }));
  const controls = el("div", { class: "bar" },
    el("label", {}, "smooth",
      el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: weight, onchange: (event) => choose({ smooth: event.target.value },
      true) })),
    pick("x", Object.entries(AXES), x, (value) => choose({ x: value === "step" ? "" : value })),
    el("input", { type: "search", placeholder: "name of a curve", value: query.q ?? "", "aria-label": "Name of a curve",
      onchange: (event) => choose({ q: event.target.value }) }),
    arms ? null : press("all metrics", Boolean(query.all), () => choose({ all: query.all ? "" : "1" })),
    several && !arms ? el("a", { class: "button", href: link(["curves", "arms"], { smooth: query.smooth }) }, "mean and band over seeds")
      : null);
  const nothing = wanted ? empty(`No curve is called ${query.q}.`, "Try a part of a name, such as reward, loss or time.")
    : empty("No step has been logged yet.", "Curves appear here while the run trains.");
  return [el("h1", {}, arms ? "Curves: mean and band over seeds" : "Curves"), controls, arms ? made.legend : runLegend(names, runs),
    made.table ? grid(made.table) : null,
    arms ? aside("Line: mean over the seeds of an arm. Band: one standard deviation over seeds to either side; one run has none.") : null,
    drawn.length ? el("div", { class: "charts" }, drawn) : nothing,
    charts.length > drawn.length ? el("p", {}, el("button", { type: "button", onclick: () => choose({ most: charts.length }) },
      `Show all ${charts.length}`)) : null];
}

// Lines of few points are left as they are.
function smoothed(line, weight, stages) {
  if (weight < 0.01 || line.y.length <= 12) return line;
  const made = (values) => smooth(values, weight, line.x, stages.map((one) => one[1])),
    [low, high] = [0, 1].map((side) => line.band && made(line.band.map((one) => one[side])));
  return { ...line, raw: line.band ? null : line.y, y: made(line.y), band: line.band ? low.map((one, n) => [one, high[n]]) : null };
}

function runLegend(names, runs) {
  const [id, ...more] = names, others = runs.filter((run) => run.id !== id);
  const flip = (run) => choose({ with: (more.includes(run) ? more.filter((one) => one !== run) : [...more, run]).join(",") });
  return others.length ? el("div", { class: "bar legend" },
    el("span", { class: "tag" }, swatch(0), runs.find((run) => run.id === id)?.name ?? id),
    others.slice(0, 24).map((run) => press([more.includes(run.id) ? swatch(names.indexOf(run.id) % 8) : "+ ", run.name],
      more.includes(run.id), () => flip(run.id)))) : null;
}

// Of one run a chart is a group of series; of several runs a chart is one series with a line per run.
async function runCharts(names, runs, x, all) {
  const found = await Promise.all(names.map((id) => load(`curves/${id}`))),
    metrics = all ? await Promise.all(names.map((id) => maybe(`metrics/${id}`))) : [];
  const charts = new Map(), put = (title, note, key, line) => {
    const one = charts.get(title) ?? { title, note, keys: "", lines: [] };
    one.keys += ` ${key}`;
    one.lines.push(line);
    charts.set(title, one);
  };
  const add = (doc, r, raw) => doc.groups.forEach((group) => group.series.forEach((series, s) => {
    const at = doc.xs[series.x]?.[x], single = group.series.length === 1, line = { run: names[r], x: at, y: series.y };
    if (!at?.length) return;
    const name = runs.find((run) => run.id === names[r])?.name ?? names[r];
    if (names.length === 1 && !raw) put(group.title, group.note, series.key, { ...line, name: series.name, colour: s % 8 });
    else put(raw ? series.name : single ? group.title : `${group.title}: ${series.name}`, raw || !single ? null : group.note, series.key,
      { ...line, name, colour: r % 8 });
  }));
  found.forEach((doc, r) => add(doc, r, false));
  metrics.forEach((doc, r) => doc && add(doc, r, true));
  return { charts: [...charts.values()], stages: found[0].stages.map((one) => [one.words ?? one.name, one.from, one.to]) };
}

async function armCharts(x) {
  const { arms, groups, primary } = await load("arms");
  const charts = groups.flatMap(({ title, note, series }) => {
    const keys = [...new Set(series.map((one) => one.key))];
    return keys.map((key) => {
      const own = series.filter((one) => one.key === key && one[x]?.length);
      return { title: keys.length > 1 ? `${title}: ${own[0]?.name}` : title, note: keys.length > 1 ? null : note, keys: key,
        lines: own.map((one) => ({
        name: `${arms[one.arm].name} (${one.n})`, colour: one.arm % 8, x: one[x], y: one.mean,
          band: one.low ? one.low.map((low, n) => [low, one.high[n]]) : null })) };
    });
  });
  const legend = arms.map((one, n) => el("span", { class: "tag" }, swatch(n % 8), `${one.name}, ${count(one.runs.length, "run")}`));
  return { charts, legend: el("div", { class: "bar legend" }, legend), table: primary, stages: [] };
}
