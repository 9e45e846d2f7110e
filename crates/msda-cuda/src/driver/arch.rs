//! What a kernel is compiled for.

use std::fmt;
use std::str::FromStr;

use msda::{Error, ErrorKind};

/// An architecture, by its compute capability: 9.0 is Hopper and prints as `sm_90`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    /// The generation.
    pub major: u32,
    /// The variant within it.
    pub minor: u32,
}

impl Arch {
    /// The compute capability `major.minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The name that the compiler is given: `sm_90a`, with the suffix that unlocks what only this
    /// architecture has, where there is one; `sm_80` otherwise.
    pub fn target(self) -> String {
        let suffix = if matches!((self.major, self.minor), (9, 0) | (10, _) | (12, _)) { "a" } else { "" };
        format!("{self}{suffix}")
    }

    /// The number the compiler knows it by: 90.
    pub const fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

impl FromStr for Arch {
    type Err = Error;

    /// Reads `sm_90` and, where [`Arch::target`] has a suffix, `sm_90a`.
    fn from_str(text: &str) -> Result<Self, Error> {
        text.strip_prefix("sm_")
            .and_then(|number| number.strip_suffix('a').unwrap_or(number).parse::<u32>().ok())
            .filter(|number| (10..10_000).contains(number))
            .map(|number| Self::new(number / 10, number % 10))
            .filter(|arch| text == arch.to_string() || text == arch.target())
            .ok_or_else(|| Error::new(ErrorKind::Format, "architecture", text, "one like sm_80 or sm_90a"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (arch, name, target) in [
            (Arch::new(7, 5), "sm_75", "sm_75"),
            (Arch::new(8, 9), "sm_89", "sm_89"),
            (Arch::new(9, 0), "sm_90", "sm_90a"),
            (Arch::new(10, 3), "sm_103", "sm_103a"),
            (Arch::new(12, 0), "sm_120", "sm_120a"),
        ] {
            assert_eq!((arch.to_string(), arch.target()), (name.into(), target.into()));
            assert_eq!((name.parse(), target.parse()), (Ok(arch), Ok(arch)));
        }
        for bad in ["", "90", "sm_", "sm_9", "sm_80a", "sm_90b", "sm_+90", "sm_090", "sm_99999999999"] {
            assert!(bad.parse::<Arch>().is_err(), "{bad}");
        }
    }
}
