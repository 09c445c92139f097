#!/usr/bin/env bash
# Training on a real GPU: every policy's bits, every policy's step under an arena of 12 GiB, and PyTorch on the same networks.
# Carries target/gpu/train/{gpu-train,peers.py}; results go to $OUT (here by default), the cache of measurements as well.
#   cargo build --release -p tightfit-train --example gpu-train
#   scripts/gpu-train.sh [NETWORK:BATCH ..]
set -u
cd "$(dirname "$0")/.."
out=${OUT:-.}
tool=${GPU_TRAIN:-target/release/examples/gpu-train}
recording=${RECORDING:-profiles/recorded/h200-2026-11-21.jsonl.gz}
cache=$out/gpu-train.db
cases=${*:-alexnet-1col:128 overfeat:128 googlenet:128 vgg19:64 vgg19:128 vgg19:256 resnet50:64 vgg116:32 vgg516:32}
# shellcheck disable=SC2086 # several words on purpose
run() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader
    "$tool" profile "$cache" "$recording"
    timeout "${EQUAL_SECONDS:-600}" "$tool" equal "$cache"
    for case in $cases; do
        timeout "${CASE_SECONDS:-600}" "$tool" time "$cache" "$out/gpu-train.jsonl" 12GiB "${STEPS:-3}" $case
    done
    python3 "${PEERS:-scripts/gpu_train/peers.py}" "$out/peers.jsonl" "${PEERS_SECONDS:-600}"
}
run 2>&1 | tee "$out/gpu-train.log"
