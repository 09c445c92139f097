//! Layer lists: a network as plain text, with one named convolution per line.
//!
//! ```text
//! # DeepBench, speech
//! db00 n4 c1 h161 w700 k32 r5 s20 stride2        with its own mini-batch
//! conv2 c96 h27 w27 k256 r5 s5 pad2 groups2      without
//! ```
//!
//! `#` starts a comment. Operation, types and layout are the caller's choice and not part of a list. Each line becomes
//! an input layer (`db00.input`) and a convolution without bias.

use std::fmt::Write;

use tightfit_conv::problem::parse_line;
use tightfit_units::Error;

use super::{Builder, LayerKind, Network, Shape};

impl Network {
    /// Reads a layer list. Reading the output of [`Network::to_list`] gives the same network.
    ///
    /// # Errors
    /// [`Error::BadList`] with the line number and a source that describes the fault: a word, a shape, or a duplicate name. Also if the text has no
    /// layers.
    pub fn from_list(name: &str, text: &str) -> Result<Network, Error> {
        let mut list = Builder::new(name);
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if !content.is_empty() {
                list = read_line(list, content).map_err(|source| bad(name, index + 1, source))?;
            }
        }
        if list.here().is_none() {
            let nothing = Error::BadLine { line: String::new(), what: "the list has no layers".to_owned() };
            return Err(bad(name, text.lines().count().max(1), nothing));
        }
        list.finish()
    }

    /// The convolutions of any network as a layer list, with their mini-batches if the network states them.
    ///
    /// Drops biases and all other layers.
    pub fn to_list(&self) -> String {
        let mut text = String::new();
        for (id, convolution) in self.convolutions() {
            let batch = self.own_batch(id).map(|n| format!("n{n} ")).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} {batch}{convolution}", self.layer(id).name);
        }
        text
    }
}

fn bad(list: &str, line: usize, source: Error) -> Error {
    Error::BadList { list: list.to_owned(), line, source: Box::new(source) }
}

/// Adds a line's convolution and its input, if the line is valid.
fn read_line(mut list: Builder, text: &str) -> Result<Builder, Error> {
    let line = parse_line(text)?;
    if line.operation.is_some() || line.types.is_some() || line.layout.is_some() {
        let what = "operation, types and layout are not part of a layer list".to_owned();
        return Err(Error::BadLine { line: text.to_owned(), what });
    }
    let input = LayerKind::Input { shape: Shape::input_of(&line.convolution), batch: line.batch };
    list.layer(format!("{}.input", line.name), input, &[]);
    let read = list.here();
    list.layer(line.name, LayerKind::Convolution { convolution: line.convolution, bias: false }, &[read]);
    list.check()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in "(\\PC|\n){0,80}") {
            let _ = Network::from_list("any", &text);
        }

        #[test]
        fn lists_round_trip(lines in proptest::collection::vec(
            "[ab]{1,2}( n[0-9]{1,2})? c[1-9] h[1-9] w([1-9]|[0-9]{1,20}) k[1-9] r[1-3] s[1-3]( pad[0-2])?( stride[1-3]x[1-3])?( #.*)?", 0..4)) {
            if let Ok(list) = Network::from_list("any", &lines.join("\n")) {
                prop_assert_eq!(list.convolutions().count(), lines.len());
                prop_assert_eq!(Network::from_list("any", &list.to_list()).unwrap(), list);
            }
        }
    }

    #[test]
    fn errors_name_the_line() {
        let good = "# speech\n\na n4 c1 h3 w3 k1 r1 s1 # first\n";
        for (line, part) in [
            ("b c1 h3 w3 k1 r1", "`s` is missing"),
            ("b c1 h3 w3 k1 r4 s4", "the filter covers 4"),
            ("a c1 h3 w3 k1 r1 s1", "already exists"),
            ("b n0 c1 h3 w3 k1 r1 s1", "the mini-batch is 0"),
            ("b c1 h3 w3 k1 r1 s1 forward", "not part of a layer list"),
            ("b c1 h3 w3 k1 r1 s1 tf32", "not part of a layer list"),
            ("b c1 h3 w3 k1 r1 s1 nhwc", "not part of a layer list"),
        ] {
            let error = Network::from_list("mine", &format!("{good}{line}\n")).unwrap_err();
            let Error::BadList { list, line: 4, source } = error else { panic!("{line}: {error}") };
            assert_eq!(list, "mine");
            assert!(source.to_string().contains(part), "{line}: {source}");
        }
        let empty = Network::from_list("mine", "# nothing\n\n").unwrap_err();
        assert!(matches!(empty, Error::BadList { .. }), "{empty}");
    }
}
