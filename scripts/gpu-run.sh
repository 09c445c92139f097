#!/usr/bin/env bash
# Measures PyTorch plain and under `tightfit run` on this machine's GPU, for docs/results.md.
#
# usage: scripts/gpu-run.sh FOLDER OUTPUT STAGE ..
#
# FOLDER holds tightfit and libtightfit_preload.so. Each STAGE below appends its JSON lines to OUTPUT/STAGE.jsonl, the
# reports of the library to OUTPUT/report-LABEL.json, and everything on standard error to OUTPUT/STAGE.log.
# PYTHON (python3) is the environment's interpreter. Every stage measures into the cache OUTPUT/../cache.db or $TIGHTFIT_CACHE,
# before the first step, so that the steps after it are all alike; only `anytime` and `ddp` tune as programs do by default.
set -u
here=$(cd "$(dirname "$0")" && pwd)/gpu_run
folder=$(cd "$1" && pwd) output=$2
shift 2
python=${PYTHON:-python3}
mkdir -p "$output"
export TIGHTFIT_PRELOAD=$folder TIGHTFIT_CACHE=${TIGHTFIT_CACHE:-$output/../cache.db} TIGHTFIT_TUNE=first \
    TIGHTFIT_TUNE_BUDGET=unlimited PYTHONUNBUFFERED=1
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

# by_default COMMAND ..: as programs tune by default
by_default() {
    TIGHTFIT_TUNE=measure TIGHTFIT_TUNE_BUDGET=10s "$@"
}

# defaults LABEL "OPTIONS OF RUN" SCRIPT ARGUMENTS ..: the same, into a separate cache
defaults() {
    TIGHTFIT_CACHE=$output/$1.db by_default under "$@"
}

vgg() { # 512 MiB, first run and cached run
    case=vgg16:256:fp32
    plain step.py --no-convolutions --steps 4 $case
    plain step.py --no-convolutions --steps 4 --benchmark $case
    TIGHTFIT_CACHE=$output/vgg.db under vgg-first "--workspace 512MiB" step.py --no-convolutions --steps 4 $case
    TIGHTFIT_CACHE=$output/vgg.db under vgg-cached "--workspace 512MiB" step.py --no-convolutions --steps 4 $case
    TIGHTFIT_CACHE=$output/vgg.db under vgg-benchmark "--workspace 512MiB" step.py --no-convolutions --steps 4 --benchmark $case
    rm -f "$output"/vgg.db*
}

table5() { # mu-cuDNN's Table V at 64 MiB; CASES and POLICIES choose
    cases=${CASES:-alexnet:256:fp32 resnet50:64:fp32 resnet18:128:fp32 densenet40:256:fp32}
    # shellcheck disable=SC2086 # several cases on purpose
    plain step.py $cases
    for policy in ${POLICIES:-undivided fit power-of-two}; do
        # Powers of two of all of DenseNet's kernels take minutes to measure.
        [ "$policy" != power-of-two ] || cases=${cases% densenet40*}
        # shellcheck disable=SC2086
        under "$stage-$policy" "--workspace 64MiB --sizes $policy" step.py $cases
    done
}

precisions() { # the same in other number types
    CASES=${CASES:-alexnet:256:tf32 alexnet:256:fp16 alexnet:256:bf16} POLICIES=${POLICIES:-undivided fit} table5
}

anytime() { # a cold cache and the defaults beside plain, a process each; CASES and PAIRS choose. In every other pair, plain comes second.
    for case in ${CASES:-resnet50:64:tf32}; do
        for pair in $(seq "${PAIRS:-1}"); do
            set -- anytime.py ${BENCHMARK:+--benchmark} --seconds
            [ $((pair % 2)) = 0 ] || plain "$@" "${SECONDS_PLAIN:-4}" "$case"
            name=anytime-$(echo "$case" | tr ':' '-')-$pair
            rm -f "$output/$name.db"* "$output/report-$name.json"
            defaults "$name" "${OPTIONS:-}" "$@" "${SECONDS_TUNING:-14}" "$case"
            rm -f "$output/$name.db"*
            [ $((pair % 2)) = 1 ] || plain "$@" "${SECONDS_PLAIN:-4}" "$case"
        done
    done
}

# ranks LABEL SCRIPT ARGUMENTS ..: RANKS ranks that share a cache, plain if that is the label, otherwise cold, with the defaults
ranks() {
    label=$1 script=$2 && shift 2
    torchrun="$python -m torch.distributed.run --standalone --nproc-per-node ${RANKS:-2} $here/$script"
    rm -f "$output/ranks.db"*
    run=()
    [ "$label" = plain ] || run=("$folder/tightfit" run --report "$output/report-$stage-%p.json" --)
    # shellcheck disable=SC2086 # a command with its options
    TIGHTFIT_CACHE=$output/ranks.db by_default "${run[@]}" $torchrun --label "$label" "$@" \
        >>"$output/$stage.jsonl" 2>>"$output/$stage.log"
    rm -f "$output/ranks.db"*
}

ddp() { # a step of several ranks
    case=${CASE:-resnet50:64:tf32}
    ranks plain anytime.py --seconds "${SECONDS_PLAIN:-4}" "$case"
    ranks ddp anytime.py --seconds "${SECONDS_TUNING:-14}" "$case"
}

# client FILE ARGUMENTS ..: the tests' C program, its output to FILE. Sets `status`.
client() {
    out=$1 && shift
    rm -f "$out"
    LD_LIBRARY_PATH=$cudnn timeout 90 "$@" "out=$out" >"$output/client.txt" 2>>"$output/$stage.log"
    ended=$?
    cat "$output/client.txt" >>"$output/$stage.log"
    status="$ended $(awk '/^status/{print $2}' "$output/client.txt")"
}

places() { # where the C program finds the libraries
    cudnn=${CUDNN_FOLDER:-$("$python" -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0] + "/lib")')}
    export TIGHTFIT_CUDA=${TIGHTFIT_CUDA:-$(ldconfig -p | awk '/libcuda.so.1 /{print $NF; exit}')}
}

fused() { # cudnnConvolutionBiasActivationForward, its workspace sized by the plain convolution's answers: the same status and bits;
    # ALGORITHMS chooses
    places
    for algorithm in ${ALGORITHMS:-0 1 2 4 5 6 7}; do
        for activation in 1 5; do
            # shellcheck disable=SC2086 # several options on purpose
            set -- ${CLIENT:-} op=forward n=256 c=64 k=192 size=27 filter=5 pad=2 legacy=size "algorithm=$algorithm" "activation=$activation" z=1
            client "$output/plain.bin" "$folder/client" "$@"
            plain_status=$status
            for limit in "--workspace 1MiB" "--workspace 64MiB" "--total-workspace 64MiB"; do
                report=$output/report-fused.json
                # shellcheck disable=SC2086
                client "$output/run.bin" "$folder/tightfit" run --cudnn "$cudnn" $limit --tune heuristic --cache none --report "$report" -- "$folder/client" "$@"
                bits=none
                [ ! -e "$output/plain.bin" ] || { cmp -s "$output/plain.bin" "$output/run.bin" && bits=equal || bits=differ; }
                counted=$("$python" -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[1])).get("passed_through")))' "$report" 2>>"$output/$stage.log")
                echo "{\"algorithm\": $algorithm, \"activation\": $activation, \"limit\": \"$limit\", \"plain\": \"$plain_status\", \"run\": \"$status\", \"bits\": \"$bits\", \"passed_through\": ${counted:-null}}" >>"$output/$stage.jsonl"
            done
        done
    done
    rm -f "$output"/plain.bin "$output"/run.bin "$output"/client.txt
}

legacy() { # the legacy interface: the tests' C program (gcc -O1 -pthread -o FOLDER/client crates/test-support/client/client.c -ldl)
    places
    for operation in forward data filter; do
        # The program takes the first of two values of an option. Choices might be on trial until their 200th execution.
        shape="${CLIENT:-} op=$operation n=256 c=64 k=192 size=27 filter=5 pad=2 times=220"
        # In next to no workspace 5x5 filters are not transformed, and whole numbers are exact.
        # shellcheck disable=SC2086 # several options on purpose
        LD_LIBRARY_PATH=$cudnn timeout 60 "$folder/client" $shape room=1024 legacy=ex "out=$output/exact.bin" >>"$output/$stage.log" 2>&1
        for how in get find ex; do
            case="$shape room=67108864 legacy=$how"
            report=$output/report-legacy-$operation-$how.json
            # shellcheck disable=SC2086
            {
                LD_LIBRARY_PATH=$cudnn timeout 60 "$folder/client" $case "out=$output/plain.bin" >"$output/plain.txt"
                timeout 90 "$folder/tightfit" run --cudnn "$cudnn" --workspace 64MiB --report "$report" -- \
                    "$folder/client" $case "out=$output/run.bin" >"$output/run.txt"
            } 2>>"$output/$stage.log"
            for label in plain run; do
                cat "$output/$label.txt" >>"$output/$stage.log"
                [ $label = run ] && of=$report || of=none
                "$python" "$here/compare.py" "$output/exact.bin" "$output/$label.bin" "$output/$label.txt" "$of" \
                    "operation=$operation" "how=$how" "label=$label" >>"$output/$stage.jsonl" 2>>"$output/$stage.log"
                rm -f "$output/$label.bin" "$output/$label.txt"
            done
        done
        rm -f "$output/exact.bin"
    done
}

for stage in "$@"; do
    # A stage is not begun once STOP_AFTER seconds have passed.
    [ "$SECONDS" -lt "${STOP_AFTER:-100000}" ] || continue
    begin=$SECONDS
    "$stage"
    echo "== $stage: $((SECONDS - begin)) s"
    cat "$output/$stage.jsonl"
done
