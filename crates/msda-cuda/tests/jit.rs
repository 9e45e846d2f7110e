//! The compiler and the cache, with a real NVRTC and without a GPU.
//!
//! Without NVRTC the tests say that they are skipped; with `MSDA_NVRTC` or `MSDA_PYTHON` set they
//! fail.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, fs, thread};

use msda::ErrorKind;
use msda_cuda::jit::{self, Cache, Compiled, Jit, Nvrtc, Unit};
use tempfile::TempDir;

/// Tells a child of this test binary which folder to use.
const CHILD: &str = "MSDA_TEST_CACHE";

/// Tells it that nothing can be stored there.
const FULL: &str = "MSDA_TEST_FULL";

fn nvrtc() -> Option<&'static Nvrtc> {
    match jit::nvrtc() {
        Ok(nvrtc) => Some(nvrtc),
        Err(why) if env::var_os("MSDA_NVRTC").or(env::var_os("MSDA_PYTHON")).is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn unit(arch: &str) -> Unit {
    Unit::new("selftest.cu", "selftest-f32", arch.parse().unwrap()).define("ELEMENT", "float")
}

/// Asks for one unit, with a memory of its own, as another process would.
fn get(folder: &Path, jit: Jit) -> msda::Result<Arc<Compiled>> {
    cache(folder, jit).get(&unit("sm_90a"))
}

fn cache(folder: &Path, jit: Jit) -> Cache {
    Cache::at(Some(folder.to_owned()), jit)
}

/// A folder that only this user can write to, with any umask.
fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir().unwrap()
}

/// A folder with one entry, and the path of the entry.
fn filled() -> (TempDir, std::path::PathBuf) {
    let folder = folder();
    let full = cache(folder.path(), Jit::On);
    full.get(&unit("sm_90a")).unwrap();
    let entry = full.entries().unwrap().remove(0);
    (folder, entry.path)
}

#[test]
fn every_architecture_compiles() {
    let Some(_) = nvrtc() else { return };
    for arch in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"] {
        let compiled = jit::compile(&unit(arch)).unwrap();
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{arch}");
        assert!(compiled.source.contains("#define ELEMENT float\n"), "{arch}");
        assert!(compiled.compiler.starts_with("NVRTC "), "{arch}");
        let mut resources = compiled.resources();
        resources.sort_by(|a, b| a.entry.cmp(&b.entry));
        let names: Vec<_> = resources.iter().map(|used| used.entry.as_str()).collect();
        assert_eq!(names, ["selftest_add", "selftest_reverse"], "{arch}: {}", compiled.log);
        assert!(resources.iter().all(|used| (4..64).contains(&used.registers)), "{arch}: {resources:?}");
        assert_eq!(resources[1].shared, 256, "{arch}");
        assert_eq!((compiled.spills(), compiled.stack()), (0, 0), "{arch}");
    }
}

#[test]
fn mistakes_are_quoted() {
    let Some(_) = nvrtc() else { return };
    let broken = Unit { defines: vec![("ELEMENT".into(), "nonsense".into())], ..unit("sm_90a") };
    let error = Cache::at(None, Jit::On).get(&broken).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
    let text = error.to_string();
    for part in ["kernel selftest-f32: got selftest.cu(", "\"nonsense\" is undefined", "hint: NVRTC "] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_architecture_that_nvrtc_does_not_know_is_refused() {
    let Some(_) = nvrtc() else { return };
    let error = jit::compile(&unit("sm_999")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("sm_999"), "{error}");
}

#[test]
fn compiled_units_are_found_again() {
    let Some(_) = nvrtc() else { return };
    let folder = folder();
    let first = cache(folder.path(), Jit::On);
    let compiled = first.get(&unit("sm_90a")).unwrap();
    assert!(Arc::ptr_eq(&compiled, &first.get(&unit("sm_90a")).unwrap()));
    let second = cache(folder.path(), Jit::Off);
    assert_eq!(*second.get(&unit("sm_90a")).unwrap(), *compiled);
    assert_eq!((first.warning(), second.warning()), (None, None));

    let entries = second.entries().unwrap();
    assert_eq!(
        (entries.len(), entries[0].key.as_str(), entries[0].arch.as_str()),
        (1, "selftest-f32", "sm_90a")
    );
    assert!(entries[0].bytes > compiled.cubin.len() as u64 && entries[0].age.as_secs() < 600);
    assert_eq!(fs::read_to_string(entries[0].path.join("kernel.cu")).unwrap(), compiled.source);
    let names = fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 1, "no other files are left");
}

#[test]
fn without_compiling_a_miss_is_an_error() {
    let folder = folder();
    for cache in [cache(&folder.path().join("none"), Jit::Off), Cache::at(None, Jit::Off)] {
        let error = cache.get(&unit("sm_90a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        for part in ["selftest-f32", "hint: unset MSDA_JIT", "`msda cache build ", " --arch sm_90 "] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(cache.entries().unwrap(), []);
        assert_eq!(cache.clear().unwrap(), 0);
    }
}

#[test]
fn damaged_entries_are_rebuilt() {
    let Some(_) = nvrtc() else { return };
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("a changed cubin", |entry| {
            let mut cubin = fs::read(entry.join("kernel.cubin")).unwrap();
            cubin[100] ^= 1;
            fs::write(entry.join("kernel.cubin"), cubin).unwrap();
        }),
        ("half a cubin", |entry| {
            let cubin = fs::read(entry.join("kernel.cubin")).unwrap();
            fs::write(entry.join("kernel.cubin"), &cubin[..cubin.len() / 2]).unwrap();
        }),
        ("half a meta", |entry| {
            let meta = fs::read(entry.join("meta")).unwrap();
            fs::write(entry.join("meta"), &meta[..meta.len() / 2]).unwrap();
        }),
        ("no log", |entry| fs::remove_file(entry.join("kernel.log")).unwrap()),
        ("an empty folder", |entry| {
            fs::remove_dir_all(entry).unwrap();
            fs::create_dir(entry).unwrap();
        }),
        ("a file", |entry| {
            fs::remove_dir_all(entry).unwrap();
            fs::write(entry, "in the way").unwrap();
        }),
        ("another unit's entry", |entry| {
            let root = entry.parent().unwrap();
            let other = cache(root, Jit::On);
            other.get(&unit("sm_80")).unwrap();
            let theirs = other.entries().unwrap().into_iter().find(|other| other.arch == "sm_80").unwrap();
            fs::remove_dir_all(entry).unwrap();
            fs::rename(theirs.path, entry).unwrap();
        }),
    ];
    for (name, damage) in damages {
        let (folder, entry) = filled();
        damage(&entry);
        let error = get(folder.path(), Jit::Off).unwrap_err().to_string();
        assert!(error.contains("an unusable entry"), "{name}: {error}");
        let rebuilt = cache(folder.path(), Jit::On);
        let compiled = rebuilt.get(&unit("sm_90a")).unwrap();
        assert_eq!(rebuilt.warning(), None, "{name}");
        assert_eq!(*get(folder.path(), Jit::Off).unwrap(), *compiled, "{name}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name}: no other files are left");
    }
}

/// Runs with a wide umask, in which files would be writable by everybody.
#[cfg(unix)]
#[test]
fn the_folder_and_its_entries_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let Some(_) = nvrtc() else { return };
    let folder = folder();
    let root = folder.path().join("new/cache");
    assert!(child(&root, "umask 0").status().unwrap().success());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(root.parent().unwrap()), mode(&root)), (0o700, 0o700));
    let entry = cache(&root, Jit::Off).entries().unwrap().remove(0).path;
    assert_eq!(mode(&entry), 0o700);
    for file in fs::read_dir(&entry).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}

/// A cubin that another user could have written is not loaded, although its hashes are right.
#[cfg(unix)]
#[test]
fn entries_that_others_can_change_are_rebuilt() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let Some(_) = nvrtc() else { return };
    type Damage = fn(&Path) -> std::io::Result<()>;
    fn chmod(path: &Path, mode: u32) -> std::io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }
    let damages: [(&str, Damage, &str); 6] = [
        ("a cubin for everybody", |entry| chmod(&entry.join("kernel.cubin"), 0o666), "everybody (mode 666)"),
        ("a meta for a group", |entry| chmod(&entry.join("meta"), 0o660), "its group (mode 660)"),
        ("an entry for everybody", |entry| chmod(entry, 0o777), "everybody (mode 777)"),
        (
            "a cubin of another user",
            |entry| chown(entry.join("kernel.cubin"), Some(12_345), None),
            "user 12345",
        ),
        ("an entry of another user", |entry| chown(entry, Some(12_345), None), "user 12345"),
        (
            "a link to an entry",
            |entry| {
                let moved = entry.with_file_name("moved");
                fs::rename(entry, &moved)?;
                symlink(moved, entry)
            },
            "symbolic link",
        ),
    ];
    for (name, damage, reason) in damages {
        let (folder, entry) = filled();
        if let Err(why) = damage(&entry) {
            eprintln!("skipped: {name}: {why}");
            continue;
        }
        let error = get(folder.path(), Jit::Off).unwrap_err().to_string();
        assert!(error.contains("an unusable entry") && error.contains(reason), "{name}: {error}");
        let rebuilt = cache(folder.path(), Jit::On);
        rebuilt.get(&unit("sm_90a")).unwrap();
        assert_eq!(rebuilt.warning(), None, "{name}");
        get(folder.path(), Jit::Off).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_folder_that_others_can_change_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let Some(_) = nvrtc() else { return };
    for mode in [0o777, 0o770, 0o1777] {
        let (folder, entry) = filled();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let warned = cache(folder.path(), Jit::On);
        let warning = warned.warning().unwrap();
        assert!(warning.contains("not stored") && warning.contains("is writable by"), "{warning}");
        warned.get(&unit("sm_90a")).unwrap();
        fs::remove_dir_all(&entry).unwrap();
        get(folder.path(), Jit::On).unwrap();
        assert!(!entry.exists(), "nothing is written there");
        let error = get(folder.path(), Jit::Off).unwrap_err().to_string();
        assert!(error.contains("is writable by"), "{error}");
    }
}

#[test]
fn an_unusable_folder_costs_only_the_cache() {
    let Some(_) = nvrtc() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut folders = vec![file.path().join("cache")];
    if cfg!(target_os = "linux") {
        // Nobody can write there.
        folders.push("/proc/self/msda".into());
    }
    for folder in folders {
        let cache = cache(&folder, Jit::On);
        cache.get(&unit("sm_90a")).unwrap();
        let warning = cache.warning().unwrap();
        assert!(warning.contains("not stored") && !warning.contains('\n'), "{warning}");
    }
}

/// A process that cannot write files of more than a block: as on a full disk, the first bytes are
/// written.
#[cfg(unix)]
#[test]
fn a_full_disk_costs_only_the_cache() {
    let Some(_) = nvrtc() else { return };
    let folder = folder();
    let child = child(folder.path(), "trap '' XFSZ; ulimit -f 1").env(FULL, "1").status();
    assert!(child.unwrap().success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no other files are left");
}

#[test]
fn entries_that_do_not_load_are_compiled_again_unless_jit_is_off() {
    let folder = folder();
    let why = msda::Error::new(ErrorKind::Device, "cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE", "success");
    let error = cache(folder.path(), Jit::Off).renew(&unit("sm_90a"), &[], &why);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("INVALID_IMAGE") && error.contains("hint: unset MSDA_JIT"), "{error}");
    let Some(_) = nvrtc() else { return };
    let (folder, entry) = filled();
    let full = cache(folder.path(), Jit::On);
    let before = full.get(&unit("sm_90a")).unwrap();
    let written = |entry: &Path| fs::metadata(entry.join("meta")).unwrap().modified().unwrap();
    let first = written(&entry);
    let renewed = full.renew(&unit("sm_90a"), &before.cubin, &why).unwrap();
    assert!(!Arc::ptr_eq(&before, &renewed) && Arc::ptr_eq(&renewed, &full.get(&unit("sm_90a")).unwrap()));
    assert!(written(&entry) > first, "the entry is a new one");
    check_shared(folder.path());

    // What an earlier process compiled here is used, if something else has failed.
    let second = written(&entry);
    let stored = cache(folder.path(), Jit::On).renew(&unit("sm_90a"), b"another", &why).unwrap();
    assert_eq!((&stored, written(&entry)), (&renewed, second));
}

/// A folder with other files is not made readable for all.
#[test]
fn only_folders_of_kernels_are_published() {
    let folder = folder();
    let cache = cache(folder.path(), Jit::On);
    cache.publish().unwrap();
    fs::write(folder.path().join("token"), "secret").unwrap();
    let error = cache.publish().unwrap_err().to_string();
    assert!(error.contains("token") && error.contains("hint: choose a new folder"), "{error}");
}

/// Folders that were filled ahead come first, with kernels of any compiler, and nothing is written
/// there.
#[test]
fn kernels_that_were_compiled_ahead_are_used() {
    let Some(_) = nvrtc() else { return };
    let (ahead, own, empty) = (folder(), folder(), folder());
    let full = cache(ahead.path(), Jit::On);
    for arch in ["sm_80", "sm_90a"] {
        full.get(&unit(arch)).unwrap();
    }
    full.publish().unwrap();
    #[cfg(unix)]
    for entry in full.entries().unwrap() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&entry.path), mode(&entry.path.join("kernel.cubin"))), (0o755, 0o644));
    }
    let folders = || vec![empty.path().to_owned(), ahead.path().to_owned()];
    for (jit, folder) in [(Jit::Off, None), (Jit::On, Some(own.path().to_owned()))] {
        let user = Cache::at(folder, jit).with_ahead(folders());
        for arch in ["sm_80", "sm_90a"] {
            assert_eq!(user.folder_of(&unit(arch)).unwrap(), Some(ahead.path()), "{arch}");
            assert_eq!(*user.get(&unit(arch)).unwrap(), *full.get(&unit(arch)).unwrap(), "{arch}");
        }
        assert_eq!(user.folder_of(&unit("sm_75")).unwrap(), None);
        assert_eq!(user.warning(), None);
    }
    let both = Cache::at(Some(own.path().to_owned()), Jit::On).with_ahead(folders());
    both.get(&unit("sm_75")).unwrap();
    assert_eq!(both.folder_of(&unit("sm_75")).unwrap(), Some(own.path()));
    assert_eq!(full.entries().unwrap().len(), 2, "nothing is written there");

    // A damaged kernel, and one of another version, are refused with their folder.
    let entry = full.entries().unwrap().into_iter().find(|entry| entry.arch == "sm_80").unwrap().path;
    let meta = fs::read_to_string(entry.join("meta")).unwrap();
    let hash = meta.lines().find_map(|line| line.strip_prefix("hash ")).unwrap();
    let other = meta.replace(hash, &"0".repeat(hash.len()));
    let cubin = fs::read(entry.join("kernel.cubin")).unwrap();
    for (file, content, words) in [
        ("kernel.cubin", &cubin[..cubin.len() / 2], "meta does not match"),
        ("meta", other.as_bytes(), "is of other sources or options"),
    ] {
        fs::write(entry.join(file), content).unwrap();
        let user = |jit| Cache::at(None, jit).with_ahead(folders());
        let error = user(Jit::Off).get(&unit("sm_80")).unwrap_err().to_string();
        for part in [&format!("an unusable entry in {}", ahead.path().display()), words] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let compiles = user(Jit::On);
        compiles.get(&unit("sm_80")).unwrap();
        assert!(compiles.warning().unwrap().contains("compiled ahead is not used"), "{file}");
    }
}

/// Another library of the same version is another compiler: here a copy with bytes at its end.
#[cfg(target_os = "linux")]
#[test]
fn another_compiler_has_another_entry() {
    use std::io::Write as _;
    let Some(_) = nvrtc() else { return };
    let (entries, _) = filled();
    let own = Path::new(jit::nvrtc().unwrap().path());
    let copy = folder();
    for file in fs::read_dir(own.parent().unwrap()).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap_or_default();
        if name.starts_with("libnvrtc-builtins") && !name.contains(".alt.") {
            fs::copy(file.path(), copy.path().join(name)).unwrap();
        }
    }
    let library = copy.path().join(own.file_name().unwrap());
    fs::copy(own, &library).unwrap();
    fs::OpenOptions::new().append(true).open(&library).unwrap().write_all(b"other").unwrap();
    let compile = || {
        let child = child(entries.path(), "").env("MSDA_NVRTC", &library).status();
        assert!(child.unwrap().success());
    };
    let compilers = || {
        let meta = |entry: &jit::Entry| fs::read_to_string(entry.path.join("meta")).unwrap();
        let line = |meta: String| meta.lines().find(|line| line.starts_with("compiler ")).unwrap().to_owned();
        let entries = cache(entries.path(), Jit::Off).entries().unwrap();
        entries.iter().map(|entry| line(meta(entry))).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(compilers().len(), 1);
    compile();
    assert_eq!(compilers().len(), 2, "{:?}", compilers());
    // Both find their entries again, and where nothing is compiled any entry will do.
    compile();
    let here = get(entries.path(), Jit::On).unwrap();
    assert_eq!(here.compiler, jit::nvrtc().unwrap().identity());
    get(entries.path(), Jit::Off).unwrap();
    assert_eq!(cache(entries.path(), Jit::Off).clear().unwrap(), 2);
}

#[test]
fn clearing_leaves_other_files() {
    let Some(_) = nvrtc() else { return };
    let (folder, entry) = filled();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir_all(folder.path().join("photos-of-sm_90a")).unwrap();
    fs::create_dir_all(folder.path().join(".msda-left")).unwrap();
    assert_eq!(cache(folder.path(), Jit::Off).clear().unwrap(), 1);
    assert!(!entry.exists() && !folder.path().join(".msda-left").exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn concurrent_threads_compile_once() {
    let Some(_) = nvrtc() else { return };
    let folder = folder();
    let cache = cache(folder.path(), Jit::On);
    let ask = || cache.get(&unit("sm_90a")).unwrap();
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(results.iter().all(|other| Arc::ptr_eq(other, &results[0])));
}

#[test]
fn concurrent_caches_share_a_folder() {
    let Some(_) = nvrtc() else { return };
    let folder = folder();
    // Each has its own memory, like different processes.
    let ask = || get(folder.path(), Jit::On).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(ask);
        }
    });
    check_shared(folder.path());
}

#[test]
fn concurrent_processes_share_a_folder() {
    let Some(_) = nvrtc() else { return };
    let folder = folder();
    let children = [(); 2].map(|()| child(folder.path(), "").spawn().unwrap());
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    check_shared(folder.path());
}

/// Runs [`child_process`] with a folder, after commands of the shell if there are some.
fn child(folder: &Path, before: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    if !before.is_empty() {
        let program = std::mem::replace(&mut command, Command::new("sh"));
        command.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]).arg(program.get_program());
    }
    command.args(["--exact", "child_process"]).env(CHILD, folder).stdout(Stdio::null());
    command
}

/// Does nothing unless another test started it.
#[test]
fn child_process() {
    if let Some(folder) = env::var_os(CHILD) {
        let cache = cache(Path::new(&folder), Jit::On);
        cache.get(&unit("sm_90a")).unwrap();
        assert_eq!(cache.warning().is_some(), env::var_os(FULL).is_some(), "{:?}", cache.warning());
    }
}

fn check_shared(folder: &Path) {
    get(folder, Jit::Off).unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "no other files are left");
}
