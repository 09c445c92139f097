#!/usr/bin/env bash
# What `tightfit run` adds to the host's time of a step: plain, the library switched off (TIGHTFIT_OFF), and the defaults, a process
# each, in turn, nothing beside them.
#
#   cargo build --release; scripts/gpu-host.sh FOLDER OUTPUT CASE ..
#
# FOLDER holds tightfit and libtightfit_preload.so. ROUNDS (3) of each case, such as densenet121:64:tf32; none is begun once
# STOP_AFTER (300) seconds have passed. Lines of scripts/gpu_run/anytime.py go to OUTPUT/host.jsonl: `step_ms` and `queue_ms`.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd) output=$2
shift 2
mkdir -p "$output"
export TIGHTFIT_PRELOAD=$folder TIGHTFIT_CACHE=none PYTHONUNBUFFERED=1

# way LABEL RUN ..
way() {
    local label=$1
    shift
    [ "$SECONDS" -lt "${STOP_AFTER:-300}" ] || exit 0
    timeout 60 "$@" python3 "$here/gpu_run/anytime.py" --label "$label" --seconds "${SECONDS_TUNING:-11}" --least 2 "$case" \
        >>"$output/host.jsonl" 2>>"$output/host.log"
}

for _ in $(seq "${ROUNDS:-3}"); do
    for case in "$@"; do
        SECONDS_TUNING=2 way plain
        TIGHTFIT_OFF=1 SECONDS_TUNING=2 way off "$folder/tightfit" run --
        way defaults "$folder/tightfit" run --report "$output/report.json" --
    done
done
