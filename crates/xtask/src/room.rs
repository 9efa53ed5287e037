//! Whether there is room for what the checks build and write.
//!
//! A full disk fails tests in ways that do not name it: a database that does not start, a file that is empty. So
//! a run that would fill it does not begin.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

const GIB: u64 = 1 << 30;
/// What all builds together take, from nothing, and something to spare.
const TO_BUILD: u64 = 8 * GIB;
/// What is left to do where everything is built already.
const TO_RUN: u64 = 2 * GIB;

/// Returns if there is room where the steps build, below `repository`, and where tests write.
///
/// # Errors
/// There is not, or it cannot be told.
pub fn ensure_room(repository: &Path) -> anyhow::Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository.join("target"), |name| repository.join(name));
    let to_build = match target.join("debug/deps").is_dir() && target.join("release/deps").is_dir()
    {
        true => TO_RUN,
        false => TO_BUILD,
    };
    enough(&target, to_build)?;
    enough(&std::env::temp_dir(), TO_RUN)
}

fn enough(folder: &Path, needed: u64) -> anyhow::Result<()> {
    let free = free(folder)?;
    ensure!(
        free >= needed,
        "{} has {:.1} GiB free, and the checks need {} GiB there: remove old builds (`cargo clean`), or set \
         CARGO_TARGET_DIR and TMPDIR to folders with more room",
        folder.display(),
        free as f64 / GIB as f64,
        needed / GIB
    );
    Ok(())
}

/// Bytes that are free for users in the file system of `folder`, or of the first folder above it that exists.
fn free(folder: &Path) -> anyhow::Result<u64> {
    let mut existing = PathBuf::from(folder);
    while !existing.exists() && existing.pop() {}
    let status = rustix::fs::statvfs(&existing)
        .with_context(|| format!("cannot tell how much room {} has", existing.display()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_room_is_named_with_what_to_do() {
        // It has no blocks at all.
        let error = enough(Path::new("/proc"), 1)
            .expect_err("no room")
            .to_string();
        for word in ["/proc has 0.0 GiB free", "cargo clean", "TMPDIR"] {
            assert!(error.contains(word), "{error}");
        }
        assert!(enough(Path::new("/proc"), 0).is_ok());
    }

    #[test]
    fn of_a_folder_that_is_yet_to_be_made_the_one_above_counts() {
        let root = free(Path::new("/proc/no/such/folder")).expect("told");
        assert_eq!(root, 0);
    }
}
