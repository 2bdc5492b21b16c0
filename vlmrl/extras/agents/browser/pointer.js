// The pointer in our hands: scripts of the page hear of it only what an action did. Chromium may tell a new page, at a time of its own, of
// a move to its corner that nobody made; whether it does depends on the load of the machine, so no script may see it.
(() => {
  if (window !== window.top) return;  // actions are of the page, not of a frame in it
  let at = null, due = false, silent = false, astray = false;
  const filter = e => {
    if (!e.isTrusted) return;
    const here = at !== null && e.clientX === at[0] && e.clientY === at[1];
    const moves = e.type.endsWith('move') || e.type === 'pointerrawupdate';
    if (!silent && here && (due || (!moves && !astray))) {
      if (e.type === 'mousemove') due = false;  // the last event of a move
      return;
    }
    if (!silent && !here) astray = true;
    e.stopImmediatePropagation();
    e.preventDefault();
  };
  const kinds = ['move', 'over', 'out', 'enter', 'leave'];
  for (const name of [...kinds.map(k => 'mouse' + k), ...kinds.map(k => 'pointer' + k), 'pointerrawupdate'])
    window.addEventListener(name, filter, {capture: true});
  window.__pointer = {
    astray() { return astray; },  // whether something else than an action moved it
    expect(x, y, moves) { at = [x, y]; due = moves; },
    silent(on) { silent = on; if (!on) astray = false; },
  };
})();
