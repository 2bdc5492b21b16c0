"use strict";
// A medium as the model saw it with gold and answers drawn over it: a picture, or the kept frames of a video played at their times.

// `layers`: [{name, kind: "gold" or "c<n>", marks, on}]. The node has `draw(layers)`, which a view calls when layers are switched.
function player(medium, layers) {
  if (!medium?.frames.length) return problems(["These pixels were not kept: an evaluation keeps those of its first questions."])[0];
  const runs = equalFrames(medium.frames), video = Boolean(medium.times) && runs.length > 1, [high, wide] = medium.size;
  const image = el("img", { src: medium.frames[0], alt: "As the model saw it", width: wide, height: high });
  const over = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  const screen = el("div", { class: wide < 300 ? "screen small" : "screen" }, image, over), state = { at: 0, layers, timer: null };
  const end = medium.times ? Math.max(medium.duration ?? 0, medium.times.at(-1) ?? 0, 1e-9) : 1;
  const when = el("span"), lanes = el("div", { class: "lanes" }), cursors = [];
  const slider = el("input", { type: "range", min: 0, max: medium.frames.length - 1, value: 0, "aria-label": "Frame",
    oninput: (event) => show(Number(event.target.value)) });
  const play = button("Play", () => (state.timer === null ? start() : stop()));
  const film = el("div", { class: "film" },
    runs.map(([from, last]) => button([el("img", { src: medium.frames[from], loading: "lazy", alt: "" }),
      last > from ? el("span", {}, `× ${last - from + 1}`) : null], () => show(from),
    { "data-from": from, "data-to": last, "aria-label": `Frames ${from + 1} to ${last + 1}` })));

  function show(n) {
    state.at = n;
    image.src = medium.frames[n];
    slider.value = String(n);
    const frame = `frame ${medium.indices[n] + 1} of ${medium.total}`;
    when.textContent = medium.times ? `${medium.times[n].toFixed(2)} s, ${frame}` : frame;
    for (const one of cursors) one.style.left = `${(100 * (medium.times?.[n] ?? 0)) / end}%`;
    for (const one of film.children) one.setAttribute("aria-pressed", String(n >= Number(one.dataset.from) && n <= Number(one.dataset.to)));
    over.replaceChildren(...state.layers.filter((one) => one.on).flatMap((one) => shapes(one.marks?.shapes ?? [], one.kind, n)));
  }

  function start() {
    if (state.at >= medium.frames.length - 1) show(0);
    play.textContent = "Pause";
    const next = () => {
      if (state.at >= medium.frames.length - 1 || !image.isConnected) return stop();
      const wait = (medium.times[state.at + 1] - medium.times[state.at]) * 1000;
      state.timer = setTimeout(() => { show(state.at + 1); next(); }, Math.min(Math.max(wait, 30), 1500));
    };
    next();
  }

  function stop() {
    clearTimeout(state.timer);
    state.timer = null;
    play.textContent = "Play";
  }

  function draw(now) {
    state.layers = now;
    cursors.length = 0;
    const timed = now.filter((one) => one.on && one.marks?.spans?.length);
    lanes.replaceChildren(...(medium.times ? timed : []).flatMap((one) => {
      const line = el("b"), share = (time) => (100 * Math.min(time, end)) / end;
      const words = (span) => `${num(span.start)} to ${num(span.end)} s`;
      const bars = one.marks.spans.map((span) => el("i", { title: words(span), style: { left: `${share(span.start)}%`,
        width: `${Math.max(0, share(span.end) - share(span.start))}%`, opacity: String(0.35 + 0.65 * span.weight) } }));
      cursors.push(line);
      return [el("span", {}, one.name), el("div", { class: `lane ${one.kind}` }, bars, line),
        el("span", {}, one.marks.spans.slice(0, 3).map(words).join(", "))];
    }));
    show(state.at);
  }

  state.at = firstShown(medium, layers);
  draw(layers);
  const node = el("div", { class: "medium" }, screen, video ? [el("div", { class: "controls" }, play, slider, when), film] : null, lanes);
  return Object.assign(node, { draw });
}

// The first frame on which gold is: on a video it is what one wants to see.
function firstShown(medium, layers) {
  const marks = layers.find((one) => one.id === "gold")?.marks;
  const frames = (marks?.shapes ?? []).map((one) => one.frame).filter(Number.isInteger);
  const at = frames.length ? Math.min(...frames) : marks?.spans?.length && medium.times
    ? medium.times.findIndex((time) => time >= marks.spans[0].start) : 0;
  return Math.max(0, Math.min(at, medium.frames.length - 1));
}

// Runs of frames that are alike: [first, last].
function equalFrames(frames) {
  const out = [];
  frames.forEach((one, n) => (n && one === frames[n - 1] ? (out[out.length - 1][1] = n) : out.push([n, n])));
  return out;
}

function shapes(marks, kind, n) {
  return marks.filter((mark) => mark.frame === null || mark.frame === n).flatMap((mark) => {
    const p = mark.points, twice = (d) => [svg("path", { class: "halo", d }),
      svg("path", { class: `mark ${kind}${mark.odd ? " odd" : ""}`, d })];
    const corners = () => p.filter((_, i) => i % 2 === 0).map(([a, b],
      i) => `M${a} ${b}H${p[2 * i + 1][0]}V${p[2 * i + 1][1]}H${a}Z`).join("");
    if (mark.kind === "point") {
      const [x, y] = p[0], ring = `M${x - 1.5} ${y}a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0 -3 0`;
      return twice(mark.negative ? ring : `M${x - 2.4} ${y}H${x + 2.4}M${x} ${y - 2.4}V${y + 2.4}${ring}`);
    }
    if (mark.kind === "mask") return [svg("path", { class: `mask ${kind}`, d: corners() })];
    return twice(mark.kind === "polygon" ? `M${p.map((one) => one.join(" ")).join("L")}Z` : corners());
  });
}

// Buttons that switch layers of marks off and on; what is off stands in the address.
function layerBar(layers, players) {
  const off = new Set((place().query.hide ?? "").split(",").filter(Boolean)), marked = layers.filter((one) => drawable(one.marks));
  for (const one of layers) one.on = !off.has(one.id);
  players.forEach((one) => one.draw?.(layers));
  if (!marked.length) return null;
  const flip = (one, pressed) => {
    if (!off.delete(one.id)) off.add(one.id);
    one.on = !off.has(one.id);
    pressed.setAttribute("aria-pressed", String(one.on));
    history.replaceState(null, "", link(place().path, { ...place().query, hide: [...off].join(",") }));
    players.forEach((player) => player.draw?.(layers));
  };
  return el("div", { class: "bar layers", role: "group", "aria-label": "Drawn" }, note("Drawn"),
    marked.map((one) => press([el("i", { class: `key ${one.kind}` }), one.name], one.on, (event) => flip(one, event.currentTarget))));
}

// Media with their layers, the buttons that switch these, and what stands beside them.
function drawnBeside(media, layers, ...beside) {
  const players = media.map((medium) => player(medium, layers));
  return [layerBar(layers, players), el("div", { class: "asked" },
    el("div", {}, players.length ? players : empty("This question has no media.")), el("div", {}, beside))];
}
