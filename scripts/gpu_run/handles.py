#!/usr/bin/env python3
"""What else in a process makes its steps' launches slower: one JSON line after each step of a list.

usage: python scripts/gpu_run/handles.py CASE
"""
import ctypes, json, statistics, sys, time, threading
import torch
from models import build, loss_of
network, batch, precision = sys.argv[1].split(":")
model, x, target = build(network, int(batch), precision)
solver = torch.optim.SGD(model.parameters(), lr=0.0)
def step():
    solver.zero_grad(set_to_none=True)
    loss_of(model, x, target).backward()
    solver.step()
def queue():
    torch.cuda.synchronize()
    begin = time.perf_counter(); step(); return 1e3 * (time.perf_counter() - begin)
def tell(name):
    for _ in range(5): step()
    print(json.dumps({"after": name, "case": sys.argv[1], "queue_ms": [round(statistics.median(queue() for _ in range(15)), 2) for _ in range(3)]}), flush=True)
for _ in range(10): step()
tell("begin")
cudnn = ctypes.CDLL([l.split()[-1] for l in open("/proc/self/maps") if "libcudnn.so.9" in l][0])
cuda = ctypes.CDLL("libcuda.so.1")
handles = []
def create():
    torch.cuda.set_device(0)
    h = ctypes.c_void_p(); print(cudnn.cudnnCreate(ctypes.byref(h)), flush=True); handles.append(h)
for n in range(3):
    t = threading.Thread(target=create); t.start(); t.join(); tell(f"handle {n+1}")
streams = []
for n in range(4):
    s = ctypes.c_void_p(); cuda.cuStreamCreate(ctypes.byref(s), 1); streams.append(s)
tell("4 streams that do not block")
torch.cuda.synchronize()
for h in handles: cudnn.cudnnDestroy(h)
tell("no handles")
p = ctypes.c_void_p(); cuda.cuMemAllocAsync(ctypes.byref(p), ctypes.c_size_t(1 << 30), None); cuda.cuMemFreeAsync(p, None); torch.cuda.synchronize()
tell("a pool")
s = ctypes.c_void_p(); cuda.cuStreamCreate(ctypes.byref(s), 0)
tell("a stream that blocks")
