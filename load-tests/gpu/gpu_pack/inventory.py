"""Part 1: the driver, its GPUs and MPS, as they are. Only questions, no settings."""

import ctypes
import os
import shutil
import subprocess

from .part import Part

# The only questions to NVIDIA's program.
FIELDS = (
    "name,uuid,driver_version,vbios_version,memory.total,memory.used,mig.mode.current,compute_mode,persistence_mode,"
    "clocks.current.sm,clocks.max.sm,clocks.current.memory,power.limit,temperature.gpu,utilization.gpu"
)


def nvml(part):
    """What the management library answers."""
    library = ctypes.CDLL("libnvidia-ml.so.1")

    def ask(name, *arguments):
        code = getattr(library, name)(*arguments)
        if code != 0:
            raise RuntimeError("%s returned %d" % (name, code))

    ask("nvmlInit_v2")
    version, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    ask("nvmlSystemGetDriverVersion", version, 96)
    ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
    part.measured("driver by NVML", version=version.value.decode(), gpus=count.value)
    for index in range(count.value):
        with part.guarded("GPU %d by NVML" % index):
            device, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
            ask("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            ask("nvmlDeviceGetName", device, name, 96)
            ask("nvmlDeviceGetUUID", device, uuid, 96)
            seen = {"gpu": name.value.decode(), "uuid": uuid.value.decode()}
            now, pending = ctypes.c_uint(), ctypes.c_uint()
            try:
                ask("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(pending))
                seen["mig"] = bool(now.value)
            except (AttributeError, RuntimeError):
                seen["mig"] = None
            part.measured("GPU %d by NVML" % index, **seen)


def smi(part):
    """What NVIDIA's program answers."""
    program = shutil.which("nvidia-smi")
    if not program or part.machine["stand_in"]:
        part.row("skip", "nvidia-smi", reason="stand-in" if part.machine["stand_in"] else "there is no nvidia-smi")
        return
    done = subprocess.run(
        [program, "--query-gpu=" + FIELDS, "--format=csv,noheader"], capture_output=True, text=True, timeout=30
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr or done.stdout)
    for line in done.stdout.splitlines():
        fields = dict(zip(FIELDS.split(","), (field.strip() for field in line.split(","))))
        part.measured("nvidia-smi", gpu=fields.pop("name"), **fields)


def mps(part):
    """Whether there is an MPS daemon, and one that could be started."""
    program = shutil.which("nvidia-cuda-mps-control")
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    part.measured("MPS", program=program, pipe_folder=folder, daemon_runs=os.path.exists(os.path.join(folder, "control")))


def main():
    part = Part("1-inventory", "driver and MPS inventory")
    part.row("measured" if part.machine.get("device") else "skip", "device by the CUDA driver", **(
        {name: part.machine.get(name) for name in ("device", "uuid", "cuda", "driver", "multiprocessors",
                                                    "compute_capability", "compute_mode", "compute_preemption")}
        if part.machine.get("device") else {"reason": part.machine.get("why_no_device")}
    ))
    for name, look in (("NVML", nvml), ("nvidia-smi", smi), ("MPS", mps)):
        with part.guarded(name):
            look(part)
    part.measured("torch", **part.machine["torch"])
    part.done()


if __name__ == "__main__":
    main()
