//! Reads the pickles in which CIFAR's Python files keep their images and labels: dictionaries of texts, whole numbers, lists and arrays of
//! bytes. Anything else in a pickle is refused by name, and nothing of it is run.

use std::collections::HashMap;

/// A value of a pickle.
#[derive(Clone, Debug)]
enum Value {
    Mark,
    /// A number, or something that is read and not needed: `None`, a truth value.
    Number(i64),
    /// Text or bytes.
    Bytes(Vec<u8>),
    /// The places of the parts.
    Tuple(Vec<usize>),
    List(Vec<usize>),
    Dictionary(Vec<(usize, usize)>),
    /// A function or class by its module and name.
    Name(String),
    /// An array: its extents, and its bytes once they have been read.
    Array(Vec<usize>, Vec<u8>),
    /// The type of an array's numbers.
    Type(Vec<u8>),
}

/// The images and labels of a dictionary, the content of a CIFAR file in Python's form.
#[derive(Debug)]
pub struct Entries {
    /// Lists of numbers, by key.
    pub lists: HashMap<String, Vec<i64>>,
    /// Arrays of bytes, by key: extents and content.
    pub arrays: HashMap<String, (Vec<usize>, Vec<u8>)>,
}

/// Reads a pickle of protocol 2 to 5.
///
/// # Errors
/// The reason why it is not one that CIFAR's files have.
pub fn read(bytes: &[u8]) -> Result<Entries, String> {
    let mut machine = Machine { bytes, at: 0, values: Vec::new(), stack: Vec::new(), memo: HashMap::new() };
    let top = machine.run()?;
    machine.entries(top)
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// All values made so far; the stack and the memo hold their places, since both may name the same one.
    values: Vec<Value>,
    stack: Vec<usize>,
    memo: HashMap<u64, usize>,
}

const ENDS: &str = "the pickle ends early; it may be truncated";
const UNREADABLE: &str = "the pickle is damaged";

impl<'a> Machine<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len()).ok_or(ENDS)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number of this many bytes.
    fn number(&mut self, len: usize) -> Result<u64, String> {
        Ok(self.take(len)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Bytes with their length before them, in this many bytes.
    fn counted(&mut self, len: usize) -> Result<Vec<u8>, String> {
        let count = usize::try_from(self.number(len)?).map_err(|_| ENDS)?;
        Ok(self.take(count)?.to_vec())
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or(ENDS)?;
        let line = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.at += 1;
        Ok(line)
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
    }

    fn pop(&mut self) -> Result<usize, String> {
        self.stack.pop().ok_or_else(|| UNREADABLE.to_owned())
    }

    fn text(&self, place: usize) -> String {
        match &self.values[place] {
            Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }

    /// The values since the last mark.
    fn since_mark(&mut self) -> Result<Vec<usize>, String> {
        let mark = self.stack.iter().rposition(|&place| matches!(self.values[place], Value::Mark)).ok_or(UNREADABLE)?;
        let since = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(since)
    }

    fn last_of<const N: usize>(&mut self) -> Result<Vec<usize>, String> {
        let at = self.stack.len().checked_sub(N).ok_or(UNREADABLE)?;
        Ok(self.stack.split_off(at))
    }

    fn append(&mut self, more: Vec<usize>) -> Result<(), String> {
        match self.stack.last().map(|&place| &mut self.values[place]) {
            Some(Value::List(list)) => list.extend(more),
            _ => return Err(UNREADABLE.to_owned()),
        }
        Ok(())
    }

    fn set(&mut self, more: &[usize]) -> Result<(), String> {
        match self.stack.last().map(|&place| &mut self.values[place]) {
            Some(Value::Dictionary(pairs)) => {
                pairs.extend(more.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value)))
            }
            _ => return Err(UNREADABLE.to_owned()),
        }
        Ok(())
    }

    fn memorize(&mut self, key: u64) -> Result<(), String> {
        let top = *self.stack.last().ok_or(UNREADABLE)?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), String> {
        let place = *self.memo.get(&key).ok_or(UNREADABLE)?;
        self.stack.push(place);
        Ok(())
    }

    /// Runs the opcodes, and returns the place of the pickle's value.
    fn run(&mut self) -> Result<usize, String> {
        loop {
            match self.take(1)?[0] {
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'.' => return self.pop(),
                b'(' => self.push(Value::Mark),
                b'0' => drop(self.pop()?),
                b'N' | 0x89 => self.push(Value::Number(0)),
                0x88 => self.push(Value::Number(1)),
                b'K' => self.of_number(1)?,
                b'M' => self.of_number(2)?,
                b'J' => {
                    let number = self.number(4)? as u32;
                    self.push(Value::Number(i64::from(number.cast_signed())));
                }
                0x8a => {
                    let len = self.number(1)? as usize;
                    if len > 8 {
                        return Err("a number of more than 64 bits".to_owned());
                    }
                    let unused = 64 - 8 * len as u32;
                    let number = self.number(len)?.checked_shl(unused).unwrap_or(0).cast_signed();
                    self.push(Value::Number(number.checked_shr(unused).unwrap_or(0)));
                }
                b'U' | b'C' | 0x8c => self.of_bytes(1)?,
                b'T' | b'B' | b'X' => self.of_bytes(4)?,
                0x8d | 0x8e | 0x96 => self.of_bytes(8)?,
                b')' => self.push(Value::Tuple(Vec::new())),
                b']' => self.push(Value::List(Vec::new())),
                b'}' => self.push(Value::Dictionary(Vec::new())),
                b't' => {
                    let parts = self.since_mark()?;
                    self.push(Value::Tuple(parts));
                }
                0x85 => self.of_tuple::<1>()?,
                0x86 => self.of_tuple::<2>()?,
                0x87 => self.of_tuple::<3>()?,
                b'a' => {
                    let one = self.pop()?;
                    self.append(vec![one])?;
                }
                b'e' => {
                    let more = self.since_mark()?;
                    self.append(more)?;
                }
                b's' => {
                    let more = self.last_of::<2>()?;
                    self.set(&more)?;
                }
                b'u' => {
                    let more = self.since_mark()?;
                    self.set(&more)?;
                }
                b'q' => self.number(1).and_then(|key| self.memorize(key))?,
                b'r' => self.number(4).and_then(|key| self.memorize(key))?,
                0x94 => self.memorize(self.memo.len() as u64)?,
                b'h' => self.number(1).and_then(|key| self.recall(key))?,
                b'j' => self.number(4).and_then(|key| self.recall(key))?,
                b'c' => {
                    let name = format!("{}.{}", self.line()?, self.line()?);
                    self.push(Value::Name(name));
                }
                0x93 => {
                    let words = self.last_of::<2>()?;
                    let name = format!("{}.{}", self.text(words[0]), self.text(words[1]));
                    self.push(Value::Name(name));
                }
                b'R' => self.call()?,
                b'b' => self.build()?,
                other => return Err(format!("the opcode {other:#04x}, which these files do not have")),
            }
        }
    }

    fn of_number(&mut self, len: usize) -> Result<(), String> {
        // At most two bytes.
        let number = self.number(len)? as i64;
        self.push(Value::Number(number));
        Ok(())
    }

    fn of_bytes(&mut self, len: usize) -> Result<(), String> {
        let bytes = self.counted(len)?;
        self.push(Value::Bytes(bytes));
        Ok(())
    }

    fn of_tuple<const N: usize>(&mut self) -> Result<(), String> {
        let parts = self.last_of::<N>()?;
        self.push(Value::Tuple(parts));
        Ok(())
    }

    /// Calls one of the few functions with which pickles create numpy's arrays of bytes.
    fn call(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Name(name), Value::Tuple(arguments)) = (&self.values[function], &self.values[arguments]) else {
            return Err(UNREADABLE.to_owned());
        };
        let first = arguments.first().map(|&place| &self.values[place]);
        let made = match (name.as_str(), first) {
            ("numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct", _) => {
                Value::Array(Vec::new(), Vec::new())
            }
            ("numpy.dtype", Some(Value::Bytes(name))) => Value::Type(name.clone()),
            ("_codecs.encode", Some(Value::Bytes(text))) => {
                // Bytes as text, a character each.
                let text = String::from_utf8_lossy(text);
                Value::Bytes(
                    text.chars()
                        .map(|letter| u8::try_from(u32::from(letter)).map_err(|_| UNREADABLE))
                        .collect::<Result<_, _>>()?,
                )
            }
            _ => return Err(format!("{name}, which these files do not have")),
        };
        self.push(made);
        Ok(())
    }

    /// Fills an array with its extents and content, from a tuple of version, extents, type, order and bytes.
    fn build(&mut self) -> Result<(), String> {
        let (state, object) = (self.pop()?, *self.stack.last().ok_or(UNREADABLE)?);
        match (&self.values[object], &self.values[state]) {
            (Value::Type(_), Value::Tuple(_)) => Ok(()),
            (Value::Array(..), Value::Tuple(parts)) => {
                let [_, extents, kind, order, content] = parts[..] else { return Err(UNREADABLE.to_owned()) };
                let (Value::Tuple(extents), Value::Type(kind), Value::Number(order), Value::Bytes(content)) =
                    (&self.values[extents], &self.values[kind], &self.values[order], &self.values[content])
                else {
                    return Err(UNREADABLE.to_owned());
                };
                if kind != b"u1" || *order != 0 {
                    let kind = String::from_utf8_lossy(kind);
                    return Err(format!("an array of type {kind} in order {order}, not of bytes in rows"));
                }
                let extents = extents.iter().map(|&place| match self.values[place] {
                    Value::Number(extent) => usize::try_from(extent).map_err(|_| UNREADABLE.to_owned()),
                    _ => Err(UNREADABLE.to_owned()),
                });
                self.values[object] = Value::Array(extents.collect::<Result<_, _>>()?, content.clone());
                Ok(())
            }
            _ => Err(UNREADABLE.to_owned()),
        }
    }

    fn entries(&self, place: usize) -> Result<Entries, String> {
        let Value::Dictionary(pairs) = &self.values[place] else {
            return Err("the pickle holds no dictionary".to_owned());
        };
        let mut entries = Entries { lists: HashMap::new(), arrays: HashMap::new() };
        for &(key, value) in pairs {
            match &self.values[value] {
                Value::List(list) => {
                    let numbers = list.iter().map(|&place| match self.values[place] {
                        Value::Number(number) => Some(number),
                        _ => None,
                    });
                    if let Some(numbers) = numbers.collect() {
                        entries.lists.insert(self.text(key), numbers);
                    }
                }
                Value::Array(extents, content) => {
                    entries.arrays.insert(self.text(key), (extents.clone(), content.clone()));
                }
                _ => {}
            }
        }
        Ok(entries)
    }
}
