//! The unwinder of the wheels: that of the process.
//!
//! zig links an unwinder of its own into a library. Python and torch use the one of `libgcc_s`, and
//! neither can pass frames of the other: a daemon thread that computes when Python exits crashed.
//! So the extension is linked to a library without code that looks like `libgcc_s`. When it is
//! loaded it finds the real one, which the policies of all manylinux wheels allow.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::run;

/// The name of the library for the linker. A `-lgcc_s` would be replaced.
pub(crate) const NAME: &str = "process_unwinder";

/// The functions by the versions of their symbols. All of them: if one were missing, zig would take
/// it and some others from its own unwinder.
const FUNCTIONS: [(&str, &[&str]); 3] = [
    (
        "GCC_3.0",
        &[
            "DeleteException",
            "Find_FDE",
            "ForcedUnwind",
            "GetDataRelBase",
            "GetGR",
            "GetIP",
            "GetLanguageSpecificData",
            "GetRegionStart",
            "GetTextRelBase",
            "RaiseException",
            "Resume",
            "SetGR",
            "SetIP",
        ],
    ),
    ("GCC_3.3", &["Backtrace", "FindEnclosingFunction", "GetCFA", "Resume_or_Rethrow"]),
    ("GCC_4.2.0", &["GetIPInfo"]),
];

/// Makes the library for an architecture under `target`; returns its folder.
pub(crate) fn make(python: &Path, target: &Path, arch: &str) -> Result<PathBuf> {
    let folder = target.join("unwinder").join(arch);
    std::fs::create_dir_all(&folder)?;
    let (mut code, mut versions) = (String::new(), String::new());
    for (version, names) in FUNCTIONS {
        writeln!(versions, "{version} {{ global:")?;
        for name in names {
            writeln!(code, "void _Unwind_{name}(void) {{}}")?;
            writeln!(versions, "_Unwind_{name};")?;
        }
        writeln!(versions, "}};")?;
    }
    let file = |name: &str| folder.join(name).display().to_string();
    let (source, script) = (file("unwinder.c"), file("unwinder.map"));
    std::fs::write(&source, code)?;
    std::fs::write(&script, versions)?;
    let system = format!("{arch}-linux-gnu.2.17");
    let script = format!("-Wl,--version-script={script}");
    let library = file(&format!("lib{NAME}.so"));
    let args =
        ["-m", "ziglang", "cc", "-target", &system, "-shared", "-nostdlib", "-Wl,-soname,libgcc_s.so.1"];
    run(python, &[&args[..], &[&script, &source, "-o", &library]].concat(), &[])?;
    Ok(folder)
}
