//! One printed number decides everything a run draws: SplitMix64, small enough to be sure of.

/// A stream of draws from one seed.
#[derive(Debug, Clone)]
pub struct Seed(u64);

impl Seed {
    /// The stream of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// True once in `n` times.
    pub const fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
