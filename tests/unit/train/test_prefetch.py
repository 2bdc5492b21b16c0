"""Media of the next step in the background: right guesses save the decoding, wrong ones and faults change nothing."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.media import truncate
from tests.support.tiny import Tiny
from vlmrl.errors import DataError
from vlmrl.media.store import MediaStore
from vlmrl.sampling.ledger import Ledger
from vlmrl.sampling.uniform import uniform
from vlmrl.train.loader import PromptLoader
from vlmrl.train.prefetch import Prefetcher
from vlmrl.types import PlannedPrompt, Sample
from vlmrl.zoo.sampling.prioritized import prioritized

Seen = list[tuple[str, str, str]]


def store_of(tiny: Tiny, patchify: Callable[..., Any] | None = None, **changes: Any) -> MediaStore:
    """A cold store like the tiny model's."""
    b = tiny.bundle
    return MediaStore(
        dataclasses.replace(tiny.store.settings, **changes),
        patchify=patchify or b.patchify,
        patch_size=b.patch_size,
        merge_size=b.merge_size,
        temporal_patch_size=b.temporal_patch_size,
        fingerprint=b.fingerprint,
        step_times=b.step_times,
        patch_dtype=b.patch_dtype,
    )


def loader_of(
    tiny: Tiny, store: MediaStore, *, prefetch: bool, root: Path | None = None, sampler: Callable[..., Any] = uniform, max_bad: float = 1.0
) -> tuple[PromptLoader, Seen]:
    samples = {sample.id: sample for sample in tiny.samples[:12]}
    seen: Seen = []

    def quarantine(sample: Sample, reason: str, message: str) -> None:
        seen.append((sample.id, reason, message))

    loader = PromptLoader(
        samples=samples,
        encoder=dataclasses.replace(tiny.encoder, media=store, data_root=root or tiny.encoder.data_root),
        sampler=sampler(list(samples), 5),
        answer_format="think_or_not",
        max_bad=max_bad,
        bad={},
        quarantine=quarantine,
        prefetcher=Prefetcher(store, sampler(list(samples), 5)) if prefetch else None,
    )
    return loader, seen


def settle(loader: PromptLoader) -> None:
    """Wait until the background thread has nothing to do."""
    assert loader.prefetcher is not None
    for future in loader.prefetcher._running:
        future.result(60)


def ids(taken: Any) -> list[tuple[int, str, int]]:
    return [(place, wish.sample_id, wish.epoch) for place, wish, _ in taken]


def background() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_the_next_steps_media_are_there_before_they_are_asked_for(tiny: Tiny) -> None:
    store = store_of(tiny)
    loader, _ = loader_of(tiny, store, prefetch=True)
    plain, _ = loader_of(tiny, store_of(tiny), prefetch=False)
    with loader.running():
        for step in range(5):  # 20 prompts of 12 samples: into the second epoch
            taken, expected = (f.next_batch(Ledger(), prompts=4, rollouts=2) for f in (loader, plain))
            assert ids(taken) == ids(expected)
            assert [p for _, _, p in taken] == [p for _, _, p in expected]
            decoded, waited = store.stats["decoded"], store.waited()
            loader.prefetch(Ledger())
            settle(loader)
            if step < 2:
                assert store.stats["decoded"] > decoded
        assert store.waited() == waited, "after the first step this thread decodes nothing"
    assert loader.prefetcher is not None
    assert loader.prefetcher.fetched == 20
    assert background() == []


def test_a_guess_moves_neither_sampler_nor_ledger(tiny: Tiny) -> None:
    for sampler in (uniform, prioritized):
        loader, _ = loader_of(tiny, store_of(tiny), prefetch=True, sampler=sampler)
        assert loader.prefetcher is not None
        ledger = Ledger()
        for sample in tiny.samples[:12:3]:
            ledger.observe(sample.id, rewards=[0.0, 1.0], lengths=[3, 4], step=0)
        for _ in range(4):
            before = loader.sampler.state_dict(), ledger.state_dict()
            guessed = loader.prefetcher.guess(loader.sampler, ledger, prompts=5, rollouts=2)
            assert loader.prefetcher.guess(loader.sampler, ledger, prompts=5, rollouts=2) == guessed
            assert (loader.sampler.state_dict(), ledger.state_dict()) == before
            assert loader.sampler.plan(ledger, prompts=5, rollouts=2) == guessed


def test_a_wrong_guess_changes_nothing(tiny: Tiny) -> None:
    class Liar:
        def load_state_dict(self, state: Any) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {}

        def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
            return [PlannedPrompt(sample_id=tiny.samples[11].id, num_generations=rollouts)] * prompts

    store = store_of(tiny)
    loader, _ = loader_of(tiny, store, prefetch=True)
    plain, _ = loader_of(tiny, store_of(tiny), prefetch=False)
    loader.prefetcher = Prefetcher(store, Liar())
    with loader.running():
        for _ in range(3):
            assert [p for *_, p in loader.next_batch(Ledger(), prompts=3, rollouts=1)] == [
                p for *_, p in plain.next_batch(Ledger(), prompts=3, rollouts=1)
            ]
            loader.prefetch(Ledger())


@pytest.mark.parametrize("wait", [True, False])
def test_a_broken_medium_is_reported_as_without_prefetching(tiny: Tiny, tmp_path: Path, wait: bool) -> None:
    """Vanished and damaged files: the same rows, the same replacements, the same messages, in the same order."""
    world = tmp_path / "world"
    shutil.copytree(tiny.encoder.data_root, world)
    (world / tiny.samples[2].media[0].path).unlink()
    truncate(world / tiny.samples[7].media[0].path, 0.5)
    results = []
    for prefetch in (True, False):
        loader, seen = loader_of(tiny, store_of(tiny), prefetch=prefetch, root=world)
        steps = []
        with loader.running():
            for _ in range(5):
                steps.append(ids(loader.next_batch(Ledger(), prompts=4, rollouts=2)))
                loader.prefetch(Ledger())
                if prefetch and wait:
                    settle(loader)
        results.append((steps, seen, loader.bad))
    assert results[0] == results[1]
    assert {reason for _, reason, _ in results[0][1]} >= {"missing"}
    assert len(results[0][2]) == 2


def test_too_many_broken_media_stop_the_run_in_the_step_that_needs_them(tiny: Tiny, tmp_path: Path) -> None:
    messages = []
    for prefetch in (True, False):
        loader, _ = loader_of(tiny, store_of(tiny), prefetch=prefetch, root=tmp_path, max_bad=0.1)
        with loader.running():
            if loader.prefetcher is not None:
                loader._asked = (4, 1)
                loader.prefetch(Ledger())
                settle(loader)
                assert loader.prefetcher.fetched == 0
            with pytest.raises(DataError) as caught:
                loader.next_batch(Ledger(), prompts=4, rollouts=1)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_what_is_fetched_stays_within_half_of_the_cache_and_beside_what_is_in_use(tiny: Tiny) -> None:
    whole = store_of(tiny)
    wanted = [(ref, tiny.encoder.root(sample)) for sample in tiny.samples[:12] for ref in sample.media]
    entries = [whole.get(ref, root) for ref, root in wanted]
    sizes = [entry.nbytes for entry in entries]
    assert len({entry.handle.key for entry in entries}) == len(wanted)
    budget = 2 * sum(sizes[:5])

    def fetched(used: int) -> int:
        store = store_of(tiny, cache_bytes=budget)
        with Prefetcher(store, uniform([s.id for s in tiny.samples], 0)) as prefetcher:
            prefetcher.start(wanted, [e.handle for e in entries[:used]] * 2)  # a medium that is used twice counts once
            prefetcher._running[0].result(60)
            return prefetcher.fetched

    assert fetched(0) == 5
    room = budget - sum(sizes[:8])
    expected = max(n for n in range(13) if sum(sizes[:n]) <= min(budget // 2, room))
    assert fetched(8) == expected < 5
    assert fetched(12) == 0


def test_a_new_job_and_the_end_replace_what_waits(tiny: Tiny) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        inside.set()
        assert go.wait(60)
        return tiny.bundle.patchify(*arguments)

    store = store_of(tiny, slow)
    wanted = [(ref, tiny.encoder.root(sample)) for sample in tiny.samples[:6] for ref in sample.media]
    prefetcher = Prefetcher(store, uniform([s.id for s in tiny.samples], 0))
    with prefetcher:
        prefetcher.start(wanted[:3], [])
        assert inside.wait(60)
        prefetcher.start(wanted[3:5], [])  # the first of the old job is being decoded and will be finished
        go.set()
        for future in prefetcher._running:
            future.result(60)
        assert (prefetcher.fetched, store.stats["decoded"]) == (3, 3)
        inside.clear()
        go.clear()
        prefetcher.start(wanted[5:] + wanted[1:3], [])
        assert inside.wait(60)
        prefetcher.stop()
        go.set()
    assert (prefetcher.fetched, background()) == (4, [])


def test_defects_in_the_background_rise_in_the_main_thread(tiny: Tiny) -> None:
    def wrong(*_: Any) -> Any:
        raise ZeroDivisionError("a defect, not a broken file")

    wanted = [(ref, tiny.encoder.root(tiny.samples[0])) for ref in tiny.samples[0].media]

    def make() -> Prefetcher:
        return Prefetcher(store_of(tiny, wrong), uniform([s.id for s in tiny.samples], 0))

    with make() as prefetcher:
        prefetcher.start(wanted, [])
        assert prefetcher._running[0].exception(60)
        with pytest.raises(ZeroDivisionError):
            prefetcher.start(wanted, [])
    prefetcher = make()
    prefetcher.start(wanted, [])
    assert prefetcher._running[0].exception(60)
    with pytest.raises(ZeroDivisionError), prefetcher:
        pass
    with pytest.raises(IndexError), make() as prefetcher:  # what the block raises comes first
        [prefetcher.start(wanted, [])][1]
    assert background() == []


def test_the_background_thread_has_one_torch_thread_and_takes_none_from_others(tiny: Tiny) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Prefetcher(store_of(tiny), uniform([s.id for s in tiny.samples], 0)) as prefetcher:
            prefetcher.start([], [])
            assert prefetcher._thread is not None
            assert prefetcher._thread.submit(torch.get_num_threads).result(60) == 1
            assert torch.get_num_threads() == 3
            later: list[int] = []
            thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert later == [3], "threads that start later begin with the main thread's number"
    finally:
        torch.set_num_threads(before)
