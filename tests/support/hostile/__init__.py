"""A corpus of media files and rows that want to hurt, made at test time, each with what has to come of it.

Media: `media_cases` writes files below a folder; for each, the reasons that are right (none: it is honest and must be shown as it is).
Rows: `row_cases` gives lines of a JSONL file. Letters name the fault catalogue: D rows, M media, S security.
"""

from tests.support.hostile.case import DAMAGE, WEAKER, MediaCase, encode, picture
from tests.support.hostile.media import media_cases
from tests.support.hostile.rows import RowCase, good_row, row_cases

__all__ = ["DAMAGE", "WEAKER", "MediaCase", "RowCase", "encode", "good_row", "media_cases", "picture", "row_cases"]
