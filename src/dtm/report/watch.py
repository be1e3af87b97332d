"""Serve a page only on this machine, and update it when its runs write new data."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dtm.errors import ConfigError, DtmError
from dtm.report.page.data import PageRun, page_data
from dtm.report.page.write import embedded, render

HOST = "127.0.0.1"
WATCHED = ("config.yaml", "metrics.jsonl", "summary.json", "samples")
"""Files and folders of a run that change its page."""


class PageServer(ThreadingHTTPServer):
    """Server of one page: ``/`` is the page, ``/data.json`` its data, with a tag that changes with it."""

    daemon_threads = True

    def __init__(self, subjects: Sequence[PageRun], title: str, port: int = 0) -> None:
        self.subjects, self.title = subjects, title
        self._lock, self._made = threading.Lock(), ("", dict[str, Any]())
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as problem:
            raise ConfigError(f"port {port} cannot be used: {problem}. Choose another with --port") from None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def tag(self) -> str:
        """Tag that changes when a file of a run changes."""
        states = hashlib.blake2b(digest_size=12)
        for path in self._files():
            found = path.stat()
            states.update(f"{path} {found.st_mtime_ns} {found.st_size}\n".encode())
        return f'"{states.hexdigest()}"'

    def data(self) -> dict[str, Any]:
        """Data of the page, computed once per tag."""
        with self._lock:
            tag = self.tag()
            if self._made[0] != tag:
                self._made = tag, page_data(self.subjects, self.title) | {"live": True, "tag": tag}
            return self._made[1]

    def _files(self) -> Iterator[Path]:
        for subject in self.subjects:
            for name in WATCHED:
                path = subject.folder.path / name
                yield from sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []


class _Handler(BaseHTTPRequestHandler):
    """Serve the page and its data; reject requests for other host names (DNS rebinding)."""

    server: PageServer

    def do_GET(self) -> None:
        """Answer one request."""
        own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in own:
            self._answer(403, "text/plain", "this page is served to this machine alone")
        elif self.path in ("/", "/data.json"):
            self._page()
        else:
            self._answer(404, "text/plain", "there is one page here: /")

    def _page(self) -> None:
        try:
            if self.path == "/data.json" and self.headers.get("If-None-Match") == self.server.tag():
                self._answer(304, "application/json", "")
                return
            data = self.server.data()
            page = embedded(data) if self.path == "/data.json" else render(data, live=True)
        except (DtmError, OSError) as problem:  # a run's folder may be incomplete, or deleted
            self._answer(503, "text/plain", str(problem))
            return
        kind = "application/json" if self.path == "/data.json" else "text/html"
        self._answer(200, kind, page, data["tag"])

    def _answer(self, status: int, kind: str, text: str, tag: str | None = None) -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing, since a page sends a request every two seconds."""
