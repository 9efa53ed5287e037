//! A mount in a few lines: shows a folder elsewhere, with its locks served by the library.
//! `cargo run --example passthrough -- SOURCE MOUNTPOINT [mandatory] [cached] [allow_other] [ro]`

use std::sync::Arc;

use lockkeeper::LockManager;
use lockkeeper_mount::{ManagerService, MountOptions, Session};

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
    let service = Arc::new(ManagerService::new(LockManager::new()));
    let result = Session::mount(&options, service)
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
