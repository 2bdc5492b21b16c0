"""A model named by its id: the hub is asked once, and where it does not answer the cache of this machine decides, without waiting."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from vlmrl.errors import ConfigError
from vlmrl.policy.found import located, why_no_hub
from vlmrl.policy.load import load_processor


class Refuses(BaseHTTPRequestHandler):
    """A hub that answers, and has nothing."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a hub on a port where nobody listens."""
    for place in ("constants.HF_HUB_CACHE", "file_download.HF_HUB_CACHE"):
        monkeypatch.setattr(f"huggingface_hub.{place}", str(tmp_path), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        why_no_hub.cache_clear()
        yield tmp_path
    why_no_hub.cache_clear()


def cached(cache: Path, name: str) -> Path:
    repo = cache / f"models--{name.replace('/', '--')}"
    folder = repo / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    return folder


def test_a_model_that_is_nowhere_is_told_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: object, **kwargs: object) -> None:
        raise AssertionError("transformers asks the hub again and again")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", asked)
    with pytest.raises(ConfigError, match=r"not in the hub's cache .*hf download a/one\n.*127\.0\.0\.1:\d+ does not answer"):
        load_processor("a/one")


def test_a_model_of_the_cache_is_read_from_there(cache: Path) -> None:
    folder = cached(cache, "a/one")
    assert located("a/one") == str(folder)
    with pytest.raises(ConfigError, match="'a/one' is a 'gemma3' model"):
        load_processor("a/one")


def test_a_hub_that_answers_is_asked_by_its_client(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    assert located("a/one") == "a/one"
    thread.join()
    server.server_close()
    assert located("a/two") == "a/two"  # one answer is enough


def test_offline_is_not_asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        located("a/one")
    with pytest.raises(ConfigError, match="no id of the hub"):
        located("a/b/c")


def test_a_folder_is_itself(cache: Path) -> None:
    assert located(str(cache)) == str(cache)
