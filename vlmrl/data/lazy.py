"""Samples of a large file of lines, parsed when they are asked for: a million of them take some hundred megabytes and no time.

A row that is not what it was when it was audited is an error, never another sample.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from vlmrl.data.raw import Raw
from vlmrl.data.source import BadRow, RowReader
from vlmrl.errors import DataError
from vlmrl.types import Sample


class LazySamples(Mapping[str, Sample]):
    """Samples by id, in the order in which they were added. Safe for several threads once all are added."""

    def __init__(self, reader: RowReader):
        """`reader`: knows the shape of the rows (`Importer.learn`)."""
        self.reader = reader
        self.numbers: dict[str, int] = {}
        """Id -> number of the sample, from 0."""
        self._files: dict[str, int] = {}
        self._open: list[int] = []
        # six 64-bit integers a sample in one flat array; as Python objects they would take several times the memory
        self._where = array("Q")
        """File, line, offset, bytes, place in the source, number within its row; of each sample."""
        self._contents = bytearray()

    def add(self, name: str, raw: Raw, place: int, part: int, content: bytes) -> None:
        """Add a sample: the `part`th of this row of a file of lines. `content` is its hash."""
        if raw.file not in self._files:
            # opened once per file and kept open: samples are read in random order
            self._files[raw.file] = len(self._open)
            self._open.append(os.open(raw.file, os.O_RDONLY | os.O_CLOEXEC))
        self.numbers[name] = len(self.numbers)
        self._where.extend((self._files[raw.file], raw.line, raw.offset or 0, len(raw.content), place, part))
        self._contents += content

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __getitem__(self, name: str) -> Sample:
        """
        Raises:
            KeyError: there is no such id.
            DataError: the file changed.
        """
        number = self.numbers[name]
        file, line, offset, length, place, part = self._where[6 * number : 6 * number + 6]
        path = next(path for path, number in self._files.items() if number == file)
        # pread moves no file position, so that several threads can read from one descriptor
        raw = Raw(path, line, "line", os.pread(self._open[file], length, offset))
        found = [*self.reader.read(raw, place)][part:]
        if found and not isinstance(found[0], BadRow):
            sample, content = found[0]
            # the same id with other content is a changed row too: statistics and answers that were kept belong to what was audited
            if sample.id == name and content == self._contents[16 * number : 16 * number + 16]:
                return sample
        raise DataError(
            f"{path}:{line}: row '{name}' changed while it is in use; restore the file, or start again with the rows as they are"
        )

    def __del__(self) -> None:
        for file in self._open:
            os.close(file)


class InOrder(Sequence[Sample]):
    """Samples of a mapping by their number, from 0."""

    def __init__(self, samples: Mapping[str, Sample]):
        self._samples = samples
        self._ids = list(samples)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self._samples[name] for name in self._ids[index]]
        return self._samples[self._ids[index]]
