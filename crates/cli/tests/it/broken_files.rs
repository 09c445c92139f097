//! Every command that reads a file names the one that is broken.

use std::fs;

use crate::folder::Folder;

#[test]
fn a_broken_file_is_named() {
    let folder = Folder::on_cpu();
    for (name, content) in [
        ("broken.json", "{"),
        ("empty.json", "{}"),
        ("broken.txt", "conv2 c96 nonsense"),
        ("broken.onnx", "garbage"),
        ("broken.gz", "garbage"),
        ("broken.jsonl", "garbage"),
        ("broken.db", "garbage"),
        ("broken.safetensors", "garbage"),
        ("broken.jpg", "garbage"),
    ] {
        fs::write(folder.path().join(name), content).unwrap();
    }
    fs::write(
        folder.path().join("layer.json"),
        r#"{"format": "tightfit-network", "version": 1, "name": "t", "layers": [{"name": "a", "kind": "nothing"}]}"#,
    )
    .unwrap();
    let networks = ["broken.json", "empty.json", "layer.json", "broken.txt", "broken.onnx"];
    let commands = [
        "networks FILE",
        "plan FILE --batch 4 --assume",
        "profile FILE --batch 4",
        "optimize FILE --batch 4 --workspace 1MiB",
        "optimize FILE --batch 4 --workspace 1MiB --backend replay",
        "verify FILE --batch 4 --workspace 1MiB",
        "train FILE --batch 4 --data digits",
        "test FILE --batch 4 --data digits --random-weights",
        "predict FILE broken.jpg --batch 4 --random-weights",
    ];
    let mut cases: Vec<(String, &str)> = Vec::new();
    for command in commands {
        cases.extend(networks.map(|file| (command.replace("FILE", file), file)));
    }
    for (command, files) in [
        ("plan --step FILE --budget 1GiB", &["broken.json", "empty.json", "broken.gz"][..]),
        ("plan lenet --batch 4 --backend replay:FILE", &["broken.jsonl", "empty.json", "broken.gz"]),
        ("split --network lenet --batch 4 --devices a,b --backend replay:FILE", &["broken.jsonl", "broken.gz"]),
        ("train digits-net --data digits --plan FILE", &["broken.json", "empty.json", "broken.gz"]),
        ("predict digits-net --data digits --plan FILE --random-weights", &["broken.json", "broken.gz"]),
        ("train digits-net --batch 4 --data digits --load FILE", &["broken.safetensors"]),
        ("train digits-net --batch 4 --data digits --resume FILE", &["broken.safetensors"]),
        ("test digits-net --batch 4 --data digits --load FILE", &["broken.safetensors"]),
        ("predict digits-net FILE --batch 4 --random-weights", &["broken.jpg"]),
        ("report FILE", &["broken.json", "empty.json"]),
        ("cache list --cache FILE", &["broken.db"]),
        ("cache import FILE", &["broken.jsonl", "empty.json", "broken.gz"]),
        ("cache merge FILE", &["broken.db"]),
    ] {
        cases.extend(files.iter().map(|file| (command.replace("FILE", file), *file)));
    }
    for (command, file) in cases {
        let message = folder.fail(&command, 1);
        let error = message.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_default();
        assert!(error.starts_with(&format!("{file}: ")), "{command}: {message}");
    }
}
