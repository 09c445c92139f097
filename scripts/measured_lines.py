"""The lines of docs/measured: a line `{"about": {..}}` says of the lines after it, up to the next such line, what ran and where.

docs/measured/README.md describes the files.
"""

import json
import pathlib
from typing import Any

Json = dict[str, Any]


def read(path: pathlib.Path) -> list[Json]:
    """The lines of one file, each with the fields of the last line about them; a line's own fields count more."""
    lines, about = [], {}
    for line in map(json.loads, path.read_text().splitlines()):
        if "about" in line:
            about = line["about"]
        else:
            lines.append(about | line)
    return lines
