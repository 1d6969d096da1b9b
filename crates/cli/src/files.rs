//! Files that commands read; `-` is standard input.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::exact;
use crate::failure::Failure;

/// The bytes of a file.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    if file == Path::new("-") {
        let mut read = Vec::new();
        std::io::stdin().lock().read_to_end(&mut read)?;
        return Ok(read);
    }
    std::fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()).into())
}

/// The JSON in a file.
pub(crate) fn read_json(file: &Path) -> Result<Value, Failure> {
    let bad = |why: &dyn std::fmt::Display| format!("{} is not JSON: {why}", file.display()).into();
    let text = String::from_utf8(read(file)?).map_err(|error| bad(&error))?;
    exact::from_str(&text).map_err(|error| bad(&error))
}
