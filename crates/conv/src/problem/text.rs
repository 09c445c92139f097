//! The one-line text form of a problem, and of a line in a file of layers.
//!
//! ```text
//! forward n256 c96 h27 w27 k256 r5 s5 pad2 groups2 f32             two spatial dimensions
//! backward-data n8 c3 d16 h64 w64 k32 t3 r3 s3 pad1 tf32 nhwc      three: d for the input, t for the filter
//! forward n32 c1 h161 w700 k32 r5 s20 pad0:1x2 stride2x3 f32       per dimension (x), before and after (:)
//! ```
//!
//! Omitted when printed: pad0, stride1, dilation1, groups1, nchw. Read in any order. A part of a convolution whose x and y are views of larger
//! tensors also has the extents in which those are larger:
//!
//! ```text
//! forward n1 c8 d4 h9 w9 k8 t3 r3 s3 pad0x1x1 f32 xd32 yd32        4 of 32 planes of x, 2 of 32 of y
//! ```

use std::fmt;
use std::str::FromStr;

use tightfit_units::Error;

use super::{Axis, Convolution, Layout, Operation, Problem, Types};

/// One line of a layer file: a named convolution, with its optional fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The layer's name, the line's first word.
    pub name: String,
    /// The shape.
    pub convolution: Convolution,
    /// The mini-batch (`n`), if given.
    pub batch: Option<usize>,
    /// The operation, if given.
    pub operation: Option<Operation>,
    /// The number types, if given.
    pub types: Option<Types>,
    /// The layout, if given.
    pub layout: Option<Layout>,
}

/// Reads a line of a file of layers: a name, then the words of a problem; only the shape is required.
///
/// ```
/// let line = tightfit_conv::problem::parse_line("alexnet.conv2 c96 h27 w27 k256 r5 s5 pad2 groups2")?;
/// assert_eq!((line.name.as_str(), line.batch), ("alexnet.conv2", None));
/// # Ok::<(), tightfit_units::Error>(())
/// ```
///
/// # Errors
/// [`Error::BadLine`] naming the word that is wrong or missing; [`Error::BadProblem`] for an impossible shape.
pub fn parse_line(text: &str) -> Result<Line, Error> {
    let (name, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let words = Words::read(rest)?;
    if words.sizes[VIEWS..].iter().any(Option::is_some) {
        return Err(words.bad("a layer's tensors are not views; leave out xd, xh, xw, yd, yh and yw".to_owned()));
    }
    Ok(Line {
        name: name.to_owned(),
        convolution: words.convolution()?,
        batch: words.sizes[N],
        operation: words.operation,
        types: words.types,
        layout: words.layout,
    })
}

impl FromStr for Problem {
    type Err = Error;

    /// Reads the one-line form. Types default to f32 and the layout to nchw.
    ///
    /// # Errors
    /// As [`parse_line`], and [`Error::BadLine`] if the operation or `n` is missing.
    fn from_str(text: &str) -> Result<Problem, Error> {
        let words = Words::read(text)?;
        let missing = |what| Error::BadLine { line: text.to_owned(), what: format!("{what} is missing") };
        let convolution = words.convolution()?;
        let problem = Problem::new(
            convolution,
            words.operation.ok_or_else(|| missing("the operation"))?,
            words.sizes[N].ok_or_else(|| missing("n"))?,
            words.types.unwrap_or(Types::F32),
            words.layout.unwrap_or_default(),
        )?;
        let in_tensor = |first: usize, own: [usize; 3]| [0, 1, 2].map(|i| words.sizes[first + i].unwrap_or(own[i]));
        if convolution.axes().len() == 2 && (words.sizes[VIEWS].is_some() || words.sizes[VIEWS + 3].is_some()) {
            return Err(words.bad("xd and yd are for three spatial dimensions".to_owned()));
        }
        problem.within(in_tensor(VIEWS, convolution.inputs()), in_tensor(VIEWS + 3, convolution.outputs()))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = self.shape();
        let (operation, rest) = shape.split_once(' ').unwrap_or((&shape, ""));
        write!(f, "{operation} n{} {rest}", self.batch)
    }
}

impl Problem {
    /// The one-line form without the mini-batch: the shape that all micro-batches of a kernel share, and the key of profiles.
    ///
    /// ```
    /// # use tightfit_conv::Problem;
    /// let problem: Problem = "forward n8 c3 h32 w32 k16 r3 s3 pad1 f32".parse()?;
    /// assert_eq!(problem.shape(), "forward c3 h32 w32 k16 r3 s3 pad1 f32");
    /// # Ok::<(), tightfit_units::Error>(())
    /// ```
    pub fn shape(&self) -> String {
        let layout = if self.layout == Layout::default() { String::new() } else { format!(" {}", self.layout) };
        let mut shape = format!("{} {} {}{layout}", self.operation, self.convolution, self.types);
        let (x, y) = (self.convolution.inputs(), self.convolution.outputs());
        let extents = x.into_iter().chain(y).zip(self.input_in.into_iter().chain(self.output_in));
        for (name, (own, whole)) in SIZES[VIEWS..].iter().zip(extents) {
            if own != whole {
                shape += &format!(" {name}{whole}");
            }
        }
        shape
    }
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.axes();
        write!(f, "c{}", self.channels())?;
        for (name, axis) in ["d", "h", "w"][3 - axes.len()..].iter().zip(axes) {
            write!(f, " {name}{}", axis.input)?;
        }
        write!(f, " k{}", self.filters())?;
        for (name, axis) in ["t", "r", "s"][3 - axes.len()..].iter().zip(axes) {
            write!(f, " {name}{}", axis.filter)?;
        }
        let pad = |axis: &Axis| match (axis.pad_before, axis.pad_after) {
            (before, after) if before == after => before.to_string(),
            (before, after) => format!("{before}:{after}"),
        };
        write_per_axis(f, "pad", "0", axes.iter().map(pad).collect())?;
        write_per_axis(f, "stride", "1", axes.iter().map(|axis| axis.stride.to_string()).collect())?;
        write_per_axis(f, "dilation", "1", axes.iter().map(|axis| axis.dilation.to_string()).collect())?;
        if self.groups() > 1 { write!(f, " groups{}", self.groups()) } else { Ok(()) }
    }
}

fn write_per_axis(f: &mut fmt::Formatter<'_>, name: &str, default: &str, values: Vec<String>) -> fmt::Result {
    if values.iter().all(|value| value == default) {
        Ok(())
    } else if values.iter().all(|value| *value == values[0]) {
        write!(f, " {name}{}", values[0])
    } else {
        write!(f, " {name}{}", values.join("x"))
    }
}

/// Words that take one number, with their places in [`Words::sizes`].
const SIZES: [&str; 16] = ["n", "c", "d", "h", "w", "k", "t", "r", "s", "groups", "xd", "xh", "xw", "yd", "yh", "yw"];
const N: usize = 0;
const C: usize = 1;
const D: usize = 2;
const K: usize = 5;
const T: usize = 6;
const GROUPS: usize = 9;
const VIEWS: usize = 10;

#[derive(Default)]
struct Words {
    line: String,
    sizes: [Option<usize>; 16],
    pad: Option<Vec<(usize, usize)>>,
    stride: Option<Vec<usize>>,
    dilation: Option<Vec<usize>>,
    operation: Option<Operation>,
    types: Option<Types>,
    layout: Option<Layout>,
}

impl Words {
    fn read(line: &str) -> Result<Words, Error> {
        let mut words = Words { line: line.to_owned(), ..Words::default() };
        for word in line.split_whitespace() {
            words.take(word)?;
        }
        Ok(words)
    }

    fn bad(&self, what: String) -> Error {
        Error::BadLine { line: self.line.clone(), what }
    }

    fn take(&mut self, word: &str) -> Result<(), Error> {
        if let Ok(operation) = word.parse() {
            return self.once(word, |words| words.operation.replace(operation).is_some());
        }
        if let Ok(types) = word.parse() {
            return self.once(word, |words| words.types.replace(types).is_some());
        }
        if let Ok(layout) = word.parse() {
            return self.once(word, |words| words.layout.replace(layout).is_some());
        }
        let split = word.find(|c: char| c.is_ascii_digit()).unwrap_or(word.len());
        let (key, value) = word.split_at(split);
        let number = |text: &str| {
            text.parse::<usize>().map_err(|_| self.bad(format!("`{word}`: `{text}` is not a whole number")))
        };
        match key {
            "pad" => {
                let sides = |text: &str| match text.split_once(':') {
                    Some((before, after)) => Ok((number(before)?, number(after)?)),
                    None => number(text).map(|pad| (pad, pad)),
                };
                let pad = value.split('x').map(sides).collect::<Result<Vec<_>, Error>>()?;
                self.once(word, |words| words.pad.replace(pad).is_some())
            }
            "stride" => {
                let stride = value.split('x').map(number).collect::<Result<Vec<_>, Error>>()?;
                self.once(word, |words| words.stride.replace(stride).is_some())
            }
            "dilation" => {
                let dilation = value.split('x').map(number).collect::<Result<Vec<_>, Error>>()?;
                self.once(word, |words| words.dilation.replace(dilation).is_some())
            }
            _ => {
                let Some(place) = SIZES.iter().position(|name| *name == key) else {
                    return Err(self.bad(format!("`{word}` is not part of a problem")));
                };
                let size = number(value)?;
                self.once(word, |words| words.sizes[place].replace(size).is_some())
            }
        }
    }

    /// Stores a word's value, and refuses a repeated word.
    fn once(&mut self, word: &str, store: impl FnOnce(&mut Words) -> bool) -> Result<(), Error> {
        if store(self) { Err(self.bad(format!("`{word}` repeats an earlier word of the line"))) } else { Ok(()) }
    }

    fn convolution(&self) -> Result<Convolution, Error> {
        let size = |place: usize| self.sizes[place].ok_or_else(|| self.bad(format!("`{}` is missing", SIZES[place])));
        let dimensions = if self.sizes[D].is_some() || self.sizes[T].is_some() { 3 } else { 2 };
        let mut axes = Vec::with_capacity(dimensions);
        for i in 3 - dimensions..3 {
            axes.push(Axis::new(size(D + i)?, size(T + i)?));
        }
        for (axis, (before, after)) in axes.iter_mut().zip(self.per_axis("pad", &self.pad, (0, 0), dimensions)?) {
            (axis.pad_before, axis.pad_after) = (before, after);
        }
        for (axis, stride) in axes.iter_mut().zip(self.per_axis("stride", &self.stride, 1, dimensions)?) {
            axis.stride = stride;
        }
        for (axis, dilation) in axes.iter_mut().zip(self.per_axis("dilation", &self.dilation, 1, dimensions)?) {
            axis.dilation = dilation;
        }
        Convolution::new(size(C)?, size(K)?, self.sizes[GROUPS].unwrap_or(1), &axes)
    }

    /// One value per dimension, from one value for all, one per dimension, or none.
    fn per_axis<T: Copy>(
        &self,
        name: &str,
        values: &Option<Vec<T>>,
        default: T,
        dimensions: usize,
    ) -> Result<Vec<T>, Error> {
        match values.as_deref() {
            None => Ok(vec![default; dimensions]),
            Some([one]) => Ok(vec![*one; dimensions]),
            Some(values) if values.len() == dimensions => Ok(values.to_vec()),
            Some(values) => {
                Err(self.bad(format!("{name} has {} values for {dimensions} spatial dimensions", values.len())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problems() -> impl Strategy<Value = Problem> {
        let axis = (1usize..40, 1usize..6, 0usize..4, 0usize..4, 1usize..4, 1usize..3).prop_map(
            |(input, filter, pad_before, pad_after, stride, dilation)| Axis {
                input,
                filter,
                pad_before,
                pad_after,
                stride,
                dilation,
            },
        );
        let axes = proptest::collection::vec(axis, 2..4);
        let kinds = (0..Operation::ALL.len(), 0..Types::ALL.len(), 0..Layout::ALL.len());
        let around = proptest::array::uniform6(prop_oneof![2 => Just(0usize), 1 => 1usize..5]);
        (axes, 1usize..5, 1usize..5, 1usize..4, 1usize..300, kinds, around).prop_filter_map(
            "the filter does not fit",
            |(axes, c, k, groups, batch, (operation, types, layout), around)| {
                let convolution = Convolution::new(c * groups, k * groups, groups, &axes).ok()?;
                let (operation, types) = (Operation::ALL[operation], Types::ALL[types]);
                let problem = Problem::new(convolution, operation, batch, types, Layout::ALL[layout]).ok()?;
                let (x, y) = (convolution.inputs(), convolution.outputs());
                let first = 3 - axes.len();
                let larger = |own: [usize; 3], at: usize| {
                    [0, 1, 2].map(|i| if i < first { own[i] } else { own[i] + around[at + i] })
                };
                problem.within(larger(x, 0), larger(y, 3)).ok()
            },
        )
    }

    proptest! {
        #[test]
        fn parse_and_print_are_inverse(problem in problems()) {
            prop_assert_eq!(problem.to_string().parse::<Problem>().unwrap(), problem);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            let _ = text.parse::<Problem>();
            let _ = parse_line(&text);
        }

        #[test]
        fn any_words_are_read_or_refused(words in proptest::collection::vec(
            "(n|c|d|h|w|k|t|r|s|xh|yw|pad|stride|dilation|groups)[0-9]{0,21}(x[0-9:]{0,3})?|forward|nhwc|bf16", 0..14)) {
            let _ = words.join(" ").parse::<Problem>();
        }
    }

    #[test]
    fn each_fault_is_named() {
        for (line, part) in [
            ("n1 c1 h3 w3 k1 r1 s1", "the operation is missing"),
            ("forward c1 h3 w3 k1 r1 s1", "n is missing"),
            ("forward n1 h3 w3 k1 r1 s1", "`c` is missing"),
            ("forward n1 c1 h3 w3 k1 t1 r1 s1", "`d` is missing"),
            ("forward n1 c1 h3 w3 k1 r1 s1 color3", "`color3` is not part of a problem"),
            ("forward n1 c1 h3 w3 k1 r1 s1 n2", "`n2` repeats"),
            ("forward n1 c1 h3 w3 k1 r1 sx", "`sx` is not part of a problem"),
            ("forward n1 c1 h3 w3 k1 r1 s1 pad1x1x1", "pad has 3 values for 2"),
            ("forward n0 c1 h3 w3 k1 r1 s1", "n is 0"),
            ("forward n1 c1 h3 w3 k1 r4 s1", "the filter covers 4, more than the padded input of 3"),
            ("forward n1 c3 h3 w3 k2 r1 s1 groups2", "groups2 must divide both c3 and k2"),
            ("forward n1 c1 h3 w3 k1 r1 s1 stride0", "must be at least 1"),
            ("forward n1 c1 h3 w3 k1 r1 s1 xh2", "x has h3, more than h2 of its tensor"),
            ("forward n1 c1 h3 w3 k1 r1 s1 yd2", "xd and yd are for three"),
            ("forward n1 c1 h3 w3 k1 r1 s1 yw1152921504606846977", "y lies in has more than 2^60"),
        ] {
            let message = line.parse::<Problem>().unwrap_err().to_string();
            assert!(message.contains(part), "{line}: {message}");
        }
        let layer = parse_line("conv c1 h3 w3 k1 r1 s1 xh9").unwrap_err().to_string();
        assert!(layer.contains("leave out xd"), "{layer}");
    }
}
