#!/usr/bin/env bash
# Slices along space on this machine's GPUs: what "A mini-batch of 1" of docs/results.md reports.
#
# usage: scripts/gpu-slices.sh FOLDER OUTPUT [PATTERN]
#
# FOLDER holds tightfit and libtightfit_preload.so. All GPUs of the machine, or $GPUS from $FIRST_GPU (0) on, take jobs from the
# list (or the jobs that match PATTERN); none is begun once STOP_AFTER (450) seconds have passed. Steps go on for SECONDS_TUNING (13)
# before they are timed, plain ones too: a GPU is faster while it is cool. Layers alone (scripts/large-samples.txt) go to
# OUTPUT/large-*.json, PyTorch under `run` with a cold cache to OUTPUT/run.jsonl, messages to OUTPUT/*.log. PYTHON (python3) is the environment's interpreter.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
export here folder output python=${PYTHON:-python3} BEGIN=$(date +%s) STOP_AFTER=${STOP_AFTER:-450}
export TIGHTFIT_PRELOAD=$folder TIGHTFIT_SHIPPED=none PYTHONUNBUFFERED=1

# NAME layers LIMIT TYPES LAYOUT DIVIDE [OPTION ..] | NAME step LIMIT CASE [OPTION ..] | NAME recorded NETWORK ..
# No line ends with a blank: xargs would take the next as its continuation.
jobs() {
    for types in bf16 tf32 f32; do
        for limit in 64MiB 128MiB 256MiB unlimited; do
            for operation in forward backward-data backward-filter; do
                echo "nhwc-$types-$limit-$operation layers $limit $types nhwc both --operations $operation"
            done
        done
    done
    for types in bf16 tf32 f32; do
        for limit in 64MiB 128MiB 256MiB unlimited; do
            echo "nchw-$types-$limit layers $limit $types nchw both"
        done
    done
    for case in imagedecoder:1:fp16 videodecoder:1:tf32 videodecoder:1:bf16; do
        for passes in --inference ""; do
            for limit in plain auto 64MiB 256MiB; do echo "decoder step $limit $case${passes:+ $passes}"; done
        done
    done
    for case in imagedecoder:2:fp16 videodecoder:2:tf32; do
        for passes in --inference ""; do
            for limit in plain auto 64MiB 256MiB; do echo "decoder-2 step $limit $case${passes:+ $passes}"; done
        done
    done
    for case in unet3d:2:bf16:128 unet3d:2:fp32:128; do
        for limit in plain 64MiB 256MiB; do echo "unet3d step $limit $case"; done
    done
    for divide in batch both; do
        echo "alexnet-$divide recorded alexnet --batch 256 --workspace 64MiB --divide $divide"
        echo "deepbench-$divide recorded deepbench --operations forward --workspace 64MiB --divide $divide"
    done
}

job() {
    [ $(($(date +%s) - BEGIN)) -lt "$STOP_AFTER" ] || exit 0
    name=$1 kind=$2 && shift 2
    export CUDA_VISIBLE_DEVICES=$((GPU + ${FIRST_GPU:-0})) TIGHTFIT_CACHE=$output/$name-$GPU.db
    exec 2>>"$output/$name.log"
    echo "== $kind $* ($(($(date +%s) - BEGIN)) s)" >&2
    case $kind in
    layers)
        limit=$1 types=$2 layout=$3 divide=$4 && shift 4
        # One cache for all limits of a type: what was measured once is not measured again.
        export TIGHTFIT_CACHE=$output/layers-$types-$layout.db
        timeout 150 "$folder/tightfit" optimize "$here/large-samples.txt" --workspace "$limit" --types "$types" --layout "$layout" \
            --divide "$divide" --backend cuda --format json "$@" >"$output/large-$name.json" || rm -f "$output/large-$name.json"
        return
        ;;
    recorded)
        timeout 150 "$folder/tightfit" optimize "$@" --backend cuda --format json >"$output/large-$name.json" ||
            rm -f "$output/large-$name.json"
        ;;
    step)
        limit=$1 case=$2 && shift 2
        run=()
        [ "$limit" = plain ] || run=("$folder/tightfit" run --workspace "$limit" --)
        timeout 90 "${run[@]}" "$python" "$here/gpu_run/anytime.py" --label "$limit" --seconds "${SECONDS_TUNING:-13}" --errors "$@" \
            "$case" \
            >>"$output/run.jsonl"
        ;;
    esac
    rm -f "$TIGHTFIT_CACHE"*
}
export -f job

jobs | grep -E "${3:-.}" | xargs -L 1 -P "${GPUS:-$(nvidia-smi --list-gpus | wc -l)}" --process-slot-var=GPU bash -c 'job "$@"' job
rm -f "$output"/*.db*
