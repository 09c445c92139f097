//! The words in which [`LayerKind::behavior`](super::LayerKind::behavior) says what a kind of layer does: what it reads and
//! saves, where its output lies, what it learns and what it costs.

/// Which of a layer's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterKind {
    /// Filters of a convolution (k, c / groups, r, s) or the matrix of a fully connected layer (outputs, inputs).
    Weight,
    /// A number for each filter or output.
    Bias,
    /// A batch normalization's factor for each channel.
    Scale,
    /// What a batch normalization adds to each channel.
    Shift,
}

/// What a layer's backward passes read beside the gradient of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardReads {
    /// Its inputs, as they were when it ran forward.
    pub inputs: bool,
    /// Its own output.
    pub output: bool,
    /// Something it saved in its forward pass: the batch statistics, the elements dropped.
    pub saved: bool,
}

/// What a layer is in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// It brings the samples and their labels.
    Input,
    /// It computes.
    Hidden,
    /// It computes nothing: its output is its input, in another shape.
    View,
    /// It compares with the labels; training begins backward from it.
    Loss,
}

/// Where a layer may put its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In a map of its own.
    Apart,
    /// Over its first input; the gradient of its output then becomes that of its input.
    OverInput,
    /// Over its first input, whose gradient is the output's, unchanged.
    OverInputSharingGradient,
}

/// Which backward pass gives the gradients of a layer's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterPass {
    /// One of their own, from the inputs and the gradient of the output.
    Own,
    /// The one that gives the gradients of the inputs; it runs even where no input needs one.
    WithData,
}

/// What a forward pass saves for the backward pass beside maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// Nothing.
    Nothing,
    /// Two numbers of 32 bits for each channel, over all samples.
    PerChannel,
    /// A byte for each element of each sample.
    PerElement,
}

/// How the time of a pass follows from its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// By what was measured of its problem.
    Convolution,
    /// A matrix product of the parameters with the samples.
    Product,
    /// The bytes that it reads and writes, over the memory's rate.
    Memory,
    /// The bytes that it brings, over the link's rate.
    Upload,
}

/// What a kind of layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behavior {
    /// What it is in its network.
    pub part: Part,
    /// What its backward passes read again, where a gradient is asked for at all.
    pub backward: BackwardReads,
    /// Where its output may lie.
    pub placement: Placement,
    /// Which pass gives the gradients of its parameters.
    pub parameter_pass: ParameterPass,
    /// What it saves.
    pub saved: Saved,
    /// Whether it keeps running statistics of each channel, two numbers of 32 bits, from step to step.
    pub statistics: bool,
    /// Whether each sample is computed without the others in training: only then can parts of a mini-batch be.
    pub samples_are_independent: bool,
    /// Whether its backward pass reads only the sign of its output.
    pub reads_sign_alone: bool,
    /// Whether its output has the sign of its input, or is zero: a rectified unit under it can then still tell what it cut.
    pub keeps_sign: bool,
    /// How long it takes.
    pub work: Work,
}

impl Behavior {
    /// Something that computes from memory to memory, out of place, reads nothing again, and learns nothing.
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
        work: Work::Memory,
    };
}

/// Reads of the inputs, the output, what was saved.
pub(super) const fn reads(inputs: bool, output: bool, saved: bool) -> BackwardReads {
    BackwardReads { inputs, output, saved }
}
