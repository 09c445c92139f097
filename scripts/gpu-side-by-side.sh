#!/usr/bin/env bash
# Runs commands side by side, one on each GPU of this machine, so that several measurements run at once.
#
# usage: scripts/gpu-side-by-side.sh OUTPUT SECONDS COMMAND ..
#
# Command number N sees GPU N alone and writes into OUTPUT/N (its variable OUT; log.txt is what it printed). After SECONDS a
# command is asked to stop, as by Ctrl-C, and 20 s later stopped. Ends by packing everything into OUTPUT/all.tar.gz.
set -u
output=$1 seconds=$2
shift 2
device=0
for command in "$@"; do
    mkdir -p "$output/$device"
    CUDA_VISIBLE_DEVICES=$device OUT=$output/$device \
        timeout -s INT -k 20 "$seconds" bash -c "$command" >"$output/$device/log.txt" 2>&1 &
    device=$((device + 1))
done
wait
for log in "$output"/*/log.txt; do
    echo "== $log"
    tail -n 25 "$log" | cut -c1-400
done
tar -C "$output" -czf "$output/all.tar.gz" --exclude='*.db*' --exclude=all.tar.gz .
