#!/usr/bin/env python3
"""Makes the recordings that ship with the program from what `tightfit cache export` wrote.

    scripts/ship-recordings.py H100.jsonl.gz H200.jsonl.gz ..

Of each device it keeps the final decisions and drops everything else. Where files disagree, the later one counts. The same
files give the same bytes. `--out` names another file than crates/profile/data/shipped.jsonl.gz.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "crates/profile/data/shipped.jsonl.gz"
FORMAT = {"format": "tightfit-profile", "version": 1}


def lines(path):
    """The lines of a profile file, after its format line."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        first = json.loads(next(file, "null"))
        if not isinstance(first, dict) or {key: first.get(key) for key in FORMAT} != FORMAT:
            sys.exit(f"{path}: not a {FORMAT['format']} of version {FORMAT['version']}")
        rest = [json.loads(line) for line in file]
    if first.get("lines", len(rest)) != len(rest):
        sys.exit(f"{path}: has {len(rest)} lines, not {first['lines']}; it is truncated")
    return rest


def text(line):
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="*", type=Path, help="profile files; none makes an empty one")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    devices = {}
    for path in options.exports:
        here = None
        for line in lines(path):
            if "device" in line:
                here = devices.setdefault(text(line), {})
            elif here is None and "decision" in line:
                sys.exit(f"{path}: a decision comes before any device")
            elif line.get("is_final") is True:
                here[line["decision"], line["question"]] = text(line)
    devices = {device: decisions for device, decisions in devices.items() if decisions}
    kept = [line for device in sorted(devices) for line in (device, *(one for _, one in sorted(devices[device].items())))]
    written = "".join(f"{line}\n" for line in [text(FORMAT | {"lines": len(kept)}), *kept])
    # Neither a time nor a name, so that equal lines are equal bytes.
    packed = gzip.compress(written.encode(), mtime=0)
    options.out.write_bytes(packed)
    count = sum(map(len, devices.values()))
    print(f"{options.out}: {count} decisions of {len(devices)} devices, {len(packed)} bytes")


if __name__ == "__main__":
    main()
