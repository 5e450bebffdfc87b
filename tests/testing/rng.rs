//! A counter-based generator: the value depends only on the stream's name and the index, so a fixture is the same
//! file on every machine and adding a tensor changes no other.

/// One stream of numbers.
#[derive(Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream called `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        let key = name.bytes().fold(mix(seed), |h, b| mix(h ^ u64::from(b)));
        Stream { key }
    }

    /// The `i`-th 64-bit value.
    pub fn bits(self, i: u64) -> u64 {
        mix(self.key.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The `i`-th value in [0, n).
    pub fn below(self, i: u64, n: u64) -> u64 {
        ((u128::from(self.bits(i)) * u128::from(n)) >> 64) as u64
    }

    /// The `i`-th value of a bell-shaped distribution with mean 0 and standard deviation 1: the sum of four 16-bit
    /// uniforms, exact in integers, so no machine's `ln` or `cos` can change it.
    pub fn normal(self, i: u64) -> f32 {
        let bits = self.bits(i);
        let sum: u64 = (0..4).map(|k| (bits >> (16 * k)) & 0xffff).sum();
        // Four uniforms on 0..=65535: mean 131070, variance 4 (65536^2 - 1) / 12.
        ((sum as f64 - 131_070.0) / 37_837.22) as f32
    }
}

/// Random numbers of a stream in order.
pub struct Dice {
    stream: Stream,
    at: u64,
}

impl Dice {
    /// Those of the stream called `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Dice {
        Dice { stream: Stream::new(seed, name), at: 0 }
    }

    /// The next number in [0, n).
    pub fn below(&mut self, n: usize) -> usize {
        self.at += 1;
        self.stream.below(self.at, n as u64) as usize
    }

    /// The next tokens, that every fixture's vocabulary has as plain ones.
    pub fn tokens(&mut self, n: usize) -> Vec<i32> {
        (0..n).map(|_| 300 + self.below(200) as i32).collect()
    }
}

/// SplitMix64's finaliser.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
