//! The error type: its subject, the value it got, the value it expected, and a hint.

use std::fmt;

/// The kind of an [`Error`], for programs that react to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A length, rank, stride or level description does not fit the problem.
    Shape,
    /// An element type does not fit the problem, or the combination is not supported.
    Type,
    /// A product of sizes does not fit the address space.
    Overflow,
    /// The backend or machine cannot do this.
    Unsupported,
    /// A file or text is malformed.
    Format,
    /// The device or its driver reported a failure.
    Device,
    /// Memory could not be allocated.
    Memory,
    /// A kernel could not be compiled.
    Compile,
}

/// An argument of the operator that an [`Error`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Argument {
    /// The value.
    Value,
    /// Locations; in the fused form, offsets.
    Locations,
    /// Weights; in the fused form, logits.
    Weights,
    /// Reference points of the fused form.
    Reference,
    /// The output.
    Output,
    /// Heights and widths of the levels.
    Levels,
    /// First positions of the levels.
    Starts,
}

impl Argument {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Locations => "locations",
            Self::Weights => "weights",
            Self::Reference => "reference",
            Self::Output => "output",
            Self::Levels => "levels",
            Self::Starts => "level starts",
        }
    }
}

/// A refused call. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    argument: Option<Argument>,
    subject: String,
    got: String,
    expected: String,
    hint: Option<String>,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error about `subject`, with the value it `got` and the value it `expected`.
    pub fn new(
        kind: ErrorKind,
        subject: impl Into<String>,
        got: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self {
            kind,
            argument: None,
            subject: subject.into(),
            got: got.to_string(),
            expected: expected.to_string(),
            hint: None,
        }
    }

    pub(crate) fn shape(
        subject: impl Into<String>,
        got: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::new(ErrorKind::Shape, subject, got, expected)
    }

    pub(crate) fn overflow(
        subject: impl Into<String>,
        got: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::new(ErrorKind::Overflow, subject, got, expected)
    }

    /// Names the argument that the error is about.
    #[must_use]
    pub(crate) fn of(mut self, argument: Argument) -> Self {
        self.argument = Some(argument);
        self
    }

    /// Adds advice. `Display` prints it on a separate line that starts with `hint:`.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The kind of mistake.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The argument of the operator that the error is about, if it is about one.
    pub fn argument(&self) -> Option<Argument> {
        self.argument
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: got {}, expected {}", self.subject, self.got, self.expected)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}
