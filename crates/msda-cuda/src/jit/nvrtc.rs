//! NVIDIA's run-time compiler.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::Path;
use std::ptr;

use libloading::Library;
use msda::{Error, ErrorKind, Result};

use super::{Unit, find};
use crate::driver::explain;
use msda_trust as trust;

/// NVRTC's handle of a program.
type Program = *mut c_void;

/// Declares functions of nvrtc.h, and how to look them up.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) -> $result:ty;)*) => {
        #[derive(Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// # Safety
            /// The library is NVRTC and is never unloaded.
            unsafe fn find(library: &Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the types are those of nvrtc.h; the library stays loaded, as the caller
                // promises.
                Ok(unsafe { Self { $($name: *library.get($symbol)?,)* } })
            }
        }
    };
}

functions! {
    version: "nvrtcVersion", fn(*mut c_int, *mut c_int) -> c_int;
    count_archs: "nvrtcGetNumSupportedArchs", fn(*mut c_int) -> c_int;
    list_archs: "nvrtcGetSupportedArchs", fn(*mut c_int) -> c_int;
    create: "nvrtcCreateProgram",
        fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
    destroy: "nvrtcDestroyProgram", fn(*mut Program) -> c_int;
    compile: "nvrtcCompileProgram", fn(Program, c_int, *const *const c_char) -> c_int;
    log_size: "nvrtcGetProgramLogSize", fn(Program, *mut usize) -> c_int;
    log: "nvrtcGetProgramLog", fn(Program, *mut c_char) -> c_int;
    cubin_size: "nvrtcGetCUBINSize", fn(Program, *mut usize) -> c_int;
    cubin: "nvrtcGetCUBIN", fn(Program, *mut c_char) -> c_int;
    error: "nvrtcGetErrorString", fn(c_int) -> *const c_char;
}

/// The result for a program with errors; 0 is success.
const COMPILE_ERROR: c_int = 6;

/// Since this version NVRTC has a cache of its own, which loses the log with the registers. It is
/// switched off: our cache has both.
const OWN_CACHE: (u32, u32) = (12, 9);

/// NVRTC, loaded.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: (u32, u32),
    archs: Vec<u32>,
    path: String,
}

impl Nvrtc {
    /// Loads the library at a path, for the life of the process. The caller checked that nobody
    /// else can replace it.
    pub(super) fn open(library: &Path) -> std::result::Result<Self, String> {
        for builtins in find::builtins(library) {
            trust::check(&builtins)?;
            keep(&builtins)?;
        }
        Self::new(keep(library)?, library.display().to_string())
    }

    /// Loads the library by a name that the system loader knows, for the life of the process.
    pub(super) fn by_name(name: &str) -> std::result::Result<Self, String> {
        let library = keep(Path::new(name))?;
        Self::new(library, find::mapped().map_or_else(|| name.to_owned(), |file| file.display().to_string()))
    }

    /// The library that this process has loaded already under a name.
    pub(super) fn loaded(name: &str) -> Option<Self> {
        let library: &Library = Box::leak(Box::new(already_loaded(name)?));
        let file = find::mapped();
        for builtins in file.iter().flat_map(|file| find::builtins(file)) {
            // It may find them by itself, so this need not succeed.
            if trust::check(&builtins).is_ok() {
                let _ = keep(&builtins);
            }
        }
        Self::new(library, file.map_or_else(|| name.to_owned(), |file| file.display().to_string())).ok()
    }

    fn new(library: &'static Library, path: String) -> std::result::Result<Self, String> {
        // SAFETY: the library is NVRTC by its name, and it is never unloaded.
        let functions = unsafe { Functions::find(library) }.map_err(|error| explain(&error))?;
        let (mut major, mut minor, mut count): (c_int, c_int, c_int) = (0, 0, 0);
        // SAFETY: all are valid to write.
        let asked =
            unsafe { [(functions.version)(&mut major, &mut minor), (functions.count_archs)(&mut count)] };
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many as were counted.
        let listed = unsafe { (functions.list_archs)(archs.as_mut_ptr()) };
        if asked != [0, 0] || listed != 0 {
            return Err("it does not tell its version".into());
        }
        let number = |number: c_int| u32::try_from(number).unwrap_or(0);
        Ok(Self {
            functions,
            version: (number(major), number(minor)),
            archs: archs.into_iter().map(number).collect(),
            path,
        })
    }

    /// Its version, such as `(13, 0)`.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Its path, or its name where the system loader found it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Compiles a unit to a cubin and a log.
    pub(super) fn compile(&self, unit: &Unit) -> Result<(Vec<u8>, String)> {
        if !self.archs.contains(&unit.arch.number()) {
            let got = format!("{} ({} at {})", unit.arch, self.name(), self.path);
            let expected = format!("one of {:?}", self.archs);
            return Err(Error::new(ErrorKind::Unsupported, "kernel compiler", got, expected)
                .hint("a newer NVRTC supports newer GPUs: `pip install -U nvidia-cuda-nvrtc`"));
        }
        let program = self.create(unit)?;
        let no_cache = (self.version >= OWN_CACHE).then(|| "--no-cache".to_owned());
        let options = terminated(unit.options().into_iter().chain(no_cache))?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives; the options are terminated strings that live, and their number
        // is right.
        let result =
            unsafe { (self.functions.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        let log = program.text(self.functions.log_size, self.functions.log)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if result != 0 {
            return Err(self.refused(unit, result, &log));
        }
        let cubin = program.text(self.functions.cubin_size, self.functions.cubin)?;
        Ok((cubin, log))
    }

    fn create(&self, unit: &Unit) -> Result<Made<'_>> {
        let text = terminated([unit.sources.text(unit.file)?, unit.file])?;
        let names = terminated(unit.sources.headers().map(|(name, _)| name))?;
        let headers = terminated(unit.sources.headers().map(|(_, text)| text))?;
        let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let headers: Vec<_> = headers.iter().map(|text| text.as_ptr()).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is valid to write; all are terminated strings that live, and their number
        // is right. NVRTC copies them.
        let result = unsafe {
            (self.functions.create)(
                &mut raw,
                text[0].as_ptr(),
                text[1].as_ptr(),
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", result)?;
        Ok(Made { nvrtc: self, raw })
    }

    /// The error of a unit that does not compile, with the first messages of the compiler.
    fn refused(&self, unit: &Unit, result: c_int, log: &str) -> Error {
        let is_error = |line: &&str| {
            (line.contains("error") || line.contains("fatal"))
                && !line.contains("detected in the compilation")
        };
        let mut got: Vec<_> = log.lines().filter(is_error).take(4).collect();
        let text = self.text(result);
        if got.is_empty() {
            got.push(&text);
        }
        let subject = format!("kernel {}", unit.key);
        let error = Error::new(ErrorKind::Compile, subject, got.join("; "), "a kernel that compiles");
        match result {
            COMPILE_ERROR => {
                error.hint(format!("{} compiled {} for {}", self.name(), unit.file, unit.arch.target()))
            }
            _ => error.hint(format!("{} at {} may be incomplete", self.name(), self.path)),
        }
    }

    fn check(&self, call: &str, result: c_int) -> Result<()> {
        match result {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::Compile, call, self.text(result), "success")),
        }
    }

    fn text(&self, result: c_int) -> String {
        // SAFETY: any number is legal; the result is a terminated string that lives as long as the
        // library.
        unsafe { CStr::from_ptr((self.functions.error)(result)) }.to_string_lossy().into_owned()
    }

    /// Its name and version, such as `NVRTC 13.0`.
    pub fn name(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// What tells compilers apart in the cache: name, version, and the size of the library, because
    /// builds of one version differ. The path does not count: the same library may move.
    pub fn identity(&self) -> String {
        match fs::metadata(&self.path) {
            Ok(file) => format!("{} of {} bytes", self.name(), file.len()),
            Err(_) => self.name(),
        }
    }
}

/// A program that is destroyed when dropped.
struct Made<'a> {
    nvrtc: &'a Nvrtc,
    raw: Program,
}

impl Made<'_> {
    /// Bytes that `write` writes and `size` counts.
    fn text(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        write: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program lives; `bytes` is valid to write.
        self.nvrtc.check("NVRTC: size of a result", unsafe { size(self.raw, &mut bytes) })?;
        let mut text = vec![0u8; bytes];
        // SAFETY: there is room for that many bytes.
        self.nvrtc.check("NVRTC: result", unsafe { write(self.raw, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create` and destroyed once.
        unsafe { (self.nvrtc.functions.destroy)(&mut self.raw) };
    }
}

/// The library of a name, if this process has loaded it.
#[cfg(target_os = "linux")]
fn already_loaded(name: &str) -> Option<Library> {
    use libloading::os::unix;
    /// `RTLD_NOLOAD` of dlfcn.h.
    const NO_LOAD: c_int = 4;
    // SAFETY: nothing is loaded, so no initialiser runs.
    unsafe { unix::Library::open(Some(name), unix::RTLD_NOW | NO_LOAD) }.ok().map(Library::from)
}

/// The library of a name, if this process has loaded it.
#[cfg(windows)]
fn already_loaded(name: &str) -> Option<Library> {
    libloading::os::windows::Library::open_already_loaded(name).ok().map(Library::from)
}

#[cfg(not(any(target_os = "linux", windows)))]
fn already_loaded(_name: &str) -> Option<Library> {
    None
}

/// Loads a library for the life of the process.
fn keep(library: &Path) -> std::result::Result<&'static Library, String> {
    // SAFETY: NVRTC and its builtins may be loaded at any time.
    let loaded = unsafe { Library::new(library) };
    loaded.map(|library| &*Box::leak(Box::new(library))).map_err(|error| explain(&error))
}

fn terminated<T: Into<Vec<u8>>>(texts: impl IntoIterator<Item = T>) -> Result<Vec<CString>> {
    let texts: std::result::Result<_, _> = texts.into_iter().map(CString::new).collect();
    texts.map_err(|error| Error::new(ErrorKind::Compile, "kernel source", error, "text without zero bytes"))
}

#[cfg(test)]
mod tests {
    use crate::jit::{self, Unit};

    #[test]
    fn a_second_compilation_reports_registers_too() {
        if let Err(why) = jit::nvrtc() {
            eprintln!("skipped: {why}");
            return;
        }
        let unit = Unit::new("selftest.cu", "again", "sm_90a".parse().unwrap()).define("ELEMENT", "float");
        let registers = [(); 2].map(|()| jit::compile(&unit).unwrap().registers());
        assert!(registers[0] > 0 && registers[0] == registers[1], "{registers:?}");
    }
}
