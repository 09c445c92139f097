#!/usr/bin/env bash
# Measures PyTorch (and JAX) plain and under `tightfit run` on this machine's GPU: what docs/results.md reports.
#
# usage: scripts/gpu-run.sh FOLDER OUTPUT STAGE ..
#
# FOLDER holds tightfit and libtightfit_preload.so. Each STAGE below appends its JSON lines to OUTPUT/STAGE.jsonl, the
# reports of the library to OUTPUT/report-LABEL.json, and everything on standard error to OUTPUT/STAGE.log.
# PYTHON (python3) is the environment's interpreter. Every stage measures into the cache OUTPUT/../cache.db or $TIGHTFIT_CACHE.
set -u
here=$(cd "$(dirname "$0")" && pwd)/gpu_run
folder=$(cd "$1" && pwd) output=$2
shift 2
python=${PYTHON:-python3}
mkdir -p "$output"
export TIGHTFIT_PRELOAD=$folder TIGHTFIT_CACHE=${TIGHTFIT_CACHE:-$output/../cache.db} PYTHONUNBUFFERED=1
stage=

# plain SCRIPT ARGUMENTS ..; a run gets at most SECONDS_EACH seconds
plain() {
    script=$1 && shift
    timeout "${SECONDS_EACH:-150}" "$python" "$here/$script" --label plain "$@" >>"$output/$stage.jsonl" 2>>"$output/$stage.log" ||
        echo "{\"label\": \"plain\", \"script\": \"$script\", \"exit\": $?}" >>"$output/$stage.jsonl"
}

# under LABEL "OPTIONS OF RUN" SCRIPT ARGUMENTS ..
under() {
    label=$1 options=$2 script=$3 && shift 3
    # shellcheck disable=SC2086 # several options on purpose
    timeout "${SECONDS_EACH:-150}" "$folder/tightfit" run $options --report "$output/report-$label.json" -- \
        "$python" "$here/$script" --label "$label" "$@" >>"$output/$stage.jsonl" 2>>"$output/$stage.log" ||
        echo "{\"label\": \"$label\", \"script\": \"$script\", \"exit\": $?}" >>"$output/$stage.jsonl"
}

smoke() { # is anything broken?
    "$folder/tightfit" doctor --preload --python "$python" --format csv >>"$output/smoke.log" 2>&1
    plain step.py alexnet:64:fp32
    TIGHTFIT_OFF=1 under off "" step.py alexnet:64:fp32
    under heuristic "--workspace 16MiB --tune heuristic --cache none" step.py alexnet:64:fp32
    under measure "--workspace 16MiB" step.py alexnet:64:fp32
}

vgg() { # 512 MiB, first run and cached run
    plain step.py vgg16:256:fp32
    plain step.py --no-convolutions --benchmark vgg16:256:fp32
    under vgg-first "--workspace 512MiB" step.py vgg16:256:fp32
    under vgg-cached "--workspace 512MiB --tune cached" step.py --no-convolutions vgg16:256:fp32
    under vgg-benchmark "--workspace 512MiB --tune cached" step.py --no-convolutions --benchmark vgg16:256:fp32
    under vgg-heuristic "--workspace 512MiB --tune heuristic --cache none" step.py --no-convolutions vgg16:256:fp32
}

table5() { # mu-cuDNN's Table V at 64 MiB; TYPES chooses precisions
    cases=
    for precision in ${TYPES:-fp32 tf32 fp16 bf16}; do
        for network in alexnet:256 resnet50:64 densenet40:256 resnet18:128; do cases="$cases $network:$precision"; done
    done
    # shellcheck disable=SC2086 # several cases on purpose
    plain step.py $cases
    for policy in ${POLICIES:-undivided power-of-two fit}; do
        # shellcheck disable=SC2086
        under "table5-$policy" "--workspace 64MiB --policy $policy" step.py $cases
    done
}

unet() { # a 3-D U-Net, benchmark off and on
    for precision in fp32 bf16; do
        for benchmark in "" --benchmark; do
            # shellcheck disable=SC2086
            plain step.py $benchmark "unet3d:4:$precision:96"
            # shellcheck disable=SC2086
            under "unet-$precision$benchmark" "--workspace 256MiB" step.py $benchmark "unet3d:4:$precision:96"
        done
    done
}

memory() { # how little is enough
    for benchmark in "" --benchmark; do
        # shellcheck disable=SC2086
        plain least_memory.py $benchmark vgg16:256:fp32 unet3d:4:bf16:96
        # shellcheck disable=SC2086
        under "memory$benchmark" "--workspace 64MiB" least_memory.py $benchmark vgg16:256:fp32 unet3d:4:bf16:96
    done
}

total() { # one total divided among all kernels
    for case in alexnet:256:fp32 googlenet:128:fp32; do
        plain step.py --no-convolutions $case
        under "total-${case%%:*}" "--total-workspace 1GiB" step.py --no-convolutions $case
    done
}

gradients() { # errors to 64-bit arithmetic; bits where nothing is changed
    cases="alexnet:64:fp32 alexnet:64:tf32 alexnet:64:fp16 alexnet:64:bf16 resnet18:32:fp32 resnet18:32:tf32 vgg16:16:fp32"
    # shellcheck disable=SC2086
    plain gradients.py $cases
    # shellcheck disable=SC2086
    under gradients "--workspace 16MiB" gradients.py $cases
    # shellcheck disable=SC2086
    under unchanged "--workspace unlimited --tune heuristic --cache none" gradients.py $cases
}

curve() { # 200 steps of a small network
    for precision in fp32 bf16; do
        plain curve.py --precision $precision
        under "curve-$precision" "--workspace 8MiB" curve.py --precision $precision
    done
}

overhead() { # nothing to divide: twice each, in turn
    for _ in 1 2; do
        plain overhead.py
        under overhead "--workspace unlimited --tune heuristic --cache none" overhead.py
        TIGHTFIT_OFF=1 under overhead-off "" overhead.py
    done
}

capture() { # CUDA graphs
    plain capture.py alexnet:64:fp32 resnet18:64:bf16
    under capture "--workspace 16MiB" capture.py alexnet:64:fp32 resnet18:64:bf16
}

jax() { # another framework
    plain jax_step.py
    under jax "--workspace 64MiB" jax_step.py
}

parallel() { # several GPUs, a thread each
    plain parallel.py resnet18:128:fp32 alexnet:256:fp32
    under parallel "--workspace 64MiB" parallel.py resnet18:128:fp32 alexnet:256:fp32
}

for stage in "$@"; do
    begin=$SECONDS
    "$stage"
    echo "== $stage: $((SECONDS - begin)) s"
    cat "$output/$stage.jsonl"
done
