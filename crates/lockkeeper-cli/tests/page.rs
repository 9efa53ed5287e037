//! The page of a mount, in a real Chromium, about locks of real processes.

#[path = "../../lockkeeper-page/tests/support/browser.rs"]
mod browser;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use browser::Browser;
use support::{Mount, PRELUDE, said};

/// A mount with a page, and the page's address.
fn mount_with_page() -> (Mount, String) {
    let mount = Mount::with(&["--http", "127.0.0.1:0"]);
    let text = fs::read_to_string(mount.beside("server")).expect("what it said");
    let url = text
        .lines()
        .find_map(|line| line.strip_prefix("Page: "))
        .expect("the address of the page");
    (mount, url.into())
}

/// Processes that lock on the mount; they end when this is dropped.
struct Scene(Child);

impl Scene {
    /// Runs a script, and returns the process ids that it prints once the scene is set.
    fn set(mount: &Mount, script: &str) -> (Scene, Vec<u32>) {
        // Whatever ends the script, its children end with it.
        let script = format!(
            "{PRELUDE}\nos.setpgid(0, 0)\n{script}\nsys.stdout.flush()\nsys.stdin.read()\nos.killpg(0, signal.SIGKILL)"
        );
        let mut process = Command::new("/usr/bin/python3")
            .args(["-c", &script])
            .current_dir(mount.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("reads");
        let pids = line
            .split_whitespace()
            .map(|pid| pid.parse().expect("a pid"))
            .collect();
        (Scene(process), pids)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Of each row: its process, what it does, its level and its kind.
const TREE: &str = "[...document.querySelectorAll('.card .row')].map((row) => [Number(row.dataset.pid), row.dataset.is, \
    Number(row.dataset.depth), row.querySelector('.what').innerText, row.querySelector('.range').innerText])";

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn real_processes_are_shown_as_they_wait_and_a_kill_empties_the_tree() {
    let (mount, url) = mount_with_page();
    fs::write(mount.path("held"), "x").expect("writes");
    let browser = Browser::start();
    browser.open(&url);
    browser.until(
        "document.getElementById('nothing').innerText",
        &json!("Nothing is locked on this mount."),
    );
    let (scene, pids) = Scene::set(
        &mount,
        r#"
h = holder("held", "posix")
w = waiter("held", "posix"); waits(w)
o = waiter("held", "ofd"); waits(o)
print(h, w, o)"#,
    );
    let [h, w, o] = pids[..] else {
        panic!("{pids:?}")
    };
    browser.until(
        TREE,
        &json!([
            [h, "held", 0, "write POSIX", "whole file"],
            [w, "waits", 1, "write POSIX", "whole file"],
            [o, "waits", 2, "write OFD", "whole file"]
        ]),
    );
    assert_eq!(
        browser.ask("document.querySelector('.card h3').innerText"),
        "held"
    );
    assert!(
        browser
            .ask("document.querySelector('.card .name').innerText")
            .to_string()
            .contains("python3")
    );
    // Found by its number, with what it waits for.
    browser.act(&format!("location.hash = '#find={o}'"));
    browser.until(&format!("{TREE}.map((row) => row[0])"), &json!([h, o]));
    browser.act("document.querySelector('.card h3 a').click()");
    browser.until("document.querySelectorAll('.lane .held').length", &json!(1));
    browser.until(
        "document.querySelectorAll('.lane line.waits').length",
        &json!(2),
    );
    // The holder goes: the first waiter has the lock, and its lane says both.
    let kill = |pid: u32| {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    };
    kill(h);
    browser.until(
        "document.querySelectorAll('.lane line.granted').length",
        &json!(1),
    );
    browser.until("document.querySelectorAll('.lane .held').length", &json!(2));
    drop(scene);
    browser.until("document.querySelectorAll('#tree .row').length", &json!(0));
    browser.until(
        "document.getElementById('facts').innerText",
        &json!("nothing is locked here now"),
    );
    browser.act("location.hash = ''");
    browser.until("document.getElementById('nothing').hidden", &json!(false));
    assert_eq!(browser.complaints(), [""; 0]);
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn two_flock_owners_in_a_circle_raise_the_banner_until_one_goes() {
    let (mount, url) = mount_with_page();
    for name in ["one", "two"] {
        fs::write(mount.path(name), "x").expect("writes");
    }
    let browser = Browser::start();
    browser.open(&url);
    let (scene, pids) = Scene::set(
        &mount,
        r#"
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def both(first, second):
    def work(tell):
        f = os.open(first, os.O_RDWR); take(f, "flock")
        tell()
        signal.sigwait([signal.SIGUSR1])
        g = os.open(second, os.O_RDWR); take(g, "flock")
    return child(work)
a, b = both("one", "two"), both("two", "one")
for pid in (a, b):
    os.kill(pid, signal.SIGUSR1); waits(pid)
print(a, b)"#,
    );
    let [a, b] = pids[..] else { panic!("{pids:?}") };
    browser.until(
        "document.querySelector('#banner h2')?.innerText",
        &json!("Deadlock"),
    );
    let mut steps: Vec<String> = serde_json::from_value(
        browser.ask("[...document.querySelectorAll('#banner li')].map((step) => step.innerText)"),
    )
    .expect("texts");
    steps.sort();
    let mut expected = [(a, "two", b), (b, "one", a)].map(|(waits, file, holds)| {
        format!("python3 ({waits}) waits for a write flock lock on {file}, in the way is python3 ({holds})")
    });
    expected.sort();
    assert_eq!(steps, expected);
    assert_eq!(
        browser.ask("document.querySelectorAll('.row[data-deadlock=\"true\"]').length"),
        2
    );
    assert!(
        browser
            .ask("document.title")
            .to_string()
            .contains("DEADLOCK")
    );
    drop(scene);
    browser.until(
        "document.getElementById('banner').childElementCount",
        &json!(0),
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_server_that_ends_is_missed_and_a_port_in_use_mounts_nothing() {
    let (mount, url) = mount_with_page();
    let port = url.split([':', '/']).nth(4).expect("a port").to_owned();
    let refused = mount.lockkeeper(&["mount", "other", "elsewhere", "--http", &port]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        said(&refused).contains(&format!("port {port}")),
        "{}",
        said(&refused)
    );
    assert!(!mount.beside("elsewhere").exists() && !mount.beside("other").exists());
    let open = mount.lockkeeper(&["mount", "other", "elsewhere", "--http", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(
        said(&open).contains("--http-any-address"),
        "{}",
        said(&open)
    );
    let browser = Browser::start();
    browser.open(&url);
    browser.until("document.documentElement.dataset.link", &json!("live"));
    drop(mount);
    browser.until("document.documentElement.dataset.link", &json!("lost"));
    browser.until(
        "document.getElementById('link-text').innerText.includes('trying again')",
        &json!(true),
    );
    // Somebody else has the port now, and another token.
    let other = TcpListener::bind(format!("127.0.0.1:{port}")).expect("the port");
    let answer = std::thread::spawn(move || {
        let (mut stream, _): (TcpStream, _) = other.accept().expect("somebody");
        let mut request = [0; 4096];
        let read = stream.read(&mut request).expect("a request");
        stream
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .expect("answers");
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    browser.until(
        "document.getElementById('link-text').innerText.includes('started anew')",
        &json!(true),
    );
    assert!(answer.join().expect("answered").starts_with("GET /events"));
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_daemon_tells_the_address_of_its_page() {
    let mount = Mount::new();
    let started = mount.lockkeeper(&[
        "mount", "--daemon", "src", "daemon", "--http", "0", "-o", "fsname=x",
    ]);
    let text = said(&started);
    assert!(started.status.success(), "{text}");
    let ended = Command::new("umount")
        .arg(mount.beside("daemon"))
        .status()
        .expect("runs");
    assert!(ended.success());
    assert!(text.contains("Page: http://127.0.0.1:"), "{text}");
}
