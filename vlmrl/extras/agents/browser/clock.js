// The page's clock in our hands: it stands still except in `__clock.advance`, which calls what falls due, in order, at its time.
// Each callback runs as a task of its own, so that promises of one are settled before the next. Animations and transitions of CSS
// do not follow this clock and are switched off, as are the caret and what would wait for a person.
(() => {
  const RealDate = Date, epoch = EPOCH, timers = new Map(), channel = new MessageChannel();
  let now = 0, next = 1;  // milliseconds since the page was opened
  const ms = d => Math.max(0, +d || 0);
  const add = (f, at, every, args) => { timers.set(next, {f, at, every, args}); return next++; };
  const drop = i => { timers.delete(i); };
  // at least 1 ms, as in the browser: what calls itself again without a delay would never let time pass
  window.setTimeout = (f, d, ...a) => add(f, now + Math.max(1, ms(d)), null, a);
  window.setInterval = (f, d, ...a) => add(f, now + Math.max(1, ms(d)), Math.max(1, ms(d)), a);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = window.cancelIdleCallback = drop;
  // frames lie on a grid of 60 per second, whenever they are asked for
  const frame = () => (Math.floor(now * 60 / 1000 + 1e-6) + 1) * 1000 / 60;
  window.requestAnimationFrame = f => add(() => f(now), frame(), null, []);
  window.requestIdleCallback = f => add(() => f({didTimeout: false, timeRemaining: () => 50}), now + 1, null, []);
  performance.now = () => now;
  Object.defineProperty(performance, 'timeOrigin', {get: () => epoch});
  Object.defineProperty(Event.prototype, 'timeStamp', {get: () => now});
  window.Date = new Proxy(RealDate, {
    construct: (target, args, self) => Reflect.construct(target, args.length ? args : [Math.floor(epoch + now)], self === window.Date ? target : self),
    apply: () => new RealDate(Math.floor(epoch + now)).toString(),
    get: (target, name) => name === 'now' ? () => Math.floor(epoch + now) : Reflect.get(target, name),
  });
  RealDate.prototype.constructor = window.Date;
  // what else tells the time without being given one
  const format = Intl.DateTimeFormat.prototype, {get: formatter} = Object.getOwnPropertyDescriptor(format, 'format'), parts = format.formatToParts;
  Object.defineProperty(format, 'format', {get() { const f = formatter.call(this); return d => f(d === undefined ? window.Date.now() : d); }});
  format.formatToParts = function (d) { return parts.call(this, d === undefined ? window.Date.now() : d); };
  Object.defineProperty(Document.prototype, 'lastModified', {get: () => new window.Date(epoch).toLocaleString('en-US', {hour12: false}).replace(',', '')});
  if (window.Temporal) {
    const instant = () => Temporal.Instant.fromEpochMilliseconds(window.Date.now());
    const zonedDateTimeISO = (zone = 'UTC') => instant().toZonedDateTimeISO(zone);
    Object.assign(Temporal.Now, {
      instant, zonedDateTimeISO,
      plainDateTimeISO: zone => zonedDateTimeISO(zone).toPlainDateTime(),
      plainDateISO: zone => zonedDateTimeISO(zone).toPlainDate(),
      plainTimeISO: zone => zonedDateTimeISO(zone).toPlainTime(),
    });
  }
  const task = () => new Promise(done => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
  window.__clock = {
    errors: [],
    task,
    // for a script that waits: the number of the timer that comes next, and how long until the first due of those from there on
    mark: () => next,
    due(mark) {
      const at = [...timers].filter(([i, t]) => i >= mark && t.every === null).map(([, t]) => t.at);
      return at.length ? Math.max(0, Math.min(...at) - now) : null;
    },
    async advance(d) {
      const end = now + d;
      let calls = 0;
      for (;;) {
        let best = null, id = 0;
        for (const [i, t] of timers) if (t.at <= end && (best === null || t.at < best.at || (t.at === best.at && i < id))) { best = t; id = i; }
        if (best === null) break;
        if (++calls > LIMIT) throw new Error('more than LIMIT callbacks fall due in one action');
        now = Math.max(now, best.at);
        if (best.every === null) timers.delete(id); else best.at += best.every;
        await task();
        try { typeof best.f === 'function' ? best.f.apply(window, best.args) : (0, eval)(best.f); }
        catch (e) { this.errors.push(String(e)); }
      }
      now = end;
      await task();
    },
  };
  const style = new CSSStyleSheet();
  style.replaceSync('*, *::before, *::after { animation: none !important; transition: none !important; ' +
    'caret-color: transparent !important; scroll-behavior: auto !important }');
  document.adoptedStyleSheets = [style];
  window.alert = () => {};
  window.confirm = () => true;
  window.prompt = () => '';
  window.open = () => null;
  window.print = () => {};
})();
