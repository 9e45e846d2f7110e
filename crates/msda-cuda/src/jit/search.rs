//! Which NVRTC is used.
//!
//! 1. `MSDA_NVRTC`: the library or its folder, and nothing else when it is set.
//! 2. The NVRTC that the process has loaded already, such as torch's.
//! 3. The wheels of folders that the program named ([`add_packages`]), of the Python that
//!    `MSDA_PYTHON` names, then of `VIRTUAL_ENV` and `CONDA_PREFIX`.
//! 4. A toolkit: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda*`.
//! 5. The system loader, which knows `LD_LIBRARY_PATH` and the installed libraries.
//!
//! In 1, 3 and 4 a file that another user could replace is not loaded; see [`trust`]. The current
//! folder and a `.venv` in it are not searched: a downloaded folder must not decide which code
//! runs.

use std::collections::BTreeSet;
use std::path::{self, Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use msda::{Error, ErrorKind, Result};

use super::Nvrtc;
use super::find::{self, Settings};
use crate::driver::driver_version;
use msda_trust as trust;

/// The process's NVRTC, found and loaded on the first call.
pub fn nvrtc() -> Result<&'static Nvrtc> {
    found().0.as_ref().map_err(Clone::clone)
}

/// Folders of Python packages that the program named.
static PACKAGES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Names a folder of Python packages, such as `site-packages`, whose NVRTC may be used. It counts
/// until the first kernel is compiled: then NVRTC is found.
pub fn add_packages(folder: PathBuf) {
    PACKAGES.lock().unwrap_or_else(PoisonError::into_inner).push(folder);
}

/// The NVRTC libraries and Pythons that were not used because another user could replace them, with
/// reasons.
pub fn untrusted() -> &'static [String] {
    &found().1
}

fn found() -> &'static (Result<Nvrtc>, Vec<String>) {
    static FOUND: OnceLock<(Result<Nvrtc>, Vec<String>)> = OnceLock::new();
    FOUND.get_or_init(|| {
        let driver = driver_version().ok().map(|(major, _)| major);
        let mut search = Search::new(driver);
        let packages = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (search.run(&Settings { packages, ..Settings::from_env() }), search.untrusted)
    })
}

/// A search for the first NVRTC that can be loaded and is not newer than the driver.
struct Search {
    /// The driver's major version.
    driver: Option<u32>,
    seen: BTreeSet<PathBuf>,
    /// Why each candidate was not used.
    refused: Vec<String>,
    untrusted: Vec<String>,
}

impl Search {
    fn new(driver: Option<u32>) -> Self {
        Self { driver, seen: BTreeSet::new(), refused: Vec::new(), untrusted: Vec::new() }
    }

    fn run(&mut self, settings: &Settings) -> Result<Nvrtc> {
        if let Some(path) = &settings.nvrtc {
            return self.explicit(path);
        }
        self.loaded()
            .or_else(|| self.folders(&settings.in_environments()))
            .or_else(|| {
                let folders = settings.in_interpreter().unwrap_or_else(|why| {
                    self.distrust(why);
                    Vec::new()
                });
                self.folders(&folders)
            })
            .or_else(|| self.folders(&settings.in_toolkits()))
            .or_else(|| self.system())
            .ok_or_else(|| self.none())
    }

    fn explicit(&mut self, path: &Path) -> Result<Nvrtc> {
        let path = &path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let found = if path.is_dir() { self.folder(path) } else { self.file(path) };
        found.ok_or_else(|| {
            let (got, expected) = (self.refused.join("; "), "the path of libnvrtc or of its folder");
            Error::new(ErrorKind::Unsupported, "MSDA_NVRTC", got, expected)
                .hint("correct MSDA_NVRTC, or unset it to search the usual places")
        })
    }

    fn none(&self) -> Error {
        let newest = self.driver.map_or(String::new(), |major| format!(" for CUDA {major} or older"));
        let got = format!("none ({})", self.refused.join("; "));
        Error::new(ErrorKind::Unsupported, "NVRTC", got, format!("an NVRTC{newest}")).hint(
            "`pip install nvidia-cuda-nvrtc` and set MSDA_PYTHON to that Python, or set MSDA_NVRTC to libnvrtc",
        )
    }

    fn loaded(&mut self) -> Option<Nvrtc> {
        find::bare_names().iter().find_map(|name| {
            let nvrtc = Nvrtc::loaded(name)?;
            self.try_with(Path::new(name), || Ok(nvrtc))
        })
    }

    fn folders(&mut self, folders: &[PathBuf]) -> Option<Nvrtc> {
        folders.iter().find_map(|folder| self.folder(folder))
    }

    fn folder(&mut self, folder: &Path) -> Option<Nvrtc> {
        let libraries = find::libraries(folder);
        if libraries.is_empty() {
            self.refused.push(format!("{}: no libnvrtc there", folder.display()));
        }
        libraries.iter().find_map(|library| self.file(library))
    }

    fn file(&mut self, library: &Path) -> Option<Nvrtc> {
        match trust::check(library) {
            // Several names may be links to the same file.
            Ok(file) if !self.seen.insert(file.clone()) => None,
            Ok(file) => self.try_with(&file, || Nvrtc::open(&file)),
            Err(why) => {
                self.distrust(format!("{}: {why}", library.display()));
                None
            }
        }
    }

    fn system(&mut self) -> Option<Nvrtc> {
        find::bare_names().iter().find_map(|name| self.try_with(Path::new(name), || Nvrtc::by_name(name)))
    }

    fn try_with(
        &mut self,
        library: &Path,
        load: impl FnOnce() -> std::result::Result<Nvrtc, String>,
    ) -> Option<Nvrtc> {
        let fits = |major| match self.driver {
            Some(driver) if major > driver => {
                Err(format!("it is for CUDA {major}, the driver is for CUDA {driver}"))
            }
            _ => Ok(()),
        };
        // The name is checked first: a library is never unloaded.
        let result = find::major(library).map_or(Ok(()), fits).and_then(|()| load()).and_then(|nvrtc| {
            fits(nvrtc.version().0)?;
            Ok(nvrtc)
        });
        result.map_err(|why| self.refused.push(format!("{}: {why}", library.display()))).ok()
    }

    fn distrust(&mut self, why: String) {
        self.refused.push(why.clone());
        self.untrusted.push(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_setting_that_does_not_work_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("libnvrtc.so.12");
        std::fs::write(&broken, "not a library").unwrap();
        for (path, reason) in [
            (folder.path().join("nothing"), "nothing"),
            (folder.path().to_owned(), "libnvrtc.so.12: "),
            (broken, "libnvrtc.so.12: "),
        ] {
            let settings = Settings { nvrtc: Some(path), ..Settings::default() };
            let error = Search::new(None).run(&settings).unwrap_err().to_string();
            assert!(error.starts_with("MSDA_NVRTC: ") && error.contains(reason), "{error}");
            assert!(error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn a_library_that_is_newer_than_the_driver_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libnvrtc.so.13"), "").unwrap();
        let settings = Settings { nvrtc: Some(folder.path().to_owned()), ..Settings::default() };
        let error = Search::new(Some(12)).run(&settings).unwrap_err().to_string();
        assert!(error.contains("it is for CUDA 13, the driver is for CUDA 12"), "{error}");
    }

    #[test]
    fn the_error_lists_every_candidate() {
        let folder = tempfile::tempdir().unwrap();
        let lib = folder.path().join("lib64");
        std::fs::create_dir(&lib).unwrap();
        std::fs::write(lib.join("libnvrtc.so.99"), "").unwrap();
        let settings = Settings {
            toolkits: vec![folder.path().join("none"), folder.path().to_owned()],
            ..Settings::default()
        };
        let Err(error) = Search::new(Some(1)).run(&settings) else { panic!("no NVRTC is for CUDA 1") };
        let text = error.to_string();
        for part in ["none/lib64: no libnvrtc there", "it is for CUDA 99", "CUDA 1 or older", "pip install"] {
            assert!(text.contains(part), "{text}");
        }
    }

    /// The files are no libraries: an attempt to load one would say so.
    #[cfg(unix)]
    #[test]
    fn libraries_and_pythons_that_others_can_replace_are_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let (lib, bin) = (root.path().join("lib64"), root.path().join("venv/bin"));
        let (library, python) = (lib.join("libnvrtc.so.12"), bin.join("python"));
        std::fs::create_dir(&lib).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(&library, "not a library").unwrap();
        std::fs::write(&python, "#!/bin/sh\ntouch \"$0.ran\"\n").unwrap();
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod(&library, 0o644);
        chmod(&lib, 0o777);
        chmod(&python, 0o755);
        chmod(&bin, 0o777);
        let settings =
            Settings { toolkits: vec![root.path().to_owned()], python: Some(python), ..Settings::default() };
        let mut search = Search::new(Some(1));
        search.run(&settings).unwrap_err();
        assert_eq!(search.untrusted.len(), 2, "{:?}", search.untrusted);
        assert!(search.untrusted.iter().all(|why| why.contains("writable by everybody (mode 777)")));
        assert!(!bin.join("python.ran").exists());

        let explicit = Settings { nvrtc: Some(library), ..Settings::default() };
        let error = Search::new(None).run(&explicit).unwrap_err().to_string();
        assert!(error.starts_with("MSDA_NVRTC: ") && error.contains("writable by everybody"), "{error}");

        // The same files in folders of our own are used.
        chmod(&lib, 0o755);
        chmod(&bin, 0o755);
        let mut search = Search::new(None);
        assert!(search.explicit(&lib).unwrap_err().to_string().contains("libnvrtc.so.12: "));
        assert_eq!(search.untrusted, [""; 0]);
        settings.in_interpreter().unwrap();
        assert!(bin.join("python.ran").exists());
    }

    #[test]
    fn the_nvrtc_of_the_process_is_used_again() {
        let Ok(first) = nvrtc() else { return eprintln!("skipped: no NVRTC") };
        let again = Search::new(None).run(&Settings::default()).unwrap();
        assert_eq!(again.version(), first.version());
        assert!(again.name().contains("NVRTC"));
        if cfg!(target_os = "linux") {
            assert!(again.path().contains("nvrtc"), "{}", again.path());
        }
    }
}
