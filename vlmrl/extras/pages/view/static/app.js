"use strict";
// The view that the address names, in one frame; in a live folder it follows what is written.

const VIEWS = { "": folderView, run: reportView, evaluation: reportView, comparison: reportView, check: checkView, curves: curvesView,
  questions: questionsView, question: questionView, groups: groupsView, group: groupView };
const FIELDS = ["INPUT", "SELECT", "TEXTAREA"];
const main = document.getElementById("main");
let shows = 0, stamp = null;

async function show(fresh = true) {
  const mine = ++shows, { path, query } = place(), [view, ...rest] = path, kept = document.querySelector(".sheet")?.scrollTop;
  let made;
  try {
    const folder = await load("folder");
    if (view === "" && folder.start && !location.hash) { history.replaceState(null, "", link(folder.start.split("/"))); return show(); }
    made = VIEWS[view] ? await VIEWS[view](query, ...rest) : empty("There is no such page.", el("a", { href: "#/" }, "To the runs"));
    if (mine !== shows) return;
    frame(folder, view, rest, query);
  } catch (error) {
    if (mine !== shows) return;
    made = el("p", { class: "problem" }, error.message);
  }
  const focus = document.activeElement?.id;
  main.replaceChildren(...[made].flat(Infinity).filter((one) => one instanceof Node));
  main.dataset.view = view || "folder";
  if (!fresh && kept) { const sheet = document.querySelector(".sheet"); if (sheet) sheet.scrollTop = kept; }
  if (focus) document.getElementById(focus)?.focus();
  document.body.dataset.ready = String(mine);
}

// The line above every view: where it is, and what else there is of the same run.
function frame(folder, view, rest, query) {
  const id = view === "question" ? query.of : rest[0], run = folder.runs.find((one) => one.id === id);
  const other = folder.others.find((one) => one.id === id), here = run ?? other, several = folder.runs.length > 1;
  const home = folder.start && !several ? null : el("a", { href: "#/" }, folder.name);
  const crumbs = here ? [el("a", { href: link(here.address.split("/")) }, here.name), run ? state(run) : null] : [];
  document.getElementById("crumbs").replaceChildren(...[home, home && here ? "/" : null, ...crumbs].filter((one) => one !== null));
  const of = (kind, text, where = id) => [kind, link([kind, where]), text];
  const items = run ? [of("run", "Overview"), of("curves", "Curves"), of("questions", "Questions"), of("groups", "Groups")]
    : other?.kind === "check" ? [of("check", "Rows")] : other ? [of(other.kind, "Overview"), of("questions", "Questions")]
      : several ? [["", "#/", "Runs"], of("curves", "Curves", "arms"), of("questions", "Questions", "all")] : [];
  const now = { question: "questions", group: "groups" }[view] ?? view, current = items.find(([name]) => name === now);
  document.getElementById("nav").replaceChildren(...items.map(([name, href, text]) => el("a",
    { href, "aria-current": name === now ? "page" : null }, text)));
  document.title = visible([here?.name ?? folder.name, current?.[2]].filter(Boolean).join(" - "));
}

// Keys: arrows step through a list, / goes to the filter, escape leaves a field.
addEventListener("keydown", (event) => {
  const typing = FIELDS.includes(event.target.tagName);
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const name = { j: "ArrowRight", k: "ArrowLeft" }[event.key] ?? event.key;
  const step = document.querySelector(`[data-key="${CSS.escape(name)}"]`);
  const act = event.key === "/" ? () => document.querySelector("input[type=search]")?.focus()
    : step && !event.target.closest(".scroll, .sheet, .film") ? () => step.click() : null;
  if (act) { act(); event.preventDefault(); }
});

async function follow() {
  try {
    const waits = document.hidden || FIELDS.includes(document.activeElement?.tagName);
    const now = waits ? null : await (await fetch("api/live", { credentials: "same-origin" })).json();
    if (now && stamp !== null && now.stamp !== stamp) {
      V.kept.clear();
      await show(false);
    }
    stamp = now?.stamp ?? stamp;
  } catch { /* the next call says more */ }
  setTimeout(follow, 2000);
}

addEventListener("hashchange", async (event) => {
  const moved = event.oldURL?.split("?")[0] !== event.newURL?.split("?")[0];
  await show();
  if (moved && event.oldURL) scrollTo(0, 0);
});
show();
if (V.mode === "live") follow();
