#!/usr/bin/env bash
# Slices along space on this machine's GPU: what "A mini-batch of 1" of docs/results.md reports. About seven minutes.
#
# usage: scripts/gpu-slices.sh FOLDER OUTPUT
#
# FOLDER holds tightfit and libtightfit_preload.so. Two large layers alone (scripts/large-samples.txt) at several limits, into
# OUTPUT/large-*.json; then decoders in PyTorch, plain and under `run` with a cold cache, a process each, into OUTPUT/run.jsonl.
# PYTHON (python3) is the environment's interpreter.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd) output=$2 python=${PYTHON:-python3}
mkdir -p "$output"
export TIGHTFIT_PRELOAD=$folder PYTHONUNBUFFERED=1

layers() { # LIMIT TYPES
    timeout 100 "$folder/tightfit" optimize "$here/large-samples.txt" --workspace "$1" --types "$2" --backend cuda \
        --cache "$output/layers.db" --format json >"$output/large-$1-$2.json" 2>>"$output/layers.log"
}

plain() {
    timeout 60 "$python" "$here/gpu_run/anytime.py" --label plain --seconds 2 "$@" >>"$output/run.jsonl" 2>>"$output/run.log"
}

under() { # LIMIT OPTIONS AND CASE
    limit=$1 && shift
    TIGHTFIT_CACHE=$output/run.db timeout 90 "$folder/tightfit" run --workspace "$limit" -- \
        "$python" "$here/gpu_run/anytime.py" --label "run-$limit" --seconds 14 "$@" >>"$output/run.jsonl" 2>>"$output/run.log"
    rm -f "$output/run.db"*
}

for limit in 64MiB 128MiB 256MiB; do layers "$limit" bf16; done
for types in tf32 f32; do layers 64MiB "$types"; done
for case in imagedecoder:1:fp16 videodecoder:1:tf32; do
    for passes in --inference ""; do
        # shellcheck disable=SC2086 # none or one option
        plain $passes "$case"
        # shellcheck disable=SC2086
        for limit in 64MiB 256MiB; do under "$limit" $passes "$case"; done
    done
done
under auto imagedecoder:1:fp16
plain imagedecoder:2:fp16
under 64MiB imagedecoder:2:fp16
rm -f "$output/layers.db"*
