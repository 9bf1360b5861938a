"""The same for asyncio: calls run in threads, futures can be awaited."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any, AsyncIterator, Callable, Dict, Optional

from .client import Client
from .executor import Executor

__all__ = ["AsyncClient", "run"]


class AsyncClient:
    """A client whose calls are coroutines: ``await AsyncClient().list_nodes()``."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.client = Client(*args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        @functools.wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, functools.partial(method, *args, **kwargs))

        return call

    async def events(self) -> AsyncIterator[Dict[str, Any]]:
        """Yields state changes of jobs as they happen."""
        loop = asyncio.get_running_loop()
        queue: "asyncio.Queue[Optional[Dict[str, Any]]]" = asyncio.Queue(1024)
        over = threading.Event()

        def read() -> None:
            for event in self.client.events():
                if over.is_set():
                    return
                asyncio.run_coroutine_threadsafe(queue.put(event), loop).result()

        threading.Thread(target=read, name="tessera-events", daemon=True).start()
        try:
            while True:
                event = await queue.get()
                if event is not None:
                    yield event
        finally:
            over.set()


async def run(executor: Executor, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function as a job, and returns its result."""
    loop = asyncio.get_running_loop()
    future = await loop.run_in_executor(None, functools.partial(executor.submit, fn, *args, **kwargs))
    return await asyncio.wrap_future(future)
