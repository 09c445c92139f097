#!/usr/bin/env bash
# Prints the figures of the first page on this machine's GPU: `run --budget`, `compare`, the largest mini-batch and the
# cost of each share.
#
# usage: scripts/gpu-first-page.sh OUTPUT [resnet50:256 unet3d:4 gpt2:8 ..]
#
# Each command's output goes to OUTPUT/MODEL-COMMAND.txt as it is printed, and its exit code and seconds to
# OUTPUT/done.txt, so that a time limit loses nothing. PYTHON (python3) needs torch, torchvision and transformers;
# TIGHTFIT is the command. The extension module of tightfit is this checkout's, or else NATIVE (.gpu/_native.abi3.so), a
# release build.
set -u
here=$(cd "$(dirname "$0")" && pwd)
output=$1
shift
mkdir -p "$output"
[ $# -gt 0 ] || set -- resnet50:256 gpt2:8 unet3d:4
package=$here/../crates/python/python/tightfit
[ -e "$package/_native.abi3.so" ] || cp "${NATIVE:-$here/../.gpu/_native.abi3.so}" "$package/_native.abi3.so" || exit 2
python=${PYTHON:-python3}
read -ra tightfit <<<"${TIGHTFIT:-$python -m tightfit}"
export PYTHONPATH=$here/../crates/python/python PYTHONUNBUFFERED=1 TIGHTFIT_CACHE=$output/cache.db
note() { # NAME LIMIT COMMAND ..
    local name=$1 limit=$2 begin=$SECONDS
    shift 2
    echo "\$ ${*//$here\//}" >"$output/$name.txt"
    timeout "$limit" "$@" >>"$output/$name.txt" 2>&1
    echo "$name: exit $?, $((SECONDS - begin)) s" | tee -a "$output/done.txt"
}
train=$here/gpu_run/first_page.py
for case in "$@"; do
    model=${case%:*} batch=${case#*:}
    note "$model-run" 90 "${tightfit[@]}" run --budget 60% -- "$python" "$train" "$model" "$batch" 40
    note "$model-compare" 150 "${tightfit[@]}" compare --budget 60% --steps 40 -- "$python" "$train" "$model" "$batch" 1000
    note "$model-too-small" 60 "${tightfit[@]}" run --budget 1GiB -- "$python" "$train" "$model" "$batch" 40
done
note compare-plain-run 120 "${tightfit[@]}" compare --steps 40 -- "$python" "$train" "${1%:*}" "${1#*:}" 1000
for case in "$@"; do
    note "${case%:*}-questions" 150 "$python" "$train" questions "${case%:*}" "${case#*:}"
done
