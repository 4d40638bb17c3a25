//! Which rules of the protocol are in force.
//!
//! Production always runs [`Rules::ALL`]. The model checker runs the machines with one rule taken
//! away and must then find the violation that the rule prevents: a model that cannot fail proves
//! nothing. Naming the rule where it acts also tells the reader which line belongs to which rule.

/// A set of rules, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules(u64);

impl Rules {
    /// All rules: the only set for production.
    pub const ALL: Rules = Rules(u64::MAX);

    /// The same rules but for number `rule` (0 to 63).
    #[must_use]
    pub const fn without(self, rule: u32) -> Rules {
        Rules(self.0 & !(1 << rule))
    }

    /// Is number `rule` in force?
    #[must_use]
    pub const fn on(self, rule: u32) -> bool {
        self.0 & (1 << rule) != 0
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules::ALL
    }
}
