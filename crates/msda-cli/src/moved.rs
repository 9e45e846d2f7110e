//! Hints for command lines that earlier versions or other builds understand.

use clap::error::{ContextKind, ContextValue, Error};

/// Prints why a command line was not understood, with a hint if the command is elsewhere, and
/// exits.
pub(crate) fn exit(error: &Error) -> ! {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let command = context(ContextKind::InvalidSubcommand);
    let flag = context(ContextKind::InvalidArg);
    // The same as `Error::exit`, with a line more.
    let _ = error.print();
    if let Some(hint) = hint(typed.first().map(String::as_str), command, flag) {
        eprintln!("\nhint: {hint}");
    }
    std::process::exit(error.exit_code())
}

/// Where a command or flag of another build or version is now.
fn hint(typed: Option<&str>, command: Option<&str>, flag: Option<&str>) -> Option<String> {
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
        assert_eq!(hint(Some("nonsense"), Some("nonsense"), None), None);
    }
}
