//! Images per second that the reader gives: `cargo run --release -p tightfit-train --example read-images [THREADS ..]`.
//!
//! Writes a folder of JPEGs of the size of ImageNet's (500 x 375, about 90 kB each), and reads them as training does:
//! decoded, cut or scaled to 224 x 224, and in mini-batches of 32; first with one thread, then with more.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use image::{Rgb, RgbImage};
use tightfit_network::Shape;
use tightfit_train::Error;
use tightfit_train::data::{Augmentation, Crop, Images, Loader, Source};

/// Images in the folder.
const IMAGES: u32 = 256;

/// Images of a mini-batch.
const BATCH: usize = 32;

/// A source that is read by this number of threads.
struct By(Images, usize);

impl Source for By {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn classes(&self) -> usize {
        self.0.classes()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        self.0.read(index, sample)
    }

    fn read_part(&self, index: usize, crop: Crop, sample: &mut [f32]) -> Result<u32, Error> {
        self.0.read_part(index, crop, sample)
    }

    fn threads(&self) -> usize {
        self.1
    }
}

/// Fills a folder with pictures of waves and noise, which compress as photographs do.
fn write(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for number in 0..IMAGES {
        let class = folder.join(format!("class{}", number % 4));
        std::fs::create_dir_all(&class)?;
        let wave = |place: u32, by: u32| (f64::from(place * (1 + (number + by) % 7)) / 40.0).sin() * 60.0;
        let noise = |x: u32, y: u32| f64::from((x * 7919 + y * 104_729 + number * 31 + x * y) % 41) - 20.0;
        let picture = RgbImage::from_fn(500, 375, |x, y| {
            let color = |by: u32| (128.0 + wave(x, by) + wave(y, 3 * by) + noise(x + by, y)) as u8;
            Rgb([color(0), color(1), color(2)])
        });
        picture.save(class.join(format!("{number}.jpg")))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut threads: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    if threads.is_empty() {
        let all = std::thread::available_parallelism()?.get();
        threads = vec![1, all];
    }
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let (images, _) = Images::open(folder.path(), Shape::image(3, 224, 224))?;
    println!("{:>7} {:>12} {:>12}", "threads", "scaled", "random parts");
    for threads in threads {
        let rate = |crop: bool| -> Result<f64, Error> {
            let source = Arc::new(By(images.clone(), threads));
            let changes = Augmentation { crop, ..Augmentation::default() };
            let mut batches = Loader::shuffled_after(source, BATCH, 1, 0, changes)?;
            // The first batches were read ahead, before the clock starts.
            for batch in batches.by_ref().take(3) {
                batch?;
            }
            let (begin, count) = (Instant::now(), 2 * IMAGES as usize / BATCH);
            for batch in batches.take(count) {
                batch?;
            }
            Ok((count * BATCH) as f64 / begin.elapsed().as_secs_f64())
        };
        println!("{threads:>7} {:>8.0} im/s {:>8.0} im/s", rate(false)?, rate(true)?);
    }
    Ok(())
}
