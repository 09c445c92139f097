//! A folder of images, with one subfolder per class, or images without labels.
//!
//! ```text
//! folder/cat/1.png  folder/cat/2.jpg  folder/dog/1.jpg         or  folder/train/cat/..  folder/test/cat/..
//! folder/1.png  folder/2.jpg  cat.png                          without labels
//! ```
//! Files and folders whose names begin with a point are left out, as is the folder that macOS puts into archives
//! (`__MACOSX`).

use std::ffi::OsString;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use image::DynamicImage;
use image::imageops::FilterType;
use tightfit_network::Shape;

use super::image_files::{Listed, NO_IMAGES, classes, list};
use super::source::pixel;
use super::{Crop, Part, Source, file};
use crate::Error;

/// Image files, read on demand: scaled so that they just cover the sample, then cropped at the center.
#[derive(Clone, Debug)]
pub struct Images {
    shape: Shape,
    /// The classes; none for images without labels.
    names: Vec<OsString>,
    listed: Listed,
}

impl Images {
    /// Opens the images of a folder, scaled to `shape` (one channel: gray, three: color). Training uses `train`, and
    /// testing uses `test` or `val` if present; without `train`, all images are for training.
    ///
    /// Classes are numbered in the order of their folder names. The images of a class may be in folders of its folder.
    ///
    /// # Errors
    /// [`Error::Data`] for a folder that cannot be read or has no class, a class without images, and an image that is not
    /// a regular file. The same error for classes that differ between training and testing, and for a shape that is not a
    /// gray or color image.
    pub fn open(folder: &Path, shape: Shape) -> Result<(Images, Option<Images>), Error> {
        check_shape(folder, shape)?;
        let part = |name: &str| Some(folder.join(name)).filter(|path| path.is_dir());
        let train = part("train").unwrap_or_else(|| folder.to_owned());
        let names = classes(&train)?;
        let listed = list(&train, (0..).zip(&names))?;
        let images = Images { shape, names, listed };
        let Some(test) = part("test").or_else(|| part("val")).filter(|_| train != folder) else {
            return Ok((images, None));
        };
        let test = images.of_classes(&test, &train)?;
        Ok((images, Some(test)))
    }

    /// Opens the images of a folder that are all for testing: those in its `test` or `val`, if it has one of them. Their
    /// classes are from the folder of `training` images, or some of them.
    ///
    /// # Errors
    /// The errors of [`Images::open`].
    pub fn open_tests(folder: &Path, training: &Path, shape: Shape) -> Result<Images, Error> {
        check_shape(folder, shape)?;
        let part = |of: &Path, name: &str| Some(of.join(name)).filter(|path| path.is_dir());
        let train = part(training, "train").unwrap_or_else(|| training.to_owned());
        let own = part(folder, "test").or_else(|| part(folder, "val")).unwrap_or_else(|| folder.to_owned());
        let images = Images { shape, names: classes(&train)?, listed: Listed::default() };
        images.of_classes(&own, &train)
    }

    /// Opens images without labels: files, and the images that are directly in folders. All have the label 0.
    ///
    /// # Errors
    /// [`Error::Data`] for a path that cannot be read, a folder without images, an image that is not a regular file, and
    /// a shape that is not a gray or color image.
    pub fn open_unlabeled(paths: &[PathBuf], shape: Shape) -> Result<Images, Error> {
        let mut listed = Listed::default();
        for path in paths {
            check_shape(path, shape)?;
            let metadata = std::fs::metadata(path).map_err(|source| file::failed(path, "cannot be read", source))?;
            if !metadata.is_dir() {
                file::check(path, &metadata)?;
                listed.files.push((path.clone(), 0));
                continue;
            }
            let before = listed.files.len();
            listed.add(path, 0, false, &mut Vec::new())?;
            if listed.files.len() == before {
                return Err(file::bad(path, format!("has {NO_IMAGES}{}", listed.beside())));
            }
        }
        Ok(Images { shape, names: Vec::new(), listed })
    }

    /// The images of a folder with some of the classes of these, which are in `train`.
    fn of_classes(&self, folder: &Path, train: &Path) -> Result<Images, Error> {
        let others = classes(folder)?;
        if let Some(unknown) = others.iter().find(|name| !self.names.contains(name)) {
            let what = format!("class {} is missing from {}", unknown.to_string_lossy(), train.display());
            return Err(file::bad(folder, what));
        }
        let listed = list(folder, (0..).zip(&self.names).filter(|(_, name)| others.contains(name)))?;
        Ok(Images { listed, ..self.clone() })
    }
}

fn check_shape(folder: &Path, shape: Shape) -> Result<(), Error> {
    match matches!(shape.channels(), 1 | 3) && shape.extents().len() == 2 {
        true => Ok(()),
        false => Err(file::bad(folder, format!("images have 1 or 3 channels of h x w, not {shape}"))),
    }
}

impl Images {
    /// The picture in a file. The content decides the format, not the name.
    fn decode(&self, index: usize) -> Result<DynamicImage, Error> {
        let path = &self.listed.files[index].0;
        let opened = image::ImageReader::new(BufReader::new(file::open(path)?)).with_guessed_format();
        let opened = opened.map_err(|source| file::failed(path, "cannot be read", source))?;
        opened.decode().map_err(|source| file::failed(path, "is not a complete image of a kind that is read", source))
    }

    /// Writes a picture of the sample's extents to a sample.
    fn fill(&self, picture: DynamicImage, sample: &mut [f32]) {
        let [_, height, width] = self.shape.extents3();
        let (channels, bytes) = match self.shape.channels() {
            1 => (1, picture.into_luma8().into_raw()),
            _ => (3, picture.into_rgb8().into_raw()),
        };
        for (channel, plane) in sample.chunks_mut(height * width).enumerate() {
            for (value, colors) in plane.iter_mut().zip(bytes.chunks(channels)) {
                *value = pixel(colors[channel]);
            }
        }
    }
}

impl Source for Images {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn classes(&self) -> usize {
        self.names.len()
    }

    fn len(&self) -> usize {
        self.listed.files.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        let [_, height, width] = self.shape.extents3();
        // The extents of a layer are below 2^31.
        let picture = self.decode(index)?.resize_to_fill(width as u32, height as u32, FilterType::Triangle);
        self.fill(picture, sample);
        Ok(self.listed.files[index].1)
    }

    fn read_part(&self, index: usize, crop: Crop, sample: &mut [f32]) -> Result<u32, Error> {
        let picture = self.decode(index)?;
        let Part { left, top, width, height } = crop.part(picture.width() as usize, picture.height() as usize);
        let part = picture.crop_imm(left as u32, top as u32, width as u32, height as u32);
        let [_, height, width] = self.shape.extents3();
        self.fill(part.resize_exact(width as u32, height as u32, FilterType::Triangle), sample);
        Ok(self.listed.files[index].1)
    }

    fn name(&self, index: usize) -> String {
        self.listed.files[index].0.display().to_string()
    }

    fn class_names(&self) -> Vec<String> {
        self.names.iter().map(|name| name.to_string_lossy().into_owned()).collect()
    }

    fn is_labeled(&self) -> bool {
        !self.names.is_empty()
    }

    fn left_out(&self) -> Option<String> {
        let listed = &self.listed;
        (!listed.left_out.is_empty()).then(|| format!("files that are no images are left out: {}", listed.others()))
    }

    fn threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |threads| threads.get())
    }
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, Luma, Rgb, RgbImage};

    use super::*;

    /// Two classes: one has a gray PNG, the other a wide color JPEG, red on the left and blue on the right.
    fn folder(part: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for class in ["cat", "dog"] {
            std::fs::create_dir_all(folder.path().join(part).join(class)).unwrap();
        }
        let at = |name: &str| folder.path().join(part).join(name);
        GrayImage::from_pixel(8, 8, Luma([255])).save(at("cat/white.png")).unwrap();
        let halves = RgbImage::from_fn(40, 20, |x, _| if x < 20 { Rgb([255, 0, 0]) } else { Rgb([0, 0, 255]) });
        halves.save(at("dog/halves.JPG")).unwrap();
        std::fs::write(at("dog/notes.txt"), "no image").unwrap();
        folder
    }

    #[test]
    fn images_are_scaled_and_cut() {
        let folder = folder("");
        let (train, test) = Images::open(folder.path(), Shape::image(3, 10, 10)).unwrap();
        assert!(test.is_none());
        assert_eq!((train.len(), train.classes()), (2, 2));
        let mut sample = vec![0.0; 300];
        assert_eq!(train.read(0, &mut sample).unwrap(), 0);
        assert!(sample.iter().all(|value| *value == 1.0), "gray is every color");
        assert_eq!(train.read(1, &mut sample).unwrap(), 1);
        let at = |channel: usize, x: usize| sample[channel * 100 + 50 + x];
        assert!(at(0, 1) > 0.9 && at(2, 1) < -0.9 && at(0, 8) < -0.9 && at(2, 8) > 0.9, "{sample:?}");
        let (gray, _) = Images::open(folder.path(), Shape::image(1, 4, 4)).unwrap();
        assert_eq!(gray.read(0, &mut sample[..16]).unwrap(), 0);
    }

    #[test]
    fn a_test_folder_becomes_the_test_set_and_must_have_the_same_classes() {
        let both = folder("train");
        std::fs::rename(folder("val").keep().join("val"), both.path().join("val")).unwrap();
        let (train, test) = Images::open(both.path(), Shape::image(3, 10, 10)).unwrap();
        assert_eq!((train.len(), test.map(|test| test.len())), (2, Some(2)));
        std::fs::rename(both.path().join("val/dog"), both.path().join("val/horse")).unwrap();
        let error = Images::open(both.path(), Shape::image(3, 10, 10)).unwrap_err().to_string();
        assert!(error.contains("class horse is missing from"), "{error}");
    }

    #[test]
    fn a_separate_test_folder_has_the_labels_of_the_training_folder() {
        let (train, test) = (folder("train"), folder("val"));
        std::fs::remove_dir_all(test.path().join("val/cat")).unwrap();
        let shape = Shape::image(3, 10, 10);
        for given in [test.path().to_owned(), test.path().join("val")] {
            let images = Images::open_tests(&given, train.path(), shape).unwrap();
            assert_eq!((images.len(), images.classes()), (1, 2));
            assert_eq!(images.read(0, &mut [0.0; 300]).unwrap(), 1, "dog is the second class");
        }
        std::fs::rename(test.path().join("val/dog"), test.path().join("val/horse")).unwrap();
        let error = Images::open_tests(test.path(), train.path(), shape).unwrap_err().to_string();
        assert!(error.contains("class horse is missing from"), "{error}");
    }

    #[test]
    fn images_without_labels_are_files_and_the_images_in_folders() {
        let folder = folder("");
        let at = |name: &str| folder.path().join(name);
        let shape = Shape::image(3, 10, 10);
        let images = Images::open_unlabeled(&[at("dog/halves.JPG"), at("cat")], shape).unwrap();
        assert_eq!((images.len(), images.classes(), images.is_labeled()), (2, 0, false));
        let mut sample = vec![0.0; 300];
        assert_eq!((images.read(1, &mut sample).unwrap(), sample[0]), (0, 1.0));
        assert_eq!(images.name(1), at("cat/white.png").display().to_string());
        let (labeled, _) = Images::open(folder.path(), shape).unwrap();
        assert_eq!((labeled.class_names(), labeled.is_labeled()), (vec!["cat".to_owned(), "dog".to_owned()], true));
        for (path, part) in [(folder.path().to_owned(), "has no images (.jpg,"), (at("lost.png"), "cannot be read")] {
            let error = Images::open_unlabeled(&[path], shape).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn all_kinds_in_all_folders_of_a_class_are_read_and_what_is_hidden_is_none() {
        let folder = folder("");
        let at = |name: &str| folder.path().join(name);
        for name in [".ipynb_checkpoints", "__MACOSX/cat", "dog/more/deep", "dog/.cache", "cat/__MACOSX"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["a.bmp", "b.tif", "c.TIFF", "d.webp", "e.ppm", "more/f.pgm", "more/deep/g.jpeg"] {
            let path = at("dog").join(name);
            match name {
                "more/f.pgm" => GrayImage::from_pixel(8, 8, Luma([255])).save(path).unwrap(),
                _ => RgbImage::from_pixel(8, 8, Rgb([255; 3])).save(path).unwrap(),
            }
        }
        for name in [
            ".ipynb_checkpoints/0.png",
            "__MACOSX/cat/0.png",
            "dog/._a.png",
            "dog/.cache/0.png",
            "cat/__MACOSX/0.png",
            ".DS_Store",
        ] {
            std::fs::write(at(name), "hidden").unwrap();
        }
        for name in ["dog/more/x.GIF", "cat/LABELS", "list.txt"] {
            std::fs::write(at(name), "left out").unwrap();
        }
        let (train, _) = Images::open(folder.path(), Shape::image(3, 4, 4)).unwrap();
        let left_out = "files that are no images are left out: 1 .gif, 2 .txt, 1 without extension";
        assert_eq!(
            (train.class_names(), train.left_out().as_deref()),
            (vec!["cat".to_owned(), "dog".to_owned()], Some(left_out))
        );
        let mut sample = [0.0; 48];
        let labels: Vec<u32> = (0..train.len()).map(|index| train.read(index, &mut sample).unwrap()).collect();
        assert_eq!(labels, [0, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert!(train.name(8).ends_with("dog/more/deep/g.jpeg") && sample.iter().all(|value| *value > 0.98));
        std::os::unix::fs::symlink("..", at("dog/more/loop")).unwrap();
        let error = Images::open(folder.path(), Shape::image(3, 4, 4)).unwrap_err().to_string();
        assert!(error.contains("dog/more/loop: is a link to a folder that it is in"), "{error}");
        std::fs::create_dir_all(at("bird")).unwrap();
        std::fs::write(at("bird/x.gif"), "left out").unwrap();
        let error = Images::open(folder.path(), Shape::image(3, 4, 4)).unwrap_err().to_string();
        assert!(error.contains("bird: the class has no images") && error.contains("other kinds: 1 .gif"), "{error}");
    }

    #[test]
    fn parts_are_cut_from_the_whole_picture() {
        let folder = folder("");
        let (train, _) = Images::open(folder.path(), Shape::image(3, 10, 10)).unwrap();
        let mut reds = Vec::new();
        for key in 0..40 {
            let crop = Crop { key };
            let mut sample = vec![f32::NAN; 300];
            assert_eq!(train.read_part(1, crop, &mut sample).unwrap(), 1);
            // The picture of 40 x 20 is red on the left: the share of red columns shows the part.
            let Part { left, width, .. } = crop.part(40, 20);
            let share = (20.0 - left as f32).clamp(0.0, width as f32) / width as f32;
            let red = sample[..100].iter().map(|value| (value + 1.0) / 2.0).sum::<f32>() / 100.0;
            assert!((red - share).abs() < 0.12, "{key}: {red}, not {share}");
            reds.push(red);
        }
        assert!(reds.iter().any(|red| *red < 0.2) && reds.iter().any(|red| *red > 0.8), "{reds:?}");
    }

    #[test]
    fn bad_folders_and_files_are_named() {
        let empty = tempfile::tempdir().unwrap();
        let error = Images::open(empty.path(), Shape::image(3, 4, 4)).unwrap_err().to_string();
        assert!(error.contains("or folder of images per class"), "{error}");
        std::fs::create_dir(empty.path().join("cat")).unwrap();
        let error = Images::open(empty.path(), Shape::image(3, 4, 4)).unwrap_err().to_string();
        assert!(error.contains("cat: the class has no"), "{error}");
        assert!(Images::open(folder("").path(), Shape::image(2, 4, 4)).is_err());
        let piped = folder("");
        let pipe = piped.path().join("cat/1.png");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("1.png", piped.path().join("cat/0.png")).unwrap();
        for name in ["0.png", "1.png"] {
            let error = Images::open(piped.path(), Shape::image(3, 4, 4)).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: is a pipe, not a file")), "{error}");
            std::fs::remove_file(piped.path().join("cat").join(name)).unwrap();
        }
        // A pipe that replaces a file later is rejected too.
        let (train, _) = Images::open(piped.path(), Shape::image(3, 4, 4)).unwrap();
        std::fs::remove_file(piped.path().join("cat/white.png")).unwrap();
        assert!(
            std::process::Command::new("mkfifo").arg(piped.path().join("cat/white.png")).status().unwrap().success()
        );
        let error = train.read(0, &mut [0.0; 48]).unwrap_err().to_string();
        assert!(error.contains("white.png: is a pipe, not a file"), "{error}");

        let good = folder("");
        let white = good.path().join("cat/white.png");
        let whole = std::fs::read(&white).unwrap();
        for bytes in [&[][..], &whole[..whole.len() / 2], b"no image at all"] {
            std::fs::write(&white, bytes).unwrap();
            let (train, _) = Images::open(good.path(), Shape::image(3, 4, 4)).unwrap();
            let error = train.read(0, &mut [0.0; 48]).unwrap_err().to_string();
            assert!(error.contains("white.png: is not a complete image"), "{error}");
        }
    }
}
