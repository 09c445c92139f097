"""Tables that other scripts print."""

import subprocess
import sys

from .tables import ROOT

DEEPBENCH = "scripts/paper-figures.py deepbench"
SCRIPTS = {
    "mucudnn-figure-8": f"{DEEPBENCH} deepbench-x4:f16:64MiB profiles/recorded/h200-2026-11-21-more.jsonl.gz profiles/recorded/h200-2026-11-22.jsonl.gz",
    "mucudnn-figure-8-f32": f"{DEEPBENCH} deepbench-x4:f32:64MiB profiles/recorded/h200-2026-11-22.jsonl.gz",
}


def text(script: str, tightfit: str) -> str:
    """The script's command, and its output."""
    command = [sys.executable, *script.split(), "--tightfit", tightfit]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    rest = [line for line in lines if not line.startswith("|")]
    return "\n".join([f"`{script}`", "", *rows, "", *rest]) + "\n"
