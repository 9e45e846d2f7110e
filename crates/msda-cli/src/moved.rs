//! Hints for commands and flags of earlier versions and other builds.

use clap::error::{ContextKind, ContextValue, Error};

/// Prints why a command line is wrong, with a hint if a command or flag was renamed, and exits.
pub(crate) fn exit(error: &Error) -> ! {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let command = context(ContextKind::InvalidSubcommand);
    let flag = context(ContextKind::InvalidArg);
    // This is `Error::exit` with one more line.
    let _ = error.print();
    if let Some(hint) = hint(typed.first().map(String::as_str), command, flag) {
        eprintln!("\nhint: {hint}");
    }
    std::process::exit(error.exit_code())
}

/// The present name of a command or flag of another build or version.
fn hint(typed: Option<&str>, command: Option<&str>, flag: Option<&str>) -> Option<String> {
    let renamed = match (typed, flag) {
        (Some("verify"), Some("--workloads")) => Some("this is now `msda verify --outputs all`"),
        (Some("verify"), Some("--workload")) => Some("this is now `msda verify --outputs NAME`"),
        (Some("run"), Some("--out")) => {
            Some("`--out` names a folder; `msda run` writes a file: `--output FILE`")
        }
        (Some("tune"), Some("--out")) => {
            Some("`--out` names a folder; `msda tune` writes a file: `--file FILE`")
        }
        _ => None,
    };
    if let Some(renamed) = renamed {
        return Some(renamed.into());
    }
    let study = match (command, typed, flag) {
        (Some(command @ ("probe" | "claims" | "analyze")), ..) => command,
        (None, Some(command @ ("bench" | "verify")), Some("--ladder")) => command,
        (None, Some("kernels"), Some("--ladder")) => "list",
        (Some("study"), ..) => "",
        (Some("tune" | "kernels" | "cache"), ..) => {
            return Some("this build has no CUDA support; build msda with the feature `cuda`".into());
        }
        _ => return None,
    };
    if cfg!(feature = "study") {
        Some(format!("this is now `msda study {study}`"))
    } else {
        Some("this build has no study; build msda with the feature `study`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn old_names_lead_to_new_ones() {
        let expected = |name: &str| match cfg!(feature = "study") {
            true => format!("this is now `msda study {name}`"),
            false => "this build has no study; build msda with the feature `study`".into(),
        };
        assert_eq!(hint(Some("claims"), Some("claims"), None), Some(expected("claims")));
        assert_eq!(hint(Some("bench"), None, Some("--ladder")), Some(expected("bench")));
        assert_eq!(hint(Some("kernels"), None, Some("--ladder")), Some(expected("list")));
        assert_eq!(hint(Some("run"), None, Some("--ladder")), None);
        let outputs = hint(Some("verify"), None, Some("--workloads"));
        assert_eq!(outputs.as_deref(), Some("this is now `msda verify --outputs all`"));
        assert!(hint(Some("run"), None, Some("--out")).is_some_and(|hint| hint.contains("--output FILE")));
        assert_eq!(hint(Some("nonsense"), Some("nonsense"), None), None);
    }
}
