//! The HTTP side, against a source that is made up: who is answered, with what, and what a client cannot do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_page::{BindError, Bound, FileId, Limits, Source, TotalsNow, Watched};
use lockkeeper_watch::report::{FileLocks, Held, Kind, Lock, Mode, Report, Totals};
use lockkeeper_watch::timeline::{Recorder, Span};

const NASTY: &str = "</script><script>alert(1)</script>";

/// A mount of one file, whose name is markup.
#[derive(Default)]
struct Fake {
    reports: AtomicUsize,
    watched: Arc<AtomicUsize>,
    /// How many locks there are.
    locks: Mutex<u64>,
}

impl Source for Fake {
    fn report(&self) -> Report {
        self.reports.fetch_add(1, Ordering::Relaxed);
        let locks = *self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let held = |owner| Held {
            lock: Lock {
                kind: Kind::Posix,
                mode: Mode::Write,
                start: owner,
                end: Some(owner),
                pid: 4711,
                command: Some("a".into()),
                owner,
            },
            held_for: Some(1.0),
            breaking: false,
        };
        Report {
            mountpoint: "/m".into(),
            files: vec![FileLocks {
                path: Some(format!("/m/{NASTY}")),
                locks: (0..locks).map(held).collect(),
                ..FileLocks::new(8, 131)
            }],
            totals: Totals {
                acquisitions: 12_345,
                ..Totals::default()
            },
            ..Report::default()
        }
    }

    fn totals(&self) -> TotalsNow {
        TotalsNow::default()
    }

    fn watch(&self, file: FileId) -> Box<dyn Watched> {
        assert_eq!((file.device, file.inode), (8, 131));
        self.watched.fetch_add(1, Ordering::Relaxed);
        Box::new(Line(self.watched.clone()))
    }
}

struct Line(Arc<AtomicUsize>);

impl Watched for Line {
    fn spans(&self) -> (f64, Vec<Span>) {
        (2.0, Recorder::default().spans())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Server {
    address: SocketAddr,
    token: String,
    source: Arc<Fake>,
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn server_with(limits: Limits) -> Server {
    let bound = Bound::new(loopback(), false).expect("a port");
    let address = bound.address();
    let url = bound.url();
    let (rest, token) = url.split_once("?token=").expect("a token");
    assert_eq!(rest, format!("http://{address}/"));
    assert!(token.len() >= 32, "{token}");
    let source = Arc::new(Fake::default());
    bound.serve(source.clone(), limits).expect("serves");
    Server {
        address,
        token: token.into(),
        source,
    }
}

fn server() -> Server {
    server_with(Limits::default())
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| {
            line.split_once(':')
                .is_some_and(|(this, _)| this.eq_ignore_ascii_case(name))
        };
        let line = self.head.lines().find(named)?;
        line.split_once(':').map(|(_, value)| value.trim())
    }
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        stream
    }

    /// Sends these lines and reads to the end.
    fn raw(&self, lines: &[&str]) -> Answer {
        let mut stream = self.connect();
        let request = format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n"));
        stream.write_all(request.as_bytes()).expect("sends");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        Answer {
            status: head
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .expect("a status"),
            head: head.into(),
            body: body.into(),
        }
    }

    fn get(&self, path: &str) -> Answer {
        let host = format!("Host: {}", self.address);
        self.raw(&[&format!("GET {path} HTTP/1.1"), &host])
    }

    fn with_token(&self, path: &str) -> String {
        let sign = if path.contains('?') { '&' } else { '?' };
        format!("{path}{sign}token={}", self.token)
    }

    /// A stream of views.
    fn events(&self, path: &str) -> Events {
        let mut stream = self.connect();
        let path = self.with_token(path);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sends");
        Events(BufReader::new(stream))
    }

    /// Waits until it is so.
    fn until(&self, what: &str, mut is_so: impl FnMut(&Fake) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so(&self.source) {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Events(BufReader<TcpStream>);

impl Events {
    /// The next view.
    fn next(&mut self) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.0.read_line(&mut line).expect("reads"),
                0,
                "the stream ended"
            );
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }
}

#[test]
fn nothing_is_answered_without_the_token() {
    let server = server();
    let wrong = format!("{}x", &server.token[1..]);
    for path in ["/", "/events", "/metrics", "/favicon.ico", "/nothing"] {
        for query in [
            "",
            "?token=",
            &format!("?token={wrong}"),
            &format!("?token={}0", server.token),
        ] {
            let answer = server.get(&format!("{path}{query}"));
            assert_eq!(answer.status, 403, "{path}{query}");
            assert!(!answer.body.contains("Busiest"), "{path}{query}");
        }
    }
    let host = format!("Host: {}", server.address);
    let given = |authorization: &str| {
        server
            .raw(&["GET /nothing HTTP/1.1", &host, authorization])
            .status
    };
    assert_eq!(given(&format!("Authorization: Bearer {wrong}")), 403);
    assert_eq!(
        given(&format!("Authorization: Basic {}", server.token)),
        403
    );
    for scheme in ["Bearer", "bearer", "BEARER"] {
        assert_eq!(
            given(&format!("Authorization: {scheme} {}", server.token)),
            404,
            "{scheme}"
        );
    }
    // A right one in the address does not make up for a wrong one.
    let both = server.raw(&[
        &format!("GET {} HTTP/1.1", server.with_token("/")),
        &host,
        &format!("Authorization: Bearer {wrong}"),
    ]);
    assert_eq!(both.status, 403);
    assert_eq!(
        server.source.reports.load(Ordering::Relaxed),
        0,
        "nobody looked"
    );
}

#[test]
fn two_servers_have_two_tokens() {
    let (one, other) = (server(), server());
    assert_eq!(one.get(&format!("/?token={}", other.token)).status, 403);
}

#[test]
fn every_answer_forbids_what_is_not_its_own() {
    let server = server();
    let host = format!("Host: {}", server.address);
    for answer in [
        server.get(&server.with_token("/")),
        server.get("/"),
        server.get(&server.with_token("/nothing")),
        server.raw(&["POST / HTTP/1.1", &host]),
        server.raw(&["GET / HTTP/1.1", "Host: evil.example"]),
    ] {
        let header = |name| answer.header(name);
        let policy = header("content-security-policy").expect("a policy");
        for rule in [
            "default-src 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.contains(rule), "{}", answer.head);
        }
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        assert_eq!(header("referrer-policy"), Some("no-referrer"));
        assert_eq!(header("cache-control"), Some("no-store"));
        assert_eq!(header("x-content-type-options"), Some("nosniff"));
        assert_eq!(header("cross-origin-resource-policy"), Some("same-origin"));
        assert!(
            !answer.head.to_lowercase().contains("access-control"),
            "{}",
            answer.head
        );
        assert_eq!(header("set-cookie"), None);
        assert!(!answer.body.contains(&server.token));
    }
}

#[test]
fn the_page_is_one_document_whose_nonce_is_used_once() {
    let server = server();
    let nonce = || {
        let answer = server.get(&server.with_token("/"));
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        let policy = answer
            .header("content-security-policy")
            .expect("a policy")
            .to_owned();
        let nonce = policy
            .split("script-src 'nonce-")
            .nth(1)
            .and_then(|rest| rest.split('\'').next())
            .expect("a nonce")
            .to_owned();
        assert!(nonce.len() >= 32);
        assert_eq!(
            answer.body.matches(&format!("nonce=\"{nonce}\"")).count(),
            2
        );
        assert!(policy.contains("connect-src 'self'"), "{policy}");
        nonce
    };
    assert_ne!(nonce(), nonce());
}

#[test]
fn foreign_hosts_and_origins_and_other_methods_are_refused() {
    let server = server();
    let line = format!("GET {} HTTP/1.1", server.with_token("/nothing"));
    let own = format!("Host: {}", server.address);
    let same = format!("Origin: http://{}", server.address);
    for (lines, status) in [
        (vec![line.as_str(), &own], 404),
        (vec![&line, "Host: localhost"], 404),
        (vec![&line, "Host: [::1]:8080"], 404),
        (vec![&line, "Host: evil.example"], 421),
        (vec![&line, "Host: 127.0.0.1.evil.example"], 421),
        (vec![&line], 421),
        (vec![&line, &own, "Host: evil.example"], 421),
        (vec![&line, &own, &same], 404),
        (vec![&line, &own, "Origin: http://evil.example"], 403),
        (vec![&line, &own, "Origin: null"], 403),
    ] {
        assert_eq!(server.raw(&lines).status, status, "{lines:?}");
    }
    for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let line = format!("{method} {} HTTP/1.1", server.with_token("/"));
        let answer = server.raw(&[&line, &own]);
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("GET")),
            "{method}"
        );
    }
    let absolute = format!("GET http://evil.example{} HTTP/1.1", server.with_token("/"));
    assert_eq!(server.raw(&[&absolute, &own]).status, 421);
}

#[test]
fn views_follow_what_is_locked_and_names_stay_text() {
    let server = server();
    let mut events = server.events("/events?find=&page=0");
    let first = events.next();
    assert_eq!(
        (&first["first"], &first["counts"]["locks"]),
        (&true.into(), &0.into())
    );
    assert_eq!(first["files"][0]["path"], format!("/m/{NASTY}"));
    *server.source.locks.lock().expect("unharmed") = 3;
    loop {
        let view = events.next();
        if view["counts"]["locks"] == 3 {
            assert_eq!(view["first"], false);
            assert_eq!(view["totals"]["acquisitions"], 12_345);
            assert_eq!(view["files"][0]["rows"][2]["pid"], 4711);
            break;
        }
    }
    assert_eq!(server.source.watched.load(Ordering::Relaxed), 0);
}

#[test]
fn a_file_is_watched_while_it_is_open() {
    let server = server();
    let mut events = server.events("/events?file=8-131");
    let view = events.next();
    assert_eq!(view["file"]["id"], "8-131");
    assert_eq!(view["file"]["timeline"]["now"], 2.0);
    assert_eq!(server.source.watched.load(Ordering::Relaxed), 1);
    drop(events);
    server.until("the end of watching", |source| {
        source.watched.load(Ordering::Relaxed) == 0
    });
    // What is no file opens none.
    let mut events = server.events("/events?file=../etc/passwd");
    assert_eq!(events.next()["file"], serde_json::Value::Null);
    let unreadable = server.get(&server.with_token("/events?page=-1"));
    assert_eq!(unreadable.status, 400);
}

#[test]
fn too_many_pages_and_connections_are_turned_away_until_others_go() {
    let server = server_with(Limits {
        viewers: 1,
        connections: 3,
        ..Limits::default()
    });
    let mut first = server.events("/events");
    first.next();
    let refused = server.get(&server.with_token("/events"));
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("5"))
    );
    // With two more that say nothing, all places are taken.
    let silent = [server.connect(), server.connect()];
    server.until("a full house", |_| {
        let mut stream = server.connect();
        let _ = write!(
            stream,
            "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        text.is_empty()
    });
    first.next();
    drop(silent);
    drop(first);
    server.until("room", |_| {
        let mut stream = server.connect();
        let _ = write!(
            stream,
            "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        text.starts_with(b"HTTP/1.1 403")
    });
}

#[test]
fn who_does_not_ask_or_does_not_read_is_hung_up_on() {
    let server = server_with(Limits {
        ask_within: Duration::from_millis(50),
        read_within: Duration::from_millis(500),
        ..Limits::default()
    });
    *server.source.locks.lock().expect("unharmed") = 200;
    // Half a request.
    let mut slow = server.connect();
    write!(slow, "GET / HTTP/1.1\r\nHost").expect("sends");
    let mut text = Vec::new();
    slow.read_to_end(&mut text).expect("the end");
    // Somebody who takes nothing: his file is watched until the kernel gives him up. Meanwhile others are served.
    let mut deaf = server.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&deaf, 2048).expect("a small buffer");
    let path = server.with_token("/events?file=8-131");
    write!(deaf, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sends");
    server.until("the deaf one", |source| {
        source.watched.load(Ordering::Relaxed) == 1
    });
    let mut other = server.events("/events");
    let deadline = Instant::now() + Duration::from_secs(120);
    while server.source.watched.load(Ordering::Relaxed) > 0 {
        assert!(Instant::now() < deadline, "the deaf one is still served");
        other.next();
    }
}

#[test]
fn metrics_are_text_for_prometheus_which_brings_the_token_in_a_header() {
    let server = server();
    let host = format!("Host: {}", server.address);
    let bearer = format!("Authorization: Bearer {}", server.token);
    let answer = server.raw(&["GET /metrics HTTP/1.1", &host, &bearer]);
    assert_eq!(answer.status, 200);
    let form = answer.header("content-type").expect("a form");
    assert!(form.starts_with("text/plain; version=0.0.4"), "{form}");
    assert!(
        answer
            .body
            .contains("\nlockkeeper_acquisitions_total 12345\n"),
        "{}",
        answer.body
    );
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let server = server();
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        &[b'a'; 100_000],
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = server.connect();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        assert!(
            text.is_empty() || text.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&text)
        );
    }
    assert_eq!(server.get(&server.with_token("/")).status, 200);
}

#[test]
fn a_port_is_not_taken_twice_and_not_for_all_the_world() {
    let taken = TcpListener::bind(loopback())
        .expect("a port")
        .local_addr()
        .expect("bound");
    let listener = TcpListener::bind(taken).expect("bound again");
    let error = Bound::new(taken, false).expect_err("in use");
    assert!(matches!(error, BindError::InUse(_)));
    assert!(
        error.to_string().contains(&taken.port().to_string()),
        "{error}"
    );
    drop(listener);
    let everywhere: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
    let error = Bound::new(everywhere, false).expect_err("not a loopback address");
    assert!(error.to_string().contains("--http-any-address"), "{error}");
    let bound = Bound::new(everywhere, true).expect("allowed");
    assert!(
        bound.url().starts_with("http://127.0.0.1:"),
        "{}",
        bound.url()
    );
}
