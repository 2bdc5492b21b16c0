"""Keeps the pixels and the prompts of an evaluation for its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlmrl.extras.pages.prompts import Piece, keep_prompts, keep_questions
from vlmrl.extras.pages.runfiles import save_media
from vlmrl.extras.pages.view.save import write_page
from vlmrl.media.store import MediaStore
from vlmrl.types import Prompt

SHOWN = 24
"""Questions of each task whose pixels are kept."""


class PictureRecorder:
    """Keeps the pixels of the first questions of each task (or stage of a run) below `folder`, with the prompts, and writes the report."""

    def __init__(self, folder: Path, piece: Piece):
        """`piece`: of the model's tokenizer (`ProcessorBundle.piece`)."""
        self.folder, self.piece = folder, piece

    def keep(self, prompts: Sequence[Prompt], store: MediaStore) -> None:
        """Called once with what each task or stage asks."""
        keep_prompts(self.folder / "frames", prompts, self.piece)
        keep_questions(self.folder / "frames", prompts)
        for prompt in prompts[:SHOWN]:
            for handle in prompt.media[:1]:
                save_media(self.folder / "frames", prompt.sample, store.get_key(handle.key))

    def write_report(self) -> Path:
        """`report.html` of the folder."""
        return write_page(self.folder)
