//! Lists the kernels that a choice slows down, the factor, and a choice that would not.

/// A kernel is listed if it is slower by this factor.
const SLOWER: f64 = 1.1;
/// The most kernels to list.
const LINES: usize = 3;

/// A slower kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Slower {
    /// Layer and operation.
    pub kernel: String,
    /// The slowdown.
    pub factor: f64,
    /// The choice, such as `within 64 MiB`.
    pub now: String,
    /// The choice to compare with, such as `with 163 MiB`.
    pub instead: String,
}

/// A line for each of the slowest kernels, and one for the number of others. Empty if no kernel is slower by more than a tenth.
pub fn slower(mut kernels: Vec<Slower>) -> Vec<String> {
    kernels.retain(|one| one.factor > SLOWER);
    kernels.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    let line = |Slower { kernel, factor, now, instead }: &Slower| {
        format!("{kernel} takes {factor:.1} times as long {now} as {instead}")
    };
    let mut lines: Vec<String> = kernels.iter().take(LINES).map(line).collect();
    if kernels.len() > LINES {
        lines.push(format!("also slower: {}", super::count(kernels.len() - LINES, "other kernel")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_have_lines_and_the_others_are_counted() {
        let kernel = |factor: f64| Slower {
            kernel: format!("conv{factor} forward"),
            factor,
            now: "within 64 MiB".to_owned(),
            instead: "with 163 MiB".to_owned(),
        };
        assert!(slower(vec![kernel(1.0), kernel(1.1), kernel(0.3)]).is_empty());
        let lines = slower([2.0, 1.0, 6.7, 1.5, 3.0, 1.2].map(kernel).into());
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], "conv6.7 forward takes 6.7 times as long within 64 MiB as with 163 MiB");
        assert!(lines[1].starts_with("conv3 ") && lines[2].starts_with("conv2 "), "{lines:?}");
        assert_eq!(lines[3], "also slower: 2 other kernels");
    }
}
