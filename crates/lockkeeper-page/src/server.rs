//! Connections: how many there may be, and how long one may keep us waiting.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::sync::Semaphore;

use crate::guard::Guard;
use crate::routes;
use crate::sampler::Sampler;
use crate::source::Source;
use crate::token::Token;

/// So much of what was sent and not yet taken the kernel keeps for a connection (socket(7): it doubles this). Left to
/// itself it comes to keep megabytes: minutes of old views, for a client that does not read.
const UNTAKEN: usize = 128 << 10;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time. Whoever comes when there are so many is hung up on.
    pub connections: usize,
    /// Pages that are open at a time.
    pub viewers: usize,
    /// How long a client may take to ask, also for the next time on the same connection.
    pub ask_within: Duration,
    /// How long a client may take nothing of what it is sent.
    pub read_within: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            viewers: 16,
            ask_within: Duration::from_secs(10),
            read_within: Duration::from_secs(30),
        }
    }
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Others could reach it.
    #[error(
        "{0} is not a loopback address: others could reach the page, and what it says is not encrypted; \
         --http-any-address allows it"
    )]
    NotLoopback(SocketAddr),
    /// The port is taken.
    #[error("port {} of {} is in use: give another one, or 0 for any that is free", .0.port(), .0.ip())]
    InUse(SocketAddr),
    /// Anything else.
    #[error("cannot listen on {0}: {1}")]
    Io(SocketAddr, io::Error),
    /// The kernel has no random numbers.
    #[error("cannot make a token for the page: {0}")]
    Token(io::Error),
}

/// A port that is taken, and not served yet. So errors come before anything is mounted.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
}

impl Bound {
    /// Takes the port; 0 for any that is free. Only a loopback address, unless `any_address`.
    ///
    /// # Errors
    /// [`BindError`], for people to read.
    pub fn new(wanted: SocketAddr, any_address: bool) -> Result<Bound, BindError> {
        if !wanted.ip().is_loopback() && !any_address {
            return Err(BindError::NotLoopback(wanted));
        }
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(wanted),
            _ => BindError::Io(wanted, error),
        };
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        // Connections inherit it.
        sockopt::set_socket_send_buffer_size(&listener, UNTAKEN)
            .map_err(|errno| failed(errno.into()))?;
        let address = listener.local_addr().map_err(failed)?;
        let token = Token::new().map_err(BindError::Token)?;
        Ok(Bound {
            listener,
            address,
            token,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the page, with the token. Whoever has it may look.
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            match address {
                SocketAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
                SocketAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            }
        }
        format!("http://{address}/?token={}", self.token.as_str())
    }

    /// Serves the page about `source`, from a thread of its own, until the process ends.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn serve(self, source: Arc<dyn Source>, limits: Limits) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // One looks at the locks, one makes views of what it saw.
            .max_blocking_threads(2)
            .thread_name("page-looks")
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(self.listener)?
        };
        let guard = Guard::new(self.token, self.address.ip());
        std::thread::Builder::new()
            .name("page".into())
            .spawn(move || {
                let sampler = Sampler::new(source);
                runtime.spawn(sampler.clone().sample_locks());
                runtime.spawn(sampler.clone().sample_totals());
                let router = routes::router(sampler, guard, limits.viewers);
                runtime.block_on(accept(listener, router, limits));
            })?;
        Ok(())
    }
}

async fn accept(listener: tokio::net::TcpListener, router: Router, limits: Limits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Of the one who came, or no descriptors: then somebody must go first.
                tracing::debug!(%error, "page");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!("too many connections to the page");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let patience = u32::try_from(limits.read_within.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(&stream, patience);
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.ask_within)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "page");
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn of_a_client_that_does_not_read_little_is_kept() {
        let bound = Bound::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), false).expect("binds");
        bound.listener.set_nonblocking(false).expect("waits");
        let _client = TcpStream::connect(bound.address()).expect("connects");
        let (accepted, _) = bound.listener.accept().expect("accepts");
        let kept = sockopt::socket_send_buffer_size(&accepted).expect("told");
        assert!(kept <= 2 * UNTAKEN, "{kept}");
    }
}
