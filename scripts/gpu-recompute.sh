#!/usr/bin/env bash
# Measures budgets with recomputation and without it on this machine's GPU, for docs/results.md: a JSON line each in OUTPUT/fit.jsonl.
#
# usage: scripts/gpu-recompute.sh OUTPUT
set -u
here=$(cd "$(dirname "$0")" && pwd)
export SHARES="60 40" PEERS="" STEPS=8 SECONDS_EACH=${SECONDS_EACH:-75}
OPTIONS="--bits 2" "$here/gpu-fit.sh" "$1" resnet50:256 convnextb:128 efficientnet_v2_s:128 regnet_y_3_2gf:128 densenet121:128 >/dev/null
OPTIONS="--keep" "$here/gpu-fit.sh" "$1" resnet50:256 convnextb:128 regnet_y_3_2gf:128 >/dev/null
cat "$1/fit.jsonl"
