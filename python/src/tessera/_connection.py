"""Where the controller is, and how to talk to it: as the command `tessera` does."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import socket
import ssl
import stat
import time
import urllib.parse
from typing import Any, Dict, Iterator, Optional

SOCKET = "/run/tessera/api.sock"
FALLBACK_URL = "http://127.0.0.1:7070"
# While the controller restarts it refuses or closes connections.
RETRY_STATUS = (429, 502, 503, 504)


class TesseraError(Exception):
    """The controller can't be reached, or its answer makes no sense."""


class Refused(TesseraError):
    """The controller refused: ``problem`` has its reasons (RFC 9457)."""

    def __init__(self, status: int, problem: Dict[str, Any]):
        self.status = status
        self.problem = problem
        detail = problem.get("detail") or f"status {status}"
        expected = problem.get("expected")
        super().__init__(f"{detail}; expected {expected}" if expected else detail)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Optional[float]):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def credentials() -> Dict[str, Any]:
    """Returns what `tessera login` kept, or nothing."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = pathlib.Path(config) / "tessera" / "credentials.json"
    try:
        facts = path.lstat()
        text = path.read_text()
    except OSError:
        return {}
    if stat.S_IMODE(facts.st_mode) & 0o077 or not stat.S_ISREG(facts.st_mode):
        raise TesseraError(f"{path}: others can read this file with a token; make it private (chmod 600)")
    return json.loads(text)


class Connection:
    """A connection to one controller. Threads may share it: each call opens its own."""

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        patience: float = 30.0,
    ):
        kept = credentials()
        url = url or os.environ.get("TESSERA_URL") or kept.get("url")
        url = url or (f"unix://{SOCKET}" if os.path.exists(SOCKET) else FALLBACK_URL)
        self.url = url.rstrip("/")
        self.patience = patience
        # A token must never go to another address than the one that it was kept for.
        same = str(kept.get("url", "")).rstrip("/") == self.url
        self._token = token or os.environ.get("TESSERA_TOKEN") or (kept.get("token") if same else None)
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("unix", "http", "https"):
            raise TesseraError(f"{url!r} is no address: write unix:///path, http://host:port or https://host:port")
        self._parts = parts
        self._tls: Optional[ssl.SSLContext] = None
        if parts.scheme == "https":
            ca = ca or os.environ.get("TESSERA_CA")
            authority = None if ca or not same else kept.get("authority")
            self._tls = ssl.create_default_context(cafile=ca, cadata=authority)

    def _open(self, timeout: Optional[float]) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path, timeout)
        host, port = self._parts.hostname or "127.0.0.1", self._parts.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _headers(self, more: Optional[Dict[str, str]]) -> Dict[str, str]:
        headers = {"Accept": "application/json", **(more or {})}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _target(self, path: str, query: Optional[Dict[str, Any]]) -> str:
        pairs = []
        for name, value in (query or {}).items():
            if value is None:
                continue
            pairs.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
        return f"{path}?{urllib.parse.urlencode(pairs)}" if pairs else path

    def request(
        self,
        method: str,
        path: str,
        query: Optional[Dict[str, Any]] = None,
        body: Optional[Any] = None,
        headers: Optional[Dict[str, str]] = None,
        timeout: float = 60.0,
    ) -> Any:
        """Sends a request, and returns the JSON of the answer. Repeats it while the controller is away."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers(headers)
        if data is not None:
            headers["Content-Type"] = "application/json"
        end = time.monotonic() + self.patience
        pause = 0.1
        while True:
            try:
                connection = self._open(timeout)
                try:
                    connection.request(method, self._target(path, query), data, headers)
                    answer = connection.getresponse()
                    status, text = answer.status, answer.read()
                    wait = answer.headers.get("Retry-After")
                finally:
                    connection.close()
            except (OSError, http.client.HTTPException) as failed:
                if time.monotonic() + pause > end:
                    raise TesseraError(f"no controller answers at {self.url}: {failed}") from failed
            else:
                if status not in RETRY_STATUS or time.monotonic() + pause > end:
                    return self._read(status, text)
                pause = max(pause, float(wait) if wait and wait.isdigit() else pause)
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(pause * 2, 5.0)

    @staticmethod
    def _read(status: int, text: bytes) -> Any:
        try:
            value = json.loads(text) if text.strip() else None
        except ValueError as bad:
            raise TesseraError(f"the answer is not JSON: {text[:120]!r}") from bad
        if status >= 400:
            raise Refused(status, value if isinstance(value, dict) else {})
        return value

    def stream(
        self,
        path: str,
        query: Optional[Dict[str, Any]] = None,
        headers: Optional[Dict[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> Iterator[bytes]:
        """Opens an answer that is read piece by piece. Closing the iterator closes the connection."""
        connection = self._open(timeout)
        try:
            connection.request("GET", self._target(path, query), headers=self._headers(headers))
            answer = connection.getresponse()
            if answer.status >= 400:
                self._read(answer.status, answer.read())
            while True:
                piece = answer.read1(65536)
                if not piece:
                    return
                yield piece
        finally:
            connection.close()
