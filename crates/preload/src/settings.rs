//! Reads the settings from the environment. An invalid value is reported on standard error, and every convolution is left
//! unchanged. Paths may be any bytes. The program's calls can change some settings (`limits`).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use tightfit_profile::Cache;
use tightfit_profile::survey::{Divide, Sizes, TuneBudget};
use tightfit_units::{Bytes, Error};

use crate::log::warn;

/// How configurations are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tune {
    /// Measure what the cache lacks between the program's calls, from its second step on.
    Measure,
    /// Measure what the cache lacks before a convolution first runs.
    First,
    /// Use the cache; fall back to [`Tune::Heuristic`] for missing entries.
    Cached,
    /// Use workspace queries alone, and only if the framework's choice does not fit: its own engine on smaller batches,
    /// or else another engine.
    Heuristic,
}

impl Tune {
    /// The mode of this name.
    pub fn named(name: &str) -> Option<Tune> {
        match name {
            "measure" => Some(Tune::Measure),
            "first" => Some(Tune::First),
            "cached" => Some(Tune::Cached),
            "heuristic" => Some(Tune::Heuristic),
            _ => None,
        }
    }
}

/// Which workspace is limited. [`tightfit_conv::candidate::Limit`] has a third: one workspace that all kernels share, which
/// takes knowing in advance which of them overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The workspace of each convolution, to the workspace of the framework's own choice for it.
    Auto,
    /// The workspace of each convolution (WR).
    PerKernel(Bytes),
    /// The workspace of all convolutions together (WD).
    Total(Bytes),
}

impl Limit {
    /// Reads `auto`, or the limit of each convolution.
    ///
    /// # Errors
    /// [`Error::BadSize`].
    pub fn of_each(value: &str) -> Result<Limit, Error> {
        if value == "auto" { Ok(Limit::Auto) } else { value.parse().map(Limit::PerKernel) }
    }

    /// The most that one convolution may use; not known for [`Limit::Auto`], which [`Terms::of_choice`] resolves.
    pub fn bytes(self) -> Bytes {
        match self {
            Limit::Auto => Bytes::UNLIMITED,
            Limit::PerKernel(bytes) | Limit::Total(bytes) => bytes,
        }
    }
}

/// The terms of a decision: the environment's settings, or the program's own in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The limit.
    pub limit: Limit,
    /// The micro-batch sizes to measure and use.
    pub sizes: Sizes,
    /// Along what to divide.
    pub divide: Divide,
    /// How configurations are found.
    pub tune: Tune,
    /// Whether the limit is the workspace of the framework's own choice: then nothing may be worse than that choice.
    pub is_auto: bool,
}

impl Terms {
    /// These terms for a convolution whose own choice asks for this number of bytes.
    pub fn of_choice(self, own: Bytes) -> Terms {
        match self.limit {
            Limit::Auto => Terms { limit: Limit::PerKernel(own), is_auto: true, ..self },
            _ => self,
        }
    }

    /// The micro-batch sizes to measure.
    pub fn micro_batches(self) -> Sizes {
        self.divide.micro_batches(self.sizes)
    }

    /// Whether slices along space are measured as well.
    pub fn slices(self) -> bool {
        self.divide.slices(self.sizes)
    }

    /// The axes that may be divided, in the words of the cache's keys.
    pub fn division(self) -> String {
        match self.divide {
            Divide::Both => self.sizes.to_string(),
            along => format!("{} {along}", self.sizes),
        }
    }

    /// Whether configurations are measured between the program's calls. A kernel that shares a total is measured before
    /// it first runs, because its part of the total is divided once.
    pub fn is_anytime(self) -> bool {
        self.tune == Tune::Measure && !matches!(self.limit, Limit::Total(_))
    }
}

/// The read-only store that is used if the cache has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shipped {
    /// The decisions that come with the library.
    Embedded,
    /// A profile file.
    File(PathBuf),
    /// Nothing.
    None,
}

/// The settings read from the environment variables.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `TIGHTFIT_WORKSPACE` or `TIGHTFIT_TOTAL_WORKSPACE`, or `None` if neither is set: nothing is changed then until a
    /// call sets a limit.
    pub limit: Option<Limit>,
    /// `TIGHTFIT_SIZES`, or its old name `TIGHTFIT_POLICY`.
    pub sizes: Sizes,
    /// `TIGHTFIT_DIVIDE`.
    pub divide: Divide,
    /// `TIGHTFIT_TUNE`.
    pub tune: Tune,
    /// `TIGHTFIT_TUNE_BUDGET`: the most that measuring may take in this process.
    pub budget: TuneBudget,
    /// `TIGHTFIT_QUIET`: no lines about tuning.
    pub is_quiet: bool,
    /// `TIGHTFIT_CACHE`, or `None` for `none`, or without a folder for it.
    pub cache: Option<PathBuf>,
    /// `TIGHTFIT_SHIPPED`: a file, or `none`.
    pub shipped: Shipped,
    /// `TIGHTFIT_DEVICES`: convolutions on other devices are left unchanged, or `None` for all devices.
    pub devices: Option<Vec<usize>>,
    /// `TIGHTFIT_EXACT_CLASS`: use only algorithms of the same numerical class as the framework's choice.
    pub is_exact_class: bool,
    /// `TIGHTFIT_DETERMINISTIC`: use only algorithms that give the same bits every time.
    pub is_deterministic: bool,
    /// `TIGHTFIT_REPORT`, with `%p` for the process ID.
    pub report: Option<PathBuf>,
}

impl Settings {
    /// The report's file, for this process.
    pub fn report_path(&self) -> Option<PathBuf> {
        let name = self.report.as_ref()?.as_os_str().as_bytes();
        let number = std::process::id().to_string();
        let mut filled = Vec::with_capacity(name.len() + number.len());
        let mut rest = name;
        while let Some(at) = rest.windows(2).position(|pair| pair == b"%p") {
            filled.extend_from_slice(&rest[..at]);
            filled.extend_from_slice(number.as_bytes());
            rest = &rest[at + 2..];
        }
        filled.extend_from_slice(rest);
        Some(PathBuf::from(OsString::from_vec(filled)))
    }
}

/// The settings of the environment, or `None` if `TIGHTFIT_OFF` is set or a value is invalid, which is reported.
pub fn of_environment() -> Option<Settings> {
    let environment = |name: &str| std::env::var_os(name);
    if set(&environment, "TIGHTFIT_SIZES").is_none() && set(&environment, "TIGHTFIT_POLICY").is_some() {
        warn!("TIGHTFIT_POLICY is now called TIGHTFIT_SIZES");
    }
    for name in ["TIGHTFIT_WORKSPACE", "TIGHTFIT_TOTAL_WORKSPACE"] {
        let text = text(&environment, name).ok().flatten();
        if let Some(advice) = text.and_then(|text| Bytes::missing_unit(&text)) {
            warn!("{name}: {advice}");
        }
    }
    read(&environment).unwrap_or_else(|wrong| {
        warn!("leaving every convolution unchanged: {wrong}");
        None
    })
}

/// The environment.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads the variables.
///
/// # Errors
/// A sentence that names the variable, its value and the allowed values.
fn read(environment: Environment<'_>) -> Result<Option<Settings>, String> {
    if flag(environment, "TIGHTFIT_OFF")? {
        return Ok(None);
    }
    let limit = |name: &str, read: fn(&str) -> Result<Limit, Error>| -> Result<Option<Limit>, String> {
        let Some(value) = text(environment, name)? else { return Ok(None) };
        read(&value).map(Some).map_err(|error| format!("{name} is {value:?}: {error}"))
    };
    let total: fn(&str) -> Result<Limit, Error> = |value| value.parse().map(Limit::Total);
    let limit = match (limit("TIGHTFIT_WORKSPACE", Limit::of_each)?, limit("TIGHTFIT_TOTAL_WORKSPACE", total)?) {
        (None, None) => None,
        (Some(limit), None) | (None, Some(limit)) => Some(limit),
        (Some(_), Some(_)) => {
            return Err("TIGHTFIT_WORKSPACE and TIGHTFIT_TOTAL_WORKSPACE are both set; set only one".to_owned());
        }
    };
    let mut sizes = Sizes::default();
    for name in ["TIGHTFIT_POLICY", "TIGHTFIT_SIZES"] {
        if let Some(value) = text(environment, name)? {
            sizes = value.parse().map_err(|error| format!("{name} is {value:?}: {error}"))?;
        }
    }
    let divide = match text(environment, "TIGHTFIT_DIVIDE")? {
        None => Divide::default(),
        Some(value) => value.parse().map_err(|error| format!("TIGHTFIT_DIVIDE is {value:?}: {error}"))?,
    };
    let tune = match text(environment, "TIGHTFIT_TUNE")? {
        None => Tune::Measure,
        Some(value) => Tune::named(&value)
            .ok_or_else(|| format!("TIGHTFIT_TUNE is {value:?}; use measure, first, cached or heuristic"))?,
    };
    let budget = match text(environment, "TIGHTFIT_TUNE_BUDGET")? {
        None => TuneBudget::default(),
        Some(value) => value.parse().map_err(|error| format!("TIGHTFIT_TUNE_BUDGET is {value:?}: {error}"))?,
    };
    let devices = text(environment, "TIGHTFIT_DEVICES")?.map(|value| {
        let numbers = value.split(',').map(|number| number.trim().parse::<usize>());
        numbers
            .collect::<Result<Vec<usize>, _>>()
            .map_err(|_| format!("TIGHTFIT_DEVICES is {value:?}; use device numbers such as 0,1"))
    });
    Ok(Some(Settings {
        limit,
        sizes,
        divide,
        tune,
        budget,
        // Under a budget, messages are about the budget, unless details are asked for.
        is_quiet: flag(environment, "TIGHTFIT_QUIET")?
            || text(environment, "TIGHTFIT_BUDGET")?.is_some() && !flag(environment, "TIGHTFIT_VERBOSE")?,
        cache: Cache::default_path(|name| environment(name)),
        shipped: match path(environment, "TIGHTFIT_SHIPPED") {
            None => Shipped::Embedded,
            Some(path) if path.as_os_str() == "none" => Shipped::None,
            Some(path) => Shipped::File(path),
        },
        devices: devices.transpose()?,
        is_exact_class: flag(environment, "TIGHTFIT_EXACT_CLASS")?,
        is_deterministic: flag(environment, "TIGHTFIT_DETERMINISTIC")?,
        report: path(environment, "TIGHTFIT_REPORT"),
    }))
}

/// The value of a variable, or `None` if it is unset or empty.
fn set(environment: Environment<'_>, name: &str) -> Option<OsString> {
    environment(name).filter(|value| !value.is_empty())
}

fn path(environment: Environment<'_>, name: &str) -> Option<PathBuf> {
    set(environment, name).map(PathBuf::from)
}

/// A variable as text.
///
/// # Errors
/// A sentence that names the variable, if its value is not text.
fn text(environment: Environment<'_>, name: &str) -> Result<Option<String>, String> {
    let unreadable = |value: OsString| format!("{name} is {value:?}, which is not UTF-8");
    set(environment, name).map(OsString::into_string).transpose().map_err(unreadable)
}

fn flag(environment: Environment<'_>, name: &str) -> Result<bool, String> {
    match text(environment, name)?.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(value) => Err(format!("{name} is {value:?}; use 0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(pairs: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let pairs: Vec<(&str, &[u8])> = pairs.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        read_bytes(&pairs)
    }

    fn read_bytes(pairs: &[(&str, &[u8])]) -> Result<Option<Settings>, String> {
        let find = |name: &str| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from_vec(value.to_vec()))
        };
        read(&find)
    }

    #[test]
    fn when_off_there_are_no_settings_and_by_default_no_limit() {
        assert_eq!(read_from(&[]).unwrap().unwrap().limit, None);
        let all = read_from(&[("TIGHTFIT_SIZES", "all")]).unwrap().unwrap();
        assert_eq!((all.limit, all.sizes), (None, Sizes::All));
        assert_eq!(read_from(&[("TIGHTFIT_WORKSPACE", "64MiB"), ("TIGHTFIT_OFF", "1")]), Ok(None));
    }

    #[test]
    fn every_variable_is_read() {
        let settings = read_from(&[
            ("TIGHTFIT_TOTAL_WORKSPACE", "1GiB"),
            ("TIGHTFIT_POLICY", "all"),
            ("TIGHTFIT_SIZES", "power-of-two"),
            ("TIGHTFIT_DIVIDE", "space"),
            ("TIGHTFIT_TUNE", "cached"),
            ("TIGHTFIT_TUNE_BUDGET", "30s"),
            ("TIGHTFIT_QUIET", "1"),
            ("TIGHTFIT_CACHE", "/tmp/a.db"),
            ("TIGHTFIT_SHIPPED", "/tmp/a.jsonl.gz"),
            ("TIGHTFIT_DEVICES", "0, 2"),
            ("TIGHTFIT_EXACT_CLASS", "1"),
            ("TIGHTFIT_DETERMINISTIC", "1"),
            ("TIGHTFIT_REPORT", "r-%p.json"),
        ]);
        let expected = Settings {
            limit: Some(Limit::Total(Bytes::gib(1))),
            sizes: Sizes::PowerOfTwo,
            divide: Divide::Space,
            tune: Tune::Cached,
            budget: "30s".parse().unwrap(),
            is_quiet: true,
            cache: Some("/tmp/a.db".into()),
            shipped: Shipped::File("/tmp/a.jsonl.gz".into()),
            devices: Some(vec![0, 2]),
            is_exact_class: true,
            is_deterministic: true,
            report: Some("r-%p.json".into()),
        };
        assert_eq!(settings, Ok(Some(expected)));
        let default = read_from(&[("TIGHTFIT_WORKSPACE", "64MiB"), ("HOME", "/h")]).unwrap().unwrap();
        assert_eq!((default.sizes, default.divide, default.tune), (Sizes::Fit, Divide::Both, Tune::Measure));
        assert_eq!((default.budget, default.is_quiet), ("10s".parse().unwrap(), false));
        let budget = [("TIGHTFIT_WORKSPACE", "auto"), ("TIGHTFIT_BUDGET", "8GiB"), ("TIGHTFIT_VERBOSE", "1")];
        let [brief, verbose] = [&budget[..2], &budget[..]].map(|pairs| read_from(pairs).unwrap().unwrap().is_quiet);
        assert_eq!((brief, verbose), (true, false));
        let auto = read_from(&[("TIGHTFIT_WORKSPACE", "auto"), ("TIGHTFIT_TUNE", "first")]).unwrap().unwrap();
        assert_eq!((auto.limit, auto.tune), (Some(Limit::Auto), Tune::First));
        assert_eq!(default.cache, Some("/h/.cache/tightfit/cache.db".into()));
        assert_eq!(default.shipped, Shipped::Embedded);
        let none = read_from(&[("TIGHTFIT_SHIPPED", "none")]).unwrap().unwrap();
        assert_eq!(none.shipped, Shipped::None);
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_variable() {
        let size = ("TIGHTFIT_WORKSPACE", "64MiB");
        for (name, value) in [
            ("TIGHTFIT_WORKSPACE", "64 apples"),
            ("TIGHTFIT_TOTAL_WORKSPACE", "1GiB"),
            ("TIGHTFIT_SIZES", "some"),
            ("TIGHTFIT_POLICY", "some"),
            ("TIGHTFIT_DIVIDE", "time"),
            ("TIGHTFIT_TUNE", "guess"),
            ("TIGHTFIT_TUNE_BUDGET", "soon"),
            ("TIGHTFIT_QUIET", "maybe"),
            ("TIGHTFIT_TOTAL_WORKSPACE", "auto"),
            ("TIGHTFIT_DEVICES", "first"),
            ("TIGHTFIT_EXACT_CLASS", "maybe"),
            ("TIGHTFIT_DETERMINISTIC", "maybe"),
            ("TIGHTFIT_OFF", "maybe"),
        ] {
            let wrong = read_from(&[(name, value), size]).unwrap_err();
            assert!(wrong.contains(name), "{wrong}");
        }
    }
    #[test]
    fn values_that_are_not_utf_8_are_allowed_only_in_paths() {
        let (size, bytes) = (("TIGHTFIT_WORKSPACE", b"64MiB".as_slice()), b"\xff1".as_slice());
        for name in [
            "TIGHTFIT_WORKSPACE",
            "TIGHTFIT_TOTAL_WORKSPACE",
            "TIGHTFIT_SIZES",
            "TIGHTFIT_POLICY",
            "TIGHTFIT_DIVIDE",
            "TIGHTFIT_TUNE",
            "TIGHTFIT_TUNE_BUDGET",
            "TIGHTFIT_DEVICES",
            "TIGHTFIT_EXACT_CLASS",
            "TIGHTFIT_DETERMINISTIC",
            "TIGHTFIT_OFF",
        ] {
            let wrong = read_bytes(&[(name, bytes), size]).unwrap_err();
            assert!(wrong.contains(name) && wrong.contains("not UTF-8") && wrong.contains("xFF1"), "{wrong}");
            assert_eq!(wrong.lines().count(), 1, "{wrong}");
        }
        let file = |name: &str, end: &str| {
            let mut path = b"/tmp/\xfe".to_vec();
            path.extend(end.as_bytes());
            let settings = read_bytes(&[(name, b"/tmp/\xfe"), size]).unwrap().unwrap();
            assert_eq!(settings.cache, Some(PathBuf::from(OsString::from_vec(path))), "{name}");
        };
        file("TIGHTFIT_CACHE", "");
        file("XDG_CACHE_HOME", "/tightfit/cache.db");
        file("HOME", "/.cache/tightfit/cache.db");
        let settings = read_bytes(&[("TIGHTFIT_REPORT", b"%p/\xfe%%p"), size]).unwrap().unwrap();
        let number = std::process::id();
        let expected = [format!("{number}/").as_bytes(), b"\xfe%", number.to_string().as_bytes()].concat();
        assert_eq!(settings.report_path(), Some(PathBuf::from(OsString::from_vec(expected))));
    }
}
