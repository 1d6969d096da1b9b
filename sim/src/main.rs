mod checker;
mod history;
mod state;
fn main() {}
