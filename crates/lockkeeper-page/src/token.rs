//! The token that the address carries: without it nothing is answered.

use std::fmt::Write;
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use subtle::ConstantTimeEq;

/// As many random bits as nobody guesses.
const BYTES: usize = 20;

/// A secret of the server and of who was told its address.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A new one, from the kernel's random numbers.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn new() -> io::Result<Token> {
        random_hex(BYTES).map(Token)
    }

    /// Whether this is it. Takes as long for any wrong one of its length.
    pub fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// For the address that is printed.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// Not by accident into a log.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// So many random bytes, as hexadecimal digits.
///
/// # Errors
/// If the kernel has none.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match getrandom(&mut random[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(random.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_it() {
        let (token, other) = (Token::new().expect("random"), Token::new().expect("random"));
        assert_eq!(token.as_str().len(), 2 * BYTES);
        assert!(token.is(token.as_str()));
        let longer = format!("{}0", token.as_str());
        for wrong in ["", other.as_str(), &token.as_str()[1..], &longer] {
            assert!(!token.is(wrong), "{wrong}");
        }
        assert!(!format!("{token:?}").contains(token.as_str()));
    }
}
