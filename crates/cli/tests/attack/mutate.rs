//! Damages bytes, text and JSON.

use serde_json::Value;

use super::generator::Generator;

/// Numbers at the edges of the types and limits that a number may meet.
pub const NUMBERS: [&str; 30] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "255",
    "256",
    "65536",
    "1048576",
    "1048577",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e9",
    "1e18",
    "1e308",
    "1e999",
    "-0",
    "0.5",
    "1e-320",
    "NaN",
    "null",
];
/// Numbers that some field takes in and some reader of it cannot.
const EDGES: [&str; 6] = ["0", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551615", "1e308"];
/// Words that are no name of anything, or of something else.
pub const WORDS: [&str; 16] = [
    "",
    " ",
    "?",
    "none",
    "input",
    "conv1",
    "direct",
    "./.././",
    "%s%n",
    "\u{1b}[31m",
    "\u{202e}txt",
    "é\u{0301}",
    "\u{0}",
    "a\nb\tc\"d\\",
    "ⅷ٣",
    "null",
];

/// Damages bytes without knowing what they are: flips, cuts, holes, and blocks in other places.
pub fn bytes(bytes: &mut Vec<u8>, random: &mut Generator) {
    if bytes.is_empty() {
        return bytes.push(random.number() as u8);
    }
    let at = random.below(bytes.len());
    let most = if random.one_in(2) { 16 } else { 4096 };
    let length = (1 + random.below(most)).min(bytes.len() - at);
    match random.below(8) {
        0..=2 => {
            for _ in 0..=random.below(8) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..at + length)),
        5 => bytes[at..at + length].fill(*random.pick(&[0, 0xff, b' ', b'9'])),
        6 => {
            let block = bytes[at..at + length].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, block);
        }
        _ => {
            let to = random.below(bytes.len() - length + 1);
            let block = bytes[at..at + length].to_vec();
            bytes[to..to + length].copy_from_slice(&block);
        }
    }
}

/// Damages text: numbers, words, lines, and at times bytes.
pub fn text(text: &mut Vec<u8>, random: &mut Generator) {
    match random.below(10) {
        0..=3 => {
            if let Some((start, end)) = token(text, u8::is_ascii_digit, random) {
                text.splice(start..end, random.pick(&NUMBERS).bytes());
            }
        }
        4..=5 => {
            if let Some((start, end)) = token(text, u8::is_ascii_alphabetic, random) {
                let other = token(text, u8::is_ascii_alphabetic, random).map(|(start, end)| text[start..end].to_vec());
                let word = random.pick(&WORDS).as_bytes().to_vec();
                text.splice(start..end, other.filter(|_| random.one_in(2)).unwrap_or(word));
            }
        }
        6..=7 => lines(text, random),
        8 => {
            let at = random.below(text.len() + 1);
            let long = vec![b'9'; 100_000];
            let odd: [&[u8]; 8] = [b"\r\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\t", b"#", b"[[[[[[[[", &long];
            text.splice(at..at, random.pick(&odd).iter().copied());
        }
        _ => bytes(text, random),
    }
}

/// Where the first run of such bytes after a random place is.
fn token(text: &[u8], kind: fn(&u8) -> bool, random: &mut Generator) -> Option<(usize, usize)> {
    let from = random.below(text.len().max(1));
    let start = from + text[from.min(text.len())..].iter().position(kind)?;
    let length = text[start..].iter().take_while(|byte| kind(byte)).count();
    Some((start, start + length))
}

/// Drops, doubles or moves a line.
fn lines(text: &mut Vec<u8>, random: &mut Generator) {
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if lines.is_empty() {
        return;
    }
    let line = lines.remove(random.below(lines.len()));
    match random.below(3) {
        0 => {}
        1 => {
            let copies = if random.one_in(8) { 1000 } else { 2 };
            let at = random.below(lines.len() + 1);
            lines.splice(at..at, vec![line; copies]);
        }
        _ => lines.insert(random.below(lines.len() + 1), line),
    }
    *text = lines.concat();
}

/// Damages one value of a document, or where it is, so that the document can still be read as JSON.
pub fn json(document: &mut Value, random: &mut Generator) {
    let mut places = Vec::new();
    pointers(document, &mut String::new(), &mut places);
    // Most values are deep in long lists; the few above them have as many turns.
    let place = if random.one_in(2) { random.pick(&places).clone() } else { descend(document, random) };
    let other = random.pick(&places);
    let other = document.pointer(other).cloned().unwrap_or(Value::Null);
    let Some((parent, _)) = place.rsplit_once('/') else {
        return *document = scalar(random);
    };
    match random.below(8) {
        0..=2 => *at(document, &place) = scalar(random),
        3 => {
            // The neighbor of a number is nearer to an accepted value than any edge.
            let near = at(document, &place).as_u64().map(|number| match random.below(4) {
                0 => number.wrapping_add(1),
                1 => number.wrapping_sub(1),
                2 => number.wrapping_mul(2),
                _ => number.wrapping_add(256),
            });
            *at(document, &place) = near.map_or(other, Value::from);
        }
        4 => *at(document, &place) = other,
        5 => {
            let deep = (0..1 + random.below(200)).fold(other, |inner, _| Value::Array(vec![inner]));
            *at(document, &place) = deep;
        }
        _ => siblings(at(document, parent), random),
    }
}

/// The value of a pointer that was found in this document.
fn at<'a>(document: &'a mut Value, pointer: &str) -> &'a mut Value {
    document.pointer_mut(pointer).unwrap()
}

/// Drops, doubles, renames or exchanges entries of a list or an object.
fn siblings(parent: &mut Value, random: &mut Generator) {
    match parent {
        Value::Array(list) if !list.is_empty() => {
            let (one, other) = (random.below(list.len()), random.below(list.len()));
            match random.below(3) {
                0 => drop(list.remove(one)),
                1 => list.insert(other, list[one].clone()),
                _ => list.swap(one, other),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let names: Vec<String> = fields.keys().cloned().collect();
            let (one, other) = (random.pick(&names), random.pick(&names));
            let value = fields.remove(one).unwrap_or_default();
            match random.below(3) {
                0 => {}
                1 => drop(fields.insert((*random.pick(&WORDS)).to_owned(), value)),
                _ => {
                    if let Some(second) = fields.insert(other.clone(), value) {
                        fields.insert(one.clone(), second);
                    }
                }
            }
        }
        _ => {}
    }
}

/// A value with no parts.
fn scalar(random: &mut Generator) -> Value {
    match random.below(10) {
        0..=2 => random.pick(&EDGES).parse::<serde_json::Number>().map_or(Value::Null, Value::Number),
        3..=4 => random.pick(&NUMBERS).parse::<serde_json::Number>().map_or(Value::Null, Value::Number),
        5 => Value::Bool(random.one_in(2)),
        6 => Value::Null,
        7 => Value::Array(Vec::new()),
        8 => Value::String("x".repeat(100_000)),
        _ => Value::String((*random.pick(&WORDS)).to_owned()),
    }
}

/// The pointer of a value that is met by taking any way down, and stopping anywhere.
fn descend(document: &Value, random: &mut Generator) -> String {
    let mut place = String::new();
    loop {
        let names: Vec<String> = match document.pointer(&place) {
            Some(Value::Array(list)) => (0..list.len()).map(|index| index.to_string()).collect(),
            Some(Value::Object(fields)) => fields.keys().map(|name| escaped(name)).collect(),
            _ => Vec::new(),
        };
        if names.is_empty() || random.one_in(6) {
            return place;
        }
        place = format!("{place}/{}", random.pick(&names));
    }
}

/// A field's name as JSON pointers have it.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The pointers of a document's values, in order.
fn pointers(value: &Value, prefix: &mut String, found: &mut Vec<String>) {
    found.push(prefix.clone());
    let length = prefix.len();
    let mut step = |name: &str, inner: &Value| {
        prefix.push('/');
        prefix.push_str(&escaped(name));
        pointers(inner, prefix, found);
        prefix.truncate(length);
    };
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(index, inner)| step(&index.to_string(), inner)),
        Value::Object(fields) => fields.iter().for_each(|(name, inner)| step(name, inner)),
        _ => {}
    }
}
