//! Which files may be loaded or run: files that no other user can replace.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{self, Component, Path, PathBuf};
#[cfg(unix)]
use std::sync::OnceLock;

/// The path of a file or folder without symbolic links, if only root and this user can change or
/// replace it.
///
/// The file and every folder above it must be owned by root or this user and must not be writable
/// by everybody. Groups may write, because many systems give each user an own group. A folder with
/// the sticky bit, such as `/tmp`, may be writable: others cannot rename or delete our files there.
/// The error says which path is not safe, and why. On Windows only the existence is checked.
pub fn check(path: &Path) -> Result<PathBuf, String> {
    let real = path.canonicalize().map_err(|error| error.to_string())?;
    for (i, path) in real.ancestors().enumerate() {
        let meta = fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if let Some(why) = unsafe_reason(&meta, i > 0, 0o002) {
            return Err(format!("{} {why}", path.display()));
        }
    }
    Ok(real)
}

/// The path of a program that may be run: its file passes [`check`], and so does the folder that it
/// is started from. A Python reads the settings of its environment there, also where its file is a
/// symbolic link.
pub fn check_program(program: &Path) -> Result<PathBuf, String> {
    check(program)?;
    let program = path::absolute(program).map_err(|error| error.to_string())?;
    let folder = program.parent().ok_or("not a program")?;
    let environment = folder.parent().unwrap_or(folder);
    check(folder)?;
    check(environment)?;
    Ok(program)
}

/// As [`check`], and no group may write to it: for a folder that only this user fills.
pub fn check_private(path: &Path) -> Result<PathBuf, String> {
    let real = check(path)?;
    check_own(&real)?;
    Ok(real)
}

/// Whether a file or folder, without the folders above it, is one that only root and this user can
/// write to. Symbolic links are refused.
pub fn check_own(path: &Path) -> Result<(), String> {
    let meta = fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if meta.is_symlink() {
        return Err(format!("{} is a symbolic link", path.display()));
    }
    match unsafe_reason(&meta, false, 0o022) {
        Some(why) => Err(format!("{} {why}", path.display())),
        None => Ok(()),
    }
}

/// The program that a shell would run for a name: the first on `PATH`. A name with a separator is a
/// path already. Relative folders of `PATH` are left out.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 || path.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Some(path.to_owned());
    }
    let folders = env::var_os("PATH")?;
    let with_suffix = |folder: PathBuf| {
        let file = folder.join(path);
        if cfg!(windows) && file.extension().is_none() { file.with_extension("exe") } else { file }
    };
    env::split_paths(&folders)
        .filter(|folder| folder.is_absolute())
        .map(with_suffix)
        .find(|file| file.is_file())
}

/// Why others could change a file, or a folder above it, if they could.
#[cfg(unix)]
fn unsafe_reason(meta: &fs::Metadata, above: bool, writers: u32) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    const STICKY: u32 = 0o1000;
    let (owner, mode) = (meta.uid(), meta.mode());
    if owner != 0 && owner != user() && !(above && Some(owner) == hidden_root()) {
        return Some(format!("is owned by user {owner}, expected root or user {}", user()));
    }
    if mode & writers != 0 && !(above && mode & STICKY != 0) {
        let mode = mode & 0o7777;
        let others = if mode & 0o002 != 0 { "everybody" } else { "its group" };
        return Some(format!("is writable by {others} (mode {mode:o})"));
    }
    None
}

/// Other systems have no owners and modes of this kind.
#[cfg(not(unix))]
fn unsafe_reason(_meta: &fs::Metadata, _above: bool, _writers: u32) -> Option<String> {
    None
}

/// The owner that files of root seem to have in a container without root. Files of other users seem
/// to have it too, so that only folders above a file may have it.
#[cfg(unix)]
fn hidden_root() -> Option<u32> {
    static HIDDEN: OnceLock<Option<u32>> = OnceLock::new();
    *HIDDEN.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").ok()?;
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        if has_root(&map) { None } else { overflow.trim().parse().ok() }
    })
}

/// Whether a map of user ids has root: its lines are the first id inside, the first id outside, and
/// a count.
#[cfg(unix)]
fn has_root(map: &str) -> bool {
    map.lines().any(|line| line.split_whitespace().next() == Some("0"))
}

/// The effective user of this process.
#[cfg(unix)]
#[allow(unsafe_code)]
fn user() -> u32 {
    // SAFETY: the declaration is that of unistd.h on systems whose `uid_t` has 32 bits; the call
    // cannot fail.
    unsafe extern "C" {
        safe fn geteuid() -> u32;
    }
    geteuid()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A folder with a folder with a file.
    fn tree() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().canonicalize().unwrap().join("folder");
        fs::create_dir(&folder).unwrap();
        chmod(&folder, 0o755);
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        chmod(&file, 0o644);
        (root, folder, file)
    }

    #[test]
    fn files_that_others_cannot_replace_are_trusted() {
        let (root, folder, file) = tree();
        assert_eq!(check(&file), Ok(file.clone()));
        check_private(&folder).unwrap();
        let link = root.path().join("link");
        symlink(&file, &link).unwrap();
        assert_eq!(check(&link), Ok(file.clone()), "the file counts, not the link");
        // Others can create files in a folder with the sticky bit, but cannot replace ours.
        chmod(&folder, 0o1777);
        check(&file).unwrap();
    }

    #[test]
    fn files_that_everybody_can_change_are_refused() {
        let (_root, folder, file) = tree();
        chmod(&file, 0o646);
        let why = check(&file).unwrap_err();
        assert!(why.contains("file is writable by everybody (mode 646)"), "{why}");
        chmod(&file, 0o644);
        chmod(&folder, 0o757);
        let why = check(&file).unwrap_err();
        assert!(why.contains("folder is writable by everybody (mode 757)"), "{why}");
        // The sticky bit protects the files in a folder, not a file.
        chmod(&folder, 0o755);
        chmod(&file, 0o1666);
        check(&file).unwrap_err();
    }

    #[test]
    fn a_private_folder_has_no_other_writers_and_is_no_link() {
        let (root, folder, file) = tree();
        chmod(&folder, 0o775);
        check(&folder).unwrap();
        let why = check_private(&folder).unwrap_err();
        assert!(why.contains("writable by its group (mode 775)"), "{why}");
        let link = root.path().join("link");
        symlink(&file, &link).unwrap();
        assert!(check_own(&link).unwrap_err().contains("symbolic link"));
        check(&folder.join("nothing")).unwrap_err();
    }

    #[test]
    fn files_of_other_users_are_refused() {
        const OTHER: u32 = 12_345;
        let (_root, folder, file) = tree();
        if chown(&file, Some(OTHER), None).is_err() {
            return eprintln!("skipped: only root can give files to other users");
        }
        let why = check(&file).unwrap_err();
        assert!(why.contains("is owned by user 12345, expected root"), "{why}");
        chown(&file, Some(user()), None).unwrap();
        chown(&folder, Some(OTHER), None).unwrap();
        assert!(check(&file).unwrap_err().contains("folder is owned by user 12345"));
        assert!(check_own(&file).is_ok(), "folders above are not looked at");
    }

    #[test]
    fn user_maps_are_parsed() {
        assert!(has_root("         0          0 4294967295\n"));
        assert!(has_root("1000 100000 1\n0 1000 1\n"));
        assert!(!has_root("      1000       1000          1\n"));
        assert!(!has_root(""));
    }

    #[test]
    fn programs_are_found_on_the_path() {
        let found = find_program(OsStr::new("sh")).unwrap();
        assert!(found.is_absolute() && found.ends_with("sh"), "{}", found.display());
        assert_eq!(find_program(OsStr::new("no-such-program")), None);
        for path in ["./sh", "/bin/sh", "bin/sh"] {
            assert_eq!(find_program(OsStr::new(path)), Some(PathBuf::from(path)));
        }
    }
}
