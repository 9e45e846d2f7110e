//! The compiler and the cache, with a real NVRTC. It needs no GPU.
//!
//! Where there is no NVRTC this is said and the tests are skipped; with `MSDA_NVRTC` or `MSDA_PYTHON` set they fail.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, fs, thread};

use msda::ErrorKind;
use msda_cuda::jit::{self, Cache, Jit, Unit};
use tempfile::TempDir;

/// Tells a child of this test binary which folder to use.
const CHILD: &str = "MSDA_TEST_CACHE";

/// Tells it that nothing can be kept there.
const FULL: &str = "MSDA_TEST_FULL";

fn ready() -> bool {
    match jit::nvrtc() {
        Ok(_) => true,
        Err(why) if env::var_os("MSDA_NVRTC").or(env::var_os("MSDA_PYTHON")).is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

fn unit(arch: &str) -> Unit {
    Unit::new("selftest.cu", "selftest-f32", arch.parse().unwrap()).define("ELEMENT", "float")
}

fn cache(folder: &Path, jit: Jit) -> Cache {
    Cache::at(Some(folder.to_owned()), jit)
}

/// A folder with one entry, and that entry's path.
fn filled() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let full = cache(folder.path(), Jit::On);
    full.get(&unit("sm_90a")).unwrap();
    let entry = full.entries().unwrap().remove(0);
    (folder, entry.path)
}

#[test]
fn every_architecture_compiles() {
    if !ready() {
        return;
    }
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
    if !ready() {
        return;
    }
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
    if !ready() {
        return;
    }
    let error = jit::compile(&unit("sm_999")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("sm_999"), "{error}");
}

#[test]
fn what_was_compiled_is_found_again() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
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
    assert_eq!(names.count(), 1, "nothing is left behind");
}

#[test]
fn without_compiling_a_miss_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for cache in [cache(&folder.path().join("none"), Jit::Off), Cache::at(None, Jit::Off)] {
        let error = cache.get(&unit("sm_90a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("selftest-f32") && text.contains("hint: unset MSDA_JIT"), "{text}");
        assert_eq!(cache.entries().unwrap(), []);
        assert_eq!(cache.clear().unwrap(), 0);
    }
}

#[test]
fn damaged_entries_are_rebuilt() {
    if !ready() {
        return;
    }
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
        let error = cache(folder.path(), Jit::Off).get(&unit("sm_90a")).unwrap_err().to_string();
        assert!(error.contains("of no use"), "{name}: {error}");
        let rebuilt = cache(folder.path(), Jit::On);
        let compiled = rebuilt.get(&unit("sm_90a")).unwrap();
        assert_eq!(rebuilt.warning(), None, "{name}");
        assert_eq!(*cache(folder.path(), Jit::Off).get(&unit("sm_90a")).unwrap(), *compiled, "{name}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name}: nothing is left behind");
    }
}

#[test]
fn an_unusable_folder_costs_only_the_cache() {
    if !ready() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut folders = vec![file.path().join("cache")];
    if cfg!(target_os = "linux") {
        // Nobody writes there.
        folders.push("/proc/self/msda".into());
    }
    for folder in folders {
        let cache = cache(&folder, Jit::On);
        cache.get(&unit("sm_90a")).unwrap();
        let warning = cache.warning().unwrap();
        assert!(warning.contains("not kept") && !warning.contains('\n'), "{warning}");
    }
}

/// A process that may write no file of more than a block: as on a full disk, some bytes are written and then none.
#[cfg(unix)]
#[test]
fn a_full_disk_costs_only_the_cache() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact child_process";
    let child = Command::new("sh")
        .args(["-c", limited])
        .arg(env::current_exe().unwrap())
        .env(CHILD, folder.path())
        .env(FULL, "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(child.success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn what_does_not_load_is_compiled_anew_unless_that_is_off() {
    let folder = tempfile::tempdir().unwrap();
    let why = msda::Error::new(ErrorKind::Device, "cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE", "success");
    let error = cache(folder.path(), Jit::Off).renew(&unit("sm_90a"), &why).unwrap_err().to_string();
    assert!(error.contains("INVALID_IMAGE") && error.contains("hint: unset MSDA_JIT"), "{error}");
    if !ready() {
        return;
    }
    let (folder, entry) = filled();
    let full = cache(folder.path(), Jit::On);
    let before = full.get(&unit("sm_90a")).unwrap();
    let written = |entry: &Path| fs::metadata(entry.join("meta")).unwrap().modified().unwrap();
    let first = written(&entry);
    let renewed = full.renew(&unit("sm_90a"), &why).unwrap();
    assert!(!Arc::ptr_eq(&before, &renewed) && Arc::ptr_eq(&renewed, &full.get(&unit("sm_90a")).unwrap()));
    assert!(written(&entry) > first, "the entry is a new one");
    check_shared(folder.path());
}

#[test]
fn clearing_leaves_what_is_not_ours() {
    if !ready() {
        return;
    }
    let (folder, entry) = filled();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir_all(folder.path().join("photos-of-sm_90a")).unwrap();
    fs::create_dir_all(folder.path().join(".msda-left")).unwrap();
    assert_eq!(cache(folder.path(), Jit::Off).clear().unwrap(), 1);
    assert!(!entry.exists() && !folder.path().join(".msda-left").exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn threads_at_once_compile_once() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), Jit::On);
    let ask = || cache.get(&unit("sm_90a")).unwrap();
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(results.iter().all(|other| Arc::ptr_eq(other, &results[0])));
}

#[test]
fn caches_at_once_share_a_folder() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // As different processes would, each has its own memory.
    let ask = || cache(folder.path(), Jit::On).get(&unit("sm_90a")).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(ask);
        }
    });
    check_shared(folder.path());
}

#[test]
fn processes_at_once_share_a_folder() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = |_| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "child_process"])
            .env(CHILD, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..2).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    check_shared(folder.path());
}

/// Does something only when another test started it.
#[test]
fn child_process() {
    if let Some(folder) = env::var_os(CHILD) {
        let cache = cache(Path::new(&folder), Jit::On);
        cache.get(&unit("sm_90a")).unwrap();
        assert_eq!(cache.warning().is_some(), env::var_os(FULL).is_some(), "{:?}", cache.warning());
    }
}

fn check_shared(folder: &Path) {
    cache(folder, Jit::Off).get(&unit("sm_90a")).unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "nothing is left behind");
}
