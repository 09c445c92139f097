#!/usr/bin/env bash
# Trains under the joint plan on a real GPU, at shares of the memory with everything resident and no workspaces, and at the least budget.
#
#   cargo build --release; scripts/gpu-joint.sh OUTPUT [NETWORK:BATCH:TYPES ..]
#
# For each case, lines of JSON go to OUTPUT/joint.jsonl: the plan and its use in STEPS (5) steps, first without a limit,
# then at each of SHARES (80 60 40 25) percent, or a size such as 5.5GB, then at the least budget (unless LEAST=0).
# Right after them comes PyTorch on the same network (f32 alone; scripts/gpu_train/peers.py: OUTPUT/peers.jsonl).
# OUTPUT/CASE-SHARE.trace.json.gz has the planned and the run times of each layer, except with --graph, whose layers
# have none. TIGHTFIT (target/release/tightfit) is the command, and BACKEND (cuda) its backend. Measurements of this
# device are taken from RECORDING, if it is set. A program takes up to CASE_SECONDS (150). No program begins after
# STOP_AFTER (500) seconds. OPTIONS are passed on to `train`, such as "--sizes power-of-two", or "--check", which takes
# extra time.
set -u
cd "$(dirname "$0")/.."
tightfit=${TIGHTFIT:-target/release/tightfit} output=$1
shift
mkdir -p "$output"
[ $# -gt 0 ] || set -- vgg16:256:f32 resnet50:256:f32 resnet50:256:tf32 resnet50:256:bf16 googlenet:128:f32 densenet121:64:f32
export TIGHTFIT_CACHE=$output/joint.db
[ -z "${RECORDING:-}" ] || "$tightfit" cache import $RECORDING

# The value of a key in a file of JSON.
value() { # FILE KEY
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"
}

# train SHARE BUDGET
train() {
    [ "$SECONDS" -lt "${STOP_AFTER:-500}" ] || return
    name=${case//:/-}-$1
    case " ${OPTIONS:-} " in *" --graph "*) trace=() ;; *) trace=(--trace "$output/$name.trace.json") ;; esac
    # shellcheck disable=SC2086 # several options on purpose
    timeout "${CASE_SECONDS:-150}" "$tightfit" train "$network" --batch "$batch" --types "$types" --budget "$2" ${OPTIONS:-} \
        --learning-rate 1e-6 --data synthetic --steps "${STEPS:-5}" --backend "${BACKEND:-cuda}" \
        "${trace[@]}" --format json >"$output/$name.json" 2>>"$output/joint.log"
    python3 scripts/gpu_train/line.py "$case" "$1" $? "$output/$name.json" >>"$output/joint.jsonl"
    [ ! -e "$output/$name.trace.json" ] || gzip -f "$output/$name.trace.json"
}

for case in "$@"; do
    IFS=: read -r network batch types <<<"$case"
    "$tightfit" plan "$network" --batch "$batch" --types "$types" --policy baseline --algorithms memory --assume --format json \
        >"$output/plan.json" || continue
    whole=$(value "$output/plan.json" peak_bytes)
    train resident unlimited
    for share in ${SHARES:-80 60 40 25}; do
        case $share in *B) train "$share" "$share" ;; *) train "$share" $((whole / 100 * share)) ;; esac
    done
    [ "${LEAST:-1}" = 0 ] || { least=$(value "$output/${case//:/-}-resident.json" min_feasible_bytes) && train least "$least"; }
    [ "$types" != f32 ] || for way in ${PEERS-plain checkpoint save_on_cpu}; do
        [ "$SECONDS" -lt "${STOP_AFTER:-500}" ] || break
        timeout 90 python3 scripts/gpu_train/peers.py "$output/peers.jsonl" "$network:$batch" "$way" 2>>"$output/joint.log"
    done
done
cat "$output/joint.jsonl"
