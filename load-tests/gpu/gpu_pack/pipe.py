"""The named pipe into which the companion and the shim's watch write, as the agent's shepherd holds it."""

import os
import tempfile
import threading

from .part import PACK, Skip
from .processes import SHIM

COMPANION = os.path.join(PACK, "companion")


class Pipe:
    """A pipe and the lines that came, each as its words."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "pipe")
        self.lines = []

    def __enter__(self):
        os.mkfifo(self.path)
        # Open for both, so that it has no end while programs come and go.
        self.fd = os.open(self.path, os.O_RDWR)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def read(self):
        kept = b""
        while True:
            kept += os.read(self.fd, 65536)
            *lines, kept = kept.split(b"\n")
            for line in lines:
                if line == b"end":
                    return
                self.lines.append(line.decode("ascii", "replace").split())

    def finish(self):
        """Returns all lines that were written so far. Nothing may be written after it."""
        os.write(self.fd, b"end\n")
        self.reader.join(10)
        return self.lines

    def __exit__(self, *_):
        if self.reader.is_alive():
            self.finish()
        os.close(self.fd)
        self.folder.cleanup()

    def for_companion(self):
        """Returns the variables of a Python program that has the companion."""
        if not os.path.exists(os.path.join(COMPANION, "sitecustomize.py")):
            raise Skip("companion/sitecustomize.py is missing: ./x gpu-pack packs it")
        paths = [COMPANION, PACK] + [path for path in [os.environ.get("PYTHONPATH")] if path]
        return {"TESSERA_MEMORY_PIPE": self.path, "PYTHONPATH": os.pathsep.join(paths)}

    def for_watch(self):
        """Returns the variables of a program that the shim watches, without a queue."""
        if not os.path.exists(SHIM):
            raise Skip("kernel-shim/libcuda.so.1 is missing: ./x gpu-pack packs it")
        folders = [os.path.dirname(SHIM)] + [path for path in [os.environ.get("LD_LIBRARY_PATH")] if path]
        return {
            "TESSERA_WATCH": "on", "TESSERA_MEMORY_PIPE": self.path, "LD_PRELOAD": SHIM,
            "LD_LIBRARY_PATH": os.pathsep.join(folders),
        }


def of_kind(lines, kind):
    """Returns the numbers of all lines of a kind: without the kind, the process and, for the companion, the rank."""
    skipped = 3 if kind in ("m", "o") else 2
    return [[int(word) for word in line[skipped:]] for line in lines if line and line[0] == kind]
