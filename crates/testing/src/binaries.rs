//! Finds PostgreSQL's programs and the user that they run as.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that holds `initdb` and `postgres`: in `PATH`, where `pg_config` says, or where Debian puts them.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let in_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let candidates: Vec<PathBuf> = [in_path, from_pg_config(), debian_versions()].concat();
    candidates.into_iter().find(|folder| has_programs(folder)).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "no PostgreSQL server programs (initdb, postgres) in PATH, in pg_config's folder or under \
             /usr/lib/postgresql: run scripts/test, which installs them",
        )
    })
}

fn has_programs(folder: &Path) -> bool {
    folder.join("initdb").is_file() && folder.join("postgres").is_file()
}

fn from_pg_config() -> Vec<PathBuf> {
    match Command::new("pg_config").arg("--bindir").output() {
        Ok(output) if output.status.success() => {
            vec![PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())]
        }
        _ => Vec::new(),
    }
}

fn debian_versions() -> Vec<PathBuf> {
    let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    let mut numbered: Vec<(u32, PathBuf)> = versions
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    numbered.sort();
    numbered.into_iter().rev().map(|(_, folder)| folder).collect()
}

/// A user and its group, by id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The user to run PostgreSQL as; `None` is the current one. PostgreSQL refuses to run as root.
pub(crate) fn unprivileged() -> io::Result<Option<User>> {
    // SAFETY: geteuid only reads the process's credentials.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    ["postgres", "nobody"].into_iter().find_map(look_up).map(Some).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "PostgreSQL must not run as root, and there is no user postgres or nobody",
        )
    })
}

fn look_up(name: &str) -> Option<User> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; 16 << 10];
    // SAFETY: an all-zero passwd is a valid value to be written over.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call, and the buffer's length is the one given.
    let code = unsafe { libc::getpwnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    (code == 0 && !found.is_null()).then_some(User { uid: entry.pw_uid, gid: entry.pw_gid })
}
