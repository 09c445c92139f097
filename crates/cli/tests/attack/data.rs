//! Folders of data to train on: broken pictures, heads that promise what is not there, and what is no file.

use std::fs;
use std::process::Command;

use super::bench::TRAIN;
use super::case::Case;
use super::mutate;

/// The smallest PNG of 8 x 8 gray pixels, all black.
const PNG: [u8; 70] = [
    0x89, b'P', b'N', b'G', 13, 10, 26, 10, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 8, 0, 0, 0, 8, 8, 0, 0, 0, 0,
    0xe1, 0x64, 0xe1, 0x57, 0, 0, 0, 13, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63, 0x60, 0xa0, 0x3d, 0, 0, 0, 0x48, 0,
    1, 0xb3, 0x2b, 0x5b, 0x91, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82,
];

pub fn attack(case: &mut Case) {
    fs::create_dir_all(case.folder().join("data/one")).unwrap();
    fs::create_dir_all(case.folder().join("data/two")).unwrap();
    match case.random.below(4) {
        0 => images(case),
        1 => mnist(case),
        2 => cifar(case),
        _ => {
            let name = *case.random.pick(&["one/1.png", "train-images-idx3-ubyte", "data_batch_1.bin", "one/1.jpg"]);
            Command::new("mkfifo").arg(case.folder().join("data").join(name)).status().unwrap();
        }
    }
    let plan = case.bench.path("plan-baseline.json").display().to_string();
    let train = TRAIN.replace("--data digits", "--data data");
    case.run(&format!("{train} --plan {plan}"));
}

fn images(case: &mut Case) {
    for name in ["one/1.png", "one/2.png", "two/1.png", "two/2.jpg"] {
        let mut bytes = PNG.to_vec();
        match case.random.below(4) {
            0 => {}
            // Wider than memory.
            1 => bytes[16..24].fill(0x7f),
            _ => mutate::bytes(&mut bytes, &mut case.random),
        }
        case.write(&format!("data/{name}"), bytes);
    }
}

fn mnist(case: &mut Case) {
    let mut images = [&[0, 0, 8, 3, 0, 0, 0, 16, 0, 0, 0, 8, 0, 0, 0, 8][..], &[7; 16 * 64]].concat();
    let mut labels = [&[0, 0, 8, 1, 0, 0, 0, 16][..], &[1; 16]].concat();
    let (at, bits) = (case.random.below(16), case.random.number() as u8);
    match case.random.below(4) {
        0 => images[at] = bits,
        1 => labels[at] = bits,
        2 => images[4..16].fill(0xff),
        _ => mutate::bytes(&mut images, &mut case.random),
    }
    case.write("data/train-images-idx3-ubyte", images);
    case.write("data/train-labels-idx1-ubyte", labels);
}

fn cifar(case: &mut Case) {
    let mut bytes = vec![1; 3073 * 4];
    mutate::bytes(&mut bytes, &mut case.random);
    case.write("data/data_batch_1.bin", bytes);
}
