"""The trace that `tightfit run --trace` writes: whole whatever ends the program, and of a program that runs as without it."""

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter

import pytest
from fit_support import PACKAGE

PROGRAM = """
import os, sys, time, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 3, 32, 32)
steps = int(sys.argv[1])
step = 0
while step != steps:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    print("step", step, loss.item().hex(), flush=True)
"""
# Copies take so long that what can is computed again.
SLOW = """
import dataclasses, torch
from tightfit._budget.record import cost
cost._CPU = dataclasses.replace(cost._CPU, link=1e6)
"""


def start(folder, steps, trace="run.json", program=PROGRAM, budget="60%", **options):
    """A program as `tightfit run --budget --trace` starts it."""
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE / '_budget/site'}:{PACKAGE.parent}", "TIGHTFIT_BUDGET": budget, "TIGHTFIT_QUIET": "0"}
    if trace:
        environment["TIGHTFIT_TRACE"] = str(folder / trace)
    command = [sys.executable, "program.py", str(steps)]
    # A shell's background processes ignore Ctrl-C.
    options.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def checked(folder, trace="run.json"):
    """The events of a trace, which must be whole: each span has its track, and none on the track of phases begins within another."""
    data = json.loads((folder / trace).read_text())
    about, events = data["otherData"], data["traceEvents"]
    assert about["device"] == "this CPU" and about["budget"] and about["memory"] == "resident memory of the process"
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(tracks[event["tid"]], event) for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for _, event in spans)
    phases = sorted((event["ts"], event["ts"] + event["dur"]) for track, event in spans if track == "phases")
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(phases))
    memory = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert memory and min(memory) > 1 << 20
    return about, spans


@pytest.mark.parametrize("slow", [False, True])
def test_phases_copies_and_reruns_are_traced_and_nothing_else_changes(slow, tmp_path):
    program = SLOW + PROGRAM if slow else PROGRAM
    plain, traced = start(tmp_path, 10, None, program), start(tmp_path, 10, program=program)
    (expected, _), (out, error) = plain.communicate(), traced.communicate()
    assert traced.returncode == 0 and out == expected, error
    last = f"tightfit: the trace of 10 steps is in {tmp_path / 'run.json'}, and the page with its memory in {tmp_path / 'run.html'}"
    assert error.splitlines().count(last) == 1, error
    about, spans = checked(tmp_path)
    assert about["steps"] == 10 and about["models"][0]["plain_bytes"] > about["models"][0]["peak_bytes"]
    found = Counter((track, event["name"].split(" ")[0]) for track, event in spans)
    assert found["steps", "step"] == found["phases", "forward:"] == found["phases", "backward"] == found["phases", "update:"] == 10
    moved = [event["args"]["bytes"] for track, event in spans if track == "copies to the host"]
    back = [event["args"]["bytes"] for track, event in spans if track == "copies from the host"]
    if slow:
        assert sum(count for (track, _), count in found.items() if track == "reruns") >= 10
    else:
        assert moved and len(moved) % 10 == 0 and sum(moved) == sum(back)
    page = (tmp_path / "run.html").read_text()
    assert page.count("<svg") == 2 and "this CPU" in page and "a budget is only rehearsed" in page
    assert {file.name for file in tmp_path.glob("run*")} == {"run.html", "run.json"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_program_leaves_a_whole_trace(how, tmp_path):
    running = start(tmp_path, -1)
    for line in running.stdout:
        if line.startswith("step 11 "):
            break
    running.send_signal(how)
    running.communicate()
    assert running.returncode in (-how, 128 + how, 1)
    about, spans = checked(tmp_path)
    # The step that was cut off at most is missing.
    assert about["steps"] >= 10 and sum(track == "steps" for track, _ in spans) == about["steps"]
    assert "<svg" in (tmp_path / "run.html").read_text()


def test_a_full_disk_costs_what_does_not_fit_alone(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, 40 << 10))

    plain, traced = start(tmp_path, 20, None), start(tmp_path, 20, preexec_fn=limit)
    (expected, _), (out, error) = plain.communicate(), traced.communicate()
    assert traced.returncode == 0 and out == expected, error
    assert error.count("cannot write the trace") == 1 and "File too large" in error and "the trace of" not in error
    about, spans = checked(tmp_path)
    assert 0 < about["steps"] < 20 and sum(track == "steps" for track, _ in spans) == about["steps"]


def test_a_folder_that_is_gone_costs_the_trace_alone(tmp_path):
    traced = start(tmp_path, 2, "gone/run.json")
    out, error = traced.communicate()
    assert traced.returncode == 0 and "step 2" in out and error.count("cannot write the trace") == 1, error


def test_the_first_steps_are_traced(tmp_path):
    traced = start(tmp_path, 105, program=PROGRAM.replace("32, 32", "4, 4"), budget="1GiB")
    out, error = traced.communicate()
    assert traced.returncode == 0 and "step 105" in out, error
    assert error.count("the trace of 100 steps is in") == 1 and "run.html; the program goes on without it" in error
    assert checked(tmp_path)[0]["steps"] == 100


FORKS = """
import os, time, torch
from torch import nn
if child := os.fork():
    os.waitpid(child, 0)
model, x = nn.Linear(64, 64), torch.randn(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3 if child else 1):
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_a_forked_child_writes_no_trace_and_each_process_has_its_own_under_p(tmp_path):
    traced = start(tmp_path, 0, "run-%p.json", FORKS, "1GiB")
    _, error = traced.communicate()
    assert traced.returncode == 0, error
    assert checked(tmp_path, f"run-{traced.pid}.json")[0]["steps"] == 3
    assert len(list(tmp_path.glob("run-*.json"))) == 1
