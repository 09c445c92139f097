#!/usr/bin/env bash
# Prints the figures of the first page on this machine's GPU: `run --budget`, `compare`, the largest mini-batch and the
# cost of each share.
#
# usage: scripts/gpu-first-page.sh OUTPUT [resnet50:256 gpt2:8 unet3d:4 ..]
#
# WHAT names the parts to run (all of them: run compare questions too-small plain). The questions of all models of a GPU are asked at once, and their
# steps are timed one at a time.
#
# Each command's output goes to OUTPUT/MODEL-COMMAND.txt as it is printed, and its exit code and seconds to OUTPUT/done.txt, so that a time limit
# loses nothing. Each GPU (GPUS of them, from FIRST_GPU on; all) gets some of the models and runs one command at a time, until LIMIT seconds (1800) have
# passed. PYTHON (python3) needs torch, torchvision and transformers; TIGHTFIT is the command. The extension module is in PACKAGE (this checkout's
# package), or else NATIVE (.gpu/_native.abi3.so), a release build. Without a GPU, the model `tiny` tries the script.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
output=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- resnet50:256 gpt2:8 unet3d:4
package=${PACKAGE:-$here/../crates/python/python}
[ -e "$package/tightfit/_native.abi3.so" ] || cp "${NATIVE:-$here/../.gpu/_native.abi3.so}" "$package/tightfit/_native.abi3.so" || exit 2
python=${PYTHON:-python3}
read -ra tightfit <<<"${TIGHTFIT:-$python -m tightfit}"
export PYTHONPATH=$package PYTHONUNBUFFERED=1
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | wc -l)}
[ "$gpus" -gt 0 ] || gpus=1
note() { # NAME LIMIT COMMAND ..
    local name=$1 limit=$2 begin=$SECONDS
    shift 2
    local left=$((${LIMIT:-1800} - SECONDS))
    [ "$left" -gt 5 ] || return 0
    echo "\$ ${*//$here\//}" >"$output/$name.txt"
    timeout $((limit < left ? limit : left)) "$@" >>"$output/$name.txt" 2>&1
    echo "$name: exit $?, $((SECONDS - begin)) s" | tee -a "$output/done.txt"
}
train=$here/gpu_run/first_page.py
asked() { # PART
    [[ " ${WHAT:-run compare questions too-small plain} " == *" $1 "* ]]
}
series() { # NUMBER MODEL:BATCH ..: those of one GPU
    export CUDA_VISIBLE_DEVICES=$((${FIRST_GPU:-0} + $1)) TIGHTFIT_CACHE=$output/cache-$1.db
    local number=$1 at=0 case model batch
    local mine=()
    shift
    for case in "$@"; do
        [ $((at++ % gpus)) != "$number" ] || mine+=("$case")
    done
    for case in "${mine[@]}"; do
        model=${case%:*} batch=${case#*:}
        ! asked run || note "$model-run" 90 env TIGHTFIT_TRACE="$output/$model-trace.json" \
            "${tightfit[@]}" run --budget 60% -- "$python" "$train" "$model" "$batch" 40
        ! asked compare || note "$model-compare" 150 "${tightfit[@]}" compare --budget 60% --steps 20 -- "$python" "$train" "$model" "$batch" 1000
    done
    if asked questions; then
        for case in "${mine[@]}"; do
            note "${case%:*}-questions" 600 env LOCK="$output/lock-$number" TIGHTFIT_CACHE="$output/cache-${case%:*}.db" \
                "$python" "$train" questions "${case%:*}" "${case#*:}" &
        done
        wait
    fi
    for case in "${mine[@]}"; do
        ! asked too-small || note "${case%:*}-too-small" 60 "${tightfit[@]}" run --budget 1GiB -- "$python" "$train" "${case%:*}" "${case#*:}" 40
    done
    [ "$number" != 0 ] || ! asked plain || note compare-plain-run 120 "${tightfit[@]}" compare --steps 30 -- "$python" "$train" "${1%:*}" "${1#*:}" 1000
}
for ((gpu = 0; gpu < gpus; gpu++)); do
    series "$gpu" "$@" &
done
wait
