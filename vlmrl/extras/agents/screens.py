"""Screens of environments as files named by their content: each is written once, and read like any other picture of a row."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from vlmrl import fs
from vlmrl.extras.agents.protocol import Observation
from vlmrl.types import MediaRef


def screen_hash(data: bytes) -> str:
    """The content hash of a screen's file."""
    return hashlib.sha256(data).hexdigest()


def screen_ref(data: bytes) -> MediaRef:
    """How a row names a screen that `ScreenFolder.put` writes."""
    found = screen_hash(data)
    return MediaRef(kind="image", path=f"{found}.png", sha256=found)


def state_of(observation: Observation) -> str:
    """What stands for the state in step credit: what the environment says, else a hash of text and screens."""
    if observation.state is not None:
        return observation.state
    content = json.dumps([observation.text, [screen_hash(data) for data in observation.screens]])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


class ScreenFolder:
    """A folder of screens. Media paths of rows are relative to it."""

    def __init__(self, path: Path):
        self.path = path
        self._there: set[str] = set()
        fs.mkdir(path)

    def put(self, data: bytes) -> MediaRef:
        """Write a screen, unless it is there whole, and name it.

        Raises:
            StorageError: the disk refused.
        """
        ref = screen_ref(data)
        if ref.path not in self._there:
            file = self.path / ref.path
            if not file.is_file() or screen_hash(file.read_bytes()) != ref.sha256:  # a crash of the machine can leave part of a file
                fs.write_bytes(file, data)
            self._there.add(ref.path)
        return ref
