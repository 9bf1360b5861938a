"""Python package of Tessera: submit functions and jobs, and watch them."""

from ._connection import Refused, TesseraError
from .checkpoint import on_checkpoint, restart_count
from .client import Client
from .executor import Executor, JobError, JobFuture

__all__ = [
    "Client",
    "Executor",
    "JobError",
    "JobFuture",
    "Refused",
    "TesseraError",
    "on_checkpoint",
    "restart_count",
]
