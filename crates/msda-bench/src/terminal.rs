//! The terminal side of programs: standard output, progress, exit codes, and the end of a command
//! that measured something. All commands share it.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use msda::conformance::Group;

use crate::Unknown;
use crate::bench::Progress;
use crate::files::cannot;
use crate::record::{Record, sources};
use crate::report::{self, Extensions, Screen, USUAL_WIDTH};

/// The width of help texts, and of all text where there is neither a terminal nor `COLUMNS`.
pub const WIDTH: usize = USUAL_WIDTH;

/// The width of the terminal, and whether text may be coloured.
pub fn screen() -> Screen {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    // Narrower than this, no table says anything.
    let wanted = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = size.map(|(width, _)| usize::from(width.0)).or(wanted).map_or(WIDTH, |width| width.max(40));
    Screen { width, color: color() }
}

/// Whether standard output may be coloured: a terminal, and `NO_COLOR` unset or empty.
pub fn color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Writes a line to standard error. A reader that has ended is no error.
pub fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The exit code of a command: 0 success, 1 failure, 2 a name that is not known. Prints the error.
pub fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Files and arguments may hold what a terminal would obey.
            let text = format!("{error:#}").replace(|c: char| c.is_control() && c != '\n', "?");
            note(format_args!("error: {text}"));
            ExitCode::from(if error.downcast_ref::<Unknown>().is_some() { 2 } else { 1 })
        }
    }
}

/// Whether the reader of our output has ended, as `head` does. This is no error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// A progress bar on standard error. Without a terminal it prints nothing.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Default for Bar {
    fn default() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }
}

impl Progress for Bar {
    fn begin(&mut self, total: usize) {
        self.0.set_length(total as u64);
        self.0.enable_steady_tick(std::time::Duration::from_millis(200));
    }

    fn step(&mut self, what: &str) {
        if !self.0.message().is_empty() {
            self.0.inc(1);
        }
        self.0.set_message(what.to_owned());
    }

    fn note(&mut self, what: &str) {
        self.0.suspend(|| note(what));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The command line without the folder of the results: a record does not name folders of this
/// machine.
pub fn typed(program: &str) -> String {
    let mut args = std::env::args().skip(1);
    let mut words = vec![program.to_owned()];
    while let Some(word) = args.next() {
        if word == "--out" {
            args.next();
        } else if !word.starts_with("--out=") {
            words.push(word);
        }
    }
    words.join(" ")
}

/// Creates a folder for results before the work begins, so that a folder that cannot be written
/// costs no time.
pub fn make_folder(path: &Path) -> Result<()> {
    ensure!(!path.is_file(), "--out: got the file {}, expected a folder", path.display());
    let made = std::fs::create_dir_all(path).and_then(|()| tempfile::tempfile_in(path));
    made.map(drop).map_err(|why| cannot("write", path, why))
}

/// The groups of the battery with these names; all if there are none.
pub fn groups(names: &[String]) -> Result<Vec<Group>> {
    if names.is_empty() {
        return Ok(Group::ALL.to_vec());
    }
    let find = |name: &String| {
        let found = Group::ALL.into_iter().find(|group| group.name() == name);
        found.ok_or_else(|| Unknown::new("group", name, &Group::ALL.map(Group::name)).into())
    };
    names.iter().map(find).collect()
}

/// Writes the record into a folder, and returns its path.
pub fn save(record: &Record, out: &Path) -> Result<PathBuf> {
    let path = out.join("record.json");
    if let Some(kept) = keep_old(&path)? {
        note(format_args!("note: the record of the last run is now {}", kept.display()));
    }
    record.save(&path)?;
    Ok(path)
}

/// Writes the record and its report into a folder, and prints the record or its tables.
pub fn finish(record: Record, extensions: &Extensions, out: &Path, json: bool) -> Result<()> {
    let path = save(&record, out)?;
    let records = [record];
    let [html, _] = report::write(&records, extensions, out)?;
    if json {
        return print(&serde_json::to_string_pretty(&records[0])?);
    }
    let screen = screen();
    print(&report::terminal(&records, screen))?;
    let mut sentences = report::summary(&records).split_off(1);
    sentences.push(format!("Report: {}. Record: {}.", html.display(), path.display()));
    sentences.extend(report::advice(&records[0]));
    let wrapped: String = sentences.iter().map(|text| report::wrap(text, screen.width, 0)).collect();
    print(&format!("\n{wrapped}"))
}

/// Renames the record of an earlier run after its date, so that it is not overwritten.
fn keep_old(path: &Path) -> Result<Option<PathBuf>> {
    if !path.exists() {
        return Ok(None);
    }
    let date = Record::load(path).map_or("old".into(), |record| record.created.replace(':', "-"));
    let name =
        |n: usize| if n == 1 { format!("record-{date}.json") } else { format!("record-{date}-{n}.json") };
    let free = (1..).map(|n| path.with_file_name(name(n))).find(|path| !path.exists());
    let to = free.context("no free name for the old record")?;
    std::fs::rename(path, &to).with_context(|| format!("renaming {} to {}", path.display(), to.display()))?;
    Ok(Some(to))
}

/// How the report of records is printed.
#[derive(Debug, Clone, Copy)]
pub enum Printed {
    /// Tables, or a summary if the report was written to files.
    Tables,
    /// Markdown.
    Markdown,
    /// The records as one JSON list.
    Json,
}

/// Prints a report of records, or of folders of records, and writes it into the folder `out`.
pub fn report(
    places: &[PathBuf],
    extensions: &Extensions,
    out: Option<&Path>,
    printed: Printed,
) -> Result<()> {
    let records = load(places)?;
    let written = out.map(|out| report::write(&records, extensions, out)).transpose()?;
    match (printed, written) {
        (Printed::Json, _) => print(&serde_json::to_string_pretty(&records)?),
        (Printed::Markdown, _) => print(&report::markdown(&records, extensions)?),
        (Printed::Tables, None) => print(&report::terminal(&records, screen())),
        (Printed::Tables, Some(written)) => {
            let mut lines = report::summary(&records);
            lines.truncate(SUMMARY);
            lines.extend(written.map(|path| path.display().to_string()));
            print(&lines.join("\n"))
        }
    }
}

/// Draws the comparisons of records into an SVG file.
pub fn picture(places: &[PathBuf], path: &Path) -> Result<()> {
    std::fs::write(path, report::picture(&load(places)?)?).map_err(|why| cannot("write", path, why))
}

fn load(places: &[PathBuf]) -> Result<Vec<Record>> {
    let records: Vec<Record> = sources(places)?.into_iter().map(|s| s.record).collect();
    if records.is_empty() {
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        bail!("report: got no JSON file in {}, expected a record", places.join(", "));
    }
    Ok(records)
}

/// The largest number of lines before the paths.
const SUMMARY: usize = 8;
