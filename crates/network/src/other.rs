//! Layers that are planned from stated facts about an operation. If the function is known, they can also run.

use serde_json::{Value, json};

use super::behavior::{Behavior, ParameterPass, Placement, Work, reads};
use super::fields::{Fields, written_shape};
use super::{Function, Shape};

/// The facts about an operation that a planner needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Other {
    /// Name of the operation, such as `Sigmoid`.
    pub operator: String,
    /// Shape of one sample of its output.
    pub shape: Shape,
    /// Number of learned parameters.
    pub parameters: usize,
    /// Multiply-adds of its forward pass, per sample; 0 if memory alone determines its time.
    pub multiply_adds: u64,
    /// Whether its backward pass reads its inputs.
    pub reads_inputs: bool,
    /// Whether its backward pass reads its output.
    pub reads_output: bool,
    /// Whether it may overwrite its first input, which has the length of its output.
    pub in_place: bool,
    /// Its function, if it can run.
    pub function: Option<Function>,
}

impl Other {
    /// An operation without parameters and products that reads nothing backward and works out of place.
    pub fn new(operator: impl Into<String>, shape: Shape) -> Other {
        Other {
            operator: operator.into(),
            shape,
            parameters: 0,
            multiply_adds: 0,
            reads_inputs: false,
            reads_output: false,
            in_place: false,
            function: None,
        }
    }

    /// The output shape; an error describes the fault.
    pub(super) fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let Some(first) = inputs.first() else { return Err(format!("{} takes one or more inputs", self.operator)) };
        if self.in_place && (self.reads_inputs || first.len() != self.shape.len()) {
            let why = "it reads its inputs again, or its output has another length";
            return Err(format!("{} cannot overwrite its input: {why}", self.operator));
        }
        if self.parameters as u64 > 1 << 60 {
            return Err(format!("{} has {} parameters, more than 2^60", self.operator, self.parameters));
        }
        if let Some(function) = &self.function {
            self.check(function, inputs)?;
        }
        Ok(self.shape)
    }

    /// Checks that a function accepts inputs of these shapes and agrees with the stated facts.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self, function: &Function, inputs: &[Shape]) -> Result<(), String> {
        let facts = function.facts(inputs)?;
        let wrong = |what: String| Err(format!("{} does not compute `{}`: {what}", self.operator, function.name()));
        match () {
            () if self.shape != facts.shape => wrong(format!("its output is {}, not {}", facts.shape, self.shape)),
            () if self.parameters != facts.parameters => {
                wrong(format!("it has {} parameters, not {}", facts.parameters, self.parameters))
            }
            () if facts.reads_inputs && !self.reads_inputs => wrong("its backward pass reads its inputs".to_owned()),
            () if facts.reads_output && !self.reads_output => wrong("its backward pass reads its output".to_owned()),
            () if self.in_place && !facts.may_overwrite => wrong("it cannot overwrite its input".to_owned()),
            () => Ok(()),
        }
    }

    pub(super) fn behavior(&self) -> Behavior {
        Behavior {
            backward: reads(self.reads_inputs, self.reads_output, false),
            placement: if self.in_place { Placement::OverInput } else { Placement::Apart },
            parameter_pass: ParameterPass::WithData,
            work: if self.multiply_adds > 0 { Work::Product } else { Work::Memory },
            ..Behavior::PLAIN
        }
    }

    /// Its fields in a file; [`Other::read`] reads them.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value)> {
        let mut fields = vec![("operator", json!(self.operator)), ("shape", written_shape(self.shape))];
        let counts = [("parameters", self.parameters as u64), ("multiply_adds", self.multiply_adds)];
        fields.extend(counts.into_iter().filter(|(_, count)| *count > 0).map(|(field, count)| (field, json!(count))));
        let truths =
            [("reads_inputs", self.reads_inputs), ("reads_output", self.reads_output), ("in_place", self.in_place)];
        fields.extend(truths.into_iter().filter(|(_, truth)| *truth).map(|(field, truth)| (field, json!(truth))));
        fields.extend(self.function.iter().flat_map(Function::fields));
        fields
    }

    /// Reads the fields; an error names the wrong one.
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Other, String> {
        let mut other = Other::new(fields.text("operator")?, fields.shape("shape")?);
        other.parameters = fields.optional("parameters", Fields::count)?.unwrap_or(0);
        other.multiply_adds = fields.optional("multiply_adds", Fields::count)?.unwrap_or(0) as u64;
        for (field, truth) in [
            ("reads_inputs", &mut other.reads_inputs),
            ("reads_output", &mut other.reads_output),
            ("in_place", &mut other.in_place),
        ] {
            *truth = fields.optional(field, Fields::truth)?.unwrap_or(false);
        }
        other.function = fields.optional("function", |fields, _| Function::read(fields))?;
        Ok(other)
    }
}
