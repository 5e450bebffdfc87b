//! The generator that llama.cpp draws with: the Mersenne Twister MT19937 (Matsumoto and Nishimura,
//! <https://doi.org/10.1145/272991.272995>), and the numbers that GNU's C++ library makes of its words.
//!
//! It has a state, which every draw advances. So a token depends on all draws before it, other than with the
//! counter-based [`random`](super::random).

const WORDS: usize = 624;
const MIDDLE: usize = 397;

/// The generator.
#[derive(Clone)]
pub(super) struct Mt19937 {
    words: [u32; WORDS],
    next: usize,
}

impl Mt19937 {
    /// A generator at the beginning of the stream of a seed.
    pub(super) fn new(seed: u32) -> Mt19937 {
        let mut words = [seed; WORDS];
        let mut last = seed;
        for (word, i) in words.iter_mut().zip(0u32..).skip(1) {
            last = (last ^ last >> 30).wrapping_mul(1_812_433_253).wrapping_add(i);
            *word = last;
        }
        Mt19937 { words, next: WORDS }
    }

    /// The next 32 random bits.
    pub(super) fn bits(&mut self) -> u32 {
        if self.next == WORDS {
            for i in 0..WORDS {
                let joined = self.words[i] & 1 << 31 | self.words[(i + 1) % WORDS] & !(1 << 31);
                let twisted = joined >> 1 ^ (joined & 1).wrapping_mul(0x9908_b0df);
                self.words[i] = self.words[(i + MIDDLE) % WORDS] ^ twisted;
            }
            self.next = 0;
        }
        let mut x = self.words[self.next];
        self.next += 1;
        x ^= x >> 11;
        x ^= x << 7 & 0x9d2c_5680;
        x ^= x << 15 & 0xefc6_0000;
        x ^ x >> 18
    }

    /// A number from 0 to below 1, of two draws, the low one first.
    pub(super) fn double(&mut self) -> f64 {
        const TWO_32: f64 = 4_294_967_296.0;
        let low = f64::from(self.bits());
        let sum = low + f64::from(self.bits()) * TWO_32;
        (sum / (TWO_32 * TWO_32)).min(1.0f64.next_down())
    }

    /// A number from 0 to below 1, of one draw.
    pub(super) fn float(&mut self) -> f32 {
        (self.bits() as f32 / 4_294_967_296.0).min(1.0f32.next_down())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_as_the_c_library_does() {
        for (seed, first, second) in [
            (0, 2_357_136_044, 2_546_248_239),
            (1, 1_791_095_845, 4_282_876_139),
            (42, 1_608_637_542, 3_421_126_067),
            (88, 2_781_210_584, 2_612_107_552),
            (1234, 822_569_775, 2_137_449_171),
        ] {
            let mut generator = Mt19937::new(seed);
            assert_eq!((generator.bits(), generator.bits()), (first, second), "seed {seed}");
        }
        // The standard names the 10000th draw of the default seed.
        let mut generator = Mt19937::new(5489);
        assert_eq!((0..10_000).map(|_| generator.bits()).last(), Some(4_123_659_995));
    }

    #[test]
    fn numbers_are_of_one_and_of_two_draws() {
        for (seed, doubles) in [
            (0, [0.592_844_616_517, 0.844_265_744_257, 0.857_945_619_990]),
            (1, [0.997_184_808_230, 0.932_557_361_368, 0.128_124_447_772]),
            (42, [0.796_542_984_288, 0.183_434_787_893, 0.779_690_997_613]),
            (1234, [0.497_663_666_306, 0.817_838_442_890, 0.612_111_893_584]),
        ] {
            let mut generator = Mt19937::new(seed);
            for double in doubles {
                assert!((generator.double() - double).abs() < 1e-12, "seed {seed}");
            }
        }
        for (seed, floats) in
            [(0, [0.548_813_5, 0.592_844_6, 0.715_189_34]), (42, [0.374_540_12, 0.796_543, 0.950_714_3])]
        {
            let mut generator = Mt19937::new(seed);
            assert_eq!(floats.map(|_| generator.float()), floats, "seed {seed}");
        }
    }
}
