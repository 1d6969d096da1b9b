//! Files that commands read; `-` is standard input.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

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
    serde_json::from_slice(&read(file)?).map_err(|error| format!("{} is not JSON: {error}", file.display()).into())
}
