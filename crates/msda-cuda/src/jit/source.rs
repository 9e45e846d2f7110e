//! The kernels' files, embedded.

use msda::{Error, ErrorKind, Result};

/// Every file that a kernel is made of, by the name that `#include` uses.
pub const FILES: &[(&str, &str)] = &[
    ("prelude.cuh", include_str!("../../kernels/prelude.cuh")),
    ("taps.cuh", include_str!("../../kernels/taps.cuh")),
    ("flush.cu", include_str!("../../kernels/flush.cu")),
    ("generic.cu", include_str!("../../kernels/generic.cu")),
    ("order.cu", include_str!("../../kernels/order.cu")),
    ("pack.cu", include_str!("../../kernels/pack.cu")),
    ("rows.cuh", include_str!("../../kernels/rows.cuh")),
    ("rows.cu", include_str!("../../kernels/rows.cu")),
    ("selftest.cuh", include_str!("selftest.cuh")),
    ("selftest.cu", include_str!("selftest.cu")),
];

/// The text of a file.
pub fn text(file: &str) -> Result<&'static str> {
    lookup(file).ok_or_else(|| {
        let names: Vec<_> = FILES.iter().map(|(name, _)| *name).collect();
        Error::new(ErrorKind::Compile, "kernel file", file, format!("one of {}", names.join(", ")))
    })
}

/// The files that others include, with their texts.
pub fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().copied().filter(|(name, _)| name.ends_with(".cuh"))
}

/// A file with what it includes put in place, each once: all that a kernel is made of, to be read in one piece.
pub fn expanded(file: &str) -> Result<String> {
    let mut out = String::new();
    expand(text(file)?, &mut vec![file.to_owned()], &mut out);
    Ok(out)
}

fn lookup(file: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == file).map(|(_, text)| *text)
}

fn expand(text: &str, seen: &mut Vec<String>, out: &mut String) {
    for line in text.lines().filter(|line| line.trim() != "#pragma once") {
        match included(line).and_then(|name| Some((name, lookup(name)?))) {
            Some((name, _)) if seen.iter().any(|other| other == name) => {}
            Some((name, header)) => {
                seen.push(name.to_owned());
                out.push_str(&format!("// {name}\n"));
                expand(header, seen, out);
                out.push_str(&format!("// end of {name}\n"));
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
}

fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_put_in_place_once() {
        let text = expanded("selftest.cu").unwrap();
        assert_eq!(text.matches("float doubled(").count(), 1, "{text}");
        assert!(!text.contains("#include") && !text.contains("#pragma once"), "{text}");
        assert!(text.find("// selftest.cuh") < text.find("selftest_add"));
    }

    #[test]
    fn an_unknown_file_is_refused() {
        assert!(expanded("nothing.cu").unwrap_err().to_string().contains("selftest.cu"));
    }
}
