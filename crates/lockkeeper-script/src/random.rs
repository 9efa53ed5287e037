//! A small generator of random numbers, kept here so that a seed means the same scripts for ever.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of the `stream`th of many independent streams of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        let offset = random.next();
        Self(offset ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0. The bias is of no consequence for small bounds.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// One of `choices`, each as often as its weight.
    pub fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let total: usize = choices.iter().map(|(weight, _)| weight).sum();
        let mut left = self.below(total);
        for (weight, choice) in choices {
            match left.checked_sub(*weight) {
                None => return *choice,
                Some(rest) => left = rest,
            }
        }
        unreachable!("the weights add up to their total")
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut random = Random::new(7, 3);
        let numbers: Vec<usize> = (0..6).map(|_| random.below(100)).collect();
        assert_eq!(numbers, [56, 47, 65, 78, 84, 81]);
    }

    #[test]
    fn weights_are_kept() {
        let mut random = Random::new(1, 1);
        let heavy = (0..1000)
            .filter(|_| random.weighted(&[(9, true), (1, false)]))
            .count();
        assert!((850..950).contains(&heavy), "{heavy}");
    }
}
