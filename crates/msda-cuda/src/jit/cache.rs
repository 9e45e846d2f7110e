//! Compiled units: from memory, else from folders that were filled ahead, else from the cache
//! folder, else from the compiler.
//!
//! `MSDA_KERNELS` lists folders that `msda cache build` filled; nothing is written there.
//! `MSDA_CACHE_DIR` names the cache folder; empty means none, and the default is in the user's
//! cache. With `MSDA_JIT=off` nothing is compiled. A folder that cannot be used costs time, but
//! never fails a call.
//!
//! An entry of the cache folder belongs to its source, macros, options and compiler: another NVRTC
//! compiles again. Where nothing can be compiled, without NVRTC or with `MSDA_JIT=off`, entries of
//! any compiler are used. So are those of folders that were filled ahead.
//!
//! The cache folder is created for this user alone. A folder or entry that another user could
//! change is not read.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use msda::{Error, ErrorKind, Result};

use msda_trust as trust;

use super::once::OncePerKey;
use super::{Assembled, Compiled, Unit, compile_assembled, entry, nvrtc};

/// Whether units may be compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jit {
    /// Missing units are compiled.
    On,
    /// A missing unit is an error.
    Off,
}

impl Jit {
    /// A value of `MSDA_JIT`; `None` if it is unknown.
    fn named(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "" | "on" | "1" | "yes" | "true" => Some(Self::On),
            "off" | "0" | "no" | "false" => Some(Self::Off),
            _ => None,
        }
    }
}

/// Compiled units that stay in memory. More would help nobody: a unit that is loaded is found
/// without the cache.
const MAX_RECENT: usize = 64;

/// Compiled units in memory, in folders that were filled ahead and, if it has one, in a folder of
/// its own.
#[derive(Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    ahead: Vec<PathBuf>,
    jit: Jit,
    /// Units that were asked for last.
    recent: OncePerKey<[u8; 32], Arc<Compiled>>,
    warning: OnceLock<String>,
}

/// A unit in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its architecture, such as `sm_90a`.
    pub arch: String,
    /// Its folder.
    pub path: PathBuf,
    /// The size of its files in bytes.
    pub bytes: u64,
    /// The time since it was compiled.
    pub age: Duration,
}

/// Why the process's cache cannot store compiled units, if it cannot.
pub fn warning() -> Option<String> {
    Cache::global().warning().map(str::to_owned)
}

/// Creates a folder, and missing folders above it, for this user alone: other files may be beside
/// the units.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    entry::create_folder(folder)
}

impl Cache {
    /// A cache in a folder, or in memory only.
    pub fn at(folder: Option<PathBuf>, jit: Jit) -> Self {
        let recent = OncePerKey::new(MAX_RECENT);
        let cache = Self { folder, ahead: Vec::new(), jit, recent, warning: OnceLock::new() };
        if let Some(folder) = cache.folder().filter(|folder| folder.exists())
            && let Err(why) = trust::check_private(folder)
        {
            cache.warn(format!("compiled kernels are not stored: {why}"));
        }
        cache
    }

    /// The same with folders that were filled ahead. They are searched in this order, before its
    /// own folder.
    #[must_use]
    pub fn with_ahead(self, ahead: Vec<PathBuf>) -> Self {
        Self { ahead, ..self }
    }

    /// The process's cache. `MSDA_KERNELS`, `MSDA_CACHE_DIR` and `MSDA_JIT` are read on the first
    /// call.
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Cache> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let ahead = env::var_os("MSDA_KERNELS").unwrap_or_default();
            let ahead = env::split_paths(&ahead).filter(|folder| !folder.as_os_str().is_empty()).collect();
            let jit_text = env::var("MSDA_JIT").unwrap_or_default();
            let known = Jit::named(&jit_text);
            let jit = known.unwrap_or(Jit::On);
            let cache = match env::var_os("MSDA_CACHE_DIR") {
                Some(folder) if folder.is_empty() => Self::at(None, jit),
                Some(folder) => Self::at(Some(folder.into()), jit),
                None => {
                    let cache = Self::at(users_folder(), jit);
                    if cache.folder.is_none() {
                        let why = "compiled kernels are not stored: no home folder; set MSDA_CACHE_DIR";
                        cache.warn(why.into());
                    }
                    cache
                }
            };
            if known.is_none() {
                cache.warn(format!("MSDA_JIT: got {jit_text:?}, expected on or off; kernels are compiled"));
            }
            cache.with_ahead(ahead)
        })
    }

    /// The folder, if it has one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The folders that were filled ahead.
    pub fn ahead(&self) -> &[PathBuf] {
        &self.ahead
    }

    /// Why it cannot store a unit, or use one that was compiled ahead: the first reason, if any.
    pub fn warning(&self) -> Option<&str> {
        self.warning.get().map(String::as_str)
    }

    /// A compiled unit. It is compiled once, also when several threads ask at the same time.
    pub fn get(&self, unit: &Unit) -> Result<Arc<Compiled>> {
        let assembled = unit.assemble()?;
        self.recent.get(assembled.hash, || self.read_or_compile(unit, assembled).map(Arc::new))
    }

    /// The folder of the entry that a unit is read from; none if it would be compiled.
    pub fn folder_of(&self, unit: &Unit) -> Result<Option<&Path>> {
        Ok(self.read(&unit.assemble()?).ok().map(|(_, folder)| folder))
    }

    /// The entry of a unit and its folder, or the reasons why there is none.
    fn read(&self, assembled: &Assembled) -> std::result::Result<(Compiled, &Path), String> {
        let mut missing = Vec::new();
        for folder in self.ahead.iter().chain(&self.folder) {
            let own = self.folder.as_ref() == Some(folder);
            let compiler = if own { self.compiler() } else { None };
            missing.push(match entry::read(folder, assembled, compiler.as_deref()) {
                Ok(Some(compiled)) => return Ok((compiled, folder)),
                Ok(None) => format!("no entry in {}", folder.display()),
                Err(why) => {
                    let why = format!("an unusable entry in {} ({why})", folder.display());
                    if !own {
                        self.warn(format!("a kernel that was compiled ahead is not used: {why}"));
                    }
                    why
                }
            });
        }
        Err(if missing.is_empty() { "no cache folder".into() } else { missing.join(", ") })
    }

    fn read_or_compile(&self, unit: &Unit, assembled: Assembled) -> Result<Compiled> {
        let missing = match self.read(&assembled) {
            Ok((compiled, _)) => return Ok(compiled),
            Err(missing) => missing,
        };
        let compiled = self.compile(unit, assembled.clone(), &missing)?;
        let Some(folder) = &self.folder else { return Ok(compiled) };
        match entry::write(folder, &assembled, &compiled) {
            Ok(theirs) => Ok(theirs.unwrap_or(compiled)),
            Err(error) => {
                self.warn(format!("compiled kernels are not stored: {}: {error}", folder.display()));
                Ok(compiled)
            }
        }
    }

    /// The compiler of missing units; none if it compiles none.
    fn compiler(&self) -> Option<String> {
        match self.jit {
            Jit::On => nvrtc().ok().map(|nvrtc| nvrtc.identity()),
            Jit::Off => None,
        }
    }

    /// Whether it compiles missing units.
    pub fn compiles(&self) -> bool {
        self.jit == Jit::On
    }

    /// Compiles a unit again because its entry does not load: its compiler may be newer than this
    /// machine's driver. `failed` is its cubin. `why` is the error of loading it, and is returned
    /// where the unit cannot be compiled.
    pub fn renew(&self, unit: &Unit, failed: &[u8], why: &Error) -> Result<Arc<Compiled>> {
        let assembled = unit.assemble()?;
        if let Ok((_, folder)) = self.read(&assembled)
            && self.ahead.iter().any(|ahead| ahead == folder)
        {
            let folder = folder.display();
            self.warn(format!("a kernel that was compiled ahead does not load: {folder}: {why}"));
        }
        // An earlier process may have compiled it here.
        let stored = self.folder.as_ref().zip(self.compiler());
        let stored = stored.and_then(|(own, by)| entry::read(own, &assembled, Some(&by)).ok().flatten());
        if let Some(stored) = stored.filter(|stored| stored.cubin != failed) {
            let stored = Arc::new(stored);
            self.recent.put(assembled.hash, stored.clone());
            return Ok(stored);
        }
        let compiled = Arc::new(match self.jit {
            Jit::On => compile_assembled(unit, assembled.clone()).map_err(|_| why.clone())?,
            Jit::Off => {
                self.compile(unit, assembled.clone(), &format!("an entry that does not load ({why})"))?
            }
        });
        if let Some(folder) = &self.folder
            && let Err(error) = entry::replace(folder, &assembled, &compiled)
        {
            self.warn(format!("compiled kernels are not stored: {}: {error}", folder.display()));
        }
        self.recent.put(assembled.hash, compiled.clone());
        Ok(compiled)
    }

    fn compile(&self, unit: &Unit, assembled: Assembled, missing: &str) -> Result<Compiled> {
        match self.jit {
            Jit::On => compile_assembled(unit, assembled),
            Jit::Off => {
                let subject = format!("kernel {}", assembled.name);
                let expected = "a compiled kernel, because MSDA_JIT is off";
                Err(Error::new(ErrorKind::Unsupported, subject, missing, expected).hint(format!(
                    "unset MSDA_JIT, or compile it ahead: `msda cache build --workload FILE --arch {} \
                         --out DIR`, then set MSDA_KERNELS=DIR",
                    unit.arch
                )))
            }
        }
    }

    /// Stores the first warning only: later ones follow from it.
    fn warn(&self, warning: String) {
        let _ = self.warning.set(warning);
    }

    /// The entries of the folder, sorted by name.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries: Vec<_> = self.list()?.iter().filter_map(|path| Entry::read(path)).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    /// Refuses a folder that has anything but entries: all users can read it after
    /// [`publish`](Self::publish).
    pub fn check_publishable(&self) -> Result<()> {
        let ours = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            !path.is_symlink() && (name.starts_with(entry::UNFINISHED) || Entry::read(path).is_some())
        };
        let Some(other) = self.list()?.into_iter().find(|path| !ours(path)) else { return Ok(()) };
        let expected = "an empty folder, or one that `msda cache build` filled";
        let got = format!("a folder with {}", other.display());
        Err(Error::new(ErrorKind::Unsupported, "cache", got, expected).hint("choose a new folder"))
    }

    /// Lets every user read the folder and its entries, so that it can be shipped. Only its owner
    /// can change it.
    pub fn publish(&self) -> Result<()> {
        self.check_publishable()?;
        if let Some(folder) = &self.folder {
            entry::publish(folder).map_err(|error| unusable(folder, &error))?;
        }
        for entry in self.entries()? {
            entry::publish(&entry.path).map_err(|error| unusable(&entry.path, &error))?;
        }
        Ok(())
    }

    /// Deletes every unit from memory and from the folder, and returns how many were in the folder.
    /// Other files stay.
    pub fn clear(&self) -> Result<usize> {
        self.recent.clear();
        let mut cleared = 0;
        for path in self.list()? {
            let unfinished = path
                .file_name()
                .is_some_and(|name| name.to_str().is_some_and(|name| name.starts_with(entry::UNFINISHED)));
            if unfinished {
                let _ = fs::remove_dir_all(&path);
            } else if Entry::read(&path).is_some() {
                fs::remove_dir_all(&path).map_err(|error| unusable(&path, &error))?;
                cleared += 1;
            }
        }
        Ok(cleared)
    }

    /// All files and folders in the folder, which need not exist.
    fn list(&self) -> Result<Vec<PathBuf>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let paths = |entries: fs::ReadDir| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>();
        match folder.read_dir().and_then(paths) {
            Ok(paths) => Ok(paths),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(unusable(folder, &error)),
        }
    }
}

impl Entry {
    /// The entry of a folder, if it has the name of an entry. Its files may be damaged.
    fn read(path: &Path) -> Option<Self> {
        let mut parts = path.file_name()?.to_str()?.rsplitn(3, '-');
        let (hash, arch, key) = (parts.next()?, parts.next()?, parts.next()?);
        let is_entry =
            hash.len() == entry::HASH_DIGITS && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_entry || !arch.starts_with("sm_") || !path.is_dir() {
            return None;
        }
        let sizes = path.read_dir().ok()?.flatten().filter_map(|file| Some(file.metadata().ok()?.len()));
        let written = fs::metadata(path.join(entry::META)).and_then(|meta| meta.modified()).ok();
        let age = written.and_then(|written| SystemTime::now().duration_since(written).ok());
        Some(Self {
            key: key.to_owned(),
            arch: arch.to_owned(),
            path: path.to_owned(),
            bytes: sizes.sum(),
            age: age.unwrap_or_default(),
        })
    }
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    let got = format!("{error} at {}", path.display());
    Error::new(ErrorKind::Unsupported, "cache", got, "a folder that can be read and written")
        .hint("set MSDA_CACHE_DIR to such a folder")
}

/// The user's folder for caches.
fn users_folder() -> Option<PathBuf> {
    let path = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = if cfg!(windows) {
        path("LOCALAPPDATA")
    } else {
        path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    caches.map(|caches| caches.join("msda"))
}
