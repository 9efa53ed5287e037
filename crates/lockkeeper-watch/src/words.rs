//! How numbers, times, ranges and names are put for people.

use crate::report::{FileLocks, Kind, Lock, Mode, Report};

/// `0.2 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 10.0 {
        let tenths = (seconds * 10.0).floor() / 10.0;
        return match tenths.fract() == 0.0 && tenths > 0.0 {
            true => format!("{tenths:.0} s"),
            false => format!("{tenths:.1} s"),
        };
    }
    let whole = seconds as u64;
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        _ => format!("{big} {big_unit} {small} {small_unit}"),
    };
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => two(whole / 60, "min", whole % 60, "s"),
        3600..86_400 => two(whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3600, "h"),
    }
}

/// `9,950`.
pub fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 lock`, `2 locks`.
pub fn count(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { many })
}

/// `0-9`, `5`, `100-end`, `whole file`; nothing for flocks and leases, which are of the whole file always.
pub fn range(lock: &Lock) -> String {
    match (lock.kind, lock.start, lock.end) {
        (Kind::Flock | Kind::Lease | Kind::Delegation, ..) => String::new(),
        (_, 0, None) => "whole file".into(),
        (_, start, None) => format!("{start}-end"),
        (_, start, Some(end)) if start == end => start.to_string(),
        (_, start, Some(end)) => format!("{start}-{end}"),
    }
}

/// `read`, `write`.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "read",
        Mode::Write => "write",
    }
}

/// `POSIX write 0-9`, `flock read`.
pub fn lock(lock: &Lock) -> String {
    let mode = mode(lock.mode);
    let range = range(lock);
    let blank = if range.is_empty() { "" } else { " " };
    format!("{} {mode}{blank}{range}", lock.kind.name())
}

/// The process, for people, on one line whatever its program is called.
pub fn who(lock: &Lock) -> String {
    clean(&lock.who())
}

/// The file, for people.
pub fn file(file: &FileLocks, report: &Report) -> String {
    match (&file.path, file.deleted) {
        (Some(path), false) => clean(path),
        (Some(path), true) => format!("{} (deleted)", clean(path)),
        (None, _) => format!("{} (inode {})", clean(&report.mountpoint), file.inode),
    }
}

/// The file's name alone, for people.
pub fn name(file: &FileLocks) -> String {
    let path = file.path.as_deref();
    path.map_or_else(|| format!("inode {}", file.inode), clean)
}

/// A name as it may go to a terminal: whoever names a file or a process must not write lines of his own, nor
/// move the cursor, nor have what follows set from right to left. As lslocks(8) does, control characters are
/// shown as `\x0a`.
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if commands_the_screen(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                clean.push_str(&format!("\\x{byte:02x}"));
            }
        } else {
            clean.push(c);
        }
    }
    clean
}

/// Control characters, separators of lines, and what changes the direction of writing.
fn commands_the_screen(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A JSON document as it may go to a terminal. Between its strings there is nothing of the kind but line
/// breaks, and within them serde_json leaves only what is above ASCII, and DEL.
pub fn clean_json(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && commands_the_screen(c) {
            // All of them are below U+10000.
            clean.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            clean.push(c);
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (seconds, text) in [
            (-1.0, "0.0 s"),
            (0.04, "0.0 s"),
            (0.25, "0.2 s"),
            (1.0, "1 s"),
            (9.99, "9.9 s"),
            (12.7, "12 s"),
            (60.0, "1 min"),
            (200.0, "3 min 20 s"),
            (7500.0, "2 h 5 min"),
            (273_600.0, "3 d 4 h"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (9950, "9,950"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\n\u{9b}ü"), "a\\x1b[2Jb\\x0a\\xc2\\x9bü");
        assert_eq!(clean("\u{202e}gpj"), "\\xe2\\x80\\xaegpj");
    }

    #[test]
    fn a_document_means_the_same_when_it_commands_nothing() {
        let names = [
            "a\x1b[2J\n",
            "\u{9b}2J\x7f",
            "\u{202e}\u{2028}é\u{1f600}\"\\",
        ];
        let text = serde_json::to_string_pretty(&names).expect("writes");
        let clean = clean_json(&text);
        assert!(!clean.chars().any(|c| c != '\n' && commands_the_screen(c)));
        let again: Vec<String> = serde_json::from_str(&clean).expect("reads");
        assert_eq!(again, names);
    }
}
