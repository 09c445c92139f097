//! `tightfit predict NETWORK IMAGES ..`

use serde_json::{Value, json};
use tightfit_report::{Align, Grid};
use tightfit_train::Prediction;
use tightfit_units::Bytes;

use super::dataset::{self, Labeled};
use super::forward::{self, Job, Report};
use super::networked::Ends;
use super::print_grid;
use crate::failure::{Failure, print};
use crate::model;
use crate::options::{Common, Format, PredictOptions};

pub fn run(options: &PredictOptions, common: &Common) -> Result<(), Failure> {
    let forward = &options.forward;
    let opened = model::open(&forward.model.network)?;
    let (pixels, test) = (&forward.model.pixels, forward.test_data.as_deref());
    forward::run(
        "predict",
        forward,
        common,
        &opened,
        |&Ends { sample, classes, .. }| match &options.data {
            Some(name) => Labeled { name, test, pixels, sample, classes, seed: common.seed }.open_any(),
            None => dataset::open_images(&options.images, pixels, sample),
        },
        |job| Predictions::new(job, options.top),
    )
}

/// The most probable classes of every sample.
struct Predictions {
    top: usize,
    /// The known names of the classes: from the training of the weights, or from the data.
    names: Vec<String>,
    samples: Vec<Predicted>,
}

/// The most probable classes of one sample.
struct Predicted {
    name: String,
    label: Option<u32>,
    /// Classes with their probabilities, the most probable first.
    top: Vec<(usize, f32)>,
}

impl Predictions {
    fn new(job: &Job<'_>, top: usize) -> Predictions {
        let trained = job.start.classes();
        let names = if trained.is_empty() { job.dataset.train.class_names() } else { trained };
        Predictions { top, names, samples: Vec::new() }
    }

    /// One row per sample and class for people.
    fn rows(&self, labels: &[String]) -> Grid {
        let is_labeled = self.samples.iter().any(|sample| sample.label.is_some());
        let mut columns = vec![("sample", Align::Left), ("class", Align::Left), ("probability", Align::Right)];
        columns.extend(is_labeled.then_some(("label", Align::Left)));
        let mut grid = Grid::new(columns);
        for sample in &self.samples {
            let label = sample.label.map(|label| name_or_number(labels, label as usize));
            for (rank, &(class, probability)) in sample.top.iter().enumerate() {
                // Values that all rows of a sample share are in the first row.
                let once = |text: &str| if rank == 0 { text.to_owned() } else { String::new() };
                let mut row = vec![
                    once(&sample.name),
                    name_or_number(&self.names, class),
                    format!("{:.2}%", 100.0 * probability),
                ];
                row.extend(label.as_deref().map(once));
                grid.push(row);
            }
        }
        grid
    }

    /// One row per sample and class for programs; names and labels that are not known are empty.
    fn values(&self) -> Grid {
        let columns = ["sample", "rank", "class", "name", "probability", "label"];
        let mut grid = Grid::new(columns.map(|column| (column, Align::Left)));
        for sample in &self.samples {
            for (rank, &(class, probability)) in (1..).zip(&sample.top) {
                let name = named(&self.names, class).unwrap_or_default();
                let label = sample.label.map_or_else(String::new, |label| label.to_string());
                let (rank, class, probability) = (rank.to_string(), class.to_string(), probability.to_string());
                grid.push([sample.name.clone(), rank, class, name, probability, label]);
            }
        }
        grid
    }

    fn json(&self) -> Value {
        let of = |sample: &Predicted| {
            let top = sample.top.iter().map(|&(class, probability)| {
                json!({"class": class, "name": named(&self.names, class), "probability": probability})
            });
            json!({"sample": sample.name, "label": sample.label, "top": top.collect::<Vec<_>>()})
        };
        self.samples.iter().map(of).collect()
    }
}

fn named(names: &[String], class: usize) -> Option<String> {
    names.get(class).cloned()
}

fn name_or_number(names: &[String], class: usize) -> String {
    named(names, class).unwrap_or_else(|| class.to_string())
}

impl Report for Predictions {
    fn take(&mut self, job: &Job<'_>, first: usize, prediction: &Prediction<'_>) {
        let classes = prediction.probabilities.len() / prediction.labels.len().max(1);
        if classes == 0 {
            return;
        }
        let samples = prediction.probabilities.chunks(classes).zip(prediction.labels);
        for (index, (probabilities, label)) in (first..).zip(samples) {
            let name = job.source().name(index);
            let label = job.is_labeled().then_some(*label);
            self.samples.push(Predicted { name, label, top: most_probable(probabilities, self.top) });
        }
    }

    fn print(&self, job: &Job<'_>, peak: Bytes) -> Result<(), Failure> {
        match job.common.format {
            Format::Table => {
                let rows = match self.samples.is_empty() {
                    true => "without a loss layer, the network gives no probabilities\n".to_owned(),
                    false => self.rows(&job.dataset.train.class_names()).table(super::terminal()),
                };
                print(&format!("{}\n{rows}\n{}", job.head(peak), job.tail()))
            }
            Format::Csv => print_grid(&self.values(), Format::Csv),
            Format::Json => {
                let mut document = job.json(peak);
                document["predictions"] = self.json();
                print(&format!("{document:#}\n"))
            }
        }
    }
}

/// The most probable classes, at most `top` of them; of equally probable ones the first.
fn most_probable(probabilities: &[f32], top: usize) -> Vec<(usize, f32)> {
    let mut classes: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
    classes.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    classes.truncate(top);
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_classes_come_first() {
        let probabilities = [0.1, 0.4, 0.1, 0.4];
        assert_eq!(most_probable(&probabilities, 3), [(1, 0.4), (3, 0.4), (0, 0.1)]);
        assert_eq!(most_probable(&probabilities, 1), [(1, 0.4)]);
        assert_eq!(most_probable(&probabilities, 9).len(), 4);
        // NaN comes first, so that no number hides it.
        assert!(most_probable(&[0.5, f32::NAN], 1)[0].1.is_nan());
    }
}
