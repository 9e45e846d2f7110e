//! Tensors and files that the tests of the readers share, and a count of allocated memory.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use msda::{Buffer, Dtype};
use msda_bench::files::{Data, Tensor};

pub(crate) const SHAPES: [&[usize]; 11] = [
    &[],
    &[5],
    &[0],
    &[2, 3],
    &[3, 0],
    &[1, 2, 3],
    &[2, 1, 3, 2],
    &[2, 0, 3, 2],
    &[1, 2, 3, 1, 2],
    &[2, 1, 2, 3, 1, 2],
    &[0, 0, 0, 0, 0, 0],
];

pub(crate) fn tensor(dtype: Option<Dtype>, shape: &[usize]) -> Tensor {
    let len = shape.iter().product();
    let data = match dtype {
        Some(dtype) => Data::Float(Buffer::from_fn(dtype, len, |i| i as f64 * 0.375 - 1.0)),
        None => Data::Int((0..len as i64).map(|i| i * 1_000_003_000 - 7).collect()),
    };
    Tensor { shape: shape.to_vec(), data }
}

/// The four floating-point types, and integers.
pub(crate) fn types() -> impl Iterator<Item = Option<Dtype>> {
    Dtype::ALL.into_iter().map(Some).chain([None])
}

/// Everything about a tensor, comparable: NaNs are equal when their bits are.
pub(crate) type Exact = (Vec<usize>, Option<Dtype>, Vec<u8>);

pub(crate) fn exact(tensor: &Tensor) -> Exact {
    let (dtype, bytes) = match &tensor.data {
        Data::Float(buffer) => (Some(buffer.dtype()), buffer.to_le_bytes()),
        Data::Int(ints) => (None, ints.iter().flat_map(|x| x.to_le_bytes()).collect()),
    };
    (tensor.shape.clone(), dtype, bytes)
}

pub(crate) fn all_exact(tensors: &BTreeMap<String, Tensor>) -> Vec<(&String, Exact)> {
    tensors.iter().map(|(name, tensor)| (name, exact(tensor))).collect()
}

/// An `.npy` file from its parts, the header padded as NumPy does.
pub(crate) fn npy_bytes(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
    let before = if version == 1 { 10 } else { 12 };
    let padded = (before + dict.len() + 1).next_multiple_of(64) - before;
    let header = format!("{dict:<width$}\n", width = padded - 1);
    let len = (header.len() as u32).to_le_bytes();
    [b"\x93NUMPY", &[version, 0][..], &len[..before - 8], header.as_bytes(), data].concat()
}

/// A `.safetensors` file from its parts.
pub(crate) fn safetensors_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// The hostile files of the repository, sorted by name.
pub(crate) fn hostile() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The most memory for a file of `len` bytes: bytes that become `i64` take eight times as much.
pub(crate) fn allowed(len: usize) -> usize {
    16 * len + 4096
}

/// The result of `f`, and the most memory that it held at any time.
pub(crate) fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(f()));
    (result.expect("it was called"), counted.bytes_max as usize)
}
