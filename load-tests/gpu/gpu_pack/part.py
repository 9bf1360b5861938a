"""One part of the pack: its rows, each `pass`, `fail`, `skip` or `measured`, and the file that keeps them.

The file is written again after each row, so that a part that is ended by its time limit keeps what it has.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
PACK = os.path.dirname(HERE)


class Skip(Exception):
    """This machine lacks something; the text names it."""


class Part:
    """A part, and the machine on which it runs."""

    def __init__(self, name, title):
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--out", required=True, help="folder of the result files")
        parser.add_argument("--quick", action="store_true", help="few repetitions: shows that the pack works")
        arguments = parser.parse_args()
        # At the time limit children and daemons are ended in order.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.out, self.quick = os.path.abspath(arguments.out), arguments.quick
        self.file = os.path.join(self.out, name + ".json")
        with open(os.path.join(self.out, "machine.json")) as file:
            self.machine = json.load(file)
        self.rows = []
        # Some parts run programs side by side.
        self.lock = threading.Lock()
        self.begun = time.monotonic()
        self.result = {
            "part": name, "title": title, "quick": self.quick, "machine": self.machine, "complete": False,
            "rows": self.rows,
        }
        self.write()

    def write(self):
        """Writes the file."""
        self.result["took_s"] = round(time.monotonic() - self.begun, 1)
        with open(self.file + ".new", "w") as file:
            json.dump(self.result, file, indent=1)
            file.write("\n")
        os.replace(self.file + ".new", self.file)

    def row(self, status, name, **facts):
        """Adds a row."""
        shown = json.dumps(facts)
        with self.lock:
            self.rows.append(dict(facts, name=name, status=status))
            print("  %-8s %s %s" % (status, name, shown if len(shown) < 300 else shown[:300] + "..."), flush=True)
            self.write()

    def measured(self, name, **facts):
        """Adds figures that nothing is expected of."""
        self.row("measured", name, **facts)

    def check(self, name, is_good, **facts):
        """Adds what must hold."""
        self.row("pass" if is_good else "fail", name, **facts)

    @contextlib.contextmanager
    def guarded(self, name):
        """A failure in this block is the row's, not the part's."""
        try:
            yield
        except Skip as reason:
            self.row("skip", name, reason=str(reason))
        except Exception as error:  # Whatever it is belongs into the result.
            self.row("fail", name, error="%s: %s" % (type(error).__name__, error), trace=traceback.format_exc())

    def need_driver(self):
        """Skips where there is no device."""
        if not self.machine.get("device"):
            raise Skip("no device: " + self.machine.get("why_no_device", "unknown reason"))

    def need_sharing(self):
        """Skips where the device serves only one process at a time."""
        self.need_driver()
        if self.machine.get("compute_mode"):
            raise Skip("the device's compute mode is %d, so processes can't share it; the pack changes no mode"
                       % self.machine["compute_mode"])

    def need_torch(self):
        """Skips where there is no real PyTorch that sees the device."""
        self.need_driver()
        torch = self.machine["torch"]
        if not torch.get("usable"):
            raise Skip(torch["why_not"])

    def done(self):
        """Ends the part. Its exit status shows whether a row failed."""
        self.result["complete"] = True
        self.write()
        sys.exit(1 if any(row["status"] == "fail" for row in self.rows) else 0)


def spread(values, digits=3):
    """Returns the usual quantiles of some figures."""
    values = sorted(values)
    if not values:
        return {"samples": 0}

    def at(part):
        return round(values[min(len(values) - 1, int(len(values) * part))], digits)

    return {
        "samples": len(values), "mean": round(sum(values) / len(values), digits), "p50": at(0.5), "p90": at(0.9),
        "p99": at(0.99), "max": round(values[-1], digits),
    }
