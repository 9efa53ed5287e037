//! Shows a folder elsewhere, with the locks of the tests' tiny lock manager:
//! `cargo run --example passthrough -- SOURCE MOUNTPOINT [mandatory] [cached] [allow_other] [ro]`

#[path = "../tests/support/list_locks.rs"]
mod list_locks;

use std::sync::Arc;

use lockkeeper_mount::{MountOptions, Session};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, mountpoint, rest @ ..] = &args[..] else {
        eprintln!("usage: passthrough SOURCE MOUNTPOINT [mandatory] [cached] [allow_other] [ro]");
        std::process::exit(2);
    };
    let has = |word: &str| rest.iter().any(|arg| arg == word);
    let mut options = MountOptions::new(source, mountpoint);
    options.mandatory = has("mandatory");
    options.passthrough = !has("cached");
    options.allow_other = has("allow_other");
    options.read_only = has("ro");
    let result = Session::mount(&options, Arc::new(list_locks::ListLocks::default()))
        .map_err(|error| error.to_string())
        .and_then(|session| {
            session
                .run(|settled| println!("{settled:?}"))
                .map_err(|error| error.to_string())
        });
    if let Err(error) = result {
        eprintln!("passthrough: {error}");
        std::process::exit(1);
    }
}
