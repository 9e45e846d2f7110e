//! Units of compilation.

use std::fmt::Write as _;
use std::ptr;

use msda::{Error, ErrorKind, Result};

use super::{KERNELS, Sources};
use crate::driver::Arch;

/// Options of every unit. None of them trades accuracy for speed.
const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "-lineinfo", "--ptxas-options=-v"];

/// The longest key in the name of a folder; file systems allow 255 bytes in total.
const MAX_KEY: usize = 180;

/// A unit of compilation: a file, its macros, and the architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The source files.
    pub sources: &'static Sources,
    /// The file, by its name in the sources.
    pub file: &'static str,
    /// Its name for people, such as `rows-f16-d32-p4.4.4.4-bshd`: letters, digits, `.`, `_` and
    /// `-`.
    pub key: String,
    /// Macros and their values.
    pub defines: Vec<(String, String)>,
    /// The architecture.
    pub arch: Arch,
}

/// Everything that determines the result of a compilation, in one readable text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// Options, macros, and the file with its includes expanded.
    pub text: String,
    /// The hash of the text, which is the key of the cache.
    pub hash: [u8; 32],
    /// The name of its folder in the cache: key, architecture and the first digits of the hash.
    pub name: String,
}

/// The identity of a unit within the process. Two units with the same identity compile to the same
/// code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    sources: usize,
    file: &'static str,
    arch: Arch,
    defines: String,
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

    /// The options of the compiler.
    pub fn options(&self) -> Vec<String> {
        let defines = self.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        self.flags().chain(defines).collect()
    }

    fn flags(&self) -> impl Iterator<Item = String> {
        let arch = format!("--gpu-architecture={}", self.arch.target());
        std::iter::once(arch).chain(OPTIONS.iter().map(|&option| option.to_owned()))
    }

    /// What tells loaded units apart: sources, file, architecture and macros. Much cheaper than the
    /// hash of the text.
    pub(super) fn identity(&self) -> Result<Identity> {
        let mut defines = String::with_capacity(32 * self.defines.len());
        for (name, value) in &self.defines {
            check_define(name, value)?;
            defines.extend([name, " ", value, "\n"]);
        }
        Ok(Identity {
            sources: ptr::from_ref(self.sources).addr(),
            file: self.file,
            arch: self.arch,
            defines,
        })
    }

    /// The text that determines the result, with its hash.
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

    /// The key as part of a file name: short, with harmless characters, and not hidden. Units whose
    /// keys become the same have different hashes.
    fn safe_key(&self) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let key: String = self.key.chars().map(safe).take(MAX_KEY).collect();
        if key.starts_with(|c: char| c.is_ascii_alphanumeric()) { key } else { format!("unit{key}") }
    }
}

/// A macro must be one line with a name, or the text would differ from the compiled source.
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
    fn names_are_harmless_for_any_key() {
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
    fn every_input_changes_the_hash_and_the_identity() {
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
            let same_code = other.key != plain.key;
            assert_eq!(plain.identity() == other.identity(), same_code, "{other:?}");
        }
        static OTHER: Sources = Sources::new(&[], Some(&KERNELS));
        assert_ne!(plain.identity(), Unit { sources: &OTHER, ..plain.clone() }.identity());
    }

    #[test]
    fn the_text_has_options_macros_and_includes() {
        let text = unit("a").assemble().unwrap().text;
        for part in ["--gpu-architecture=sm_90a", "--std=c++17", "#define ELEMENT float\n", "float doubled("]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn malformed_macros_are_refused() {
        for (name, value) in [("", "1"), ("1A", "1"), ("A B", "1"), ("A", "1\n#error"), ("A", "\0")] {
            let bad = unit("a").define(name, value);
            assert!(bad.assemble().is_err() && bad.identity().is_err(), "{name:?} {value:?}");
        }
    }
}
