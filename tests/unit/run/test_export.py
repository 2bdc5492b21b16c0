"""run.export: whole or absent, with hashes; what is damaged is found and written again; a full disk is told as one."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny import Tiny
from vlmrl import fs
from vlmrl.errors import CheckpointError, StorageError
from vlmrl.run.export import export, link
from vlmrl.train.manifest import MANIFEST, damage, seal_of, sealed, write_manifest


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights": (lambda p: flip(p / "model.safetensors"), "model.safetensors: content differs from its sha256"),
    "config": (lambda p: flip(p / "config.json"), "config.json: content differs"),
    "cut": (lambda p: (p / "tokenizer.json").write_bytes(b""), "tokenizer.json: 0 bytes instead of"),
    "gone": (lambda p: (p / "model.safetensors").unlink(), "model.safetensors: missing"),
    "added": (lambda p: (p / "adapter_config.json").write_text("{}"), "adapter_config.json: is not in the manifest"),
    "manifest": (lambda p: flip(p / MANIFEST), "manifest.json: "),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), "manifest.json: missing"),
}


def test_every_damage_is_found_and_written_again(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "stages" / "sft"
    seal = export(tiny.policy, path)
    whole = contents(path)
    assert (damage(path, seal), seal) == ([], seal_of(path))
    for how, told in DAMAGE.values():
        how(path)
        assert damage(path)[0].startswith(told)
        assert export(tiny.policy, path, seal) == seal
        assert contents(path) == whole
    assert [p.name for p in path.parent.iterdir()] == ["sft"]


def test_a_second_name_is_the_same_folder(tiny: Tiny, tmp_path: Path) -> None:
    source, final = tmp_path / "sft", tmp_path / "final"
    export(tiny.policy, source)
    link(source, final)
    assert (damage(final), seal_of(final), contents(final)) == ([], seal_of(source), contents(source))
    (final / "config.json").unlink()
    link(source, final)
    assert contents(final) == contents(source)


def test_only_the_folder_that_is_known_stays(tiny: Tiny, tmp_path: Path) -> None:
    """A folder of another origin may be whole and still not be what this run made."""
    path = tmp_path / "sft"
    seal = export(tiny.policy, path)
    (path / "generation_config.json").write_text("{}")
    write_manifest(path, {"schema": 1})
    assert (damage(path), damage(path, seal)) == ([], ["is another export than the one that was written here"])
    assert export(tiny.policy, path, seal) == seal
    (path / "generation_config.json").write_text("{}")
    write_manifest(path, {"schema": 1})
    assert export(tiny.policy, path) == seal, "without a known digest, nothing that lies there is trusted"


def test_a_newer_manifest_names_both_versions(tmp_path: Path) -> None:
    fs.write_bytes(tmp_path / MANIFEST, sealed({"schema": 7, "files": []}))
    with pytest.raises(CheckpointError, match="schema 7, this version reads up to 1"):
        damage(tmp_path)


def test_a_disk_that_refuses_the_weights_is_a_storage_error(tiny: Tiny, tmp_path: Path) -> None:
    """The library raises an error of its own for a failed write, which is no OSError. A limit of the file size makes the write fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(StorageError, match=r"stages/sft: not exported: .*run the same command again"):
            export(tiny.policy, tmp_path / "stages" / "sft")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "stages").iterdir()) == []
    export(tiny.policy, tmp_path / "stages" / "sft")
    assert damage(tmp_path / "stages" / "sft") == []
