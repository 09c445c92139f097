//! Examples at the end of each command's help. A test runs the lines that need neither a GPU nor a program, and reads the
//! others as far as their options.

pub const ALL: &str = "\
Examples:
  tightfit run --budget 8GiB -- python train.py
  tightfit compare --budget 60% -- python train.py
  tightfit plan vgg19 --batch 128 --budget 8GiB --assume
  tightfit train digits-net --batch 32 --data digits --epochs 10 --backend cpu";

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
  tightfit profile vgg16 --batch 256 --workspace 64MiB --devices 0,1";

pub const OPTIMIZE: &str = "\
Examples:
  tightfit optimize lenet --batch 8 --workspace 1MiB --backend cpu
  tightfit optimize lenet --batch 8 --total-workspace 4MiB --plot lenet.svg
  tightfit optimize vgg16 --batch 256 --workspace 64MiB --types f16 --format csv";

pub const VERIFY: &str = "\
Examples:
  tightfit verify lenet --batch 8 --workspace 1MiB --backend cpu
  tightfit verify lenet --batch 8 --workspace 1MiB --values whole --full";

pub const PLAN: &str = "\
Examples:
  tightfit plan vgg19 --batch 128 --budget 8GiB --assume
  tightfit plan vgg19 --batch 128 --assume --policy vdnn-all --html vgg19.html
  tightfit plan vgg19 --batch 128 --assume --inference

Attempts in the table:
  least            what needs the least memory
  .. in 2 parts    a stretch of layers in 2 parts of the mini-batch; `least in
                   parts`: that which needs the least memory
  none, all, conv  inputs of no layer are offloaded, of all feature layers, or
                   of convolutions only
  move 16          the inputs of 16 layers are offloaded, those that cost the
                   least time; `floor`: as many as the least budget requires
  baseline,        what that policy chooses
  overlap, vdnn-..
  (m), (p), (fit)  algorithms with the least workspace, the fastest, or the
                   fastest that fit
Where the search of `optimal` began:
  keep             everything kept
  8 segments       checkpoints between 8 segments, the rest computed again
  cheapest 60%     60% of the bytes computed again, those that cost least time
  recompute alone  nothing offloaded
  greedy           bytes at the worst moment given up first; of vdnn-dynamic:
                   the fastest algorithms that fit, layer by layer
  prices 0.5       what its bound suggests, from this threshold on";

pub const TRAIN: &str = "\
Examples:
  tightfit train digits-net --batch 32 --data digits --epochs 1 --backend cpu
  tightfit train lenet --batch 64 --budget 16MiB --data synthetic --steps 2
  tightfit train digits-net --batch 32 --data digits --save digits.safetensors
  tightfit train vgg16 --batch 64 --budget 8GiB --data images/ --epochs 10";

pub const TEST: &str = "\
Examples:
  tightfit test digits-net --batch 32 --data digits --load digits.safetensors
  tightfit test resnet50 --batch 64 --data images/ --load mine.safetensors";

pub const PREDICT: &str = "\
Examples:
  tightfit predict digits-net --batch 32 --data digits --backend cpu
  tightfit predict vgg16 photos/ cat.jpg --batch 8 --load a.safetensors --top 5";

pub const SPLIT: &str = "\
Examples:
  tightfit split --network alexnet --batch 256 --devices K80,K80,K20Xm";

pub const RUN: &str = "\
Examples:
  tightfit run --budget 8GiB -- python train.py
  tightfit run --budget 60% -- python train.py
  tightfit run --sweep=sweep.html -- python train.py
  tightfit run -- python train.py
  tightfit run --workspace 512MiB --report report.json -- python train.py
  tightfit run --total-workspace 1GiB --tune first -- torchrun train.py";

pub const COMPARE: &str = "\
Examples:
  tightfit compare --budget 8GiB -- python train.py
  tightfit compare --budget 60% --steps 50 -- python train.py
  tightfit compare -- python train.py

The program runs twice, each time until enough steps are measured; then it is
ended. A third run follows if losses differ, to see whether plain repeats itself.";

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
  tightfit completions bash >> ~/.bash_completion
  tightfit completions zsh > ~/.zfunc/_tightfit
  tightfit completions fish > ~/.config/fish/completions/tightfit.fish";

pub const MAN: &str = "\
Examples:
  tightfit man | man -l -
  tightfit man run > tightfit-run.1
  tightfit man --out ~/.local/share/man/man1";
