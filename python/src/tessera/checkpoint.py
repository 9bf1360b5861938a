"""Checkpoints: the signal before a stop or a migration becomes a call of your function."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Callable, Optional

__all__ = ["on_checkpoint", "restart_count"]


def restart_count() -> int:
    """Returns how often the job was started before: 0 in its first run."""
    return int(os.environ.get("TESSERA_RESTART_COUNT", "0") or 0)


class on_checkpoint:  # noqa: N801 - used like a function
    """Calls ``save`` when a checkpoint of the job is requested, and ends the program then.

    Submit the job with ``checkpoint_signal`` set to the same signal (``tessera submit --checkpoint USR1``).
    The signal interrupts Python code between two instructions, so ``save`` may use any Python object. With
    ``exit_code=None`` the program goes on, and ``.requested`` is true: save at the end of the step.

    >>> with on_checkpoint(lambda: print("saved"), exit_code=None) as checkpoint:
    ...     os.kill(os.getpid(), signal.SIGUSR1)
    saved
    >>> checkpoint.requested
    True
    """

    def __init__(
        self,
        save: Optional[Callable[[], Any]] = None,
        signal_name: str = "USR1",
        exit_code: Optional[int] = 0,
    ):
        name = signal_name.upper()
        self._number = getattr(signal, name if name.startswith("SIG") else "SIG" + name)
        self._save = save
        self._exit_code = exit_code
        self._before: Any = None
        self.requested = False

    def __enter__(self) -> "on_checkpoint":
        self._before = signal.signal(self._number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        signal.signal(self._number, self._before)

    def _handle(self, *_: Any) -> None:
        if self.requested:
            return
        self.requested = True
        if self._save is not None:
            self._save()
        if self._exit_code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            # SystemExit could be caught by the program; the checkpoint is written.
            os._exit(self._exit_code)
