"""Part 4: what the shim costs a launch and a program: watched, free, holding and measuring."""

from .part import Part, Skip
from .pipe import Pipe
from .processes import Child, Queue
from .roles import Roles

WANTED = ("measure", "free", "hold")


def by_launch(part, queue):
    """Launches through the shim and past it, by turns within one process."""
    roles = Roles(queue, "overhead of launches")
    blocks = "20" if part.quick else "200"
    with Child("launch_costs", "none", blocks) as child:
        part.measured("a launch without the shim", **child.report())
    with part.guarded("a launch, watched"), Pipe() as pipe:
        with Child("launch_costs", "none", blocks, env=pipe.for_watch()) as child:
            part.measured("a launch, watched", **child.report())
    for role in WANTED:
        with part.guarded("a launch, %s" % role):
            with roles.role(role) as environment, Child("launch_costs", role, blocks, env=environment) as child:
                report = child.report()
            if report["role"] != role:
                raise Skip("the role was %s after %s s" % (report["role"], report["settled_s"]))
            part.measured("a launch, %s" % role, **report)


def by_program(part, queue):
    """ResNet-50 and a training step."""
    part.need_torch()
    rounds = "10" if part.quick else "60"
    with Child("torch_costs", "none", rounds) as child:
        alone = child.report(120)
    part.measured("programs without the shim", **alone)
    with part.guarded("programs, watched"), Pipe() as pipe:
        with Child("torch_costs", "none", rounds, env=pipe.for_watch()) as child:
            seen = child.report(120)
        for name, of_program in seen["programs"].items():
            part.measured("%s, watched" % name, times_alone=round(
                of_program["p50"] / alone["programs"][name]["p50"], 4), **of_program)
    for name in alone["programs"]:
        # Each program is its own task: what is measured of one proves nothing about the other.
        roles = Roles(queue, "overhead of " + name)
        for role in WANTED:
            with part.guarded("%s, %s" % (name, role)):
                with roles.role(role) as environment, \
                        Child("torch_costs", role, rounds, name, env=environment) as child:
                    report = child.report(120)
                seen = report["programs"][name]
                if report["role"] != role:
                    raise Skip("the role was %s after %s s" % (report["role"], report["settled_s"]))
                part.measured("%s, %s" % (name, role), role=role, times_alone=round(
                    seen["p50"] / alone["programs"][name]["p50"], 4), **seen)


def main():
    part = Part("4-overhead", "overhead of the shim: free, hold, measure")
    with part.guarded("overhead"):
        part.need_sharing()
        for name, measure in (("overhead of launches", by_launch), ("overhead of programs", by_program)):
            with part.guarded(name), Queue(part.machine) as queue:
                measure(part, queue)
    part.done()


if __name__ == "__main__":
    main()
