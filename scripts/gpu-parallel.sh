#!/usr/bin/env bash
# Profiles on one and on two GPUs, from nothing: wall-clock time and measurements.
#
#   cargo build --release; scripts/gpu-parallel.sh OUTPUT
#
# Lines of JSON in OUTPUT/parallel.jsonl: all kernels of ResNet-50, and one kernel of AlexNet alone. TIGHTFIT
# (target/release/tightfit) is the command.
set -u
cd "$(dirname "$0")/.."
tightfit=${TIGHTFIT:-target/release/tightfit} output=$1
mkdir -p "$output"
measure() { # DEVICES ARGUMENTS ..
    devices=$1 && shift
    timeout 200 "$tightfit" profile "$@" --devices "$devices" --backend cuda --cache none --format json 2>>"$output/parallel.log" |
        python3 -c 'import json, sys; line = json.load(sys.stdin); print(json.dumps({"devices": sys.argv[1], "arguments": sys.argv[2], "wall_s": line["wall_time_us"] / 1e6, "measured": line["measured"]}))' \
            "$devices" "$*" >>"$output/parallel.jsonl"
}
for devices in 0 0,1; do
    measure $devices alexnet-1col --batch 256 --layers conv2 --operations forward --workspace 64MiB --sizes all
    measure $devices alexnet-1col --batch 256 --layers conv2 --operations forward --workspace 64MiB --sizes power-of-two
    measure $devices alexnet-1col --batch 256 --layers conv2 --operations forward --workspace 64MiB --sizes fit
    measure $devices resnet50 --batch 256 --workspace 64MiB --sizes fit
done
cat "$output/parallel.jsonl"
