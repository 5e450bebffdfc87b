//! Which instruction set the CPU kernels run on, chosen once at run time.
//!
//! The library is built for the baseline of its target; every faster kernel is compiled beside it and taken only
//! where the processor has the instructions. `ELIZA_CPU_ISA` narrows the choice (`portable`, `avx2`, `avx512`), so
//! that one machine can test every level it has. Results are reproducible within a level, not across levels.

use std::sync::OnceLock;

/// A level of CPU instructions for which kernels exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, any processor.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
}

impl Isa {
    const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512Vnni];

    /// The level kernels run on: the best one available, or what `ELIZA_CPU_ISA` names. A name that is unknown or
    /// not available here is ignored with a warning. The variable is read once.
    pub fn detect() -> Isa {
        static CHOSEN: OnceLock<Isa> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let best = Isa::ALL.into_iter().filter(|isa| isa.is_available()).max_by_key(|isa| isa.score());
            let best = best.unwrap_or(Isa::Portable);
            let Ok(wish) = std::env::var("ELIZA_CPU_ISA") else { return best };
            match Isa::ALL.into_iter().find(|isa| isa.name() == wish) {
                Some(isa) if isa.is_available() => isa,
                Some(isa) => {
                    log::warn!(
                        "ELIZA_CPU_ISA={} is not available on this processor; using {}",
                        isa.name(),
                        best.name()
                    );
                    best
                }
                None => {
                    log::warn!("ELIZA_CPU_ISA={wish} is not one of portable, avx2, avx512; using {}", best.name());
                    best
                }
            }
        })
    }

    /// Every level this processor can run, slowest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this processor can run the level.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                Isa::Avx2.is_available()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The level's name, as `ELIZA_CPU_ISA` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512",
        }
    }

    /// How the level ranks among the CPU's: higher is faster. Used to score the CPU as a device.
    pub fn score(self) -> u32 {
        match self {
            Isa::Portable => 100,
            Isa::Avx2 => 110,
            Isa::Avx512Vnni => 120,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_level_is_available_and_portable_always_is() {
        let available = Isa::available();
        assert_eq!(available[0], Isa::Portable);
        assert!(available.contains(&Isa::detect()));
        assert!(available.windows(2).all(|pair| pair[0].score() < pair[1].score()));
    }
}
