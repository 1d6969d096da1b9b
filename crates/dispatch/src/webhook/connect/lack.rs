//! What a node can run out of when it opens connections, and what to do about it. Pure.

use std::io;
use std::net::IpAddr;

/// The process has no file descriptor left; the same number on every Unix.
const EMFILE: i32 = 24;
/// The machine has none left.
const ENFILE: i32 = 23;
/// There is no memory left for sockets.
const ENOBUFS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };

/// What to do if no socket could be opened because this node has run out of something.
pub(super) fn of_sockets(error: &io::Error) -> Option<&'static str> {
    if error.kind() == io::ErrorKind::OutOfMemory {
        return Some("this node has no memory left for sockets: see net.ipv4.tcp_mem");
    }
    match error.raw_os_error()? {
        EMFILE => {
            Some("this process has no file descriptor left: raise its limit (LimitNOFILE of its unit, ulimit -n)")
        }
        ENFILE => Some("this machine has no file descriptor left: raise fs.file-max"),
        ENOBUFS => Some("this node has no memory left for sockets: see net.ipv4.tcp_mem"),
        _ => None,
    }
}

/// The same if no connection to an address came about.
pub(super) fn of_connections(error: &io::Error, to: IpAddr) -> Option<&'static str> {
    // A machine without IPv6 says the same of every address of IPv6, and always will.
    if error.kind() == io::ErrorKind::AddrNotAvailable && to.to_canonical().is_ipv4() {
        return Some(
            "this node has no local port left for it: widen net.ipv4.ip_local_port_range, or deliver from more nodes",
        );
    }
    of_sockets(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_node_lacks_is_told_from_what_others_do() {
        let (v4, v6): (IpAddr, IpAddr) = ("8.8.8.8".parse().unwrap(), "2606:4700::1".parse().unwrap());
        let mapped: IpAddr = "::ffff:8.8.8.8".parse().unwrap();
        for (code, todo) in [(EMFILE, "LimitNOFILE"), (ENFILE, "fs.file-max"), (ENOBUFS, "tcp_mem"), (12, "tcp_mem")] {
            let error = io::Error::from_raw_os_error(code);
            for to in [v4, v6] {
                assert!(of_connections(&error, to).is_some_and(|lack| lack.contains(todo)), "{error}");
            }
        }
        let no_port = io::Error::from(io::ErrorKind::AddrNotAvailable);
        assert!(of_connections(&no_port, v4).is_some_and(|lack| lack.contains("port_range")));
        assert!(of_connections(&no_port, mapped).is_some());
        assert_eq!((of_connections(&no_port, v6), of_sockets(&no_port)), (None, None));
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, PermissionDenied, TimedOut};
        for kind in [ConnectionRefused, HostUnreachable, NetworkUnreachable, PermissionDenied, TimedOut] {
            assert_eq!(of_connections(&kind.into(), v4), None, "{kind}");
        }
    }
}
