#!/usr/bin/env bash
# Measures training within a budget on this machine's GPU: what docs/results.md reports of `tightfit.torch.fit`.
#
# usage: scripts/gpu-fit.sh OUTPUT [CASE ..]
#
# One process a case: plain, a checkpoint a block, ours at 80, 60 and 40% of plain's measured peak and at the least budget, and
# plain again; a JSON line each, in OUTPUT/fit.jsonl, standard error in OUTPUT/fit.log. `smoke` is a small case that takes
# seconds: run it first. PYTHON (python3) needs torch and torchvision, and tightfit or this checkout. SHARES ("80 60 40"),
# STEPS (10) and OPTIONS (such as --benchmark or --third, a third of the multiprocessors) choose what is measured.
set -u
here=$(cd "$(dirname "$0")" && pwd)
output=$1
shift
mkdir -p "$output"
[ $# -gt 0 ] || set -- smoke resnet50:256 vitl:128 vae:4 unet3d:2
for case in "$@"; do
    begin=$SECONDS
    # shellcheck disable=SC2086 # several options on purpose
    PYTHONPATH=$here/../crates/python/python${PYTHONPATH:+:$PYTHONPATH} timeout "${SECONDS_EACH:-240}" "${PYTHON:-python3}" \
        "$here/gpu_run/fit.py" --shares ${SHARES:-80 60 40} --steps "${STEPS:-10}" ${OPTIONS:-} --case "$case" \
        >>"$output/fit.jsonl" 2>>"$output/fit.log" || echo "{\"case\": \"$case\", \"exit\": $?}" >>"$output/fit.jsonl"
    echo "== $case: $((SECONDS - begin)) s" >&2
done
cat "$output/fit.jsonl"
