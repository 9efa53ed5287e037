//! Who may ask, and what every answer says: see the head of the crate.
//!
//! The checks, in their order: the host, so that a name that a foreign page made to mean this machine (DNS
//! rebinding) gets nowhere; the origin, which a browser tells of requests that a page makes; the method; the
//! token. Whoever fails learns which, and nothing else.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::document;
use crate::token::Token;

/// What requests are checked against.
#[derive(Debug)]
pub struct Guard {
    token: Token,
    /// Where the server listens; unspecified for all addresses of the machine.
    address: IpAddr,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Host,
    Origin,
    Method,
    Token,
}

impl Guard {
    pub fn new(token: Token, address: IpAddr) -> Guard {
        Guard { token, address }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let headers = request.headers();
        let Some(host) = host(request).filter(|host| self.knows_host(host)) else {
            return Err(Refusal::Host);
        };
        // Browsers send none with what the address bar asks for.
        if let Some(origin) = headers.get(header::ORIGIN)
            && origin.as_bytes() != format!("http://{host}").as_bytes()
        {
            return Err(Refusal::Origin);
        }
        if request.method() != Method::GET {
            return Err(Refusal::Method);
        }
        match given_token(request).is_some_and(|given| self.token.is(given)) {
            true => Ok(()),
            false => Err(Refusal::Token),
        }
    }

    /// Whether the host is `localhost`, or an address that leads here. Only names can be made to mean
    /// another machine. The port may be any: it is another one through a tunnel.
    fn knows_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
            None => host.split(':').next().unwrap_or_default(),
        };
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        name.parse::<IpAddr>().is_ok_and(|address| {
            address.is_loopback() || address == self.address || self.address.is_unspecified()
        })
    }
}

/// The host that is asked for; `None` if there is none, or more than one.
fn host(request: &Request) -> Option<&str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    // An absolute address in the request line must not say something else.
    let agrees = request
        .uri()
        .authority()
        .is_none_or(|authority| authority.as_str() == host);
    (hosts.next().is_none() && agrees).then_some(host)
}

/// The token in the address, or that of an `Authorization: Bearer` header. The scheme's case does not
/// matter (RFC 9110, section 11.1).
fn given_token(request: &Request) -> Option<&str> {
    let bearer = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token);
    bearer.or_else(|| token_in_address(request))
}

fn token_in_address(request: &Request) -> Option<&str> {
    let mut fields = request.uri().query()?.split('&');
    fields.find_map(|field| field.strip_prefix("token="))
}

/// Lets through what may ask, and sees to the headers of every answer.
pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let checked = guard.check(&request);
    let has_token = token_in_address(&request).is_some();
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(refusal, has_token),
    };
    if checked.is_err() {
        // A stranger does not keep a connection.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    protect(response.headers_mut());
    response
}

fn refuse(refusal: Refusal, token_in_address: bool) -> Response {
    match refusal {
        Refusal::Host => (
            StatusCode::MISDIRECTED_REQUEST,
            "421: this server answers to localhost and to its own address, not to this name.\n",
        )
            .into_response(),
        Refusal::Origin => (
            StatusCode::FORBIDDEN,
            "403: other pages may not ask here.\n",
        )
            .into_response(),
        Refusal::Method => (
            StatusCode::METHOD_NOT_ALLOWED,
            [(header::ALLOW, "GET")],
            "405: there is nothing here but to look.\n",
        )
            .into_response(),
        Refusal::Token => document::denied(token_in_address),
    }
}

/// What every answer says. A document has a policy of its own, which allows its own script and style.
fn protect(headers: &mut HeaderMap) {
    const POLICY: &str =
        "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    if !headers.contains_key(header::CONTENT_SECURITY_POLICY) {
        let policy = HeaderValue::from_static(POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (header::CACHE_CONTROL.as_str(), "no-store"),
        (header::REFERRER_POLICY.as_str(), "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS.as_str(), "nosniff"),
        (header::X_FRAME_OPTIONS.as_str(), "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_no_host_of_ours() {
        let at = |address: &str| {
            Guard::new(
                Token::new().expect("random"),
                address.parse().expect("an address"),
            )
        };
        for (address, host, known) in [
            ("127.0.0.1", "127.0.0.1:80", true),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "LocalHost:9", true),
            ("127.0.0.1", "[::1]:9", true),
            ("127.0.0.1", "localhost.evil.example", false),
            ("127.0.0.1", "evil.example:80", false),
            ("127.0.0.1", "127.0.0.1.evil.example", false),
            ("127.0.0.1", "192.0.2.7", false),
            ("127.0.0.1", "", false),
            ("127.0.0.1", "[::1", false),
            ("192.0.2.7", "192.0.2.7:80", true),
            ("192.0.2.7", "192.0.2.8:80", false),
            ("0.0.0.0", "192.0.2.8:80", true),
            ("::", "[2001:db8::1]:80", true),
            ("::", "evil.example", false),
        ] {
            assert_eq!(at(address).knows_host(host), known, "{address} {host}");
        }
    }
}
