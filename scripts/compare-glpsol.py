#!/usr/bin/env python3
"""Allots committed instances with tightfit and with GLPK's glpsol in one run, and compares optima and times.

    scripts/compare-glpsol.py [SHAPE ..]      default: 15x40 159x562, the first seed of each

Needs glpsol on the path (Debian: glpk-utils) and cargo. Times of glpsol are of its whole process, with reading the
program; GLPK counts in floating point, so its optimum may be off by its tolerance.
"""

import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

LIMIT_S = 120


def instances(shape):
    """The three instances of the first seed: (name, kernels, total)."""
    with gzip.open(pathlib.Path("benches/instances") / f"{shape}.txt.gz", "rt") as file:
        lines = [line.split() for line in file]
    end = next(at for at, words in enumerate(lines) if words[0] == "totals")
    fronts = [[tuple(map(int, point.split(":"))) for point in words[1:]] for words in lines[1 : end - 1]]
    kernels = [fronts[int(front)] for front in lines[end - 1][1:]]
    return [
        (f"{lines[0][1]} {share} %", kernels, int(total)) for share, total in zip((5, 25, 60), lines[end][1:])
    ]


def program(kernels, total):
    """The 0-1 program in CPLEX format; workspace in MiB and time in microseconds, as GLPK's tolerances ask for."""
    points = [(f"x{k}_{p}", w, t) for k, front in enumerate(kernels) for p, (w, t) in enumerate(front)]
    lines = ["Minimize", "time:"] + [f" + {t / 1e3:.3f} {x}" for x, _, t in points]
    lines += ["Subject To", "total:"] + [f" + {w / 2**20:.10f} {x}" for x, w, _ in points] + [f" <= {total / 2**20:.10f}"]
    for k, front in enumerate(kernels):
        lines.append(f"k{k}: " + " + ".join(f"x{k}_{p}" for p in range(len(front))) + " = 1")
    return "\n".join(lines + ["Binary"] + [f" {x}" for x, _, _ in points] + ["End", ""])


def glpsol(kernels, total):
    """Milliseconds and the optimum in nanoseconds; no optimum where time ran out."""
    with tempfile.TemporaryDirectory() as folder:
        lp, out = pathlib.Path(folder, "p.lp"), pathlib.Path(folder, "out")
        lp.write_text(program(kernels, total))
        start = time.perf_counter()
        subprocess.run(
            ["glpsol", "--lp", lp, "-o", out, "--cuts", "--tmlim", str(LIMIT_S)], check=True, stdout=subprocess.DEVNULL
        )
        ms = (time.perf_counter() - start) * 1e3
        text = out.read_text()
    optimal = "INTEGER OPTIMAL" in text
    found = re.search(r"Objective:.*= +([-+.e\d]+)", text)
    return ms, float(found[1]) * 1e3 if optimal and found else None


def tightfit():
    """Milliseconds and time in nanoseconds of every instance, by name."""
    command = ["cargo", "run", "-q", "--release", "-p", "tightfit-conv", "--example", "allot-instances", "--", "--each"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^  (\S+ \d+ %) +([\d.]+) ms +(\d+) ns", text, re.MULTILINE)
    return {name: (float(ms), int(nanos)) for name, ms, nanos in rows}


def main():
    if shutil.which("glpsol") is None:
        sys.exit("glpsol is not installed (Debian: apt-get install glpk-utils)")
    ours = tightfit()
    print(f"{'instance':<24} {'tightfit ms':>11} {'glpsol ms':>11} {'ratio':>8}  optimum")
    for shape in sys.argv[1:] or ["15x40", "159x562"]:
        for name, kernels, total in instances(shape):
            ms, nanos = ours[name]
            glpk_ms, optimum = glpsol(kernels, total)
            if optimum is None:
                verdict = f"glpsol stopped at {LIMIT_S} s"
            elif abs(optimum - nanos) <= 1e-6 * nanos:
                verdict = "equal"
            else:
                verdict = f"glpsol {(optimum - nanos) / nanos:+.1e}"
            print(f"{name:<24} {ms:>11.3f} {glpk_ms:>11.1f} {glpk_ms / ms:>7.0f}x  {verdict}", flush=True)


if __name__ == "__main__":
    main()
