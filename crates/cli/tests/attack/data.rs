//! Folders of data to train on: broken pictures, headers that promise more than the file has, and names that are not files.

use std::fs;
use std::process::Command;

use super::bench::TRAIN;
use super::case::Case;
use super::mutate;

/// A PNG of 8 x 8 gray pixels, all black.
const PNG: [u8; 69] = [
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00, 0x00,
    0x08, 0x00, 0x00, 0x00, 0x08, 0x08, 0x00, 0x00, 0x00, 0x00, 0xe1, 0x64, 0xe1, 0x57, 0x00, 0x00, 0x00, 0x0c, 0x49,
    0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x60, 0xa0, 0x0e, 0x00, 0x00, 0x00, 0x48, 0x00, 0x01, 0x2e, 0xb8, 0x3c, 0x7e,
    0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82,
];
/// A width and height beyond memory, with the checksum of the head that has them.
const WIDE: ([u8; 4], [u8; 4]) = ([0x7f, 0xff, 0xff, 0xff], [0x31, 0xa2, 0x54, 0xba]);

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
            1 => {
                bytes[16..20].copy_from_slice(&WIDE.0);
                bytes[20..24].copy_from_slice(&WIDE.0);
                bytes[29..33].copy_from_slice(&WIDE.1);
            }
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
