//! The kernels' files, embedded.

use msda::{Error, ErrorKind, Result};

/// Every file that a kernel is made of, by the name that `#include` uses.
pub const FILES: &[(&str, &str)] = &[
    ("common/types.cuh", include_str!("../../kernels/common/types.cuh")),
    ("common/memory.cuh", include_str!("../../kernels/common/memory.cuh")),
    ("common/tensor.cuh", include_str!("../../kernels/common/tensor.cuh")),
    ("common/levels.cuh", include_str!("../../kernels/common/levels.cuh")),
    ("common/accumulate.cuh", include_str!("../../kernels/common/accumulate.cuh")),
    ("common/args.cuh", include_str!("../../kernels/common/args.cuh")),
    ("common/stage.cuh", include_str!("../../kernels/common/stage.cuh")),
    ("common/locate.cuh", include_str!("../../kernels/common/locate.cuh")),
    ("common/walk.cuh", include_str!("../../kernels/common/walk.cuh")),
    ("common/group.cuh", include_str!("../../kernels/common/group.cuh")),
    ("forward/streaming.cu", include_str!("../../kernels/forward/streaming.cu")),
    ("forward/resident.cu", include_str!("../../kernels/forward/resident.cu")),
    ("forward/generic.cu", include_str!("../../kernels/forward/generic.cu")),
    ("order.cu", include_str!("../../kernels/order.cu")),
    ("pack.cu", include_str!("../../kernels/pack.cu")),
    ("flush.cu", include_str!("../../kernels/flush.cu")),
    ("probes/bulk.cuh", include_str!("../../kernels/probes/bulk.cuh")),
    ("probes/data.cuh", include_str!("../../kernels/probes/data.cuh")),
    ("probes/clusters.cu", include_str!("../../kernels/probes/clusters.cu")),
    ("probes/copies.cu", include_str!("../../kernels/probes/copies.cu")),
    ("probes/fill.cu", include_str!("../../kernels/probes/fill.cu")),
    ("probes/fma.cu", include_str!("../../kernels/probes/fma.cu")),
    ("probes/gather.cu", include_str!("../../kernels/probes/gather.cu")),
    ("probes/shared.cu", include_str!("../../kernels/probes/shared.cu")),
    ("probes/stream.cu", include_str!("../../kernels/probes/stream.cu")),
    ("probes/tile.cu", include_str!("../../kernels/probes/tile.cu")),
    ("ladder/ladder.cuh", include_str!("../../kernels/ladder/ladder.cuh")),
    ("ladder/direct.cu", include_str!("../../kernels/ladder/direct.cu")),
    ("ladder/distributed.cu", include_str!("../../kernels/ladder/distributed.cu")),
    ("ladder/tensor_core.cu", include_str!("../../kernels/ladder/tensor_core.cu")),
    ("ladder/texture.cu", include_str!("../../kernels/ladder/texture.cu")),
    ("ladder/tma_multilevel.cu", include_str!("../../kernels/ladder/tma_multilevel.cu")),
    ("ladder/handed.cuh", include_str!("../../kernels/ladder/handed.cuh")),
    ("ladder/kept.cuh", include_str!("../../kernels/ladder/kept.cuh")),
    ("ladder/persistent.cu", include_str!("../../kernels/ladder/persistent.cu")),
    ("ladder/quantised.cu", include_str!("../../kernels/ladder/quantised.cu")),
    ("ladder/shared.cu", include_str!("../../kernels/ladder/shared.cu")),
    ("ladder/specialised.cu", include_str!("../../kernels/ladder/specialised.cu")),
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
