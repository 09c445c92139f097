#!/usr/bin/env bash
# The defaults of `tightfit run` beside plain, on two GPUs at once: the table "The defaults" of docs/results.md.
#
# usage: scripts/gpu-defaults.sh FOLDER OUTPUT
#
# FOLDER and OUTPUT are those of scripts/gpu-run.sh, which this calls. Half of the cases run on each GPU, then both train
# together. What was tuned stays in OUTPUT/*/anytime-*.db.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$1 output=$2

# on GPU NAME STAGE ..: the variables before it choose
on() {
    gpu=$1 name=$2 && shift 2
    CUDA_VISIBLE_DEVICES=$gpu CACHES=1 "$here/gpu-run.sh" "$folder" "$output/$name" "$@" >"$output/$name.log" 2>&1
}

mkdir -p "$output"
(
    CASES="densenet121:64:tf32 inception_v3:64:tf32:299 regnet_y_1_6gf:64:tf32 swin_t:64:tf32 wide_resnet50_2:64:tf32 resnet50:64:bf16" \
        SECONDS_TUNING=12 on 0 table0 anytime
    PAIRS=2 CASES="alexnet:256:fp32" SECONDS_TUNING=6 on 0 pairs anytime
    CASES="alexnet:256:fp32" OPTIONS="--tune first --tune-budget unlimited" SECONDS_TUNING=1 on 0 first anytime
    on 0 uses uses swapped
) &
(
    CASES="mobilenet_v3_large:128:bf16 deeplabv3_resnet50:8:tf32 unet2d:16:tf32:256 imagedecoder:1:fp16 videodecoder:1:bf16 vgg16:256:tf32" \
        SECONDS_TUNING=12 on 1 table1 anytime
    CASES="unet2d:16:tf32:256" OPTIONS="--tune first --tune-budget unlimited" SECONDS_TUNING=1 on 1 first-unet anytime
    CASES="vgg16:256:fp32" OPTIONS="--workspace 512MiB --tune-budget 30s" SECONDS_TUNING=55 on 1 vgg30 anytime
    on 1 jax jax
    CUDA_VISIBLE_DEVICES=1 "$here/profiling-cost.py" "$here/slow-layers.txt" --policies fit --tightfit "$folder/tightfit" -- \
        --backend cuda --types bf16 --layout nhwc >"$output/slow-layers.txt" 2>&1
) &
wait
on 0,1 ddp ddp
