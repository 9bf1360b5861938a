"""Names the machine: every result file contains this. `machine.py FILE` writes it.

Nothing here changes a setting of the machine.
"""

import json
import os
import platform
import sys
import time

from . import driver as cuda
from .part import PACK


def torch_facts():
    """Returns what is known of PyTorch without using the device."""
    try:
        import torch
    except Exception as error:  # A broken installation is as good as none.
        return {"usable": False, "why_not": "torch can't be imported: %s" % error}
    version = str(getattr(torch, "__version__", "unknown"))
    facts = {"version": version, "usable": False}
    if "stand-in" in version:
        facts["why_not"] = "stand-in: this torch is the stand-in of lab/stand-in/python"
        return facts
    facts["cuda"] = torch.version.cuda
    for name in ("torchvision", "transformers", "triton"):
        try:
            facts[name] = __import__(name).__version__
        except Exception:  # Absent or broken: parts that need it report that.
            facts[name] = None
    if not torch.cuda.is_available():
        facts["why_not"] = "torch sees no device"
        return facts
    facts["usable"] = True
    return facts


def commit():
    """Returns the commit of which the pack was made."""
    try:
        with open(os.path.join(PACK, "COMMIT")) as file:
            return file.read().strip()
    except OSError:
        return "unknown: the pack was not made by ./x gpu-pack"


def first_line(path):
    """Returns the first line of a file; None without it."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return None


def facts():
    """Returns everything."""
    found = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": next(
            (line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown"
        ),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "glibc": platform.libc_ver()[1],
        "driver": first_line("/proc/driver/nvidia/version"),
        "device": None,
        "stand_in": False,
    }
    try:
        driver = cuda.Driver().open()
        found["cuda"] = driver.version()
        found["stand_in"] = driver.is_stand_in
        # A result that was not measured on a GPU must never read as if it were.
        found["device"] = ("stand-in for " if driver.is_stand_in else "") + driver.name()
        if driver.is_stand_in:
            found["driver"] = "stand-in"
        found["uuid"] = driver.uuid()
        found["multiprocessors"] = driver.attribute(16)
        found["compute_capability"] = "%d.%d" % (driver.attribute(75), driver.attribute(76))
        found["compute_mode"] = driver.attribute(20)
        found["compute_preemption"] = driver.attribute(90)
        found["iterations_per_ms"] = round(cuda.calibrate(driver), 1)
    except (OSError, cuda.CudaError) as error:
        if found["device"] is None:
            found["why_no_device"] = str(error)
        else:
            found["why_no_device"], found["device"] = "%s: %s" % (found["device"], error), None
    found["torch"] = torch_facts()
    if found["stand_in"] and found["torch"]["usable"]:
        found["torch"].update(usable=False, why_not="stand-in: the driver computes nothing")
    return found


if __name__ == "__main__":
    seen = facts()
    with open(sys.argv[1], "w") as out:
        json.dump(seen, out, indent=1)
        out.write("\n")
    print("  device: %s; driver: %s; torch: %s" % (
        seen["device"] or "none, " + seen["why_no_device"], seen["driver"] or "none",
        seen["torch"].get("version", "none"),
    ))
