#!/bin/sh
# Runs the tests that need a CUDA device and cuDNN 9. (Those of `failures` are long, and run on the mocks.)
#
# With cargo on the machine:     scripts/gpu-test.sh
# Without: build the tests elsewhere (cargo test -p tightfit-cuda --test it --no-run and
# cargo test -p tightfit-train --test cuda --no-run print their paths), bring them along, one after the other:
#                                scripts/gpu-test.sh PATH/TO/it-0123456789abcdef
set -eu
options="--ignored --nocapture --test-threads=1 --skip failures::"
if [ $# -gt 0 ]; then
    test=$1
    shift
    exec "$test" $options "$@"
fi
# shellcheck disable=SC2086 # several words on purpose
exec cargo test --no-fail-fast -p tightfit-cuda -p tightfit-train --test it --test cuda -- $options
