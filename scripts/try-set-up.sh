#!/usr/bin/env bash
# Sets tightfit up as the README says, in a fresh environment, and runs what a new user runs first. No GPU and no PyTorch are needed.
#
# usage: scripts/try-set-up.sh wheel WHEEL     the wheel, by pip, and by uvx if that is there
#        scripts/try-set-up.sh clone           a fresh clone of this one, with everything that it builds: takes minutes
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
case ${1-} in
wheel)
    wheel=$(realpath "$2")
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
    if command -v uvx >/dev/null; then
        uvx --from "$wheel" tightfit --version
    fi
    ;;
clone)
    git clone --quiet "$root" "$folder/clone"
    cd "$folder/clone"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check ./crates/python
    ;;
*)
    sed -n '4,5s/^# //p' "$0" >&2
    exit 2
    ;;
esac
export PATH=$folder/venv/bin:$PATH
tightfit --version
[ "$(python -m tightfit --version)" = "$(tightfit --version)" ]
# It fails without PyTorch, with a message.
tightfit doctor --preload || echo "doctor: exit $?"
# The README's plan, and its first command.
tightfit plan resnet50 --batch 128 --types bf16 --costs 4090 --assume | grep -E '^(arena|step) '
if [ "$1" = clone ]; then
    cargo run --release -- train digits-net --batch 32 --budget 60% --data digits --epochs 2 --backend cpu
fi
