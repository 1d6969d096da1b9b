//! Files of keys: a key in each line, the first encrypts. Lines that are empty or begin with # say nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::key::SecretKey;

/// The most bytes of a file that are read.
const MAX_BYTES: u64 = 64 << 10;

/// The keys in a file.
pub(super) fn read(path: &Path) -> io::Result<Vec<SecretKey>> {
    use std::io::Read as _;
    let mut text = Zeroizing::new(String::new());
    File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    let lines = text.lines().enumerate().map(|(at, line)| (at, line.trim()));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let invalid = |at: usize, error| io::Error::new(ErrorKind::InvalidData, format!("line {}: {error}", at + 1));
    keys.map(|(at, line)| line.parse().map_err(|error: super::InvalidKey| invalid(at, error))).collect()
}

/// Writes a new file with this key, which only its owner may read. Whoever looks finds no file or a whole one.
///
/// # Errors
/// `AlreadyExists` when there is a file, which stays as it is; whatever the system refuses.
pub fn write_new_key(path: &Path, key: &SecretKey) -> io::Result<()> {
    let whole = beside(path, &[key])?;
    // A link, unlike a rename, fails where there is a file: of two processes at once one makes it.
    let linked = std::fs::hard_link(&whole, path);
    let removed = std::fs::remove_file(&whole);
    linked?;
    removed?;
    sync_folder(path)
}

/// Puts a key before those of a file: it encrypts from now on, and the others still decrypt.
///
/// # Errors
/// Whatever the system refuses, and `InvalidData` when the file holds something else than keys.
pub fn add_key(path: &Path, key: &SecretKey) -> io::Result<()> {
    let old = read(path)?;
    let whole = beside(path, &[key].into_iter().chain(&old).collect::<Vec<_>>())?;
    std::fs::rename(&whole, path)?;
    sync_folder(path)
}

/// A file beside another one with these keys, complete and on the disk.
fn beside(path: &Path, keys: &[&SecretKey]) -> io::Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}", rand::random::<u64>()));
    let whole = path.with_file_name(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&whole)?;
    let mut text = Zeroizing::new(String::from("# Keys of Tidegate's secrets: the first encrypts, all decrypt.\n"));
    for key in keys {
        text.push_str(&key.text());
        text.push('\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(std::fs::remove_file(&whole)))?;
    Ok(whole)
}

/// Without it, a power loss could take the file back, and with it every secret that it encrypted.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(path: &Path) -> Vec<String> {
        read(path).unwrap().iter().map(|key| key.id().to_string()).collect()
    }

    #[test]
    fn one_file_is_made_whoever_else_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let made: Vec<_> = std::thread::scope(|scope| {
            let write = || {
                let key = SecretKey::random();
                write_new_key(&path, &key).map(|()| key.id().to_string()).map_err(|error| error.kind())
            };
            let all: Vec<_> = (0..16).map(|_| scope.spawn(write)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let made: Vec<_> = made.into_iter().filter(|one| *one != Err(ErrorKind::AlreadyExists)).collect();
        assert_eq!(made, [Ok(ids(&path).remove(0))]);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside it");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_key_is_added_before_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let (old, new) = (SecretKey::random(), SecretKey::random());
        write_new_key(&path, &old).unwrap();
        add_key(&path, &new).unwrap();
        assert_eq!(ids(&path), [new.id().to_string(), old.id().to_string()]);
        std::fs::write(&path, format!("# x\n\n  {}  \ntgkey_s3cret\n", *old.text())).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("line 4") && !error.contains("s3cret"), "{error}");
    }
}
