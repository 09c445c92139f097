#!/usr/bin/env bash
# Measures training within a budget on this machine's GPU, for the figures of `tightfit.torch.fit` in docs/results.md.
#
# usage: scripts/gpu-fit.sh OUTPUT [CASE ..]
#
# Each case is one process with a time limit (SECONDS_EACH, 300). It runs plain, a checkpoint per block, ours at 102,
# 80, 60 and 40% of plain's measured peak, with --least at the least budget and 1% below it, and plain again. Then come
# `save_on_cpu`, the same on a separate stream, and `torch.compile` with half of an `activation_memory_budget`.
#
# A JSON line each, written as it is measured, goes to OUTPUT/fit.jsonl; a failure has a line and loses no other.
# Standard error goes to OUTPUT/fit.log, and the recorded step of each budget that is met to OUTPUT/steps. Measured
# times of operations are kept in OUTPUT, so only a case's first budget measures. `smoke` is a small case: run it first,
# with PEERS="" in seconds.
#
# PYTHON (python3) needs torch and torchvision. The extension module of tightfit is this checkout's, or else NATIVE
# (.gpu/_native.abi3.so), a release build: planning is slow without. SHARES ("80 60 40"), STEPS (8), PEERS ("checkpoint
# offload streams compile") and OPTIONS (--least, --bits 20, --types tf32, --benchmark)
# choose the measurements.
set -u
here=$(cd "$(dirname "$0")" && pwd)
output=$1
shift
mkdir -p "$output"
[ $# -gt 0 ] || set -- smoke resnet50:256 vitl:128 convnextb:128 vae:4 unet2d:16 unet3d:2 detector:8
package=$here/../crates/python/python/tightfit
[ -e "$package/_native.abi3.so" ] || cp "${NATIVE:-$here/../.gpu/_native.abi3.so}" "$package/_native.abi3.so" || exit 2
export TIGHTFIT_CACHE=${TIGHTFIT_CACHE:-$output/cache.db} PYTHONUNBUFFERED=1
for case in "$@"; do
    begin=$SECONDS
    # shellcheck disable=SC2086 # several options on purpose
    PYTHONPATH=$here/../crates/python/python${PYTHONPATH:+:$PYTHONPATH} timeout "${SECONDS_EACH:-300}" "${PYTHON:-python3}" \
        "$here/gpu_run/fit.py" --shares ${SHARES-80 60 40} --steps "${STEPS:-8}" \
        --save "$output/steps" --peers ${PEERS-checkpoint offload streams compile} ${OPTIONS:-} --case "$case" \
        >>"$output/fit.jsonl" 2>>"$output/fit.log" || echo "{\"case\": \"$case\", \"exit\": $?}" >>"$output/fit.jsonl"
    echo "== $case: $((SECONDS - begin)) s" >&2
done
cat "$output/fit.jsonl"
