#!/usr/bin/env python3
"""Runs random programs that change, plain and fitted, and compares every bit.

    changing-programs.py FROM TO [--jobs N] [--limit SECONDS] [--seconds SECONDS] [--reports FILE]
    changing-programs.py SEED --shrink

Prints a line for each program that fails, and a table at the end. A program is a number: see ``tests_torch/changing_programs.py``.
With --reports, FILE gets a JSON line for each program as it ends; a program that is in FILE is not run again.
"""

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TIGHTFIT_QUIET", "1")

import tightfit.torch as tt  # noqa: E402
import torch  # noqa: E402
from changing_steps import CHANGES, FROZEN, OUTSIDE, Program, Side  # noqa: E402
from tightfit._budget.api import session_of  # noqa: E402
from tightfit._budget.plan import bind, decide, fitted, make, simulate, unread  # noqa: E402
from tightfit._budget.plan import liveness as rebuild  # noqa: E402
from tightfit._budget.record import cost  # noqa: E402
from tightfit.errors import DoesNotFit  # noqa: E402

LIMIT_SECONDS = 300
# Plain runs that show whether a program repeats itself, where a fitted one has other bits.
RUNS = 6


def random_decisions(rng, built, lives, recorder):
    """Decisions for a random part of the tensors that may be given up, in the form that is carried out. The planner might make each of them."""
    share, reruns = rng.choice([0.3, 0.7, 1.0, 1.0]), rng.choice([0.0, 0.5, 0.8, 1.0, 1.0])
    wanted = [tensor for tensor, movable in enumerate(lives.movable) if movable and lives.saved[tensor] and lives.first_backward[tensor] >= 0]
    wanted = [tensor for tensor in wanted if rng.random() < share]
    rng.shuffle(wanted)
    kinds = {tensor: ("recompute", "offload") if rng.random() < reruns else ("offload",) for tensor in wanted}

    def with_all(decisions, tensors, place):
        """These decisions and others, if they can be carried out together."""
        try:
            tried = {**decisions, **{tensor: decision(rng, lives, tensor, kinds[tensor][place]) for tensor in tensors}}
            simulate.simulate(lives, tried)
            bind.bind(built, lives, tried, recorder)
        except rebuild.Impossible:
            return None
        return tried

    decisions = {}
    several = max(1, len(wanted) // 12)
    for begin in range(0, len(wanted), several):
        group = wanted[begin : begin + several]
        tried = with_all(decisions, group, 0)
        if tried is not None:
            decisions = tried
            continue
        for tensor in group:
            found = (with_all(decisions, [tensor], place) for place in range(len(kinds[tensor])))
            decisions = next((one for one in found if one is not None), decisions)
    return decisions


def decision(rng, lives, tensor, kind):
    first, last = lives.first_backward[tensor], lives.last_forward[tensor]
    if kind == "offload":
        begin = max(lives.first[tensor], 0)
        fetch = rng.choice([first, max(lives.backward_start, first - rng.randint(0, 12))])
        return {"tensor": tensor, "decision": kind, "offload_after": begin, "release_after": last, "prefetch_before": fetch, "rebuilt": []}
    operations = rebuild.closure(lives, tensor)
    entries = [{"before": first, "operations": operations}]
    readers = [index for index in range(first + 1, len(lives.operations)) if tensor in lives.operations[index]["reads"]]
    if readers and rng.random() < 0.3:
        entries.append({"before": rng.choice(readers), "operations": operations})
    return {"tensor": tensor, "decision": kind, "offload_after": None, "release_after": last, "prefetch_before": None, "rebuilt": entries}


@contextlib.contextmanager
def settings(rng, sure):
    """Thresholds for small tensors, and plans at random instead of the planner's, in part of the programs; answers whether they are. After `sure`
    steps of a plan, calls are no longer noted for dropped tensors."""
    at_random = rng.random() < 0.75
    values = {
        "LEAST_BYTES": rng.choice([64, 256, 1024]),
        "HARMLESS_BYTES": rng.choice([64, 256, 1024, 1 << 20]),
        "SMALL_BYTES": rng.choice([64, 256, 1024, 1 << 20]),
    }
    # Modules that import a threshold have their own copy.
    ours = [module for name, module in list(sys.modules.items()) if name.startswith("tightfit._budget.")]
    changes = [(module, name, value) for module in ours for name, value in values.items() if hasattr(module, name)]
    changes += [(decide, "HURRIED_SECONDS", (0.05, 0.05)), (decide, "FEW_SECONDS", 0.05), (decide, "PLAN_SECONDS", 0.05)]
    changes += [(unread, "fills", True), (fitted, "SURE_PASSES", sure)]
    changes += [(decide, "LONG_SECONDS", 0.05), (decide, "LEAST_SECONDS", (0.2, 0.2))]
    if at_random:

        def within(budget, built, lives, recorder, *others):
            signs = rng.choice([None, lambda _: True, lambda _: rng.random() < 0.5])
            found = unread.droppable(built, lives, recorder, signs)
            if found and (share := rng.choice([0.0, 0.5, 1.0, 1.0, 1.0])):
                some = {tensor: made for tensor, made in found.items() if rng.random() < share}
                built = unread.without(built, lives, some, recorder, cost.rates_of(torch.device("cpu")))
                lives = rebuild.Lives(built.data)
            decisions = random_decisions(rng, built, lives, recorder)
            plain = simulate.simulate(lives, {})
            found = bind.bind(built, lives, decisions, recorder) if decisions or built.dropped else None
            return decide.Decided(decisions, dataclasses.replace(found.outcome if found else plain, peak=1), plain, True), found

        changes.append((make, "_within", within))
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield at_random
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def budget_of(rng, program, at_random):
    if at_random:
        return 1 << 40
    with torch.random.fork_rng():
        planned = tt.plan(copy.deepcopy(program.model), Side(program, program.model).input(0), optimizer=Side(program, program.model).optimizer)
        return int(planned.least * rng.choice([1.02, 1.1, 1.3]))


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def difference(one, other):
    """The first that two steps have left behind otherwise, in words."""
    if one.keys() != other.keys():
        return f"{sorted(one.keys() ^ other.keys())[:3]} on one side only"
    for name, value in one.items():
        if value.shape != other[name].shape or value.dtype != other[name].dtype:
            return f"{name} has another form"
        if not torch.equal(bits(value), bits(other[name])):
            return f"{name} is off by {(value.double() - other[name].double()).abs().max().item():.3g}"
    return None


def report_of(seed, result, what="", program=""):
    """The report of a program before anything is counted."""
    return {"seed": seed, "result": result, "what": what, "program": program, "calls": 0, "fetched": 0, "dropped": 0, "masked": 0, "unplanned": 0}


def compare(seed, left_out=()):
    """Runs a program plain and fitted. Returns the result: equal, plain raised, fitted only raised, wrong bits, or no plan."""
    program = Program(seed, left_out)
    rng = program.rng("plan")
    report = report_of(seed, "equal", program="; ".join(program.words))
    with settings(rng, program.rng("sure").choice([1, 2, 16])) as at_random:
        try:
            budget = budget_of(rng, program, at_random)
        except Exception as error:
            return {**report, "result": "no plan", "what": str(error)}
        plain, under = Side(program, program.model), Side(program, copy.deepcopy(program.model))
        again = copy.deepcopy(program.model)
        host = rng.choice(["1KiB", None]) if not at_random else None
        tt.fit(under.model, budget, optimizer=under.optimizer, host_budget=host)
        try:
            report.update(_steps(program, plain, under))
        finally:
            last = session_of(under.model).last
            if last is not None:
                report.update(calls=last.counts.calls, fetched=last.counts.fetched, dropped=last.counts.dropped, masked=last.counts.masked, unplanned=last.counts.unplanned)
            tt.unfit(under.model)
    if report["result"] == "wrong bits" and not _repeats(program, again):
        report["result"] = "not the same twice"
    return report


def _steps(program, plain, under):
    for n in range(program.steps):
        try:
            wanted = plain.step(n)
        except Exception as error:
            return {"result": "plain raised", "what": f"step {n}: {str(error)[:150]}"}
        try:
            found = under.step(n)
        except DoesNotFit as error:
            return {"result": "does not fit", "what": f"step {n}: {str(error)[:150]}"}
        except Exception as error:
            if "now something else asks for it" in str(error):
                return {"result": "asked late", "what": f"step {n}: {str(error)[:150]}"}
            where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)][-4:]
            return {"result": "fitted only raised", "what": f"step {n}: {type(error).__name__} {str(error)[:300]} at {' '.join(where)}"}
        if what := difference(wanted, found):
            return {"result": "wrong bits", "what": f"step {n}: {what}"}
    return {}


def _repeats(program, model):
    """Whether the plain program has the same bits in all of several runs."""
    sides = [Side(program, copy.deepcopy(model)) for _ in range(RUNS)]
    try:
        for n in range(program.steps):
            first, *others = [side.step(n) for side in sides]
            if any(difference(first, other) is not None for other in others):
                return False
    except Exception:
        return True
    return True


FAILURES = ("fitted only raised", "wrong bits", "hang", "crash")


def shrink(seed):
    """Leaves out parts of a program that fails as long as it fails."""
    left_out, report = set(), compare(seed)
    wanted = report["result"]
    for number in [*range(CHANGES, CHANGES + 3), FROZEN, OUTSIDE, *range(8)]:
        tried = compare(seed, left_out | {number})
        if tried["result"] == wanted:
            left_out.add(number)
            report = tried
    return sorted(left_out), report


def work():
    """Runs the programs whose numbers come on standard input."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            report = compare(int(line))
        except Exception:
            report = report_of(int(line), "crash", traceback.format_exc()[-600:].replace("\n", " "))
        print(json.dumps(report), flush=True)


def run_plain(seed):
    """Runs a program plain alone."""
    program = Program(seed)
    side = Side(program, program.model)
    for n in range(program.steps):
        side.step(n)


def plain_crashes(seed, limit):
    """Whether the process of the plain program is ended by a signal."""
    try:
        return subprocess.run([sys.executable, __file__, str(seed), "--plain"], timeout=limit, capture_output=True, check=False).returncode < 0
    except subprocess.TimeoutExpired:
        return False


def run_all(seeds, jobs=2, limit=LIMIT_SECONDS, told=lambda report: None, seconds=float("inf")):
    """Runs each program in a separate process, within a time limit; starts none after `seconds`. Returns their reports."""
    waiting, reports, end = queue.SimpleQueue(), [], time.monotonic() + seconds
    for seed in seeds:
        waiting.put(seed)

    def start():
        return subprocess.Popen([sys.executable, __file__, "--work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def serve():
        worker = start()
        while time.monotonic() < end:
            try:
                seed = waiting.get_nowait()
            except queue.Empty:
                break
            timer = threading.Timer(limit, worker.kill)
            timer.start()
            worker.stdin.write(f"{seed}\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            late = not timer.is_alive()
            timer.cancel()
            if line:
                report = json.loads(line)
            else:
                result = "hang" if late else "plain crashed" if plain_crashes(seed, limit) else "crash"
                report = report_of(seed, result, f"over {limit} s" if late else "the process ended")
                worker = start()
            reports.append(report)
            told(report)
        worker.stdin.close()
        worker.wait()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reports


def table(reports):
    """The reports of all programs, summed up in lines."""
    rows = [("programs", len(reports)), ("with something run again", sum(report["calls"] > 0 for report in reports)),
            ("with something offloaded", sum(report["fetched"] > 0 for report in reports)),
            ("with something dropped", sum(report["dropped"] > 0 for report in reports)),
            ("with signs alone", sum(report["masked"] > 0 for report in reports))]  # fmt: skip
    for result in ("equal", "plain raised", "plain crashed", "does not fit", "no plan", "not the same twice", "asked late", *FAILURES):
        rows.append((result, sum(report["result"] == result for report in reports)))
    return "\n".join(f"{name:26} {count:7}" for name, count in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int, nargs="?")
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for each program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no program after so long")
    parser.add_argument("--reports", type=Path, metavar="FILE", help="append a JSON line for each program, and leave out the programs that are there")
    parser.add_argument("--shrink", action="store_true", help="makes one program that fails smaller")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work()
    if options.plain:
        return run_plain(options.first)
    if options.first is None:
        parser.error("give the first and the last number")
    if options.shrink:
        left_out, report = shrink(options.first)
        print(f"left out {left_out}\n{report}")
        return None

    there = []
    if options.reports is not None and options.reports.exists():
        there = [json.loads(line) for line in options.reports.read_text().splitlines()]
    ran, writing = {report["seed"] for report in there}, threading.Lock()

    def told(report):
        if report["result"] in FAILURES:
            print(f"{report['seed']}: {report['result']}: {report['what']} | {report['program']}", flush=True)
        if options.reports is not None:
            with writing, options.reports.open("a") as file:
                file.write(json.dumps(report) + "\n")

    seeds = [seed for seed in range(options.first, options.last) if seed not in ran]
    reports = [report for report in there if options.first <= report["seed"] < options.last]
    reports += run_all(seeds, options.jobs, options.limit, told, options.seconds)
    print(table(reports))
    return sys.exit(any(report["result"] in FAILURES for report in reports))


if __name__ == "__main__":
    main()
