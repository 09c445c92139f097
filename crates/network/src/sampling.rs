//! Resizing of maps: the input positions of each output position.

/// The sampling of resized maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The input element at the same relative position, rounded down.
    Nearest,
    /// A weighted mean of the two elements with the nearest centers; at the ends, of one element.
    Linear,
    /// As linear, but with the first and last elements of input and output aligned.
    LinearAligned,
}

impl Sampling {
    /// All of them.
    pub const ALL: [Sampling; 3] = [Sampling::Nearest, Sampling::Linear, Sampling::LinearAligned];

    /// The name of the function in files.
    pub fn name(self) -> &'static str {
        match self {
            Sampling::Nearest => "resize-nearest",
            Sampling::Linear => "resize-linear",
            Sampling::LinearAligned => "resize-linear-aligned",
        }
    }

    /// For each place of an axis of `output` elements, two places of the axis of `input` elements, and the weight of
    /// the second; the first has the rest.
    ///
    /// **Source**: ONNX, `Resize`: asymmetric and rounded down, `half_pixel`, `align_corners`; PyTorch's `interpolate`.
    pub fn places(self, input: usize, output: usize) -> Vec<(usize, usize, f32)> {
        let last = input.saturating_sub(1);
        (0..output)
            .map(|place| {
                let at = match self {
                    // Integer arithmetic, so that no exact position is rounded down.
                    Sampling::Nearest => return ((place * input / output).min(last), 0, 0.0),
                    Sampling::Linear => (place as f64 + 0.5) * input as f64 / output as f64 - 0.5,
                    Sampling::LinearAligned if output == 1 => 0.0,
                    Sampling::LinearAligned => place as f64 * last as f64 / (output - 1) as f64,
                };
                let at = at.clamp(0.0, last as f64);
                let first = at as usize;
                (first, (first + 1).min(last), (at - first as f64) as f32)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of PyTorch 2.15 for `torch.nn.functional.interpolate` of 0, 1, 2, ..
    #[test]
    fn places_are_those_of_pytorch() {
        let values = |sampling: Sampling, input, output| -> Vec<f32> {
            let value = |(first, second, weight): &(usize, usize, f32)| {
                *first as f32 * (1.0 - weight) + *second as f32 * weight
            };
            sampling.places(input, output).iter().map(value).collect()
        };
        assert_eq!(values(Sampling::Linear, 2, 4), [0.0, 0.25, 0.75, 1.0]);
        assert_eq!(values(Sampling::Linear, 4, 2), [0.5, 2.5]);
        assert_eq!(values(Sampling::Linear, 3, 1), [1.0]);
        assert_eq!(values(Sampling::LinearAligned, 3, 5), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(values(Sampling::LinearAligned, 3, 1), [0.0]);
        assert_eq!(values(Sampling::Nearest, 3, 7), [0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(values(Sampling::Nearest, 4, 2), [0.0, 2.0]);
        assert_eq!(values(Sampling::Linear, 1, 3), [0.0, 0.0, 0.0]);
    }
}
