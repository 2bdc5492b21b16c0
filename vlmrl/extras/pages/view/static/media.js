// A medium with its marks: a picture, or kept frames of a video played at their times, with spans of time below.

import { el, svg, num } from "./dom.js";

export function player(r, key, info, marks, chosen) {
  if (!info) return el("p", { class: "problem" }, "The pixels of this medium were not kept.");
  const source = (n) => `/api/runs/${r}/media/${encodeURIComponent(key)}/${n}`;
  const count = info.indices.length, video = info.times !== null;
  const image = el("img", { src: source(0), alt: video ? "Frame of the video as the model saw it" : "Picture as the model saw it", width: info.size[1], height: info.size[0] });
  const over = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  const screen = el("div", { class: info.size[1] < 300 ? "screen small" : "screen" }, image, over);
  const state = { at: 0, answer: chosen, timer: null };
  const spans = [marks.gold, ...marks.answers].some((one) => one.spans.length > 0);
  const end = video ? Math.max(info.duration ?? 0, info.times[count - 1], 1e-9) : 1;
  const line = el("b"), lanes = el("div", { class: "lanes" });
  const slider = el("input", { type: "range", min: 0, max: count - 1, value: 0, "aria-label": "Frame", oninput: (event) => show(Number(event.target.value)) });
  const when = el("span");
  const play = el("button", { type: "button", onclick: () => (state.timer === null ? start() : stop()) }, "Play");
  const film = el("div", { class: "film" }, video ? info.indices.map((_, n) => el("button", { type: "button", "aria-label": `Frame ${n + 1}`, onclick: () => show(n) },
    el("img", { src: source(n), loading: "lazy", alt: "" }))) : []);

  function show(n) {
    state.at = n;
    image.src = source(n);
    slider.value = String(n);
    if (video) {
      when.textContent = `${info.times[n].toFixed(2)} s, frame ${info.indices[n] + 1} of ${info.total}`;
      line.style.left = `${(100 * info.times[n]) / end}%`;
    }
    [...film.children].forEach((one, i) => one.setAttribute("aria-pressed", String(i === n)));
    over.replaceChildren(...shapes(marks.gold.shapes, "gold", n), ...shapes(marks.answers[state.answer]?.shapes ?? [], "pred", n));
  }

  function start() {
    if (state.at === count - 1) show(0);
    play.textContent = "Pause";
    const next = () => {
      if (state.at >= count - 1 || !image.isConnected) return stop();
      const wait = (info.times[state.at + 1] - info.times[state.at]) * 1000;
      state.timer = setTimeout(() => { show(state.at + 1); next(); }, Math.min(Math.max(wait, 30), 2000));
    };
    next();
  }

  function stop() {
    clearTimeout(state.timer);
    state.timer = null;
    play.textContent = "Play";
  }

  function drawLanes() {
    if (!video) return;
    const rows = [["gold", marks.gold.spans, "gold"], [`answer ${state.answer + 1}`, marks.answers[state.answer]?.spans ?? [], "pred"]];
    lanes.replaceChildren(...rows.flatMap(([name, spans, kind], row) => {
      const bars = spans.map((span) => {
        const bar = el("i", { title: `${num(span.start)} s to ${num(span.end)} s` });
        bar.style.left = `${(100 * Math.min(span.start, end)) / end}%`;
        bar.style.width = `${(100 * Math.max(0, Math.min(span.end, end) - Math.min(span.start, end))) / end}%`;
        bar.style.opacity = String(0.35 + 0.65 * span.weight);
        return bar;
      });
      const text = spans.length ? spans.slice(0, 3).map((span) => `${num(span.start)} to ${num(span.end)} s`).join(", ") : "no span";
      return [el("span", {}, `${name}: ${text}`), el("div", { class: `lane ${kind}` }, bars, row === 0 ? line : null)];
    }));
  }

  function pick(answer) {
    state.answer = answer;
    drawLanes();
    show(state.at);
  }

  pick(chosen);
  const controls = video && count > 1 ? el("div", { class: "controls" }, play, slider, when) : null;
  const left = el("div", {}, screen, controls, video && count > 1 ? film : null);
  return { node: left, lanes: video && spans ? lanes : null, pick };
}

function shapes(list, kind, n) {
  return list.filter((mark) => mark.frame === null || mark.frame === n).flatMap((mark) => {
    const odd = mark.odd ? " odd" : "";
    if (mark.kind === "point") {
      const [x, y] = mark.points[0];
      const cross = `M${x - 2.4} ${y}H${x + 2.4}M${x} ${y - 2.4}V${y + 2.4}`;
      const ring = `M${x - 1.5} ${y}a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0 -3 0`;
      return twice((mark.negative ? ring : cross + ring), kind + odd);
    }
    if (mark.kind === "mask") {
      const pairs = mark.points.filter((_, i) => i % 2 === 0).map((p, i) => [p, mark.points[2 * i + 1]]);
      return [svg("path", { class: `mask ${kind}`, d: pairs.map(([[a, b], [c, d]]) => `M${a} ${b}H${c}V${d}H${a}Z`).join("") })];
    }
    if (mark.kind === "box") {
      const [[a, b], [c, d]] = mark.points;
      return twice(`M${a} ${b}H${c}V${d}H${a}Z`, kind + odd);
    }
    return twice(`M${mark.points.map((p) => p.join(" ")).join("L")}Z`, kind + odd);
  });
}

function twice(d, kind) {
  return [svg("path", { class: "halo", d }), svg("path", { class: kind, d })];
}
