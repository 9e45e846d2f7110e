//! Instruction sets by name, and the proof that this machine has one.

use std::fmt;
use std::str::FromStr;

use super::{InstructionSet, portable};
use crate::error::{Error, ErrorKind, Result};

/// A piece of work that is compiled once per instruction set.
pub(crate) trait Kernel {
    /// # Safety
    /// The machine must have `I`. Implementations are `#[inline(always)]`.
    unsafe fn run<I: InstructionSet>(self);
}

/// An instruction set of the CPU backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Arm's Advanced SIMD.
    Neon,
    /// The baseline of the build's target.
    Portable,
}

impl Isa {
    /// All of them, fastest first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The name used in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Self::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            Self::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The ones this machine has, fastest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The fastest one this machine has.
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }
}

/// An instruction set that this machine has. Only detection makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Detected(Isa);

impl Detected {
    /// The fastest one.
    pub(crate) fn best() -> Self {
        Self(Isa::best())
    }

    /// `isa`, or an error where this machine lacks it.
    pub(crate) fn new(isa: Isa) -> Result<Self> {
        if isa.is_available() {
            return Ok(Self(isa));
        }
        let have: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        let expected = format!("one this machine has: {}", have.join(", "));
        Err(Error::new(ErrorKind::Unsupported, "instruction set", isa, expected))
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }

    /// Runs `kernel` compiled for this instruction set.
    pub(crate) fn run(self, kernel: impl Kernel) {
        // SAFETY: the field is private to this file, where both constructors detect it first.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => super::avx512::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => super::avx2::run(kernel),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => super::neon::run(kernel),
                _ => kernel.run::<portable::Portable>(),
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == s).ok_or_else(|| {
            let expected = "avx512, avx2, neon or portable";
            Error::new(ErrorKind::Unsupported, "instruction set", format!("'{s}'"), expected)
        })
    }
}
