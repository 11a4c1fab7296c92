"""A hub on loopback: answers the questions that the hub's client asks, from folders."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "5f91d94bd9cd7190a9f3216ff93cd1dd95f2c7be"


class Hub(BaseHTTPRequestHandler):
    """Models by id; each has one commit, which `main` names. `asked` collects what was asked for."""

    def __init__(self, models: dict[str, Path], gated: set[str], asked: list[str], *args: Any) -> None:
        self.models, self.gated, self.asked = models, gated, asked
        super().__init__(*args)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def _answer(self, body: bool) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/")
        name = "/".join(path.split("/")[:2])
        folder, rest = self.models.get(name), path.split("/")[2:]
        if name in self.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, body)
        elif folder is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        elif rest[:1] == ["resolve"]:
            content = (folder / "/".join(rest[2:])).read_bytes()
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": etag}, body)
        else:
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            entries = [
                {
                    "type": "file",
                    "path": str(file.relative_to(folder)),
                    "size": file.stat().st_size,
                    "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                }
                for file in files
            ]
            siblings = [{"rfilename": entry["path"]} for entry in entries]
            info = {"id": name, "sha": COMMIT, "private": False, "siblings": siblings, "tags": []}
            found: object = entries if rest[:1] == ["tree"] else info
            self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"}, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def serving(models: dict[str, Path], gated: set[str] = frozenset()) -> Iterator[tuple[str, list[str]]]:  # type: ignore[assignment]
    """The hub's address, and the paths that it was asked for so far."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, models, gated, asked))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
