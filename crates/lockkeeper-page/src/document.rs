//! The documents: the page itself, and what is shown in its place to who has no token.
//!
//! Each is one text with its script and style within, which the policy allows by a number used once; it
//! allows nothing else but requests back to this server.

use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

use crate::token::random_hex;

const PAGE: &str = include_str!("../page/page.html");
const DENIED: &str = include_str!("../page/denied.html");
const STYLE: &str = include_str!("../page/style.css");
const SCRIPT: &str = include_str!("../page/script.js");

/// The page.
pub fn page() -> Response {
    answer(StatusCode::OK, |nonce| {
        PAGE.replace("NONCE", nonce)
            .replace("/*STYLE*/", STYLE)
            .replace("/*SCRIPT*/", SCRIPT)
    })
}

/// What says that the token is missing, or wrong where there was one. If it is only missing, as after a
/// reload, its script looks whether this tab of the browser has it.
pub fn denied(wrong: bool) -> Response {
    answer(StatusCode::FORBIDDEN, |nonce| {
        let what = match wrong {
            true => "wrong",
            false => "missing",
        };
        DENIED.replace("NONCE", nonce).replace("WHAT", what)
    })
}

fn answer(status: StatusCode, text: impl FnOnce(&str) -> String) -> Response {
    let Ok(nonce) = random_hex(16) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    );
    let headers = [(header::CONTENT_SECURITY_POLICY, policy)];
    (status, headers, Html(text(&nonce))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document_that_names_nothing_elsewhere() {
        let page = PAGE
            .replace("/*STYLE*/", STYLE)
            .replace("/*SCRIPT*/", SCRIPT);
        assert!(STYLE.len() > 1000 && page.contains(STYLE) && page.contains(SCRIPT));
        let named = |text: &str| page.contains(text);
        for elsewhere in [
            "https:",
            " src=",
            "@import",
            "url(",
            "innerHTML",
            "style=\"",
        ] {
            assert!(!named(elsewhere), "{elsewhere}");
        }
        // Of SVG; it is a name, and not fetched.
        let addresses = page.matches("http:").count();
        assert_eq!(
            addresses,
            page.matches("http://www.w3.org/2000/svg").count()
        );
        // Neither part ends the element that it is in.
        assert!(!STYLE.contains("</") && !SCRIPT.contains("</script"));
        assert!(!STYLE.contains("NONCE") && !SCRIPT.contains("NONCE"));
    }
}
