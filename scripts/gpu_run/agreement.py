"""The cost of a profile on several GPUs, and its times compared with one GPU's: one JSON line.

usage: python scripts/gpu_run/agreement.py NAME ONE SEVERAL ARGUMENTS

ONE and SEVERAL name a profile's output (.json) and its exported cache (.jsonl).
"""

import json
import pathlib
import statistics
import sys


def times(path):
    found = {}
    for line in path.read_text().splitlines():
        group = json.loads(line)
        for size, nanoseconds, *_ in group.get("rows", []):
            found[group["problem"], json.dumps(group["algorithm"]), size] = nanoseconds
    return found


def main():
    name, one, several, arguments = sys.argv[1:]
    spent = json.loads(pathlib.Path(several + ".json").read_text())
    ours = times(pathlib.Path(several + ".jsonl"))
    line = {"name": name, "arguments": arguments, "wall_s": round(spent["wall_time_us"] / 1e6, 3)}
    line["devices"] = [{"measured": d["measured"], "s": round(d["time_us"] / 1e6, 3)} for d in spent["devices"]]
    base = pathlib.Path(one + ".jsonl")
    if several != one and base.exists():
        theirs = times(base)
        both = sorted(ours[key] / theirs[key] for key in ours.keys() & theirs.keys())
        line["in_both"], line["in_one_only"] = len(both), len(ours.keys() ^ theirs.keys())
        low, *_, high = statistics.quantiles(both, n=10)
        line["ratio"] = [round(value, 3) for value in (low, statistics.median(both), high)]
    print(json.dumps(line))


if __name__ == "__main__":
    main()
