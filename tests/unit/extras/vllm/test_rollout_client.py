"""vLLM on servers as the engine: how requests are spread, what becomes of each fault, and how weights get there. Servers without vLLM."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest
import torch

from tests.support import media_layouts, rollout_stand_in, tiny
from tests.support.rollout_stand_in import Served, cut_off, garbage, made_up, other_weights, serving, silence
from vlmrl.errors import ConfigError, EngineError, NumericsError, RemoteError
from vlmrl.extras.vllm import client as client_module
from vlmrl.extras.vllm import endpoint as endpoint_module
from vlmrl.extras.vllm import fleet as fleet_module
from vlmrl.extras.vllm.client import RemoteVllmEngine, RunRanks
from vlmrl.extras.vllm.fleet import Fleet, Needed
from vlmrl.extras.vllm.inputs import Completion
from vlmrl.extras.vllm.remote import Remote
from vlmrl.protocols import DetachedEngine
from vlmrl.types import GenerationSettings, Request, Rollout

T = TypeVar("T")
SETTINGS = GenerationSettings(max_new_tokens=8, temperature=0.7)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    return media_layouts.make(tmp_path_factory.mktemp("files"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def requests(loaded: tiny.Tiny) -> list[Request]:
    """Two of each layout, three answers each."""
    prompts = list(media_layouts.prompts(loaded).values()) * 2
    return [Request(prompt=prompt, seeds=(10 * n, 10 * n + 1, 10 * n + 2), ks=(0, 1, 2)) for n, prompt in enumerate(prompts)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, loaded: tiny.Tiny) -> None:
    monkeypatch.setattr(endpoint_module, "SECOND", 0.05)
    monkeypatch.setattr(client_module, "SLICE", 0.02)
    monkeypatch.setattr(client_module, "STALE_PAUSE", 0.05)
    monkeypatch.setattr(fleet_module, "SLICE", 0.02)
    loaded.policy.version, loaded.policy.vision_version, loaded.policy.vision_trains = 3, 1, True


def needed(loaded: tiny.Tiny, **changes: Any) -> Needed:
    return Needed(**({"architecture": type(loaded.policy.model).__name__, "dtype": "float32", "length": 2048} | changes))


SHORT = 0.5
"""Seconds without a word, for tests of that. A machine at work is silent for as long, so elsewhere a server is lost later."""


def connected(
    loaded: tiny.Tiny,
    addresses: Sequence[str],
    *,
    together: RunRanks | None = None,
    patience: float = 5.0,
    at_once: int = 6,
    quiet: float = 30.0,
) -> RemoteVllmEngine:
    remotes = [Remote(address, token=None, quiet=quiet) for address in addresses]
    fleet = Fleet(remotes, needed(loaded), patience=patience)
    return RemoteVllmEngine(fleet, loaded.policy, loaded.store, together=together, at_once=at_once)


@contextmanager
def served(loaded: tiny.Tiny, count: int = 2, **options: Any) -> Iterator[tuple[RemoteVllmEngine, list[Served]]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(type(loaded.policy.model).__name__)) for _ in range(count)]
        engine = connected(loaded, [one.address for one in servers], **options)
        stack.callback(engine.close)
        yield engine, servers


def wanted(engine: RemoteVllmEngine, requests: Sequence[Request]) -> list[list[tuple[int, ...]]]:
    """What servers make up for these requests."""
    end = engine.policy.bundle.end_ids[0]
    out: list[list[tuple[int, ...]]] = []
    for request in requests:
        patches = engine.patches(request.prompt, [handle.key for handle in request.prompt.media])
        out.append([made_up(engine.inputs.placed(request.prompt), patches, seed, end) for seed in request.seeds])
    return out


def ids(answers: Sequence[Sequence[Rollout]]) -> list[list[tuple[int, ...]]]:
    return [[rollout.ids for rollout in group] for group in answers]


# ---- answers -----------------------------------------------------------------------------------------------------------


def test_requests_are_spread_and_every_answer_is_that_of_its_seed(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded) as (engine, servers):
        assert isinstance(engine, DetachedEngine)
        assert engine.version == -1
        engine.sync()
        assert engine.version == 3
        done: dict[int, list[Rollout]] = {}
        answers = engine.generate(requests, SETTINGS, done.__setitem__)
        assert ids(answers) == wanted(engine, requests)
        assert [done[n] for n in range(len(requests))] == answers, "each request is reported once, as a whole"
        assert {r.policy_version for group in answers for r in group} == {3}
        assert [[r.k for r in group] for group in answers] == [[0, 1, 2]] * len(requests)
        assert min(len(one.engine.asks) for one in servers) > 0
        assert engine.asked_again == 0
        assert engine.counts["work/prefix_cached_tokens"]() == 3 * 3 * len(requests)
        assert engine.generate([], SETTINGS) == []


def test_a_medium_goes_to_a_server_once(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, 1, at_once=1) as (engine, (server,)):
        engine.sync()
        engine.generate(requests, SETTINGS)
        sent: list[str] = []
        patches = engine.patches
        engine.patches = lambda prompt, keys: (sent.extend(keys), patches(prompt, keys))[1]
        engine.generate(requests, SETTINGS)
        loaded.policy.version += 1
        engine.sync()
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        sent.clear()
        engine.generate(requests, SETTINGS)
        assert sent == []
        server.desk.media = endpoint_module.MediaMemory()
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        assert set(sent) == {handle.key for request in requests for handle in request.prompt.media}


def test_it_answers_with_the_weights_of_the_last_sync_while_the_policy_trains(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded) as (engine, _):
        engine.sync()
        loaded.policy.version += 1
        assert {r.policy_version for group in engine.generate(requests, SETTINGS) for r in group} == {3}
        assert engine.version == 3
        with engine.ready():
            assert engine.version == 4


@pytest.mark.parametrize("fault", [cut_off, garbage, silence, other_weights])
def test_a_lost_reply_is_asked_for_elsewhere_with_its_seeds(loaded: tiny.Tiny, requests: list[Request], fault: Any) -> None:
    with served(loaded, quiet=SHORT if fault is silence else 30.0) as (engine, servers):
        engine.sync()
        servers[0].faults += [fault]
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        assert servers[0].faults == []
        assert engine.asked_again == 3


def test_the_only_server_is_asked_again_once_it_is_well(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, 1) as (engine, (server,)):
        engine.sync()
        server.faults += [cut_off, garbage, other_weights]
        assert ids(engine.generate(requests[:2], SETTINGS)) == wanted(engine, requests[:2])
        assert engine.asked_again == 9


def test_a_server_that_dies_at_work_leaves_its_answers_to_the_others(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded) as (engine, (dying, other)):
        engine.sync()
        dying.engine.free.clear()
        threading.Timer(0.3, dying.kill).start()
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        assert engine.asked_again > 0
        assert len(other.engine.asks) == len(requests)


def test_a_slow_server_is_waited_for(loaded: tiny.Tiny, requests: list[Request]) -> None:
    """Longer than the silence after which it would be lost, and than the patience with no server."""
    with served(loaded, 1, patience=0.7, quiet=SHORT) as (engine, (server,)):
        engine.sync()
        server.engine.free.clear()
        threading.Timer(1.5, server.engine.free.set).start()
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        assert engine.asked_again == 0


def test_with_no_server_left_the_run_ends_after_its_patience(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, patience=0.6) as (engine, servers):
        engine.sync()
        for one in servers:
            one.kill()
        began = time.monotonic()
        with pytest.raises(
            RemoteError, match=r"no rollout server for 0\.6 s .*: connection, .* what was sampled is in the journal"
        ) as raised:
            engine.generate(requests, SETTINGS)
        assert raised.value.exit_code == 69
        assert 0.5 < time.monotonic() - began < 10


def test_answers_that_came_before_are_reported_before_the_run_ends(loaded: tiny.Tiny, requests: list[Request]) -> None:
    """So that they are in the journal."""
    with served(loaded, 1, patience=0.5, at_once=1) as (engine, (server,)):
        engine.sync()
        done: dict[int, list[Rollout]] = {}

        def reported(number: int, rollouts: list[Rollout]) -> None:
            done[number] = rollouts
            if len(done) == 3:
                server.engine.free.clear()
                threading.Thread(target=server.kill).start()

        with pytest.raises(RemoteError):
            engine.generate(requests, SETTINGS, reported)
        assert 3 <= len(done) < len(requests)


def test_a_server_that_began_anew_holds_no_weights_and_is_not_asked(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, patience=60) as (engine, (one, other)):
        engine.sync()
        one.desk.held = None
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        assert len(other.engine.asks) == len(requests)
        other.desk.held = None
        with pytest.raises(RemoteError, match="no rollout server holds the weights of step 3 any more"):
            engine.generate(requests, SETTINGS)
        loaded.policy.version += 1
        engine.sync()
        assert ids(engine.generate(requests, SETTINGS)) == wanted(engine, requests)
        assert min(len(each.engine.asks) for each in (one, other)) > 0


def shortened(answer: Completion) -> Completion:
    return dataclasses.replace(answer, ids=answer.ids[:2], logprobs=answer.logprobs[:2], reason="length")


def test_an_answer_that_ended_early_is_asked_again_and_in_the_end_an_error(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, 1) as (engine, (server,)):
        engine.sync()
        left = [shortened, lambda answer: dataclasses.replace(answer, reason="abort")]
        server.engine.alter = lambda answer: left.pop()(answer) if left else answer
        assert ids(engine.generate(requests[:2], SETTINGS)) == wanted(engine, requests[:2])
        assert engine.asked_again == 2
        assert sorted(len(ask.seeds) for ask in server.engine.asks) in ([1, 1, 3, 3], [2, 3, 3]), "only what was lost"
        server.engine.alter = shortened
        with pytest.raises(EngineError, match=r"vLLM gave no answer to .*, asked 3 times: truncated after 2 of 8 tokens"):
            engine.generate(requests[:1], SETTINGS)


@pytest.mark.parametrize(
    ("alter", "error", "message"),
    [
        (lambda a: dataclasses.replace(a, logprobs=(float("nan"),) * len(a.ids)), NumericsError, "log-probs not finite"),
        (lambda a: dataclasses.replace(a, prompt_ids=(1, 2)), EngineError, "vLLM changed the prompt"),
    ],
)
def test_answers_that_cannot_be_true_end_the_run(
    loaded: tiny.Tiny, requests: list[Request], alter: Callable[[Completion], Completion], error: type[Exception], message: str
) -> None:
    with served(loaded) as (engine, servers):
        engine.sync()
        for one in servers:
            one.engine.alter = alter
        with pytest.raises(error, match=message):
            engine.generate(requests, SETTINGS)


def test_a_prompt_that_always_loses_its_server_ends_the_run(
    loaded: tiny.Tiny, requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TRIES", 3)
    with served(loaded, 1, patience=60) as (engine, (server,)):
        engine.sync()
        server.faults += [cut_off] * 9
        with pytest.raises(RemoteError, match=r"lost its rollout server 3 times, at last .*: cut"):
            engine.generate(requests[:1], SETTINGS)


def test_without_weights_and_without_room_nothing_is_asked(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, 1) as (engine, (server,)):
        with pytest.raises(EngineError, match="call `sync` first"):
            engine.generate(requests, SETTINGS)
        engine.sync()
        with pytest.raises(ConfigError, match=r"rollout\.vllm\.max_model_len \(2048\)"):
            engine.generate(requests, GenerationSettings(max_new_tokens=4096))
        assert server.engine.asks == []


# ---- weights -----------------------------------------------------------------------------------------------------------


def names(server: Served) -> set[str]:
    return {name for parts in server.engine.receiver.held.values() for name in parts}


def test_all_weights_go_to_all_servers_and_a_tower_that_does_not_train_once(loaded: tiny.Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "BUCKET_BYTES", 2**18)
    policy = loaded.policy
    policy.vision_trains = False
    parameters = dict(policy.model.named_parameters())
    with served(loaded) as (engine, servers):
        first = engine.sync()
        assert first is not None
        assert (first.whole, first.tensors) == (True, len(parameters))
        assert first.compared == sum(len(one.engine.receiver.held) for one in servers)
        for one in servers:
            assert names(one) == set(parameters)
            for parts in one.engine.receiver.held.values():
                assert all(torch.equal(tensor, parameters[name]) for name, tensor in parts.items())
            assert sum(path.endswith("part") for path in one.posts) > 2
            assert one.desk.held == first.version
        assert engine.sync() is None
        policy.version += 1
        second = engine.sync()
        assert second is not None
        assert not second.whole
        assert second.tensors == sum(".visual." not in name for name in parameters)
        assert second.compared == sum(not name.startswith("visual.") for one in servers for name in one.engine.receiver.held)
        assert all(one.engine.calls.count("join") == 1 for one in servers), "they meet once"
        assert second.version.media_hash("k") == first.version.media_hash("k")


@pytest.mark.parametrize("fault", ["left out", "other bits", "refused"])
def test_weights_that_did_not_arrive_end_the_run(loaded: tiny.Tiny, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(loaded) as (engine, (_, bad)):
        receiver, name = bad.engine.receiver, "model.language_model.layers.0.self_attn.k_proj.bias"
        real = receiver.vlmrl_load

        def load(bucket: Any) -> None:
            real([(f"{n}.unknown" if fault == "refused" and n == name else n, t + (fault == "other bits")) for n, t in bucket])

        monkeypatch.setattr(receiver, "vlmrl_load", load)
        if fault == "left out":
            receiver.forgets = name
        message = {
            "left out": "went nowhere .*k_proj.bias",
            "other bits": "81 tensors of the trainer came to vLLM with other bits",
            "refused": "refuses a tensor",
        }[fault]
        with pytest.raises(EngineError, match=message):
            engine.sync()
        assert bad.desk.held is None
        assert engine.version == -1


def test_a_server_that_is_lost_while_weights_go_out_gets_all_when_it_is_back(loaded: tiny.Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "BUCKET_BYTES", 2**18)
    loaded.policy.vision_trains = False
    with served(loaded) as (engine, (lost, other)):
        parts: list[str] = []
        real = Remote.part

        def part(self: Remote, row: Any, told: Any) -> Any:
            parts.append(self.address)
            if self.address == lost.address and parts.count(self.address) == 2:
                another = Remote(self.address, token=None)
                assert another.health() is None
                assert another.begin("of another trainer", language_only=False, device=torch.device("cpu")) is None
            return real(self, row, told)

        monkeypatch.setattr(Remote, "part", part)
        report = engine.sync()
        assert report is not None
        assert other.desk.held == report.version
        assert lost.desk.held is None
        parts.clear()
        loaded.policy.version += 1
        parts += [lost.address] * 2
        again = engine.sync()
        assert again is not None
        assert again.whole
        assert lost.desk.held == other.desk.held == again.version
        assert names(lost) == names(other)


def test_weights_wait_for_a_server(loaded: tiny.Tiny) -> None:
    with served(loaded, 1) as (engine, (server,)):
        port = int(server.address.rpartition(":")[2])
        server.kill()
        with ExitStack() as stack:
            timer = threading.Timer(0.4, lambda: stack.enter_context(serving(type(loaded.policy.model).__name__, port=port)))
            timer.start()
            assert engine.sync() is not None
            timer.join()


def test_no_server_at_all_ends_the_run_after_its_patience(loaded: tiny.Tiny) -> None:
    engine = connected(loaded, ["127.0.0.1:9"], patience=0.3)
    with pytest.raises(
        RemoteError, match=r"no rollout server for 0\.3 s .*127\.0\.0\.1:9: connection, .*Start them \(vlmrl serve --rollouts\)"
    ):
        engine.sync()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "Other"}, "runs architecture 'Qwen2_5_VLForConditionalGeneration', and the run trains 'Other'"),
        ({"dtype": "bfloat16"}, "runs dtype 'float32', and the run trains 'bfloat16'"),
        ({"processor": "6c5a"}, "runs processor 'None', and the run trains '6c5a'"),
        ({"length": 9999}, "has room for 4096 tokens, and the run needs 9999"),
    ],
)
def test_servers_of_another_run_are_refused(loaded: tiny.Tiny, change: dict[str, Any], message: str) -> None:
    with served(loaded, 1) as (engine, _):
        engine.fleet.needed = needed(loaded, **change)
        with pytest.raises(ConfigError, match=message):
            engine.sync()


# ---- ranks -------------------------------------------------------------------------------------------------------------


class Two:
    """Two ranks as two threads."""

    def __init__(self) -> None:
        self.barrier, self.said = threading.Barrier(2, timeout=20), None

    def rank(self, lead: bool) -> RunRanks:
        shared = self

        class Rank:
            @property
            def lead(self) -> bool:
                return lead

            def on_lead(self, fn: Callable[[], T]) -> T:
                if lead:
                    shared.said = fn()
                shared.barrier.wait()
                out: Any = shared.said
                shared.barrier.wait()
                return out

        return Rank()


def test_ranks_share_servers_and_one_of_them_sends(loaded: tiny.Tiny, requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    real = client_module.weights

    def weights(policy: Any, *, tower: bool) -> Any:
        for item in real(policy, tower=tower):
            gathered.append(threading.get_ident())
            yield item

    monkeypatch.setattr(client_module, "weights", weights)
    two = Two()
    with served(loaded) as (_, servers):
        engines = [connected(loaded, [one.address for one in servers], together=two.rank(lead)) for lead in (True, False)]
        answers: dict[int, Any] = {}

        def go(number: int) -> None:
            engines[number].sync()
            answers[number] = engines[number].generate(requests[number::2], SETTINGS)

        threads = [threading.Thread(target=go, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [gathered.count(ident) for ident in set(gathered)] == [len(dict(loaded.policy.model.named_parameters()))] * 2
        assert all(one.posts.count("/vlmrl/weights/begin") == 1 for one in servers), "rank 0 alone sends"
        assert engines[0].held == engines[1].held
        for number in range(2):
            assert ids(answers[number]) == wanted(engines[number], requests[number::2])
            assert engines[number].asked_again == 0


def test_the_stand_in_answers_depend_on_what_is_asked(loaded: tiny.Tiny, requests: list[Request]) -> None:
    """Or comparisons with it would mean nothing."""
    with served(loaded, 1) as (engine, _):
        found = [answer for group in wanted(engine, requests) for answer in group]
        assert len(set(found)) > len(found) // 2
        assert len(found[0]) == rollout_stand_in.TOKENS
