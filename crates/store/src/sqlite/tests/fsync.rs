//! A disk that cannot make data durable, simulated by a VFS under SQLite whose `xSync` fails on demand.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, Once};

use super::*;

/// Files in one of these folders cannot be synced.
static BROKEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LAYER: Once = Once::new();
/// The system's own `xOpen`.
static OPEN: std::sync::OnceLock<Open> = std::sync::OnceLock::new();
type Open =
    unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *const c_char, *mut ffi::sqlite3_file, c_int, *mut c_int) -> c_int;

unsafe extern "C" fn fail(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_IOERR_FSYNC
}

/// Opens like the system does. A file in a broken folder gets methods whose `xSync` always fails.
unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let Some(system) = OPEN.get() else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: the arguments are SQLite's own and are passed on unchanged.
    let rc = unsafe { system(vfs, name, file, flags, out) };
    if rc != ffi::SQLITE_OK || name.is_null() {
        return rc;
    }
    // SAFETY: SQLite's names are NUL-terminated, and the system has just set the file's methods.
    unsafe {
        let path = PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned());
        if is_broken(&path) {
            let mut methods = *(*file).pMethods;
            methods.xSync = Some(fail);
            (*file).pMethods = Box::leak(Box::new(methods));
        }
    }
    rc
}

fn is_broken(path: &Path) -> bool {
    BROKEN.lock().unwrap().iter().any(|folder| path.starts_with(folder))
}

/// Puts the VFS under every connection opened from now on.
fn install() {
    LAYER.call_once(|| {
        // SAFETY: the default VFS lives forever; the copy is leaked and differs in one function only.
        unsafe {
            let system = *ffi::sqlite3_vfs_find(std::ptr::null());
            OPEN.set(system.xOpen.unwrap()).unwrap();
            let name = c"broken-disk";
            let layer =
                ffi::sqlite3_vfs { xOpen: Some(open), zName: name.as_ptr(), pNext: std::ptr::null_mut(), ..system };
            assert_eq!(ffi::sqlite3_vfs_register(Box::leak(Box::new(layer)), 1), ffi::SQLITE_OK);
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_fsync_failed_may_have_happened_and_nothing_further_is_taken() {
    let scene = Scene::new();
    install();
    let store = scene.open().await;
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    store.close().await;
    BROKEN.lock().unwrap().push(scene.folder.path().to_owned());
    let store = scene.open().await;
    let error = store.publish(vec![event()]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert!(error.to_string().contains("may or may not"), "{error}");
    let refused = store.publish(vec![event()]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert!(refused.to_string().contains("stopped") && refused.to_string().contains("restart"), "{refused}");
    assert_eq!(store.census().await.unwrap_err().kind(), ErrorKind::Corrupt);
    store.close().await;
    BROKEN.lock().unwrap().clear();
    let store = scene.open().await;
    assert!((1..=2).contains(&store.census().await.unwrap().events));
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
}
