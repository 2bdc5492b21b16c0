"""Checkpoints at a second place (`checkpoint.mirror`): the complete comes back, the cut is not taken, the damaged is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from vlmrl import fs
from vlmrl.errors import CheckpointError, ConfigError, RunBusyError, StorageError
from vlmrl.extras.scale.mirror import Mirror
from vlmrl.run import checkpoint
from vlmrl.run.rundir import Options, open_run
from vlmrl.train.manifest import write_manifest


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path / 'there'}"
        return
    name = f"memory://{uuid.uuid4().hex}"
    yield name
    files = fsspec.filesystem("memory")
    if files.exists(name):
        files.rm(name, recursive=True)


def save(run: Path, step: int, keep: int = 2) -> Path:
    def write(folder: Path) -> None:
        fs.mkdir(folder / "shards")
        fs.write_bytes(folder / "shards" / "a.bin", b"a %d" % step)
        fs.write_bytes(folder / "b.bin", b"b %d" % step)

    return checkpoint.save(
        run / "checkpoints",
        step_name=checkpoint.step_name(step),
        write_tensors=write,
        state={"run": step},
        manifest_extra={},
        keep=keep,
    )


def a_run(path: Path) -> Path:
    """A run with an export, two logs, and what is nobody's business elsewhere."""
    for name, text in (
        ("run.json", "{}"),
        ("metrics.jsonl", "1\n"),
        ("inputs/media.rank-0.log", "m\n"),
        ("stages/sft/model.safetensors", "weights"),
        ("journal/step-3.rank-0.jsonl", "j"),
        ("LOCK", "me"),
        ("final/model.safetensors", "weights"),
        ("stages/tmp-rl-0123456789ab/model.safetensors", "half"),
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    write_manifest(path / "stages" / "sft", {"schema": 1})
    return path


def files_of(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def remote(url: str) -> tuple[Any, str]:
    files, root = fsspec.core.url_to_fs(url)
    return files, f"{root}/small"


def test_what_a_fresh_machine_needs_comes_back(url: str, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    mirror = Mirror(url, "small")
    for step in (2, 4, 6):
        (run / "metrics.jsonl").write_text("1\n" * step)
        mirror.push(run, save(run, step))
    expected = {name: data for name, data in files_of(run).items() if "step-00000004" not in name}
    for name in ("journal/step-3.rank-0.jsonl", "LOCK", "final/model.safetensors", "stages/tmp-rl-0123456789ab/model.safetensors"):
        del expected[name]
    got = tmp_path / "fetched"
    assert Mirror(url, "small").pull(got) == f"fetched step-00000006 from {url}/small"
    assert files_of(got) == expected
    assert checkpoint.verify(got / "checkpoints" / "step-00000006") == []
    files, root = remote(url)
    assert sorted(p.rsplit("/", 1)[-1] for p in files.ls(f"{root}/checkpoints", detail=False)) == ["step-00000004", "step-00000006"]
    assert Mirror(url, "another").pull(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("after", range(5))
def test_an_upload_that_was_cut_is_not_taken(after: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "run")
    mirror = Mirror(url, "small")
    mirror.push(run, save(run, 2))
    whole, count = type(mirror._fs).put_file, 0

    def put(self: Any, local: str, place: str, **options: Any) -> Any:
        nonlocal count
        if "step-00000004" in place:
            count += 1
            if count > after:
                raise OSError("the line is down")
        return whole(self, local, place, **options)

    monkeypatch.setattr(type(mirror._fs), "put_file", put)
    newest = save(run, 4)
    expected = "step-00000002"
    if after < 4:  # two of tensors, the state, the manifest
        with pytest.raises(StorageError, match="step-00000004 was not uploaded: the line is down"):
            mirror.push(run, newest)
    else:
        mirror.push(run, newest)
        expected = "step-00000004"
    assert expected in str(Mirror(url, "small").pull(tmp_path / "got"))
    assert [p.name for p in checkpoint.steps(tmp_path / "got" / "checkpoints")] == [expected]
    monkeypatch.undo()
    Mirror(url, "small").push(run, newest)  # by the process that comes after
    assert "step-00000004" in str(Mirror(url, "small").pull(tmp_path / "again"))
    assert checkpoint.verify(tmp_path / "again" / "checkpoints" / "step-00000004") == []


@pytest.mark.parametrize(
    ("name", "what"),
    [("shards/a.bin", "content differs"), ("b.bin", "missing"), ("state.json", "bytes instead of"), ("manifest.json", "its digest")],
)
def test_damage_is_refused(name: str, what: str, url: str, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    mirror = Mirror(url, "small")
    for step in (2, 4):
        mirror.push(run, save(run, step))
    files, root = remote(url)
    place = f"{root}/checkpoints/step-00000004/{name}"
    data = bytearray(files.cat_file(place))
    data[len(data) // 2] ^= 1
    if what == "missing":
        files.rm_file(place)
    else:
        files.pipe_file(place, bytes(data[:-1] if "bytes" in what else data))
    with pytest.raises(CheckpointError, match=f"{url}/small/checkpoints/step-00000004 is damaged: {name}: .*{what}|missing"):
        mirror.pull(tmp_path / "got")
    assert not (tmp_path / "got").exists()
    files.rm(f"{root}/checkpoints/step-00000004", recursive=True)
    assert "step-00000002" in str(mirror.pull(tmp_path / "got"))


def test_a_mirror_follows_the_local_directory(url: str, tmp_path: Path) -> None:
    """A checkpoint that the user has deleted to go back must not come again from elsewhere."""
    run = a_run(tmp_path / "run")
    mirror = Mirror(url, "small")
    for step in (2, 4, 6):
        mirror.push(run, save(run, step, keep=9))
    for step in (4, 6):
        fs.remove_tree(run / "checkpoints" / checkpoint.step_name(step))
    (run / "journal" / "x").write_text("")
    mirror.push(run, save(run, 3, keep=9))
    assert mirror._steps() == ["step-00000002", "step-00000003"]


def test_what_is_there_is_not_uploaded_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "run")
    Mirror(url, "small").push(run, save(run, 2))
    mirror, put = Mirror(url, "small"), []
    whole = type(mirror._fs).put_file
    monkeypatch.setattr(
        type(mirror._fs), "put_file", lambda self, a, b, **k: (put.append(Path(a).relative_to(run).as_posix()), whole(self, a, b, **k))
    )
    newest = save(run, 4)
    mirror.push(run, newest)
    assert not [name for name in put if name.startswith("stages")], "an export whose manifest is there"
    assert put[-1] == "checkpoints/step-00000004/manifest.json"
    put.clear()
    (run / "metrics.jsonl").write_text("more\n")
    mirror.push(run, newest)
    assert put == ["metrics.jsonl"]


def test_a_place_that_does_not_answer_is_not_an_empty_one(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(url, "small")

    def down(*_: Any, **__: Any) -> Any:
        raise PermissionError("403")

    for name in ("ls", "info"):
        with monkeypatch.context() as patch:
            if name == "info":
                run = a_run(tmp_path / "run")
                mirror.push(run, save(run, 2))
            patch.setattr(type(mirror._fs), name, down)
            with pytest.raises(StorageError, match="cannot be read: 403; without it the run would start from nothing"):
                mirror.pull(tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_names_that_look_set_aside_but_are_a_users(url: str, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for name in ("old-model", "tmp-stage", "bad-idea"):
        (run / "stages" / name).mkdir()
        (run / "stages" / name / "x").write_text(name)
    (run / "eval").mkdir()
    (run / "eval" / "bad-base.jsonl-0123456789ab").write_text("damaged")
    Mirror(url, "small").push(run, save(run, 2))
    Mirror(url, "small").pull(tmp_path / "got")
    assert {p.name for p in (tmp_path / "got" / "stages").iterdir()} == {"sft", "old-model", "tmp-stage", "bad-idea"}
    assert not (tmp_path / "got" / "eval").exists()


def test_unknown_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.mirror: 'nothing://x'"):
        Mirror("nothing://x", "small")


def open_and_close(root: Path, fetch: Any) -> list[str]:
    with open_run(root, "small", Options("{}", "0", {}), fetch=fetch) as run:
        return run.notes


def test_a_fetch_that_dies_is_carried_on(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = a_run(tmp_path / "source" / "small")
    (source / "run.json").write_text('{"schema": 1, "fixed": {}, "history": []}')
    mirror = Mirror(url, "small")
    mirror.push(source, save(source, 2))
    for dies_at in range(7):
        root = tmp_path / f"machine{dies_at}"
        moved, rename = 0, fs.rename

        def dying(a: Any, b: Any, dies_at: int = dies_at, rename: Any = rename) -> None:
            nonlocal moved
            if "fetched-" in str(a) and "fetched-" not in str(b):
                moved += 1
                if moved > dies_at:
                    raise KeyboardInterrupt
            rename(a, b)

        monkeypatch.setattr(fs, "rename", dying)
        try:
            open_and_close(root, mirror.pull)
        except KeyboardInterrupt:
            assert not (root / "small" / "run.json").exists()
        monkeypatch.setattr(fs, "rename", rename)
        open_and_close(root, mirror.pull)
        found = checkpoint.latest(root / "small" / "checkpoints")
        assert found.path is not None
        assert (root / "small" / "stages" / "sft" / "model.safetensors").read_text() == "weights"
        assert not list((root / "small").glob("tmp-*"))
    assert moved < 7, "every place was tried"


def test_a_folder_of_somebody_else_is_left_alone(url: str, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    mirror = Mirror(url, "small")
    mirror.push(run, save(run, 2))
    (tmp_path / "root" / "small").mkdir(parents=True)
    (tmp_path / "root" / "small" / "thesis.txt").write_text("mine")
    with pytest.raises(RunBusyError, match=r"thesis\.txt"):
        open_and_close(tmp_path / "root", mirror.pull)
    assert [p.name for p in (tmp_path / "root" / "small").iterdir() if p.name != "LOCK"] == ["thesis.txt"]
