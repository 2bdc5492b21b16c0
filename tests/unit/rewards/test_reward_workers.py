"""rewards.run.workers: whatever a reward does to its process costs that one call (W1 to W4, W6)."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import group, sample
from vlmrl.errors import ConfigError
from vlmrl.protocols import RewardContext
from vlmrl.registry import Entry, Registry
from vlmrl.rewards.format import format_reward
from vlmrl.rewards.run import place as places
from vlmrl.rewards.run.here import findable
from vlmrl.rewards.run.place import in_worker, place
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.rewards.run.wire import decode_call, encode_call
from vlmrl.rewards.run.workers import Outcome, RewardPool, WorkerReward, WorkerSettings
from vlmrl.types import Group, MediaHandle, MediaRef, Prompt, Rollout, Turn

pytestmark = pytest.mark.not_fast  # starts processes

STUBS = ("tests.support.worker_rewards",)
"""Imported by the workers only, as what it registers is for them only."""
CTX = RewardContext(progress=0.3)
SHORT = WorkerSettings(count=1, deadline=2.0, start=60.0)
PATIENT = WorkerSettings(count=1, deadline=60.0, start=60.0)


@pytest.fixture
def pool():
    with RewardPool(SHORT) as made:
        yield made
    assert made.pids() == []


@pytest.fixture(scope="module")
def patient():
    """A pool for calls that end by themselves, however slow the machine."""
    with RewardPool(PATIENT) as made:
        yield made


def column(pool: RewardPool, name: str, **arguments: object) -> WorkerReward:
    return pool.column(name, arguments, STUBS)


def ask(column: WorkerReward, *texts: str) -> Outcome:
    return column.start(encode_call(group(texts), CTX), len(texts)).result()


def gone(pid: int) -> bool:
    """No such process, not even a zombie, unless it is one of a parent that is not us."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z" and pid not in children()


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text(encoding="ascii").split()}
    return found


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_values_come_back(patient):
    assert ask(column(patient, "stub_length", scale=0.1), "abc", "") == Outcome(values=[0.1 * 3, 0.0])
    assert column(patient, "stub_length")(group(["ab"]), CTX) == [2.0]


def test_group_and_context_come_whole_and_without_torch(patient):
    handle = MediaHandle(kind="video", key="k", grid_thw=(2, 4, 6), tokens=12, seconds_per_grid=0.5, step_times=(0.25, 1.5))
    frames = (MediaRef(kind="image", path="1.png"), MediaRef(kind="image", path="2.png", sha256="ab" * 32))
    video = MediaRef(kind="video", path="1.png", frames=frames, times=(0.0, 0.5))
    row = dataclasses.replace(sample(gt={"time": (3.0, np.float64(0.1))}), media=(video, MediaRef(kind="video", path="f", fps=2.0)))
    prompt = Prompt(sample=row, ids=(1, 2), media=(handle,), spans=((0, 2),), answer_format="t")
    rollout = Rollout(k=0, ids=(5, 6), logprobs=(-0.1, -1e-300), text="\u00e9\u4e2d\n\ud800", finish="length", policy_version=3)
    whole = Group(id="g", prompt=prompt, rollouts=(rollout,) * 8)
    call = encode_call(whole, CTX)
    back, context = decode_call(json.loads(call))
    assert back.rollouts == whole.rollouts
    assert back.prompt.sample.media == row.media
    assert (back.prompt.media, back.prompt.spans, context) == (prompt.media, prompt.spans, CTX)
    told = dataclasses.replace(sample(), history=(Turn(question="Who?", answer="A", media=2, question_first=True),))
    assert decode_call(json.loads(encode_call(group(["a"], told), CTX)))[0].prompt.sample.history == told.history
    outcome = column(patient, "stub_see").start(call, 8).result()
    assert outcome.values == [1.0] * 8
    with pytest.raises(TypeError, match="the row holds a set"):
        encode_call(group(["a"], sample(gt={"time": {1}})), CTX)


@pytest.mark.parametrize("how", ["sleep", "busy", "sleep_below_c", "ignore_sigterm", "deadlock", "child"])
def test_a_hang_is_a_timeout_and_the_next_calls_are_scored(pool, how):
    hangs = column(pool, "stub_hang", how=how)
    calls = [hangs.start(encode_call(group([text]), CTX), 1) for text in ("a", "hang", "b", "c")]
    outcomes = [call.result() for call in calls]
    assert [o.values for o in outcomes] == [[1.0], None, [1.0], [1.0]]
    assert outcomes[1].reason == "timeout"
    assert outcomes[1].detail.startswith("no answer within 2 seconds")
    assert pool.started == 2


def test_other_calls_go_on_while_one_hangs():
    with RewardPool(WorkerSettings(count=2, deadline=3.0, start=60.0)) as pool:
        hangs, fine = column(pool, "stub_hang", how="busy"), column(pool, "stub_length")
        stuck = hangs.start(encode_call(group(["hang"]), CTX), 1)
        others = [fine.start(encode_call(group(["x" * n]), CTX), 1) for n in range(63)]
        assert [o.result().values for o in others] == [[float(n)] for n in range(63)]
        assert stuck.result().reason == "timeout"


@pytest.mark.parametrize(
    ("how", "says"),
    [("abort", "SIGABRT"), ("segfault", "SIGSEGV"), ("exit", "status 7"), ("kill", "SIGKILL"), ("after_fork", "status 3"),
     ("garbage", "something wrote into the pipe")],
)  # fmt: skip
def test_a_worker_that_dies_has_crashed_and_is_replaced(how, says):
    with RewardPool(PATIENT) as pool:
        dies = column(pool, "stub_die", how=how)
        first, second, third = ask(dies, "a"), ask(dies, "die"), ask(dies, "b")
        assert (first.values, second.values, third.values) == ([1.0], None, [1.0])
        assert second.reason == "crashed"
        assert says in second.detail
        assert pool.started == 2


@pytest.mark.parametrize(
    ("kind", "error"),
    [("value", "ValueError"), ("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt"), ("recursion", "RecursionError")],
)
def test_what_is_raised_is_reported_with_what_was_printed(patient, kind, error):
    before = patient.started
    raises = column(patient, "stub_raise", kind=kind)
    bad, good = ask(raises, "raise"), ask(raises, "x")
    assert (bad.values, bad.reason) == (None, f"raised:{error}")
    assert "stub_raise" in bad.detail
    assert "it printed:\nsaid before the fault" in bad.detail
    assert good.values == [1.0]
    assert patient.started <= max(before, 1)


@pytest.mark.parametrize("what", ["short", "long", "nan", "inf", "bool", "string", "text", "none", "number", "array", "numpy32", "huge"])
def test_a_broken_contract_is_one(patient, what):
    outcome = ask(column(patient, "stub_return", what=what), "a", "b")
    assert (outcome.values, outcome.reason) == (None, "contract")
    assert "row 'row'" in outcome.detail


def test_a_module_that_cannot_be_imported_is_a_fault(patient):
    missing = patient.column("stub_length", {}, ["no_such_module_here"])
    assert ask(missing, "a").reason == "raised:ModuleNotFoundError"
    unknown = patient.column("no_such_reward", {}, [])
    assert ask(unknown, "a").reason == "raised:KeyError"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_memory_is_bounded_and_given_back():
    with RewardPool(WorkerSettings(count=1, deadline=60.0, memory=256 << 20)) as pool:
        eats = column(pool, "stub_memory")
        assert ask(eats, "a").values == [1.0]
        outcome = ask(eats, "eat")
        assert (outcome.values, outcome.reason) == (None, "memory")
        assert ask(eats, "b").values == [1.0]
        assert pool.started == 2


def test_what_a_reward_changes_stays_in_its_worker_and_within_its_call(patient, tmp_path):
    def here() -> tuple[object, ...]:
        drawn = np.random.get_state()
        return os.getcwd(), dict(os.environ), str(drawn[1]), drawn[2], sys.stdin, signal.getsignal(signal.SIGTERM)

    before = here()
    litters = column(patient, "stub_litter", folder=str(tmp_path))
    assert [ask(litters, "a").values, ask(litters, "b").values] == [[1.0], [1.0]]
    assert here() == before


def test_a_worker_is_replaced_after_its_calls():
    with RewardPool(WorkerSettings(count=1, deadline=60.0, calls=3)) as pool:
        seen = [ask(column(pool, "stub_pid"), "a", "b").values for _ in range(7)]
    pids, calls = zip(*[v for v in seen if v is not None], strict=True)
    assert calls == (1, 2, 3, 1, 2, 3, 1)
    assert len(set(pids)) == 3


def test_a_worker_that_died_between_calls_is_replaced_without_a_fault():
    with RewardPool(PATIENT) as pool:
        fine = column(pool, "stub_length")
        assert ask(fine, "ab").values == [2.0]
        (pid,) = pool.pids()
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z")
        assert ask(fine, "abc").values == [3.0]
        assert pool.started == 2


@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_zombies_and_no_open_pipes_after_kills(times):
    before, pipes = children(), len(os.listdir("/proc/self/fd"))
    with RewardPool(PATIENT) as pool:
        dies = column(pool, "stub_die", how="kill")
        assert [ask(dies, "die").reason for _ in range(times)] == ["crashed"] * times
        assert pool.pids() == []
        assert children() == before
        assert pool.started == times
    assert len(os.listdir("/proc/self/fd")) == pipes


def test_closing_ends_workers_in_the_middle_of_a_call():
    pool = RewardPool(PATIENT)
    busy = column(pool, "stub_hang", how="child").start(encode_call(group(["hang"]), CTX), 1)
    assert eventually(lambda: bool(pool.pids()) and any(descendants(pid) for pid in pool.pids()))
    (pid,) = pool.pids()
    (child,) = descendants(pid)
    pool.close()
    pool.close()
    assert busy.result().reason == "crashed"
    assert gone(pid)
    assert eventually(lambda: gone(child))
    with pytest.raises(RuntimeError):
        column(pool, "stub_length").start("{}", 0)


def descendants(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("how", ["busy", "idle", "sleep_below_c"])
def test_workers_end_with_a_parent_that_is_killed(how, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from tests.support.builders import group\n"
        "from tests.unit.rewards.test_reward_workers import CTX, PATIENT, column, encode_call\n"
        "from vlmrl.rewards.run.workers import RewardPool\n"
        "pool = RewardPool(PATIENT)\n"
        f"reward = column(pool, 'stub_hang', how='{how}')\n"
        "reward(group(['a']), CTX)\n"
        f"if '{how}' != 'idle': reward.start(encode_call(group(['hang']), CTX), 1)\n"
        "print(pool.pids()[0], flush=True)\n"
        "time.sleep(1000)\n",
        encoding="utf-8",
    )
    root = str(Path(__file__).parents[3])
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    assert eventually(lambda: gone(pid))


def plugin(group, ctx, *, scale: float = 1.0):
    """Number of characters times `scale`."""
    return [scale * len(r.text) for r in group.rollouts]


def test_a_recipe_decides_what_runs_in_a_worker():
    ours, worker, service = (Entry("x", format_reward, None, {}, extra, ours=True) for extra in ({}, {"worker": True}, {"service": True}))
    theirs, says_no = (Entry("x", plugin, None, {}, extra, module=STUBS[0]) for extra in ({}, {"worker": False}))
    assert [in_worker(e, None) for e in (theirs, ours, worker, service, says_no)] == [True, False, True, False, False]
    assert [in_worker(e, True) for e in (theirs, ours, worker)] == [True] * 3
    assert [in_worker(e, False) for e in (theirs, ours, worker, service)] == [False] * 4
    with pytest.raises(ConfigError, match="asks a server"):
        in_worker(service, True)


SOURCE = "@known('mine')\ndef mine(group, ctx):\n    'Mine.'\n"


def registered(known, tmp_path, name):
    """Registered by text that runs as a module of this name."""
    exec(compile(SOURCE, str(tmp_path / "mine.py"), "exec"), {"__name__": name, "known": known})
    return known.get("mine")


def test_a_plugin_that_calls_itself_ours_runs_in_a_worker(tmp_path):
    assert in_worker(registered(Registry("reward"), tmp_path, "vlmrl.rewards.format"), None)
    assert in_worker(places.registry.get("format"), None) is False


@pytest.mark.parametrize(
    ("name", "whose"), [("__main__", "a script or a notebook"), ("vlmrl.no_such.mine", "no module"), ("", "no module")]
)
def test_what_no_module_registers_stays_here(name, whose, tmp_path):
    """A worker imports modules; what it would not know runs in this process, and a worker for it is refused."""
    entry = registered(Registry("reward"), tmp_path, name)
    assert entry.module == name
    assert in_worker(entry, None) is in_worker(entry, False) is False
    with pytest.raises(ConfigError, match=f"reward 'mine' is registered by {whose}.*remove 'isolate: true'.*under 'plugins'"):
        in_worker(entry, True)


def test_a_script_registers_what_it_calls_a_function_for(tmp_path):
    """The function that registers lies in a module; importing that module would not register, so the script is meant."""
    known = Registry("reward")
    source = "def make():\n    @known('mine')\n    def mine(group, ctx):\n        'Mine.'\n"
    lent = {"__name__": STUBS[0], "known": known}
    exec(source, lent)
    exec("make()", {"__name__": "__main__", "make": lent["make"]})
    assert known.get("mine").module == "__main__"
    known = lent["known"] = Registry("reward")
    exec("make()", lent)
    assert known.get("mine").module == STUBS[0]
    assert in_worker(known.get("mine"), None)


def test_findable_modules(tmp_path, monkeypatch):
    """As an interpreter with this path finds them, whatever is loaded here."""
    (tmp_path / "found_pack").mkdir()
    (tmp_path / "found_pack" / "__init__.py").touch()
    (tmp_path / "found_pack" / "one.py").touch()
    monkeypatch.setitem(sys.modules, "found_pack.two", sys.modules["json"])
    assert not findable("found_pack")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = {"found_pack": True, "found_pack.one": True, "found_pack.two": False, "found_pack.one.deeper": False, "json": True}
    assert {name: findable(name) for name in wanted} == wanted


def test_place_binds_in_process_or_in_the_pool(patient, monkeypatch):
    apart = place("format", {}, isolate=True, pool=patient)
    assert isinstance(apart, WorkerReward)
    assert apart.modules == ("vlmrl.rewards.format",)
    texts = ["<think>a</think><answer>3 to 5</answer>", "x"]
    assert apart(group(texts), CTX) == format_reward(group(texts), CTX)
    assert place("format", {}, isolate=None, pool=patient)(group(texts), CTX) == format_reward(group(texts), CTX)

    known = Registry("reward")
    source = "known('stub_length')(plugin)\nknown('stub_imports', imports=('fractions',))(another)\n"
    exec(source, {"__name__": STUBS[0], "known": known, "plugin": plugin, "another": lambda_with_a_docstring})
    monkeypatch.setattr(places, "registry", known)
    here = place("stub_length", {"scale": 2.0}, isolate=False, pool=patient)
    there = place("stub_length", {"scale": 2.0}, isolate=None, pool=patient, plugins=STUBS)
    assert isinstance(there, WorkerReward)
    assert here(group(["ab"]), CTX) == there(group(["ab"]), CTX) == [4.0]
    imports = place("stub_imports", {}, isolate=None, pool=patient, plugins=STUBS)
    assert isinstance(imports, WorkerReward)
    assert imports.modules == (*STUBS, "fractions")
    assert imports(group(["a"]), CTX) == [1.0]
    alone = place("stub_length", {}, isolate=None, pool=patient)
    assert isinstance(alone, WorkerReward)
    assert alone.modules == STUBS
    with_others = place("stub_length", {}, isolate=None, pool=patient, plugins=["tests.support.plugin_rewards"])
    assert isinstance(with_others, WorkerReward)
    assert with_others.modules == ("tests.support.plugin_rewards", *STUBS), "what no plug-in registers is imported beside them"
    with pytest.raises(TypeError, match="unknown 'scal'"):
        place("stub_length", {"scal": 2.0}, isolate=True, pool=patient)


def lambda_with_a_docstring(group, ctx):
    """Registered here under the name that a stub has in the workers."""
    return []


def test_the_runner_scores_columns_of_both_kinds(pool):
    columns = [
        ("hang", 1.0, column(pool, "stub_hang", how="sleep")),
        ("format", 0.5, format_reward),
        ("length", 2.0, column(pool, "stub_length")),
    ]
    runner = RewardRunner(columns, pool=pool)
    scores = runner.score(group(["hang", "xy"]), CTX).scores
    assert scores.rewards_GK == ((None, 0.0, 4.0), (None, 0.0, 2.0))
    assert scores.reasons == {"hang/timeout": 2}
    assert "hang on row 'row': timeout" in runner.first_fault["hang"]
    odd = runner.score(group(["a"], sample(gt={"time": {1}})), CTX).scores
    assert odd.reasons == {"hang/raised:TypeError": 1, "length/raised:TypeError": 1}
    runner.close()
    assert pool.pids() == []


def test_nothing_starts_before_the_first_call():
    with RewardPool() as pool:
        column(pool, "stub_length")
        assert (pool.started, pool.pids()) == (0, [])
    assert pool.started == 0
