//! Every attribute, input and output of ONNX's operators that this reader knows, version by version, and what becomes of
//! each: `operators.tsv`.
//!
//! ```text
//! operator  from  to  kind       name       type  usual  read
//! MaxPool   7     28  operator   -          -     -      runs
//! MaxPool   10    28  attribute  dilations  ints  1 ..   planned
//! ```
//!
//! Every node is checked against this table before it is read, and attributes are read only through it. A field that the table does not list is
//! refused by name, even if a later version adds it.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

/// The versions of ONNX's operators ("opset") that are known, attribute by attribute. Files of other versions are refused.
pub const KNOWN_VERSIONS: RangeInclusive<i64> = 7..=28;

/// The treatment of a field whose value is not the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The code reads it, and refuses values itself.
    Honored,
    /// It changes no result; the note gives the reason.
    Moot,
    /// It does not change sizes, so the node is planned, but it does not run.
    Planned,
    /// The node is refused. A refused output is reported by its reader.
    Refused,
}

/// The kind of an operator's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An attribute.
    Attribute,
    /// An input, in the order of the table.
    Input,
    /// An output, in the order of the table.
    Output,
}

/// An attribute, an input or an output.
#[derive(Clone, Debug)]
pub struct Field {
    /// The versions of ONNX's operators that have it.
    pub versions: RangeInclusive<i64>,
    /// Its kind.
    pub kind: FieldKind,
    /// Its name in ONNX's definition.
    pub name: &'static str,
    /// The type of an attribute; `one`, `optional` or `many` for inputs and outputs.
    pub of: &'static str,
    /// The default: `-` for no default, `!` for a field that must be given, `1 ..` for ones.
    pub usual: &'static str,
    /// The treatment of other values.
    pub read: Read,
}

/// An operator.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The versions that have it.
    pub versions: RangeInclusive<i64>,
    /// Whether nodes of it can run, alone or as part of another operation.
    pub runs: bool,
    fields: Vec<Field>,
}

impl Operator {
    /// The fields of a kind in a version, in order.
    pub fn fields(&self, kind: FieldKind, version: i64) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |field| field.kind == kind && field.versions.contains(&version))
    }
}

/// An operator of ONNX's own, if it is in the table.
pub fn operator(name: &str) -> Option<&'static Operator> {
    static TABLE: LazyLock<HashMap<&str, Operator>> = LazyLock::new(|| read(include_str!("operators.tsv")));
    TABLE.get(name)
}

/// Reads the operators of a table. Invalid lines are skipped; a test finds them.
fn read(text: &'static str) -> HashMap<&'static str, Operator> {
    let mut all: HashMap<&str, Operator> = HashMap::new();
    for line in text.lines().skip(1) {
        let columns: Vec<&'static str> = line.split('\t').collect();
        let [name, from, to, kind, field, of, usual, read, _note] = columns[..] else { continue };
        let (Ok(from), Ok(to)) = (from.parse(), to.parse()) else { continue };
        if kind == "operator" {
            let runs = read == "runs";
            all.insert(name, Operator { versions: from..=to, runs, fields: Vec::new() });
        } else if let (Some(operator), Some(kind), Some(read)) = (all.get_mut(name), kind_of(kind), read_of(read)) {
            operator.fields.push(Field { versions: from..=to, kind, name: field, of, usual, read });
        }
    }
    all
}

fn kind_of(text: &str) -> Option<FieldKind> {
    Some(match text {
        "attribute" => FieldKind::Attribute,
        "input" => FieldKind::Input,
        "output" => FieldKind::Output,
        _ => return None,
    })
}

fn read_of(text: &str) -> Option<Read> {
    Some(match text {
        "honored" => Read::Honored,
        "moot" => Read::Moot,
        "planned" => Read::Planned,
        "refused" => Read::Refused,
        _ => return None,
    })
}

/// Refuses a version whose operators are not known.
pub fn check_version(version: Option<i64>) -> Result<i64, String> {
    let (first, last) = KNOWN_VERSIONS.into_inner();
    let next = format!("versions {first} to {last} are known: export the model with opset_version={last} or below");
    match version {
        None => Err(format!("the file does not say the version of its operators; {next}")),
        Some(version) if KNOWN_VERSIONS.contains(&version) => Ok(version),
        Some(version) => Err(format!("its operators are of version {version}; {next}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let text = include_str!("operators.tsv");
        let table = read(text);
        let fields: usize = table.values().map(|operator| operator.fields.len()).sum();
        assert_eq!(table.len() + fields, text.lines().count() - 1);
    }

    #[test]
    fn every_field_is_in_versions_that_have_its_operator() {
        let table = read(include_str!("operators.tsv"));
        for (name, operator) in &table {
            for field in &operator.fields {
                let (from, to) = (field.versions.start(), field.versions.end());
                assert!(operator.versions.contains(from) && operator.versions.contains(to), "{name} {}", field.name);
                assert!(KNOWN_VERSIONS.contains(from) && KNOWN_VERSIONS.contains(to), "{name} {}", field.name);
            }
        }
    }

    #[test]
    fn moot_fields_say_why() {
        let moot = |line: &&str| line.split('\t').nth(7) == Some("moot");
        for line in include_str!("operators.tsv").lines().filter(moot) {
            assert!(line.split('\t').nth(8).is_some_and(|note| !note.is_empty()), "{line}");
        }
    }
}
