"""Part 5: FIKIT's twelve networks, recorded and written as files for `tessera-sim-player`."""

import json
import os
import tempfile

from . import player
from .pairs import NETWORKS, proxy
from .part import Part, Skip
from .processes import Child, know, workload

NAMES = (
    "fcn_resnet50", "fcn_resnet101", "maskrcnn_resnet50_fpn", "deeplabv3_resnet50", "deeplabv3_resnet101",
    "keypointrcnn_resnet50_fpn", "resnet50", "resnet101", "fcos_resnet50_fpn", "fasterrcnn_resnet50_fpn", "alexnet",
    "vgg16",
)
MARK = "tessera task"


def keep(part, name, events, windows):
    """Writes the player's file and adds its figures."""
    title = "%s on %s, %s" % (name, part.machine["device"], part.machine["date"])
    text, facts = player.recording(title, player.split(events, windows), windows)
    folder = os.path.join(part.out, "players")
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(folder, name + ".player")
    with open(file, "w") as out:
        out.write(text)
    part.measured(name, file=os.path.relpath(file, part.out), **facts)


def by_torch(part, tasks):
    """Records the networks of PyTorch."""
    wanted = []
    for name in NAMES:
        with part.guarded(name):
            part.need_torch()
            if name.endswith("_fpn") and not part.machine["torch"].get("torchvision"):
                raise Skip("torchvision is not installed, which has this detector")
            wanted.append(name)
    if not wanted:
        return
    with tempfile.TemporaryDirectory() as folder, Child("torch_record", str(tasks), folder, *wanted) as child:
        for name in wanted:
            with part.guarded(name):
                with open(child.report(60)["recorded"]) as file:
                    events, windows = player.of_profiler(json.load(file), MARK)
                if not events:
                    raise Skip("torch.profiler saw no kernel: CUPTI may not be allowed here")
                keep(part, name, events, windows)


def by_stand_in(part, tasks):
    """Records a proxy on the stand-in, whose trace shows what a profiler shows of a GPU."""
    name = NETWORKS["F"][0][0]
    spec = proxy(*NETWORKS["F"][0])
    spec.pop("weight")
    with tempfile.TemporaryDirectory() as folder:
        with workload(spec, {"TESSERA_SIM_CUDA_TRACE": folder}, iterations=tasks) as child:
            report = child.ready().go().report()
        with open(os.path.join(folder, "cuda-%d.jsonl" % report["pid"])) as file:
            events = player.of_stand_in([json.loads(line) for line in file])
    # Each task by its own start: the machine may let time pass before the first one and between two.
    windows = [
        (start, start + round(took * 1e6)) for start, took in zip(report["starts_ns"], report["tasks_ms"])
    ]
    keep(part, name + "-proxy", events, windows)


def main():
    part = Part("5-profiles", "profiles of FIKIT's networks, as files for the player")
    know(part.machine)
    tasks = 3 if part.quick else 7
    with part.guarded("recording"):
        by_torch(part, tasks)
    if part.machine["stand_in"]:
        with part.guarded("proxy on the stand-in"):
            by_stand_in(part, tasks)
    part.done()


if __name__ == "__main__":
    main()
