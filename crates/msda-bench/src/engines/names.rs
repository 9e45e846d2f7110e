//! Names of the engines on a GPU: `cuda`, `cuda:KERNEL`, `cuda@N`, `cuda@N:KERNEL`.

use anyhow::{Result, bail};

use super::external::is_external;

const CUDA: &str = "cuda";

/// Whether an engine of this name runs on a GPU of ours.
pub fn is_cuda(name: &str) -> bool {
    name.strip_prefix(CUDA).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '@']))
}

/// The number of the GPU and the name of the kernel, if the engine's name has one.
pub fn split_cuda(name: &str) -> Result<(usize, Option<&str>)> {
    let rest = name.strip_prefix(CUDA).unwrap_or(name);
    let (number, kernel) = match rest.split_once(':') {
        Some((number, kernel)) => (number, Some(kernel)),
        None => (rest, None),
    };
    match number.strip_prefix('@').map(str::parse) {
        None if number.is_empty() => Ok((0, kernel)),
        Some(Ok(ordinal)) => Ok((ordinal, kernel)),
        _ => bail!(
            "engine: got '{name}', expected cuda, cuda@N, cuda:KERNEL, cuda:half, cuda:fixed, cuda:levels, \
             cuda:sorted, cuda:atomic or cuda@N:KERNEL"
        ),
    }
}

/// The number of the GPU that these engines use, and 0 if none of them uses a GPU. A record
/// describes one GPU.
pub fn ordinal(names: &[String]) -> Result<usize> {
    let ours = names.iter().filter(|name| is_cuda(name));
    let mut numbers = ours.map(|name| Ok(split_cuda(name)?.0)).collect::<Result<Vec<usize>>>()?;
    // Torch and peers use the first GPU.
    if names.iter().any(|name| name != "torch" && is_external(name)) {
        numbers.push(0);
    }
    numbers.sort_unstable();
    numbers.dedup();
    match numbers[..] {
        [] => Ok(0),
        [one] => Ok(one),
        _ => bail!(
            "engines: got GPUs {numbers:?}, expected one GPU per run\n\
             hint: start one run per GPU; torch and peers use the first"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_gpu_and_kernel() {
        assert_eq!(split_cuda("cuda").unwrap(), (0, None));
        assert_eq!(split_cuda("cuda@2:a:b=1").unwrap(), (2, Some("a:b=1")));
        for wrong in ["cuda@", "cuda@x", "cuda@-1"] {
            assert!(split_cuda(wrong).is_err(), "{wrong}");
        }
        let of = |names: &[&str]| ordinal(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&["cpu", "torch"]).unwrap(), 0);
        assert_eq!(of(&["cuda@2", "cpu", "cuda@2:half"]).unwrap(), 2);
        assert_eq!(of(&["cuda", "torch-cuda"]).unwrap(), 0);
        for mixed in [&["cuda@1", "cuda"], &["cuda@1", "torch-cuda"]] {
            assert!(of(mixed).unwrap_err().to_string().contains("[0, 1]"));
        }
        assert!(is_cuda("cuda") && is_cuda("cuda@1") && is_cuda("cuda:rows:sample_groups=2"));
        assert!(!is_cuda("cudax") && !is_cuda("torch-cuda") && !is_cuda("cpu"));
    }
}
