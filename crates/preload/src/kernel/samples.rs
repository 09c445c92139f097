//! Small kernels for tests.

use tightfit_conv::backend::Scale;
use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Notes};
use tightfit_cuda::Chosen;
use tightfit_profile::survey::{Divide, Sizes};
use tightfit_units::{Bytes, Nanos};

use super::{Answer, Planned, Question, bits};
use crate::settings::{Limit, Terms, Tune};

/// A convolution for which the framework has chosen this algorithm, of 512 bytes.
pub fn question(own: &str) -> Question {
    Question {
        device: 0,
        problem: "forward n4 c3 h8 w8 k4 r3 s3 f32".parse().unwrap(),
        chosen: Chosen { algorithm: Algorithm::new(own), workspace: Bytes(512), notes: Notes::NONE },
        admitted: Notes::NONE,
        factors: bits(Scale::OVERWRITE),
        base: 16,
    }
}

pub fn terms(limit: Limit) -> Terms {
    Terms { limit, sizes: Sizes::Fit, divide: Divide::Both, tune: Tune::Measure, is_auto: false }
}

/// One algorithm on the whole mini-batch.
pub fn configuration(algorithm: &str, time: u64, bytes: u64) -> Configuration {
    let part = Candidate::new(Algorithm::new(algorithm), 4, Nanos(time), Bytes(bytes));
    Configuration::new(vec![part], DivisionCost::default())
}

pub fn planned(question: Question, terms: Terms, answer: Answer) -> Planned {
    Planned { question, terms, layers: vec![None], answer, reported: None, is_open: false, framework_time: None }
}
