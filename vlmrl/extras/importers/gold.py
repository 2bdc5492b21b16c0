"""What a foreign row and the recipe's source say around a gold answer; answer types read gold answers with it (`AnswerType.convert`).

Whatever they make must earn the full reward when it is read back by the parser that training uses: coordinates and times are therefore
rounded before both forms of a gold answer, text and numbers, are made from them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vlmrl.answers.coordinates import Size, convert_box, convert_point, convert_span, convert_time, plain
from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.fields import Found, picture_size
from vlmrl.extras.importers.sizes import contradiction


@dataclass(frozen=True, slots=True)
class GoldContext:
    """`answers.foreign.ForeignRow` of one row."""

    found: Found
    source: ImportOptions
    first_image: str | None
    """Path of its first picture."""

    @property
    def options(self) -> list[str]:
        return self.found.options

    @property
    def images(self) -> int:
        return len(self.found.images)

    @property
    def videos(self) -> int:
        return len(self.found.videos)

    def time(self, value: object) -> float:
        return convert_time(value, unit=self.source.time_unit, fps=self.source.time_fps)

    def span(self, values: object) -> list[float]:
        return convert_span(values, unit=self.source.time_unit, fps=self.source.time_fps)

    def coordinates(self, values: object, place: str) -> list[Any]:
        frame, source = self.found.frame or self.source.frame, self.source
        if self.found.frame is not None and source.frame not in (None, self.found.frame):
            raise RowError("frame", f"{place}: the row says '{self.found.frame}', the source's 'frame' is '{source.frame}'")
        size = self.size(place) if "pixel" in (frame, source.to_frame) else None
        if isinstance(values, list) and len(values) == 2:
            out = convert_point(values, frame=frame, axis=source.axis, target=source.to_frame, size=size)
        else:
            out = convert_box(values, frame=frame, axis=source.axis, target=source.to_frame, size=size, place=place)
        return [plain(value) for value in out]

    def coordinates_text(self, values: object) -> str:
        """A box or point within a question, as `[x1, y1, x2, y2]` or `[x, y]` in the frame of the row's answers."""
        return json.dumps(self.coordinates(values, "coordinates in the question"))

    def size(self, place: str) -> Size:
        """Size of the one picture that the numbers are in. What the row says of it must be what the file says.

        Raises:
            RowError: `frame`, `size`, or what is wrong with the file.
        """
        if self.videos or self.images != 1 or self.first_image is None:
            raise RowError("frame", f"{place}: pixels need exactly one picture, the row has {self.images} and {self.videos} video(s)")
        stated = self.found.size
        if self.source.media_dir is None and stated is not None:
            return stated
        size = picture_size(self.first_image, self.source)
        if stated is not None and stated != size:
            raise RowError("size", contradiction("'objects.width/height'", stated, self.first_image, size))
        return size
