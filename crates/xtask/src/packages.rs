//! The Debian packages that tests need.
//!
//! What is installed already costs one look at dpkg's database and no network. What is missing is
//! installed if we are root; else it is named, with the command that installs it, and the step fails.

use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// A package's name, and which test needs it.
type Package<'a> = (&'a str, &'a str);

/// Every package that a test needs beyond Rust and a linker. To add one, add a line.
#[rustfmt::skip]
const PACKAGES: &[Package<'_>] = &[
    ("fuse3", "mounts of ordinary users"),
    ("python3", "the scripts of the tests of real programs"),
    ("sqlite3", "sqlite on a mount"),
    ("python3-plyvel", "LevelDB on a mount"),
    ("rocksdb-tools", "RocksDB on a mount"),
    ("python3-bsddb3", "Berkeley DB on a mount"),
    ("db-util", "Berkeley DB on a mount"),
    ("python3-fasteners", "Python's fasteners on a mount"),
    ("redis-server", "Redis on a mount"),
    ("postgresql", "PostgreSQL on a mount"),
    ("git", "git on a mount"),
    ("python3-lmdb", "LMDB on a mount"),
    ("stress-ng", "stress-ng on a mount"),
    ("systemd", "the unit in contrib"),
    ("valgrind", "the trace of what a lock touches"),
    ("chromium", "the page in a real browser"),
    ("chromium-driver", "the page in a real browser"),
    ("fonts-dejavu-core", "the page in a real browser"),
    ("graphviz", "the tree that is printed for Graphviz"),
    ("bindfs", "the bench of the mount, which compares with its lock forwarding"),
];

const INSTALL: &[&str] = &["install", "--yes", "--no-install-recommends"];

/// Returns when everything that a test needs is installed.
///
/// # Errors
/// If something is missing and we are not root, or apt-get cannot install it.
pub fn ensure_all() -> anyhow::Result<()> {
    ensure(PACKAGES)?;
    // Its name has the version of Debian's Python in it, which is there by now.
    let version = Command::new("/usr/bin/python3")
        .arg("--version")
        .output()
        .context("cannot start /usr/bin/python3")?;
    let version = String::from_utf8_lossy(&version.stdout);
    let tests =
        python_tests(&version).with_context(|| format!("not a version of Python: {version:?}"))?;
    ensure(&[(&tests, "Python's own tests on a mount")])
}

/// The package with the tests of a Python that says of itself `Python 3.11.2`.
fn python_tests(version: &str) -> Option<String> {
    let mut numbers = version.trim().strip_prefix("Python ")?.split('.');
    let (major, minor) = (numbers.next()?, numbers.next()?);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(major) && digits(minor)).then(|| format!("libpython{major}.{minor}-testsuite"))
}

/// Returns when all of `packages` are installed.
///
/// # Errors
/// If one is missing and we are not root, or apt-get cannot install it.
fn ensure(packages: &[Package<'_>]) -> anyhow::Result<()> {
    let mut absent = missing(packages)?;
    if !absent.is_empty() {
        if !is_root()? {
            bail!(advice(&absent));
        }
        // Lists that cannot be refreshed may still do: whether they do, the installation tells.
        if let Err(error) = apt_get(&["update"]) {
            eprintln!("warning: {error:#}");
        }
        let names = absent.iter().map(|(name, _)| *name);
        apt_get(&INSTALL.iter().copied().chain(names).collect::<Vec<_>>())?;
        absent = missing(packages)?;
        ensure!(
            absent.is_empty(),
            "apt-get succeeded, but dpkg does not know these as installed: {}",
            names_of(&absent)
        );
    }
    println!("Debian packages needed: {}, all installed", packages.len());
    Ok(())
}

fn missing<'a>(packages: &[Package<'a>]) -> anyhow::Result<Vec<Package<'a>>> {
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    // It fails if it does not know one of the names, and still prints the others.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status} ${Package}\\n"])
        .args(packages.iter().map(|(name, _)| name))
        .stderr(Stdio::null())
        .output()
        .with_context(|| {
            format!(
                "cannot ask dpkg-query (the checks are made for Debian and its kin) for {}",
                names_of(packages)
            )
        })?;
    let database = String::from_utf8_lossy(&output.stdout);
    Ok(packages
        .iter()
        .filter(|(name, _)| !is_installed(name, &database))
        .copied()
        .collect())
}

/// Whether `database`, lines of `STATUS PACKAGE`, shows the package as installed. One that was
/// removed and left its configuration behind is listed, but not as `installed`.
fn is_installed(name: &str, database: &str) -> bool {
    database
        .lines()
        .filter_map(|line| line.split_once(' '))
        .any(|(status, package)| status == "installed" && package == name)
}

fn advice(absent: &[Package<'_>]) -> String {
    let mut text = String::from("tests need Debian packages that are not installed:\n");
    for (name, test) in absent {
        text += &format!("    {name}: {test}\n");
    }
    text + &format!(
        "install them with\n    sudo apt-get update && sudo apt-get {} {}",
        INSTALL.join(" "),
        names_of(absent)
    )
}

fn names_of(packages: &[Package<'_>]) -> String {
    let names: Vec<_> = packages.iter().map(|(name, _)| *name).collect();
    names.join(" ")
}

fn apt_get(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("apt-get")
        // Another run of apt, such as a nightly upgrade, is waited for.
        .args(["-o", "DPkg::Lock::Timeout=120"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("cannot start apt-get")?;
    ensure!(
        status.success(),
        "apt-get {} failed: {status}",
        arguments.join(" ")
    );
    Ok(())
}

fn is_root() -> anyhow::Result<bool> {
    let output = Command::new("id")
        .arg("-u")
        .output()
        .context("cannot start id")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_counts_as_installed_by_its_status_and_whole_name() {
        let database = "installed fuse3\nconfig-files sqlite3\nnot-installed git\n";
        for (name, expected) in [
            ("sqlite3", false),
            ("git", false),
            ("fuse", false),
            ("redis", false),
        ] {
            assert_eq!(is_installed(name, database), expected, "{name}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_installs_it() {
        assert_eq!(
            advice(&[("fuse3", "every mount"), ("sqlite3", "the database tests")]),
            "tests need Debian packages that are not installed:\n    \
                 fuse3: every mount\n    \
                 sqlite3: the database tests\n\
             install them with\n    \
                 sudo apt-get update && \
                 sudo apt-get install --yes --no-install-recommends fuse3 sqlite3"
        );
    }

    #[test]
    fn pythons_tests_are_those_of_the_python_that_is_installed() {
        for (version, package) in [
            ("Python 3.11.2\n", Some("libpython3.11-testsuite")),
            ("Python 3.13.0rc1", Some("libpython3.13-testsuite")),
            ("Python 4", None),
            ("", None),
            ("python: not found", None),
            ("Python 3.x.1", None),
        ] {
            assert_eq!(python_tests(version).as_deref(), package, "{version}");
        }
    }

    #[test]
    fn nothing_needed_is_always_there() {
        assert!(ensure(&[]).is_ok());
    }
}
