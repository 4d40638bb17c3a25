//! Chance that can be repeated: the same seed, the same throws.

/// Numbers that look random. (SplitMix64; nothing here needs secrecy.)
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// Dice of their own for each order, process or purpose.
    pub(super) fn new(seed: u64, purpose: u64) -> Dice {
        let mut dice = Dice(seed ^ purpose.wrapping_mul(0xA24B_AED4_963E_E407));
        dice.next();
        dice
    }

    /// A number below `bound`; 0 if there is none.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // The bias is one in 2^64 / bound.
        self.next() % bound.max(1)
    }

    /// Puts a list into another order, each equally likely.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            // At most `last`, so it fits.
            let other = self.below(last as u64 + 1) as usize;
            list.swap(last, other);
        }
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let shuffled = |seed, purpose| {
            let mut list: Vec<u32> = (0..20).collect();
            Dice::new(seed, purpose).shuffle(&mut list);
            list
        };
        assert_eq!(shuffled(1, 2), shuffled(1, 2));
        assert_ne!(shuffled(1, 2), shuffled(1, 3));
        assert_ne!(shuffled(1, 2), shuffled(2, 2));
        let mut sorted = shuffled(1, 2);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<u32>>());
        assert_eq!(Dice::new(1, 1).below(0), 0);
    }
}
