//! Where NVRTC may be.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use msda_trust as trust;

/// Where NVRTC is looked for. Nothing is taken from the current folder.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    /// `MSDA_NVRTC`: the library or its folder. When set, only that is tried.
    pub(super) nvrtc: Option<PathBuf>,
    /// Folders of Python packages that the program named.
    pub(super) packages: Vec<PathBuf>,
    /// The Python that `MSDA_PYTHON` names.
    pub(super) python: Option<PathBuf>,
    /// Python environments: of `MSDA_PYTHON`, `VIRTUAL_ENV`, `CONDA_PREFIX`.
    pub(super) environments: Vec<PathBuf>,
    /// `CUDA_HOME`, `CUDA_PATH` and `/usr/local/cuda*`.
    pub(super) toolkits: Vec<PathBuf>,
}

impl Settings {
    pub(super) fn from_env() -> Self {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let python = path("MSDA_PYTHON").and_then(|name| trust::find_program(name.as_os_str()));
        let of_python = python.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path);
        let mut toolkits: Vec<_> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect();
        toolkits.push("/usr/local/cuda".into());
        toolkits.extend(named(Path::new("/usr/local"), |name| name.starts_with("cuda-")));
        Self {
            nvrtc: path("MSDA_NVRTC"),
            packages: Vec::new(),
            environments: of_python.into_iter().chain(active).collect(),
            python,
            toolkits,
        }
    }

    /// The folders of Python packages with NVRTC.
    pub(super) fn in_environments(&self) -> Vec<PathBuf> {
        let sites = self.environments.iter().flat_map(|root| {
            let versions = match cfg!(windows) {
                true => vec![root.join("Lib")],
                false => named(&root.join("lib"), |name| name.starts_with("python3.")),
            };
            versions.into_iter().map(|lib| lib.join("site-packages"))
        });
        let sites = self.packages.iter().cloned().chain(sites);
        sites.flat_map(|site| in_site_packages(&site)).collect()
    }

    /// Asks the Python of `MSDA_PYTHON` for the folders of its packages. The error says why it is
    /// not run.
    pub(super) fn in_interpreter(&self) -> Result<Vec<PathBuf>, String> {
        const ASK: &str =
            "import site; print('\\n'.join([*site.getsitepackages(), site.getusersitepackages()]))";
        let Some(python) = &self.python else { return Ok(Vec::new()) };
        let python = trust::check_program(python).map_err(|why| format!("{}: {why}", python.display()))?;
        let output = Command::new(&python)
            .args(["-I", "-c", ASK])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", python.display()))?;
        let sites = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(sites.lines().flat_map(|site| in_site_packages(Path::new(site))).collect())
    }

    pub(super) fn in_toolkits(&self) -> Vec<PathBuf> {
        const INSIDE: &[&str] = if cfg!(windows) {
            &["bin", "bin/x64"]
        } else {
            &["lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]
        };
        self.toolkits.iter().flat_map(|root| INSIDE.iter().map(move |inside| root.join(inside))).collect()
    }
}

/// The folders of NVIDIA's wheels: `nvidia/cu13/lib` since CUDA 13, `nvidia/cuda_nvrtc/lib` before.
fn in_site_packages(site: &Path) -> Vec<PathBuf> {
    const INSIDE: &[&str] = if cfg!(windows) { &["bin/x86_64", "bin"] } else { &["lib"] };
    let nvidia = site.join("nvidia");
    let is_versioned = |name: &str| name.strip_prefix("cu").and_then(numbers).is_some();
    let wheels = named(&nvidia, is_versioned).into_iter().chain([nvidia.join("cuda_nvrtc")]);
    wheels.flat_map(|wheel| INSIDE.iter().map(move |inside| wheel.join(inside))).collect()
}

/// The file of the NVRTC that this process has loaded, where the system tells.
pub(super) fn mapped() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let file = |line: &str| Some(PathBuf::from(&line[line.find('/')?..]));
    maps.lines().filter_map(file).find(|file| {
        file.file_name().and_then(|name| name.to_str()).is_some_and(|name| version(name, "nvrtc").is_some())
    })
}

/// The NVRTC libraries in a folder, newest first.
pub(super) fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut libraries = named(folder, |name| version(name, "nvrtc").is_some());
    libraries.sort_by_key(|library| std::cmp::Reverse(version_of(library)));
    libraries
}

/// The files of the builtins beside the library, which it loads itself but does not always find.
pub(super) fn builtins(library: &Path) -> Vec<PathBuf> {
    let major = major(library);
    let fits = |name: &str| {
        version(name, "nvrtc-builtins")
            .is_some_and(|found| major.is_none_or(|major| found.first() == Some(&major)))
    };
    let file = library.canonicalize().unwrap_or_else(|_| library.to_owned());
    let folders = BTreeSet::from([library.parent(), file.parent()]);
    folders.into_iter().flatten().flat_map(|folder| named(folder, fits)).collect()
}

/// Names of NVRTC that the system loader may know.
pub(super) fn bare_names() -> &'static [&'static str] {
    if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    }
}

/// The major version in the name of a library, or of the file that it links to.
pub(super) fn major(library: &Path) -> Option<u32> {
    version_of(library)?.first().copied()
}

fn version_of(library: &Path) -> Option<Vec<u32>> {
    let of_name = |path: &Path| version(path.file_name()?.to_str()?, "nvrtc");
    let found = of_name(library)?;
    if !found.is_empty() {
        return Some(found);
    }
    of_name(&library.canonicalize().ok()?)
}

/// The version in a library's file name: `[13, 0]` of `libnvrtc-builtins.so.13.0` and of
/// `nvrtc-builtins64_130.dll`, empty for `libnvrtc.so`. None for other libraries, and for the
/// `.alt` variant of NVRTC.
fn version(file: &str, library: &str) -> Option<Vec<u32>> {
    if let Some(rest) = file.strip_prefix("lib").and_then(|rest| rest.strip_prefix(library)) {
        return match rest.strip_prefix(".so")? {
            "" => Some(Vec::new()),
            rest => numbers(rest.strip_prefix('.')?),
        };
    }
    let rest = file.strip_prefix(library)?.strip_prefix("64_")?.strip_suffix(".dll")?;
    let number: u32 = rest.strip_suffix("_0").unwrap_or(rest).parse().ok()?;
    Some(vec![number / 10, number % 10])
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|part| part.parse().ok()).collect()
}

/// Entries of a folder whose names are `wanted`, in reverse order of names: newer versions first.
fn named(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let names: BTreeSet<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let wanted = names.iter().rev().filter(|name| name.to_str().is_some_and(&wanted));
    wanted.map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_versions() {
        for (file, library, expected) in [
            ("libnvrtc.so.13", "nvrtc", Some(vec![13])),
            ("libnvrtc.so.12.8.93", "nvrtc", Some(vec![12, 8, 93])),
            ("libnvrtc.so", "nvrtc", Some(vec![])),
            ("libnvrtc.alt.so.13", "nvrtc", None),
            ("libnvrtc-builtins.so.13.0", "nvrtc", None),
            ("libnvrtc-builtins.so.13.0", "nvrtc-builtins", Some(vec![13, 0])),
            ("libnvrtc-builtins.alt.so.13.0", "nvrtc-builtins", None),
            ("libnvrtc_static.a", "nvrtc", None),
            ("nvrtc64_120_0.dll", "nvrtc", Some(vec![12, 0])),
            ("nvrtc-builtins64_128.dll", "nvrtc-builtins", Some(vec![12, 8])),
            ("libcudart.so.13", "nvrtc", None),
        ] {
            assert_eq!(version(file, library), expected, "{file}");
        }
    }

    #[test]
    fn wheels_and_toolkits_are_found() {
        let root = tempfile::tempdir().unwrap();
        let touch = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        touch("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        touch("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0");
        touch("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        touch("venv/lib/python3.11/site-packages/nvidia/cudnn/lib/libnvrtc.so.11");
        touch("cuda/lib64/libnvrtc.so.12");
        touch("cuda/lib64/libnvrtc.so.12.8.93");
        touch("cuda/lib64/libnvrtc-builtins.so.12.8");
        touch("cuda/lib64/libnvrtc-builtins.so.11.8");
        let settings = Settings {
            toolkits: vec![root.path().join("cuda")],
            environments: vec![root.path().join("none"), root.path().join("venv")],
            ..Settings::default()
        };
        let folders = settings.in_environments().into_iter().chain(settings.in_toolkits());
        let found: Vec<_> = folders.flat_map(|folder| libraries(&folder)).collect();
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(root.path()).unwrap().to_str().unwrap()).collect();
        let site = "venv/lib/python3.11/site-packages/nvidia";
        assert_eq!(
            names,
            [
                &format!("{site}/cu13/lib/libnvrtc.so.13"),
                &format!("{site}/cuda_nvrtc/lib/libnvrtc.so.12"),
                "cuda/lib64/libnvrtc.so.12.8.93",
                "cuda/lib64/libnvrtc.so.12",
            ]
        );
        assert_eq!(builtins(&found[2]), [root.path().join("cuda/lib64/libnvrtc-builtins.so.12.8")]);
        assert_eq!(builtins(&found[0]).len(), 1);
        assert_eq!(major(&found[0]), Some(13));
    }
}
