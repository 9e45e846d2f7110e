//! What is compiled.

use std::fmt::Write as _;

use msda::{Error, ErrorKind, Result};

use super::{KERNELS, Sources};
use crate::driver::Arch;

/// Options that every unit is compiled with. Not among them: anything that trades accuracy for speed.
const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "-lineinfo", "--ptxas-options=-v"];

/// The longest key that is part of a folder's name; file systems allow 255 bytes in all.
const MAX_KEY: usize = 180;

/// What is compiled: a file, what is defined in it, and for which architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Where the file and its headers are.
    pub sources: &'static Sources,
    /// The file, by its name in the sources.
    pub file: &'static str,
    /// What people call it, such as `rows-f16-d32-p4.4.4.4-bshd`: letters, digits, `.`, `_` and `-`.
    pub key: String,
    /// Macros and their values.
    pub defines: Vec<(String, String)>,
    /// What it is compiled for.
    pub arch: Arch,
}

/// A unit with everything that decides about the result in one readable text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// Options, macros, the file and what it includes.
    pub text: String,
    /// The text's hash: what the cache goes by.
    pub hash: [u8; 32],
    /// The name of its folder in the cache: key, architecture and the beginning of the hash.
    pub name: String,
}

impl Unit {
    /// A unit of this crate's [`KERNELS`], without macros.
    pub fn new(file: &'static str, key: impl Into<String>, arch: Arch) -> Self {
        Self::of(&KERNELS, file, key, arch)
    }

    /// A unit of another crate's sources, without macros.
    pub fn of(sources: &'static Sources, file: &'static str, key: impl Into<String>, arch: Arch) -> Self {
        Self { sources, file, key: key.into(), defines: Vec::new(), arch }
    }

    /// Defines a macro.
    #[must_use]
    pub fn define(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.defines.push((name.into(), value.to_string()));
        self
    }

    /// What the compiler is told.
    pub fn options(&self) -> Vec<String> {
        let defines = self.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        self.flags().chain(defines).collect()
    }

    fn flags(&self) -> impl Iterator<Item = String> {
        let arch = format!("--gpu-architecture={}", self.arch.target());
        std::iter::once(arch).chain(OPTIONS.iter().map(|&option| option.to_owned()))
    }

    /// Puts together all that decides about the result.
    pub fn assemble(&self) -> Result<Assembled> {
        let mut text = format!("// {} by msda-cuda {}\n", self.safe_key(), env!("CARGO_PKG_VERSION"));
        let _ = writeln!(text, "// nvrtc {} {}", self.flags().collect::<Vec<_>>().join(" "), self.file);
        for (name, value) in &self.defines {
            check_define(name, value)?;
            let _ = writeln!(text, "#define {name} {value}");
        }
        text.push_str(&self.sources.expanded(self.file)?);
        let hash = blake3::hash(text.as_bytes());
        let name = format!("{}-{}-{}", self.safe_key(), self.arch.target(), &hash.to_hex()[..16]);
        Ok(Assembled { text, hash: hash.into(), name })
    }

    /// The key as part of a file's name: short, of harmless characters, and not hidden. Units whose keys
    /// become the same are told apart by their hash.
    fn safe_key(&self) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let key: String = self.key.chars().map(safe).take(MAX_KEY).collect();
        if key.starts_with(|c: char| c.is_ascii_alphanumeric()) { key } else { format!("unit{key}") }
    }
}

/// A macro must be one line with a name, or the text would not say what was compiled.
fn check_define(name: &str, value: &str) -> Result<()> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let named = starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if named && !value.chars().any(char::is_control) {
        return Ok(());
    }
    let got = format!("{name:?} = {value:?}");
    Err(Error::new(ErrorKind::Compile, "macro", got, "a name and a value without line breaks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(key: &str) -> Unit {
        Unit::new("selftest.cu", key, Arch::new(9, 0)).define("ELEMENT", "float")
    }

    #[test]
    fn names_are_harmless_whatever_the_key() {
        let name = unit("rows-f16-d32-p4.4_bshd").assemble().unwrap().name;
        assert!(name.starts_with("rows-f16-d32-p4.4_bshd-sm_90a-"), "{name}");
        let long = "x".repeat(1000);
        for key in ["", ".", "..", "../../etc/passwd", "a/b\\c:d*e\0f\n", "-rf", "Ü", &long] {
            let name = unit(key).assemble().unwrap().name;
            assert!(name.len() < 255 && name.starts_with(|c: char| c.is_ascii_alphanumeric()), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{name}");
        }
    }

    #[test]
    fn everything_that_matters_changes_the_hash() {
        let plain = unit("a");
        let others = [
            unit("b"),
            Unit { arch: Arch::new(8, 0), ..plain.clone() },
            Unit { defines: vec![("ELEMENT".into(), "double".into())], ..plain.clone() },
            plain.clone().define("OTHER", 1),
        ];
        let hash = |unit: &Unit| unit.assemble().unwrap().hash;
        assert_eq!(hash(&plain), hash(&plain.clone()));
        for other in others {
            assert_ne!(hash(&plain), hash(&other), "{other:?}");
        }
    }

    #[test]
    fn the_text_has_everything() {
        let text = unit("a").assemble().unwrap().text;
        for part in ["--gpu-architecture=sm_90a", "--std=c++17", "#define ELEMENT float\n", "float doubled("]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn macros_that_are_not_are_refused() {
        for (name, value) in [("", "1"), ("1A", "1"), ("A B", "1"), ("A", "1\n#error"), ("A", "\0")] {
            assert!(unit("a").define(name, value).assemble().is_err(), "{name:?} {value:?}");
        }
    }
}
