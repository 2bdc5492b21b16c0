# pyright: reportPrivateUsage=false
"""One decoding of a file for two stores with different settings: a part of the store that few runs need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlmrl.errors import MediaError
from vlmrl.media.decode import DecodedMedium, decode_views
from vlmrl.media.places import Place, named, stored_as
from vlmrl.media.resize import single_thread
from vlmrl.media.store import MediaStore
from vlmrl.types import MediaRef


@dataclass(frozen=True)
class Both:
    """Decodes a file for a store that asks for it, and hands another store what it would have decoded of the same bytes."""

    own: MediaStore
    other: MediaStore
    root: Path
    digest: str
    """Hash of the file's content."""
    place: Place

    def __call__(self, ref: MediaRef, data: bytes) -> DecodedMedium:
        """Decode, with the pixels that the first store asks for as the result.

        Raises:
            MediaError: the file cannot be decoded for the first store. If it is the other one alone for which it cannot, nothing is said
                here: whoever asks that one is told.
        """
        views = self.other.views_of(ref)
        keys = {one: self.other.key_of(one, self.digest) for one in views}
        wanted = [one for one, key in keys.items() if key not in self.other._entries]
        if not wanted:
            return self.own._decode(ref, data)
        also = [views[one] for one in wanted]
        try:
            with named(ref), single_thread():
                pool, kind = self.own.pool, stored_as(ref)
                shown, *more = decode_views(data, kind, [self.own.sizing, *also]) if pool is None else pool.views(data, kind, also)
        except MediaError:
            return self.own._decode(ref, data)
        for one, view in zip(wanted, more, strict=True):
            self.other._keep(keys[one], self.other._cut(one.kind, view, keys[one], one.path))
            with self.other._lock:
                self.other._hashes[self.place] = self.digest
                self.other._origins[keys[one]] = (one, self.root)
        return shown
