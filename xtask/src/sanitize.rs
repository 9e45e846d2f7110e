//! The CPU tests under AddressSanitizer, which needs a nightly compiler.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs the tests of `msda` with a nightly toolchain, or fails and says what is missing.
pub(crate) fn run() -> Result<()> {
    if !cfg!(unix) {
        bail!("got this system, expected Linux or macOS: AddressSanitizer is not available");
    }
    let version = Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]).output();
    let version = version.context("rustup was not found\nhint: install it from https://rustup.rs")?;
    if !version.status.success() {
        bail!(
            "no nightly toolchain is installed: nothing was tested\nhint: rustup toolchain install nightly"
        );
    }
    let text = String::from_utf8_lossy(&version.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    // Without a target the flags would also apply to build scripts.
    let args = ["run", "nightly", "cargo", "test", "--package", "msda", "--tests", "--target", host];
    let env = [
        ("RUSTFLAGS", "-Zsanitizer=address"),
        ("CARGO_TARGET_DIR", "target/sanitize"),
        // Tests of refused allocations ask for more memory than there is.
        ("ASAN_OPTIONS", "allocator_may_return_null=1"),
    ];
    let env = env.map(|(name, value)| (name, value.as_ref()));
    crate::run("rustup", &args, &env)
}
