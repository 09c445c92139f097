//! The attributes, inputs and outputs of a node, read through the table of operators in the file's version.

use super::proto::{AttributeProto, NodeProto};
use super::shown::shown;
use super::table::{self, Field, FieldKind, Operator, Read};

/// Numbers of a list that a message shows.
const SHOWN: usize = 8;

/// A node, read through the table of operators.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The node.
    pub node: &'a NodeProto,
    version: i64,
    operator: Option<&'static Operator>,
}

impl<'a> Given<'a> {
    /// A node of a file with operators of this version.
    pub fn of(node: &'a NodeProto, version: i64) -> Given<'a> {
        let operator = table::operator(&node.op_type).filter(|_| is_standard(node));
        Given { node, version, operator }
    }

    /// The version of ONNX's operators.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Whether nodes of the operator can run, alone or as part of another operation.
    pub fn runs(&self) -> bool {
        self.operator.is_some_and(|operator| operator.runs)
    }

    /// Refuses fields that the operator does not have in this version, missing required fields, and values that change sizes in ways that are not
    /// computed. Nodes of unknown operators pass: they are planned as the file states.
    pub fn check(&self) -> Result<(), String> {
        let Some(operator) = self.operator else { return Ok(()) };
        let (of, version) = (&self.node.op_type, self.version);
        let (first, last) = (operator.versions.start(), operator.versions.end());
        if !operator.versions.contains(&version) {
            return Err(format!(
                "{of} is an operator of versions {first} to {last}, and the file's are of version {version}; export the \
                 model with opset_version={last}"
            ));
        }
        self.check_places(operator, FieldKind::Input, &self.node.input)?;
        self.check_places(operator, FieldKind::Output, &self.node.output)?;
        for (at, attribute) in self.node.attribute.iter().enumerate() {
            let name = &attribute.name;
            if self.node.attribute[..at].iter().any(|other| other.name == *name) {
                return Err(format!("attribute {} is given twice", shown(name)));
            }
            let value = value(attribute);
            let Some(field) = self.field(FieldKind::Attribute, name) else {
                return Err(format!(
                    "attribute {} = {value} is not known: {of} of version {version} has {}; export the model without it",
                    shown(name),
                    self.names(operator)
                ));
            };
            if !has_type(attribute, field.of) {
                return Err(format!("attribute {} = {value} is not of type {}", shown(name), field.of));
            }
            if field.read == Read::Refused && is_unusual(attribute, field) {
                let only = if field.usual == "-" { String::new() } else { format!(", only {}", usual(field)) };
                return Err(format!(
                    "attribute {} = {value} is not supported{only}; export the model without it",
                    shown(name)
                ));
            }
        }
        let mut required = operator.fields(FieldKind::Attribute, version).filter(|field| field.usual == "!");
        match required.find(|field| self.attribute(field.name).is_none()) {
            Some(field) => Err(format!("attribute `{}` is missing; export the model again", field.name)),
            None => Ok(()),
        }
    }

    /// Refuses missing or surplus inputs and outputs.
    fn check_places(&self, operator: &Operator, kind: FieldKind, names: &[String]) -> Result<(), String> {
        let what = if kind == FieldKind::Input { "input" } else { "output" };
        let fields: Vec<&Field> = operator.fields(kind, self.version).collect();
        let given = names.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
        if given > fields.len() && fields.last().is_none_or(|last| last.of != "many") {
            let (of, version) = (&self.node.op_type, self.version);
            return Err(format!(
                "{what} {} {} is not known: {of} of version {version} has {}",
                fields.len(),
                shown(&names[fields.len()]),
                fields.len()
            ));
        }
        let is_missing = |at: usize| names.get(at).is_none_or(String::is_empty);
        let missing = fields.iter().enumerate().find(|(at, field)| field.of == "one" && is_missing(*at));
        match missing {
            Some((at, field)) => Err(format!("{what} {at} (`{}`) is missing", field.name)),
            None => Ok(()),
        }
    }

    /// The attributes whose values this reader does not compute with, worded for a message.
    pub fn unlike(&self) -> Option<String> {
        let unlike = self.node.attribute.iter().filter_map(|attribute| {
            let field = self.field(FieldKind::Attribute, &attribute.name)?;
            let differs = field.read == Read::Planned && is_unusual(attribute, field);
            differs.then(|| not(&attribute.name, &value(attribute), &usual(field)))
        });
        let all: Vec<String> = unlike.collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Whether an output must not be read.
    pub fn is_refused(&self, output: usize) -> bool {
        let operator = self.operator.filter(|_| output > 0);
        operator.is_some_and(|operator| {
            operator
                .fields(FieldKind::Output, self.version)
                .nth(output)
                .is_some_and(|field| field.read == Read::Refused)
        })
    }

    fn field(&self, kind: FieldKind, name: &str) -> Option<&'static Field> {
        self.operator?.fields(kind, self.version).find(|field| field.name == name)
    }

    fn names(&self, operator: &Operator) -> String {
        let all: Vec<&str> = operator.fields(FieldKind::Attribute, self.version).map(|field| field.name).collect();
        if all.is_empty() { "no attributes".to_owned() } else { all.join(", ") }
    }

    /// An attribute that the operator has in this version.
    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.field(FieldKind::Attribute, name)?;
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// The default value of an omitted attribute.
    fn usual(&self, name: &str) -> Option<&'static str> {
        self.field(FieldKind::Attribute, name).map(|field| field.usual).filter(|usual| !["-", "!"].contains(usual))
    }

    /// An integer, or the default.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i).or_else(|| self.usual(name)?.parse().ok())
    }

    /// Integers, if given.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.attribute(name).map(|attribute| attribute.ints.clone())
    }

    /// A floating-point number, or the default.
    pub fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name).map(|attribute| attribute.f).or_else(|| self.usual(name)?.parse().ok())
    }

    /// Floating-point numbers, if given.
    pub fn floats(&self, name: &str) -> Option<Vec<f64>> {
        self.attribute(name).map(|attribute| attribute.floats.iter().map(|&number| f64::from(number)).collect())
    }

    /// A text, or the usual one.
    pub fn text(&self, name: &str) -> Option<String> {
        let given = self.attribute(name).map(|attribute| String::from_utf8_lossy(&attribute.s).into_owned());
        given.or_else(|| self.usual(name).map(str::to_owned))
    }

    /// The attribute of a `Constant` or `ConstantOfShape` node, of any type.
    pub fn value(&self) -> Option<&'a AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name.starts_with("value"))
    }
}

/// Whether the operator of a node is in ONNX's own domain. Other domains may reuse its name with another meaning.
pub fn is_standard(node: &NodeProto) -> bool {
    matches!(node.domain.as_str(), "" | "ai.onnx")
}

/// The message for an attribute whose value cannot run.
pub fn not(name: &str, value: &str, usual: &str) -> String {
    format!("attribute `{name}` = {value}, not {usual}")
}

/// Whether a value of an attribute has the type in the table. Old files have no types.
fn has_type(attribute: &AttributeProto, of: &str) -> bool {
    let types = ["", "float", "int", "string", "tensor", "graph", "floats", "ints", "strings"];
    match usize::try_from(attribute.r#type) {
        Ok(0) => true,
        Ok(11) => of == "sparse_tensor",
        Ok(at) => types.get(at).is_some_and(|name| *name == of),
        Err(_) => false,
    }
}

fn is_unusual(attribute: &AttributeProto, field: &Field) -> bool {
    match (field.of, field.usual) {
        (_, "-" | "!") => true,
        ("int", usual) => usual.parse() != Ok(attribute.i),
        ("float", usual) => usual.parse() != Ok(attribute.f),
        ("string", usual) => usual.as_bytes() != attribute.s,
        ("ints", "1 ..") => attribute.ints.iter().any(|&number| number != 1),
        ("ints", usual) => {
            let numbers: Vec<i64> = usual.split(' ').filter_map(|number| number.parse().ok()).collect();
            attribute.ints != numbers
        }
        _ => true,
    }
}

fn usual(field: &Field) -> String {
    match (field.of, field.usual) {
        (_, "-") => "left out".to_owned(),
        (_, "1 ..") => "1".to_owned(),
        ("string", usual) => format!("`{usual}`"),
        (_, usual) => usual.to_owned(),
    }
}

/// The value of an attribute as messages show it.
fn value(attribute: &AttributeProto) -> String {
    fn listed<T: std::fmt::Debug>(all: &[T]) -> String {
        if all.len() <= SHOWN { format!("{all:?}") } else { format!("{} numbers", all.len()) }
    }
    match attribute.r#type {
        1 => format!("{:?}", attribute.f),
        2 => attribute.i.to_string(),
        3 => shown(&String::from_utf8_lossy(&attribute.s)),
        6 => listed(&attribute.floats),
        7 => listed(&attribute.ints),
        0 if !attribute.ints.is_empty() => listed(&attribute.ints),
        0 if !attribute.floats.is_empty() => listed(&attribute.floats),
        0 if !attribute.s.is_empty() => shown(&String::from_utf8_lossy(&attribute.s)),
        0 if attribute.f != 0.0 => format!("{:?}", attribute.f),
        0 => attribute.i.to_string(),
        _ => "..".to_owned(),
    }
}
