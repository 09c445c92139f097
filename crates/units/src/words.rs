//! Enumerations with names in options and files.

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
