"""Counts what a process does with media files: opened by the system, decoded by PyAV, decord and Pillow.

Opens come from the interpreter's audit events. Decoders are wrapped at the calls into the libraries, and what they are given is told
apart by its content, so that neither a copy nor another layer of this package can hide a second run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SUFFIXES = (".mp4", ".png", ".jpg")


class Trace:
    """Counts by file name, for the media below `root`. `install` cannot be undone: use it in a process of its own."""

    def __init__(self, root: Path):
        files = [path for path in root.rglob("*") if path.suffix in SUFFIXES]
        self.root = str(root)
        self.names = {path.name for path in files}
        assert len(self.names) == len(files), "file names must be unique"
        self.by_content = {_digest(path.read_bytes()): path.name for path in files}
        self.phase = "run"
        self.opens: Counter[str] = Counter()
        """`phase name` -> opens."""
        self.av_passes: Counter[str] = Counter()
        """Times that PyAV decoded more than the first frame."""
        self.av_frames: Counter[str] = Counter()
        self.decord_readers: Counter[str] = Counter()
        self.pil_decodes: Counter[str] = Counter()
        self.by_path: list[str] = []
        """Media that a decoder was given by name: it would open them itself, unseen by the audit events."""

    def name(self, source: Any) -> str:
        """The medium with this content."""
        if isinstance(source, str | os.PathLike):
            self.by_path.append(str(source))
            source = Path(source).read_bytes()
        if not isinstance(source, bytes):
            place = source.tell()
            source.seek(0)
            data = source.read()
            source.seek(place)
            source = data
        return self.by_content.get(_digest(source), "another")

    def install(self) -> Trace:
        sys.addaudithook(self._event)
        self._watch_av()
        self._watch_pillow()
        if importlib.util.find_spec("decord") is not None:
            self._watch_decord()
        return self

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(args[0], str | bytes):
            return
        folder, name = os.path.split(os.fsdecode(args[0]))
        # a bare name is a component below an open folder
        if name in self.names and (not folder or folder.startswith(self.root)):
            self.opens[f"{self.phase} {name}"] += 1

    def _watch_av(self) -> None:
        import av

        opened = av.open

        def watched(file: Any, mode: str | None = None, **options: Any) -> Any:
            if mode == "w":
                return opened(file, mode=mode, **options)
            return _Container(self, self.name(file), opened(file, mode="r", **options))

        av.open = watched  # type: ignore[assignment]

    def _watch_decord(self) -> None:
        import decord

        trace, plain = self, decord.VideoReader

        class Watched(plain):
            def __init__(self, source: Any, *args: Any, **options: Any):
                trace.decord_readers[trace.name(source)] += 1
                super().__init__(source, *args, **options)

        decord.VideoReader = Watched

    def _watch_pillow(self) -> None:
        from PIL import Image, ImageFile

        file_kind: Any = ImageFile.ImageFile
        trace, opened, loaded = self, Image.open, file_kind.load

        def watched_open(file: Any, *args: Any, **options: Any) -> Any:
            name = trace.name(file)
            image: Any = opened(file, *args, **options)
            image.medium = name
            return image

        def watched_load(image: Any) -> Any:
            if image.tile:  # pixels are still to be decoded
                trace.pil_decodes[getattr(image, "medium", "another")] += 1
            return loaded(image)

        Image.open = watched_open
        file_kind.load = watched_load

    def write(self, path: Path) -> None:
        """What was counted, as JSON."""
        path.write_text(json.dumps({key: value for key, value in vars(self).items() if isinstance(value, Counter | list)}))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Proxy:
    """An object of an extension type, whose methods cannot be replaced, with some of them replaced."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Container(_Proxy):
    def __init__(self, trace: Trace, name: str, inner: Any):
        super().__init__(inner)
        self._trace, self._name, self._decoded = trace, name, 0

    def __enter__(self) -> _Container:
        return self

    def __exit__(self, *_: Any) -> None:
        self._inner.close()

    def demux(self, *streams: Any, **options: Any) -> Iterator[_Packet]:
        for packet in self._inner.demux(*streams, **options):
            yield _Packet(packet, self)

    def decode(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing decodes past the packets")

    def count(self, frames: int) -> None:
        before, self._decoded = self._decoded, self._decoded + frames
        self._trace.av_frames[self._name] += frames
        if before < 2 <= self._decoded:
            self._trace.av_passes[self._name] += 1


class _Packet(_Proxy):
    def __init__(self, inner: Any, container: _Container):
        super().__init__(inner)
        self._container = container

    def __bytes__(self) -> bytes:
        return bytes(self._inner)

    def decode(self) -> Any:
        frames = self._inner.decode()
        self._container.count(len(frames))
        return frames


def traced_run(config: Mapping[str, Any], out: str) -> None:
    """Body of a child: a whole run under trace. The audit of the rows, which reads headers, is a phase of its own."""
    from tests.support import runs
    from vlmrl.run import session

    trace = Trace(Path(config["data"]["root"])).install()
    load_rows = session.load_rows

    def audited(*args: Any, **options: Any) -> Any:
        trace.phase = "audit"
        try:
            return load_rows(*args, **options)
        finally:
            trace.phase = "run"

    session.load_rows = audited
    try:
        runs._run(config, None)
    finally:
        trace.write(Path(out))


def twice(root: str, out: str) -> None:
    """Body of a child: one video and one picture, each opened and decoded two times, once of them by name."""
    from PIL import Image

    from vlmrl.media.container import decode, read_header

    trace = Trace(Path(root)).install()
    video, picture = (sorted(Path(root).rglob(f"*{suffix}"))[0] for suffix in (".mp4", ".png"))
    for _ in range(2):
        data = video.read_bytes()
        for _ in decode(data, read_header(io.BytesIO(data))):
            pass
    for source in (str(picture), picture.open("rb")):
        Image.open(source).load()
    trace.write(Path(out))


def traced_trl(model: str, root: str, group: int, out: str) -> None:
    """Body of a child: one step of TRL's GRPO trainer on the picture in `root`, as its documentation sets it up."""
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    from datasets import Dataset, Image
    from trl import GRPOConfig, GRPOTrainer

    trace = Trace(Path(root)).install()
    (picture,) = Path(root).glob("*.png")
    rows = {"prompt": [[{"role": "user", "content": "What is it?"}]], "image": [str(picture)]}
    args = GRPOConfig(
        output_dir=str(Path(out).parent / "trl"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=group,
        gradient_accumulation_steps=1,
        num_generations=group,
        max_completion_length=4,
        max_steps=1,
        beta=0.0,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )

    def length(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion[0]["content"])) for completion in completions]

    dataset = Dataset.from_dict(rows).cast_column("image", Image())
    trainer = GRPOTrainer(model=model, reward_funcs=length, args=args, train_dataset=dataset)
    processed: Counter[str] = Counter()
    processor: Any = trainer.processing_class
    kind: Any = type(processor.image_processor)
    preprocess = kind.preprocess

    def counted(self: Any, images: Any, *more: Any, **options: Any) -> Any:
        processed["images"] += _number(images)
        return preprocess(self, images, *more, **options)

    kind.preprocess = counted
    trace.opens.clear()
    trace.pil_decodes.clear()
    trainer.train()
    counts = {"opened": sum(trace.opens.values()), "decoded": sum(trace.pil_decodes.values()), "processed": processed["images"]}
    Path(out).write_text(json.dumps(counts))


def _number(images: Any) -> int:
    """Pictures in nested lists of them."""
    return sum(map(_number, images)) if isinstance(images, list | tuple) else 1


def run_with_environment(config: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Body of a child: a run that finds these variables."""
    from tests.support import runs

    os.environ.update(environment)
    runs._run(config, None)
