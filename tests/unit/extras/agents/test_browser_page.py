"""agents.browser.page on pages of our own: the clock, what can be reached, what actions do, what a hung page and a killed user leave."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from tests.support.browsers import OWN, alive, below, comes_true, needs_browser, own_page
from vlmrl.extras.agents.browser.page import EPOCH, Page
from vlmrl.extras.agents.browser.pipe import BrowserError
from vlmrl.extras.agents.browser.process import Browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    one = Browser(seconds=60.0)
    yield one
    one.close()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


CLOCK = """<p id=p></p><script>
window.said = []; const say = what => said.push([what, performance.now()]);
setInterval(() => say('every'), 30);
setTimeout(() => { say('late'); }, 50);
setTimeout(() => { say('soon'); Promise.resolve().then(() => say('promise')); setTimeout(() => say('nested'), 0); }, 10);
setTimeout(() => say('also soon'), 10);
const gone = setTimeout(() => say('never'), 10); clearTimeout(gone);
requestAnimationFrame(t => say('frame ' + (t === performance.now())));
setTimeout('said.push("text")', 60);
setTimeout(() => { throw new Error('oh') }, 61);
</script>"""


def test_time_stands_still_but_for_what_is_let_pass(browser: Browser):
    page = own_page(browser, CLOCK)
    assert page.run("[said, Date.now(), new Date().getTime(), performance.now()]") == [[], EPOCH, EPOCH, 0]
    page.advance(25)
    said = page.run("said")
    assert [what for what, _ in said] == ["soon", "promise", "also soon", "nested", "frame true"]
    assert [round(at, 2) for _, at in said] == [10, 10, 10, 11, 16.67]
    page.advance(40)
    assert page.run("said.slice(5)") == [["every", 30], ["late", 50], ["every", 60], "text"]
    assert page.run("[Date.now() - EPOCH, performance.timeOrigin - EPOCH, __clock.errors]".replace("EPOCH", str(EPOCH))) == [
        65,
        0,
        ["Error: oh"],
    ]
    assert page.run("[new Date(5).getTime(), new Date() instanceof Date, Date.UTC(1970, 0, 1), typeof Date()]") == [5, True, 0, "string"]
    assert page.run("new Event('x').timeStamp") == 65
    page.close()


TELLERS = """[new Intl.DateTimeFormat('en-US', {timeStyle: 'medium'}).format(), new Intl.DateTimeFormat('en-US').formatToParts()[0].value,
  window.Temporal ? Temporal.Now.plainTimeISO().toString() : '22:13:20', document.lastModified]"""


def test_whatever_tells_the_time_tells_the_pages_own(browser: Browser):
    page = own_page(browser, "")
    assert page.run(TELLERS) == ["10:13:20 PM", "11", "22:13:20", "11/14/2023 22:13:20"]
    page.advance(5000)
    assert page.run(TELLERS)[0] == "10:13:25 PM"
    assert page.run("new Intl.DateTimeFormat('en-US').format(0)") == "1/1/1970"
    page.close()


def test_what_never_lets_time_pass_is_an_error(browser: Browser):
    page = own_page(browser, "<script>for (let n = 0; n < 300; n++) setInterval(() => 0, 1)</script>")
    with pytest.raises(BrowserError, match="more than 20000 callbacks"):
        page.advance(100)
    page.close()


def test_a_page_reaches_nothing_but_what_is_served(browser: Browser):
    html = """<img src=there.png><img src=http://10.0.0.1/x.png><script>
    window.tried = {};
    const note = name => [r => tried[name] = 'reached', e => tried[name] = 'failed'];
    for (const url of ['missing.txt', 'http://127.0.0.1:22/', 'http://localhost/', 'https://example.com/', 'file:///etc/hostname'])
      fetch(url).then(...note(url));
    const socket = new WebSocket('ws://127.0.0.1:22/');
    [socket.onopen, socket.onerror] = note('socket');
    window.opened = window.open('http://own.invalid/other');
    </script><iframe src=file:///etc/hostname></iframe><a id=a href=http://own.invalid/other>away</a>"""
    red = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(red, "PNG")
    page = own_page(browser, html, **{"there.png": (red.getvalue(), "image/png"), "other": (b"other", "text/html")})
    assert comes_true(lambda: len(page.run("Object.keys(tried)")) == 6)
    assert set(page.run("tried").values()) == {"failed"}
    assert page.run("opened") is None
    assert tuple(pixels(page.screenshot())[10, 10]) == (255, 0, 0)
    page.run("document.getElementById('a').click()")
    page.screenshot()
    assert page.run("location.href") == OWN, "a link leads nowhere, also where it is served"
    assert OWN + "other" in page.refused
    assert OWN + "other" not in page.lacking, "where a link leads is not something to load"
    assert {OWN + "missing.txt", "http://10.0.0.1/x.png", "ws://127.0.0.1:22/"} <= set(page.lacking)
    page.close()


def test_pages_share_no_storage(browser: Browser):
    one = own_page(browser, "<script>localStorage.x = 1; document.cookie = 'a=b'</script>")
    other = own_page(browser, "")
    assert other.run("[localStorage.x === undefined, document.cookie]") == [True, ""]
    one.close()
    one.close()
    other.close()


def test_actions(browser: Browser):
    html = """<input id=i style='position:absolute;left:10px;top:20px;width:100px;height:20px'>
    <div id=d style='position:absolute;left:10px;top:60px;width:50px;height:30px;overflow:auto'><div style='height:300px'>x</div></div>
    <div id=far style='position:absolute;top:900px'>far</div>
    <script>window.said = [];
    for (const name of ['mousedown', 'mouseup', 'mousemove', 'dblclick', 'contextmenu', 'keydown', 'wheel'])
      document.addEventListener(name, e =>
        said.push(name === 'keydown' ? 'key ' + e.key : [name, e.clientX, e.clientY, e.buttons]));</script>"""
    page = own_page(browser, html)
    page.click(15, 30)
    assert page.run("said.splice(0)") == [["mousemove", 15, 30, 0], ["mousedown", 15, 30, 1], ["mouseup", 15, 30, 0]]
    page.type("aB é\n")
    assert page.run("said.splice(0)") == ["key a", "key B", "key  ", "key é", "key Enter"]
    assert page.run("i.value") == "aB é"
    page.key("a", 2)
    page.key("backspace")
    assert page.run("i.value") == "", "ctrl+a selects all of the field"
    every = "".join(map(chr, range(33, 127)))
    page.type(every)
    assert page.run("i.value") == every, "no character is taken for a key of another name"
    page.key("a", 2)
    page.key("backspace")
    page.run("said.splice(0)")
    page.click(100, 100, count=2)
    assert "dblclick" in [one[0] for one in page.run("said.splice(0)")]
    page.click(100, 100, button="right")
    assert page.run("said.splice(0)")[-1][0] in ("mouseup", "contextmenu")
    page.mouse("mousePressed", 5, 5, button="left", count=1)
    page.mouse("mouseMoved", 50, 50)
    page.mouse("mouseReleased", 50, 50, button="left", count=1)
    assert page.run("said.splice(0)") == [["mousedown", 5, 5, 1], ["mousemove", 50, 50, 1], ["mouseup", 50, 50, 0]]
    page.scroll(20, 70, 0, 100)
    assert page.run("[d.scrollTop, document.scrollingElement.scrollTop, said.splice(0)[0][0]]") == [100, 0, "wheel"]
    page.scroll(100, 150, 0, 100)
    assert page.run("[d.scrollTop, document.scrollingElement.scrollTop]") == [100, 100]
    page.close()


HOVERED = """<style>div { position: absolute; left: 60px; width: 60px; height: 60px; background: white } div:hover { background: red }
body:hover { background: silver }</style><div id=d style='top:60px'></div><div id=e style='top:140px'></div>
<script>window.said = [];
for (const name of ['mousemove', 'pointermove', 'mouseover', 'mouseout', 'mouseenter', 'mouseleave', 'mousedown', 'mouseup', 'click'])
  for (const on of [window, document, d, e])
    on.addEventListener(name, v => said.push([name, on === window ? 'window' : on.nodeName + (on.id || ''), v.clientX, v.clientY]), true);
window.onmousemove = v => said.push(['onmousemove', v.clientX, v.clientY]);</script>"""


def moved_by_nobody(page: Page, x: int, y: int) -> None:
    """What Chromium does at a time of its own."""
    page.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y, "button": "none", "buttons": 0, "clickCount": 0})


def played(browser: Browser, strays: set[int]) -> list[object]:
    """What is seen of an episode and what its scripts were told, with moves that nobody made before these actions."""
    page, shown = own_page(browser, HOVERED), []
    actions = [lambda: page.mouse("mouseMoved", 90, 90), lambda: page.click(90, 170), lambda: page.click(0, 0), lambda: page.click(90, 90)]
    for n, act in enumerate([*actions, lambda: None]):
        if n in strays:
            moved_by_nobody(page, 0, 0)
            moved_by_nobody(page, 70, 150)
            moved_by_nobody(page, 0, 0)
        shown.append((page.screenshot(), page.run("said.splice(0)")))
        act()
    page.close()
    return shown


def test_a_move_that_nobody_made_changes_no_episode(browser: Browser):
    alone = played(browser, set())
    assert alone[0][1] == []
    assert [one for one in alone[1][1] if one[0] == "mousemove"] == [["mousemove", on, 90, 90] for on in ("window", "#document", "DIVd")]
    assert ["onmousemove", 90, 90] in alone[1][1]
    assert tuple(pixels(alone[1][0])[90, 90]) == (255, 0, 0)
    for strays in ({0}, {1}, {2}, {3}, {4}, set(range(5))):
        assert played(browser, strays) == alone, strays


def test_the_keyboard_clicks_where_no_pointer_is(browser: Browser):
    page = own_page(browser, "<button id=b onclick='window.hit = [event.clientX, event.clientY, event.detail]'>b</button>")
    page.key("tab")
    page.key("enter")
    assert page.run("hit.length") == 3
    page.close()


def test_animations_and_the_caret_do_not_move_the_screen(browser: Browser):
    html = """<style>@keyframes k { from { left: 0 } to { left: 90px } }
    .m { position: relative; animation: k .2s infinite; transition: left 1s }</style>
    <div class=m>x</div><input autofocus>"""
    page = own_page(browser, html)
    first = page.screenshot()
    assert all((pixels(page.screenshot()) == pixels(first)).all() for _ in range(5))
    page.close()


def test_a_hung_page_costs_its_deadline_and_no_other_page(browser: Browser):
    page, other = own_page(browser, "hung"), own_page(browser, "other")
    renderers = below(os.getpid())
    browser.pipe.seconds = 1.0
    with pytest.raises(BrowserError, match="no answer of the browser within 1 seconds"):
        page.run("for (;;) {}")
    browser.pipe.seconds = 60.0
    assert other.run("1 + 1") == 2
    page.close()
    assert other.run("1 + 1") == 2
    assert comes_true(lambda: len(alive(renderers)) < len(renderers)), "the process of the hung page goes"
    other.close()


@pytest.mark.parametrize("how", ["kill", "endless"])
def test_nothing_is_left_of_a_browser_whose_user_is_killed(how: str, tmp_path):
    program = """import sys; sys.path[:0] = [%r]
from tests.support.browsers import own_page
from vlmrl.extras.agents.browser.process import Browser
page = own_page(Browser(seconds=60.0), 'x'); print('ready', flush=True)
page.run('for (;;) {}' if %r == 'endless' else '1'); sys.stdin.read()"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program % (os.getcwd(), how)]
    user = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert user.stdout is not None
    assert user.stdout.readline() == b"ready\n"
    started = below(user.pid)
    assert len(started) > 3
    assert len(list(tmp_path.glob("vlmrl-browser-*"))) == 1
    os.kill(user.pid, signal.SIGKILL)
    user.communicate()
    assert comes_true(lambda: not alive(started))
    assert comes_true(lambda: not list(tmp_path.glob("vlmrl-browser-*")))


def test_a_killed_browser_is_an_error_at_once(tmp_path):
    one = Browser(seconds=60.0)
    page = own_page(one, "x")
    mine = [pid for pid in below(one._keeper.pid) if os.getpgid(pid) == pid]
    os.killpg(mine[0], signal.SIGKILL)
    with pytest.raises(BrowserError, match="the browser is gone; it died of signal 9"):
        page.run("1")
    assert not one.alive
    one.close()
    with pytest.raises(BrowserError, match="was ended"):
        page.run("1")
