#!/usr/bin/env bash
# Trains on a real GPU under small budgets: networks whose normalizations, sums and concatenations have to be offloaded too.
#
#   cargo build --release; scripts/gpu-vdnn-all.sh OUTPUT [NETWORK:BATCH:BUDGET[:MOMENTUM] ..]
#
# For each case and policy a line of JSON in OUTPUT/vdnn-all.jsonl: what was planned and what was used, of 5 steps with
# --check. The last two lines of a case train with memory-optimal, deterministic algorithms, offloaded in the budget and
# resident without one: their losses have to be equal. TIGHTFIT (target/release/tightfit) is the command; measurements of
# this device and its libraries are taken from the recordings in the repository. A line takes up to CASE_SECONDS (120).
set -u
cd "$(dirname "$0")/.."
tightfit=${TIGHTFIT:-target/release/tightfit} output=$1
shift
mkdir -p "$output"
[ $# -gt 0 ] || set -- resnet50:64:2GiB densenet40:256:4GiB vgg19:256:12GiB:0
export TIGHTFIT_CACHE=$output/vdnn-all.db
"$tightfit" cache import profiles/recorded/h200-2026-11-21.jsonl.gz profiles/recorded/h200-2026-11-21-later.jsonl.gz

# train LABEL OPTIONS ..
train() {
    label=$1 && shift
    timeout "${CASE_SECONDS:-120}" "$tightfit" train "$network" --batch "$batch" --momentum "${momentum:-0.9}" "$@" \
        --learning-rate 1e-6 --data synthetic --steps 5 --check --backend cuda --format json \
        >"$output/one.json" 2>>"$output/vdnn-all.log"
    python3 scripts/gpu_train/line.py "$case" "$label" $? "$output/one.json" >>"$output/vdnn-all.jsonl"
}

for case in "$@"; do
    IFS=: read -r network batch budget momentum <<<"$case"
    train vdnn-all --policy vdnn-all --budget "$budget"
    train vdnn-dynamic --policy vdnn-dynamic --budget "$budget"
    train offloaded --policy vdnn-all --algorithms memory --divide off --deterministic --budget "$budget"
    train resident --policy baseline --algorithms memory --divide off --deterministic --budget unlimited
done
cat "$output/vdnn-all.jsonl"
