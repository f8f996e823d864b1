"""A hub on loopback: the routes that the client uses to resolve and download, and faults on them."""

import hashlib
import json
import re
import socket
import struct
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34


class FakeHub:
    """`files`: repository -> path -> bytes. Faults are set as attributes while it runs.

    `cuts`: path -> byte counts after which the next downloads of it break off ("reset" or a plain close).
    `gated`: a repository's only token; `requests`: what was asked for, as (method, path, range).
    """

    def __init__(self):
        self.files: dict[str, dict[str, bytes]] = {}
        self.gated: dict[str, str] = {}
        self.cuts: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.status: int | None = None
        self.requests: list[tuple[str, str, str | None]] = []
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, repository: str, folder: Path) -> None:
        self.files[repository] = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    def downloads(self) -> list[str]:
        """Paths of the files that were downloaded, in order."""
        return [
            path.partition(f"/resolve/{COMMIT}/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if self.hub.status:
            return self._send(self.hub.status, {}, b"", body)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._model(match[1], match[2] or "main", body)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(match[1], match[2], match[3], body)
        return self._send(404, {}, b"", body)

    def _model(self, repository: str, revision: str, body: bool) -> None:
        if repository not in self.hub.files:
            return self._send(401, {"X-Error-Code": "RepoNotFound"}, b"", body)
        if revision not in ("main", COMMIT):
            return self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"", body)
        files = self.hub.files[repository]
        siblings = [{"rfilename": name, "size": len(content)} | _lfs(name, content) for name, content in files.items()]
        info = {
            "id": repository,
            "sha": COMMIT,
            "siblings": siblings,
            "gated": "auto" if repository in self.hub.gated else False,
            "cardData": {"license": "other", "license_name": "toy-licence"},
        }
        return self._send(200, {"Content-Type": "application/json"}, json.dumps(info).encode(), body)

    def _file(self, repository: str, revision: str, name: str, body: bool) -> None:
        token = self.hub.gated.get(repository)
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            status = 403 if self.headers.get("Authorization") else 401
            return self._send(status, {"X-Error-Code": "GatedRepo"}, b"", body)
        content = self.hub.files.get(repository, {}).get(name)
        if content is None or revision != COMMIT:
            return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"", body)
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            begin = int(match[1])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            return self._send(206, headers, content[begin:], body, name)
        return self._send(200, headers, content, body, name)

    def _send(self, status: int, headers: dict[str, str], content: bytes, body: bool, name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not body:
            return
        if self.hub.cuts[name]:
            count, manner = self.hub.cuts[name].pop(0)
            self.wfile.write(content[:count])
            self.wfile.flush()
            if manner == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self.wfile.write(content)


def _lfs(name: str, content: bytes) -> dict[str, Any]:
    if not name.endswith(".safetensors"):
        return {}
    return {"lfs": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}}
