"""The client: typed calls of the API, logs and live events."""

from __future__ import annotations

import json
import time
import urllib.parse
import uuid
from typing import Any, Dict, Iterator, Optional, Union

from ._api import Api, JobView
from ._connection import Connection, Refused, TesseraError

__all__ = ["Client"]

FINAL_STATES = ("succeeded", "failed", "cancelled", "timed_out")


class Client(Api):
    """A client of one controller, found as the command `tessera` finds it.

    >>> client = Client()                                  # doctest: +SKIP
    >>> job = client.submit_job({"command": ["/bin/true"]})  # doctest: +SKIP
    >>> client.wait(job["job_id"])["state"]                # doctest: +SKIP
    'succeeded'
    """

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        patience: float = 30.0,
    ):
        self.connection = Connection(url, token, ca, patience)

    def _call(
        self,
        method: str,
        path: str,
        query: Optional[Dict[str, Any]] = None,
        body: Optional[Any] = None,
        idempotency_key: Optional[str] = None,
    ) -> Any:
        headers = {}
        if method == "POST" and path == "/v1/jobs":
            # A repeated submit is accepted once.
            headers["Idempotency-Key"] = idempotency_key or str(uuid.uuid4())
        return self.connection.request(method, path, query, body, headers)

    @staticmethod
    def _segment(name: Union[str, int]) -> str:
        return urllib.parse.quote(str(name), safe="")

    def wait(self, job: Union[str, int], timeout: Optional[float] = None) -> JobView:
        """Waits until a job has ended, and returns it.

        Raises TimeoutError if it has not after ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 25.0 if end is None else max(0.0, min(25.0, end - time.monotonic()))
            view = self.wait_for_job(job, timeout_secs=int(left))
            if view["state"] in FINAL_STATES:
                return view
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"job {job} is {view['state']} after {timeout} s")
            if left < 1:
                time.sleep(min(0.2, left))

    def logs(
        self, job: Union[str, int], stream: str = "stdout", follow: bool = False, attempt: Optional[int] = None
    ) -> Iterator[str]:
        """Yields a job's output piece by piece; with ``follow`` until the attempt has ended."""
        query = {"stream": stream, "follow": follow, "attempt": attempt, "offset": 0}
        path = f"/v1/jobs/{self._segment(job)}/logs"
        for piece in self.connection.stream(path, query):
            yield piece.decode("utf-8", "replace")

    def events(self, reconnect: bool = True) -> Iterator[Dict[str, Any]]:
        """Yields state changes of jobs as they happen: ``job_id``, ``state``, ``attempt``.

        ``{"missed": True}`` means that changes were lost: list the jobs again. The stream is opened again
        after it broke.
        """
        while True:
            try:
                yield from self._events_once()
            except (OSError, TesseraError) as broken:
                if not reconnect or isinstance(broken, Refused):
                    raise
            if not reconnect:
                return
            yield {"missed": True}
            time.sleep(1.0)

    def _events_once(self) -> Iterator[Dict[str, Any]]:
        buffer, kind, data = b"", "", ""
        headers = {"Accept": "text/event-stream"}
        # The controller shows every 15 s that it lives.
        for piece in self.connection.stream("/v1/events", headers=headers, timeout=60.0):
            buffer += piece
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                text = line.decode("utf-8", "replace").rstrip("\r")
                if text.startswith("event:"):
                    kind = text[6:].strip()
                elif text.startswith("data:"):
                    data += text[5:].strip()
                elif not text and data:
                    yield {"missed": True} if kind == "missed" else json.loads(data)
                    kind, data = "", ""
