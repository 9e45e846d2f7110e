//! The source files of kernels, embedded in the library.

use std::fmt;
use std::ptr;

use msda::{Error, ErrorKind, Result};

/// Source files of kernels. Other crates bring their own and include headers of [`KERNELS`].
///
/// ```
/// use msda_cuda::jit::{KERNELS, Sources, Unit};
///
/// const FILES: &[(&str, &str)] = &[("mine.cu", "#include \"common/types.cuh\"\n")];
/// static MINE: Sources = Sources::new(FILES, Some(&KERNELS));
///
/// let unit = Unit::of(&MINE, "mine.cu", "mine", "sm_90".parse()?);
/// assert!(unit.assemble()?.text.contains("// common/types.cuh"));
/// # Ok::<(), msda::Error>(())
/// ```
pub struct Sources {
    files: &'static [(&'static str, &'static str)],
    base: Option<&'static Sources>,
}

/// The kernels of this crate.
pub static KERNELS: Sources = Sources::new(
    &[
        ("common/types.cuh", include_str!("../../kernels/common/types.cuh")),
        ("common/memory.cuh", include_str!("../../kernels/common/memory.cuh")),
        ("common/tensor.cuh", include_str!("../../kernels/common/tensor.cuh")),
        ("common/warp.cuh", include_str!("../../kernels/common/warp.cuh")),
        ("common/levels.cuh", include_str!("../../kernels/common/levels.cuh")),
        ("common/level_table.cuh", include_str!("../../kernels/common/level_table.cuh")),
        ("common/softmax.cuh", include_str!("../../kernels/common/softmax.cuh")),
        ("common/taps.cuh", include_str!("../../kernels/common/taps.cuh")),
        ("common/generic.cuh", include_str!("../../kernels/common/generic.cuh")),
        ("common/accumulate.cuh", include_str!("../../kernels/common/accumulate.cuh")),
        ("common/args.cuh", include_str!("../../kernels/common/args.cuh")),
        ("common/levels_in_memory.cuh", include_str!("../../kernels/common/levels_in_memory.cuh")),
        ("common/mma.cuh", include_str!("../../kernels/common/mma.cuh")),
        ("common/stage.cuh", include_str!("../../kernels/common/stage.cuh")),
        ("common/locate.cuh", include_str!("../../kernels/common/locate.cuh")),
        ("common/walk.cuh", include_str!("../../kernels/common/walk.cuh")),
        ("common/group.cuh", include_str!("../../kernels/common/group.cuh")),
        ("forward/streaming.cu", include_str!("../../kernels/forward/streaming.cu")),
        ("forward/resident.cu", include_str!("../../kernels/forward/resident.cu")),
        ("forward/generic.cu", include_str!("../../kernels/forward/generic.cu")),
        ("backward/matrix.cuh", include_str!("../../kernels/backward/matrix.cuh")),
        ("backward/tiles.cuh", include_str!("../../kernels/backward/tiles.cuh")),
        ("backward/sort_keys.cuh", include_str!("../../kernels/backward/sort_keys.cuh")),
        ("backward/sort_digits.cuh", include_str!("../../kernels/backward/sort_digits.cuh")),
        ("backward/sort_counting.cuh", include_str!("../../kernels/backward/sort_counting.cuh")),
        ("backward/sort.cu", include_str!("../../kernels/backward/sort.cu")),
        ("backward/units.cuh", include_str!("../../kernels/backward/units.cuh")),
        ("backward/value.cu", include_str!("../../kernels/backward/value.cu")),
        ("backward/value_few.cu", include_str!("../../kernels/backward/value_few.cu")),
        ("backward/value_plain.cu", include_str!("../../kernels/backward/value_plain.cu")),
        ("backward/value_atomic.cu", include_str!("../../kernels/backward/value_atomic.cu")),
        ("pad.cu", include_str!("../../kernels/pad.cu")),
        ("backward/gaps.cu", include_str!("../../kernels/backward/gaps.cu")),
        ("backward/samples.cu", include_str!("../../kernels/backward/samples.cu")),
        ("backward/samples_generic.cu", include_str!("../../kernels/backward/samples_generic.cu")),
        ("backward/reference.cu", include_str!("../../kernels/backward/reference.cu")),
        ("order.cu", include_str!("../../kernels/order.cu")),
        ("pack.cu", include_str!("../../kernels/pack.cu")),
        ("selftest.cuh", include_str!("selftest.cuh")),
        ("selftest.cu", include_str!("selftest.cu")),
    ],
    None,
);

impl Sources {
    /// Files by the name that `#include` uses. A file that is not among them is looked up in
    /// `base`.
    pub const fn new(files: &'static [(&'static str, &'static str)], base: Option<&'static Sources>) -> Self {
        Self { files, base }
    }

    /// The text of a file.
    pub fn text(&self, file: &str) -> Result<&'static str> {
        self.find(file).ok_or_else(|| {
            let names: Vec<_> = self.all().map(|(name, _)| name).collect();
            Error::new(ErrorKind::Compile, "kernel file", file, format!("one of {}", names.join(", ")))
        })
    }

    /// A number that changes with every change of a file: 16 hexadecimal digits.
    pub fn version(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for (name, text) in self.all() {
            hash.update(name.as_bytes()).update(&[0]).update(text.as_bytes()).update(&[0]);
        }
        hash.finalize().to_hex()[..16].to_owned()
    }

    /// The headers, with their texts.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.all().filter(|(name, _)| name.ends_with(".cuh"))
    }

    /// A file with its includes expanded, each once: the whole kernel in one readable text.
    pub fn expanded(&self, file: &str) -> Result<String> {
        let mut out = String::new();
        self.expand(self.text(file)?, &mut vec![file.to_owned()], &mut out);
        Ok(out)
    }

    /// Every file, of the base too. A file hides the file of that name in the base.
    fn all(&self) -> Box<dyn Iterator<Item = (&'static str, &'static str)> + '_> {
        let own = |name| self.files.iter().any(|(other, _)| *other == name);
        let inherited = self.base.into_iter().flat_map(Sources::all).filter(move |(name, _)| !own(*name));
        Box::new(self.files.iter().copied().chain(inherited))
    }

    fn find(&self, file: &str) -> Option<&'static str> {
        let own = self.files.iter().find(|(name, _)| *name == file).map(|(_, text)| *text);
        own.or_else(|| self.base?.find(file))
    }

    fn expand(&self, text: &str, seen: &mut Vec<String>, out: &mut String) {
        for line in text.lines().filter(|line| line.trim() != "#pragma once") {
            match included(line).and_then(|name| Some((name, self.find(name)?))) {
                Some((name, _)) if seen.iter().any(|other| other == name) => {}
                Some((name, header)) => {
                    seen.push(name.to_owned());
                    out.push_str(&format!("// {name}\n"));
                    self.expand(header, seen, out);
                    out.push_str(&format!("// end of {name}\n"));
                }
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
    }
}

/// The same static, not the same files.
impl PartialEq for Sources {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for Sources {}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all().map(|(name, _)| name)).finish()
    }
}

/// The name in an `#include "name"`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_expanded_once() {
        let text = KERNELS.expanded("selftest.cu").unwrap();
        assert_eq!(text.matches("float doubled(").count(), 1, "{text}");
        assert!(!text.contains("#include") && !text.contains("#pragma once"), "{text}");
        assert!(text.find("// selftest.cuh") < text.find("selftest_add"));
    }

    #[test]
    fn an_unknown_file_is_refused() {
        assert!(KERNELS.expanded("nothing.cu").unwrap_err().to_string().contains("selftest.cu"));
    }

    #[test]
    fn own_files_come_before_those_of_the_base() {
        static OTHER: Sources = Sources::new(
            &[
                ("other.cu", "#include \"common/types.cuh\"\n#include \"selftest.cuh\"\n"),
                ("common/types.cuh", "// own\n"),
            ],
            Some(&KERNELS),
        );
        let text = OTHER.expanded("other.cu").unwrap();
        assert!(text.contains("// own\n") && text.contains("float doubled("), "{text}");
        let headers = |sources: &'static Sources| sources.headers().count();
        assert_eq!(headers(&OTHER), headers(&KERNELS), "a header of its own hides one of the base");
        assert_eq!(OTHER.headers().filter(|(name, _)| *name == "common/types.cuh").count(), 1);
        assert!(OTHER != KERNELS && OTHER == OTHER);
    }
}
