//! Makes a failing list short: delta debugging (Zeller and Hildebrandt, 2002).

/// A part of `items`, in their order, that still `fails` and from which no single item can be left out.
///
/// `fails` is asked about parts only; `items` itself is taken to fail.
pub fn shrink<T: Clone>(items: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut items = items;
    let mut chunk = items.len().div_ceil(2).max(1);
    while !items.is_empty() {
        let mut removed = false;
        let mut from = 0;
        while from < items.len() {
            let to = (from + chunk).min(items.len());
            let rest: Vec<T> = items[..from].iter().chain(&items[to..]).cloned().collect();
            if fails(&rest) {
                items = rest;
                removed = true;
            } else {
                from = to;
            }
        }
        match (removed, chunk) {
            (true, _) => {}
            (false, 1) => break,
            (false, _) => chunk = chunk.div_ceil(2),
        }
        chunk = chunk.min(items.len().max(1));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn what_is_left_is_what_it_takes() {
        let needs = [3, 41, 77];
        let mut asked = 0;
        let left = shrink((0..100).collect(), |part| {
            asked += 1;
            needs.iter().all(|need| part.contains(need))
        });
        assert_eq!(left, needs);
        assert!(asked < 150, "{asked} questions");
    }

    #[test]
    fn a_failure_that_needs_nothing_is_empty() {
        assert!(shrink(vec![1, 2, 3], |_| true).is_empty());
        assert!(shrink(Vec::<u8>::new(), |_| true).is_empty());
        assert_eq!(shrink(vec![1, 2, 3], |part| part.len() == 3), [1, 2, 3]);
    }
}
