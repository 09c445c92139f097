"""Lines for the user."""

from __future__ import annotations

import os
import sys

__all__ = ["say"]


def say(line: str) -> None:
    """Writes one line for the user, unless told to be quiet."""
    if os.environ.get("TIGHTFIT_QUIET") != "1":
        print(f"tightfit: {line}", file=sys.stderr, flush=True)
