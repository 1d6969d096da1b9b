//! Compiles the library that loses power, so that the harness can carry it inside itself.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SOURCE: &str = "shim/powerloss.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    let library = PathBuf::from(std::env::var("OUT_DIR")?).join("powerloss.so");
    let compiler = cc::Build::new().opt_level(2).pic(true).warnings(true).get_compiler();
    let status = compiler.to_command().args(["-shared", "-pthread", "-o"]).arg(&library).arg(SOURCE).status()?;
    if !status.success() {
        return Err(format!("cannot compile {SOURCE}: {status}").into());
    }
    Ok(())
}
