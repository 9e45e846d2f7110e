//! Runs a program in a folder of its own, as a person or a script does.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output};

use msda_bench::record::Record;
use serde_json::Value;
use tempfile::TempDir;

/// A program, its folder and its environment.
pub(crate) struct Shell {
    folder: TempDir,
    program: OsString,
    variables: Vec<(&'static str, OsString)>,
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Shell {
    pub(crate) fn new(program: impl Into<OsString>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, program: program.into(), variables: vec![("COLUMNS", "80".into())] }
    }

    /// The same with a variable of the environment.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// The same with all GPUs hidden and an empty cache.
    pub(crate) fn without_gpu(self) -> Self {
        let cache = self.at("cache");
        self.with("CUDA_VISIBLE_DEVICES", "-1").with("MSDA_CACHE_DIR", cache)
    }

    /// A path in the folder.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.at(name), contents).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.folder.path()).envs(self.variables.iter().cloned());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What a command that succeeds says on standard output and standard error.
    pub(crate) fn both(&self, args: &[&str]) -> (String, String) {
        let run = self.run(args);
        let said = (text(&run.stdout), text(&run.stderr));
        assert!(run.status.success(), "{args:?}: {}", said.1);
        said
    }

    /// What a command that succeeds prints.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.both(args).0
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// What `doctor` finds about a subject.
    pub(crate) fn finding(&self, what: &str, more: &[&str]) -> Value {
        let all = self.json(&[&["doctor", "--json"], more].concat());
        let found = all.as_array().unwrap().iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("{what} in {all}")).clone()
    }

    pub(crate) fn record(&self, args: &[&str]) -> Record {
        Record::parse(&self.ok(args)).unwrap()
    }

    /// What a command says that fails with this exit code. It says all of these words, and nothing
    /// on standard output.
    pub(crate) fn fails(&self, code: i32, args: &[&str], words: &[&str]) -> String {
        let run = self.run(args);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(code), "{args:?}: {said}");
        assert!(run.stdout.is_empty() && !said.contains("panicked"), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: expected '{word}': {said}");
        }
        said
    }
}
