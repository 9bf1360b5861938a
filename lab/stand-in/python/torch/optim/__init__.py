"""Optimizers of the stand-in."""

from .optimizer import Optimizer


class SGD(Optimizer):
    """An optimizer whose step does nothing else than to call the hooks."""
