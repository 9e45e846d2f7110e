//! Standard output and standard error, for people and for programs.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use msda_bench::bench::Progress;
use msda_bench::report::{Screen, USUAL_WIDTH};

/// The width of help texts, and of all text where there is no terminal.
pub(crate) const WIDTH: usize = USUAL_WIDTH;

/// The width of the terminal, and whether text may be coloured.
pub(crate) fn screen() -> Screen {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    // Narrower than this, no table says anything.
    let width = size.map_or(WIDTH, |(width, _)| usize::from(width.0).max(40));
    Screen { width, color: color() }
}

/// Whether standard output may be coloured: a terminal, and `NO_COLOR` unset or empty.
pub(crate) fn color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Whether the reader of our output has ended, as `head` does. This is no error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// A progress bar on standard error. Without a terminal it prints nothing.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new() -> Self {
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
        self.0.suspend(|| eprintln!("{what}"));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
