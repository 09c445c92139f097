#!/usr/bin/env bash
# Training on a real GPU. For each case every policy's step, under an arena of 12 GiB and under the whole card, how much
# kernels slow down while copies run, and right behind it PyTorch on the same network.
#
#   cargo build --release -p tightfit-train --example gpu-train
#   scripts/gpu-train.sh [NETWORK:BATCH ..]          without words: all cases
#
# Needs the built gpu-train (GPU_TRAIN), peers.py (PEERS) and the recording of convolutions (RECORDING). To $OUT (here by
# default) go gpu-train.jsonl and peers.jsonl, a line as soon as it is known, gpu-train.log, and the cache of measurements.
# BUDGET (12GiB) and STEPS (3; 1 for steps of over a second). After BEGIN_SECONDS (45) of a case's steps no further variant
# is begun; after CASE_SECONDS (150) a program is stopped, with a line in its results; PEER_SECONDS (90) is the same for PyTorch. PARTS
# ("time copies peers") chooses the measurements.
# A case takes about a minute, and more where a step takes seconds (vgg19:256, vgg116, vgg516) or where the recording
# does not have its convolutions.
#
# Several GPUs of one machine each take a part, with a separate folder; so for four:
#
#   part() { gpu=$1; shift; mkdir -p "$OUT/$gpu"; CUDA_VISIBLE_DEVICES=$gpu OUT=$OUT/$gpu scripts/gpu-train.sh "$@" & }
#   part 0 alexnet-1col:128 overfeat:128 googlenet:128; part 1 vgg19:64 vgg19:128 resnet50:64
#   part 2 vgg19:256 vgg116:32; part 3 vgg516:32; wait
set -u
cd "$(dirname "$0")/.."
out=${OUT:-.}
tool=${GPU_TRAIN:-target/release/examples/gpu-train}
recording=${RECORDING:-profiles/recorded/h200-2026-11-21.jsonl.gz}
cache=$out/gpu-train.db
parts=${PARTS:-time copies peers}
[ $# -gt 0 ] || set -- alexnet-1col:128 overfeat:128 googlenet:128 vgg19:64 vgg19:128 vgg19:256 resnet50:64 \
    vgg116:32 vgg516:32
case ${1:-} in -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;; esac
mkdir -p "$out"

# Runs a program for at most this number of seconds: limited SECONDS RESULTS CASE PROGRAM ..
limited() {
    local seconds=$1 results=$2 case=$3
    shift 3
    timeout "$seconds" "$@"
    local code=$?
    [ $code -eq 0 ] && return
    [ $code -eq 124 ] && why="stopped after $seconds s" || why="exit code $code"
    printf '{"case": "%s", "failed": "%s"}\n' "$case" "$why" >>"$results"
    echo "$case: $why: $*"
}

run() {
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.used --format=csv,noheader
    "$tool" profile "$cache" "$recording"
    for case in "$@"; do
        SECONDS=0
        limited "${CASE_SECONDS:-150}" "$out/gpu-train.jsonl" "$case" "$tool" profile "$cache" - "$case"
        [[ $parts != *time* ]] || limited "${CASE_SECONDS:-150}" "$out/gpu-train.jsonl" "$case" \
            "$tool" time "$cache" "$out/gpu-train.jsonl" "${BUDGET:-12GiB}" "${STEPS:-3}" "${BEGIN_SECONDS:-45}" "$case"
        [[ $parts != *copies* ]] || limited "${CASE_SECONDS:-150}" "$out/gpu-train.jsonl" "$case" \
            "$tool" copies "$cache" "$out/gpu-train.jsonl" "${STEPS:-3}" "$case"
        [[ $parts != *peers* ]] || for way in plain checkpoint save_on_cpu; do
            limited "${PEER_SECONDS:-90}" "$out/peers.jsonl" "$case" \
                python3 "${PEERS:-scripts/gpu_train/peers.py}" "$out/peers.jsonl" "$case" "$way"
        done
        echo "$case: $SECONDS s"
    done
}
run "$@" 2>&1 | tee "$out/gpu-train.log"
