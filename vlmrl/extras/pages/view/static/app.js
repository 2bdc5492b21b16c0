// Follows the runs, and shows the view that the address names.

import { el, get, place } from "./dom.js";
import { curves } from "./curves.js";
import { groups, same } from "./groups.js";
import { group } from "./group.js";

const EVERY = 3000;
const main = document.getElementById("main");
let runs = [], shown = 0, seen = "";

async function load() {
  const names = await get("/api/runs");
  return Promise.all(names.map((_, r) => get(`/api/runs/${r}/state`)));
}

function head() {
  document.title = `${runs.map((run) => run.name).join(", ")} - vlmrl view`;
  document.getElementById("runs").replaceChildren(...runs.map((run, r) => el("div", { class: `run r${r}` },
    el("h1", {}, el("span", { class: "dot" }), run.name, el("span", { class: `state ${run.status}` }, run.status)),
    el("p", {}, run.stage === null ? "no step yet" : `stage ${run.stage}, step ${run.step}${run.steps === null ? "" : ` of ${run.steps}`}`, `, ${run.groups} groups kept`),
    run.problem ? el("p", { class: "problem" }, run.problem) : null)));
  for (const one of document.querySelectorAll("nav a")) {
    if (one.getAttribute("href") === (place().path[0] === "curves" ? "#/curves" : "#/groups")) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
}

async function show() {
  const mine = ++shown, alive = () => mine === shown;
  const [view, first, second] = place().path;
  head();
  try {
    if (view === "groups") await groups(main, runs, alive);
    else if (view === "group" && Number(first) < runs.length) await group(main, runs, Number(first), second, alive);
    else if (view === "same") await same(main, runs, first, alive);
    else await curves(main, runs, alive);
  } catch (error) {
    if (alive()) main.replaceChildren(el("p", { class: "problem" }, error.message));
  }
  document.body.dataset.ready = String(mine);
}

// A group is never changed once it is kept; lists and curves are, unless somebody is typing.
function follows() {
  return ["curves", "groups", "same"].includes(place().path[0]) && !["INPUT", "SELECT"].includes(document.activeElement?.tagName) && !document.hidden;
}

async function poll() {
  try {
    const now = await load();
    const text = JSON.stringify(now.map((run) => [run.status, run.global_step, run.groups, run.metrics.length]));
    runs = now;
    if (text !== seen) {
      head();
      if (shown === 0 || follows()) {
        seen = text;
        await show();
      }
    }
  } catch (error) {
    document.getElementById("runs").replaceChildren(el("p", { class: "problem" }, `not followed any more: ${error.message}`));
  }
  setTimeout(poll, EVERY);
}

addEventListener("hashchange", async () => { await show(); scrollTo(0, 0); });
poll();
