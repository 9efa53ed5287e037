//! The lockkeeper command line.

fn main() {}
