#!/usr/bin/env bash
# Trains on a real GPU under small budgets: networks whose normalizations, sums and concatenations have to be offloaded too.
#
#   cargo build --release; scripts/gpu-vdnn-all.sh OUTPUT [NETWORK:BATCH:BUDGET[:MOMENTUM] ..]
#
# For each case and policy a line of JSON in OUTPUT/vdnn-all.jsonl: what was planned and what was used, of 5 steps with
# --check. TIGHTFIT (target/release/tightfit) is the command; measurements of this device and its libraries are taken
# from the recordings in the repository. A case takes up to CASE_SECONDS (120).
set -u
cd "$(dirname "$0")/.."
tightfit=${TIGHTFIT:-target/release/tightfit} output=$1
shift
mkdir -p "$output"
[ $# -gt 0 ] || set -- resnet50:64:2GiB densenet40:256:4GiB vgg19:256:12GiB:0
export TIGHTFIT_CACHE=$output/vdnn-all.db
"$tightfit" cache import profiles/recorded/h200-2026-11-21.jsonl.gz profiles/recorded/h200-2026-11-21-later.jsonl.gz
for case in "$@"; do
    IFS=: read -r network batch budget momentum <<<"$case"
    for policy in vdnn-all vdnn-dynamic; do
        timeout "${CASE_SECONDS:-120}" "$tightfit" train "$network" --batch "$batch" --budget "$budget" --policy "$policy" \
            --momentum "${momentum:-0.9}" --learning-rate 1e-6 --data synthetic --steps 5 --check --backend cuda --format json \
            >"$output/one.json" 2>>"$output/vdnn-all.log"
        code=$?
        python3 - "$case" "$policy" "$code" "$output/one.json" >>"$output/vdnn-all.jsonl" <<'PYTHON'
import json, sys
case, policy, code, path = sys.argv[1:]
line = {"case": case, "policy": policy, "exit": int(code)}
try:
    line.update({key: value for key, value in json.load(open(path)).items() if key != "maps"})
except ValueError:
    pass
print(json.dumps(line))
PYTHON
    done
done
cat "$output/vdnn-all.jsonl"
