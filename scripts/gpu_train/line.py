"""One JSON line of what `tightfit train --format json` printed.

usage: python3 scripts/gpu_train/line.py CASE LABEL EXIT_CODE FILE
"""

import json
import pathlib
import sys


def main():
    case, label, code, path = sys.argv[1:]
    line = {"case": case, "label": label, "exit": int(code)}
    text = pathlib.Path(path).read_text()
    if text.startswith("{"):
        line.update(json.loads(text))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
