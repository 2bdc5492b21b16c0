"""The entry point `lmms_eval.models`. Upstream calls it at every start, so nothing heavy is imported here."""

from __future__ import annotations

from typing import Any


def manifests() -> list[Any]:
    """The manifest (`lmms_eval.models.registry_v2.ModelManifest`) behind `--model vlmrl`."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return [ModelManifest(model_id="vlmrl", chat_class_path="vlmrl.extras.bridge.command.VlmrlModel")]
