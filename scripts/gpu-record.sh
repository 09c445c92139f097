#!/usr/bin/env bash
# Records the final decisions for common models on this machine's GPUs, which ship with the program.
#
# usage: scripts/gpu-record.sh FOLDER OUTPUT [PATTERN]
#
# FOLDER holds the release build (tightfit, libtightfit_preload.so). Each case of the list (or the cases that match PATTERN) is measured
# whole before its first step. The GPUs, or $GPUS from $FIRST_GPU (0) on, take cases from the list; none is begun once STOP_AFTER (400) seconds
# have passed, and none takes longer than SECONDS_EACH (200). Writes OUTPUT/decisions.jsonl.gz, which scripts/ship-recordings.py
# takes, OUTPUT/record.jsonl with a line for each case, and OUTPUT/record.log.
set -u
folder=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
scripts=$(cd "$(dirname "$0")" && pwd)
export scripts folder output BEGIN=$(date +%s) STOP_AFTER=${STOP_AFTER:-400} SECONDS_EACH=${SECONDS_EACH:-200}
export TIGHTFIT_PRELOAD=$folder PYTHONUNBUFFERED=1

# CASE OPTIONS-OF-RUN ..; the longest come first
cases() {
    cat <<'CASES'
mobilenet_v3_large:128:bf16
resnet50:64:tf32
resnet50:256:bf16
unet2d:16:tf32:256
densenet121:64:tf32
convnext_tiny:128:bf16
videodecoder:1:bf16
resnet50:64:bf16
efficientnet_b0:128:bf16
wide_resnet50_2:64:tf32
vgg16:256:fp32 --workspace 512MiB
vgg16:256:fp32
vgg16:256:tf32
shufflenet_v2_x1_0:128:tf32
alexnet:256:fp32
alexnet:256:tf32
alexnet:256:fp32 --workspace 64MiB
resnet18:128:tf32
resnet18:256:bf16
resnet50:256:tf32
resnet50:128:tf32
resnet50:32:tf32
fcn_resnet50:8:tf32
googlenet:128:tf32
CASES
}

record() {
    [ $(($(date +%s) - BEGIN)) -lt "$STOP_AFTER" ] || exit 0
    case=$1 && shift
    name=$(echo "$case $*" | tr -c 'A-Za-z0-9_\n' -)
    export CUDA_VISIBLE_DEVICES=$((GPU + ${FIRST_GPU:-0})) TIGHTFIT_CACHE=$output/$name.db
    begin=$(date +%s)
    timeout "$SECONDS_EACH" "$folder/tightfit" run "$@" --tune first --tune-budget unlimited -- \
        python3 "$scripts/gpu_run/step.py" --no-convolutions --label="$*" --steps 20 "$case" \
        >>"$output/record.jsonl" 2>>"$output/record.log" ||
        echo "{\"case\": \"$case\", \"exit\": $?, \"seconds\": $(($(date +%s) - begin))}" >>"$output/record.jsonl"
    "$folder/tightfit" cache export "$output/$name.jsonl.gz" >>"$output/record.log" 2>&1
    rm -f "$output/$name.db"*
}
export -f record

cases | grep -E "${3:-.}" | xargs -L 1 -P "${GPUS:-$(nvidia-smi --list-gpus | wc -l)}" --process-slot-var=GPU bash -c 'record "$@"' record
python3 "$scripts/ship-recordings.py" --out "$output/decisions.jsonl.gz" "$output"/*-*.jsonl.gz && rm -f "$output"/*-*.jsonl.gz
cat "$output/record.jsonl"
