#!/bin/sh
# Runs the tests that need a CUDA device and cuDNN 9.
#
# With cargo on the machine:     scripts/gpu-test.sh
# Without: build the test elsewhere (cargo test -p tightfit-cuda --test device --no-run prints its path), bring it along:
#                                scripts/gpu-test.sh PATH/TO/device-0123456789abcdef
set -eu
options="--ignored --nocapture --test-threads=1"
if [ $# -gt 0 ]; then
    test=$1
    shift
    exec "$test" $options "$@"
fi
# shellcheck disable=SC2086 # several words on purpose
exec cargo test -p tightfit-cuda --test device -- $options
