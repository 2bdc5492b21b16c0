// (page, what it asks for) -> [x, y], the pixel whose click solves a page of MiniWoB++ that takes one click; null where none shows.
// With `every`: of pixels so far apart, line by line, whether a click there would solve it.
// What is right is read from what the page asks and has drawn, and no script of the page is called.
(page, asked, every) => {
  const all = selector => [...document.querySelectorAll(selector)];
  const quoted = (/"(.*)"/.exec(asked) || [])[1];
  const says = (selector, text) => all(selector).filter(e => e.textContent.trim() === text);
  const kind = e => ({rect: 'rectangle', circle: 'circle', polygon: 'triangle'})[e.tagName] || (/[0-9]/.test(e.textContent) ? 'digit' : 'letter');
  const shapeFits = e => {
    const words = /^Click on an? (.*)$/.exec(asked)[1].split(' '), what = words.pop(), text = e.tagName === 'text';
    // a letter is drawn 20 or 10 pixels high, a shape so wide
    const large = (text ? parseFloat(e.getAttribute('font-size')) : e.getBBox().width) > 15;
    const names = ['item', kind(e), ...(text ? [e.textContent] : ['shape'])];
    return names.includes(what) && words.every(word => (word === 'large' || word === 'small' ? (word === 'large') === large : e.getAttribute('fill') === word));
  };
  const RIGHT = {
    'click-button': () => says('#area button', quoted),
    'click-color': () => all(`#area .color[data-color="${/on the (.*) colored/.exec(asked)[1]}"]`),
    'click-dialog': () => all('.ui-dialog-titlebar button'),
    'click-dialog-2': () => (quoted === 'x' ? all('.ui-dialog-titlebar button') : says('.ui-dialog-buttonset button', quoted)),
    'click-link': () => says('#area .alink', quoted),
    'click-shape': () => all('#area_svg > *').filter(shapeFits),
    'click-test': () => all('#subbtn'),
    'click-test-2': () => all('#subbtn'),
    'click-widget': () => all(`#area [data-type="${quoted}"]`),
    'focus-text': () => all('#tt'),
    'focus-text-2': () => all(`#tt${/the ([123])/.exec(asked)[1]}`),
    'grid-coordinate': () => all('circle').filter(e => asked.includes(e.id)),
    'identify-shape': () => all('#area_svg > *').flatMap(e => all(`#area-buttons button[data-type="${kind(e)}"]`)),
  };
  // the pixel of an element that is nearest to the middle of one of its parts and that nothing else covers
  const visible = e => {
    const found = [];
    for (const box of e.getClientRects()) {
      const [mx, my] = [box.left + box.width / 2, box.top + box.height / 2];
      for (let x = Math.ceil(Math.max(0, box.left)); x < Math.min(innerWidth, box.right - 1); x++)
        for (let y = Math.ceil(Math.max(0, box.top)); y < Math.min(innerHeight, box.bottom - 1); y++)
          found.push([(x + 0.5 - mx) ** 2 + (y + 0.5 - my) ** 2, x, y]);
    }
    found.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
    const at = found.find(([, x, y]) => e.contains(document.elementFromPoint(x + 0.5, y + 0.5)));
    return at ? at.slice(1) : null;
  };
  const right = RIGHT[page]();
  if (!every) return right.map(visible).find(point => point) || null;
  const along = length => [...Array(Math.ceil(length / every)).keys()].map(n => every * n);
  return along(innerHeight).map(y => along(innerWidth).map(x => right.some(e => e.contains(document.elementFromPoint(x + 0.5, y + 0.5)))));
}
