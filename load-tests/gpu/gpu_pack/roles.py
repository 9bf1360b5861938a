"""A process in each role: the other programs and the profile that make the queue give it this role."""

import contextlib

from .processes import workload

ROLES = ("measure", "free", "hold", "fill")

# 2 ms of work in 10 ms, and small kernels without a pause.
HOLDER = {"steps": [{"run": "tessera_holder", "ms": 2}, {"gap_ms": 8}], "attach": True}
FILLER = {"steps": [{"run": "tessera_filler", "ms": 0.2, "grid": 8, "block": 128}, {"sync": True}], "attach": True}


class Roles:
    """Roles for one task of a queue."""

    def __init__(self, queue, task):
        self.queue, self.task = queue, task
        # It stays admitted, so that the queue does not forget the task.
        self.attempt, self.environment = queue.admit(task, 4)

    @contextlib.contextmanager
    def role(self, role):
        """Yields the variables with which a process has this role once its task is measured."""
        if role == "none":
            yield {}
            return
        if role == "free":
            yield self.environment
            return
        if role == "measure":
            # As its own task: it launches what keeps it unmeasured.
            attempt, environment = self.queue.admit(self.task + ", measured", 4)
            try:
                yield environment
            finally:
                self.queue.end(attempt)
            return
        other, priority = (FILLER, 9) if role == "hold" else (HOLDER, 0)
        attempt, environment = self.queue.admit(self.task + " next to it", priority)
        try:
            with workload(other, environment) as companion:
                companion.ready().go()
                yield self.environment
                companion.stop()
        finally:
            self.queue.end(attempt)
