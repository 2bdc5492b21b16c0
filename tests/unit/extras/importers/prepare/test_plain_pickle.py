"""Pickles of plain data are read; anything that could run is refused."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.plain_pickle import load_plain

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(_PLAIN, st.integers(0, 5))
def test_plain_pickles_are_read_as_the_library_reads_them(value: Any, protocol: int):
    assert load_plain(pickle.dumps(value, protocol=protocol), "t") == value


def test_pickles_of_python_2():
    assert load_plain(b"(dp0\nS'sent'\np1\nS'left man'\np2\nsS'id'\nL7L\ns.", "t") == {"sent": "left man", "id": 7}
    assert load_plain(b"\x80\x02}q\x00U\x04sentq\x01U\x05caf\xc3\xa9s.", "t") == {"sent": "café"}


class Harmful:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('executed')",))


class Shell:
    def __reduce__(self) -> Any:
        return (os.system, ("exit 1",))


class Persistent(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "elsewhere" if obj == "here" else None


@pytest.mark.parametrize("harm", [Harmful(), Shell(), Shell, os.system, complex(1, 2)])
@pytest.mark.parametrize("protocol", range(6))
def test_pickles_that_would_run_code_are_refused(protocol: int, harm: Any):
    with pytest.raises(DataError, match=r"refs.p: the pickle names '\w+\.\w+'; only plain lists, dicts, texts and numbers are read"):
        load_plain(pickle.dumps([1, harm], protocol=protocol), "refs.p")


@pytest.mark.parametrize("protocol", range(6))
def test_persistent_ids_are_refused(protocol: int):
    file = io.BytesIO()
    Persistent(file, protocol=protocol).dump(["here"])
    with pytest.raises(DataError, match=r"refs.p: the pickle uses a persistent id"):
        load_plain(file.getvalue(), "refs.p")


@pytest.mark.parametrize("data", [b"", b"\x80\x02]q\x00(K\x01", b"K\x01.K\x02.", b"e.", b"h\x05.", b"K\x01K\x02a."])
def test_damaged_pickles_are_refused(data: bytes):
    with pytest.raises(DataError, match="not a complete pickle of plain data"):
        load_plain(data, "refs.p")
