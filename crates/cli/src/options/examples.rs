//! Examples at the end of each command's help. A test runs the lines that need neither a GPU nor a program, and reads the
//! others as far as their options.

pub const ALL: &str = "\
Examples:
  tightfit run -- python train.py
  tightfit plan vgg19 --batch 128 --budget 8GiB --assume
  tightfit train digits-net --batch 32 --data digits --epochs 10 --learning-rate 0.02 --backend cpu";

pub const NETWORKS: &str = "\
Examples:
  tightfit networks
  tightfit networks vgg16
  tightfit networks vgg16 --out mine.json";

pub const DOCTOR: &str = "\
Examples:
  tightfit doctor
  tightfit doctor --preload --python venv/bin/python";

pub const PROFILE: &str = "\
Examples:
  tightfit profile lenet --batch 8 --workspace 1MiB,8MiB --backend cpu
  tightfit profile vgg16 --batch 256 --workspace 64MiB --devices 0,1 --backend cuda";

pub const OPTIMIZE: &str = "\
Examples:
  tightfit optimize lenet --batch 8 --workspace 1MiB --backend cpu
  tightfit optimize lenet --batch 8 --total-workspace 4MiB --backend cpu --plot lenet.svg
  tightfit optimize vgg16 --batch 256 --workspace 64MiB --types bf16 --format csv --backend cuda";

pub const VERIFY: &str = "\
Examples:
  tightfit verify lenet --batch 8 --workspace 1MiB --backend cpu
  tightfit verify lenet --batch 8 --workspace 1MiB --values whole --full --backend cpu";

pub const PLAN: &str = "\
Examples:
  tightfit plan vgg19 --batch 128 --budget 8GiB --assume
  tightfit plan vgg19 --batch 128 --budget 8GiB --assume --policy vdnn-dynamic --html vgg19.html
  tightfit plan vgg19 --batch 128 --assume --inference

Attempts in the table:
  least             what needs the least memory; `least in parts`, with a stretch of layers in
                    parts of the mini-batch
  keep, 8 segments  what the search of `optimal` began with: everything kept, or checkpoints; `prices` is
                    what its bound suggests
  all, conv, none   inputs of all feature layers are offloaded, of convolutions only, or none
  move 16           the inputs of 16 layers are offloaded, those that cost the least time
  (m), (p), (fit)   algorithms with the least workspace, the fastest, or the fastest that fit";

pub const TRAIN: &str = "\
Examples:
  tightfit train digits-net --batch 32 --data digits --epochs 1 --backend cpu
  tightfit train lenet --batch 64 --budget 16MiB --data synthetic --steps 2 --backend cpu
  tightfit train digits-net --batch 32 --data digits --save digits.safetensors
  tightfit train vgg16 --batch 64 --budget 8GiB --data images/ --epochs 10 --backend cuda";

pub const TEST: &str = "\
Examples:
  tightfit test digits-net --batch 32 --data digits --load digits.safetensors
  tightfit test resnet50 --batch 64 --data images/ --load mine.safetensors";

pub const PREDICT: &str = "\
Examples:
  tightfit predict digits-net --batch 32 --data digits --backend cpu
  tightfit predict vgg16 --batch 64 --budget 2GiB --data images/ --backend cuda";

pub const SPLIT: &str = "\
Examples:
  tightfit split --network alexnet --batch 256 --devices K80,K20Xm --backend replay:a.jsonl,b.jsonl";

pub const RUN: &str = "\
Examples:
  tightfit run -- python train.py
  tightfit run --workspace 512MiB --report report.json -- python train.py --epochs 10
  tightfit run --total-workspace 1GiB --tune first -- torchrun --nproc-per-node 2 train.py";

pub const REPORT: &str = "\
Examples:
  tightfit report report.json
  tightfit report report-1.json report-2.json --html report.html";

pub const CACHE: &str = "\
Examples:
  tightfit cache list
  tightfit cache list --layers
  tightfit cache export mine.jsonl.gz";

pub const COMPLETIONS: &str = "\
Examples:
  tightfit completions bash > ~/.local/share/bash-completion/completions/tightfit
  tightfit completions zsh > ~/.zfunc/_tightfit
  tightfit completions fish > ~/.config/fish/completions/tightfit.fish";

pub const MAN: &str = "\
Examples:
  tightfit man | man -l -
  tightfit man run > ~/.local/share/man/man1/tightfit-run.1";
