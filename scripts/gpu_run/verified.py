"""The findings of `tightfit verify` on a device: a JSON line for each kernel, and for each group of kernels side by side.

usage: python scripts/gpu_run/verified.py RESULTS

RESULTS is results.jsonl of scripts/gpu-results.py; steps that did not end have no lines.
"""

import json
import pathlib
import sys

NETWORK = ["network", "batch", "types"]
ERRORS = ["max_relative_error_reference", "undivided_max_relative_error_reference", "class_max_relative_error_reference"]
TIMES = ["measured_time_us", "undivided_measured_time_us"]
OF_GROUP = ["streams", "alone_measured_time_us", "measured_time_us", "max_relative_error_alone"]


def lines(step):
    result = step["result"]
    of = {"step": step["step"]} | {name: result[name] for name in NETWORK}
    for group in result.get("side_by_side", []):
        members = [result["kernels"][kernel]["layer"] for kernel in group["kernels"]]
        operation = result["kernels"][group["kernels"][0]]["operation"]
        yield of | {"group": members, "operation": operation} | {name: group[name] for name in OF_GROUP}
    for kernel in result["kernels"]:
        parts = kernel["configuration"]
        ran = {
            "undivided": kernel["undivided"]["algorithm"],
            "parts": [part["micro_batch"] for part in parts],
            "algorithms": list(dict.fromkeys(part["algorithm"] for part in parts)),
        }
        found = {name: kernel["verification"][name] for name in ERRORS + TIMES}
        yield of | {"layer": kernel["layer"], "operation": kernel["operation"]} | ran | {"time_us": kernel["time_us"]} | found


def main():
    for step in map(json.loads, pathlib.Path(sys.argv[1]).read_text().splitlines()):
        for line in lines(step) if step["result"] else []:
            print(json.dumps(line))


main()
