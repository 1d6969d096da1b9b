//! `tidegate-testing pg -- COMMAND ARGUMENTS…` runs a command with a throw-away PostgreSQL server, whose URL is in
//! `TIDEGATE_TEST_POSTGRES`, and exits with the command's exit code.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use tidegate_testing::{POSTGRES_VARIABLE, PgServer, PgSettings};

const USAGE: &str = "usage: tidegate-testing pg -- COMMAND [ARGUMENT]…";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [pg, dashes, program, rest @ ..] if pg == "pg" && dashes == "--" => run(program, rest),
        _ => fail(2, USAGE),
    }
}

fn run(program: &OsString, arguments: &[OsString]) -> ExitCode {
    let server = match PgServer::start(PgSettings { fsync: false, ..PgSettings::default() }) {
        Ok(server) => server,
        Err(error) => return fail(1, &error.to_string()),
    };
    let mut command = Command::new(program);
    command.args(arguments).env(POSTGRES_VARIABLE, server.url("postgres"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_cargo_run(name)) {
        command.env_remove(name);
    }
    let status = command.status();
    server.stop();
    match status {
        Ok(status) => {
            let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Err(error) => fail(127, &format!("cannot run {}: {error}", program.display())),
    }
}

/// Whether `cargo run` sets this variable for the package that it runs. A build started by the command would see other
/// values than before and rebuild the build scripts that depend on them, with all their dependents.
fn is_of_cargo_run(name: &OsStr) -> bool {
    let about = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_NAME", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"];
    name.to_str().is_some_and(|name| about.iter().any(|about| name.starts_with(about)))
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("tidegate-testing: {message}");
    ExitCode::from(code)
}
