//! The error of commands.

/// Any error of a command; its text is printed.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
