#!/usr/bin/env python3
"""Planned and run times of a step by layer and pass, from a trace of `tightfit train --trace`: where a plan's estimates are off.

usage: scripts/gpu_train/layers.py TRACE [--most N]

TRACE may be compressed (.gz). Prints microseconds of each operation, the largest differences first, and the sums: of the
operations, and of the time between them in which the compute stream stood still. Run times are medians of the traced steps.
"""

import argparse
import collections
import gzip
import json
import pathlib
import statistics


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=30)
    options = parser.parse_args()
    text = options.trace.read_bytes()
    events = json.loads(gzip.decompress(text) if options.trace.suffix == ".gz" else text)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    [run] = [pid for pid, name in names.items() if name == "run"]
    planned, seen = {}, collections.defaultdict(list)
    for event in events:
        if event["ph"] != "X" or event.get("cat") in ("offload", "prefetch", "wait"):
            continue
        # An operation may run in parts, each a step of its own in the schedule.
        key = event["args"]["step"], event["name"]
        if event["pid"] == run:
            seen[key].append(event)
        else:
            planned[key] = event["dur"]
    took = {key: statistics.median(event["dur"] for event in of) for key, of in seen.items()}
    rows = sorted(took, key=lambda key: -abs(took[key] - planned.get(key, 0.0)))
    print(f"{'operation':<40}{'planned [us]':>14}{'run [us]':>14}{'run / planned':>15}")
    for key in rows[: options.most]:
        ratio = f"{took[key] / planned[key]:.2f}" if planned.get(key) else "-"
        print(f"{key[1]:<40}{planned.get(key, 0.0):>14.1f}{took[key]:>14.1f}{ratio:>15}")
    by_step = collections.defaultdict(list)
    for place, event in enumerate(sorted((event for of in seen.values() for event in of), key=lambda event: event["ts"])):
        by_step[place // max(len(took), 1)].append(event)
    whole = [max(event["ts"] + event["dur"] for event in of) - of[0]["ts"] for of in by_step.values() if len(of) == len(took)]
    print(f"{'all operations':<40}{sum(planned.values()):>14.1f}{sum(took.values()):>14.1f}")
    if whole:
        print(f"{'standing still':<40}{'':>14}{statistics.median(whole) - sum(took.values()):>14.1f}")


if __name__ == "__main__":
    main()
