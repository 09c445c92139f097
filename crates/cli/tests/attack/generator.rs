//! Random numbers that are the same in every run, so that each input can be made again from its number.

/// SplitMix64. **Source**: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure 16.
pub struct Generator(u64);

impl Generator {
    /// The generator of one input: the same for the same words and number.
    pub fn of(kind: &str, number: u64) -> Generator {
        // FNV-1a, so that two kinds of input with the same number have nothing in common.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let seed = kind.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        Generator(seed ^ number.wrapping_mul(0xd605_1f4b_a7c9_3d1b))
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// How often to damage one input: mostly once, since what is damaged often is refused at the first fault.
    pub fn few(&mut self) -> usize {
        if self.one_in(4) { 2 + self.below(3) } else { 1 }
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
