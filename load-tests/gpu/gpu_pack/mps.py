"""The pack's own MPS daemon, in its own folders: it is started and ended, and changes no setting."""

import contextlib
import os
import shutil
import subprocess
import tempfile

from .part import Skip


@contextlib.contextmanager
def daemon(machine):
    """Yields the variables with which programs join a daemon for the first device."""
    program = shutil.which("nvidia-cuda-mps-control")
    if not program:
        raise Skip("there is no nvidia-cuda-mps-control")
    folder = tempfile.mkdtemp(prefix="tessera-gpu-pack-mps-")
    own = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(folder, "pipe"), "CUDA_MPS_LOG_DIRECTORY": os.path.join(folder, "log")}
    for path in own.values():
        os.mkdir(path)
    # A daemon numbers its devices again, so that clients name theirs by its UUID.
    own["CUDA_VISIBLE_DEVICES"] = machine["uuid"]
    environment = dict(os.environ, **own)
    try:
        try:
            begun = subprocess.run([program, "-d"], env=environment, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            raise Skip("nvidia-cuda-mps-control -d did not return within 20 s")
        if begun.returncode != 0:
            raise Skip("MPS does not start here: " + (begun.stderr or begun.stdout).strip())
        try:
            yield own
        finally:
            try:
                subprocess.run([program], env=environment, input="quit\n", capture_output=True, text=True, timeout=20)
            except subprocess.TimeoutExpired:
                raise RuntimeError("the MPS daemon of the pack did not end: pipe folder %s" % own["CUDA_MPS_PIPE_DIRECTORY"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
