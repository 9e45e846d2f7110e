//! A Python for 64-bit Arm under an emulator. Its files are those of Debian's packages, unpacked
//! under `target`: nothing is installed.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, root, run};

/// Debian's packages, with all that they need.
const PACKAGES: [&str; 4] = ["python3-minimal", "libpython3-stdlib", "libgcc-s1", "libstdc++6"];

/// An emulator and the root folder of the emulated system.
pub(crate) struct Python {
    emulator: &'static str,
    root: PathBuf,
}

impl Python {
    /// Makes it once. The error says what is missing on this machine.
    pub(crate) fn new() -> Result<Self> {
        let python = Self { emulator: emulator()?, root: root().join("target/emulated/root") };
        if !python.interpreter().exists() {
            python.unpack().context("hint: the packages for 64-bit Arm come from Debian, with apt")?;
        }
        Ok(python)
    }

    fn interpreter(&self) -> PathBuf {
        self.root.join("usr/bin/python3")
    }

    /// Downloads and unpacks the packages, with lists and caches of their own.
    fn unpack(&self) -> Result<()> {
        let base = root().join("target/emulated");
        let archives = base.join("cache/archives");
        for folder in [base.join("state/lists/partial"), archives.join("partial"), self.root.clone()] {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(base.join("state/status"), "")?;
        let at = |key: &str, path: &str| format!("-o{key}={}", base.join(path).display());
        let options = [
            "-oAPT::Architecture=arm64".to_owned(),
            "-oAPT::Architectures=arm64".to_owned(),
            at("Dir::State", "state"),
            at("Dir::State::status", "state/status"),
            at("Dir::Cache", "cache"),
        ];
        let options: Vec<_> = options.iter().map(String::as_str).chain(["-qq", "--yes"]).collect();
        run("apt-get", &[&options[..], &["update"]].concat(), &[])?;
        let install = ["install", "--download-only", "--no-install-recommends"];
        run("apt-get", &[&options[..], &install, &PACKAGES].concat(), &[])?;
        for entry in std::fs::read_dir(archives)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "deb") {
                let (from, to) = (path.display().to_string(), self.root.display().to_string());
                run("dpkg-deb", &["--extract", &from, &to], &[])?;
            }
        }
        Ok(())
    }

    /// Its version, such as `3.11`.
    pub(crate) fn version(&self) -> Result<String> {
        let program = "import sys; print('%d.%d' % sys.version_info[:2])";
        let done = Command::new(self.emulator).args(self.args()).args(["-c", program]).output()?;
        if !done.status.success() {
            bail!("the emulated Python: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        Ok(String::from_utf8(done.stdout)?.trim().to_owned())
    }

    /// Runs it with packages of a folder.
    pub(crate) fn run(&self, packages: &OsStr, args: &[&str]) -> Result<()> {
        let first = self.args();
        let all: Vec<_> = first.iter().map(String::as_str).chain(args.iter().copied()).collect();
        run(self.emulator, &all, &[("PYTHONPATH", packages), ("PYTHONDONTWRITEBYTECODE", OsStr::new("1"))])
    }

    fn args(&self) -> [String; 3] {
        ["-L".to_owned(), self.root.display().to_string(), self.interpreter().display().to_string()]
    }
}

fn emulator() -> Result<&'static str> {
    let works = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let found = ["qemu-aarch64-static", "qemu-aarch64"].into_iter().find(works);
    found.context("got no qemu-aarch64\nhint: apt install qemu-user-static")
}

/// The battery of the CPU backend with NEON. The program is static: it needs no emulated system.
pub(crate) fn battery() -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-musl";
    let variable = |name| format!("CARGO_TARGET_{}_{name}", TARGET.replace('-', "_").to_uppercase());
    let (linker, runner) = (variable("LINKER"), variable("RUNNER"));
    let env = [(linker.as_str(), OsStr::new("rust-lld")), (runner.as_str(), OsStr::new(emulator()?))];
    run("rustup", &["target", "add", TARGET], &[])?;
    let test = ["test", "--quiet", "--package", "msda", "--target", TARGET];
    cargo(&[&test[..], &["--test", "conformance", "best"]].concat(), &env)
}
