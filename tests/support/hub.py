"""A stand-in of a model hub's HTTP interface, for uploads by huggingface_hub: repositories, commits, and large files by LFS."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_test"


@dataclass
class Hub:
    """What the server has been given."""

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict[str, bool])
    """Repository -> whether it was made private."""
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list[tuple[str, str, dict[str, bytes]]])
    """(repository, message, files by name) of each."""
    large: dict[str, bytes] = field(default_factory=dict[str, bytes])
    refuse: int = 0
    """Commits that are still to be refused."""
    hold: threading.Event = field(default_factory=threading.Event)
    """Commits wait until it is set."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that send a child's uploads here."""
        return {"HF_ENDPOINT": self.address, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a port of this machine until the block ends."""
    hub = Hub()
    hub.hold.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None: ...

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            out = b""
            while size := int(self.rfile.readline(), 16):
                out += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return out

        def answer(self, value: Any, status: int = 200) -> None:
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_PUT(self) -> None:
            hub.large[self.path.split("/")[-1]] = self.body()
            self.answer({})

        def do_POST(self) -> None:
            raw, path = self.body(), self.path.split("?")[0].strip("/")
            if path == "api/validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer({"error": "Invalid credentials"}, 401)
            if path == "api/repos/create":
                given = json.loads(raw)
                name = f"{given['organization']}/{given['name']}"
                hub.private.setdefault(name, given.get("visibility") == "private" or bool(given.get("private")))
                return self.answer({"url": f"{hub.address}/{name}", "name": name})
            if path.endswith("/preupload/main"):
                files = json.loads(raw)["files"]
                modes = {f["path"]: "lfs" if f["path"].endswith(".safetensors") else "regular" for f in files}
                return self.answer({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})
            if path.endswith("/info/lfs/objects/batch"):
                href = f"{hub.address}/large"
                objects = [
                    {"oid": o["oid"], "size": o["size"], "actions": {"upload": {"href": f"{href}/{o['oid']}"}}}
                    for o in json.loads(raw)["objects"]
                ]
                return self.answer({"transfer": "basic", "objects": objects})
            if path.endswith("/commit/main"):
                return self.commit("/".join(path.split("/")[2:4]), raw)
            return self.answer({"error": f"no such page: {path}"}, 404)

        def commit(self, repo: str, raw: bytes) -> None:
            hub.hold.wait(60)
            if hub.refuse:
                hub.refuse -= 1
                return self.answer({"error": "the quota is used up"}, 403)
            lines = [json.loads(line) for line in raw.splitlines()]
            files: dict[str, bytes] = {}
            message = ""
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    message = value["summary"]
                elif line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    content = hub.large[value["oid"]]
                    assert hashlib.sha256(content).hexdigest() == value["oid"]
                    files[value["path"]] = content
            hub.commits.append((repo, message, files))
            oid = f"{len(hub.commits):040x}"
            return self.answer({"success": True, "commitOid": oid, "commitUrl": f"{hub.address}/{repo}/commit/{oid}", "hookOutput": ""})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.hold.set()
        server.shutdown()
        server.server_close()


def written(files: dict[str, bytes], folder: Path) -> Path:
    """The files of a commit as a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
