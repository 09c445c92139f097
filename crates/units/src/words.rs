//! Enumerations with names in options and files, and how far words are apart.

/// Implements writing and reading of an enumeration by its `name()`, searching its `ALL`; errors refer to it as `what`.
#[macro_export]
macro_rules! by_name {
    ($enumeration:ident, $what:literal) => {
        impl std::fmt::Display for $enumeration {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $enumeration {
            type Err = $crate::Error;

            /// # Errors
            #[doc = concat!("[`Error::UnknownWord`](tightfit_units::Error::UnknownWord), which lists all ", $what, ".")]
            fn from_str(text: &str) -> Result<$enumeration, $crate::Error> {
                $enumeration::ALL
                    .into_iter()
                    .find(|one| one.name() == text)
                    .ok_or_else(|| $crate::Error::unknown_word($what, text, $enumeration::ALL.map($enumeration::name)))
            }
        }
    };
}

/// How many letters are added, left out, changed or swapped with the next, from one word to the other.
///
/// ```
/// use tightfit_units::distance;
///
/// assert_eq!(distance("plan", "plna"), 1);
/// assert_eq!(distance("kitten", "sitting"), 3);
/// ```
pub fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}
