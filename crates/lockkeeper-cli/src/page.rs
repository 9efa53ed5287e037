//! The page of a mount: `lockkeeper mount --http`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use clap::Args;
use lockkeeper_mount::{ManagerService, Observer, Reporter, Session, Watching};
use lockkeeper_page::{BindError, Bound, FileId, Limits, Source, TotalsNow, Watched};
use lockkeeper_watch::ask::Question;
use lockkeeper_watch::report::Report;
use lockkeeper_watch::timeline::Span;

/// Whether and where there is a page.
#[derive(Args, Clone, Debug, Default)]
pub struct PageOptions {
    /// Serve a page that shows the locks, on a loopback address; port 0 is any that is free
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    pub http: Option<SocketAddr>,
    /// Let the page be on an address that others can reach; nothing is encrypted on the way
    #[arg(long)]
    pub http_any_address: bool,
}

/// `ADDRESS:PORT`, or a port of the loopback address.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse()
        .map_err(|_| "neither a port nor ADDRESS:PORT, such as 127.0.0.1:8080".into())
}

impl PageOptions {
    /// Takes the port, before anything is mounted.
    ///
    /// # Errors
    /// If it is in use, or not for everybody.
    pub fn bind(&self) -> Result<Option<Bound>, BindError> {
        self.http
            .map(|address| Bound::new(address, self.http_any_address))
            .transpose()
    }
}

/// What is said of the page at the start.
pub fn welcome(url: &str, address: SocketAddr) -> String {
    let mut text = format!("Page: {url}\n");
    if !address.ip().is_loopback() {
        text += "Warning: others can reach this page, and whoever listens on the way can read the token.\n";
    }
    text
}

/// Serves the page of this mount.
///
/// # Errors
/// If there is no thread to be had.
pub fn serve(bound: Bound, session: &Session, service: Arc<ManagerService>) -> std::io::Result<()> {
    let mount = MountSource {
        observer: session.observer(),
        reporter: session.reporter(),
        service,
    };
    bound.serve(Arc::new(mount), Limits::default())
}

struct MountSource {
    observer: Observer,
    reporter: Reporter,
    service: Arc<ManagerService>,
}

impl Source for MountSource {
    fn report(&self) -> Report {
        self.reporter.report(Question::Brief)
    }

    fn totals(&self) -> TotalsNow {
        TotalsNow {
            totals: self.observer.totals(),
            waiting: self.observer.counts().waiting,
        }
    }

    fn watch(&self, file: FileId) -> Box<dyn Watched> {
        let file = lockkeeper_mount::FileId {
            dev: file.device,
            ino: file.inode,
        };
        Box::new(WatchedFile(self.service.watch(file)))
    }
}

struct WatchedFile(Watching);

impl Watched for WatchedFile {
    fn spans(&self) -> (f64, Vec<Span>) {
        self.0.spans()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_machine() {
        for (text, expected) in [
            ("8080", Some("127.0.0.1:8080")),
            ("0", Some("127.0.0.1:0")),
            ("[::1]:80", Some("[::1]:80")),
            ("0.0.0.0:80", Some("0.0.0.0:80")),
            ("70000", None),
            ("localhost:80", None),
            ("127.0.0.1", None),
            ("", None),
        ] {
            let read = address(text).ok().map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }
}
