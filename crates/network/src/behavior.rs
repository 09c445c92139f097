//! The vocabulary of [`LayerKind::behavior`](super::LayerKind::behavior): the reads, saved data and parameters of a kind of layer, the place of its
//! output, and the relation of its time to its sizes.

/// The kind of a layer's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterKind {
    /// Filters of a convolution (k, c / groups, r, s) or the matrix of a fully connected layer (outputs, inputs).
    Weight,
    /// One number per filter or output.
    Bias,
    /// Batch normalization's factor per channel.
    Scale,
    /// Batch normalization's offset per channel.
    Shift,
}

/// The tensors that a layer's backward passes read in addition to the gradient of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardReads {
    /// Its inputs, with their content from the forward pass.
    pub inputs: bool,
    /// Its own output.
    pub output: bool,
    /// Data saved by its forward pass: batch statistics or the dropout mask.
    pub saved: bool,
}

/// A layer's part in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Provides the samples and their labels.
    Input,
    /// Computes.
    Hidden,
    /// Computes nothing: its output is its input in another shape.
    View,
    /// Compares with the labels; the backward passes start here.
    Loss,
}

/// Where a layer may put its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In its own map.
    Apart,
    /// In place of its first input; its output's gradient then becomes its input's gradient, in place.
    OverInput,
    /// In place of its first input, which shares the output's gradient unchanged.
    OverInputSharingGradient,
}

/// The backward pass that computes a layer's parameter gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterPass {
    /// A separate pass, from the inputs and the gradient of the output.
    Own,
    /// The pass that computes the input gradients; it runs even if no input needs a gradient.
    WithData,
}

/// The data that a forward pass saves for the backward pass, apart from maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// Nothing.
    Nothing,
    /// Two 32-bit numbers per channel, over all samples.
    PerChannel,
    /// One byte per element of each sample.
    PerElement,
}

/// The passes of a layer that compute a ReLU in place over its output as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WithRelu {
    /// None: the ReLU has separate passes.
    Nothing,
    /// The forward pass; the ReLU's backward pass is separate.
    Forward,
    /// Both: the backward pass can determine from the inputs which elements the ReLU cut.
    Both,
}

/// The factor that determines the time of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The measurements of its problem.
    Convolution,
    /// A matrix product of the parameters and the samples.
    Product,
    /// The bytes it reads and writes, at the memory rate.
    Memory,
    /// The bytes it uploads, at the link rate.
    Upload,
}

/// The behavior of a kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behavior {
    /// Its part in its network.
    pub part: Part,
    /// The tensors that its backward passes read, if any gradient is needed.
    pub backward: BackwardReads,
    /// Where its output may go.
    pub placement: Placement,
    /// The pass that computes its parameter gradients.
    pub parameter_pass: ParameterPass,
    /// The data that its forward pass saves.
    pub saved: Saved,
    /// Whether it keeps running statistics between steps: two 32-bit numbers per channel.
    pub statistics: bool,
    /// Whether training computes each sample independently; only then can it compute parts of a mini-batch.
    pub samples_are_independent: bool,
    /// Whether its backward pass reads only the sign of its output.
    pub reads_sign_alone: bool,
    /// Whether its output is zero or has the sign of its input. A ReLU below it, computed in place, can then still determine which elements it cut.
    pub keeps_sign: bool,
    /// Its passes that compute a ReLU in place over its output as well.
    pub with_relu: WithRelu,
    /// The factor that determines its time.
    pub work: Work,
}

impl Behavior {
    /// A layer that computes from memory to memory, out of place, reads nothing backward and learns nothing.
    pub(super) const PLAIN: Behavior = Behavior {
        part: Part::Hidden,
        backward: BackwardReads { inputs: false, output: false, saved: false },
        placement: Placement::Apart,
        parameter_pass: ParameterPass::Own,
        saved: Saved::Nothing,
        statistics: false,
        samples_are_independent: true,
        reads_sign_alone: false,
        keeps_sign: false,
        with_relu: WithRelu::Nothing,
        work: Work::Memory,
    };
}

/// Backward reads of the inputs, the output and the saved data.
pub(super) const fn reads(inputs: bool, output: bool, saved: bool) -> BackwardReads {
    BackwardReads { inputs, output, saved }
}
