//! The instruction sets that kernels are compiled for, and which of them a process runs on.
//!
//! The library is built for the baseline of its target; every faster kernel is compiled beside it and taken only
//! where the processor has the instructions. `ELIZA_CPU_ISA` narrows the choice (`portable`, `avx2`, `dotprod` and so
//! on), so that one machine can test every level it has.

#[cfg(target_arch = "aarch64")]
use super::neon::{DotProd, I8mm, Widening};
use super::portable::Portable;
use super::vector::{Kernel, Vector};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512, avxvnni::AvxVnni};
use std::sync::OnceLock;

/// Makes [`Isa`] and [`dispatch`] of a list of instruction sets, slowest first: name in `ELIZA_CPU_ISA`, how the level
/// ranks among the CPU's, and where it exists, the [`Vector`] that it is.
macro_rules! instruction_sets {
    ($($(#[$doc:meta])* $name:ident: $text:literal, score $score:literal, $vector:ident on $arch:meta;)*) => {
        /// A level of CPU instructions for which kernels exist.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Isa {
            $($(#[$doc])* $name,)*
        }

        impl Isa {
            const ALL: &[Isa] = &[$(Isa::$name),*];

            /// Whether this processor can run the level.
            pub fn is_available(self) -> bool {
                match self {
                    $(#[cfg($arch)]
                    Isa::$name => $vector::new().is_some(),)*
                    #[allow(unreachable_patterns)]
                    _ => false,
                }
            }

            /// The level's name, as `ELIZA_CPU_ISA` takes it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Isa::$name => $text,)*
                }
            }

            /// How the level ranks among the CPU's: higher is faster. Used to score the CPU as a device.
            pub fn score(self) -> u32 {
                match self {
                    $(Isa::$name => $score,)*
                }
            }
        }

        /// Run a kernel, compiled for an instruction set; a level that this processor lacks runs as the portable one.
        #[inline]
        pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
            match isa {
                $(#[cfg($arch)]
                Isa::$name => match $vector::new() {
                    Some(simd) => simd.vectorize(kernel),
                    None => Portable.vectorize(kernel),
                },)*
                #[allow(unreachable_patterns)]
                _ => Portable.vectorize(kernel),
            }
        }
    };
}

instruction_sets! {
    /// Plain Rust, any processor.
    Portable: "portable", score 100, Portable on all();
    /// x86-64 with AVX2, FMA and F16C.
    Avx2: "avx2", score 110, Avx2 on target_arch = "x86_64";
    /// x86-64 with AVX2, FMA, F16C and AVX-VNNI, or what of AVX-512 has the same products.
    AvxVnni: "avxvnni", score 115, AvxVnni on target_arch = "x86_64";
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni: "avx512", score 120, Avx512 on target_arch = "x86_64";
    /// AArch64 with NEON.
    Neon: "neon", score 110, Widening on target_arch = "aarch64";
    /// AArch64 with NEON and its dot products.
    DotProd: "dotprod", score 120, DotProd on target_arch = "aarch64";
    /// AArch64 with NEON, its dot products and its products of 8-bit matrices.
    I8mm: "i8mm", score 130, I8mm on target_arch = "aarch64";
}

/// Run a closure that is plain Rust, compiled for an instruction set: the compiler turns its loops into the widest
/// vector code that there is. The closure must be `#[inline(always)]`.
#[inline]
pub(crate) fn compiled_for<T>(isa: Isa, work: impl FnOnce() -> T) -> T {
    dispatch(isa, Plain(work))
}

struct Plain<F>(F);

impl<T, F: FnOnce() -> T> Kernel for Plain<F> {
    type Output = T;

    #[inline(always)]
    fn run<S: Vector>(self, _: S) -> T {
        (self.0)()
    }
}

/// Whether this is one of AMD's processors: how far their prefetchers keep up with a product was measured on a Zen 4.
pub(crate) fn is_amd() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let leaf = std::arch::x86_64::__cpuid(0);
            let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
            [b"AuthenticAMD", b"HygonGenuine"].iter().any(|name| vendor == *name)
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    })
}

impl Isa {
    /// The level kernels run on: the best one available, or what `ELIZA_CPU_ISA` names. A name that is unknown or
    /// not available here is ignored with a warning. The variable is read once.
    pub fn detect() -> Isa {
        static CHOSEN: OnceLock<Isa> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let best = Isa::available().last().copied().unwrap_or(Isa::Portable);
            let Ok(wish) = std::env::var("ELIZA_CPU_ISA") else { return best };
            let known = Isa::ALL.iter().copied().find(|isa| isa.name() == wish);
            let problem = match known {
                Some(isa) if isa.is_available() => return isa,
                Some(_) => "is not available on this processor".to_string(),
                None => {
                    format!("is not one of {}", Isa::ALL.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "))
                }
            };
            log::warn!("ELIZA_CPU_ISA={wish} {problem}; using {}", best.name());
            best
        })
    }

    /// Every level this processor can run, slowest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect()
    }
}
