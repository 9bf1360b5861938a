"""The table at the end: `summary.py FOLDER PART...`. Exit status 1 if something failed."""

import json
import os
import sys

STATUSES = ("pass", "fail", "skip", "measured")


def main():
    folder, parts = sys.argv[1], sys.argv[2:]
    with open(os.path.join(folder, "machine.json")) as file:
        machine = json.load(file)
    table, notes = [], []
    for part in parts:
        try:
            with open(os.path.join(folder, part + ".json")) as file:
                result = json.load(file)
        except (OSError, ValueError):
            result = {"rows": [], "complete": False, "took_s": 0}
        counts = {status: sum(row["status"] == status for row in result["rows"]) for status in STATUSES}
        if not result["complete"]:
            # Its time was up, or it broke: what is missing failed.
            counts["fail"] += 1
            notes.append("fail  %s: not complete" % part)
        for row in result["rows"]:
            if row["status"] in ("fail", "skip"):
                why = row.get("reason") or row.get("error") or json.dumps(
                    {key: row[key] for key in row if key not in ("name", "status")})
                notes.append("%-5s %s: %s: %s" % (row["status"], part, row["name"], " ".join(why.split())[-300:]))
        table.append(dict(counts, part=part, took_s=result["took_s"], complete=result["complete"]))
    print("\n==> %s, driver %s, torch %s, commit %s" % (
        machine["device"] or "no device", machine["driver"] or "none", machine["torch"].get("version", "none"),
        machine["commit"][:12],
    ))
    for note in notes:
        print("  " + note)
    print("\n%-16s %6s %6s %6s %9s %8s" % (("part",) + STATUSES + ("seconds",)))
    for row in table:
        print("%-16s %6d %6d %6d %9d %8.1f" % (
            (row["part"],) + tuple(row[status] for status in STATUSES) + (row["took_s"],)))
    failed = sum(row["fail"] for row in table)
    with open(os.path.join(folder, "summary.json"), "w") as out:
        json.dump({"machine": machine, "parts": table, "failed": failed}, out, indent=1)
        out.write("\n")
    print("\nresults: %s" % folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
