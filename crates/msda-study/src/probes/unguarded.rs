//! The cluster program without its last barrier, in a process of its own: it may fault or hang.

use std::fmt;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use msda_bench::parallel::wait;

/// How long the process may take. With the barrier it takes about a second, most of it to start.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// How long a killed process may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// What became of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It ended in time without an error. Its output.
    Completed(String),
    /// It ended with an error. Its last line.
    Faulted(String),
    /// It did not end in time and was killed.
    Hung,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(_) => f.write_str("completed"),
            Self::Faulted(why) => write!(f, "faulted: {why}"),
            Self::Hung => f.write_str("hung"),
        }
    }
}

/// Runs a command and kills its process after `limit`. The command must print little.
pub(super) fn watch(command: &mut Command, limit: Duration) -> io::Result<Outcome> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if wait(&mut child, limit)?.is_none() {
        child.kill()?;
        // A process that a driver holds may outlive the signal; then it is left to the system.
        wait(&mut child, GRACE)?;
        return Ok(Outcome::Hung);
    }
    let ended = child.wait_with_output()?;
    let [output, errors] = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if ended.status.success() {
        return Ok(Outcome::Completed(output.trim().to_owned()));
    }
    let reason = errors.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("hint:"));
    Ok(Outcome::Faulted(reason.map_or_else(|| ended.status.to_string(), |line| line.trim().to_owned())))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn processes_complete_fault_or_hang() {
        let shell = |script: &str, limit| watch(Command::new("sh").args(["-c", script]), limit).unwrap();
        let long = Duration::from_secs(30);
        assert_eq!(shell("echo 3", long), Outcome::Completed("3".into()));
        let faulted = shell("echo first >&2; echo the reason >&2; echo 'hint: none' >&2; exit 1", long);
        assert_eq!(faulted.to_string(), "faulted: the reason");
        assert!(shell("exit 7", long).to_string().contains('7'));
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("process").display().to_string();
        assert_eq!(
            shell(&format!("echo $$ > {place}; exec sleep 1000"), Duration::from_secs(2)),
            Outcome::Hung
        );
        let lives = shell(&format!("kill -0 $(cat {place})"), long);
        assert!(matches!(lives, Outcome::Faulted(_)), "the process was not killed: {lives}");
    }
}
