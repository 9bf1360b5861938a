"""Runs Python functions as jobs: an executor as those of ``concurrent.futures``.

The function, its arguments and its result are files in a folder that this machine and the nodes share.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import pickle
import sys
import threading
import time
import traceback
import uuid
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from .client import FINAL_STATES, Client

try:
    import cloudpickle as _pickler
except ImportError:  # Functions of modules need no more.
    _pickler = pickle  # type: ignore[assignment]

__all__ = ["Executor", "JobError", "JobFuture"]

# Jobs of one request for their states.
BATCH = 500


class JobError(Exception):
    """A job ended without a result: ``job`` is its number, ``state`` how it ended."""

    def __init__(self, job: str, state: str, text: str):
        self.job = job
        self.state = state
        super().__init__(f"job {job} {state}{': ' + text if text else ''}")


class JobFuture(concurrent.futures.Future):
    """The result of a job that is to come."""

    #: The job's number, such as ``42`` or ``42_7``.
    job_id: str = ""

    def __init__(self, executor: "Executor", folder: pathlib.Path):
        super().__init__()
        self._executor = executor
        self._folder = folder

    def cancel(self) -> bool:
        """Cancels the job, also one that runs."""
        if self.done():
            return self.cancelled()
        self._executor.client.cancel_job(self.job_id)
        return True

    def stdout(self) -> str:
        """Returns what the function printed so far."""
        return _text(self._folder / "out.log")

    def stderr(self) -> str:
        """Returns what the function printed to standard error so far."""
        return _text(self._folder / "err.log")


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


class Executor(concurrent.futures.Executor):
    """Runs functions as jobs.

    ``folder`` must be the same on this machine and on the nodes. ``options`` are fields of a submit, such as
    ``gpu_memory_bytes``, ``gpu_profile``, ``time_limit_secs``, ``env`` or ``checkpoint_signal``.

    >>> with Executor("/shared/ada/jobs", gpu_profile="1g.5gb") as pool:     # doctest: +SKIP
    ...     square = pool.submit(pow, 7, 2)
    ...     print(square.result())
    49
    """

    def __init__(
        self,
        folder: "os.PathLike[str] | str",
        client: Optional[Client] = None,
        python: Optional[str] = None,
        poll_secs: float = 1.0,
        **options: Any,
    ):
        self.client = client or Client()
        self.folder = pathlib.Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._python = python or sys.executable
        self._poll_secs = poll_secs
        self._options = options
        self._waiting: Dict[str, JobFuture] = {}
        self._lock = threading.Condition()
        self._closed = False
        self._watcher: Optional[threading.Thread] = None

    # --- submitting --------------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:  # type: ignore[override]
        """Submits ``fn(*args, **kwargs)`` as a job."""
        return self._submit([(fn, args, kwargs)], getattr(fn, "__name__", "function"), array=False)[0]

    def map_array(self, fn: Callable[..., Any], *iterables: Iterable[Any]) -> List[JobFuture]:
        """Submits one call for each element as the tasks of one array."""
        calls = [(fn, args, {}) for args in zip(*iterables)]
        if not calls:
            return []
        return self._submit(calls, getattr(fn, "__name__", "function"), array=True)

    def map(self, fn, *iterables, timeout=None, chunksize=1):  # type: ignore[no-untyped-def, override]
        """As ``concurrent.futures.Executor.map``; the calls are the tasks of one array."""
        futures = self.map_array(fn, *iterables)
        end = None if timeout is None else time.monotonic() + timeout

        def results():  # type: ignore[no-untyped-def]
            for future in futures:
                yield future.result(None if end is None else max(0.0, end - time.monotonic()))

        return results()

    def _submit(
        self, calls: List[Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]]], name: str, array: bool
    ) -> List[JobFuture]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is shut down")
        folder = self.folder / uuid.uuid4().hex
        futures = []
        for index, call in enumerate(calls):
            own = folder / str(index)
            own.mkdir(parents=True)
            (own / "call.pkl").write_bytes(_pickler.dumps(call))
            futures.append(JobFuture(self, own))
        index = "%a" if array else "0"
        request: Dict[str, Any] = {
            "name": name,
            "work_dir": os.getcwd(),
            "stdout": str(folder / index / "out.log"),
            "stderr": str(folder / index / "err.log"),
            **self._options,
            "command": [self._python, "-m", "tessera.worker", str(folder)],
        }
        env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        # The worker must find this package, and the modules of functions that were pickled by name.
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        request["env"] = {**env, **request.get("env", {})}
        if array:
            request["array"] = {"first": 0, "last": len(calls) - 1}
        job = self.client.submit_job(request)["job_id"]
        with self._lock:
            for index, future in enumerate(futures):
                future.job_id = f"{job}_{index}" if array else str(job)
                future.set_running_or_notify_cancel()
                self._waiting[future.job_id] = future
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="tessera", daemon=True)
                self._watcher.start()
            self._lock.notify_all()
        return futures

    # --- results -----------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closed:
                    self._lock.wait()
                if not self._waiting:
                    return
                waiting = dict(self._waiting)
            try:
                self._collect(waiting)
            except Exception as failed:  # noqa: BLE001 - each future gets it
                for job, future in waiting.items():
                    self._finish(job, future, None, failed)
            time.sleep(self._poll_secs)

    def _collect(self, waiting: Dict[str, JobFuture]) -> None:
        names = list(waiting)
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            records = self.client.list_records(jobs=",".join(batch))
            for record in records["jobs"]:
                index = record.get("array_index")
                job = str(record["id"]) if index is None else f"{record['submission']}_{index}"
                future = waiting.get(job)
                if future is not None and record["state"] in FINAL_STATES:
                    self._take(job, future, record["state"])

    def _take(self, job: str, future: JobFuture, state: str) -> None:
        path = future._folder / "result.pkl"
        if state == "cancelled" and not path.exists():
            self._finish(job, future, None, concurrent.futures.CancelledError())
            return
        try:
            good, value = pickle.loads(path.read_bytes())
        except FileNotFoundError:
            tail = "\n".join(future.stderr().splitlines()[-20:])
            self._finish(job, future, None, JobError(job, state, tail))
        except Exception as bad:  # noqa: BLE001 - whatever unpickling raises
            self._finish(job, future, None, JobError(job, state, f"its result can't be read: {bad}"))
        else:
            self._finish(job, future, value if good else None, None if good else value)

    def _finish(self, job: str, future: JobFuture, value: Any, error: Optional[BaseException]) -> None:
        with self._lock:
            if self._waiting.pop(job, None) is None:
                return
            self._lock.notify_all()
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for the results unless ``wait`` is false."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
            self._lock.notify_all()
        if cancel_futures:
            for future in waiting:
                future.cancel()
        if wait:
            concurrent.futures.wait(waiting)


def run_call(folder: pathlib.Path) -> int:
    """Runs the call in a folder, and writes its result. Returns the program's exit code."""
    function, args, kwargs = pickle.loads((folder / "call.pkl").read_bytes())
    try:
        outcome = (True, function(*args, **kwargs))
        code = 0
    except Exception as raised:  # noqa: BLE001 - the caller gets it
        traceback.print_exc()
        outcome, code = (False, raised), 1
    try:
        data = _pickler.dumps(outcome)
    except Exception as bad:  # noqa: BLE001 - whatever pickling raises
        data, code = pickle.dumps((False, TypeError(f"the result can't be pickled: {bad}"))), 1
    part = folder / f"result.{uuid.uuid4().hex}"
    part.write_bytes(data)
    # Whole or not at all: somebody may look at any time.
    part.replace(folder / "result.pkl")
    return code
