"""Media as a family's own processor made them, on their way to a server: what goes in comes out, nothing else is taken. Without vLLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import given
from tests.support.tiny import Tiny
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm import argued
from vlmrl.extras.vllm.argued import ArguedMedia, ServedInputs
from vlmrl.extras.vllm.inputs import PlacedMedium
from vlmrl.extras.vllm.wire import WireError, tensors_from, tensors_message

Made = dict[str, torch.Tensor]


@dataclasses.dataclass
class Served:
    """A trainer's media, and the server that gets them."""

    loaded: Tiny
    media: ArguedMedia
    inputs: ServedInputs

    def shown(self, kind: str) -> tuple[PlacedMedium, np.ndarray]:
        """A medium of a prompt of this layout, as it is sent."""
        prompt = given.layouts(self.loaded, video=True)[kind]
        return self.media.placed(prompt).media[0], self.media.patches(prompt.media[0])


@pytest.fixture(scope="module", params=["internvl", "smolvlm", "qwen2_vl"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    model = given.make_model(request.param, folder / "model")
    loaded = given.load_given(model, given.make_rows(folder / "world", video=True, train=2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(argued, "_Registered", lambda *_: None)
        inputs = ServedInputs(str(model), None, clips="", revision=None, family="generic", max_tiles=None)
    return Served(loaded, ArguedMedia(loaded.bundle.pad_ids, loaded.store), inputs)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_tensors_come_out_as_the_processor_made_them(served: Served, kind: str) -> None:
    assert served.inputs.fingerprint == served.loaded.bundle.fingerprint
    medium, sent = served.shown(kind)
    made = served.loaded.store.get_key(medium.key).argued
    assert made is not None
    got = served.inputs.taken(medium, sent)
    assert set(got) == set(made.arguments)
    for name, tensor in made.arguments.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor)
    assert medium.kind == made.kind
    assert (medium.seconds is None) == (kind == "image")
    assert medium.grid == served.loaded.store.get_key(medium.key).frames.shape[:3]


def pixels(made: Made) -> str:
    return next(name for name in made if name.startswith("pixel_values"))


DAMAGES: dict[str, Callable[[Made], Made]] = {
    "is missing": lambda made: {name: tensor for name, tensor in made.items() if name != pixels(made)},
    "float32": lambda made: made | {pixels(made): made[pixels(made)][:, :-1].contiguous()},
    "float16": lambda made: made | {pixels(made): made[pixels(made)].half()},
    "makes missing": lambda made: made | {"other": torch.zeros(1)},
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_tensor_that_is_missing_or_of_another_size_is_refused_by_name(served: Served, said: str) -> None:
    medium, sent = served.shown("image")
    made = tensors_from(sent)
    name = "other" if said == "makes missing" else pixels(made)
    with pytest.raises(WireError, match=rf"'{name}' of a medium of \(1, \d+, \d+\) .*{said}"):
        served.inputs.taken(medium, tensors_message(DAMAGES[said](made)))


def test_whole_numbers_follow_from_the_size(served: Served) -> None:
    """Grids and masks: others would make the engine read what is not there."""
    medium, sent = served.shown("image")
    made = tensors_from(sent)
    for name, tensor in made.items():
        if not tensor.is_floating_point():
            with pytest.raises(WireError, match=f"'{name}' of a medium"):
                served.inputs.taken(medium, tensors_message(made | {name: tensor + 1}))


def test_places_that_are_not_those_of_the_size_are_refused(served: Served) -> None:
    medium, sent = served.shown("image")
    for change in ({"end": medium.end + 1, "shown": None}, {"kind": "video"}):
        with pytest.raises(WireError, match="'placeholders' of a medium"):
            served.inputs.taken(dataclasses.replace(medium, **change), sent)
    t, height, width = medium.grid
    other = (t, 32, 32) if served.loaded.bundle.family.name == "internvl" else (t, height, 8 * width)
    with pytest.raises(WireError, match="of a medium of"):
        served.inputs.taken(dataclasses.replace(medium, grid=other), sent)
    with pytest.raises(WireError, match="has more than"):
        served.inputs.taken(dataclasses.replace(medium, grid=(2**20, 2**20, 2**20)), sent)


def test_bytes_that_are_no_tensors_are_refused(served: Served) -> None:
    medium, sent = served.shown("image")
    for data in (sent[:-1], sent[:4], np.zeros(64, dtype=np.uint8)):
        with pytest.raises(WireError, match="no tensors by name"):
            served.inputs.taken(medium, data)


def test_what_is_no_tensor_is_not_sent() -> None:
    medium = SimpleNamespace(argued=SimpleNamespace(arguments={"pixel_values": torch.zeros(1), "sizes": [1]}))
    pixels: Any = SimpleNamespace(get_key=lambda key: medium)
    media = ArguedMedia({"image": 1}, pixels)
    with pytest.raises(ConfigError, match=r"rollout\.vllm\.servers: .* a 'sizes' that is no tensor"):
        media.patches(SimpleNamespace(key="k"))  # pyright: ignore[reportArgumentType]


def test_clips_are_refused_on_both_sides(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"'vllm' is not proven with videos of this model; take hf; P18 says so"
    medium, sent = served.shown("video")
    prompts = given.layouts(served.loaded, video=True)
    media = ArguedMedia(served.loaded.bundle.pad_ids, served.loaded.store, clips="P18 says so")
    assert len(media.placed(prompts["images"]).media) == 2
    for name in ("video", "mixed"):
        with pytest.raises(ConfigError, match=said):
            media.placed(prompts[name])
    monkeypatch.setattr(served.inputs, "_clips", "P18 says so")
    with pytest.raises(ConfigError, match=said):
        served.inputs.taken(medium, sent)
    served.inputs.taken(*served.shown("image"))


def test_models_with_patches_have_no_such_server(tiny_files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="media of a 'qwen2_5_vl' model are patches"):
        ServedInputs(str(tiny_files[0]), None, clips="", revision=None, family="auto", max_tiles=None)
