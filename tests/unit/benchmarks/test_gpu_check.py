"""The checks of `benchmarks.gpu_check` on a CPU: sound code passes every line, and for every line there is a fault that it finds."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import counted, environment, exactness, kernels, limits, models, profiles, ranks, sizes, toy
from benchmarks.gpu_check.advice import advise
from benchmarks.gpu_check.base import CHECKS, WORDS, Collected, Line, Settings, at_least, at_most, equals, is_of, told
from benchmarks.gpu_check.faulty import VARIABLE
from tests.support import kernels as emulated
from vlmrl import doctor
from vlmrl.extras.scale import arena, offload
from vlmrl.policy import attention, forward, model
from vlmrl.policy import kernels as library
from vlmrl.policy.kernels import Operations
from vlmrl.policy.pack import layout_of
from vlmrl.rollout import engine_hf, grid
from vlmrl.run import session
from vlmrl.train import memory_ledger, step


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(device="cpu", gpus=0, quick=True, work=tmp_path_factory.mktemp("gpu_check"))


def test_a_line_that_no_page_tells_is_an_error() -> None:
    report = Collected().report("attention")
    report.skip("flash.ordered", "why")
    for part in ("flash.other", "fish.ordered", "flash.float64", "flash.ordered.twice", "lengths"):
        with pytest.raises(RuntimeError, match=f"no line '{part}' among those of the check 'attention'"):
            report.skip(part, "why")
    assert set(get_args(attention.Backend)) < set(WORDS["BACKEND"].split("|"))
    assert set(toy.MODALITIES) == set(WORDS["TASK"].split("|"))


@pytest.fixture(autouse=True)
def _few_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are installed take half a minute to import."""
    monkeypatch.setattr(environment, "PACKAGES", {"json": "json", "no_such_package": "none"})


def lines_of(name: str, settings: Settings) -> dict[str, Line]:
    """Run a check in this process."""
    collected = Collected()
    CHECKS[name].load()(settings, collected.report(name))
    return {line.name.removeprefix(f"{name}."): line for line in collected.lines}


IN_PROCESS = ("environment", "attention", "types", "lengths", "steps", "logprobs", "profile", "size", "memory")


ELSEWHERE = {"environment": {"device-N"}, "lengths": {"rehearsed"}, "logprobs": {"TYPE"}}
"""Lines of CUDA alone, and of parts that break as a whole."""


@pytest.mark.parametrize("name", IN_PROCESS)
def test_sound_code_passes(name: str, settings: Settings) -> None:
    found = lines_of(name, settings)
    assert {line for line in CHECKS[name].lines if not any(is_of(part, line) for part in found)} == ELSEWHERE.get(name, set())
    assert [str(line) for line in found.values() if line.status == "FAIL"] == []
    for line in found.values():
        assert (line.status == "ok") == bool(line.numbers)
        assert line.status == "ok" or line.note, "what is skipped says why"


# ---- faults ----------------------------------------------------------------------------------------------------------------


def scaled(patch: pytest.MonkeyPatch) -> None:
    """One per cent too much."""
    real = attention._BACKENDS["two_call"]
    patch.setitem(attention._BACKENDS, "two_call", lambda *args: real(*args) * 1.01)


def sees_other_answers(patch: pytest.MonkeyPatch) -> None:
    """Answers of a group see each other."""
    real = attention._BACKENDS["dense"]

    def one_row(query: Any, key: Any, value: Any, layout: Any, scale: float) -> Any:
        if query.dtype == torch.float64:
            return real(query, key, value, layout, scale)
        heads = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(heads, 1) for x in (key, value))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)

    patch.setitem(attention._BACKENDS, "merge", one_row)


def half_a_gradient(patch: pytest.MonkeyPatch) -> None:
    """The gradient of the values is half of what it is."""
    real = attention._BACKENDS["merge"]

    def half(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        return real(query, key, 0.5 * value + 0.5 * value.detach(), *rest)

    patch.setitem(attention._BACKENDS, "merge", half)


class InAnyOrder(torch.autograd.Function):
    """A gradient of 16 bits in which one number is rounded otherwise from call to call."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        if grad.dtype != torch.bfloat16:
            return grad
        InAnyOrder.calls += 1
        out = grad.contiguous().clone()
        out.view(-1)[out.abs().argmax()] *= 1 + 2**-7 * (InAnyOrder.calls % 3)
        return out


def any_order(patch: pytest.MonkeyPatch) -> None:
    """The gradient of the queries is added up in any order."""
    real = attention._BACKENDS["merge"]
    patch.setitem(attention._BACKENDS, "merge", lambda query, *rest: real(InAnyOrder.apply(query), *rest))


def two_types(patch: pytest.MonkeyPatch) -> None:
    """Query and key stay as rotary embeddings leave them."""
    patch.setattr(attention, "one_type", lambda *three: three)


def told_otherwise(patch: pytest.MonkeyPatch, **changes: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """The engine's rollouts have other fields than it sampled."""
    real = engine_hf.Rollout
    patch.setattr(engine_hf, "Rollout", lambda **kw: real(**kw | {name: change(kw[name]) for name, change in changes.items()}))


def other_logprobs_drawn(patch: pytest.MonkeyPatch) -> None:
    """The sampler reports log-probs of another distribution."""
    told_otherwise(patch, logprobs=lambda values: tuple(value - 0.2 for value in values))


def trainer_off(patch: pytest.MonkeyPatch) -> None:
    """Packed rows score with a little more heat than plain ones."""
    real = forward.LAYOUTS["shared_prefix"]

    def hot(*args: Any, **kwargs: Any) -> Any:
        return real.forward(*args, **kwargs | {"temperature": 1.3 * kwargs["temperature"]})

    patch.setitem(forward.LAYOUTS, "shared_prefix", forward.Layout(real.split, real.pack, hot))


def nothing_applied(patch: pytest.MonkeyPatch) -> None:
    """No gradient is finite."""
    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, most: torch.tensor(float("nan")))


def waits_per_token(patch: pytest.MonkeyPatch) -> None:
    real = grid.DecodeGrid.advance

    def advance(self: Any) -> None:
        real(self)
        for place in self._place_N:
            place.item()

    patch.setattr(grid.DecodeGrid, "advance", advance)


def waits_per_update(patch: pytest.MonkeyPatch) -> None:
    real = toy.Plain.__call__

    def call(self: Any, x: Any, slices: Any, total: float) -> Any:
        for value in x.logp_BT.detach().flatten():
            value.item()
        return real(self, x, slices, total)

    patch.setattr(toy.Plain, "__call__", call)


def copies_that_block(patch: pytest.MonkeyPatch) -> None:
    """Indices go to the device out of memory that can be moved away."""
    patch.setattr(forward, "to_device", lambda tensor, device: tensor.to(device))


def writes_apart(patch: pytest.MonkeyPatch) -> None:
    """Every token goes into a cache through indices with a dimension between them."""
    real, cache, at = engine_hf.DecodeGrid.advance, torch.zeros(2, 3, 4), torch.tensor([0, 1])

    def advance(self: Any) -> None:
        real(self)
        cache[at, :, at] = 1.0

    patch.setattr(engine_hf.DecodeGrid, "advance", advance)


def copies_kept(patch: pytest.MonkeyPatch) -> None:
    """Frozen weights are float32, and in a rollout all want gradients: autocast keeps its copies of those."""
    load, generate = counted.load_policy, engine_hf.HFEngine.generate

    def in_float(*args: Any, **kwargs: Any) -> Any:
        policy = load(*args, **kwargs)
        policy.model.float()
        return policy

    def wanting(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = {p: p.requires_grad for p in self.policy.model.parameters()}
        for p in before:
            p.requires_grad_(True)
        try:
            return generate(self, *args, **kwargs)
        finally:
            for p, wanted in before.items():
                p.requires_grad_(wanted)

    patch.setattr(counted, "load_policy", in_float)
    patch.setattr(engine_hf.HFEngine, "generate", wanting)


def normalised_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.ProcessorBundle, "scales", property(lambda self: {}))


def slow(patch: pytest.MonkeyPatch) -> None:
    """Everything that is clocked takes two minutes longer."""
    patch.setattr(sizes, "product_rate", lambda device, dtype: 1e11)
    patch.setattr(sizes, "timed", lambda act, device, warm=True: (act(), 120.0, 0.0))


def three_moments(patch: pytest.MonkeyPatch) -> None:
    """The optimizer keeps one tensor more than was counted on."""
    real = torch.optim.AdamW
    patch.setattr(torch.optim, "AdamW", lambda *args, **kwargs: real(*args, amsgrad=True, **kwargs))


def loaded_in_double(patch: pytest.MonkeyPatch) -> None:
    """The weights are there in a larger type."""
    real = sizes.open_model

    def load(*args: Any) -> Any:
        policy = real(*args)
        policy.model.double()
        return policy

    patch.setattr(sizes, "open_model", load)


def another_type(patch: pytest.MonkeyPatch) -> None:
    """A run takes another type than the machine is for."""
    real = session.load_policy
    patch.setattr(session, "load_policy", lambda *args, **kwargs: real(*args, **kwargs | {"dtype": "bfloat16"}))


def answers_end(patch: pytest.MonkeyPatch) -> None:
    told_otherwise(patch, ids=lambda ids: tuple(ids[:1]), logprobs=lambda values: tuple(values[:1]))


def not_finite(patch: pytest.MonkeyPatch) -> None:
    from vlmrl.policy import vision

    real = vision._parts

    def broken(*args: Any) -> Any:
        first, *others = real(*args)
        first = first.clone()
        first[0, 0] = float("nan")
        return (first, *others)

    patch.setattr(vision, "_parts", broken)


def no_second_try(patch: pytest.MonkeyPatch) -> None:
    """Out of memory ends the step."""
    patch.setattr(step, "MAX_OOM_RETRIES", 0)


def memory_kept(patch: pytest.MonkeyPatch) -> None:
    """What a try that ran out of memory had allocated stays."""
    kept: list[Any] = []
    real = limits.Refusing.__call__

    def call(self: Any, x: Any, slices: Any, total: float) -> Any:
        kept.append(torch.zeros(4_000_000))
        return real(self, x, slices, total)

    patch.setattr(limits.Refusing, "__call__", call)


def other_update(patch: pytest.MonkeyPatch) -> None:
    """The second try forgets to start from an empty gradient."""
    patch.setattr(torch.optim.AdamW, "zero_grad", lambda self, set_to_none=True: None)


def cache_kept(patch: pytest.MonkeyPatch) -> None:
    """The allocator is not told when rollout and training take turns."""
    patch.setattr(memory_ledger, "TURNS", ())


def rollout_kept(patch: pytest.MonkeyPatch) -> None:
    """Keys and values outlive their rollout."""
    kept: list[Any] = []
    real = engine_hf.HFEngine.generate

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(torch.zeros(500_000))
        return real(self, *args, **kwargs)

    patch.setattr(engine_hf.HFEngine, "generate", generate)


def graph_kept(patch: pytest.MonkeyPatch) -> None:
    """What waited in the machine's memory is not given back."""
    patch.setattr(offload, "_ARENAS", {})
    patch.setattr(arena.Arena, "give_back", lambda self: None)


def old_version(patch: pytest.MonkeyPatch) -> None:
    problem = doctor.Finding(area="versions", item="torch", found="1.0", status="problem", advice="torch>=2.8 is needed")
    patch.setattr(doctor, "examine", lambda: [problem])


def no_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(environment, "available_memory", lambda: 2**20)


def unseen_device(patch: pytest.MonkeyPatch) -> None:
    """A build for CUDA that sees no device."""
    patch.setattr(torch.version, "cuda", "13.0")
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def broken_package(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "wheel_of_another_torch.py").write_text("raise ImportError('undefined symbol: _ZN5torch')\n")
    patch.syspath_prepend(str(folder))
    patch.setenv("PYTHONPATH", str(folder))
    patch.setattr(environment, "PACKAGES", {"wheel_of_another_torch": "wheel"})


Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[tuple[str, Fault, set[str]]] = [
    ("environment", old_version, {"versions"}),
    ("environment", no_memory, {"host"}),
    ("environment", unseen_device, {"device"}),
    ("attention", scaled, {"two_call.float32", "two_call.bfloat16"}),
    ("attention", sees_other_answers, {"merge.float32", "merge.bfloat16"}),
    ("attention", half_a_gradient, {"merge.float32", "merge.bfloat16"}),
    ("attention", any_order, {"merge.ordered"}),
    ("types", two_types, {"dense", "merge", "two_call"}),
    ("steps", other_logprobs_drawn, {"float32", "bfloat16"}),
    ("steps", nothing_applied, {"float32", "bfloat16"}),
    ("steps", another_type, {"float32", "defaults"}),
    ("logprobs", other_logprobs_drawn, {f"{dtype}.{task}" for dtype in ("float32", "bfloat16") for task in toy.MODALITIES}),
    ("logprobs", trainer_off, {f"{dtype}.{task}" for dtype in ("float32", "bfloat16") for task in toy.MODALITIES}),
    ("profile", waits_per_token, {"token"}),
    ("profile", waits_per_update, {"update", "waits"}),
    ("profile", copies_that_block, {"waits"}),
    ("profile", writes_apart, {"writes"}),
    ("profile", copies_kept, {"casts"}),
    ("profile", normalised_on_the_host, {"patches"}),
    ("size", slow, {"score-64", "update-64", "update-64.recomputed", "tower-256"}),
    ("size", three_moments, {"update-64", "update-64.recomputed"}),
    ("size", loaded_in_double, {"load", "score-64", "update-64", "update-64.recomputed"}),
    ("size", answers_end, {"rollout-64"}),
    ("size", not_finite, {"tower-256"}),
    ("memory", no_second_try, {"halving"}),
    ("memory", memory_kept, {"halving"}),
    ("memory", other_update, {"halving", "turns"}),  # gradients of the rehearsal are there too
    ("memory", cache_kept, {"turns"}),
    ("memory", rollout_kept, {"turns"}),
    ("memory", graph_kept, {"pinned"}),
]


def _cases() -> Iterator[Any]:
    """One fault of each check every day, the others with the slow tests."""
    for number, (name, fault, failing) in enumerate(FAULTS):
        first = name not in [other[0] for other in FAULTS[:number]]
        marks = () if first else pytest.mark.slow
        yield pytest.param(name, fault, failing, id=f"{name}-{getattr(fault, '__name__', '')}", marks=marks)


@pytest.mark.parametrize(("name", "fault", "failing"), _cases())
def test_a_fault_fails_its_line(name: str, fault: Fault, failing: set[str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.make(settings.work)
    fault(monkeypatch)
    found = lines_of(name, settings)
    assert {part for part, line in found.items() if line.status == "FAIL"} == failing


@pytest.mark.parametrize(("asked", "status"), [(True, "ok"), (False, "FAIL")])
def test_flash_is_asked_for_its_ordered_backward(asked: bool, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's flash backward keeps an order only where deterministic mode asks for errors, and a run asks for warnings."""
    real = emulated.aten_backward

    def backward(*args: Any, **how: Any) -> Any:
        ordered = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
        with kernels.mode(False):
            dq, dk, dv = real(*args, **how)
        return dq if ordered else InAnyOrder.backward(None, dq), dk, dv

    monkeypatch.setattr(library, "FLASH", Operations(emulated.ATEN_16.forward, backward))
    monkeypatch.setitem(attention._BACKENDS, "flash", library.segments)
    if not asked:
        monkeypatch.setattr(library, "in_order", contextlib.nullcontext)
    collected = Collected()
    layout = layout_of([(20, (7, 5))])
    kernels._ordered("flash", "flash.ordered", layout, torch.device("cpu"), collected.report("attention"))
    (line,) = collected.lines
    assert line.status == status
    assert (int(line.value("dq that differ") or 0) > 0) == (not asked)
    assert int(line.value("dq that differ without the mode") or 0) > 0


def test_an_installed_package_that_does_not_import_fails(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken_package(monkeypatch, tmp_path)
    line = lines_of("environment", settings)["package-wheel"]
    assert line.status == "FAIL"
    assert "undefined symbol" in line.note


@pytest.mark.parametrize(("dynamic", "status"), [(True, "ok"), (False, "FAIL")])
def test_compilations_of_many_lengths_are_counted(dynamic: bool, status: str) -> None:
    compiled = torch.compile(lambda x: (x * 2).sum(), dynamic=dynamic, backend="eager")
    collected = Collected()
    with torch.no_grad():
        numbers = kernels.count_compilations(lambda n: compiled(torch.ones(n)), range(10, 60, 4))
    kernels.judge_lengths(numbers[0], [0.0] * len(numbers[1]), collected.report("lengths"))
    assert collected.lines[0].status == status
    kernels.judge_lengths(1, [0.0] * 9 + [9000.0], collected.report("lengths"))
    assert collected.lines[1].status == "FAIL"


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    def write(name: str, **tensors: torch.Tensor) -> Path:
        save_file(tensors, tmp_path / name)
        return tmp_path / name

    one = write("one", b=torch.zeros(3), a=torch.ones(2), c=torch.ones(1))
    assert exactness.differs(one, write("same", a=torch.ones(2), b=torch.zeros(3), c=torch.ones(1))) == "equal"
    assert (
        exactness.differs(one, write("other", a=torch.ones(2), b=torch.full((3,), 1e-3), c=torch.zeros(1)))
        == "2 differ, first b by 1.0e-03"
    )
    assert exactness.differs(one, write("more", a=torch.ones(2))) == "other names"
    assert exactness.digest(one) == exactness.digest(tmp_path / "same") != exactness.digest(tmp_path / "other")


# ---- processes -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("", set()),
        ("drawn_anew", {"auto.twice", "auto.killed"}),
        ("changed_by_resume", {"auto.killed"}),
    ],
)
def test_resume(fault: str, failing: set[str], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault:
        monkeypatch.setenv(VARIABLE, f"tests.support.gpu_faults:{fault}")
    found = lines_of("resume", Settings(**vars(settings) | {"work": tmp_path}))
    assert {part for part, line in found.items() if line.status == "FAIL"} == failing
    assert {part for part, line in found.items() if line.status == "ok"} == {"auto.twice", "auto.killed"} - failing
    if fault == "changed_by_resume":
        assert "differ, first" in str(found["auto.killed"].value("weights"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("", set()),
        ("sums_of_one", {"sums", "text-only"}),
        ("forgotten_gradients", {"text-only"}),
        ("never_gives_up", {"killed"}),
        ("asks_in_every_pass", {"calls"}),
        ("sums_in_every_pass", {"calls"}),
        ("sockets_for_every_rank", {"sockets"}),
        ("one_thread", {"threads"}),
        ("weights_of_before", {"weights"}),
    ],
)
def test_ranks(fault: str, failing: set[str], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault:
        monkeypatch.setenv(VARIABLE, f"tests.support.gpu_faults:{fault}")
    if fault == "one_thread" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one core: one thread is all of them")
    if fault == "never_gives_up":
        monkeypatch.setattr(ranks, "NOTICED", 0.0)
    found = lines_of("ranks", Settings(**vars(settings) | {"work": tmp_path}))
    assert {part: str(line) for part, line in found.items() if line.status == "FAIL"}.keys() == failing
    assert set(found) == {"sums", "text-only", "killed", "calls", "sockets", "threads", "weights"}


@pytest.mark.parametrize(
    ("fault", "says", "limit"),
    [
        ("raises", "ValueError: broken", 120),
        ("ends", "ended with 7", 120),
        ("crashes", "ended with -11", 120),
        ("measures_nothing", "measured nothing", 120),
        ("hangs", "not done after 3 s", 3),
    ],
)
def test_a_check_that_breaks_is_a_failed_line(fault: str, says: str, limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"tests.support.gpu_faults:{fault}")
    told_lines: list[Line] = []
    settings = Settings(device="cpu", gpus=0, quick=True, work=tmp_path)
    command.run_one(CHECKS["memory"], settings, told_lines.append, limit=limit)
    assert [(line.name, line.status) for line in told_lines] == [("memory", "FAIL")]
    assert says in told_lines[0].note


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--only", "lengths", "--out", str(tmp_path / "out.json")]) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert [(line["check"], line["part"], line["status"]) for line in content["lines"]] == [("lengths", "flex", "skip")]
    printed = capsys.readouterr().out
    assert "skip  lengths.flex" in printed
    assert "0 failures" in printed


def test_failures_are_the_exit_code_and_other_checks_still_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check is a process of its own, which meets the fault."""
    monkeypatch.setenv(VARIABLE, "tests.support.gpu_faults:scaled_backend")
    out = tmp_path / "out.json"
    assert command.main(["--device", "cpu", "--out", str(out), "--only", "attention", "lengths", "--quick"]) == 2
    content = json.loads(out.read_text())
    assert [line["part"] for line in content["lines"] if line["status"] == "FAIL"] == ["two_call.float32", "two_call.bfloat16"]
    assert {line["check"] for line in content["lines"]} == {"attention", "lengths"}
    assert {"override": "model.prefix_backend=auto", "why": "takes merge, which is sound here"} in content["overrides"]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CHECKS)
    with pytest.raises(SystemExit):
        command.main(["--only", "atention"])
    assert "unknown check atention (known: environment, attention" in capsys.readouterr().err


# ---- numbers and advice ----------------------------------------------------------------------------------------------------


def test_limits() -> None:
    assert at_most("a", 1.0, 1.0).ok
    assert at_least("a", 1.0, 1.0).ok
    assert not at_most("a", float("nan"), 1.0).ok
    assert not at_least("a", float("nan"), 1.0).ok
    assert not equals("a", "x", "y").ok
    assert str(at_most("gap", 0.01234, 0.05, "s")) == "gap 0.0123 s (<= 0.05)"
    line = Line(check="a", part="b", status="ok", numbers=(told("n", 3),))
    assert Line.of_json(json.loads(json.dumps(line.as_json()))) == line


def made(name: str, status: str = "ok", **values: Any) -> Line:
    check, _, part = name.partition(".")
    return Line(check=check, part=part, status=status, numbers=tuple(told(k.replace("_", " "), v) for k, v in values.items()))


def test_overrides_of_a_gpu() -> None:
    device = made("environment.device-0", memory=80.0)
    fits = made("size.update-1024", fits=True, peak=70.0, state=60.0, tokens=3072)
    not_long = made("size.update-8192", fits=False)
    again = made("size.update-8192.recomputed", fits=True, peak=65.0, state=60.0, tokens=10240)
    lines = [device, made("steps.bfloat16"), made("attention.flash.bfloat16"), made("attention.flex.bfloat16"), fits, not_long, again]
    found = dict(advise(lines, cuda=True))
    assert {"model.dtype=bfloat16", "model.prefix_backend=auto", "model.gradient_checkpointing=true"} <= set(found)
    # 17 of the 20 GiB that are left, at 5 GiB for 10,240 tokens, in whole thousands of 1,024
    assert "stages.rl.max_tokens_per_microbatch=34816" in found
    assert "flash" in found["model.prefix_backend=auto"]


def test_overrides_leave_out_what_failed() -> None:
    lines = [
        made("attention.flash.bfloat16", "FAIL"),
        made("attention.flex.bfloat16"),
        made("lengths.flex", "FAIL"),
        made("attention.two_call.bfloat16"),
        made("steps.bfloat16", "FAIL"),
        made("resume.auto.killed", "FAIL"),
        made("size.update-1024", fits=True),
    ]
    found = dict(advise(lines, cuda=True))
    assert {"model.prefix_backend=two_call", "model.dtype=float32", "model.gradient_checkpointing=false", "run.deterministic=true"} <= set(
        found
    )


def test_overrides_are_those_of_a_recipe(tmp_path: Path) -> None:
    import yaml

    from tests.support.documents import MINIMAL, check_recipe

    lines = [made("attention.two_call.float32"), made("size.update-64", fits=True), made("size.rollout-64", **{"decoded tokens/s": 5.0})]
    overrides = [override for override, _ in advise(lines, cuda=False)]
    assert len(overrides) == 4
    check_recipe(yaml.safe_dump(MINIMAL, sort_keys=False), tmp_path, overrides)


def test_layers_that_fit() -> None:
    shape = {"layers": 36, "per_layer": 77_000_000, "rest": 980_000_000}
    assert models.layers_that_fit(141 * 10**9, **shape) == 36
    assert 20 < models.layers_that_fit(80 * 10**9, **shape) < 36
    assert models.layers_that_fit(8 * 10**9, **shape) == 2


def test_the_shape_of_3b_is_cut_to_the_device() -> None:
    name, label = models._cut(60 * 10**9)
    layers = models.workload.SIZES[name]["text"]["num_hidden_layers"]
    assert name == f"3b-{layers}"
    assert f"{layers} of 36 layers" in label
    assert models._cut(200 * 10**9)[0] == "3b"


def test_sums_are_counted_once_per_profile() -> None:
    per = profiles.count(lambda: torch.ones(3).sum().item(), cuda=False)
    assert per.waits == 1
    assert per.launched >= 3
