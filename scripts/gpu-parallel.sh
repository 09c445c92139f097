#!/usr/bin/env bash
# Profiles on one, two, four .. GPUs, from nothing: wall-clock time, measurements of each device, and whether the caches agree.
#
#   cargo build --release; scripts/gpu-parallel.sh OUTPUT
#
# Lines of JSON in OUTPUT/parallel.jsonl: AlexNet and ResNet-50 with all kernels, and one kernel of AlexNet alone; every line
# has the ratio of its times to one GPU's (tenth, median, ninth tenth). TIGHTFIT (target/release/tightfit) is the
# command; a line takes up to SECONDS_EACH (200).
set -u
cd "$(dirname "$0")/.."
tightfit=${TIGHTFIT:-target/release/tightfit} output=$1
mkdir -p "$output"

measure() { # NAME ARGUMENTS ..
    name=$1 && shift
    cache=$output/$name-$count
    rm -f "$cache.db"*
    timeout "${SECONDS_EACH:-200}" "$tightfit" profile "$@" --devices "$devices" --backend cuda --cache "$cache.db" \
        --format json >"$cache.json" 2>>"$output/parallel.log" || return
    "$tightfit" cache export "$cache.jsonl" --cache "$cache.db" >>"$output/parallel.log" 2>&1
    python3 scripts/gpu_run/agreement.py "$name" "$output/$name-1" "$cache" "$*" | tee -a "$output/parallel.jsonl"
    rm -f "$cache.db"*
}

gpus=$(nvidia-smi --list-gpus | wc -l)
for ((count = 1; count <= gpus; count *= 2)); do
    devices=$(seq -s , 0 $((count - 1)))
    measure conv2-all alexnet-1col --batch 256 --layers conv2 --operations forward --workspace 64MiB --sizes all
    for sizes in fit power-of-two; do
        measure "alexnet-$sizes" alexnet --batch 256 --workspace 64MiB --sizes $sizes
        measure "resnet50-$sizes" resnet50 --batch 256 --workspace 64MiB --sizes $sizes
    done
done
