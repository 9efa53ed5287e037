//! Running the examples of the library: what a newcomer copies must work.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Runs every example of the library, also those after one that failed.
///
/// # Errors
/// If there is no example, or one did not exit with 0.
pub fn run_all(repository: &Path) -> anyhow::Result<()> {
    let directory = repository.join("crates/lockkeeper/examples");
    let examples = names(&directory)
        .with_context(|| format!("cannot look for examples in {}", directory.display()))?;
    ensure!(
        !examples.is_empty(),
        "there is no example in {}",
        directory.display()
    );
    let mut failed = Vec::new();
    for example in &examples {
        println!("--- example {example}");
        let status = Command::new("cargo")
            .args(["run", "--quiet", "-p", "lockkeeper", "--example", example])
            .current_dir(repository)
            .stdin(Stdio::null())
            .status()
            .context("cannot start cargo")?;
        if !status.success() {
            println!("--- example {example} FAILED ({status})");
            failed.push(example.as_str());
        }
    }
    ensure!(failed.is_empty(), "examples failed: {}", failed.join(", "));
    println!("{} examples ran", examples.len());
    Ok(())
}

/// The names of the examples that cargo finds in `directory`, sorted: `NAME.rs` and `NAME/main.rs`.
fn names(directory: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        if let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
            && (is_file || path.join("main.rs").is_file())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_the_files_and_folders_that_cargo_takes() -> std::io::Result<()> {
        let root = std::env::temp_dir().join(format!("xtask-examples-{}", std::process::id()));
        fs::create_dir_all(root.join("server"))?;
        fs::create_dir_all(root.join("common"))?;
        for file in ["threads.rs", "notes.txt", "server/main.rs", "common/mod.rs"] {
            fs::write(root.join(file), "")?;
        }
        let found = names(&root);
        fs::remove_dir_all(&root)?;
        assert_eq!(found?, ["server", "threads"]);
        Ok(())
    }

    #[test]
    fn a_repository_without_examples_is_an_error() {
        assert!(run_all(Path::new("/no/such/repository")).is_err());
    }
}
