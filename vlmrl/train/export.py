"""A stage's weights as a plain transformers folder: opens with `from_pretrained`, no merge step.

Adapters are added to the weights (`policy.lora`); the folder `adapter` in it holds them alone, in peft's format, for the stage's base.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from vlmrl import fs
from vlmrl.policy.load import SETTINGS
from vlmrl.policy.lora import merged_state, save_adapter
from vlmrl.policy.model import Policy
from vlmrl.train.tensors import require_finite

ADAPTER_FOLDER = "adapter"


def export(policy: Policy, path: Path) -> None:
    """Write model and processor to `path`, whole or not at all. A folder that is already there is the finished one and stays.

    The live policy is left as it is, adapters included.

    Raises:
        NumericsError: a weight is not finite; nothing is written.
    """
    if path.exists():
        return
    weights = merged_state(policy)
    require_finite(weights, str(path))
    fs.mkdir(path.parent)
    temporary = path.parent / fs.temporary_name(path.name)
    policy.model.save_pretrained(temporary, state_dict=weights)
    policy.bundle.processor.save_pretrained(temporary)
    if policy.lora is not None:
        save_adapter(policy, temporary / ADAPTER_FOLDER)
    fs.write_text(temporary / SETTINGS, json.dumps({"positions": policy.positions.rule}) + "\n")
    _commit(temporary, path)


def link(source: Path, path: Path) -> None:
    """The same folder under a second name, without a second copy of the weights where the file system has links."""
    if path.exists():
        return
    temporary = path.parent / fs.temporary_name(path.name)
    try:
        shutil.copytree(source, temporary, copy_function=os.link)
    except (OSError, shutil.Error):
        fs.remove_tree(temporary)
        shutil.copytree(source, temporary)
    _commit(temporary, path)


def _commit(temporary: Path, path: Path) -> None:
    for file in sorted(temporary.rglob("*")):
        if file.is_file():
            fs.sync(file)
        else:
            fs.fsync_dir(file)
    fs.fsync_dir(temporary)
    fs.rename(temporary, path)
    fs.fsync_dir(path.parent)
