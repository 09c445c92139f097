"""One JSON line of the output of a job of scripts/gpu-papers.sh.

usage: python scripts/gpu_run/job.py NAME EXIT_CODE SECONDS FILE

FILE has lines of JSON (step.py), or one object (tightfit optimize, tightfit profile), of which the times stay.
"""

import json
import pathlib
import sys

OF_KERNEL = ["layer", "operation", "time_us", "workspace_bytes"]
OF_OBJECT = ["network", "batch", "device", "types", "policy", "workspace_limit_bytes", "undivided_time_us", "time_us"]
SPENT = ["measured", "wall_time_us", "kernel_time_us"]


def figures(text):
    try:
        found = json.loads(text)
    except ValueError:
        return {"steps": [json.loads(line) for line in text.splitlines() if line.startswith("{")]}
    if "label" in found:
        return {"steps": [found]}
    kept = {name: found[name] for name in [*OF_OBJECT, *SPENT] if name in found}
    if "kernels" in found and isinstance(found["kernels"], list):
        kept["kernels"] = [
            {name: kernel[name] for name in OF_KERNEL}
            | {"undivided": {name: kernel["undivided"][name] for name in OF_KERNEL[2:]} if kernel["undivided"] else None}
            | {"parts": [part["micro_batch"] for part in kernel["configuration"]]}
            for kernel in found["kernels"]
        ]
    return kept


def main():
    name, code, seconds, path = sys.argv[1:]
    print(json.dumps({"name": name, "exit": int(code), "seconds": int(seconds), **figures(pathlib.Path(path).read_text())}))


if __name__ == "__main__":
    main()
