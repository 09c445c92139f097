//! Names of algorithms, which the cache stores, reports print, and calls are rebuilt from.
//!
//! ```text
//! legacy:fft-tiling              an algorithm of the legacy interface
//! engine28                       an engine by its global index, its knobs left to cuDNN
//! engine28:k2=4,k3=0             the same with two knobs set (knob type = value)
//! engine28:k2=4,k3=0@f16-f32     summing in f32 although the problem allows f16
//! packed:engine28                on copies of the tensors without gaps, for a slice whose strides it refuses
//! ```

use std::fmt;
use std::str::FromStr;

use tightfit_conv::candidate::ON_COPIES;

/// The suffix of an algorithm that sums an f16 problem in f32.
const WIDE: &str = "@f16-f32";

/// An algorithm's name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// Its interface.
    pub family: Family,
    /// Whether it sums an f16 problem in f32.
    pub wide: bool,
}

/// One of cuDNN's two interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// The legacy interface, by the algorithm's own name.
    Legacy(String),
    /// The backend interface.
    Engine(Engine),
    /// Either, on copies without gaps of tensors that are views of larger ones.
    Packed(Box<Family>),
}

impl Family {
    /// The interface below the copies.
    pub fn plain(&self) -> &Family {
        match self {
            Family::Packed(inner) => inner.plain(),
            plain => plain,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::Legacy(name) => write!(f, "legacy:{name}"),
            Family::Engine(engine) => write!(f, "{engine}"),
            Family::Packed(inner) => write!(f, "{ON_COPIES}{inner}"),
        }
    }
}

/// An engine and its knobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    /// Global index within the operation's engines.
    pub index: i64,
    /// Knob types and values, by rising type; if empty, cuDNN chooses all of them.
    pub knobs: Vec<(i32, i64)>,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine{}", self.index)?;
        for (place, (knob, value)) in self.knobs.iter().enumerate() {
            write!(f, "{}k{knob}={value}", if place == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.family.fmt(f)?;
        f.write_str(if self.wide { WIDE } else { "" })
    }
}

impl FromStr for Engine {
    type Err = ();

    fn from_str(text: &str) -> Result<Engine, ()> {
        let (index, knobs) = text.strip_prefix("engine").ok_or(())?.split_once(':').unwrap_or((&text[6..], ""));
        let knob = |text: &str| {
            let (knob, value) = text.strip_prefix('k').and_then(|text| text.split_once('=')).ok_or(())?;
            Ok((knob.parse().map_err(|_| ())?, value.parse().map_err(|_| ())?))
        };
        let knobs = knobs.split(',').filter(|knob| !knob.is_empty()).map(knob).collect::<Result<_, ()>>()?;
        Ok(Engine { index: index.parse().map_err(|_| ())?, knobs })
    }
}

impl FromStr for Name {
    type Err = ();

    /// Parses a name that this backend created; the error for anything else is empty, because the name is enough.
    fn from_str(text: &str) -> Result<Name, ()> {
        let (narrow, wide) = text.strip_suffix(WIDE).map_or((text, false), |narrow| (narrow, true));
        let plain = narrow.strip_prefix(ON_COPIES).unwrap_or(narrow);
        let family = match plain.strip_prefix("legacy:") {
            Some(name) => Family::Legacy(name.to_owned()),
            None => Family::Engine(plain.parse()?),
        };
        let family = if plain.len() < narrow.len() { Family::Packed(Box::new(family)) } else { family };
        Ok(Name { family, wide })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_they_read() {
        for text in [
            "legacy:fft-tiling",
            "legacy:algo-0@f16-f32",
            "engine0",
            "engine28:k2=4,k3=0",
            "engine7:k11=-1@f16-f32",
            "packed:legacy:fft",
            "packed:engine28:k2=4@f16-f32",
        ] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn names_of_other_backends_are_rejected() {
        for text in [
            "",
            "winograd-4x4",
            "engine",
            "enginex",
            "engine1:2=3",
            "engine1:k2",
            "engine1:k2=x",
            "packed:packed:engine1",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
