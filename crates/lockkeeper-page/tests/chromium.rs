//! The page in a real Chromium, about a mount that is made up: what a mount's own test cannot make quickly.

#[path = "support/browser.rs"]
mod browser;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_page::{Bound, FileId, Limits, Source, TotalsNow, Watched};
use lockkeeper_watch::report::{
    Blocker, FileLocks, Held, Kind, Lock, Mode, Report, Totals, Waiting,
};
use lockkeeper_watch::timeline::{Claim, Recorder, Span};
use serde_json::json;

use browser::Browser;

/// A mount on which as many wait for one file as it is told.
#[derive(Default)]
struct Queue(Mutex<usize>);

const NASTY: &str = "<img src=x onerror=\"document.title='owned'\">";

impl Queue {
    fn set(&self, waiters: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waiters;
    }
}

fn lock(pid: u32) -> Lock {
    Lock {
        kind: Kind::Posix,
        mode: Mode::Write,
        start: 0,
        end: None,
        pid,
        command: Some(NASTY.into()),
        owner: pid.into(),
    }
}

impl Source for Queue {
    fn report(&self) -> Report {
        let waiters = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |number: usize| Waiting {
            lock: lock(number as u32 + 2),
            waits_for: Some(1.0),
            overtaken: 0,
            depth: number as u32,
            blocked_by: Some(match number {
                0 => Blocker::Lock(0),
                number => Blocker::Waiter(number - 1),
            }),
        };
        Report {
            mountpoint: "/m".into(),
            files: vec![FileLocks {
                path: Some(format!("/m/{NASTY}")),
                locks: vec![Held {
                    lock: lock(1),
                    held_for: Some(2.0),
                    breaking: false,
                }],
                waiters: (0..waiters).map(waiting).collect(),
                ..FileLocks::new(1, 1)
            }],
            ..Report::default()
        }
    }

    fn totals(&self) -> TotalsNow {
        TotalsNow {
            totals: Totals::default(),
            waiting: *self.0.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn watch(&self, _: FileId) -> Box<dyn Watched> {
        Box::new(Line)
    }
}

struct Line;

impl Watched for Line {
    fn spans(&self) -> (f64, Vec<Span>) {
        let mut recorder = Recorder::default();
        for owner in 0..200 {
            let claim = Claim {
                owner,
                kind: Kind::Posix,
                start: 0,
                end: 9,
                mode: Mode::Read,
            };
            recorder.granted(claim, 7, 100.0);
        }
        (110.0, recorder.spans())
    }
}

fn serve(queue: &Arc<Queue>) -> String {
    let bound = Bound::new((Ipv4Addr::LOCALHOST, 0).into(), false).expect("a port");
    let url = bound.url();
    bound
        .serve(queue.clone(), Limits::default())
        .expect("serves");
    url
}

/// The page of so many waiters, in a browser.
fn opened(waiters: usize) -> (Arc<Queue>, Browser) {
    let queue = Arc::new(Queue::default());
    queue.set(waiters);
    let browser = Browser::start();
    browser.open(&serve(&queue));
    (queue, browser)
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn ten_thousand_waiters_are_a_page_of_rows() {
    let (queue, browser) = opened(10_000);
    browser.until("document.querySelectorAll('.card .row').length", &json!(8));
    browser.act(
        "window.longest = 0; new PerformanceObserver((list) => { for (const task of list.getEntries()) \
         window.longest = Math.max(window.longest, task.duration); }).observe({ type: 'longtask', buffered: true });",
    );
    browser.act("document.querySelector('.card h3 a').click()");
    browser.until(
        "document.querySelectorAll('#tree .row').length",
        &json!(200),
    );
    browser.until(
        "document.getElementById('page-text').innerText",
        &json!("page 1 of 51"),
    );
    browser.act("document.getElementById('last-page').click()");
    browser.until("document.querySelectorAll('#tree .row').length", &json!(1));
    browser.until(
        "document.querySelector('#tree .row').dataset.pid",
        &json!("10001"),
    );
    let elements = browser.ask("document.querySelectorAll('*').length");
    assert!(
        elements.as_u64().is_some_and(|elements| elements < 5000),
        "{elements}"
    );
    // They come and go with every view: what is sent and drawn stays the same page.
    browser.act("document.getElementById('first-page').click()");
    browser.until(
        "document.querySelectorAll('#tree .row').length",
        &json!(200),
    );
    queue.set(9_000);
    browser.until(
        "document.getElementById('page-text').innerText",
        &json!("page 1 of 46"),
    );
    println!(
        "the longest task took {} ms (0: none took 50)",
        browser.ask("window.longest")
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn names_are_text_and_the_token_stays_out_of_sight() {
    let queue = Arc::new(Queue::default());
    queue.set(1);
    let browser = Browser::start();
    let url = serve(&queue);
    let (bare, token) = url.split_once("?token=").expect("a token");
    browser.open(&url);
    browser.until(
        "document.querySelector('.card h3')?.innerText",
        &json!(NASTY),
    );
    assert_eq!(browser.ask("document.images.length"), 0);
    assert_ne!(browser.ask("document.title"), "owned");
    // It is in the address no more, and a reload finds it all the same, with what was looked for.
    assert_eq!(browser.ask("location.href"), bare);
    browser.act("location.hash = '#file=1-1'");
    browser.until("document.querySelectorAll('#tree .row').length", &json!(2));
    browser.reload();
    browser.until("document.querySelectorAll('#tree .row').length", &json!(2));
    assert_eq!(browser.ask("location.href"), format!("{bare}#file=1-1"));
    assert_eq!(
        browser.ask(&format!(
            "document.documentElement.outerHTML.includes('{token}')"
        )),
        false
    );
    browser.complaints();
    // A wrong one: nothing, and it is not kept.
    browser.open(&format!("{bare}?token={}", "0".repeat(token.len())));
    browser.until(
        "document.querySelector('h1').innerText",
        &json!("403: the token is wrong"),
    );
    assert_eq!(
        browser.ask("sessionStorage.getItem('token')"),
        serde_json::Value::Null
    );
    browser.open(bare);
    browser.until(
        "document.querySelector('h1').innerText",
        &json!("403: the token is missing"),
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_tree_is_walked_and_folded_by_keys() {
    let (queue, browser) = opened(3);
    browser.until("document.querySelectorAll('.card .row').length", &json!(4));
    let visible =
        "[...document.querySelectorAll('.card .row')].filter((row) => !row.hidden).length";
    let focused = "document.activeElement.dataset.pid";
    browser.act("document.querySelector('.card .row').focus()");
    let (left, right, up, down, escape) =
        ("\u{E012}", "\u{E014}", "\u{E013}", "\u{E015}", "\u{E00C}");
    browser.keys(down);
    browser.keys(down);
    assert_eq!(browser.ask(focused), "3");
    browser.keys(up);
    browser.keys(left);
    browser.until(visible, &json!(2));
    assert_eq!(
        browser.ask("document.activeElement.getAttribute('aria-expanded')"),
        "false"
    );
    browser.keys(right);
    browser.until(visible, &json!(4));
    // The focus stays where it is while views come.
    queue.set(4);
    browser.until(visible, &json!(5));
    assert_eq!(browser.ask(focused), "2");
    // Every row says its level; one of a tree is in the order of tabs.
    assert_eq!(
        browser.ask("[...document.querySelectorAll('.card .row')].map((row) => row.getAttribute('aria-level')).join()"),
        "1,2,3,4,5"
    );
    assert_eq!(
        browser.ask("document.querySelectorAll('.card .row[tabindex=\"0\"]').length"),
        1
    );
    browser.keys("/");
    browser.until("document.activeElement.id", &json!("find"));
    browser.keys("4\n");
    browser.until(
        "[...document.querySelectorAll('.card .row')].map((row) => row.dataset.pid).join()",
        &json!("1,4"),
    );
    browser.keys("0000");
    browser.until("document.getElementById('nothing').hidden", &json!(false));
    browser.act("document.getElementById('find').value = ''; document.getElementById('search').requestSubmit()");
    browser.act("location.hash = '#file=1-1'");
    browser.until("document.activeElement.id", &json!("open-heading"));
    browser.keys(escape);
    browser.until("document.getElementById('open').hidden", &json!(true));
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Elements that begin or end beyond the box that they are in, or beyond the page, or whose text does.
const BEYOND: &str = "[...document.querySelectorAll('header *, main *')].filter((element) => { \
     const box = element.closest('.card, #open > section, .number') ?? document.documentElement; \
     const inner = element.getBoundingClientRect(), outer = box.getBoundingClientRect(); \
     const runs_out = element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX === 'visible'; \
     return element.getClientRects().length > 0 && !element.closest('svg, .scroll, .unseen') \
     && (runs_out || inner.right > outer.right + 1 || inner.left < outer.left - 1); \
     }).map((element) => element.outerHTML.slice(0, 100)).join()";

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn nothing_sticks_out_however_wide_the_window_is() {
    let (_queue, browser) = opened(3000);
    for (address, rows) in [("#", 8), ("#file=1-1&page=9", 200)] {
        browser.act(&format!("location.hash = '{address}'"));
        let shown =
            "[...document.querySelectorAll('.row')].filter((row) => row.offsetParent).length";
        browser.until(shown, &json!(rows));
        for width in [500, 640, 700, 850, 1000, 1150, 1280, 1600] {
            browser.resize(width, 900);
            browser.until(&format!("innerWidth <= {width}"), &json!(true));
            assert_eq!(browser.ask(BEYOND), "", "{address} at {width}");
            assert_eq!(
                browser.ask("document.documentElement.scrollWidth <= innerWidth"),
                true,
                "{address} at {width}"
            );
        }
    }
    assert_eq!(browser.complaints(), [""; 0]);
}
