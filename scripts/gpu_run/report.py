"""The end of tuning, from the report of `tightfit run --report FILE`."""

import json
import os
import pathlib
import time

# Nanoseconds of steps behind the end of tuning that are not timed.
SETTLING = 2_000_000_000


class Report:
    """The report of this process; None without `tightfit run`, or without the option."""

    def __init__(self):
        path = os.environ.get("TIGHTFIT_REPORT")
        self.path = path and pathlib.Path(path.replace("%p", str(os.getpid())))
        self.seen = {}

    def is_tuned(self):
        """Whether all kernels are decided, for two seconds now."""
        if not self.path or not self.path.exists():
            return False
        written = self.path.stat().st_mtime_ns
        return written < time.time_ns() - SETTLING and self.is_decided(written)

    def is_decided(self, written):
        """Whether a report written at this time has convolutions, all of them decided."""
        if written not in self.seen:
            found = json.loads(self.path.read_text())
            self.seen[written] = bool(found["kernels"]) and found["totals"].get("undecided") == 0
        return self.seen[written]
