//! Macros that many kernels have: types, options of the problem, wanted gradients.

use msda::{Dtype, Padding, Problem, Sampling};

use crate::jit::Unit;
use crate::request::Request;
use crate::target::Target;

/// Threads per block of the kernels that have one thread or warp per element.
pub(super) const BLOCK: u32 = 256;

/// The name of a type in the kernels.
pub(super) fn macro_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "F64",
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
    }
}

/// Adds the macros and the part of the key that every kernel has: types and options.
pub fn with_options(mut unit: Unit, problem: &Problem, reference_numbers: usize) -> Unit {
    let t = problem.types();
    unit.key += &format!("-{}", t.value);
    for (name, dtype) in [("loc", t.locations), ("w", t.weights)] {
        if dtype != t.value {
            unit.key += &format!("-{name}{dtype}");
        }
    }
    let unit = with_flags(
        unit,
        [
            ("RING", "ring", problem.layout().ring() > 0),
            ("NEAREST", "nearest", problem.sampling() == Sampling::Nearest),
            ("BORDER", "border", problem.padding() == Padding::Border),
            ("CORNERS", "corners", problem.spec().align_corners),
        ],
    );
    let mut unit = unit
        .define("VALUE", macro_name(t.value))
        .define("LOCATION", macro_name(t.locations))
        .define("WEIGHT", macro_name(t.weights))
        .define("FUSED", reference_numbers);
    if reference_numbers > 0 {
        unit.key += &format!("-fused{reference_numbers}");
    }
    unit
}

/// Adds the macros and the part of the key that say which gradients of samples are stored.
pub(super) fn with_wanted(unit: Unit, request: &Request<'_>) -> Unit {
    let wanted = request.wanted();
    let fused = request.operands.reference_kind().is_some();
    with_flags(
        unit,
        [
            ("WANT_LOCATIONS", "xy", wanted.locations),
            ("WANT_WEIGHTS", "w", wanted.weights),
            ("WANT_POINTS", "ref", wanted.reference && fused),
        ],
    )
}

/// Adds flags: macro, word of the key, value.
fn with_flags<const N: usize>(mut unit: Unit, flags: [(&str, &str, bool); N]) -> Unit {
    for (name, word, on) in flags {
        if on {
            unit.key += &format!("-{word}");
        }
        unit = unit.define(name, u8::from(on));
    }
    unit
}

/// Enough blocks of [`BLOCK`] threads for `total` elements, but no more than the device can use at
/// once.
pub(super) fn blocks(total: usize, target: &Target) -> u32 {
    let most = u64::from(target.sms) * 64;
    (total.div_ceil(BLOCK as usize) as u64).clamp(1, most.max(1)) as u32
}

#[cfg(test)]
mod tests {
    use crate::jit::KERNELS;

    /// Kernels have these numbers in their text. With another number the grid would be too small,
    /// or the kernel would refuse a level that the host takes.
    #[test]
    fn numbers_in_kernels_are_those_of_the_host() {
        let bounds = format!("__launch_bounds__({})", super::BLOCK);
        for file in ["gaps", "samples_generic", "value_atomic", "reference"] {
            let text = KERNELS.text(&format!("backward/{file}.cu")).unwrap();
            assert_eq!(text.matches("__launch_bounds__").count(), text.matches(&bounds).count(), "{file}");
        }
        for file in ["forward/generic.cu", "pack.cu", "pad.cu"] {
            assert!(KERNELS.text(file).unwrap().contains(&bounds), "{file}");
        }
        let side = format!("MAX_EXTENT = 1 << {};", msda::MAX_LEVEL_SIDE.ilog2());
        let table = KERNELS.text("common/level_table.cuh").unwrap();
        assert!(msda::MAX_LEVEL_SIDE.is_power_of_two() && table.contains(&side), "{side}");
    }
}
