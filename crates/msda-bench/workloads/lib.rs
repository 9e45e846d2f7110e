//! Workloads of well-known models: the files of this folder, for `msda bench` and for the Python
//! package. The README has their keys.

macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!($name, ".toml")))),*] };
}

/// The name and the text of each workload.
pub const ALL: [(&str, &str); 20] = files![
    "small"
    "seed-encoder" "seed-decoder" "seed-uniform" "seed-point" "seed" "seed-ring-uniform" "seed-b6h8"
    "detr-encoder" "detr-decoder" "dino-encoder" "dino-training"
    "bevformer-temporal" "bevformer-spatial" "bevformer-cross" "mask2former"
    "rt-detr-decoder" "rf-detr-decoder" "rf-detr-training" "d-fine-decoder"
];
