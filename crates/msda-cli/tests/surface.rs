//! The help texts and the typical outputs, compared with files of `tests/snapshots`.
//!
//! `MSDA_UPDATE_SNAPSHOTS=1 cargo test -p msda-cli --test surface` writes the files again; the
//! difference then belongs into the review of the change. Numbers that change are masked.

mod shell;

use std::path::PathBuf;

use shell::{Shell, text};

/// What commands print, on standard output or else on standard error.
fn msda() -> impl Fn(&[&str]) -> String {
    let msda = wide();
    move |args| msda(args, "80")
}

/// The same on a terminal with this many columns.
fn wide() -> impl Fn(&[&str], &str) -> String {
    let msda = Shell::new(env!("CARGO_BIN_EXE_msda")).without_gpu().with("MSDA_PYTHON", "no-such-python");
    move |args, columns| {
        let mut command = msda.command(args);
        let run = command.env("COLUMNS", columns).env_remove("RAYON_NUM_THREADS").output().unwrap();
        text(if run.stdout.is_empty() { &run.stderr } else { &run.stdout })
    }
}

fn compare(name: &str, got: &str) {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests", "snapshots", &format!("{name}.txt")].iter().collect();
    if std::env::var_os("MSDA_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, got).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        got == expected,
        "{name} differs from {}; MSDA_UPDATE_SNAPSHOTS=1 accepts it\n--- got\n{got}--- expected\n{expected}",
        path.display()
    );
}

/// The text with `#` for numbers, one space for many, and names of this machine replaced.
fn masked(text: &str) -> String {
    let word = |word: &str| match word {
        _ if word.starts_with("cpu-") => "cpu-ISA".to_owned(),
        _ if word.starts_with("---") => "---".to_owned(),
        _ if !word.starts_with(|c: char| c.is_ascii_digit() || c == '~') => word.to_owned(),
        _ => {
            let mut masked = String::new();
            for c in word.chars() {
                match c {
                    // The rest of a number: `0.12`, `1e-5`, `0.9..1.2`.
                    '0'..='9' | '.' | 'e' | '-' if masked.ends_with('#') => {}
                    '0'..='9' => masked.push('#'),
                    other => masked.push(other),
                }
            }
            masked
        }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
}

#[test]
fn help_texts() {
    let output = msda();
    let help = output(&["--help"]);
    compare("help", &help);
    // On a terminal of 80 columns and 24 lines.
    assert!(help.lines().count() <= 24, "{help}");
    let place = |command: &str| help.find(&format!("\n  {command} ")).unwrap_or(usize::MAX);
    assert!(place("run") < place("report"), "{help}");
    for command in ["doctor", "run", "verify", "bench", "tune", "kernels", "cache"] {
        let help = output(&[command, "--help"]);
        compare(&format!("help-{command}"), &help);
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert!(help.contains("\nExamples:\n  msda "), "{help}");
    }
}

#[test]
fn typical_outputs() {
    let at_width = wide();
    let output = |args: &[&str]| at_width(args, "80");
    let kernels = output(&["kernels", "--arch", "sm_90"]);
    compare("kernels", &kernels);
    let verify = output(&["verify", "--engine", "cpu", "--engine", "oracle", "--group", "borders"]);
    compare("verify", &masked(&verify));
    let args =
        ["bench", "--quick", "--workload", "small", "--dtype", "f32", "--threads", "1", "--device", "cpu"];
    // With all columns: fewer fit if a number has more digits.
    let bench = at_width(&args, "200");
    // The first lines and the result name this machine.
    let (_, rest) = bench.split_once("\nsmall forward").unwrap();
    let (tables, end) = rest.split_once("\nReport: ").unwrap();
    let (tables, _) = tables.rsplit_once("\n\n").unwrap();
    let text = masked(&format!("small forward{tables}\n\nReport: {end}"));
    // Rows are in the order of their times, which depends on the machine.
    let mut lines: Vec<_> = text.lines().collect();
    let row = |line: &str| line.starts_with("f32 ");
    lines.chunk_by_mut(|a, b| row(a) && row(b)).for_each(<[_]>::sort_unstable);
    // Without vector instructions there is one engine.
    if msda::Isa::best() != msda::Isa::Portable {
        compare("bench", &(lines.join("\n") + "\n"));
    }
    let report = output(&["report", "report/record.json"]);
    let doctor = output(&["doctor"]);
    for (name, text) in [("kernels", kernels), ("verify", verify), ("report", report), ("doctor", doctor)] {
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{name}: {text}");
    }
}
