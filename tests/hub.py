"""A hub on 127.0.0.1 with one repository: the few addresses huggingface_hub asks for, and faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["COMMIT", "Hub", "serve"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 4096  # from this size on a file counts as an LFS object, with a SHA-256


@dataclass
class Hub:
    """What the server serves, what it does wrong, and what it was asked.

    Attributes:
        files: Name to content.
        repo_id: The only repository.
        endpoint: Address once it serves.
        stated: Name to content whose checksum is stated instead of that of the content sent.
        cuts: Name to numbers of bytes after which the connection breaks, one per request for the file.
        statuses: Name (or "info") to the HTTP status answered instead.
        requests: Method, file and `Range` header of every request for a file, in order.
    """

    files: dict[str, bytes]
    repo_id: str = "someone/tiny-speech"
    endpoint: str = ""
    stated: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def checksums(self, name: str) -> tuple[str, str]:
        """Return the SHA-256 and the git blob id that the server states."""
        content = self.stated.get(name, self.files[name])
        return hashlib.sha256(content).hexdigest(), hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def info(self) -> Mapping[str, object]:
        siblings = []
        for name, content in self.files.items():
            sha256, blob = self.checksums(name)
            sibling: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
            if len(content) >= LARGE:
                sibling["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 134}
            siblings.append(sibling)
        return {"id": self.repo_id, "modelId": self.repo_id, "sha": COMMIT, "siblings": siblings, "tags": []}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def _answer(self, send_body: bool) -> None:
        hub, path = self.hub, self.path.split("?")[0]
        if path.startswith(f"/api/models/{hub.repo_id}/revision/"):
            known = path.rsplit("/", 1)[1] in ("main", COMMIT)
            status = hub.statuses.get("info", 200 if known else 404)
            error = "RevisionNotFound" if status == 404 else None
            return self._send(status, json.dumps(hub.info()).encode(), {"X-Error-Code": error}, send_body)
        prefix = f"/{hub.repo_id}/resolve/{COMMIT}/"
        if not path.startswith((prefix, "/cdn/")):
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, send_body)
        name = path.removeprefix(prefix).removeprefix("/cdn/")
        if path.startswith(prefix) and len(hub.files[name]) >= LARGE:  # large files lie elsewhere, as on the real hub
            return self._send(302, b"", {"Location": f"{hub.endpoint}/cdn/{name}"}, send_body)
        hub.requests.append((self.command, name, self.headers.get("Range")))
        if name in hub.statuses:
            return self._send(hub.statuses[name], b"", {"X-Error-Code": "EntryNotFound"}, send_body)
        content = hub.files[name]
        sha256, blob = hub.checksums(name)
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{sha256 if len(content) >= LARGE else blob}"',
            "ETag": f'"{blob}"',
            "Accept-Ranges": "bytes",
        }
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cuts = hub.cuts.get(name) if send_body else None
        cut = cuts.pop(0) if cuts else None
        return self._send(206 if asked else 200, content[start:], headers, send_body, cut)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str | None], send_body: bool, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if value is not None:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not send_body:
            return
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """Serve files until the block ends."""
    hub = Hub(dict(files))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
