//! Tensors in files: NumPy's `.npy`, one tensor each, and `.safetensors`, many by name.
//!
//! Files are not trusted: sizes are compared with the bytes of the file before memory is allocated.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{anyhow, ensure};
use msda::{Error, ErrorKind};

pub mod npy;
pub mod safetensors;
mod stored;
mod tensor;

pub use tensor::{Data, Tensor};

/// All tensors of a file by name. The tensor of an `.npy` file has the name of the file without its
/// extension.
///
/// ```no_run
/// let tensors = msda_bench::files::read("inputs.safetensors")?;
/// let value = tensors["value"].float("value")?;
/// # anyhow::Ok(())
/// ```
pub fn read(path: impl AsRef<Path>) -> anyhow::Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    load(path).map_err(|why| cannot("read", path, why))
}

/// Writes tensors by name. An `.npy` file holds one tensor without its name.
///
/// The file is renamed into place, so readers never see a part of it.
pub fn write(path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> anyhow::Result<()> {
    let path = path.as_ref();
    store(path, tensors).map_err(|why| cannot("write", path, why))
}

/// The error of a file or folder that cannot be used: what for, `read` or `write`, its path, why,
/// and a hint where one helps.
pub fn cannot(what: &str, path: &Path, why: impl Into<anyhow::Error>) -> anyhow::Error {
    let why = why.into();
    let hint = match (what, why.downcast_ref().map(io::Error::kind)) {
        ("read", Some(io::ErrorKind::NotFound)) if path.is_relative() => std::env::current_dir()
            .ok()
            .map(|folder| format!("\nhint: it was looked for in {}", folder.display())),
        ("write", Some(kind)) if kind != io::ErrorKind::StorageFull => {
            Some("\nhint: choose a folder that you can write to".to_owned())
        }
        _ => None,
    };
    anyhow!("cannot {what} '{}': {why:#}{}", path.display(), hint.unwrap_or_default())
}

/// Whether it is an `.npy` file; otherwise it is a `.safetensors` file.
fn is_npy(path: &Path) -> msda::Result<bool> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let refused = |got| Error::new(ErrorKind::Unsupported, "file extension", got, ".npy or .safetensors");
    match extension.as_str() {
        "npy" => Ok(true),
        "safetensors" => Ok(false),
        "" => Err(refused("none".to_string())),
        "npz" => Err(refused(".npz".to_string()).hint("an .npz is a zip archive of .npy files: unzip it")),
        "pt" | "pth" => {
            Err(refused(format!(".{extension}")).hint("save with safetensors.torch.save_file instead"))
        }
        _ => Err(refused(format!(".{extension}"))),
    }
}

fn load(path: &Path) -> anyhow::Result<BTreeMap<String, Tensor>> {
    let is_npy = is_npy(path)?;
    // Reading a pipe blocks, and a device may have no end.
    ensure!(fs::metadata(path)?.is_file(), "got a folder, pipe or device, expected a regular file");
    let bytes = fs::read(path)?;
    if !is_npy {
        return Ok(safetensors::parse(&bytes)?);
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(BTreeMap::from([(stem, npy::parse(&bytes)?)]))
}

fn store(path: &Path, tensors: &[(String, Tensor)]) -> anyhow::Result<()> {
    let bytes = match (is_npy(path)?, tensors) {
        (false, _) => safetensors::encode(tensors)?,
        (true, [(_, tensor)]) => npy::encode(tensor)?,
        (true, _) => {
            let got = format!("{} tensors", tensors.len());
            return Err(Error::new(ErrorKind::Unsupported, "an .npy file", got, "exactly one")
                .hint("a .safetensors file holds any number of tensors")
                .into());
        }
    };
    Ok(replace(path, &bytes)?)
}

/// Writes a temporary file in the same folder and renames it to `path`.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default. The result has the usual permissions.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut temporary = builder.tempfile_in(folder)?;
    temporary.write_all(bytes)?;
    temporary.persist(path).map_err(|why| why.error)?;
    Ok(())
}

/// Text from a file for a message: short, and without control characters.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let escaped =
        |c: char| if matches!(c, '\'' | '"') { c.to_string() } else { c.escape_debug().to_string() };
    let mut chars = text.chars();
    let mut shown: String = chars.by_ref().take(LONGEST).map(escaped).collect();
    if chars.next().is_some() {
        shown.push_str("..");
    }
    shown
}

/// A name from a file for a message.
fn quoted(name: &str) -> String {
    format!("'{}'", shown(name))
}
