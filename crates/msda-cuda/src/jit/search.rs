//! Which NVRTC is taken.

use std::collections::BTreeSet;
use std::path::{self, Path, PathBuf};
use std::sync::OnceLock;

use msda::{Error, ErrorKind, Result};

use super::Nvrtc;
use super::find::{self, Settings};
use crate::driver::driver_version;

/// The process's NVRTC, found and loaded on the first call.
pub fn nvrtc() -> Result<&'static Nvrtc> {
    static NVRTC: OnceLock<Result<Nvrtc>> = OnceLock::new();
    let driver = || driver_version().ok().map(|(major, _)| major);
    NVRTC.get_or_init(|| search(&Settings::from_env(), driver())).as_ref().map_err(Clone::clone)
}

/// The first that can be loaded and is not newer than the driver, if there is one.
fn search(settings: &Settings, driver: Option<u32>) -> Result<Nvrtc> {
    let mut tried = Tried { driver, seen: BTreeSet::new(), why: Vec::new() };
    if let Some(path) = &settings.nvrtc {
        let path = &path::absolute(path).unwrap_or_else(|_| path.clone());
        let found = if path.is_dir() { tried.folder(path) } else { tried.library(path) };
        return found.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "MSDA_NVRTC", tried.list(), "libnvrtc or the folder it is in")
                .hint("correct MSDA_NVRTC, or unset it to look in the usual places")
        });
    }
    let in_folders =
        settings.folders().find_map(|group| group.iter().find_map(|folder| tried.folder(folder)));
    in_folders
        .or_else(|| find::bare_names().iter().find_map(|name| tried.library(Path::new(name))))
        .ok_or_else(|| {
            let (list, hint) =
                (tried.list(), "`pip install nvidia-cuda-nvrtc`, or set MSDA_NVRTC to libnvrtc");
            let newest = driver.map_or(String::new(), |major| format!(" for CUDA {major} or older"));
            Error::new(ErrorKind::Unsupported, "NVRTC", format!("none ({list})"), format!("one{newest}"))
                .hint(hint)
        })
}

/// What was tried, and why it was not taken.
struct Tried {
    /// The driver's major version.
    driver: Option<u32>,
    seen: BTreeSet<PathBuf>,
    why: Vec<String>,
}

impl Tried {
    fn folder(&mut self, folder: &Path) -> Option<Nvrtc> {
        let libraries = find::libraries(folder);
        if libraries.is_empty() {
            self.why.push(format!("{}: no libnvrtc there", folder.display()));
        }
        libraries.iter().find_map(|library| self.library(library))
    }

    fn library(&mut self, library: &Path) -> Option<Nvrtc> {
        // Several names may mean the same file.
        let file = library.canonicalize().unwrap_or_else(|_| library.to_owned());
        if !self.seen.insert(file) {
            return None;
        }
        self.load(library).map_err(|why| self.why.push(format!("{}: {why}", library.display()))).ok()
    }

    fn load(&self, library: &Path) -> std::result::Result<Nvrtc, String> {
        let fits = |major| match self.driver {
            Some(driver) if major > driver => {
                Err(format!("it is of CUDA {major}, the driver is of CUDA {driver}"))
            }
            _ => Ok(()),
        };
        // By its name first: what was loaded stays.
        find::major(library).map_or(Ok(()), fits)?;
        let nvrtc = Nvrtc::load(library)?;
        fits(nvrtc.version().0)?;
        Ok(nvrtc)
    }

    fn list(&self) -> String {
        self.why.join("; ")
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
            let error = search(&settings, None).unwrap_err().to_string();
            assert!(error.starts_with("MSDA_NVRTC: ") && error.contains(reason), "{error}");
            assert!(error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn one_that_is_newer_than_the_driver_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libnvrtc.so.13"), "").unwrap();
        let settings = Settings { nvrtc: Some(folder.path().to_owned()), ..Settings::default() };
        let error = search(&settings, Some(12)).unwrap_err().to_string();
        assert!(error.contains("it is of CUDA 13, the driver is of CUDA 12"), "{error}");
    }

    #[test]
    fn everything_that_was_tried_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let lib = folder.path().join("lib64");
        std::fs::create_dir(&lib).unwrap();
        std::fs::write(lib.join("libnvrtc.so.99"), "").unwrap();
        let settings = Settings {
            toolkits: vec![folder.path().join("none"), folder.path().to_owned()],
            python: Some(folder.path().join("no-python")),
            ..Settings::default()
        };
        let Err(error) = search(&settings, Some(1)) else { panic!("no NVRTC is of CUDA 1") };
        let text = error.to_string();
        for part in ["none/lib64: no libnvrtc there", "it is of CUDA 99", "CUDA 1 or older", "pip install"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
