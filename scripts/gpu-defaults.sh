#!/usr/bin/env bash
# The defaults of `tightfit run` and plain PyTorch: the table of the defaults in docs/results.md, by scripts/collect.py and results.py.
#
# usage: scripts/gpu-defaults.sh FOLDER OUTPUT [FIRST [LAST]]
#
# FOLDER and OUTPUT are as in scripts/gpu-run.sh, which this calls. Each line of `jobs` is one stage on one GPU. All
# GPUs of the machine, or the first $GPUS, take lines from the list. Each GPU has PER_GPU (2) processes on separate
# cores, which start side by side and take turns. A round is a pair of plain and run of every case, with plain second in
# every other round. FIRST to LAST choose the rounds (1 to 5 by default), and ONLY is a pattern of lines. No round
# begins after STOP_AFTER (480) seconds. A run is timed when tuning has ended, or after a minute (100 s under an
# explicit limit). Afterwards come pairs of DDP, with several GPUs. Called again with the same OUTPUT, it goes on with
# the rest.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export here folder=$1 output=$2 STOP_AFTER=${STOP_AFTER:-480} BEGIN=$(date +%s) GPUS=${GPUS:-$(nvidia-smi --list-gpus | wc -l)} \
    PER_GPU=${PER_GPU:-2}
first=${3:-1} last=${4:-5}

# NAME STAGE VARIABLE=VALUE ..
jobs() {
    unlimited="--tune first --tune-budget unlimited --shipped none"
    name=round
    [ "$PER_GPU" -gt 1 ] || name=alone
    for round in $(seq "$first" "$last"); do
        for case in wide_resnet50_2:64:tf32 densenet121:64:tf32 inception_v3:64:tf32:299 regnet_y_1_6gf:64:tf32 \
            vgg16:256:tf32 deeplabv3_resnet50:8:tf32 swin_t:64:tf32 resnet50:64:tf32 \
            resnet50:64:bf16 unet2d:16:tf32:256 imagedecoder:1:fp16 videodecoder:1:bf16 shufflenet_v2_x1_0:128:tf32 \
            alexnet:256:fp32; do
            echo "$name$round-${case//:/-} anytime CASES=$case FIRST_PAIR=$round"
        done
        [ "$round" = 1 ] || continue
        for seconds in 10 30; do
            echo "limit-vgg16-$seconds anytime CASES=vgg16:256:fp32 SECONDS_TUNING=100 'OPTIONS=--workspace 512MiB --tune-budget ${seconds}s'"
            echo "limit-alexnet-$seconds anytime CASES=alexnet:256:fp32 'OPTIONS=--workspace 64MiB --tune-budget ${seconds}s'"
        done
        for case in ${COMPARED-alexnet:256:fp32 unet2d:16:tf32:256 videodecoder:1:bf16}; do
            echo "first-${case//:/-} anytime CASES=$case SECONDS_TUNING=2 'OPTIONS=$unlimited'"
        done
        for case in ${LAYERS-depthwise:128:bf16 pointwise:128:bf16}; do
            echo "layer-${case//:/-} anytime CASES=$case 'OPTIONS=--workspace 64MiB'"
        done
    done
}

job() {
    [ $(($(date +%s) - BEGIN)) -lt "$STOP_AFTER" ] || exit 0
    name=$1 stage=$2 gpu=$((SLOT % GPUS)) && shift 2
    [ ! -e "$output/$name/done" ] || exit 0
    each=$(($(nproc) / (PER_GPU * GPUS)))
    each=$((each > 0 ? each : 1))
    cores=${CORES:-$((SLOT * each))-$(((SLOT + 1) * each - 1))}
    # Processes of the other stages do not take turns by themselves.
    turn=()
    [ "$stage" = anytime ] || turn=(flock "$output/turn-$gpu")
    "${turn[@]}" taskset -c "$cores" env CUDA_VISIBLE_DEVICES="$gpu" TURN="$output/turn-$gpu" SECONDS_TUNING=60 \
        SECONDS_EACH=600 "$@" "$here/gpu-run.sh" "$folder" "$output/$name" "$stage" >"$output/$name.log" 2>&1 && touch "$output/$name/done"
}
export -f job

mkdir -p "$output"
take() { # a number of processes take lines of the input
    grep -E "${ONLY:-.}" | xargs -L 1 -P "$1" --process-slot-var=SLOT bash -c 'job "$@"' job
}
export CORES=
jobs | take $((PER_GPU * GPUS))
export CORES=0-$(($(nproc) - 1))
[ "$GPUS" = 1 ] || seq "$first" "$last" | sed 's/.*/ddp& ddp RANKS=2 CUDA_VISIBLE_DEVICES=0,1/' | take 1
