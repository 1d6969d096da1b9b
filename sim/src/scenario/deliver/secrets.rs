//! Looks for secrets in what a run has written.

use std::path::Path;

use crate::workload::Failure;

/// The files below a folder that contain one of the secrets, as it is or without its prefix. Leaves out the database's own.
pub(super) fn leaked(folder: &Path, secrets: &[String]) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder)? {
            let path = item?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if !name.starts_with("events.db") {
                let bytes = std::fs::read(&path)?;
                let text = String::from_utf8_lossy(&bytes);
                let is_in = |secret: &String| text.contains(secret.strip_prefix("whsec_").unwrap_or(secret));
                if secrets.iter().any(is_in) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_whatever_file() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = ["whsec_YWJjZGVmZ2hpamtsbW5vcA==".to_owned()];
        std::fs::create_dir(folder.path().join("histories")).unwrap();
        std::fs::write(folder.path().join("histories/one.log"), "nothing of interest\n").unwrap();
        std::fs::write(folder.path().join("events.db-wal"), secrets[0].as_bytes()).unwrap();
        assert_eq!(leaked(folder.path(), &secrets).unwrap(), Vec::<String>::new());
        std::fs::write(folder.path().join("histories/two.log"), b"\xff key=YWJjZGVmZ2hpamtsbW5vcA== \n").unwrap();
        assert_eq!(leaked(folder.path(), &secrets).unwrap().len(), 1);
    }
}
