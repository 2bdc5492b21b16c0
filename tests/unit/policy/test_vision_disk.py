"""Vision features on disk: round trip, identity, damage, eviction, several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.policy.vision import Features
from vlmrl.policy.vision_disk import FeatureStore

DTYPE = torch.bfloat16
BIG = 2**30


def some(seed: int = 0, *, tokens: int = 64, deep: int = 0, dtype: torch.dtype = torch.float32) -> Features:
    g = torch.Generator().manual_seed(seed)
    merged, *deepstack = (torch.randn(tokens, 16, generator=g).to(dtype) for _ in range(deep + 1))
    return Features(merged, tuple(deepstack))


def same(a: Features | None, b: Features) -> bool:
    if a is None:
        return False
    pairs = list(zip((a.merged, *a.deepstack), (b.merged, *b.deepstack), strict=True))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def size_of_one(folder: Path) -> int:
    store = FeatureStore(folder, budget_bytes=BIG)
    store.put("probe", "w", DTYPE, some())
    return store.path("probe", "w", DTYPE).stat().st_size


@pytest.mark.parametrize("deep", [0, 1, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_bit_exact(tmp_path: Path, deep: int, dtype: torch.dtype) -> None:
    store, value = FeatureStore(tmp_path / "a" / "b", budget_bytes=BIG), some(deep=deep, dtype=dtype)
    store.put("key", "w", DTYPE, value)
    assert same(store.get("key", "w", DTYPE), value)
    assert same(FeatureStore(tmp_path / "a" / "b", budget_bytes=BIG).get("key", "w", DTYPE), value), "another run finds it"
    assert store.stats == {"hits": 1, "misses": 0, "damaged": 0, "stored": 1, "evicted": 0, "too_large": 0}


def test_slices_of_one_batch_are_stored_alone(tmp_path: Path) -> None:
    """Features of a batch share memory, which safetensors refuses unless each is copied."""
    batch = torch.arange(60.0).view(10, 6)
    value = Features(batch[2:5], (batch[5:8], batch[2:5], batch.T[:3]))
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    store.put("key", "w", DTYPE, value)
    assert same(store.get("key", "w", DTYPE), value)
    assert store.path("key", "w", DTYPE).stat().st_size < 4 * 18 * 4 + 1200


def test_other_medium_weights_or_type_miss(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    store.put("key", "weights", torch.float32, some())
    assert store.get("other", "weights", torch.float32) is None
    assert store.get("key", "other", torch.float32) is None
    assert store.get("key", "weights", torch.bfloat16) is None
    assert store.stats["misses"] == 3
    assert store.stats["damaged"] == 0


def test_plain_safetensors_with_its_identity_in_the_header(tmp_path: Path) -> None:
    store, value = FeatureStore(tmp_path, budget_bytes=BIG), some(deep=1)
    store.put("key", "weights", DTYPE, value)
    path = store.path("key", "weights", DTYPE)
    loaded = load_file(path)
    assert set(loaded) == {"merged", "deepstack.0"}
    assert torch.equal(loaded["deepstack.0"], value.deepstack[0])
    blob = path.read_bytes()
    meta = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    assert (meta["key"], meta["fingerprint"], meta["dtype"]) == ("key", "weights", "bfloat16")


def flip(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: flip(blob, -1 + len(blob)),
        lambda blob: flip(blob, len(blob) // 2),
        lambda blob: blob[:-4],
        lambda blob: blob + b"\0",
        lambda blob: blob[:5],
        lambda _: b"",
        lambda _: b"\x80\x04not safetensors at all",
        lambda blob: blob.replace(b'"F32"', b'"I32"'),
        lambda blob: blob.replace(b"[64,16]", b"[16,64]"),
        lambda blob: blob.replace(b'"key":"key"', b'"key":"kez"'),
    ],
    ids=["last", "middle", "cut", "longer", "stub", "empty", "foreign", "type", "shape", "identity"],
)
def test_damaged_file_is_counted_removed_and_can_be_stored_again(tmp_path: Path, damage) -> None:
    store, value = FeatureStore(tmp_path, budget_bytes=BIG), some()
    store.put("key", "w", DTYPE, value)
    path = store.path("key", "w", DTYPE)
    good = path.read_bytes()
    bad = damage(good)
    assert bad != good, "the damage must do something"
    path.write_bytes(bad)
    assert store.get("key", "w", DTYPE) is None
    assert not path.exists()
    assert (store.stats["damaged"], store.stats["misses"], store.stats["hits"]) == (1, 1, 0)
    store.put("key", "w", DTYPE, value)
    assert same(store.get("key", "w", DTYPE), value)


def test_any_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Whatever single bit changes, the store gives the true features or none."""
    store, value = FeatureStore(tmp_path, budget_bytes=BIG), some(tokens=1)
    store.put("key", "w", DTYPE, value)
    path = store.path("key", "w", DTYPE)
    good = path.read_bytes()
    refused = 0
    for at in range(len(good)):
        path.write_bytes(flip(good, at))
        found = store.get("key", "w", DTYPE)
        assert found is None or same(found, value), at
        refused += found is None
    assert refused > 0.9 * len(good)


def test_a_file_under_the_wrong_name_is_refused(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    store.put("key", "old weights", DTYPE, some())
    os.replace(store.path("key", "old weights", DTYPE), store.path("key", "new weights", DTYPE))
    assert store.get("key", "new weights", DTYPE) is None
    assert store.stats["damaged"] == 1


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    one = size_of_one(tmp_path / "probe")
    store = FeatureStore(tmp_path / "store", budget_bytes=3 * one + one // 2)
    for n in range(3):
        store.put(f"key{n}x", "w", DTYPE, some(n))
        os.utime(store.path(f"key{n}x", "w", DTYPE), (n + 1, n + 1))
    assert store.get("key0x", "w", DTYPE) is not None, "reading key0 makes key1 the oldest"
    store.put("key3x", "w", DTYPE, some(3))
    assert [store.path(f"key{n}x", "w", DTYPE).exists() for n in range(4)] == [True, False, True, True]
    assert store.stats["evicted"] == 1
    assert sum(p.stat().st_size for p in store.folder.iterdir()) <= store.budget


def test_a_smaller_budget_holds_from_the_start(tmp_path: Path) -> None:
    one = size_of_one(tmp_path)
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    for n in range(4):
        store.put(f"key{n}x", "w", DTYPE, some(n))
        os.utime(store.path(f"key{n}x", "w", DTYPE), (n + 10, n + 10))
    os.utime(store.path("probe", "w", DTYPE), (1, 1))
    again = FeatureStore(tmp_path, budget_bytes=2 * one + 64)
    assert again.stats["evicted"] == 3
    assert [again.get(f"key{n}x", "w", DTYPE) is not None for n in range(4)] == [False, False, True, True]


def test_the_newest_entry_survives_its_own_eviction(tmp_path: Path) -> None:
    one = size_of_one(tmp_path / "probe")
    store = FeatureStore(tmp_path / "store", budget_bytes=one + 64)
    store.put("first", "w", DTYPE, some(1))
    os.utime(store.path("first", "w", DTYPE), (2**33, 2**33))  # a clock that ran ahead
    store.put("second", "w", DTYPE, some(2))
    assert same(store.get("second", "w", DTYPE), some(2))
    assert not store.path("first", "w", DTYPE).exists()


def test_larger_than_the_budget_is_left_out_and_counted(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, budget_bytes=100)
    store.put("key", "w", DTYPE, some())
    assert store.stats["too_large"] == 1
    assert list(tmp_path.iterdir()) == []


def test_what_other_processes_wrote_is_noticed(tmp_path: Path) -> None:
    one = size_of_one(tmp_path / "probe")
    budget = 8 * one + one // 2
    a, b = (FeatureStore(tmp_path / "store", budget_bytes=budget) for _ in range(2))
    for n in range(20):
        (a, b)[n % 2].put(f"key{n:02d}", "w", DTYPE, some(n))
        assert sum(p.stat().st_size for p in a.folder.iterdir()) <= budget


def test_leftovers_of_dead_writers_go_but_live_ones_stay(tmp_path: Path) -> None:
    dead, live = (tmp_path / fs.temporary_name(f"{c * 64}.safetensors") for c in "ab")
    for path in (dead, live):
        path.write_bytes(b"half")
    os.utime(dead, (1, 1))
    FeatureStore(tmp_path, budget_bytes=1)
    assert not dead.exists()
    assert live.exists()


def test_writes_are_durable_and_atomic(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    with fs_ops.record() as log:
        store.put("key", "w", DTYPE, some())
    assert [op.kind for op in log] == ["create", "write", "fsync", "rename", "fsync_dir"]
    assert log[3].target == store.path("key", "w", DTYPE)


def test_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    with fs_ops.fail_at(2), pytest.raises(StorageError, match="free some space"):
        store.put("key", "w", DTYPE, some())
    assert list(tmp_path.iterdir()) == []
    assert store.get("key", "w", DTYPE) is None


def test_another_process_may_evict_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that vanishes between the listing and its removal is not counted as ours, and not an error."""
    one = size_of_one(tmp_path / "probe")
    store = FeatureStore(tmp_path / "store", budget_bytes=one + 64)
    store.put("first", "w", DTYPE, some(1))
    real = fs.unlink

    def late(path: Path) -> None:
        path.unlink()
        real(path)

    monkeypatch.setattr(fs, "unlink", late)
    store.put("second", "w", DTYPE, some(2))
    assert store.stats["evicted"] == 0
    assert store.get("first", "w", DTYPE) is None
    assert same(store.get("second", "w", DTYPE), some(2))


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budget_bytes"):
        FeatureStore(tmp_path, budget_bytes=0)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="is a file"):
        FeatureStore(tmp_path / "file", budget_bytes=1)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    store.path("key", "w", DTYPE).mkdir()
    with pytest.raises(StorageError, match="only a cache"):
        store.get("key", "w", DTYPE)


WORKER = """
import json, sys, torch
from vlmrl.policy.vision import Features
from vlmrl.policy.vision_disk import FeatureStore
folder, budget, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = FeatureStore(folder, budget_bytes=budget)
print("ready", flush=True)
sys.stdin.readline()
for step in range(60):
    n = (step * (3 + 2 * seed) + seed) % 9
    found = store.get(f"key{n}", "w", torch.float32)
    if found is None:
        store.put(f"key{n}", "w", torch.float32, Features(torch.full((32, 16), float(n))))
    else:
        assert found.merged.shape == (32, 16) and (found.merged == n).all(), n
print(json.dumps(store.stats))
"""


@pytest.mark.not_fast
def test_two_processes_share_a_folder_while_both_evict(tmp_path: Path) -> None:
    probe = FeatureStore(tmp_path / "probe", budget_bytes=BIG)
    probe.put("key0", "w", torch.float32, Features(torch.zeros(32, 16)))
    one = probe.path("key0", "w", torch.float32).stat().st_size
    folder, budget = tmp_path / "store", 4 * one
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), str(budget), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for seed in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    results = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], results
    stats = [json.loads(out) for out, _ in results]
    assert all(s["hits"] + s["misses"] == 60 for s in stats)
    assert all(s["damaged"] == 0 for s in stats), "no reader ever saw half a file"
    assert sum(s["evicted"] for s in stats) > 0
    assert sum(s["hits"] for s in stats) > 0
    assert not [p for p in folder.iterdir() if p.name.startswith(fs.TEMPORARY)]
    FeatureStore(folder, budget_bytes=budget)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= budget
