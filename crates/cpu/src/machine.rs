//! Identifies this machine, for the key of measurements.

use tightfit_conv::Device;

/// The device of a backend with this many threads.
pub fn device(threads: usize) -> Device {
    Device {
        backend: "cpu".to_owned(),
        name: model().unwrap_or_else(|| "CPU".to_owned()),
        library: format!("tightfit-cpu {}, {}", env!("CARGO_PKG_VERSION"), instructions()),
        threads,
    }
}

/// The processor's model name, if the system reports it.
fn model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The widest instruction set that the matrix products use.
fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            return "avx512";
        }
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            return "avx2";
        }
    }
    std::env::consts::ARCH
}
