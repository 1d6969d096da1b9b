//! `tidegate-testing pg -- COMMAND ARGUMENTS…` runs a command beside a throw-away PostgreSQL server, whose URL is in
//! `TIDEGATE_TEST_POSTGRES`, and ends with the command's own exit code.

use std::ffi::OsString;
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
    let status = Command::new(program).args(arguments).env(POSTGRES_VARIABLE, server.url("postgres")).status();
    server.stop();
    match status {
        Ok(status) => {
            let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Err(error) => fail(127, &format!("cannot run {}: {error}", program.display())),
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("tidegate-testing: {message}");
    ExitCode::from(code)
}
