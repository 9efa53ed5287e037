//! `cargo xtask test`: every check of the project.

fn main() {}
