"""agents.worlds.web_page: pages of our own: equal screens for a seed, rewards and ends, each error by name, what is blocked."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vlmrl
from tests.support import runs
from tests.support.browsers import needs_browser
from tests.support.episodes import small_episodes
from vlmrl import cli
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.check import check
from vlmrl.extras.agents.find import default_tasks, open_pool
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.protocol import Observation, Transition
from vlmrl.extras.agents.worlds import web_page as world
from vlmrl.extras.agents.worlds.web_page import WebPage, read_page, web_page
from vlmrl.run.tracking import read_metrics

EXAMPLE = Path(__file__).parents[4] / "examples" / "web_page"
SLOW_MACHINE = {"patience": 60.0}
"""A loaded machine is no fault."""
WAIT = '{"action": "wait"}'
WHOLE = """<p id=p></p><button id=b style='position:absolute;left:0;top:100px;width:100px;height:100px'>b</button><script>
var clicks = 0; b.onclick = () => { clicks++; };
function reset(seed, params) { p.textContent = Math.random() + ' ' + crypto.randomUUID() + ' ' + new Date().toISOString(); return 'press'; }
function reward() { return clicks / 2; }
function done() { return clicks === 2; }
</script>"""
PRESS = '{"action": "click", "coordinate": [100, 600]}'

Make = Callable[..., WebPage]


def written(folder: Path, html: str = WHOLE, files: dict[str, str | bytes] | None = None) -> Path:
    """A folder with a page of this text; files beside it by name."""
    for name, content in {"index.html": f"<!doctype html>{html}", **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """An environment of such a page. A process reads a folder once, so each has one of its own."""
    numbers = itertools.count()

    def _make(html: str = WHOLE, /, *, files: dict[str, str | bytes] | None = None, **arguments: Any) -> WebPage:
        folder = written(tmp_path / str(next(numbers)) / "my_page", html, files)
        return web_page(folder=str(folder), **{"width": 200, "height": 200, "explain": False, **SLOW_MACHINE, **arguments})

    return _make


def functions(reset: str = "return 'go'", reward: str = "return 0", done: str = "return false", more: str = "") -> str:
    return (
        f"<script>function reset(seed, params) {{ {reset} }} function reward() {{ {reward} }} function done() {{ {done} }}\n{more}</script>"
    )


def played(one: WebPage, actions: list[str], seed: int = 3, **task: Any) -> list[Observation | Transition]:
    return [one.reset({"id": "a", **task}, seed), *(one.step(action) for action in actions)]


# ---- what an episode is ---------------------------------------------------------------------------------------------


@needs_browser
def test_equal_seeds_are_equal_screens_and_others_are_not(make: Make):
    one = make()
    first = played(one, [PRESS, WAIT, "?", PRESS])
    assert played(one, [PRESS, WAIT, "?", PRESS]) == first
    assert played(one, [PRESS], seed=4)[0] != first[0]
    assert isinstance(first[0], Observation)
    assert first[0].text == "Task: press"
    assert one.reset({"id": "a", "seed": 11}, 1) == one.reset({"id": "b", "seed": 11, "attempt": 2}, 2), "a row's seed is the page's"


@needs_browser
def test_a_turn_earns_what_the_reward_rose_by_and_the_page_ends_the_episode(make: Make):
    _, one, other, two = played(make(), [PRESS, "I press it", PRESS])
    assert (one.reward, one.outcome, other.reward, other.outcome) == (0.5, "", 0.0, "invalid")
    assert two == Transition(observation=None, reward=0.5, outcome="success")
    half = make(functions(reward="return .5", done="return window.ended === 1", more="onclick = () => { ended = 1; }"))
    assert played(half, [PRESS])[1] == Transition(observation=None, reward=0.5, outcome="failure")
    with pytest.raises(RuntimeError, match="after the end"):
        half.step(WAIT)
    half._success_at = 0.5
    assert played(half, [PRESS])[1] == Transition(observation=None, reward=0.5, outcome="success")


@needs_browser
def test_null_is_no_reward_yet_and_falls_count_too(make: Make):
    one = make(functions(reward="return [null, .75, null, .5][window.turn ?? 0]", more="var turn = 0; onclick = () => { turn++; }"))
    assert [came.reward for came in played(one, [WAIT, PRESS, PRESS, PRESS])[1:]] == [0.0, 0.75, 0.0, -0.25]


@needs_browser
def test_reset_is_given_seed_and_params_and_may_wait(make: Make):
    waits = functions(
        reset="""return (async () => {
          const word = (await (await fetch('data/word.json')).json()).word;
          await new Promise(done => setTimeout(done, 300));
          return {instruction: `${word} ${seed} ${params && params.n}`, other: 1};
        })()"""
    )
    one = make(waits, files={"data/word.json": '{"word": "hello"}'})
    assert one.reset({"id": "a", "seed": 7, "params": {"n": [1, 2]}}, 0).text == "Task: hello 7 1,2"
    assert one.reset({"id": "a", "seed": 7}, 0).text == "Task: hello 7 undefined"
    silent = make(functions(reset=""), explain=True)
    assert silent.reset({"id": "a"}, 0).text.startswith("Answer with one action")


@needs_browser
def test_hidden_state_is_told(make: Make):
    html = functions(more="let secret = Math.random() < .5; function state() { return {secret}; }")
    seen = [make(html).reset({"id": "a", "seed": seed}, 0) for seed in range(4)]
    assert len({one.screens for one in seen}) == 1
    assert len({one.state for one in seen}) == 2


@needs_browser
def test_the_clock_stands_still_while_nobody_acts(make: Make):
    html = "<p id=p></p>" + functions(more="setInterval(() => { p.textContent = Date.now(); }, 10)")
    one = make(html)
    assert played(one, ["?"]) == played(one, ["?"])
    first, same, later = played(one, ["?", WAIT])
    assert same.observation == first != later.observation


@needs_browser
def test_files_of_the_folder_are_served_and_a_link_leads_nowhere(make: Make):
    html = functions(
        reset="return `${window.ours} ${getComputedStyle(document.body).color}`",
        more="document.body.insertAdjacentHTML('beforeend', '<a href=https://example.com/ style=\"position:absolute;inset:0\">away</a>')",
    )
    head = '<link rel=stylesheet href="style/a b.css"><script type=module src=js/m.mjs></script><body>'
    one = make(head + html, files={"style/a b.css": "body { color: red }", "js/m.mjs": "window.ours = 42"})
    first, after = played(one, [PRESS])
    assert first.text == "Task: 42 rgb(255, 0, 0)"
    assert (after.observation is not None, after.outcome) == (True, ""), "a click on a link is the policy's doing"


# ---- what is wrong with a page --------------------------------------------------------------------------------------

WRONG = {
    "no function": (
        "<script>function reset() {} function done() { return false; }</script>",
        r"window\.reward is undefined, not a function; write",
    ),
    "in a module": (
        functions().replace("<script>", "<script type=module>"),
        r"window\.reset is undefined, not a function; write function reset\(seed\) .* or in a module window\.reset = reset",
    ),
    "an element": (
        "<p id=done><script>function reset() {} function reward() { return 0; }</script>",
        r'window\.done is the element <p id="done">, not a function',
    ),
    "reset raises": (functions(reset="\nnull.x"), r"reset\(\) raised TypeError: .* \(index\.html:2:\d+\)"),
    "reset rejects": (functions(reset="return Promise.reject(new Error('no'))"), r"reset\(\) raised Error: no"),
    "reset returns": (functions(reset="return 5"), r"reset\(seed\) returned 5; return a text"),
    "no instruction": (functions(reset="return {instrucion: 'x'}"), r"reset\(seed\) returned an object with instrucion; return a text"),
    "instruction": (functions(reset="return {instruction: 5}"), r"returned an instruction that is 5; return a text"),
    "reset never ends": (functions(reset="return new Promise(() => {})"), r"reset\(seed\) is not finished after 1 seconds"),
    "reset goes on": (
        functions(reset="return new Promise(() => { const f = () => setTimeout(f, 1000); f(); })"),
        r"not finished after 10000 ms of the page's time",
    ),
    "reward raises": (
        functions(reward="return missing"),
        r"reward\(\) raised ReferenceError: missing is not defined \(index\.html:1:\d+\)",
    ),
    "NaN": (functions(reward="return 0 / 0"), r"reward\(\) returned NaN; return a number from 0 to 1, or null"),
    "out of range": (functions(reward="return 1.5"), r"reward\(\) returned 1\.5; return a number from 0 to 1"),
    "a text": (functions(reward="return '1'"), r'reward\(\) returned "1"; return a number'),
    "nothing": (functions(reward=""), r"reward\(\) returned undefined; return a number"),
    "a promise": (functions(reward="return Promise.resolve(1)"), r"reward\(\) returned a promise; return a number"),
    "done returns": (functions(done="return 0"), r"done\(\) returned 0; return true or false"),
    "done at once": (functions(done="return true"), r"done\(\) is true right after reset\(seed\)"),
    "state": (functions(more="function state() {}"), r"state\(\) returned undefined; return what JSON can write"),
    "no syntax": ("<script>function (</script>", r"a script raised while it was loaded: SyntaxError: .* \(index\.html:1\)"),
    "a timer raises": (functions(reset="setTimeout(() => { throw new Error('late') })"), r"a script raised in reset\(seed\): Error: late"),
    "a missing file": (
        functions() + "<img src=pictures/no.png>",
        r"it asks for pictures/no\.png, which is not in the folder; add the file",
    ),
    "a missing script": ("<script src=no.js></script><script>new Missing()</script>", r"it asks for no\.js, which is not in the folder"),
    "another origin": (
        "<script src=https://cdn.example/react.js></script>",
        r"it asks for https://cdn\.example/react\.js, which is outside the folder and was blocked; put",
    ),
    "this machine": (functions() + "<img src=file:///etc/hostname>", r"it asks for file:///etc/hostname, which is outside the folder"),
    "not encrypted": ("<script src=http://cdn.example/x.js></script>", r"it asks for http://cdn\.example/x\.js, which is outside"),
    "a fetch": (functions(more="fetch('http://127.0.0.1:22/').catch(() => 0);"), r"it asks for http://127\.0\.0\.1:22/, which is outside"),
    "a fetch in reset": (functions(reset="return fetch('https://x.example/')"), r"it asks for https://x\.example/, which is outside"),
    "a socket": (functions(reset="new WebSocket('ws://127.0.0.1:22/')"), r"it asks for ws://127\.0\.0\.1:22/, which is outside"),
    "a frame": (functions() + "<iframe src=index.html></iframe>", r"it shows index\.html in a frame; put what is in it into the page"),
    "a worker": (functions(reset="new Worker('w.js')"), r"reset\(\) raised Error: a Worker runs beside the page"),
}


@needs_browser
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_page_is_said_with_its_name(what: str, make: Make):
    html, said = WRONG[what]
    one = make(html, patience=1.0 if what == "reset never ends" else 60.0)
    with pytest.raises(RuntimeError, match=said) as raised:
        one.reset({"id": "a"}, 0)
    assert str(raised.value).startswith(one._name), "it names the page"
    assert "\n" not in str(raised.value)
    assert one._page is None, "the page is dropped"


LATE = {
    "a click raises": ("onclick = () => { null.x; }", r"a script raised after {.*}: TypeError: .* \(index\.html:2:\d+\)"),
    "a click asks elsewhere": (
        "onclick = () => { new Image().src = 'https://other.example/x.png'; }",
        r"asks for https://other\.example/x\.png",
    ),
    "a click asks for nothing": ("onclick = () => { new Image().src = 'x.png'; }", r"it asks for x\.png, which is not in the folder"),
    "the end without a number": (
        "onclick = () => { reward = () => null; done = () => true; }",
        r"reward\(\) is null where done\(\) is true",
    ),
    "a function that goes": ("onclick = () => { window.reward = 3; }", r"window\.reward is 3, not a function"),
    "hung": ("onclick = () => { reward = () => { for (;;) {} }; }", r"no answer of the browser within 2 seconds"),
}


@needs_browser
@pytest.mark.parametrize("what", LATE)
def test_what_goes_wrong_later_is_said_and_is_no_reward(what: str, make: Make):
    script, said = LATE[what]
    one = make(functions(more=script))
    one.reset({"id": "a"}, 0)
    one._browser.pipe.seconds = 2.0 if what == "hung" else 60.0
    try:
        with pytest.raises(RuntimeError, match=said) as raised:
            one.step(PRESS)
    finally:
        one._browser.pipe.seconds = 60.0
    assert str(raised.value).startswith(one._name)
    assert isinstance(one.reset({"id": "a"}, 0), Observation), "a fresh page goes on"


@needs_browser
def test_rows_state_seed_and_params_and_nothing_else(make: Make):
    one = make()
    with pytest.raises(RuntimeError, match=r"task 'a' has \['sed'\]; a row's `environment` may have seed and params"):
        one.reset({"id": "a", "sed": 1}, 0)
    for seed in ("1", -1, 2**53, True, 1.5):
        with pytest.raises(RuntimeError, match=r"task 'a': seed .*; it is an integer from 0 to below 2\^53"):
            one.reset({"id": "a", "seed": seed}, 0)


@needs_browser
def test_solutions_are_followed_and_wrong_ones_are_named(make: Make):
    one = make(WHOLE.replace("</script>", "function solve() { return Array(2 - clicks).fill({action: 'click', on: '#b'}); }</script>"))
    one.reset({"id": "a"}, 0)
    assert one.optimum().turns == 2
    assert [one.step(one.solve()).reward for _ in range(2)] == [0.5, 0.5]
    silent = make()
    silent.reset({"id": "a"}, 0)
    assert (silent.solve(), silent.optimum()) == (None, None)
    for returns, said in (
        ("[{action: 'click', on: '#no'}]", "there is no element '#no' on the page"),
        ("5", "solve\\(\\) returned 5; return a list"),
        ("[{act: 'click'}]", "which is no action"),
    ):
        wrong = make(functions(more=f"function solve() {{ return {returns}; }}"))
        wrong.reset({"id": "a"}, 0)
        with pytest.raises(RuntimeError, match=said):
            wrong.solve()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"folder": "nowhere"}, "folder 'nowhere': no such folder; it is relative to the working directory"),
        ({"folder": "empty"}, "folder 'empty': it has no index.html"),
        ({"folder": "linked"}, "secret.txt is a link to .*; copy it into the folder"),
        ({"folder": "page", "width": 5}, "a screen of 5 x 240: each side has 28 to 4096 pixels"),
        ({"folder": "page", "success_at": 2}, "success_at 2: it is a reward from 0 to 1"),
        ({"folder": "page", "action_ms": 0}, "must be above 0"),
    ],
)
def test_a_folder_without_a_page_is_refused_before_anything_starts(arguments: dict[str, Any], said: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    written(Path("page"))
    (written(Path("linked")) / "secret.txt").symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match=said):
        default_tasks("web_page", arguments)
    assert default_tasks("web_page", {"folder": "page/"}) == ({"id": "page"},)


def test_too_large_a_folder_is_refused(tmp_path: Path, monkeypatch):
    written(tmp_path, files={"big": b"x" * 5000})
    monkeypatch.setattr(world, "LARGEST", 4096)
    with pytest.raises(ConfigError, match="at most 0 are held"):
        read_page(str(tmp_path))


def test_the_digest_is_of_names_and_contents(tmp_path: Path):
    def digest() -> str:
        return read_page(str(tmp_path)).digest

    written(tmp_path, files={"a/b.js": "1"})
    first = digest()
    (tmp_path / ".DS_Store").write_text("x")
    assert digest() == first, "hidden files are no part of a page"
    (tmp_path / "a" / "b.js").write_text("2")
    second = digest()
    (tmp_path / "a" / "b.js").rename(tmp_path / "a" / "c.js")
    assert len({first, second, digest()}) == 3


# ---- in workers -----------------------------------------------------------------------------------------------------

SETTINGS = PoolSettings(workers=2, start=300.0, deadline=120.0)


@needs_browser
def test_the_example_keeps_everything():
    arguments = {"folder": str(EXAMPLE), **SLOW_MACHINE}
    with open_pool("web_page", arguments, settings=SETTINGS) as pool:
        done = check(pool, default_tasks("web_page", arguments), episodes=4, turns=6)
        assert done.ok, done.lines()
        assert done.found["optimum"].looked == 1
        assert done.found["seed"].looked == 3
        assert pool.identity["page"] == read_page(str(EXAMPLE)).digest
        assert pool.identity["screen"] == "320x240"
        stated = check(pool, [{"id": "a", "seed": 5, "params": {"name": "Zoe"}}], episodes=2, turns=2)
        assert stated.ok, stated.lines()
        assert stated.found["seed"].looked == 0, "a row that states its seed begins alike"


@needs_browser
def test_a_page_that_fails_is_a_fault_and_the_command_says_why(tmp_path: Path, monkeypatch, capsys):
    written(tmp_path / "my_page", functions(reward="return NaN"))
    monkeypatch.chdir(tmp_path)
    arguments = ["web_page", "folder=my_page/", "patience=60", "--episodes", "1", "--turns", "1", "--deadline", "120"]
    monkeypatch.setattr(sys, "argv", ["vlmrl", "env", "check", *arguments])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 70
    out = capsys.readouterr().out
    assert "WRONG episodes without a fault: 1 of 1 wrong" in out
    assert "my_page/index.html: reward() returned NaN; return a number from 0 to 1, or null while there is none" in out


# ---- in training ----------------------------------------------------------------------------------------------------


def training(model: Path, rows: Path, root: Path, folder: Path, **more: Any) -> dict[str, Any]:
    """Two steps on a page, with a reward of texts beside its own: nothing that an untrained model writes is an action."""
    environment = {"name": "web_page", "folder": str(folder), "width": 56, "height": 56, "explain": False, "max_turns": 2, "workers": 1}
    config = small_episodes(model, rows, root, environment={**environment, "deadline": 120.0, **SLOW_MACHINE, **more}, steps=2)
    tasks = [{"id": f"t{n}", "environment": {"seed": n} if n else {}} for n in range(3)]
    (root / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return config


@needs_browser
def test_a_killed_run_ends_with_the_same_bits_and_not_on_another_page(tiny_files: tuple[Path, Path], tmp_path: Path):
    folder = written(tmp_path / "my_page", files={"data.txt": "1"})
    outcomes = []
    for name, fault in (("whole", ""), ("cut", "step.before_update@1:kill")):
        (tmp_path / name).mkdir()
        config = training(*tiny_files, tmp_path / name, folder)
        if fault:
            assert runs.run(config, fault, timeout=600) == -9
            (folder / "data.txt").write_text("2")
            assert runs.run(config, timeout=600) == 76
            said = Path(config["run"]["root"], "error.txt").read_text()
            assert "environment: it was {'page': '" in said
            assert "put it back" in said
            (folder / "data.txt").write_text("1")
        assert runs.run(config, timeout=600) == 0, Path(config["run"]["root"], "error.txt").read_text()
        outcomes.append(runs.outcome(config))
    assert outcomes[0] == outcomes[1]
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]
    assert [(line["environment/attempts"], line["environment/faults"]) for line in lines] == [(12.0, 0.0)] * 2
    assert all(line["grad_norm"] > 0 for line in lines)


@needs_browser
def test_training_on_a_page_that_fails_stops_and_says_why(tiny_files: tuple[Path, Path], tmp_path: Path):
    config = training(*tiny_files, tmp_path, written(tmp_path / "my_page", functions(reward="return 2")), retries=0)
    assert runs.run(config, timeout=600) == 69
    said = Path(config["run"]["root"], "error.txt").read_text()
    assert "raised:PageError" in said
    assert "my_page/index.html: reward() returned 2; return a number from 0 to 1" in said


@needs_browser
@pytest.mark.slow
def test_the_recipe_of_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From its world to its evaluation, cut down to seconds."""
    monkeypatch.chdir(EXAMPLE.parents[1])
    short = {
        "run.root": str(tmp_path / "runs"),
        "toy.cache": str(tmp_path / "cache"),
        "toy.world.pretrain": 4,
        "toy.world.train": 2,
        "toy.world.test": 2,
        "toy.base.steps": 1,
        "toy.base.batch": 2,
        "stages.rl.steps": 2,
        "stages.rl.rollout.prompts_per_step": 2,
        "stages.rl.rollout.num_generations": 2,
        "stages.rl.rollout.max_new_tokens": 8,
        "stages.rl.environment.max_turns": 2,
        "stages.rl.environment.patience": 60.0,
        "stages.rl.environment.deadline": 120.0,
    }
    run = vlmrl.train("examples/web_page.yaml", [*(f"{key}={value}" for key, value in short.items()), "run.trackers=[]"], quiet=True)
    assert (run / "final" / "config.json").is_file()
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "environment/attempts" in line]
    assert [(line["environment/attempts"], line["environment/faults"]) for line in lines] == [(4.0, 0.0)] * 2
