//! How many tasks: the list on the command line.

use std::str::FromStr;

/// So many tasks at once are enough for every question, and a typing error must not fork a machine to death.
pub const MOST_TASKS: u32 = 10_000;

/// Numbers of tasks, ascending and each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskList(pub Vec<u32>);

impl FromStr for TaskList {
    type Err = String;

    /// `1,2,8`, `1..8`, `1...8`, `1…8`, and `n` for the number of cpus, in any mixture.
    fn from_str(text: &str) -> Result<TaskList, String> {
        let mut numbers = Vec::new();
        for part in text.split(',').map(str::trim) {
            match split_range(part) {
                None => numbers.push(number(part)?),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(format!("`{part}` ends before it begins"));
                    }
                    numbers.extend(first..=last);
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(TaskList(numbers))
    }
}

fn split_range(part: &str) -> Option<(&str, &str)> {
    ["…", "...", "..=", ".."]
        .into_iter()
        .find_map(|dots| part.split_once(dots))
}

fn number(text: &str) -> Result<u32, String> {
    match text.trim() {
        "n" => Ok(crate::machine::cpus_allowed().len() as u32),
        "0" => Err("0 tasks do nothing: at least 1".to_owned()),
        "" => Err("a number of tasks is missing".to_owned()),
        digits => match digits.parse() {
            Ok(number) if (1..=MOST_TASKS).contains(&number) => Ok(number),
            _ => Err(format!(
                "`{digits}` is no number of tasks: 1 to {MOST_TASKS}, or n for the number of cpus"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_numbers_and_ranges() {
        for (text, expected) in [
            ("1", &[1][..]),
            ("1,2,8", &[1, 2, 8]),
            ("8, 2 ,1,2", &[1, 2, 8]),
            ("1..4", &[1, 2, 3, 4]),
            ("1...3", &[1, 2, 3]),
            ("1…3", &[1, 2, 3]),
            ("2..2,10000", &[2, 10_000]),
        ] {
            assert_eq!(text.parse(), Ok(TaskList(expected.to_vec())), "{text}");
        }
        let cpus = crate::machine::cpus_allowed().len() as u32;
        assert_eq!("1…n".parse(), Ok(TaskList((1..=cpus).collect())));
    }

    #[test]
    fn no_tasks_too_many_and_nonsense_are_refused() {
        for (text, said) in [
            ("0", "at least 1"),
            ("0..4", "at least 1"),
            ("", "missing"),
            ("1,,2", "missing"),
            ("1..", "missing"),
            ("4..1", "ends before it begins"),
            ("-1", "no number"),
            ("two", "no number"),
            ("10001", "no number"),
            ("4294967297", "no number"),
        ] {
            let refused = text.parse::<TaskList>().expect_err(text);
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
