//! The two files of our library.

/// Which of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Named as cuDNN is.
    Named,
    /// Without that name, for clients that link cuDNN.
    Plain,
}

impl Form {
    pub const fn file(self) -> &'static str {
        match self {
            Form::Named => "libtightfit_preload.so",
            Form::Plain => "libtightfit_preload_plain.so",
        }
    }
}
