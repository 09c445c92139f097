#!/usr/bin/env bash
# Everything that must hold on a real GPU before anything is measured: libraries found, the device tests, and every
# kernel of AlexNet verified in each number type. Carries target/gpu/{tightfit,device-tests}, built with
#   cargo build --release && cargo test -p tightfit-cuda --test it --no-run
set -u
cd "$(dirname "$0")/.."
tightfit=target/gpu/tightfit
export TIGHTFIT_CACHE=/tmp/check.db
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
$tightfit doctor --format csv
timeout 200 target/gpu/device-tests device:: --ignored --test-threads=1 2>&1 | tail -40
for types in f32 tf32 f16-f32 f16 bf16; do
    echo "== $types"
    timeout 100 $tightfit verify alexnet-1col --batch 32 --workspace 8MiB --types $types --backend cuda -v 2>&1 | tail -45 | cut -c1-180
done
