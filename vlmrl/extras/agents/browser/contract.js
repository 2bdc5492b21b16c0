// What `web_page` lays below a page, before any script of it: random numbers of the episode's seed, nothing that runs beside the page, and
// `__page`, which calls the functions of the page and says what they returned. What is not as it must be is said in words.
(() => {
  let [a, b, c, d] = SEEDS;
  const next = () => {  // sfc32
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0; a = b ^ (b >>> 9); b = (c + (c << 3)) | 0; c = (c << 21) | (c >>> 11); c = (c + t) | 0;
    return t >>> 0;
  };
  for (let n = 0; n < 16; n++) next();
  Math.random = () => (next() * 2 ** 21 + (next() >>> 11)) / 2 ** 53;
  const fill = view => {
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = next() >>> 24;
    return view;
  };
  Crypto.prototype.getRandomValues = fill;
  Crypto.prototype.randomUUID = () => {
    const hex = [...fill(new Uint8Array(16))].map((x, i) => (i === 6 ? x & 15 | 64 : i === 8 ? x & 63 | 128 : x).toString(16).padStart(2, '0'));
    return [4, 2, 2, 2, 6].map(n => hex.splice(0, n).join('')).join('-');
  };
  for (const name of ['Worker', 'SharedWorker'])
    window[name] = class {
      constructor() { throw new Error(`a ${name} runs beside the page, with a clock and random numbers of its own; do its work in the page`); }
    };
  Object.defineProperty(Navigator.prototype, 'serviceWorker', {get: () => undefined});
  if (window !== window.top) return;

  const told = v => {
    if (v === null || ['undefined', 'number', 'boolean', 'bigint', 'symbol'].includes(typeof v)) return String(v);
    if (typeof v === 'string') return JSON.stringify(v.slice(0, 80));
    if (v instanceof Element) return `the element <${v.tagName.toLowerCase()} id="${v.id}">`;
    if (typeof v.then === 'function') return 'a promise';
    return typeof v === 'function' ? 'a function' : Array.isArray(v) ? `a list of ${v.length}` : `an object with ${Object.keys(v).join(', ') || 'nothing in it'}`;
  };
  const said = e => String((e && e.stack) || told(e)).slice(0, 300);
  const report = v => ({kind: v === null ? 'null' : typeof v, told: told(v), value: Number.isFinite(v) || typeof v === 'boolean' || typeof v === 'string' ? v : null});
  const call = (name, args, read = report) => {
    if (typeof window[name] !== 'function') return {absent: told(window[name])};
    try { return read(window[name](...args)); } catch (e) { return {raised: said(e)}; }
  };
  // of what `reset` returns, the instruction
  const instruction = v => v !== null && typeof v === 'object' && !Array.isArray(v) && 'instruction' in v
    ? {...report(v.instruction), inside: true} : report(v);
  // the actions of `solve`, the first with the place of its element
  const actions = v => {
    if (!Array.isArray(v)) return report(v);
    const first = v.length ? {...v[0]} : null;
    if (first && 'on' in first) {
      const e = document.querySelector(first.on), r = e && e.getBoundingClientRect();
      if (!e) return {kind: 'none', told: first.on};
      first.coordinate = [1000 * (r.x + r.width / 2) / innerWidth, 1000 * (r.y + r.height / 2) / innerHeight].map(Math.round);
      delete first.on;
    }
    return {kind: 'list', count: v.length, first: first && JSON.stringify(first), told: told(v)};
  };
  let begun = null, since = 0;
  window.__page = {
    absent: () => ['reset', 'reward', 'done'].filter(name => typeof window[name] !== 'function').map(name => [name, told(window[name])]),
    begin(args) {
      const state = begun = {over: null};
      since = __clock.mark();
      const keep = v => { state.over = v; };
      const came = call('reset', args, v => ({returned: v}));
      if (!('returned' in came)) return keep(came);
      Promise.resolve(came.returned).then(v => keep(instruction(v)), e => keep({raised: said(e)}));
    },
    async begun() {
      for (let n = 0; n < 4; n++) await __clock.task();
      return {over: begun.over, due: __clock.due(since)};
    },
    reward: () => call('reward', []),
    done: () => call('done', []),
    hidden: () => typeof window.state === 'function' ? call('state', [], v => {
      const text = JSON.stringify(v);
      return text === undefined ? report(v) : {kind: 'json', value: text};
    }) : null,
    solve: () => typeof window.solve === 'function' ? call('solve', [], actions) : null,
  };
})();
