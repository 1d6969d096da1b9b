//! Compiles the preload libraries for lost power and faulty disks; the harness embeds them in its binary.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::var("OUT_DIR")?);
    let compiler = cc::Build::new().opt_level(2).pic(true).warnings(true).get_compiler();
    for name in ["powerloss", "faultydisk"] {
        let source = format!("shim/{name}.c");
        println!("cargo::rerun-if-changed={source}");
        let library = folder.join(format!("{name}.so"));
        let mut command = compiler.to_command();
        let status = command.args(["-shared", "-pthread", "-o"]).arg(&library).arg(&source).arg("-ldl").status()?;
        if !status.success() {
            return Err(format!("cannot compile {source}: {status}").into());
        }
    }
    Ok(())
}
