#!/usr/bin/env bash
# Measures the numbers of docs/papers.md that need a GPU: whole PyTorch iterations within limits and totals, recordings,
# time to profile.
#
# usage: scripts/gpu-papers.sh FOLDER OUTPUT [PATTERN]
#
# FOLDER holds the release build (tightfit, libtightfit_preload.so). All GPUs of the machine, or $GPUS from $FIRST_GPU
# (0) on, take jobs from the list (only jobs that match PATTERN). No job begins after STOP_AFTER (450) seconds, and no
# program takes longer than SECONDS_EACH (200). Each job's lines of JSON go to OUTPUT/papers.jsonl, exported recordings
# to OUTPUT/NAME.jsonl.gz, messages to OUTPUT/NAME.log.
set -u
folder=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
scripts=$(cd "$(dirname "$0")" && pwd)
export scripts folder output BEGIN=$(date +%s) STOP_AFTER=${STOP_AFTER:-450} SECONDS_EACH=${SECONDS_EACH:-200}
export TIGHTFIT_PRELOAD=$folder PYTHONUNBUFFERED=1

# The longest come first. NAME step "OPTIONS OF RUN, or plain" CASE .. | NAME optimize|profile ARGUMENTS .. | NAME
# every-size LIMITS NETWORK BATCH CASE RECORDING: measures every size within the largest limit that RECORDING lacks,
# then steps within each limit on these. Its lines are iterations-LIMIT-all-NETWORK.
jobs() {
    networks="alexnet:256:fp32 resnet18:128:fp32 resnet50:64:fp32"
    recorded=profiles/recorded/h200
    echo "all-resnet18 every-size 8,64,512 resnet18 128 resnet18:128:fp32 $recorded-resnet18-all.jsonl.gz"
    echo "all-resnet50 every-size 8,64,512 resnet50 64 resnet50:64:fp32 $recorded-resnet50-all.jsonl.gz"
    echo "all-alexnet every-size 8,64,512 alexnet-1col 256 alexnet:256:fp32 $recorded-alexnet-1col-all.jsonl.gz"
    # Of 465 kernels.
    echo "shares-resnet152-4960 step '--workspace $((4960 * 1048576 / 465)) --sizes undivided' resnet152:128:fp32"
    echo "total-resnet152-4960 step '--total-workspace 4960MiB' resnet152:128:fp32"
    # Layers that Caffe calls once a group; every size of one kernel, for figures 6 and 10.
    for sizes in power-of-two fit; do
        echo "per-group-$sizes profile scripts/alexnet-per-group.txt --workspace 8MiB,64MiB,512MiB --sizes $sizes"
    done
    echo "per-group-conv2 profile scripts/alexnet-per-group.txt --layers conv2a --operations forward --workspace 64MiB --sizes all"
    for sizes in power-of-two fit; do
        echo "tuning-$sizes profile alexnet-1col --batch 256 --workspace 64MiB --sizes $sizes"
    done
    echo "overfeat profile overfeat --batch 128 --workspace 64GiB --sizes undivided"
    echo "deepbench-x4-f32 optimize deepbench-x4 --types f32 --operations forward --workspace 64MiB"
    echo "deepbench-x4-f16 optimize deepbench-x4 --types f16 --operations forward --workspace 64MiB --layers db08,db12"
    for limit in 8 64 512; do
        for sizes in undivided power-of-two fit; do
            echo "iterations-$limit-$sizes step '--workspace ${limit}MiB --sizes $sizes' $networks"
        done
    done
    echo "iterations-plain step plain $networks resnet50:32:fp32 resnet152:128:fp32"
    echo "total-alexnet-120 step '--total-workspace 120MiB' alexnet:256:fp32"
    # Of 159 kernels; undivided, each has an equal share of the total.
    for share in 8 16 32 64; do
        echo "total-resnet50-$((159 * share)) step '--total-workspace $((159 * share))MiB' resnet50:32:fp32"
        echo "shares-resnet50-$((159 * share)) step '--workspace ${share}MiB --sizes undivided' resnet50:32:fp32"
    done
    echo "alexnet-all profile alexnet-1col --batch 256 --workspace 64MiB --sizes all"
}

# step "OPTIONS OF RUN, or plain" CASE ..
step() {
    local options=$1 run=()
    shift
    # shellcheck disable=SC2206 # several options on purpose
    [ "$options" = plain ] || run=("$folder/tightfit" run --tune first --tune-budget unlimited $options --)
    timeout "$SECONDS_EACH" "${run[@]}" python3 "$scripts/gpu_run/step.py" --label "$name" "$@" >"$output/$name.json"
}

job() {
    [ $(($(date +%s) - BEGIN)) -lt "$STOP_AFTER" ] || exit 0
    name=$1 kind=$2 && shift 2
    export CUDA_VISIBLE_DEVICES=$((GPU + ${FIRST_GPU:-0})) TIGHTFIT_CACHE=$output/$name.db
    exec 2>>"$output/$name.log"
    begin=$(date +%s)
    case $kind in
    every-size)
        limits=$1
        [ ! -e "$scripts/../$5" ] || "$folder/tightfit" cache import "$scripts/../$5" >&2
        timeout -s INT "$SECONDS_EACH" "$folder/tightfit" profile "$2" --batch "$3" --workspace "${limits##*,}MiB" --sizes all \
            --backend cuda --format json >"$output/$name-profile.json"
        profiled=$?
        for limit in ${limits//,/ }; do
            [ $profiled = 0 ] && step "--workspace ${limit}MiB --sizes all" "$4"
            line "iterations-$limit-all-${4%%:*}" $?
        done
        export_cache
        ;;
    step)
        step "$@"
        line "$name" $?
        ;;
    *)
        timeout "$SECONDS_EACH" "$folder/tightfit" "$kind" "$@" --backend cuda --format json >"$output/$name.json"
        line "$name" $?
        export_cache
        ;;
    esac
    rm -f "$output/$name.db"*
}

# line NAME EXIT_CODE: a line of JSON from the output of the program before.
line() {
    [ ! -e "$output/$name.json" ] ||
        python3 "$scripts/gpu_run/job.py" "$1" "$2" $(($(date +%s) - begin)) "$output/$name.json" >>"$output/papers.jsonl"
    rm -f "$output/$name.json"
}

export_cache() {
    "$folder/tightfit" cache export "$output/$name.jsonl.gz" >>"$output/$name.log"
}
export -f job step line export_cache

jobs | grep -E "${3:-.}" | xargs -L 1 -P "${GPUS:-$(nvidia-smi --list-gpus | wc -l)}" --process-slot-var=GPU bash -c 'job "$@"' job
cat "$output/papers.jsonl"
