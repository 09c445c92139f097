//! The result as comma-separated values: one line per kernel, units in the header.

use tightfit_conv::Configuration;
use tightfit_conv::candidate::Limit;
use tightfit_profile::answer::Optimized;

use super::{Align, Grid};

const FIELDS: [&str; 15] = [
    "layer",
    "operation",
    "limit_bytes",
    "division",
    "algorithms",
    "time_us",
    "workspace_bytes",
    "undivided_time_us",
    "undivided_algorithm",
    "undivided_workspace_bytes",
    "limit_of",
    "max_relative_error_undivided",
    "max_relative_error_reference",
    "outputs_compared",
    "measured_time_us",
];

/// Writes the result as comma-separated values, with a header and one line per kernel.
///
/// `division` and `algorithms` list the micro-batches of the configuration, joined by `+` (`100+100+56`). `limit_of` is the scope of `limit_bytes`:
/// each `kernel`, the `total` of all, or `one` shared workspace. Unknown values are empty: the undivided fields if nothing fits or was measured
/// undivided, the last four if the kernel was not run. An unlimited limit is empty too.
pub fn csv(optimized: &Optimized) -> String {
    let mut grid = Grid::new(FIELDS.map(|name| (name, Align::Left)));
    let limit_of = match optimized.limit {
        Limit::PerKernel(_) => "kernel",
        Limit::Total(_) => "total",
        Limit::One(_) => "one",
    };
    for kernel in &optimized.kernels {
        let ConfigurationFields { division, algorithms, time_us, workspace_bytes } =
            ConfigurationFields::of(&kernel.configuration);
        let undivided = kernel.undivided.as_ref().map(ConfigurationFields::of).unwrap_or_default();
        let seen = kernel.verification.as_ref();
        grid.push([
            kernel.layer.clone(),
            kernel.problem.operation().to_string(),
            known(optimized.limit.finite().map(|bytes| bytes.0)),
            division,
            algorithms,
            time_us,
            workspace_bytes,
            undivided.time_us,
            undivided.algorithms,
            undivided.workspace_bytes,
            limit_of.to_owned(),
            known(seen.and_then(|seen| seen.error_undivided)),
            known(seen.map(|seen| seen.error_reference)),
            known(seen.map(|seen| seen.outputs_compared)),
            known(seen.map(|seen| seen.time.as_micros())),
        ]);
    }
    grid.csv()
}

#[derive(Default)]
struct ConfigurationFields {
    division: String,
    algorithms: String,
    time_us: String,
    workspace_bytes: String,
}

impl ConfigurationFields {
    fn of(configuration: &Configuration) -> ConfigurationFields {
        let parts = configuration.parts();
        ConfigurationFields {
            division: parts.iter().map(|part| part.micro_batch.to_string()).collect::<Vec<_>>().join("+"),
            algorithms: parts.iter().map(|part| part.algorithm.name()).collect::<Vec<_>>().join("+"),
            time_us: configuration.time().as_micros().to_string(),
            workspace_bytes: configuration.workspace().0.to_string(),
        }
    }
}

fn known(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tightfit_profile::answer::samples;

    use super::*;

    #[test]
    fn fields_and_values() {
        insta::assert_snapshot!(csv(&samples::verified()), @r#"
        layer,operation,limit_bytes,division,algorithms,time_us,workspace_bytes,undivided_time_us,undivided_algorithm,undivided_workspace_bytes,limit_of,max_relative_error_undivided,max_relative_error_reference,outputs_compared,measured_time_us
        conv1,forward,125829120,256,implicit-gemm,2000,8388608,2000,implicit-gemm,8388608,total,0,0,4096,2300
        conv2,forward,125829120,100+100+56,fft+fft+winograd-4x4,4000,50331648,,,,total,,0.000005,4096,4300
        "#);
    }

    #[test]
    fn every_line_has_every_field() {
        for kernels in [0, 1, 160] {
            let text = csv(&samples::network(kernels));
            assert_eq!(text.lines().count(), 1 + kernels);
            assert!(text.lines().all(|line| line.split(',').count() == FIELDS.len()), "{text}");
        }
    }
}
